//! Counts calls, weighed by what kind of work they are.

use super::{CostModel, Head, NodeView, Roofline, roofline::renames_axes};
use crate::{
    ir::OpId,
    ops::{self, Class},
};

/// What a convolution or product costs beside other calls.
const CONTRACTION: f64 = 100.0;

/// What a call costs that only renames the axes of an array.
const RENAMED: f64 = 0.01;

/// What a call costs that is to go wherever it can.
const AVOIDED: f64 = 10_000.0;

/// What a second of the roofline model costs: enough to choose between programs of as many calls, too little to choose others
/// (a call takes milliseconds at most).
const SECOND: f64 = 1e-3;

/// The number of calls, whatever their size: convolutions and products count 100, what only renames axes a
/// hundredth, others 1. For passes that apply wherever they can rather than where that pays.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    avoided: Vec<OpId>,
}

impl Calls {
    /// The same, where calls of some operators are to go at any price. Names of no operator are ignored.
    pub fn avoiding(names: &[&str]) -> Calls {
        Calls { avoided: names.iter().filter_map(|n| ops::lookup(n)).collect() }
    }
}

/// Convolutions and products: the contractions that are not windows or normalizations.
fn multiplies(name: &str) -> bool {
    ["conv", "dense", "matmul"].iter().any(|part| name.contains(part))
}

impl CostModel for Calls {
    fn name(&self) -> &str {
        "calls"
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("calls {:?}", self.avoided))
    }

    fn reported(&self, price: f64) -> Option<f64> {
        self.avoided.is_empty().then_some(price)
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let calls = match node.head {
            Head::Op(op, _) if self.avoided.contains(&op) => AVOIDED,
            Head::Op(op, _) => match op.op().class() {
                Class::Contract if multiplies(op.op().name()) => CONTRACTION,
                _ if renames_axes(op.op().name()) => RENAMED,
                _ => 1.0,
            },
            Head::Carried { bodies } => return 1.0 + bodies,
            Head::Tuple | Head::Proj(_) => return 0.0,
        };
        calls + SECOND * Roofline.cost(node)
    }
}
