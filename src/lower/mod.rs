//! From fused functions to loop nests: a primitive function becomes tensor expressions (each operator says its own), these
//! become steps, and a schedule makes loops of them.

mod affine;
mod function;
mod index;
mod normalize;
mod schedule;

pub use function::{FunctionGroup, stages};
pub use schedule::{VectorUnit, is_view, kernel};
