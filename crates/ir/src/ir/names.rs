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

/// That attribute; none where no name occurs twice, and so nothing is said.
pub fn dim_names_attr(names: &[Vec<String>]) -> Option<(Name, AttrValue)> {
    let all = || names.iter().flatten().filter(|n| !n.is_empty());
    let twice = all().any(|n| all().filter(|o| *o == n).count() > 1);
    let list = |l: &Vec<String>| AttrValue::List(l.iter().map(|n| AttrValue::Str(n.as_str().into())).collect());
    twice.then(|| (DIM_NAMES.into(), AttrValue::List(names.iter().map(list).collect())))
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
