//! Changes of scale as TFLite's reference kernels make them, of sums of 32 bits, in one operator: multiplied by a fixed-point number below
//! one half, rounded twice, moved to a zero point and clipped.

use super::{
    fixed::{POINT, Rounding, shift_multiply},
    quantize::{bounds, narrow},
};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work,
        nn::axis_of,
        op_ensure,
        util::{may_equal, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Rescale, &RescalePerAxis];

const ZERO_POINT: AttrField = AttrField::new("zero_point", AttrKind::Int, AttrDefault::Int(0));
const OUT_DTYPE: AttrField = AttrField::new("out_dtype", AttrKind::DType, AttrDefault::DType(DType::I8));

/// Where a result lies: its zero point and its type.
#[derive(Copy, Clone)]
struct Target {
    zero: i64,
    dtype: DType,
}

impl Target {
    fn new(attrs: &Attrs) -> Target {
        Target { zero: attrs.int("zero_point"), dtype: attrs.opt_dtype("out_dtype").unwrap_or(DType::I8) }
    }

    /// The result's type: that of `data`, of these elements.
    fn infer(self, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype == DType::I32, "C1: `data` is {x}, but should be of int32");
        op_ensure!(
            matches!(self.dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32),
            "C1: `out_dtype` is {}, but should be int8, uint8, int16 or int32",
            self.dtype
        );
        let (lo, hi) = bounds(self.dtype);
        op_ensure!(
            (lo..=hi).contains(&self.zero),
            "C3: `zero_point` is {}, which {} does not hold",
            self.zero,
            self.dtype
        );
        Ok(TensorType { shape: x.shape.clone(), dtype: self.dtype }.into())
    }

    fn eval(self, x: i64, m: i64, right: i64) -> i64 {
        let (lo, hi) = bounds(self.dtype);
        let scaled = shift_multiply(x, m, 0, POINT + right.clamp(0, POINT), Rounding::TfLite);
        ((scaled as i32).wrapping_add(self.zero as i32) as i64).clamp(lo, hi)
    }

    /// `x`, `m` and `right` are of `int32`; `right` is at least 1.
    fn lower(self, x: Scalar, m: Scalar, right: Scalar) -> Scalar {
        let (int, long) = (|i| Scalar::int(i, DType::I32), |i| Scalar::int(i, DType::I64));
        let shr = |x, by| Scalar::binary(BinOp::Shr, x, by);
        let less_one = match right.as_int() {
            Some(n) => int(n - 1),
            None => right.clone() - int(1),
        };
        let product = |round: Scalar, by: i64| {
            Scalar::mul_shift(x.clone().cast(DType::I64), m.clone().cast(DType::I64), round, long(by))
        };
        let first = 1i64 << (POINT - 1);
        let (lo, _) = bounds(self.dtype);
        let zero = int(self.zero);
        if self.zero == lo && self.dtype != DType::I32 {
            // Where negative numbers are clipped it does not matter which way their halves round, and one sum rounds for both.
            let round = match right.as_int() {
                Some(n) => long(first + (first << n)),
                None => Scalar::binary(BinOp::Shl, long(first), right.cast(DType::I64)) + long(first),
            };
            return narrow(shr(product(round, POINT + 1), less_one) + zero, self.dtype);
        }
        let high = product(long(first), POINT);
        // Halves away from zero: of negative numbers, one less than half is added.
        let rounded = high.clone() + shr(high, int(POINT));
        narrow(shr(shr(rounded, less_one) + int(1), int(1)) + zero, self.dtype)
    }
}

/// `fixed_point_rescale`.
#[derive(Debug)]
struct Rescale;

