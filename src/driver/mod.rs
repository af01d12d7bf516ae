//! The whole line, top to bottom, one call per phase.

mod assemble;
#[cfg(feature = "llvm")]
mod build;
mod load;
#[cfg(feature = "llvm")]
mod runnable;
#[cfg(feature = "llvm")]
mod specialize;
#[cfg(feature = "llvm")]
mod stopwatch;

pub use assemble::{Assembled, CodeSet, assemble, is_plain};
#[cfg(feature = "llvm")]
pub use build::{BuildError, Built, Options, build};
pub use load::{load_module, load_params};
#[cfg(feature = "llvm")]
pub use runnable::{MachineProgram, Runnable};
#[cfg(feature = "llvm")]
pub use stopwatch::Stopwatch;
