//! resat: a compiler for TVM's Relay IR. Transformations are rulesets over one e-graph; a cost model extracts the best
//! program; the rest becomes native code through LLVM. ARCHITECTURE.md says where what is.

#[cfg(feature = "llvm")]
pub mod cli;
pub mod codegen;
pub mod cost;
pub mod diag;
pub mod dialect;
pub mod driver;
pub mod egraph;
#[cfg(feature = "llvm")]
pub mod explore;
pub mod extract;
pub mod frontend;
pub mod infer;
pub mod interp;
pub mod ir;
pub mod loops;
pub mod lower;
pub mod ops;
pub mod partition;
pub mod pass;
pub mod relay;
pub mod report;
pub mod rules;
pub mod runtime;
pub mod saturate;
pub mod store;
pub mod target;
pub mod tensor;
pub mod vm;

/// The worked example of README.md, run as a test.
#[cfg(all(doctest, feature = "llvm"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
