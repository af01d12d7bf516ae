//! What compilers other than resat's own make of functions.

use std::sync::Arc;

use super::callable::Callable;
use crate::ir::TensorType;

/// What an external compiler makes of a region.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The code.
    pub code: Code,
    /// Bytes of workspace that a call takes.
    pub workspace: usize,
    /// The tensors that it gives, where the compiler says: a region that gives others is refused.
    pub outputs: Option<Vec<TensorType>>,
    /// Shared libraries that its code calls, as the linker takes them (`-lname` without the `-l`), for export.
    pub libraries: Vec<String>,
}

/// The forms of code that compilers give.
#[derive(Clone, Debug)]
pub enum Code {
    /// An object file of the target's format with one function, named by the region's symbol, in the calling convention of
    /// [`abi`](super::abi): pointers to the inputs in order, then to the outputs (tuples flattened depth first).
    Object(Vec<u8>),
    /// C99 with that function, for the target's C compiler:
    /// `void symbol(const void *ctx, void *const *args, unsigned char *workspace)`.
    Source(String),
    /// Something that lives in this process, such as a library's primitives.
    Callable(Arc<dyn Callable>),
}

impl Compiled {
    fn new(code: Code) -> Compiled {
        Compiled { code, workspace: 0, outputs: None, libraries: Vec::new() }
    }

    /// An object file; see [`Code::Object`].
    pub fn object(bytes: Vec<u8>) -> Compiled {
        Compiled::new(Code::Object(bytes))
    }

    /// C99; see [`Code::Source`].
    pub fn source(text: impl Into<String>) -> Compiled {
        Compiled::new(Code::Source(text.into()))
    }

    /// Something that lives in this process; see [`Code::Callable`].
    pub fn callable(callable: impl Callable + 'static) -> Compiled {
        Compiled::new(Code::Callable(Arc::new(callable)))
    }

    /// The same with so many bytes of workspace for each call.
    pub fn with_workspace(self, workspace: usize) -> Compiled {
        Compiled { workspace, ..self }
    }
}
