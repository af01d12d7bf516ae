//! Small reproducible random choices.

use std::hash::{Hash, Hasher};

use crate::{
    ir::Type,
    tensor::{DType, Tensor, Value},
};

/// The greatest finite value of a float type, and its least positive one.
fn extremes(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (f64::MAX, f64::from_bits(1)),
        DType::F16 => (65504.0, 2f64.powi(-24)),
        _ => (f32::MAX as f64, f32::from_bits(1) as f64),
    }
}

/// What drawn floats are besides small halves.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Flavours {
    /// Nothing else.
    Plain,
    /// Anything of the type, up to its extremes.
    Anything,
    /// Tensor by tensor: some infinities, some NaN, numbers whose products overflow and whose sums cancel, and such as overflow an
    /// exponential. What overflows by a sum of two is left out: see [`RIM`](crate::saturate::RIM).
    Special,
    /// Zeros of both signs and subnormal numbers. Not beside infinities: what may count as zero makes NaN of them.
    Tiny,
}

/// The exponents of two that large numbers of a type have: their products overflow, the numbers are not within
/// [`RIM`](crate::saturate::RIM) of that themselves.
fn large_exponents(dtype: DType) -> (usize, usize) {
    match dtype {
        DType::F64 => (520, 980),
        DType::F16 => (8, 11),
        _ => (66, 87),
    }
}

/// A generator that depends on a rule's name alone.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of(name: &str) -> Random {
        let mut h = rustc_hash::FxHasher::default();
        name.hash(&mut h);
        Random(h.finish() | 1)
    }

    /// xorshift64*.
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    pub(super) fn permutation(&mut self, n: usize) -> Vec<i64> {
        let mut p: Vec<i64> = (0..n as i64).collect();
        for i in (1..n).rev() {
            let j = self.below(i + 1);
            p.swap(i, j);
        }
        p
    }

    /// A value of a type. Floats are small halves, so that sums and products are exact; `specials` adds zeros of both signs,
    /// infinities, NaN, and the extremes of the type.
    pub(super) fn value(&mut self, ty: &Type, specials: Flavours) -> Option<Value> {
        match ty {
            Type::Tensor(t) => {
                let shape: Vec<usize> = t.known_shape()?.iter().map(|&n| n as usize).collect();
                (shape.iter().product::<usize>() <= 1 << 16).then_some(())?;
                let range = self.below(4);
                Some(self.tensor(t.dtype, &shape, specials, range).into())
            }
            Type::Tuple(fields) => {
                fields.iter().map(|f| self.value(f, specials)).collect::<Option<_>>().map(Value::Tuple)
            }
            _ => None,
        }
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize], flavours: Flavours, range: usize) -> Tensor {
        let specials = flavours != Flavours::Plain;
        match dtype.int_range() {
            None if flavours == Flavours::Tiny => Tensor::from_f64_fn(dtype, shape, |_| {
                let sign = if self.chance(50) { 1.0 } else { -1.0 };
                match self.below(4) {
                    0 => sign * extremes(dtype).1,
                    1 => sign * 0.0,
                    _ => sign * (self.below(17) as f64 / 2.0),
                }
            }),
            None if flavours == Flavours::Special => {
                let (flavour, exponents) = (self.below(8), large_exponents(dtype));
                let exponent = exponents.0 + self.below(exponents.1 - exponents.0);
                Tensor::from_f64_fn(dtype, shape, |_| {
                    let half = self.below(17) as f64 / 2.0 - if range == 0 { -0.5 } else { 4.0 };
                    let sign = if self.chance(50) { 1.0 } else { -1.0 };
                    match flavour {
                        0 if self.chance(15) => sign * f64::INFINITY,
                        1 if self.chance(15) => f64::NAN,
                        // All of one magnitude: sums of them cancel.
                        2 => sign * 2f64.powi(exponent as i32),
                        3 => half * 2f64.powi(exponent as i32),
                        4 if self.chance(50) => sign * 0.0,
                        5 => half * 2f64.powi(self.below(12) as i32),
                        6 if self.chance(20) => {
                            [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0, sign * 2f64.powi(exponent as i32)]
                                [self.below(6)]
                        }
                        _ => half,
                    }
                })
            }
            None => Tensor::from_f64_fn(dtype, shape, |_| {
                if specials && self.chance(50) {
                    let (most, least) = extremes(dtype);
                    let all = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, most, -most, least, -least];
                    return all[self.below(all.len())];
                }
                let half = self.below(17) as f64 / 2.0;
                if range == 0 { half + 0.5 } else { half - 4.0 }
            }),
            Some((min, max)) => Tensor::from_i64_fn(dtype, shape, |_| {
                if specials && self.chance(25) {
                    return [min, max, max - 1, 0][self.below(4)].clamp(i64::MIN as i128, i64::MAX as i128) as i64;
                }
                let spread: i64 = [8, 200, 40_000, 3_000_000][range];
                let v = self.next() as i64 % (2 * spread + 1) - if range == 0 { 0 } else { spread };
                (v as i128).clamp(min, max) as i64
            }),
        }
    }

    /// A constant that is not one of those that one computes with: infinite, NaN, very large. Numbers below the least normal one,
    /// which may count as zero, are none.
    pub(super) fn special_constant(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        self.tensor(dtype, shape, Flavours::Special, 1)
    }

    /// A constant of a type: more often than an input one number everywhere, 0, 1, or positive.
    pub(super) fn constant(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        const NUMBERS: [f64; 9] = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 6.0, 0.25];
        match self.below(3) {
            0 => self.tensor(dtype, shape, Flavours::Plain, 1),
            1 => self.tensor(dtype, shape, Flavours::Plain, 0),
            _ => {
                let x = NUMBERS[self.below(NUMBERS.len())];
                Tensor::from_f64_fn(dtype, shape, |_| x)
            }
        }
    }
}
