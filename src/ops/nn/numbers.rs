//! The two arithmetics of reference kernels: floats in f64, integers in wrapping i64, rounded or wrapped to the result's
//! type at the end.

use std::{
    num::Wrapping,
    ops::{AddAssign, Mul},
};

use crate::tensor::{DType, Tensor};

/// A number that reference kernels accumulate in.
pub(crate) trait Num: Copy + Default + AddAssign + Mul<Output = Self> {
    /// All elements of a tensor.
    fn read(t: &Tensor) -> Vec<Self>;
    /// A tensor of such elements.
    fn write(dtype: DType, shape: &[usize], values: &[Self]) -> Tensor;
}

impl Num for f64 {
    fn read(t: &Tensor) -> Vec<f64> {
        match t.dtype() {
            DType::F32 => t.as_slice::<f32>().iter().map(|&v| v as f64).collect(),
            _ => t.to_f64_vec(),
        }
    }
    fn write(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
        match dtype {
            DType::F32 => {
                let mut t = Tensor::zeros(dtype, shape);
                t.as_mut_slice::<f32>().iter_mut().zip(values).for_each(|(to, &v)| *to = v as f32);
                t
            }
            _ => Tensor::from_f64_fn(dtype, shape, |i| values[i]),
        }
    }
}

impl Num for Wrapping<i64> {
    fn read(t: &Tensor) -> Vec<Wrapping<i64>> {
        (0..t.len()).map(|i| Wrapping(t.get_i64(i))).collect()
    }
    fn write(dtype: DType, shape: &[usize], values: &[Wrapping<i64>]) -> Tensor {
        Tensor::from_i64_fn(dtype, shape, |i| values[i].0)
    }
}

/// Sum of products, in several partial sums so that one addition need not wait for the one before.
pub(crate) fn dot<T: Num>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 8;
    let mut sums = [T::default(); LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (x, y) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let mut total = T::default();
    sums.into_iter().for_each(|s| total += s);
    a_rest.iter().zip(b_rest).for_each(|(&x, &y)| total += x * y);
    total
}
