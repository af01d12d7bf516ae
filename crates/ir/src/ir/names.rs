//! The names that a model has for its inputs and outputs, kept as attributes of `@main`.

use super::{AttrValue, Attrs, Module, Name};

/// The attribute of `@main` with the names of its inputs, in order.
pub const INPUT_NAMES: &str = "input_names";

/// The attribute of `@main` with the names of its outputs, one for each field where the result is a tuple.
pub const OUTPUT_NAMES: &str = "output_names";

/// The attribute of `@main` with the names of its inputs' extents: of each input a list, empty or with a name or an empty string for
/// each axis. Extents of the same name are equal.
pub const DIM_NAMES: &str = "dim_names";

fn names(m: &Module, attr: &str) -> Option<Vec<String>> {
    let Some(AttrValue::List(names)) = m.function("main")?.attrs.get(attr) else { return None };
    names.iter().map(|n| if let AttrValue::Str(s) = n { Some(s.to_string()) } else { None }).collect()
}

/// The names of the model's inputs, where it has any of its own.
pub fn input_names(m: &Module) -> Option<Vec<String>> {
    names(m, INPUT_NAMES)
}

/// The names of the model's outputs, where it has any of its own.
pub fn output_names(m: &Module) -> Option<Vec<String>> {
    names(m, OUTPUT_NAMES)
}

/// The attribute of `@main` with the names of those outputs that hold text: an innermost axis of code points, filled up with zeros.
pub const TEXT_NAMES: &str = "text_outputs";

/// The names of outputs that hold text.
pub fn text_names(m: &Module) -> Vec<String> {
    names(m, TEXT_NAMES).unwrap_or_default()
}

/// That attribute; none where no output holds text.
pub fn text_names_attr(outputs: &[String]) -> Option<(Name, AttrValue)> {
    let all = outputs.iter().map(|n| AttrValue::Str(n.as_str().into())).collect();
    (!outputs.is_empty()).then(|| (TEXT_NAMES.into(), AttrValue::List(all)))
}

/// The names of the extents of the model's inputs, as [`DIM_NAMES`] holds them; none where there are none.
pub fn dim_names(m: &Module) -> Vec<Vec<String>> {
    let Some(AttrValue::List(inputs)) = m.function("main").and_then(|f| f.attrs.get(DIM_NAMES)) else {
        return Vec::new();
    };
    let text = |n: &AttrValue| if let AttrValue::Str(s) = n { s.to_string() } else { String::new() };
    let list = |l: &AttrValue| if let AttrValue::List(l) = l { l.iter().map(text).collect() } else { Vec::new() };
    inputs.iter().map(list).collect()
}

/// That attribute; none where nothing has a name.
pub fn dim_names_attr(names: &[Vec<String>]) -> Option<(Name, AttrValue)> {
    let named = names.iter().flatten().any(|n| !n.is_empty());
    let list = |l: &Vec<String>| AttrValue::List(l.iter().map(|n| AttrValue::Str(n.as_str().into())).collect());
    named.then(|| (DIM_NAMES.into(), AttrValue::List(names.iter().map(list).collect())))
}

/// The attribute of `@main` with extents to reckon with where inputs' extents are unknown: a list for each tensor of the parameters, tuples
/// flattened depth first, with a number for each axis, 0 where nothing is said.
const LIKELY_EXTENTS: &str = "likely_extents";

/// The extents to reckon with, as that attribute holds them; none where there are none.
pub fn likely_extents(m: &Module) -> Vec<Vec<Option<i64>>> {
    let Some(AttrValue::List(inputs)) = m.function("main").and_then(|f| f.attrs.get(LIKELY_EXTENTS)) else {
        return Vec::new();
    };
    let extents = |l: &AttrValue| l.as_ints().unwrap_or_default().into_iter().map(|n| (n > 0).then_some(n)).collect();
    inputs.iter().map(extents).collect()
}

/// That attribute; none where nothing is said.
pub fn likely_extents_attr(extents: &[Vec<Option<i64>>]) -> Option<(Name, AttrValue)> {
    let said = extents.iter().flatten().any(Option::is_some);
    let list = |l: &Vec<Option<i64>>| AttrValue::ints(&l.iter().map(|n| n.unwrap_or(0)).collect::<Vec<_>>());
    said.then(|| (LIKELY_EXTENTS.into(), AttrValue::List(extents.iter().map(list).collect())))
}

/// How inputs disagree, by name and extents, about an extent that has one name; none where they do not.
pub fn disagreeing<'a>(names: &[Vec<String>], inputs: impl Iterator<Item = (&'a str, &'a [usize])>) -> Option<String> {
    let mut known: Vec<(&str, &str, usize, usize)> = Vec::new();
    for (names, (input, shape)) in names.iter().zip(inputs) {
        for (axis, (name, &extent)) in names.iter().zip(shape).enumerate().filter(|(_, (n, _))| !n.is_empty()) {
            match known.iter().find(|k| k.0 == name) {
                Some(&(_, other, at, n)) if n != extent => {
                    return Some(format!(
                        "inputs disagree about the dimension `{name}`: axis {at} of `{other}` has {n}, but axis {axis} of `{input}` \
                         has {extent}"
                    ));
                }
                Some(_) => {}
                None => known.push((name, input, axis, extent)),
            }
        }
    }
    None
}

/// The attributes of `@main` that name inputs and outputs.
pub fn name_attrs<'a>(
    inputs: impl Iterator<Item = &'a String>,
    outputs: impl Iterator<Item = &'a String>,
    dims: &[Vec<String>],
) -> Attrs {
    let name = |n: &String| AttrValue::Str(n.as_str().into());
    let (inputs, outputs) = (inputs.map(name).collect(), outputs.map(name).collect());
    let named = [(INPUT_NAMES.into(), AttrValue::List(inputs)), (OUTPUT_NAMES.into(), AttrValue::List(outputs))];
    Attrs::new(named.into_iter().chain(dim_names_attr(dims)).collect())
}
