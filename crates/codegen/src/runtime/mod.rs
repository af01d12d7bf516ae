//! Running compiled programs: the kernels' calling convention, threads, the memory plan, executables, exported libraries.
#![allow(unsafe_code, reason = "calls machine code and hands it memory; each block says why it is sound")]

pub mod abi;
#[cfg(feature = "allocator")]
mod allocator;
mod callable;
mod code;
mod compiled;
mod executable;
pub mod export;
mod foreign;
mod formulas;
mod loaded;
mod mapped;
mod memory;
pub mod onednn;
mod plan;
mod pool;
mod program;
mod record;
mod results;
mod sized;
mod weights;

#[cfg(feature = "allocator")]
pub use allocator::Allocator;
pub use callable::{Arguments, CallError, Callable, Callables, CompiledCode, Data, SerializeError, Serialized};
pub use code::{LoadError, SharedLibrary, process_has};
pub use compiled::{Code, Compiled};
pub use executable::{Executable, LinkError, RunError};
pub use foreign::{
    ForeignCompiled, ForeignError, ForeignLibrary, ForeignNode, ForeignRegion, ForeignType, ForeignValue, try_code,
};
pub use loaded::{LoadedKept, LoadedLibrary, LoadedModel, LoadedRuns, LoadedSizedModel, StateType};
pub use mapped::MappedFile;
pub(crate) use memory::LARGE_PAGE;
pub use memory::{Arenas, MemoryRelease, PAGE, forget_code, give_back_memory, peak_memory};
pub use plan::{Plan, Workload, plan};
pub use pool::Pool;
pub use program::{BufferId, Call, Estimate, Expected, FunctionId, Port, Program, Source, Step};
pub use record::{ConstantRecord, ProgramRecord};
pub use sized::{NotSized, Sample, SizedProgram, alike};
pub use weights::{MANY, into_large_pages, place_after, places_after, with_gaps};
