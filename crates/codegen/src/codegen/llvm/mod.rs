//! Kernels to object code through LLVM, and object code to functions of this process.
//!
//! Vector loops become vector instructions of just their width and everything else stays as the schedule wrote it, so only
//! a few cheap passes run: registers for stack slots, common subexpressions, loop-invariant code.

mod amx;
mod cache;
mod compile;
mod dot;
mod emit;
mod emulated;
mod fixed;
mod ir;
mod jit;
mod math;
mod narrow;
mod ops;
#[cfg(test)]
mod tests;
mod turn;
mod value;

pub use cache::ObjectCache;
pub use compile::{Listing, ObjectCode, compile, host_target, listing};
pub use jit::JitLibrary;

use super::TargetError;

/// Why no code could be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CodegenError {
    /// The machine is not supported.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A kernel breaks the rules of [`crate::loops::Kernel`].
    #[error(transparent)]
    Kernel(#[from] crate::loops::Invalid),
    /// Kernels that don't go together, or that the checker let pass though they can't be compiled.
    #[error("invalid kernel: {0}")]
    Invalid(String),
    /// LLVM refused.
    #[error("LLVM: {0}")]
    Llvm(String),
}
