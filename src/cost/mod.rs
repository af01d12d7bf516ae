//! What a program costs, node by node. A cost model sees facts of one e-node, not its syntax; extraction adds up.

mod counts;
mod legal;
mod roofline;

pub use counts::{Flops, NodeCount};
pub use legal::Legal;
pub use roofline::Roofline;

use crate::{
    ir::{Attrs, OpId, Type},
    target::Target,
};

/// What an e-node is, for a cost model. Leaves never reach one: they cost nothing.
#[derive(Clone, Copy, Debug)]
pub enum Head<'a> {
    /// A call of an operator.
    Op(OpId, &'a Attrs),
    /// A tuple.
    Tuple,
    /// A field of a tuple.
    Proj(u32),
    /// An expression that is carried through: a closure, branch, call of a function, and so on.
    Carried {
        /// What the regions inside cost by the same model, each counted once.
        bodies: f64,
    },
}

/// The facts of one e-node that a cost model may use.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// What it is.
    pub head: Head<'a>,
    /// The arguments' types.
    pub args: &'a [Type],
    /// For each argument, whether it can be computed before the program runs.
    pub constant: &'a [bool],
    /// The result's type.
    pub out: &'a Type,
    /// The machine.
    pub target: &'a Target,
}

/// Gives nodes a price: seconds, or any other number that is not negative. An infinite one says that the node can't be
/// had on the target.
///
/// What can be computed before the program runs (a node all of whose arguments are constants) is not asked for: it is
/// free under every model.
pub trait CostModel: Send + Sync {
    /// The model's name, as reports and the command line use it.
    fn name(&self) -> &str;

    /// The price of one evaluation of the node, its arguments not included.
    fn cost(&self, node: &NodeView) -> f64;
}

/// The shipped models by name.
pub fn by_name(name: &str) -> Option<Box<dyn CostModel>> {
    Some(match name {
        "nodes" => Box::new(NodeCount),
        "flops" => Box::new(Flops),
        "roofline" => Box::new(Roofline),
        _ => return None,
    })
}

/// Names of the shipped models.
pub const NAMES: [&str; 3] = ["nodes", "flops", "roofline"];
