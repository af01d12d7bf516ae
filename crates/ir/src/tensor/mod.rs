//! Plain data: element types, tensors, layouts. Depends on nothing else of resat.

mod data;
mod dtype;
mod layout;
mod math;
mod memory;
mod random;

pub use data::{Element, Shape, ShapeMismatch, Tensor, Value, row_major_strides};
pub use dtype::{DType, UnknownDType};
pub use layout::{IndexPart, Layout, LayoutAxis, LayoutError, SourceIndex};
pub use math::{acosh, asinh, erf, float_to_int};
pub use memory::out_of_memory;
pub use memory::{OutOfMemory, within_memory};
pub use random::SplitMix64;
