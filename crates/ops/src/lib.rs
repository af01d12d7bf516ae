//! What Relay programs mean: the operators, their types, the reference interpreter, and Relay's own files.

pub mod infer;
pub mod interp;
pub mod ops;
pub mod relay;

pub use resat_ir::{diag, ir, loops, tensor};
