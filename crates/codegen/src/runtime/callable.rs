//! Functions of a program that are no machine code of its own: a library's primitives, a closure, anything that computes in
//! this process.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{
    abi::{ALIGN, KernelFn, ResatCtx},
    foreign::error::ForeignError,
    onednn::OneDnnError,
};
use crate::tensor::Tensor;

/// What a function is given for one call. Memory is aligned as [`abi`](super::abi) says.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The bytes of each input, in order; tuples are flattened depth first. Dense and row-major.
    pub inputs: &'a [&'a [u8]],
    /// The bytes of each output, likewise. What they hold before means nothing; all of it must be written.
    pub outputs: &'a mut [&'a mut [u8]],
    /// As many bytes as were asked for. What they hold before means nothing.
    pub workspace: &'a mut [u8],
    /// The program's threads.
    pub context: &'a ResatCtx,
}

/// Why a [`Callable`] gave no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// What the function says of it.
    #[error("{0}")]
    Failed(String),
    /// The process of a library that compiles.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    /// oneDNN.
    #[error(transparent)]
    OneDnn(#[from] OneDnnError),
}

impl From<String> for CallError {
    fn from(message: String) -> CallError {
        CallError::Failed(message)
    }
}

impl From<&str> for CallError {
    fn from(message: &str) -> CallError {
        CallError::Failed(message.to_owned())
    }
}

/// Why a [`Callable`] can't be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SerializeError {
    /// It is a function of this process, and has no other form.
    #[error("`{symbol}` lives in the process that made it")]
    OfThisProcess {
        /// The symbol that it was asked for under.
        symbol: String,
    },
    /// It is a function of a library that compiles.
    #[error("`{symbol}` is a function within the compiler's library: code that is to be exported is an object or C")]
    OfTheLibrary {
        /// The symbol that it was asked for under.
        symbol: String,
    },
    /// What it says of it.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for SerializeError {
    fn from(message: String) -> SerializeError {
        SerializeError::Failed(message)
    }
}

/// A function that lives in this process. Several threads may call it at once.
pub trait Callable: Send + Sync {
    /// Computes the outputs. `Err` says why it can't, and ends the run.
    fn call(&self, arguments: &mut Arguments<'_>) -> Result<(), CallError>;

    /// Whether it can be called at all; `Err` says why it can't, whatever it is given.
    fn ready(&self) -> Result<(), CallError> {
        Ok(())
    }

    /// Runs it once where it can do no harm, such as in another process: on these inputs, giving the bytes of outputs that are so
    /// large. `None` where it can run here only.
    fn trial(&self, inputs: &[&[u8]], outputs: &[usize], workspace: usize) -> Option<Result<Vec<Vec<u8>>, CallError>> {
        let _ = (inputs, outputs, workspace);
        None
    }

    /// The function for an exported library, under this symbol. `Err` says why it can't be had.
    fn serialize(&self, symbol: &str) -> Result<Serialized, SerializeError> {
        Err(SerializeError::OfThisProcess { symbol: symbol.to_owned() })
    }
}

/// A [`Callable`] for an exported library.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serialized {
    /// C99 with a function of the symbol asked for, in the convention of [`abi`](super::abi).
    pub source: String,
    /// C99 that it calls, and that others may call as well: texts that are the same are compiled once.
    pub support: Vec<String>,
    /// Constants that the source declares.
    pub data: Vec<Data>,
    /// A function of the source, `const char *name(const struct ResatCtx *)`, which says why the function can't be called, or what
    /// went wrong in the calling thread's last call of it; NULL where nothing did. It is called before the functions of a run and
    /// after them, and once without a context when the library is loaded, to say what is missing on the machine.
    pub ready: Option<String>,
    /// Shared libraries that it calls, as the linker takes them.
    pub libraries: Vec<String>,
}

/// Constants of a [`Serialized`] function.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The source declares `extern const unsigned char symbol[]` of hidden visibility.
    pub symbol: String,
    /// One after another, each on a boundary of [`ALIGN`] bytes: see [`Data::places`].
    pub tensors: Vec<Tensor>,
}

impl Data {
    /// Where each of some constants begins, in bytes from the symbol's address.
    pub fn places(tensors: &[Tensor]) -> Vec<usize> {
        let place = |end: &mut usize, t: &Tensor| {
            let at = end.next_multiple_of(ALIGN);
            *end = at + t.bytes().len();
            Some(at)
        };
        tensors.iter().scan(0, place).collect()
    }
}

impl std::fmt::Debug for dyn Callable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a function of this process")
    }
}

/// Machine code in this process.
///
/// # Safety
/// Every address that `address` gives is a function of the type [`KernelFn`] that keeps to the convention of
/// [`abi`](super::abi) for buffers of the sizes that its caller knows, and stays callable as long as the object lives.
pub unsafe trait CompiledCode: Send + Sync {
    /// The function of that symbol, where this code has it.
    fn address(&self, symbol: &str) -> Option<KernelFn>;

    /// The function of that symbol, where it is no machine code that follows the convention.
    fn callable(&self, symbol: &str) -> Option<Arc<dyn Callable>> {
        let _ = symbol;
        None
    }
}

/// Functions by symbol, for [`Executable::link`](super::Executable::link).
#[derive(Default, Debug)]
pub struct Callables(HashMap<String, Arc<dyn Callable>>);

impl Callables {
    /// Adds a function.
    pub fn insert(&mut self, symbol: impl Into<String>, callable: Arc<dyn Callable>) {
        self.0.insert(symbol.into(), callable);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// SAFETY: it gives no addresses.
unsafe impl CompiledCode for Callables {
    fn address(&self, _: &str) -> Option<KernelFn> {
        None
    }

    fn callable(&self, symbol: &str) -> Option<Arc<dyn Callable>> {
        self.0.get(symbol).cloned()
    }
}
