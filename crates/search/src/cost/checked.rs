//! Prices that are no numbers are said to whoever wrote the model.

use std::sync::{Mutex, PoisonError};

use super::{CostModel, Crossing, External, Head, KernelView, NodeView};

/// A model whose prices are looked at as they are given.
pub(crate) struct Checked<'a> {
    model: &'a dyn CostModel,
    /// What had no number for a price, each name once.
    wrong: Mutex<Vec<String>>,
}

/// So many names are said.
const NAMES_SAID: usize = 3;

impl<'a> Checked<'a> {
    pub(crate) fn new(model: &'a dyn CostModel) -> Checked<'a> {
        Checked { model, wrong: Mutex::default() }
    }

    /// What a user should know of the prices given so far, where some were no numbers.
    pub(crate) fn complaint(&self) -> Option<String> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let more = wrong.len().saturating_sub(NAMES_SAID);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = wrong.iter().take(NAMES_SAID).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        (!wrong.is_empty()).then(|| {
            format!("cost model `{}` gives NaN for {names}{more}: forms with these are not chosen", self.model.name())
        })
    }

    fn look(&self, cost: f64, name: impl FnOnce() -> String) -> f64 {
        if cost.is_nan() {
            let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            let name = name();
            if !wrong.contains(&name) {
                wrong.push(name);
            }
        }
        cost
    }
}

impl CostModel for Checked<'_> {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.model]
    }

    fn reported(&self, price: f64) -> Option<f64> {
        self.model.reported(price)
    }

    fn cost(&self, node: &NodeView) -> f64 {
        self.look(self.model.cost(node), || match node.head {
            Head::Op(op, _) => op.op().name().to_owned(),
            Head::Tuple => "a tuple".into(),
            Head::Proj(_) => "a field of a tuple".into(),
            Head::Carried { .. } => "what is no call of an operator".into(),
        })
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        let name = |node: NodeView| match node.head {
            Head::Op(op, _) => Some(op.op().name()),
            _ => None,
        };
        self.look(self.model.kernel(kernel), || kernel.nodes().filter_map(name).collect::<Vec<_>>().join("+"))
    }

    fn placed(&self, by: &External, kernel: &KernelView) -> f64 {
        self.look(self.model.placed(by, kernel), || format!("a part of {}", by.compiler))
    }

    fn crossing(&self, crossing: &Crossing) -> f64 {
        self.look(self.model.crossing(crossing), || format!("a way into or out of {}", crossing.compiler))
    }

    fn refine(&self, by: Option<&External>, kernel: &KernelView) -> bool {
        self.model.refine(by, kernel)
    }
}