impl Op for Rescale {
    fn name(&self) -> &'static str {
        "fixed_point_rescale"
    }
    fn doc(&self) -> &'static str {
        "out = clip(zero_point + data * multiplier * 2^(-31 - right_shift)) to out_dtype's range, as TFLite's reference kernels round it:
        the product by 31 bits with halves up, what is shifted right after that with halves away from zero.
        C1: data is int32, out_dtype int8, uint8, int16 or int32. C2: multiplier is from 0 to 2^31 - 1, right_shift from 0 to 31.
        C3: out_dtype holds zero_point."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("multiplier", AttrKind::Int, AttrDefault::Required),
            AttrField::new("right_shift", AttrKind::Int, AttrDefault::Required),
            ZERO_POINT,
            OUT_DTYPE,
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (m, right) = (attrs.int("multiplier"), attrs.int("right_shift"));
        op_ensure!(
            (0..1 << POINT).contains(&m) && (0..=POINT).contains(&right),
            "C2: `multiplier` is {m} and `right_shift` {right}, but should be of 31 bits, and from 0 to 31"
        );
        Target::new(attrs).infer(args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, to) = (args[0].tensor(), Target::new(attrs));
        let (m, right) = (attrs.int("multiplier"), attrs.int("right_shift"));
        Ok(Tensor::from_i64_fn(to.dtype, x.shape(), |i| to.eval(x.get_i64(i), m, right)).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![(0..args[0].as_tensor().map_or(0, |t| t.rank())).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(6.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, to) = (args[0].tensor(), Target::new(attrs));
        let (m, right) = (attrs.int("multiplier"), attrs.int("right_shift"));
        let shape = b.shape(x).to_vec();
        let out = b.map(&shape, |b, i| {
            let x = b.read(x, i.iter().cloned());
            let m = Scalar::int(m, DType::I32);
            match right {
                0 => {
                    let long = |i| Scalar::int(i, DType::I64);
                    let high =
                        Scalar::mul_shift(x.cast(DType::I64), m.cast(DType::I64), long(1 << (POINT - 1)), long(POINT));
                    narrow(high + Scalar::int(to.zero, DType::I32), to.dtype)
                }
                _ => to.lower(x, m, Scalar::int(right, DType::I32)),
            }
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |multiplier: i64, right: i64, zero: i64, dtype: DType| Sample {
            attrs: vec![
                ("multiplier", multiplier.into()),
                ("right_shift", right.into()),
                ("zero_point", zero.into()),
                ("out_dtype", dtype.into()),
            ],
            args: vec![Type::tensor(&[2, 3], DType::I32)],
        };
        vec![
            call(1 << 30, 0, 0, DType::I32),
            call(1_789_569_636, 24, -7, DType::I8),
            call(1_499_304_064, 25, 0, DType::U8),
            call(1_499_304_064, 1, -128, DType::I8),
            call(1_199_304_064, 17, 3, DType::I16),
        ]
    }
}

/// `fixed_point_rescale_per_axis`.
#[derive(Debug)]
struct RescalePerAxis;

fn axes(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
    attrs.ints("axes").iter().map(|&a| axis_of(a, rank)).collect()
}

impl Op for RescalePerAxis {
    fn name(&self) -> &'static str {
        "fixed_point_rescale_per_axis"
    }
    fn doc(&self) -> &'static str {
        "As fixed_point_rescale, with multipliers and shifts that are read at the indices along axes.
        C1: data is int32, out_dtype int8, uint8, int16 or int32. C2: multiplier and right_shift are int32, of the extents of axes;
        multipliers are from 0 to 2^31 - 1, shifts from 1 to 31. C3: out_dtype holds zero_point."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "multiplier", "right_shift"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] =
            &[AttrField::new("axes", AttrKind::Ints, AttrDefault::Required), ZERO_POINT, OUT_DTYPE];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Broadcast
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let out = Target::new(attrs).infer(args)?;
        let x = tensor_arg(args, 0, "data")?;
        let axes = axes(attrs, x.rank())?;
        for (i, name) in self.inputs().iter().enumerate().skip(1) {
            let t = tensor_arg(args, i, name)?;
            let fits =
                t.rank() == axes.len() && axes.iter().zip(t.shape.iter()).all(|(&a, &d)| may_equal(x.shape[a], d));
            op_ensure!(
                fits && t.dtype == DType::I32,
                "C2: `{name}` is {t}, but should be of int32 and the extents of axes {axes:?} of `data`, {x}"
            );
        }
        Ok(out)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let ([x, m, right], to) = ([0, 1, 2].map(|i| args[i].tensor()), Target::new(attrs));
        let axes = axes(attrs, x.shape().len())?;
        let strides = crate::tensor::row_major_strides(x.shape());
        let out = Tensor::from_i64_fn(to.dtype, x.shape(), |i| {
            let at = axes.iter().fold(0, |at, &a| at * x.shape()[a] + i / strides[a] % x.shape()[a]);
            to.eval(x.get_i64(i), m.get_i64(at).max(0), right.get_i64(at).max(1))
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, |t| t.rank());
        match axes(attrs, rank) {
            Ok(axes) => {
                let vector: Vec<AxisRole> = axes.into_iter().map(AxisRole::Maps).collect();
                AxisMap(vec![(0..rank).map(AxisRole::Maps).collect(), vector.clone(), vector])
            }
            Err(_) => AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, |t| t.rank()))),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(6.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let ([x, m, right], to) = ([0, 1, 2].map(|i| args[i].tensor()), Target::new(attrs));
        let shape = b.shape(x).to_vec();
        let axes = axes(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let read = |t, least| b.read(t, axes.iter().map(|&a| i[a].clone())).max(Scalar::int(least, DType::I32));
            let right = read(right, 1).min(Scalar::int(POINT, DType::I32));
            to.lower(b.read(x, i.iter().cloned()), read(m, 0), right)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |zero: i64, dtype: DType| Sample {
            attrs: vec![("axes", [1].into()), ("zero_point", zero.into()), ("out_dtype", dtype.into())],
            args: [&[2, 3, 4][..], &[3], &[3]].map(|s| Type::tensor(s, DType::I32)).into(),
        };
        vec![call(-5, DType::I8), call(0, DType::U8), call(-128, DType::I8), call(0, DType::I32)]
    }
}
