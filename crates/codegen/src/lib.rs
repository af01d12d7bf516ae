//! From primitive functions to code that runs: kernels and their schedules, code generators, the runtime, the virtual machine.

pub mod codegen;
pub mod lower;
pub mod output;
pub mod runtime;
pub mod store;
pub mod vm;

pub use resat_ir::{cancel, diag, ir, loops, machine, tensor};
pub use resat_ops::{infer, ops};
