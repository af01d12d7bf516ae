//! Operators on images other than resizing (which is among the pools, in `nn`): sampling at coordinates that are data.

mod crop;
mod decode;
mod dilation;
mod grid;

pub(super) use crop::OPS as CROP;
pub(super) use decode::OPS as DECODE;
pub(super) use dilation::OPS as DILATION;
pub(super) use grid::OPS as GRID;
