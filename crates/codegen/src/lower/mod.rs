//! From fused functions to loop nests: a primitive function becomes tensor expressions (each operator says its own), these
//! become steps, and a schedule makes loops of them. A module of such functions is [assembled](assemble) into a program.

mod affine;
mod assemble;
mod function;
mod index;
mod normalize;
mod schedule;
mod tuned;

pub use assemble::{Assembled, CodeSet, Tunable, assemble, is_plain, is_settled};
pub use function::{FunctionGroup, stages};
pub use schedule::{Reduced, Scheduled, is_view, kernel, schedule};
pub use tuned::Tuned;
pub use tuned::worth_measuring;
