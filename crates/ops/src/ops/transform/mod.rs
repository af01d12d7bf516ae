//! Operators that move elements.

mod diagonal;
mod grid;
mod index;
mod join;
mod mask;
mod permute;
mod repeat;
mod shape;
mod slice;

pub(super) use diagonal::OPS as DIAGONAL;
pub(super) use grid::OPS as GRID;
pub(super) use index::OPS as INDEX;
pub(super) use join::OPS as JOIN;
pub(super) use mask::OPS as MASK;
pub(super) use permute::OPS as PERMUTE;
pub(super) use repeat::OPS as REPEAT;
pub(super) use shape::OPS as SHAPE;
pub(super) use shape::reshape_index;
pub(super) use slice::OPS as SLICE;
