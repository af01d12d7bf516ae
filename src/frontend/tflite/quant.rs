//! Arithmetic of quantized tensors as TFLite's reference kernels do it: changes of scale, bounds of fused activations, functions of
//! few bits as tables.

use super::node::Node;
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// What a tensor's scale is multiplied by, and where the result lies.
pub(super) struct Target {
    /// The result's zero point.
    pub(super) zero: i64,
    /// The result's element type, to whose range it is clipped.
    pub(super) dtype: DType,
}

/// The least and greatest integer of a type.
pub(super) fn range(dtype: DType) -> (i64, i64) {
    dtype.int_range().map_or((i64::MIN, i64::MAX), |(lo, hi)| (lo as i64, hi as i64))
}

impl Node<'_, '_> {
    /// Multiplies the integers `x` (less `from_zero`) by `factor`, as the reference kernels do.
    pub(super) fn scaled(&mut self, x: ExprId, from_zero: i64, factor: f64, to: Target) -> Convert {
        let factor = self.b.constant(Tensor::scalar(factor));
        self.requantize(x, from_zero, factor, -1, to)
    }

    /// The same with a factor for each index along an axis.
    pub(super) fn scaled_by_channel(&mut self, x: ExprId, factors: &[f64], axis: i64, to: Target) -> Convert {
        let factors = match factors {
            [one] => Tensor::scalar(*one),
            several => Tensor::from_slice(&[several.len()], several),
        };
        let factors = self.b.constant(factors);
        self.requantize(x, 0, factors, axis, to)
    }

    /// Multiplies integers by a factor, or one for each index along an axis, in `float64`, rounded to nearest.
    pub(super) fn scaled_in_floats(&mut self, x: ExprId, factors: &[f64], axis: i64, to: Target) -> Convert {
        let factors = match factors {
            [one] => Tensor::scalar(*one),
            several => Tensor::from_slice(&[several.len()], several),
        };
        let factor = self.b.constant(factors);
        let from_zero = self.b.scalar(DType::I32, 0.0);
        let zero = self.b.scalar(DType::I32, to.zero as f64);
        let one = self.b.constant(Tensor::scalar(1f64));
        let attrs = [
            ("rounding", "TONEAREST".into()),
            ("compute_dtype", "float64".into()),
            ("out_dtype", to.dtype.into()),
            ("axis", axis.into()),
        ];
        self.op("qnn.requantize", &[x, factor, from_zero, one, zero], &attrs)
    }

    fn requantize(&mut self, x: ExprId, from_zero: i64, factor: ExprId, axis: i64, to: Target) -> Convert {
        let from_zero = self.b.scalar(DType::I32, from_zero as f64);
        let zero = self.b.scalar(DType::I32, to.zero as f64);
        let one = self.b.constant(Tensor::scalar(1f64));
        let attrs = [("rounding", "TFLITE".into()), ("out_dtype", to.dtype.into()), ("axis", axis.into())];
        self.op("qnn.requantize", &[x, factor, from_zero, one, zero], &attrs)
    }

    /// `int32` (or `int64`) times `significand * 2^(exponent - 31)`, as the reference kernels do, where the significand has fewer than 31
    /// bits, which no factor tells.
    pub(super) fn times(&mut self, x: ExprId, significand: i64, exponent: i64) -> Convert {
        if self.dtype(x)? == DType::I64 {
            let short = if significand < 0x7FFF_0000 { (significand + (1 << 15)) >> 16 } else { 0x7FFF };
            let by = (15 - exponent).clamp(1, 62);
            let e = self.with("multiply", x, short as f64)?;
            let e = self.with("add", e, (1i64 << (by - 1)) as f64)?;
            let e = self.with("right_shift", e, by as f64)?;
            return self.cast(e, DType::I32);
        }
        let x = if exponent > 0 { self.with("left_shift", x, exponent.min(31) as f64)? } else { x };
        let attrs = [("multiplier", significand.into()), ("shift", 0.into())];
        let high = self.op("fixed_point_multiply", &[x], &attrs)?;
        self.divided(high, -exponent)
    }

    /// `int32` divided by a power of two, halves away from zero.
    pub(super) fn divided(&mut self, x: ExprId, by: i64) -> Convert {
        if by <= 0 {
            return Ok(x);
        }
        let half = 1i64 << (by.min(31) - 1);
        let zero = self.num(x, 0.0)?;
        let negative = self.bin("less", x, zero)?;
        let (lower, upper) = (self.num(x, (half - 1) as f64)?, self.num(x, half as f64)?);
        let round = self.op("where", &[negative, lower, upper], &[])?;
        let sum = self.bin("add", x, round)?;
        self.with("right_shift", sum, by.min(31) as f64)
    }

    /// The bounds that a fused activation sets to integers of a scale and zero point.
    pub(super) fn bounds(&self, code: i8, scale: f32, zero: i64, dtype: DType) -> Convert<(i64, i64)> {
        let (lo, hi) = range(dtype);
        let q = |x: f32| ((x / scale).round() as i64).saturating_add(zero);
        Ok(match code {
            0 => (lo, hi),
            1 => (lo.max(q(0.0)), hi),
            2 => (lo.max(q(-1.0)), hi.min(q(1.0))),
            3 => (lo.max(q(0.0)), hi.min(q(6.0))),
            other => return self.refuse(format!("fused activation {other} of integers is not supported")),
        })
    }

