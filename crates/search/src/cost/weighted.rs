//! Sums of cost models.

use std::sync::Arc;

use super::{CostModel, Head, KernelView, NodeView};

/// A weighted sum of cost models: `0.9 * roofline + 1e-7 * nodes`.
pub struct Weighted {
    name: String,
    parts: Vec<(f64, Arc<dyn CostModel>)>,
}

impl Weighted {
    /// The sum of these models, each times its weight. Panics where a weight is negative or not finite.
    pub fn new(parts: Vec<(f64, Arc<dyn CostModel>)>) -> Weighted {
        assert!(parts.iter().all(|(w, _)| w.is_finite() && *w >= 0.0), "weights are finite and not negative");
        let name = parts.iter().map(|(w, m)| format!("{w}*{}", m.name())).collect::<Vec<_>>().join("+");
        Weighted { name, parts }
    }

    /// The parts that count: a weight of 0 leaves a model out, also where its price is infinite.
    fn used(&self) -> impl Iterator<Item = &(f64, Arc<dyn CostModel>)> {
        self.parts.iter().filter(|(w, _)| *w > 0.0)
    }
}

impl CostModel for Weighted {
    fn name(&self) -> &str {
        &self.name
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        self.used().map(|(_, m)| m.as_ref()).collect()
    }

    fn fingerprint(&self) -> Option<String> {
        let parts = self.parts.iter().map(|(w, m)| Some(format!("{w:?} {:?}", m.fingerprint()?)));
        Some(format!("sum {:?}", parts.collect::<Option<Vec<_>>>()?))
    }

    fn cost(&self, node: &NodeView) -> f64 {
        // What is inside is priced by the whole sum already: no part may count it again.
        let (head, inside) = match node.head {
            Head::Carried { bodies } => (Head::Carried { bodies: 0.0 }, bodies),
            other => (other, 0.0),
        };
        let view = NodeView { head, ..node.clone() };
        inside + self.used().map(|(w, m)| w * m.cost(&view)).sum::<f64>()
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        self.used().map(|(w, m)| w * m.kernel(kernel)).sum()
    }
}
