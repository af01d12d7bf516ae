//! The whole line, top to bottom, one call per phase.

mod assemble;
#[cfg(feature = "llvm")]
mod build;
mod load;

pub use assemble::{Assembled, assemble};
#[cfg(feature = "llvm")]
pub use build::{BuildError, Built, Options, build, compile};
pub use load::{load_module, load_params};
