//! Operators on quantized tensors: an integer q stands for the number `scale * (q - zero_point)`.

mod concat;
mod contract;
mod elementwise;
mod fixed;
mod params;
mod quantize;
mod unary;

pub(super) use concat::OPS as CONCAT;
pub(super) use contract::OPS as CONTRACT;
pub(super) use elementwise::OPS as ELEMENTWISE;
pub(super) use fixed::OPS as FIXED;
pub(super) use quantize::OPS as QUANTIZE;
pub(super) use unary::OPS as UNARY;
