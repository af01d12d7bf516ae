//! The machine's floats, for reference kernels that compute where to read or what to keep: there the rounding of the type
//! decides, and a wider one would decide otherwise.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::tensor::DType;

/// `f32` or `f64`.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest number.
    fn of(v: f64) -> Self;
    /// The number, exactly.
    fn wide(self) -> f64;
    /// Rounded down.
    fn floor(self) -> Self;
    /// Rounded up.
    fn ceil(self) -> Self;
    /// Rounded to nearest, halves away from zero.
    fn round(self) -> Self;
    /// Rounded to nearest, halves to even.
    fn round_even(self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// e to the power.
    fn exp(self) -> Self;
    /// The smaller; the second where either is NaN.
    fn least(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
    /// The greater; the second where either is NaN.
    fn greatest(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    /// The integer part.
    fn int(self) -> i64 {
        self.wide() as i64
    }
}

macro_rules! real {
    ($($float:ident),*) => { $(
        impl Real for $float {
            fn of(v: f64) -> $float {
                v as $float
            }
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn floor(self) -> $float {
                $float::floor(self)
            }
            fn ceil(self) -> $float {
                $float::ceil(self)
            }
            fn round(self) -> $float {
                $float::round(self)
            }
            fn round_even(self) -> $float {
                $float::round_ties_even(self)
            }
            fn abs(self) -> $float {
                $float::abs(self)
            }
            fn exp(self) -> $float {
                $float::exp(self)
            }
        }
    )* };
}
real!(f32, f64);

/// The type in which numbers of these types are computed with: `float64` where any is that, else `float32`.
pub(super) fn arithmetic(dtypes: &[DType]) -> DType {
    if dtypes.contains(&DType::F64) { DType::F64 } else { DType::F32 }
}

/// A generic function of a [`Real`], of the one that numbers of these types are computed with.
macro_rules! in_real {
    ($dtypes:expr, $kernel:ident($($arg:expr),* $(,)?)) => {
        match $crate::ops::real::arithmetic($dtypes) {
            $crate::tensor::DType::F64 => $kernel::<f64>($($arg),*),
            _ => $kernel::<f32>($($arg),*),
        }
    };
}
pub(super) use in_real;
