//! The e-graph: Relay's nodes in egg's terms, and what is known of each class.
//!
//! One e-graph holds one *region*: the body of a function, or of a branch or closure inside one. Regions do not share
//! e-graphs, so a class never mixes terms whose variables are in different scopes.

mod dirty;
mod errors;
mod fact;
mod facts;
mod insert;
mod kernel;
mod likely;
mod node;
mod plan;
mod range;
mod rebuild;
mod trials;
mod uses;
mod weights;

pub use dirty::DirtySet;
pub use errors::{Errors, refresh_errors};
pub use fact::{Fact, What};
pub use facts::{Budget, Facts, Graph, Refusal, Tables, fact_of, may_apply, meet, union_checked, worth_rewriting};
pub use insert::{Encoded, RegionGraph, Term, encode};
pub use kernel::{KernelBody, Step, class_of_step, kernel_classes};
pub use likely::{likely_input, of_steps as types_of_steps};
pub use node::{AttrsId, Case, ConstId, InputId, KernelId, Node, OpaqueId, PlaceId};
pub use plan::RegionId;
pub use range::Range;
pub use trials::{ModuleTrials, Trials};
pub use uses::{Uses, note_uses, refresh_uses};
pub use weights::weights;
