//! Neural network operators: convolutions, pools, normalizations, activations with attributes, padding.

mod activation;
mod adaptive;
mod conv;
mod conv_eval;
mod conv_lower;
mod conv_transpose;
mod correlation;
pub(super) mod geometry;
mod norm;
pub(super) mod numbers;
mod pad;
pub(super) mod place;
mod pool;
mod rearrange;
mod resize;
mod softmax;

pub(super) use activation::OPS as ACTIVATION;
pub(super) use adaptive::OPS as ADAPTIVE;
pub(super) use conv::{CONV2D, ConvAttrs, OPS as CONV};
pub(super) use conv_transpose::{CONV2D_TRANSPOSE, OPS as CONV_TRANSPOSE};
pub(super) use correlation::OPS as CORRELATION;
pub(super) use norm::{OPS as NORM, axis_of};
pub(super) use pad::OPS as PAD;
pub(super) use pool::{AVG_POOL2D, OPS as POOL};
pub(super) use rearrange::OPS as REARRANGE;
pub(super) use resize::OPS as RESIZE;
pub(super) use softmax::OPS as SOFTMAX;
