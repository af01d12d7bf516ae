//! The arithmetics of sums of products. Reference kernels: floats in f64, integers in wrapping i64, rounded or wrapped to the
//! result's type at the end; float16 rounds every product and every sum, in the order of the summed axes, as TVM does.
//! Generated code: in the result's type, but bfloat16 in f32, rounded at the end, as TVM does; float16, too, which is nearer to the
//! sum than what TVM gives, and what machines without arithmetic of such numbers do fast.

use std::{
    num::Wrapping,
    ops::{AddAssign, Mul},
};

use half::f16;

use crate::{
    loops::{Builder, Combine, Scalar, TensorId},
    tensor::{DType, Tensor},
};

/// A number that reference kernels accumulate in.
pub(crate) trait Num: Copy + Default + AddAssign + Mul<Output = Self> {
    /// Whether sums depend on their order so much that it is part of the result.
    const ORDERED: bool = false;
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

/// A float16, held as the f32 of the same value.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Half(f32);

impl Half {
    /// Products and sums of two float16 are exact in f32, or so near that rounding twice is rounding once.
    fn round(v: f32) -> Half {
        Half(f16::from_f32(v).to_f32())
    }
}

impl Mul for Half {
    type Output = Half;
    fn mul(self, other: Half) -> Half {
        Half::round(self.0 * other.0)
    }
}

impl AddAssign for Half {
    fn add_assign(&mut self, other: Half) {
        *self = Half::round(self.0 + other.0);
    }
}

impl Num for Half {
    const ORDERED: bool = true;
    fn read(t: &Tensor) -> Vec<Half> {
        t.to_f64_vec().into_iter().map(|v| Half(f16::from_f64(v).to_f32())).collect()
    }
    fn write(dtype: DType, shape: &[usize], values: &[Half]) -> Tensor {
        Tensor::from_f64_fn(dtype, shape, |i| values[i].0 as f64)
    }
}

/// A reference kernel in the arithmetic that its result's type asks for.
macro_rules! in_arithmetic {
    ($dtype:expr, $kernel:ident($($arg:expr),* $(,)?)) => {
        match $dtype {
            $crate::tensor::DType::F16 => $kernel::<$crate::ops::nn::numbers::Half>($($arg),*),
            d if d.is_float() => $kernel::<f64>($($arg),*),
            _ => $kernel::<std::num::Wrapping<i64>>($($arg),*),
        }
    };
}
pub(crate) use in_arithmetic;

/// A stage of `dtype` that sums products of two factors.
pub(crate) fn sum_products(
    b: &mut Builder,
    shape: &[i64],
    over: &[i64],
    dtype: DType,
    factors: impl FnOnce(&Builder, &[Scalar], &[Scalar]) -> (Scalar, Scalar),
) -> TensorId {
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let sum = b.reduce(shape, over, Combine::Sum, |b, i, r| {
        let (x, y) = factors(b, i, r);
        x.cast(wide) * y.cast(wide)
    });
    if wide == dtype { sum } else { b.map(shape, |b, i| b.read(sum, i.iter().cloned()).cast(dtype)) }
}

/// Sum of products, in several partial sums so that one addition need not wait for the one before, where
/// the order does not matter.
pub(crate) fn dot<T: Num>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 8;
    if T::ORDERED {
        let mut total = T::default();
        a.iter().zip(b).for_each(|(&x, &y)| total += x * y);
        return total;
    }
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
