//! Prices under which operators of dialects give way to what they are legalized to.

use std::sync::RwLock;

use hashbrown::HashMap;

use super::{CostModel, Crossing, External, Head, KernelView, NodeView};
use crate::ir::OpId;

/// What an operator costs that can't stay: more than any program, by seconds, operations or nodes, but not so much that sums
/// would lose what other operators cost.
const GIVES_WAY: f64 = 1e9;

/// A cost model's prices, and such for operators of dialects that they are chosen only where there is nothing else.
pub struct Legal<'a> {
    /// The model.
    pub model: &'a dyn CostModel,
    /// Whether all operators of dialects give way, or only those that can't be made code as they are.
    pub all: bool,
}

/// Whether an operator can be made code as it is, remembered.
fn has_lowering(op: OpId) -> bool {
    static KNOWN: RwLock<Option<HashMap<OpId, bool>>> = RwLock::new(None);
    let known = KNOWN.read().expect("nothing panics with the lock").as_ref().and_then(|k| k.get(&op).copied());
    known.unwrap_or_else(|| {
        let has = crate::ops::has_lowering(op);
        KNOWN.write().expect("nothing panics with the lock").get_or_insert_default().insert(op, has);
        has
    })
}

impl CostModel for Legal<'_> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.model]
    }

    fn reported(&self, price: f64) -> Option<f64> {
        if price < GIVES_WAY { self.model.reported(price) } else { None }
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let price = self.model.cost(node);
        match node.head {
            Head::Op(op, _) if op.dialect().is_some() && (self.all || !has_lowering(op)) => price + GIVES_WAY,
            _ => price,
        }
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        let gives_way = |op: OpId| op.dialect().is_some() && (self.all || !has_lowering(op));
        self.model.kernel(kernel) + GIVES_WAY * kernel.calls.iter().filter(|c| gives_way(c.op)).count() as f64
    }

    fn placed(&self, by: &External, kernel: &KernelView) -> f64 {
        self.model.placed(by, kernel)
    }

    fn crossing(&self, crossing: &Crossing) -> f64 {
        self.model.crossing(crossing)
    }

    fn refine(&self, by: Option<&External>, kernel: &KernelView) -> bool {
        self.model.refine(by, kernel)
    }
}
