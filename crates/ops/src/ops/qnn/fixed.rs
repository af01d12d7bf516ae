//! Multiplication by a fixed-point number: a significand of 31 bits and a power of two. It is how quantized tensors change
//! their scale with integers alone.

use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work,
        nn::axis_of,
        op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family =
    &[&FixedPointMultiply, &FixedPointMultiplyPerAxis, &super::fixed_high::FixedPointMultiplyHighPerAxis];

/// Which way halves round.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Rounding {
    /// Up.
    Upward,
    /// Away from zero.
    ToNearest,
    /// As TFLite's reference kernels round 32-bit numbers: the product is rounded to 31 bits less, halves up, and what is
    /// shifted right after that is rounded again, halves away from zero.
    TfLite,
    /// As they round 64-bit numbers: the significand is rounded to 15 bits, and halves of the product are rounded up.
    TfLiteWide,
}

/// Bits right of the significand's point.
pub(super) const POINT: i64 = 31;

/// A number as `significand * 2^(exponent - 31)`, the significand rounded to nearest and of 31 bits.
pub fn fixed_point(m: f64) -> (i64, i64) {
    if m == 0.0 || !m.is_finite() {
        return (0, 0);
    }
    let mut exponent = m.abs().log2().floor() as i64 + 1;
    let mut fraction = m / (exponent as f64).exp2();
    // The logarithm may have rounded to the next integer.
    if fraction.abs() >= 1.0 {
        (fraction, exponent) = (fraction / 2.0, exponent + 1);
    } else if fraction.abs() < 0.5 {
        (fraction, exponent) = (fraction * 2.0, exponent - 1);
    }
    let significand = (fraction * (1i64 << POINT) as f64).round() as i64;
    if significand.abs() == 1 << POINT { (significand / 2, exponent + 1) } else { (significand, exponent) }
}

/// `x * significand * 2^(exponent - 31)` in 64 bits that wrap, rounded, as an `int32`.
pub(super) fn multiply(x: i64, (significand, exponent): (i64, i64), rounding: Rounding) -> i64 {
    let (left, right) = (exponent.clamp(0, 63), (POINT + (-exponent).max(0)).min(63));
    shift_multiply(x, significand, left, right, rounding)
}

/// A significand of 31 bits rounded to 15.
const SHORT: i64 = 16;
/// The least significand that would round to more than 15 bits.
const MOST: i64 = 0x7FFF_0000;

/// What TFLite's kernels compute; see [`Rounding`].
fn tflite_multiply(x: i64, significand: i64, left: i64, right: i64, rounding: Rounding) -> i64 {
    if rounding == Rounding::TfLiteWide {
        let short = if significand < MOST { (significand + (1 << (SHORT - 1))) >> SHORT } else { MOST >> SHORT };
        let by = (right - SHORT - left).max(1);
        return (x.wrapping_mul(short).wrapping_add(1 << (by - 1)) >> by) as i32 as i64;
    }
    let shifted = x.wrapping_shl(left as u32) as i32 as i64;
    let high = (shifted * significand + (1 << (POINT - 1))) >> POINT;
    let half = (1i64 << (right - POINT)) >> 1;
    let round = if high < 0 { (half - 1).max(0) } else { half };
    ((high + round) >> (right - POINT)) as i32 as i64
}

/// `x` times a number of at least 0 as TFLite's kernels multiply, for 32-bit `x`.
pub fn tflite_scaled(x: i64, factor: f64) -> i64 {
    multiply(x, fixed_point(factor), Rounding::TfLite)
}

/// `x * 2^left * significand * 2^-right`, rounded, as an `int32`.
pub(super) fn shift_multiply(x: i64, significand: i64, left: i64, right: i64, rounding: Rounding) -> i64 {
    if matches!(rounding, Rounding::TfLite | Rounding::TfLiteWide) {
        return tflite_multiply(x, significand, left, right, rounding);
    }
    let product = x.wrapping_shl(left as u32).wrapping_mul(significand);
    let half = 1i64 << (right - 1);
    let round = if rounding == Rounding::ToNearest && product < 0 { half - 1 } else { half };
    (product.wrapping_add(round) >> right) as i32 as i64
}

/// A fixed-point factor as index expressions of `int64`.
#[derive(Clone)]
pub(super) struct Factor {
    significand: Scalar,
    left: Scalar,
    right: Scalar,
}

fn long(i: i64) -> Scalar {
    Scalar::int(i, DType::I64)
}

impl Factor {
    /// A factor that is known.
    pub(super) fn constant(m: f64) -> Factor {
        let (significand, exponent) = fixed_point(m);
        Factor::of(long(significand), long(exponent))
    }

