//! Choosing one node per class: the cheapest program of an e-graph.
//!
//! One layer that stands for several pays only once all of them use it, so that no choice class by class finds it. Extraction takes a class
//! outside of the program, looks up through slices, fields and layers that are merged again for all classes of the program that could use
//! it, and prices their change together (`improve`).

mod alternatives;
mod bound;
mod choice;
mod dag;
mod ilp;
mod improve;
mod json;
mod problem;
mod search;
mod tree;
mod within;

use std::time::Duration;

pub use alternatives::{Alternative, Next, alternatives};
pub use bound::bound;
pub use choice::{Choice, Flaw, chosen_term};
pub use dag::DagGreedy;
pub use ilp::Ilp;
pub use json::{Imported, to_json};
pub use problem::{Candidate, PriceError, Problem, Total, refine_term, term_cost, term_prices};
pub use search::Search;
pub use tree::TreeGreedy;
pub use within::within;

use crate::diag::{Diagnostic, Refused, nearest};

/// Solves extraction problems. Its result must pass [`Choice::check`]; whoever uses it checks.
pub trait Extractor: Send + Sync {
    /// The extractor's name, as reports and the command line use it.
    fn name(&self) -> &str;

    /// All that decides the choice beside the problem, as text: see [`CostModel::fingerprint`](crate::cost::CostModel::fingerprint).
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// One node for every class that the root needs.
    fn extract(&self, problem: &Problem) -> Choice;

    /// The same with what the extractor knows of how good it is.
    fn solve(&self, problem: &Problem) -> Solution {
        Solution { choice: self.extract(problem), bound: None, timed_out: false }
    }
}

/// A choice made cheaper by exact local moves: another node for one class, one class for several users. What is no program comes
/// back as it is.
pub fn improved(problem: &Problem, choice: Choice) -> Choice {
    improve::improve(problem, choice)
}

/// What an extractor found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// What it chose.
    pub choice: Choice,
    /// No program is cheaper than this, by the model's numbers; none where the extractor knows no bound.
    pub bound: Option<f64>,
    /// Whether it stopped for want of time.
    pub timed_out: bool,
}

impl Solution {
    /// How far the choice may be from the cheapest program: the share of its cost that lies above the bound.
    pub fn gap(&self, problem: &Problem) -> Option<f64> {
        let (cost, bound) = (self.choice.cost(problem).ok()?, self.bound?);
        Some(if cost > 0.0 { ((cost - bound) / cost).max(0.0) } else { 0.0 })
    }
}

/// The shipped extractors, from fast to thorough: how each is called and made. Those that can be stopped at any time stop after
/// the time given.
const SHIPPED: &[(&str, fn(Duration) -> Box<dyn Extractor>)] = &[
    ("tree", |_| Box::new(TreeGreedy)),
    ("dag", |_| Box::new(DagGreedy::default())),
    ("search", |time| Box::new(Search { time, ..Search::default() })),
    ("ilp", |time| Box::new(Ilp { time })),
];

/// The shipped extractors by name. Those that can be stopped at any time stop after `time`. Refused are unknown names.
pub fn by_name(name: &str, time: Duration) -> Result<Box<dyn Extractor>, Refused> {
    if let Some((_, make)) = SHIPPED.iter().find(|(n, _)| *n == name) {
        return Ok(make(time));
    }
    let known: Vec<&str> = names().collect();
    let d = Diagnostic::new(format!("there is no extractor `{name}`; there are {}", known.join(", ")));
    Err(match nearest(name, known) {
        Some(near) => d.help(format!("did you mean `{near}`?")).into(),
        None => d.into(),
    })
}

/// Names of the shipped extractors, from fast to thorough.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}