    /// Integers within bounds, where these are narrower than their type.
    pub(super) fn within(&mut self, x: ExprId, (lo, hi): (i64, i64)) -> Convert {
        let (least, most) = range(self.dtype(x)?);
        let mut x = x;
        if lo > least {
            x = self.with("maximum", x, lo as f64)?;
        }
        match hi < most {
            true => self.with("minimum", x, hi as f64),
            false => Ok(x),
        }
    }

    /// The fused activation of result 0, which is quantized.
    pub(super) fn activate_quantized(&mut self, x: ExprId, code: i8) -> Convert {
        let (scale, zero) = self.quant_out(0)?;
        let bounds = self.bounds(code, scale, zero, self.dtype(x)?)?;
        self.within(x, bounds)
    }

    /// The differences of integers from a zero point, as `int32`.
    pub(super) fn shifted(&mut self, x: ExprId, zero: i64) -> Convert {
        let x = self.cast(x, DType::I32)?;
        if zero == 0 { Ok(x) } else { self.with("subtract", x, zero as f64) }
    }

    /// A function of integers of at most 16 bits, by a table of all its values.
    pub(super) fn table(&mut self, x: ExprId, out: DType, f: impl Fn(i64) -> i64) -> Convert {
        let dtype = self.dtype(x)?;
        let (lo, hi) = range(dtype);
        if !matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16) {
            return self.refuse(format!("a table of all values of {dtype} would be too large"));
        }
        let (least, most) = range(out);
        let values = Tensor::from_i64_fn(out, &[(hi - lo + 1) as usize], |i| f(i as i64 + lo).clamp(least, most));
        let values = self.b.weight(&format!("{} table", self.op.name), values);
        let index = self.shifted(x, lo)?;
        self.op("take", &[values, index], &[("axis", 0.into()), ("mode", "fast".into())])
    }

    /// A function of numbers, applied to quantized ones by a table, as the kernels that have a table make it.
    pub(super) fn table_of(&mut self, f: impl Fn(f32) -> f32) -> Convert {
        let x = self.x(0)?;
        let ((s, z), (so, zo)) = (self.quant_in(0)?, self.quant_out(0)?);
        let dtype = self.dtype(x)?;
        let out = self.out_dtype(0)?;
        let (lo, hi) = range(out);
        if dtype == DType::I16 {
            let ends = Ends { from: (s as f64, z), to: (so as f64, zo), double: false };
            let table = short_table(&ends, |v| f(v as f32) as f64);
            return self.table(x, out, |q| look_up(&table, q));
        }
        let inverse = 1.0 / so;
        self.table(x, out, |q| {
            let value = f(s * (q - z) as f32);
            (((value * inverse).round() + zo as f32) as i64).clamp(lo, hi)
        })
    }
}

/// Steps of a table of a function of 16 bits.
const STEPS: usize = 512;

/// Scales and zero points of a table of a function of 16 bits.
pub(super) struct Ends {
    /// Of the argument.
    pub(super) from: (f64, i64),
    /// Of the result.
    pub(super) to: (f64, i64),
    /// Whether the table is computed in `float64`, and not in `float32`.
    pub(super) double: bool,
}

/// A table for a function of 16-bit integers: values at every 128th, each corrected by half of the error that interpolation
/// makes half-way to the next.
pub(super) fn short_table(ends: &Ends, f: impl Fn(f64) -> f64) -> Vec<i64> {
    // Each operation is rounded to the type; twice rounded is rounded once, as the types are so far apart.
    let s = |v: f64| if ends.double { v } else { v as f32 as f64 };
    let (least, most) = (i16::MIN as i64, i16::MAX as i64);
    let end = |(scale, zero): (f64, i64), at: i64| s(scale * (at - zero) as f64);
    let (input_min, input_max) = (end(ends.from, least), end(ends.from, most));
    let (output_min, output_max) = (end(ends.to, least), end(ends.to, most));
    let step = s(s(input_max - input_min) / STEPS as f64);
    let half = s(step / 2.0);
    let inverse = s(65536.0 / s(output_max - output_min));
    let clamped = |v: f64| v.max(least as f64).min(most as f64) as i64;
    let at = |i: usize| s(input_min + s(i as f64 * step));
    let mut table: Vec<i64> = (0..STEPS)
        .map(|i| {
            let (value, middle, next) = (f(at(i)), f(s(at(i) + half)), f(at(i + 1)));
            let sample = s(value * inverse).round();
            let between = s(s(s(next * inverse) + sample) / 2.0).round();
            let error = s(between - s(middle * inverse).round());
            clamped(s(sample - s(error / 2.0).round()))
        })
        .collect();
    table.push(clamped(s(f(input_max) * inverse).round()));
    table
}