    fn of(significand: Scalar, exponent: Scalar) -> Factor {
        let left = exponent.clone().max(long(0)).min(long(63));
        let right = (long(POINT) + (long(0) - exponent).max(long(0))).min(long(63));
        Factor { significand, left, right }
    }

    /// `x` times the factor: `int64` in, `int32` out.
    pub(super) fn apply(&self, x: Scalar, rounding: Rounding) -> Scalar {
        match rounding {
            Rounding::TfLite => return self.apply_tflite(x),
            Rounding::TfLiteWide => return self.apply_tflite_wide(x),
            Rounding::Upward | Rounding::ToNearest => {}
        }
        // What is shifted left and then right is shifted right by less: of the sum, 32 bits count from the last one that is shifted
        // out, and where those are below the sign, it does not matter what left the 64 bits at the other end.
        let (left, right) = match (self.left.as_int(), self.right.as_int()) {
            (Some(0), _) => (None, self.right.clone()),
            (Some(left), Some(POINT)) if left < POINT && rounding == Rounding::Upward => (None, long(POINT - left)),
            _ => (Some(&self.left), self.right.clone()),
        };
        let shifted = left.map_or(x.clone(), |left| Scalar::binary(BinOp::Shl, x, left.clone()));
        let product = shifted.clone() * self.significand.clone();
        let half = match right.as_int() {
            Some(n) => long(1 << (n - 1)),
            None => Scalar::binary(BinOp::Shl, long(1), right.clone() - long(1)),
        };
        let round = match rounding {
            Rounding::ToNearest => {
                let negative = product.clone().lt(long(0));
                Scalar::select(negative, half.clone() - long(1), half)
            }
            _ => half,
        };
        Scalar::mul_shift(shifted, self.significand.clone(), round, right)
    }

    /// [`tflite_multiply`] of a 32-bit number.
    fn apply_tflite(&self, x: Scalar) -> Scalar {
        let shift = |op, x: Scalar, by: Scalar| Scalar::binary(op, x, by);
        let shifted = match self.left.as_int() {
            Some(0) => x,
            _ => shift(BinOp::Shl, x, self.left.clone()).cast(DType::I32).cast(DType::I64),
        };
        let round = long(1 << (POINT - 1));
        let rest = self.right.clone() - long(POINT);
        let high = shift(BinOp::Shr, shifted.clone() * self.significand.clone() + round.clone(), long(POINT));
        let half = match rest.as_int() {
            Some(0) => return Scalar::mul_shift(shifted, self.significand.clone(), round, long(POINT)),
            Some(n) => long(1 << (n - 1)),
            None => shift(BinOp::Shr, shift(BinOp::Shl, long(1), rest.clone()), long(1)),
        };
        let lower = (half.clone() - long(1)).max(long(0));
        let round = Scalar::select(high.clone().lt(long(0)), lower, half);
        shift(BinOp::Shr, high + round, rest).cast(DType::I32)
    }

    /// [`tflite_multiply`] of a 64-bit number.
    fn apply_tflite_wide(&self, x: Scalar) -> Scalar {
        let rounded = Scalar::binary(BinOp::Shr, self.significand.clone() + long(1 << (SHORT - 1)), long(SHORT));
        let short = rounded.min(long(MOST >> SHORT));
        let by = (self.right.clone() - long(SHORT) - self.left.clone()).max(long(1));
        let half = Scalar::binary(BinOp::Shl, long(1), by.clone() - long(1));
        Scalar::binary(BinOp::Shr, x * short + half, by).cast(DType::I32)
    }
}

/// Stages that turn quotients of scales into fixed-point factors.
#[derive(Copy, Clone, Debug)]
pub(super) struct Factors {
    significand: TensorId,
    exponent: TensorId,
}

/// `from / to` as fixed-point factors, one per element of `from`; `to` holds one element.
pub(super) fn factors(from: TensorId, to: TensorId, b: &mut Builder) -> Factors {
    let shape = b.shape(from).to_vec();
    let ratio = b.map(&shape, |b, i| {
        let to = super::params::read_param(b, to, None);
        b.read(from, i.iter().cloned()).cast(DType::F64) / to.cast(DType::F64)
    });
    factors_of(ratio, b)
}

