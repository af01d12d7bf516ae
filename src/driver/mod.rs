//! The whole line, top to bottom, one call per phase.

#[cfg(feature = "llvm")]
mod ahead;
#[cfg(feature = "llvm")]
mod backend;
#[cfg(feature = "llvm")]
mod build;
#[cfg(feature = "llvm")]
mod cache;
#[cfg(feature = "llvm")]
mod calls;
mod counters;
mod difference;
#[cfg(feature = "llvm")]
mod emit_c;
#[cfg(feature = "llvm")]
mod entry;
#[cfg(feature = "llvm")]
mod extents;
#[cfg(feature = "llvm")]
mod external;
#[cfg(feature = "llvm")]
mod frozen;
#[cfg(feature = "llvm")]
mod key;
#[cfg(feature = "llvm")]
mod library;
mod load;
#[cfg(feature = "llvm")]
pub mod machine;
#[cfg(feature = "llvm")]
mod made;
#[cfg(feature = "llvm")]
mod native;
#[cfg(feature = "llvm")]
mod phases;
#[cfg(feature = "llvm")]
mod probe;
#[cfg(feature = "llvm")]
mod profile;
#[cfg(feature = "llvm")]
mod race;
#[cfg(feature = "llvm")]
mod reach;
#[cfg(feature = "llvm")]
mod runnable;
#[cfg(feature = "llvm")]
mod sized;
#[cfg(feature = "llvm")]
mod sizes;
#[cfg(feature = "llvm")]
mod specialize;
#[cfg(feature = "llvm")]
mod state;
mod state_order;
#[cfg(feature = "llvm")]
mod stopwatch;
#[cfg(feature = "llvm")]
pub mod together;
#[cfg(feature = "llvm")]
mod trial;
#[cfg(feature = "llvm")]
mod tune;

pub use crate::lower::{Assembled, CodeSet, assemble, is_plain};

#[cfg(feature = "llvm")]
pub use backend::generator_of;
#[cfg(feature = "llvm")]
pub use build::{BuildError, Built, Options, Origin, Record, build};
#[cfg(feature = "llvm")]
pub use cache::{Cache, content_key, settings_key};
pub use difference::{Allowed, Mismatch, difference, difference_within, shortest_float};
#[cfg(feature = "llvm")]
pub use emit_c::{EmitError, emit_c};
#[cfg(feature = "llvm")]
pub use extents::{ExtentBound, ExtentRange, NoRange, Said};
#[cfg(feature = "llvm")]
pub use frozen::Frozen;
pub use load::{load_module, load_params};
#[cfg(feature = "llvm")]
pub use native::Native;
#[cfg(feature = "llvm")]
pub use probe::{Peak, ProbeError};
#[cfg(feature = "llvm")]
pub(crate) use profile::NOT_PLAIN;
#[cfg(feature = "llvm")]
pub use profile::{Bound, Profile, ProfiledCall};
#[cfg(feature = "llvm")]
pub use runnable::{MachineProgram, Runnable, Specialize};
#[cfg(feature = "llvm")]
pub use state::{Kept, StatePair, Stateful};
#[cfg(feature = "llvm")]
pub use stopwatch::Stopwatch;
#[cfg(feature = "llvm")]
pub use tune::{TimedReduction, Tuning, tuned_in, tuned_of_user};
