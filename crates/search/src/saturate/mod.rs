//! Running rulesets over an e-graph, bounded and with a report; and the way of a whole module through it.

mod blocks;
mod explain;
mod limits;
mod optimize;
mod placed;
mod report;
mod rewrite;
mod rule;
mod run;

pub use explain::{Became, Counterfactual, Piece, ProofStep, WhyNot, counterfactuals, explain, why_not};
pub use limits::Limits;
pub use optimize::{Extracted, Optimized, optimize, optimize_observed};
pub use placed::PlacedReport;
pub use report::{KernelReport, Report, RuleReport, Stop};
pub use rewrite::{Asked, Matches, Rewrite, Rewriter, SearchContext};
pub use rule::{Grade, RIM, Rule, Ruleset};
pub use run::saturate;
