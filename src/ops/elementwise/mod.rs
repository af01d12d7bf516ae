//! Elementwise operators: most are a table row each.

mod binary;
mod convert;
mod select;
mod unary;

pub use binary::Binary;
pub use unary::Unary;

pub(super) use binary::OPS as BINARY;
pub(super) use convert::OPS as CONVERT;
pub(super) use select::OPS as SELECT;
pub(super) use unary::OPS as UNARY;

use crate::tensor::{DType, Tensor};

/// Which element types an operator takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Takes {
    /// All.
    Any,
    /// Floats.
    Floats,
    /// Numbers: all but `bool`.
    Numbers,
    /// Integers and `bool`.
    Bits,
    /// Integers, not `bool`.
    Ints,
    /// `bool`.
    Bools,
}

impl Takes {
    /// Whether an element type is among them.
    pub fn holds(self, d: DType) -> bool {
        match self {
            Takes::Any => true,
            Takes::Floats => d.is_float(),
            Takes::Numbers => d != DType::Bool,
            Takes::Bits => !d.is_float(),
            Takes::Ints => d.is_int(),
            Takes::Bools => d == DType::Bool,
        }
    }

    /// The types as messages name them.
    pub(in crate::ops) fn words(self) -> &'static str {
        match self {
            Takes::Any => "any element type",
            Takes::Floats => "floats",
            Takes::Numbers => "numbers",
            Takes::Bits => "integers and bools",
            Takes::Ints => "integers",
            Takes::Bools => "bools",
        }
    }

    /// Some of the types, for samples.
    fn dtypes(self) -> Vec<DType> {
        let some = [DType::F32, DType::I32, DType::Bool, DType::U8, DType::I8, DType::U64, DType::F16, DType::F64];
        some.into_iter().filter(|&d| self.holds(d)).collect()
    }
}

/// All elements as mathematical integers.
fn wide(t: &Tensor) -> Vec<i128> {
    match t.dtype() {
        DType::U64 => t.as_slice::<u64>().iter().map(|&v| v as i128).collect(),
        _ => t.to_i64_vec().into_iter().map(i128::from).collect(),
    }
}
