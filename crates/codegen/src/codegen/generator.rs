//! What a code generator is.

use std::fmt;

use crate::{
    loops::{Invalid, Kernel, LoopKind, ScalarKind, Stmt},
    machine::{CodegenTarget, Core, TargetError},
};

/// The code of a kernel.
#[derive(Clone, Debug)]
pub enum Code {
    /// An object file of the target's format with one global function, named as the kernel, in the convention that the
    /// [module](super) describes.
    Object(Vec<u8>),
    /// C99 with that function, for the target's C compiler.
    Source(String),
}

/// Makes code of kernels. Every kernel that [`check`](crate::loops::check) passes has a meaning, which
/// [`run_kernel`](crate::loops::run_kernel) defines; a generator keeps to it, or says what it does not support.
pub trait CodeGenerator: Send + Sync + fmt::Debug {
    /// The name that targets begin with: letters, digits and `_`.
    fn name(&self) -> &str;

    /// What its code for a target depends on besides kernel and target, such as the version of a library: part of the key under
    /// which code is kept.
    fn version(&self, target: &CodegenTarget) -> String;

    /// The core that schedules should shape kernels for, on a processor with such a core. A generator whose vectors or registers
    /// are others than the processor's says so here.
    fn core(&self, core: Core) -> Core {
        core
    }

    /// Whether it can make code of a kernel for a target; the error names what it can't.
    fn supports(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<(), CodegenError>;

    /// What making code of a kernel costs, beside other kernels: those that cost most are begun first. By default the number of
    /// operations that are written out.
    fn cost(&self, kernel: &Kernel) -> u64 {
        written_out(&kernel.body)
    }

    /// The code of a kernel. Called from several threads at once, with 256 MiB of stack.
    fn generate(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<Code, CodegenError>;
}

/// Why no code could be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CodegenError {
    /// The machine is not supported.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A kernel breaks the rules of [`crate::loops::Kernel`].
    #[error(transparent)]
    Kernel(#[from] Invalid),
    /// Kernels that don't go together, or that the checker let pass though they can't be compiled.
    #[error("invalid kernel: {0}")]
    Invalid(String),
    /// A generator can't make code of a construct.
    #[error("the code generator `{generator}` does not support {construct} (kernel `{kernel}`)")]
    Unsupported {
        /// The generator.
        generator: String,
        /// The kernel.
        kernel: String,
        /// What it does not support.
        construct: String,
    },
    /// Somebody ended it; see [`Cancel`](crate::cancel::Cancel).
    #[error("cancelled")]
    Cancelled,
    /// LLVM refused.
    #[error("LLVM: {0}")]
    Llvm(String),
    /// Another generator, or the compiler of its source, failed.
    #[error("code generator `{generator}`: {reason}")]
    Failed {
        /// The generator.
        generator: String,
        /// What went wrong.
        reason: String,
    },
}

/// The operations that statements hold, as often as they are written out.
fn written_out(s: &Stmt) -> u64 {
    match s {
        Stmt::For { extent, kind: LoopKind::Unrolled, body, .. } => match extent.kind() {
            ScalarKind::Int(n) => (*n).max(1) as u64 * written_out(body),
            _ => written_out(body),
        },
        Stmt::For { body, .. } | Stmt::Let { body, .. } | Stmt::While { body, .. } => 1 + written_out(body),
        Stmt::Block(all) => all.iter().map(written_out).sum(),
        Stmt::If { then, otherwise, .. } => 1 + written_out(then) + otherwise.as_deref().map_or(0, written_out),
        Stmt::Prefetch { .. } => 2,
        Stmt::Transpose { extent, .. } => 2 * *extent as u64,
        Stmt::Tiles { block, .. } => 4 * (block.rows.len() * block.columns.len()) as u64,
        Stmt::Store { value, .. } => {
            let (mut stack, mut seen) = (vec![value], std::collections::HashSet::new());
            while let Some(e) = stack.pop() {
                stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key())));
            }
            2 + seen.len() as u64
        }
    }
}
