//! Kernels to object code through LLVM, and object code to functions of this process.
//!
//! Vector loops become vector instructions of just their width and everything else stays as the schedule wrote it, so only
//! a few cheap passes run: registers for stack slots, common subexpressions, loop-invariant code. Of LLVM's code generator, loop strength
//! reduction is off (`options.rs`): pointer induction variables are emitted as such (`moving.rs`).

mod amx;
mod captures;
mod compile;
mod dot;
mod emit;
mod emulated;
mod ir;
mod jit;
mod lookup;
mod math;
mod moving;
mod mul_shift;
mod ops;
mod options;
mod pack;
mod state;
#[cfg(test)]
pub(super) mod tests;
mod transpose;
mod value;

pub use compile::{Listing, Llvm, host_target, listing};
pub use jit::JitLibrary;

use super::{CodegenError, ObjectCode};
