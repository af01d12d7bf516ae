//! From fused functions to loop nests: a primitive function becomes tensor expressions (each operator says its own), these
//! become steps, and a schedule makes loops of them. A module of such functions is [assembled](assemble) into a program.

mod affine;
mod append;
mod assemble;
mod call;
mod excess;
mod form;
mod function;
mod index;
mod normalize;
mod resized;
mod schedule;
mod sites;
mod tuned;
mod typing;

pub use append::{Group, argument, kept_calls};
pub use assemble::{
    Assembled, CodeSet, Tunable, assemble, assemble_at, groups, is_plain, is_plain_once_known, scope,
    shapes_follow_from_types,
};
pub use call::{CallAt, FunctionAt, ProgramAt};
pub use form::Form;
use function::stages_of;
pub use function::{FunctionGroup, stages};
pub use resized::Template;
pub use schedule::{Decisions, Reduced, Scheduled, changing, is_view, kernel, schedule, schedule_sized};
use schedule::{noted, numbers_sized};
pub use sites::{LookedUp, Made, Met, Sites, SizedKernel, as_view};
pub use tuned::Tuned;
pub use tuned::worth_measuring;
pub use typing::{types_within, typing_order};
