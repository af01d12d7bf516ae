//! Operators that make tensors of nothing, of shapes, or of single values.

mod dynamic;
mod fill;
mod range;
mod shape;

pub(super) use dynamic::OPS as DYNAMIC;
pub(super) use fill::OPS as FILL;
pub(super) use range::OPS as RANGE;
pub(super) use shape::OPS as SHAPE;
