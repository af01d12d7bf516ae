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

use super::util::Sources;
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

/// All elements as mathematical integers. Those of weights are read where they are: weights are what is large.
enum Integers<'a> {
    I8(&'a [i8]),
    U8(&'a [u8]),
    I32(&'a [i32]),
    Others(Vec<i128>),
}

impl Integers<'_> {
    fn of(t: &Tensor) -> Integers<'_> {
        match t.dtype() {
            DType::I8 => Integers::I8(t.as_slice()),
            DType::U8 => Integers::U8(t.as_slice()),
            DType::I32 => Integers::I32(t.as_slice()),
            DType::U64 => Integers::Others(t.as_slice::<u64>().iter().map(|&v| v as i128).collect()),
            _ => Integers::Others(t.to_i64_vec().into_iter().map(i128::from).collect()),
        }
    }

    fn at(&self, i: usize) -> i128 {
        match self {
            Integers::I8(all) => all[i].into(),
            Integers::U8(all) => all[i].into(),
            Integers::I32(all) => all[i].into(),
            Integers::Others(all) => all[i],
        }
    }
}

/// All elements as floats, likewise.
enum Floats<'a> {
    F32(&'a [f32]),
    Others(Vec<f64>),
}

impl Floats<'_> {
    fn of(t: &Tensor) -> Floats<'_> {
        match t.dtype() {
            DType::F32 => Floats::F32(t.as_slice()),
            _ => Floats::Others(t.to_f64_vec()),
        }
    }

    fn at(&self, i: usize) -> f64 {
        match self {
            Floats::F32(all) => all[i].into(),
            Floats::Others(all) => all[i],
        }
    }

    /// Those that a part of a broadcast result has as sources.
    fn read(&self, sources: &Sources, first: usize, to: &mut [f64]) {
        fn copy<T: Copy + Into<f64>>(all: &[T], sources: &Sources, first: usize, to: &mut [f64]) {
            sources.stretches(first..first + to.len(), |places, from, step| {
                let to = &mut to[places];
                match step {
                    0 => to.fill(all[from].into()),
                    1 => to.iter_mut().zip(&all[from..]).for_each(|(to, x)| *to = (*x).into()),
                    step => to.iter_mut().zip(all[from..].iter().step_by(step)).for_each(|(to, x)| *to = (*x).into()),
                }
            });
        }
        match self {
            Floats::F32(all) => copy(all, sources, first, to),
            Floats::Others(all) => copy(all, sources, first, to),
        }
    }
}
