//! Loops as data, in two forms: *tensor expressions* (what each element of a tensor is, in any order) and *loop nests* (in
//! which order, in which memory, by which thread). Operators lower to the first, or where that can't say what they do to
//! [`routine`]s of statements; schedules in `lower` turn groups of them into the second; `codegen` makes machine code of that.
//! Nothing here knows Relay or LLVM.

pub mod affine;
mod check;
mod digest;
mod eval;
mod expr;
mod family;
mod in_place;
mod interp;
mod nest;
mod num;
pub mod routine;
mod shared;
mod show;
mod stages;
mod tiles;

pub use check::{Invalid, LANE_LIMIT, STACK_LIMIT, UNROLL_LIMIT, check};
pub use digest::{Digest, digest_bytes};
pub use eval::{EvalError, eval_stages};
pub use expr::{AxisId, BinOp, Scalar, ScalarKind, Seen, TensorId, UnOp};
pub use family::{Family, Member, Outline};
pub use interp::{RunError, run_kernel};
pub use nest::{BUFFER_ALIGN, Buffer, BufferId, Kernel, LoopKind, MOST_RUNS, Space, Stmt, cut_evenly};
pub use num::ZeroDivision;
pub use routine::{Nest, Place, Routine, Var};
pub use shared::SharedBody;
pub use stages::{Axis, Body, Builder, Combine, Definition, Operand, Stage, Stages, TensorDecl};
pub use tiles::{TILE, TILES_OF_SUMS, TileBlock, TileOperand, TileStep, numbers_in_word};
