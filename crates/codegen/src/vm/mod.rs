//! The machine for whole programs: typed modules whose operator calls are all in primitive functions become programs over
//! registers, which run on a stack of their own, whatever they recurse and loop.
//!
//! The order of evaluation is the reference interpreter's: arguments from left to right, a shared expression once per
//! activation of the function that it belongs to, and only where it is needed. What is needed on every way is computed
//! where it is needed first; what only some of several ways need is computed on each of them, or delayed until one asks
//! for it. Registers are emptied at their last use. Nothing recurses natively.

mod compile;
mod machine;
mod program;
mod reach;
mod tables;
mod value;

pub use compile::compile;
pub use program::{Kernel, KernelId, Layout, Program};
pub use reach::{Reach, reach};
pub use value::{Adt, Closure, Fields, MutableCell, Value};

use crate::{diag::Refused, tensor::Tensor};

/// What executes the kernels of a program.
pub trait Kernels: Send + Sync {
    /// Calls a kernel. Arguments and results are tensors, tuples flattened depth first. Refuses arguments that the kernel's
    /// operators do not allow.
    fn call(&self, kernel: KernelId, args: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
}