/// A value of a table of 513, interpolated.
pub(super) fn look_up(table: &[i64], q: i64) -> i64 {
    let index = (256 + (q >> 7)).clamp(0, STEPS as i64 - 1) as usize;
    let offset = q & 127;
    let (base, slope) = (table[index], table[index + 1] - table[index]);
    base + ((slope * offset + 64) >> 7)
}

/// The logistic function at multiples of 1/24, as 16-bit fractions: what the kernels of 16-bit LOGISTIC and TANH interpolate.
#[rustfmt::skip]
const SIGMOID: [i64; 256] = [
    32768, 33451, 34133, 34813, 35493, 36169, 36843, 37513, 38180, 38841, 39498, 40149, 40794, 41432, 42064,
    42688, 43304, 43912, 44511, 45102, 45683, 46255, 46817, 47369, 47911, 48443, 48964, 49475, 49975, 50464,
    50942, 51409, 51865, 52311, 52745, 53169, 53581, 53983, 54374, 54755, 55125, 55485, 55834, 56174, 56503,
    56823, 57133, 57433, 57724, 58007, 58280, 58544, 58800, 59048, 59288, 59519, 59743, 59959, 60168, 60370,
    60565, 60753, 60935, 61110, 61279, 61441, 61599, 61750, 61896, 62036, 62172, 62302, 62428, 62549, 62666,
    62778, 62886, 62990, 63090, 63186, 63279, 63368, 63454, 63536, 63615, 63691, 63765, 63835, 63903, 63968,
    64030, 64090, 64148, 64204, 64257, 64308, 64357, 64405, 64450, 64494, 64536, 64576, 64614, 64652, 64687,
    64721, 64754, 64786, 64816, 64845, 64873, 64900, 64926, 64950, 64974, 64997, 65019, 65039, 65060, 65079,
    65097, 65115, 65132, 65149, 65164, 65179, 65194, 65208, 65221, 65234, 65246, 65258, 65269, 65280, 65291,
    65301, 65310, 65319, 65328, 65337, 65345, 65352, 65360, 65367, 65374, 65381, 65387, 65393, 65399, 65404,
    65410, 65415, 65420, 65425, 65429, 65433, 65438, 65442, 65445, 65449, 65453, 65456, 65459, 65462, 65465,
    65468, 65471, 65474, 65476, 65479, 65481, 65483, 65485, 65488, 65489, 65491, 65493, 65495, 65497, 65498,
    65500, 65501, 65503, 65504, 65505, 65507, 65508, 65509, 65510, 65511, 65512, 65513, 65514, 65515, 65516,
    65517, 65517, 65518, 65519, 65520, 65520, 65521, 65522, 65522, 65523, 65523, 65524, 65524, 65525, 65525,
    65526, 65526, 65526, 65527, 65527, 65528, 65528, 65528, 65529, 65529, 65529, 65529, 65530, 65530, 65530,
    65530, 65531, 65531, 65531, 65531, 65531, 65532, 65532, 65532, 65532, 65532, 65532, 65533, 65533, 65533,
    65533, 65533, 65533, 65533, 65533, 65534, 65534, 65534, 65534, 65534, 65534, 65534, 65534, 65534, 65534,
    65535,
];

/// 16-bit LOGISTIC: `x` is a number of 1/12288ths.
pub(super) fn short_logistic(x: i64) -> i64 {
    let size = x.abs();
    let at = (size >> 9) as usize;
    let result = match SIGMOID.get(at + 1) {
        Some(next) if at < 255 => (SIGMOID[at] << 9) + (size & 0x1ff) * (next - SIGMOID[at]),
        _ => 0x7FFF << 10,
    };
    let result = if x >= 0 { result + (1 << 9) } else { (1 << 25) - result + (1 << 9) - 1 };
    result >> 10
}

/// 16-bit TANH: `x` is a number of 1/12288ths.
pub(super) fn short_tanh(x: i64) -> i64 {
    let size = x.abs();
    let at = (size >> 8) as usize;
    let result = match SIGMOID.get(at + 1) {
        Some(next) if at < 255 => (SIGMOID[at] << 8) + (size & 0xff) * (next - SIGMOID[at]),
        _ => 0xFFFF << 8,
    };
    let result = if x >= 0 { result - (1 << 23) + (1 << 7) } else { -result + (1 << 23) + (1 << 7) - 1 };
    result >> 8
}

/// What brings 16-bit integers of a scale to 1/12288ths: a factor and a shift to the right.
pub(super) fn to_twelve_thousandths(scale: f32, largest_left: i32) -> (i64, u32) {
    let log = scale.log2();
    let left = 12 + log.round() as i32;
    if (log - log.round()).abs() < 1e-3 && (0..=largest_left).contains(&left) {
        return (3 << left, 0);
    }
    let (mut multiplier, mut shift) = (scale as f64 * 4096.0 * 3.0, 0);
    while multiplier <= 32767.0 / 2.0 && shift <= 30 {
        shift += 1;
        multiplier *= 2.0;
    }
    (multiplier as i64, shift)
}
