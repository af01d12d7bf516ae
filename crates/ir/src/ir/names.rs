//! The names that a model has for its inputs and outputs, kept as attributes of `@main`.

use super::{AttrValue, Attrs, Module};

/// The attribute of `@main` with the names of its inputs, in order.
pub const INPUT_NAMES: &str = "input_names";

/// The attribute of `@main` with the names of its outputs, one for each field where the result is a tuple.
pub const OUTPUT_NAMES: &str = "output_names";

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

/// The attributes of `@main` that name inputs and outputs.
pub fn name_attrs<'a>(inputs: impl Iterator<Item = &'a String>, outputs: impl Iterator<Item = &'a String>) -> Attrs {
    let name = |n: &String| AttrValue::Str(n.as_str().into());
    let (inputs, outputs) = (inputs.map(name).collect(), outputs.map(name).collect());
    Attrs::new(vec![(INPUT_NAMES.into(), AttrValue::List(inputs)), (OUTPUT_NAMES.into(), AttrValue::List(outputs))])
}