/// The elements of an f64 tensor as fixed-point factors.
pub(super) fn factors_of(ratio: TensorId, b: &mut Builder) -> Factors {
    let shape = b.shape(ratio).to_vec();
    let real = |f: f64| Scalar::float(f, DType::F64);
    let power = |e: Scalar| Scalar::unary(UnOp::Exp2, e.cast(DType::F64));
    let exponent = b.map(&shape, |b, i| {
        let m = Scalar::unary(UnOp::Abs, b.read(ratio, i.iter().cloned()));
        let zero = Scalar::binary(BinOp::Eq, m.clone(), real(0.0));
        let floor = Scalar::unary(UnOp::Floor, Scalar::unary(UnOp::Log2, m));
        Scalar::select(zero, long(0), floor.cast(DType::I64) + long(1))
    });
    // The logarithm may have rounded to the next integer, and the significand may round to the next power of two.
    let fraction =
        |b: &Builder, i: &[Scalar]| b.read(ratio, i.iter().cloned()) / power(b.read(exponent, i.iter().cloned()));
    let corrected = b.map(&shape, |b, i| {
        let size = Scalar::unary(UnOp::Abs, fraction(b, i));
        let e = b.read(exponent, i.iter().cloned());
        let most = 1.0 - (-(POINT as f64) - 1.0).exp2();
        let small = size.clone().lt(real(0.5)).and(Scalar::binary(BinOp::Gt, size.clone(), real(0.0)));
        let lower = Scalar::select(small, e.clone() - long(1), e.clone());
        Scalar::select(size.ge(real(most)), e + long(1), lower)
    });
    let significand = b.map(&shape, |b, i| {
        let e = b.read(corrected, i.iter().cloned());
        let fraction = b.read(ratio, i.iter().cloned()) / power(e);
        Scalar::unary(UnOp::Round, fraction * real((1i64 << POINT) as f64)).cast(DType::I64)
    });
    Factors { significand, exponent: corrected }
}

impl Factors {
    /// The factor for an element: that of `channel` where there are several.
    pub(super) fn read(&self, b: &Builder, channel: Option<&Scalar>) -> Factor {
        let read = |t| super::params::read_param(b, t, channel);
        Factor::of(read(self.significand), read(self.exponent))
    }
}

/// `fixed_point_multiply`.
#[derive(Debug)]
struct FixedPointMultiply;

/// The integers that fixed-point multiplication takes.
fn check_data(args: &[Type]) -> Result<(), OpError> {
    let x = tensor_arg(args, 0, "data")?;
    op_ensure!(matches!(x.dtype, DType::I32 | DType::I64), "C1: `data` is {x}, but should be of int32 or int64");
    Ok(())
}

