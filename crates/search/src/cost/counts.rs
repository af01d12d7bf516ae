//! Cost models that count.

use super::{CostModel, Head, NodeView};

/// Every call of an operator or function costs 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeCount;

impl CostModel for NodeCount {
    fn name(&self) -> &str {
        "nodes"
    }

    fn fingerprint(&self) -> Option<String> {
        Some("nodes".into())
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Op(..) => 1.0,
            Head::Carried { bodies } => 1.0 + bodies,
            Head::Tuple | Head::Proj(_) => 0.0,
        }
    }
}

/// The operators' arithmetic operations, as they state them; and 1 for every call, so that needless ones without
/// arithmetic go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flops;

impl CostModel for Flops {
    fn name(&self) -> &str {
        "flops"
    }

    fn fingerprint(&self) -> Option<String> {
        Some("flops".into())
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Op(op, attrs) => 1.0 + op.op().work(attrs, node.args, node.out).flops,
            Head::Carried { bodies } => 1.0 + bodies,
            Head::Tuple | Head::Proj(_) => 0.0,
        }
    }
}
