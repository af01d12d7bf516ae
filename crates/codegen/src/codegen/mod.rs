//! Machine code from loop nests. [`CodegenTarget`] says for which machine; [`llvm`] makes object code of kernels and runs
//! it in process; [`c`] writes them as C99.
//!
//! A compiled kernel is a C function `void name(const ResatCtx *ctx, void **args, void *workspace)`: `args` holds one
//! 64-byte aligned pointer per input and output, at the numbers that the kernel's buffers give; no output overlaps another
//! argument, but for an input whose place it may take ([`Kernel::in_place`](crate::loops::Kernel::in_place)); `workspace` is 64-byte aligned memory of the size that [`Kernel::workspace`](crate::loops::Kernel::workspace)
//! says. `ctx` is the runtime's table of functions. Symbols that the code may need besides: the C library's and libm's.

pub mod c;
#[cfg(feature = "llvm")]
pub mod llvm;
pub use crate::machine::{CodegenTarget, EMULATED, TargetError, matrix_registers_permitted};
