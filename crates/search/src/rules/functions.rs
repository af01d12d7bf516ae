//! The closed table of attribute functions: what right sides and guards compute with.
//!
//! A function that does not apply gives `None`, and the rule does not fire. Functions are pure. What data can't say is a
//! Rust function that a program [registers](register) by name.

mod layouts;
mod lists;
mod moves;
mod quantized;
mod types;
mod windows;
mod wishes;

use std::sync::{OnceLock, RwLock};

pub(in crate::rules) use moves::fills_nothing;
pub use wishes::Wish;

pub use super::eval::{ClassView, Input};
use crate::{ir::AttrValue, ops::RegisterError};

/// What a function or guard takes at one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// An integer.
    Int,
    /// A number.
    Number,
    /// A list.
    List,
    /// A string, such as a layout.
    Str,
    /// A tensor.
    Tensor,
    /// Any attribute value.
    Any,
    /// A class: a variable that stands for a value of the program.
    Class,
    /// A sequence of classes, `?xs`.
    Classes,
    /// One or more of any attribute values; last.
    Rest,
}

/// An attribute function.
pub struct Function {
    /// Its name in rule files.
    pub name: &'static str,
    /// What it takes.
    pub params: &'static [Param],
    /// What it gives, where that is always of one kind.
    pub gives: Param,
    /// What it computes, in a sentence.
    pub doc: &'static str,
    /// The computation; `None` where it does not apply.
    pub eval: fn(&[Input<'_>]) -> Option<AttrValue>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const SHIPPED: &[&[Function]] = &[
    lists::FUNCTIONS,
    types::FUNCTIONS,
    layouts::FUNCTIONS,
    moves::FUNCTIONS,
    wishes::FUNCTIONS,
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
