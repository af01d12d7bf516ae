//! The whole line, top to bottom, one call per phase.

#[cfg(feature = "llvm")]
mod build;
#[cfg(feature = "llvm")]
mod cache;
mod difference;
#[cfg(feature = "llvm")]
mod emit_c;
#[cfg(feature = "llvm")]
mod external;
mod load;
#[cfg(feature = "llvm")]
mod native;
#[cfg(feature = "llvm")]
mod race;
#[cfg(feature = "llvm")]
mod registers;
#[cfg(feature = "llvm")]
mod runnable;
#[cfg(feature = "llvm")]
mod sizes;
#[cfg(feature = "llvm")]
mod specialize;
#[cfg(feature = "llvm")]
mod stopwatch;
#[cfg(feature = "llvm")]
mod trial;
#[cfg(feature = "llvm")]
mod tune;

pub use crate::lower::{Assembled, CodeSet, assemble, is_plain};
use crate::{codegen::CodegenTarget, lower::VectorUnit, tensor::DType};

/// What schedules need to know of a machine.
pub fn vector_unit(target: &CodegenTarget) -> VectorUnit {
    VectorUnit {
        bytes: target.vector_bytes() as i64,
        registers: target.vector_registers() as i64,
        dot: target.byte_products() as i64,
        pairs: target.short_products() as i64,
        byte_tiles: target.multiplies_tiles_of(DType::I8),
        pair_tiles: target.multiplies_tiles_of(DType::BF16),
        taps: target.tap_products() as i64,
    }
}

#[cfg(feature = "llvm")]
pub use build::{BuildError, Built, Options, build};
#[cfg(feature = "llvm")]
pub use cache::{Cache, settings_key};
pub use difference::{Allowed, difference, difference_within};
#[cfg(feature = "llvm")]
pub use emit_c::{EmitError, emit_c};
pub use load::{load_module, load_params};
#[cfg(feature = "llvm")]
pub use native::Native;
#[cfg(feature = "llvm")]
pub use registers::Registers;
#[cfg(feature = "llvm")]
pub use runnable::{MachineProgram, Runnable};
#[cfg(feature = "llvm")]
pub use stopwatch::Stopwatch;
#[cfg(feature = "llvm")]
pub use tune::{Tuning, tuned_in, tuned_of_user};
