//! The closed table of attribute functions: what right sides and guards compute with.
//!
//! A function that does not apply gives `None`, and the rule does not fire. Functions are pure. What data can't say is a
//! Rust function that a program [registers](register) by name.

mod layout_requests;
mod layouts;
mod lists;
mod moves;
mod quantized;
mod types;
mod windows;

use std::sync::{OnceLock, RwLock};

pub use layout_requests::LayoutRequest;
pub(in crate::rules) use moves::fills_nothing;

pub use super::signature::{ClassView, Function, Input, Param};
use crate::ops::RegisterError;

const SHIPPED: &[&[Function]] = &[
    lists::FUNCTIONS,
    types::FUNCTIONS,
    layouts::FUNCTIONS,
    moves::FUNCTIONS,
    layout_requests::FUNCTIONS,
    quantized::FUNCTIONS,
    windows::FUNCTIONS,
];

fn table() -> &'static RwLock<Vec<&'static Function>> {
    static TABLE: OnceLock<RwLock<Vec<&'static Function>>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(SHIPPED.iter().copied().flatten().collect()))
}

/// All functions, in table order.
pub fn all() -> Vec<&'static Function> {
    table().read().expect("no registration panics").clone()
}

/// The function of that name.
pub fn lookup(name: &str) -> Option<&'static Function> {
    all().into_iter().find(|f| f.name == name)
}

/// Adds a function, for the life of the process.
pub fn register(function: Function) -> Result<(), RegisterError> {
    let mut table = table().write().expect("no registration panics");
    match table.iter().any(|f| f.name == function.name) {
        true => Err(RegisterError(function.name)),
        false => {
            table.push(Box::leak(Box::new(function)));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::AttrValue;

    /// The value of a shipped function on attribute values.
    pub(super) fn call(name: &str, args: &[AttrValue]) -> Option<AttrValue> {
        let inputs: Vec<Input<'_>> = args.iter().cloned().map(Input::Attr).collect();
        (lookup(name).expect("a shipped function").eval)(&inputs)
    }

    #[test]
    fn names_are_unique_and_documented() {
        let all = all();
        for (i, f) in all.iter().enumerate() {
            assert!(!f.doc.is_empty(), "{}", f.name);
            assert!(all[..i].iter().all(|g| g.name != f.name), "{} is defined twice", f.name);
        }
    }
}
