//! Machine code from loop nests.
//!
//! A [`CodeGenerator`] makes code of kernels: [`llvm`] object code, [`c`] C99 for the target's C compiler, and others that a program
//! [registers](register). A target names the one that is to be used, such as `llvm -mcpu=native`. What runs in this process is linked by
//! [`JitLibrary`](llvm::JitLibrary), whoever made the objects.
//!
//! A compiled kernel is a C function `void name(const ResatCtx *ctx, void **args, void *workspace)`: `args` holds one
//! 64-byte aligned pointer per input and output, at the numbers that the kernel's buffers give; no output overlaps another
//! argument, but for an input whose place it may take ([`Kernel::in_place`](crate::loops::Kernel::in_place)); `workspace` is 64-byte aligned memory of the size that [`Kernel::workspace`](crate::loops::Kernel::workspace)
//! says. `ctx` is the runtime's table of functions. Symbols that the code may need besides: the C library's and libm's.

pub mod c;
mod cache;
mod cc;
mod generator;
#[cfg(feature = "llvm")]
pub mod llvm;
mod objects;
mod registry;

pub use cache::ObjectCache;
pub use cc::{CcError, compile_c, compile_data, link_c};
pub use generator::{Code, CodeGenerator, CodegenError};
pub use objects::{ObjectCode, compile, compile_unless};
pub use registry::{RegisterError, generator, generators, register};

pub use crate::machine::{CodegenTarget, EMULATED, TargetError, matrix_registers_permitted};
