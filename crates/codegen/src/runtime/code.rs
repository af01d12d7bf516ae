//! Where compiled functions come from: shared libraries, as external compilers make them, and the just-in-time compiler.

use std::path::Path;

use super::{abi::KernelFn, callable::CompiledCode};

/// Whether this process has a symbol, as its code and the just-in-time compiler see it.
pub fn process_has(symbol: &str) -> bool {
    // SAFETY: the address is not used.
    unsafe { libloading::os::unix::Library::this().get::<*const ()>(symbol.as_bytes()) }.is_ok()
}

/// A shared library was not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("can't load {library}: {reason}")]
pub struct LoadError {
    pub(super) library: String,
    pub(super) reason: String,
}

/// A shared library whose functions keep to the convention of [`abi`](super::abi).
#[derive(Debug)]
pub struct SharedLibrary(libloading::Library);

impl SharedLibrary {
    /// Loads a library that a compiler has just made for a program. Its symbols stay its own.
    ///
    /// Loading runs the library's initializers, and calling its functions trusts them with memory: the file must be one that
    /// an external compiler wrote, as the [`CompiledCode`] contract says.
    pub fn load(path: &Path) -> Result<SharedLibrary, LoadError> {
        // SAFETY: the library comes from a compiler that the caller has run, so its initializers are that compiler's.
        let library = unsafe { libloading::Library::new(path) };
        library.map(SharedLibrary).map_err(|e| LoadError { library: path.display().to_string(), reason: e.to_string() })
    }
}

// SAFETY: external compilers keep to the convention for the functions that they were asked for, and no others are looked up;
// the library stays loaded as long as `self` lives.
unsafe impl CompiledCode for SharedLibrary {
    fn address(&self, symbol: &str) -> Option<KernelFn> {
        // SAFETY: as above: what was asked for under that name is a function of this type.
        unsafe { self.0.get::<KernelFn>(symbol.as_bytes()) }.ok().map(|f| *f)
    }
}
