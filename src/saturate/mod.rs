//! Running rulesets over an e-graph, bounded and with a report; and the way of a whole module through it.

mod limits;
mod optimize;
mod report;
mod rule;
mod run;

pub use limits::Limits;
pub use optimize::{Optimized, optimize};
pub use report::{Report, RuleReport, Stop};
pub use rule::{Grade, Rule, Ruleset};
pub use run::saturate;
