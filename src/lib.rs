//! resat: a compiler for TVM's Relay IR. Transformations are rulesets over one e-graph; a cost model extracts the best
//! program; the rest becomes native code through LLVM. ARCHITECTURE.md says where what is.

#[cfg(feature = "llvm")]
pub mod cli;
pub mod driver;
#[cfg(feature = "llvm")]
pub mod explore;
pub mod frontend;
pub mod partition;
pub mod pass;
pub mod prelude;

pub use resat_codegen::{codegen, lower, output, runtime, store, vm};
pub use resat_ir::{cancel, diag, ir, loops, machine, report, target, tensor};
pub use resat_ops::{infer, interp, ops, relay};
pub use resat_search::{cost, dialect, egraph, extract, rules, saturate};

/// How to extend resat; the examples are run as tests.
pub mod guide {
    #[doc = include_str!("../docs/adding-operators.md")]
    pub mod adding_operators {}
    #[doc = include_str!("../docs/cost-models.md")]
    pub mod cost_models {}
    #[doc = include_str!("../docs/extending.md")]
    pub mod extending {}
}

/// The worked example of README.md, run as a test.
#[cfg(all(doctest, feature = "llvm"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
