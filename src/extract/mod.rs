//! Choosing one node per class: the cheapest program of an e-graph.

mod choice;
mod dag;
mod improve;
mod problem;
mod tree;

pub use choice::{Choice, Flaw, chosen_term};
pub use dag::DagGreedy;
pub use problem::{Problem, Total, term_cost};
pub use tree::TreeGreedy;

/// Solves extraction problems. Its result must pass [`Choice::check`].
pub trait Extractor: Send + Sync {
    /// The extractor's name, as reports and the command line use it.
    fn name(&self) -> &str;

    /// One node for every class that the root needs.
    fn extract(&self, problem: &Problem) -> Choice;
}

/// The shipped extractors by name.
pub fn by_name(name: &str) -> Option<Box<dyn Extractor>> {
    Some(match name {
        "tree" => Box::new(TreeGreedy),
        "dag" => Box::new(DagGreedy::default()),
        _ => return None,
    })
}

/// Names of the shipped extractors.
pub const NAMES: [&str; 2] = ["tree", "dag"];
