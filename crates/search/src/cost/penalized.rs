//! Prices under which some operators give way to whatever rules find equal to them.

use std::sync::Arc;

use super::{CostModel, Head, NodeView};
use crate::ir::OpId;

/// What an operator costs beyond its price that had better go: more than any program, by seconds, and little enough that sums don't
/// lose what other operators cost.
const GIVES_WAY: f64 = 1e6;

/// A cost model's prices, and such for some operators that they are chosen only where there is nothing else.
pub struct Penalized {
    /// The model.
    pub model: Arc<dyn CostModel>,
    /// The operators.
    pub ops: Vec<OpId>,
}

impl CostModel for Penalized {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.model.as_ref()]
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("giving way {:?} {}", self.ops, self.model.fingerprint()?))
    }

    fn reported(&self, _price: f64) -> Option<f64> {
        None
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let price = self.model.cost(node);
        match node.head {
            Head::Op(op, _) if self.ops.contains(&op) => price + GIVES_WAY,
            _ => price,
        }
    }
}