impl Op for FixedPointMultiply {
    fn name(&self) -> &'static str {
        "fixed_point_multiply"
    }
    fn doc(&self) -> &'static str {
        "out = data * multiplier * 2^(shift - 31), computed in 64 bits, halves rounded up, wrapped to 32 bits.
        C1: the elements are int32 or int64."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("multiplier", AttrKind::Int, AttrDefault::Required),
            AttrField::new("shift", AttrKind::Int, AttrDefault::Required),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_data(args)?;
        Ok(args[0].clone())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, factor) = (args[0].tensor(), (attrs.int("multiplier"), attrs.int("shift")));
        let out = Tensor::from_i64_fn(x.dtype(), x.shape(), |i| multiply(x.get_i64(i), factor, Rounding::Upward));
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![(0..args[0].as_tensor().map_or(0, |t| t.rank())).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(4.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let factor = Factor::of(long(attrs.int("multiplier")), long(attrs.int("shift")));
        let out = b.map(&shape, |b, i| {
            factor.apply(b.read(x, i.iter().cloned()).cast(DType::I64), Rounding::Upward).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |multiplier: i64, shift: i64, dtype: DType| Sample {
            attrs: vec![("multiplier", multiplier.into()), ("shift", shift.into())],
            args: vec![Type::tensor(&[2, 3], dtype)],
        };
        vec![call(1 << 30, 3, DType::I32), call(1_789_569_636, -2, DType::I32), call(1_499_304_064, -12, DType::I64)]
    }
}

/// `fixed_point_multiply_per_axis`.
#[derive(Debug)]
struct FixedPointMultiplyPerAxis;

/// Whether the operator shifts left and right at all, and the axes that factors run along.
fn per_axis(attrs: &Attrs, rank: usize) -> Result<(bool, bool, Vec<usize>), OpError> {
    Ok((attrs.bool("is_lshift_required"), attrs.bool("is_rshift_required"), factor_axes(attrs, rank)?))
}

/// The axes that factors run along.
pub(super) fn factor_axes(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
    attrs.ints("axes").iter().map(|&a| axis_of(a, rank)).collect()
}

/// Of each of these vectors, whether it is of int32 and of the extents of the axes of `x`.
pub(super) fn check_factors(op: &dyn Op, args: &[Type], axes: &[usize]) -> Result<(), OpError> {
    let x = tensor_arg(args, 0, "data")?;
    for (i, name) in op.inputs().iter().enumerate().skip(1) {
        let t = tensor_arg(args, i, name)?;
        let fits = t.rank() == axes.len()
            && axes.iter().zip(t.shape.iter()).all(|(&a, &d)| crate::ops::util::may_equal(x.shape[a], d));
        op_ensure!(
            fits && t.dtype == DType::I32,
            "C2: `{name}` is {t}, but should be of int32 and the extents of axes {axes:?} of `data`, {x}"
        );
    }
    Ok(())
}

impl Op for FixedPointMultiplyPerAxis {
    fn name(&self) -> &'static str {
        "fixed_point_multiply_per_axis"
    }
    fn doc(&self) -> &'static str {
        "out = data * 2^lshift * m * 2^(-31 - rshift), computed in 64 bits, halves rounded up, wrapped to 32 bits; m, lshift
        and rshift are read at the indices along axes; lshift counts only where is_lshift_required is set.
        C1: the elements are int32 or int64. C2: m, lshift and rshift are int32, of the extents of axes."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "fp_multiplier", "left_shift", "right_shift"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("is_lshift_required", AttrKind::Bool, AttrDefault::Bool(false)),
            AttrField::new("is_rshift_required", AttrKind::Bool, AttrDefault::Bool(false)),
            AttrField::new("axes", AttrKind::Ints, AttrDefault::Required),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Broadcast
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_data(args)?;
        let x = tensor_arg(args, 0, "data")?;
        check_factors(self, args, &factor_axes(attrs, x.rank())?)?;
        Ok(args[0].clone())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, m, left, right] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let (shifts_left, _, axes) = per_axis(attrs, x.shape().len())?;
        let strides = crate::tensor::row_major_strides(x.shape());
        let out = Tensor::from_i64_fn(x.dtype(), x.shape(), |i| {
            let at = axes.iter().fold(0, |at, &a| at * x.shape()[a] + i / strides[a] % x.shape()[a]);
            let left = if shifts_left { left.get_i64(at).clamp(0, 63) } else { 0 };
            let right = (POINT + right.get_i64(at).max(0)).min(63);
            shift_multiply(x.get_i64(i), m.get_i64(at), left, right, Rounding::Upward)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, |t| t.rank());
        match per_axis(attrs, rank) {
            Ok((_, _, axes)) => {
                let vector: Vec<AxisRole> = axes.into_iter().map(AxisRole::Maps).collect();
                AxisMap(vec![(0..rank).map(AxisRole::Maps).collect(), vector.clone(), vector.clone(), vector])
            }
            Err(_) => AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, |t| t.rank()))),
        }
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(if attrs.bool("is_lshift_required") { 5.0 } else { 4.0 }, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, m, left, right] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let (shifts_left, _, axes) = per_axis(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let read = |t| b.read(t, axes.iter().map(|&a| i[a].clone())).cast(DType::I64);
            let left = if shifts_left { read(left).max(long(0)).min(long(63)) } else { long(0) };
            let right = (long(POINT) + read(right).max(long(0))).min(long(63));
            let factor = Factor { significand: read(m), left, right };
            factor.apply(b.read(x, i.iter().cloned()).cast(DType::I64), Rounding::Upward).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |left: bool| Sample {
            attrs: vec![("axes", [1].into()), ("is_lshift_required", left.into()), ("is_rshift_required", true.into())],
            args: [&[2, 3, 4][..], &[3], &[3], &[3]].map(|s| Type::tensor(s, DType::I32)).into(),
        };
        vec![call(true), call(false)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_31_bits() {
        assert_eq!(fixed_point(1.0), (1 << 30, 1));
        assert_eq!(fixed_point(0.5), (1 << 30, 0));
        assert_eq!(fixed_point(0.75), (3 << 29, 0));
        assert_eq!(fixed_point(0.0), (0, 0));
        // Rounds up to the next power of two.
        assert_eq!(fixed_point(1.0 - 1e-12), (1 << 30, 1));
        for k in -100..100 {
            assert_eq!(fixed_point((k as f64).exp2()), (1 << 30, k + 1));
        }
    }

    #[test]
    fn halves_round_up_or_away() {
        let half = fixed_point(0.5);
        let rounded = |x, r| multiply(x, half, r);
        assert_eq!([3, 1, -1, -3].map(|x| rounded(x, Rounding::Upward)), [2, 1, 0, -1]);
        assert_eq!([3, 1, -1, -3].map(|x| rounded(x, Rounding::ToNearest)), [2, 1, -1, -2]);
        assert_eq!([3, 1, -1, -3].map(|x| rounded(x, Rounding::TfLite)), [2, 1, 0, -1]);
        // Both steps round, the second one halves away from zero: 11 / 8 is 5.5 / 4, 6 / 4, 2.
        let eighth = fixed_point(0.125);
        assert_eq!([11, 12, 13, -12, -11, -4].map(|x| multiply(x, eighth, Rounding::TfLite)), [2, 2, 2, -2, -1, -1]);
        // 0.3 with a significand of 15 bits.
        assert_eq!(multiply(1 << 20, fixed_point(0.3), Rounding::TfLiteWide), (1i64 << 20) * 19661 / 65536);
    }
}
