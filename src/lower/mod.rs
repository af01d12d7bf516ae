//! From fused functions to loop nests: a primitive function becomes tensor expressions (each operator says its own), these
//! become steps, and a schedule makes loops of them. A module of such functions is [assembled](assemble) into a program.

mod affine;
mod assemble;
mod function;
mod index;
mod normalize;
mod schedule;

pub(crate) use assemble::is_settled;
pub use assemble::{Assembled, CodeSet, assemble, is_plain};
pub use function::{FunctionGroup, stages};
pub use schedule::{VectorUnit, is_view, kernel};
