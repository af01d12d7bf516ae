//! oneDNN, loaded when it is asked for: primitives of a shared library that the machine has or has not.
//!
//! A [`Graph`] says what a region computes. [`Region::new`] makes a plan of it: a sequence of the library's primitives, each with what
//! follows it as post-operations, in the layouts that the library likes; constants are brought into those once. Nothing but
//! symbols is taken from the library, so that resat builds without its headers. Versions 2 (from 2.6 on) and 3 are taken.

mod exact;
mod execute;
mod graph;
mod integer;
mod library;
mod md;
mod plan;
mod primitive;
mod recipe;
mod run;
mod tape;

pub use graph::{
    BinaryKind, Eltwise, EltwiseKind, Fixed, Graph, Integer, Kind, PoolKind, Post, Rescale, Step, Value, ValueId, What,
    Windows,
};
pub use library::{LIBRARY_VARIABLE, Library, MAX_RANK, OneDnnError};
pub use run::Region;
