//! Prices under which floats give way to integers.
//!
//! A pass that wants one form wherever it can be had (integers, short floats, fast functions) is a ruleset under a cost model that wraps
//! the user's and makes the other forms dear. No rule says what is wanted, and the rulesets stay of use to others, who weigh the same forms
//! by time and error.

use std::sync::Arc;

use super::{CostModel, Head, KernelView, NodeView};
use crate::{
    ir::{OpId, Type},
    ops::{self, Class},
};

/// What a contraction of floats costs beyond its price, any other operator on floats, and a change between floats and
/// integers: each more than any number of the next, by seconds, and little enough that sums don't lose what integers cost.
const CONTRACTION: f64 = 1e9;
const FLOATS: f64 = 1e6;
const CHANGE: f64 = 1e3;

/// A cost model's prices, and such for floats that a contraction of integers is chosen wherever there is one, then other
/// operators on integers, then as few changes between the two as can be. Quantized
/// operators that give integers count as integers, though their scales are floats.
pub struct Integers(pub Arc<dyn CostModel>);

fn has_floats(t: &Type) -> bool {
    t.flatten().is_some_and(|ts| ts.iter().any(|t| t.dtype.is_float()))
}

/// Whether an operator goes from floats to integers or back.
fn changes(op: OpId) -> bool {
    ["qnn.quantize", "qnn.dequantize"].iter().any(|name| ops::lookup(name) == Some(op))
}

/// What a call costs beyond its price.
fn surcharge(node: &NodeView) -> f64 {
    let Head::Op(op, _) = node.head else { return 0.0 };
    if changes(op) {
        return CHANGE;
    }
    let is_integer = !(has_floats(node.out) || node.args.iter().any(has_floats));
    match op.op().class() {
        _ if is_integer || op.dialect().is_some() && !has_floats(node.out) => 0.0,
        Class::Contract => CONTRACTION,
        _ => FLOATS,
    }
}

impl CostModel for Integers {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.0.as_ref()]
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("integers {}", self.0.fingerprint()?))
    }

    fn reported(&self, _price: f64) -> Option<f64> {
        None
    }

    fn cost(&self, node: &NodeView) -> f64 {
        self.0.cost(node) + surcharge(node)
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        self.0.kernel(kernel) + kernel.nodes().map(|node| surcharge(&node)).sum::<f64>()
    }
}
