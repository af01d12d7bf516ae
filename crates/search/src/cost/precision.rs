//! Prices under which floats of one type are preferred.

use std::sync::Arc;

use super::{CostModel, Head, NodeView};
use crate::{
    ir::{OpId, Type},
    ops::{self, Class},
    tensor::DType,
};

/// What a contraction of another type costs beyond its price, any other operator on floats of another type, and a cast: each more
/// than any number of the next, by seconds, and little enough that sums don't lose what operators cost.
const CONTRACTION: f64 = 1e9;
const OTHER: f64 = 1e6;
const CAST: f64 = 1e3;

/// A cost model's prices, and such for floats of other types than the wanted one that contractions in it are chosen wherever
/// there are some, then other operators in it, then as few casts as can be.
pub struct Precision {
    /// The model.
    pub model: Arc<dyn CostModel>,
    /// The wanted type of floats.
    pub dtype: DType,
    /// Operators that had better not be of the wanted type.
    pub ignored: Vec<OpId>,
}

impl Precision {
    /// Whether a value has floats, all of the wanted type (`Some(true)`), or others, too.
    fn wanted(&self, t: &Type) -> Option<bool> {
        let all = t.flatten()?;
        let mut floats = all.iter().map(|t| t.dtype).filter(|d| d.is_float()).peekable();
        floats.peek()?;
        Some(floats.all(|d| d == self.dtype))
    }
}

impl CostModel for Precision {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.model.as_ref()]
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("precision {} {:?} {}", self.dtype, self.ignored, self.model.fingerprint()?))
    }

    fn reported(&self, _price: f64) -> Option<f64> {
        None
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let price = self.model.cost(node);
        let Head::Op(op, _) = node.head else { return price };
        if ["cast", "cast_like"].iter().any(|name| ops::lookup(name) == Some(op)) {
            return price + CAST;
        }
        let is_contraction = op.op().class() == Class::Contract;
        let args = node.args.iter().filter_map(|t| self.wanted(t));
        // What a contraction is summed up in is not what it multiplies.
        let result = self.wanted(node.out).filter(|_| !is_contraction || node.args.is_empty());
        let is_wanted = args.chain(result).reduce(|a, b| a && b);
        let is_wanted = is_wanted.map(|w| w != self.ignored.contains(&op));
        price
            + match is_wanted {
                Some(false) if is_contraction => CONTRACTION,
                Some(false) => OTHER,
                _ => 0.0,
            }
    }
}
