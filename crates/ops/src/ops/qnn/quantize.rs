//! Between numbers and quantized tensors, and from one scale to another.

use super::{
    fixed::{Factor, Factors, Rounding, factors, fixed_point, multiply},
    params::{channel_axis, channel_extent, check_param, check_quantized, check_single, quantized_type, read_param},
};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_bail,
        op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Quantize, &Dequantize, &Requantize];

const AXIS: AttrField = AttrField::new("axis", AttrKind::Int, AttrDefault::Int(-1));

/// Which element of a scale or zero point belongs to each element of a tensor.
pub(super) struct Channels {
    inner: usize,
    extent: usize,
}

impl Channels {
    /// Channels along an axis of a tensor of this shape.
    pub(super) fn new(shape: &[usize], axis: Option<usize>) -> Channels {
        match axis {
            None => Channels { inner: 1, extent: 1 },
            Some(k) => Channels { inner: shape[k + 1..].iter().product(), extent: shape[k] },
        }
    }

    /// The place in `param` for element `i`.
    pub(super) fn at(&self, i: usize, param: &Tensor) -> usize {
        if param.len() == 1 { 0 } else { i / self.inner % self.extent }
    }
}

/// The least and greatest values of an integer type of at most 32 bits.
pub(super) fn bounds(dtype: DType) -> (i64, i64) {
    dtype.int_range().map_or((0, 0), |(lo, hi)| (lo as i64, hi as i64))
}

/// An `int32` as a narrower type, clipped to its range.
pub(super) fn narrow(x: Scalar, dtype: DType) -> Scalar {
    let (lo, hi) = bounds(dtype);
    match dtype {
        DType::I32 => x,
        _ => x.max(Scalar::int(lo, DType::I32)).min(Scalar::int(hi, DType::I32)).cast(dtype),
    }
}

/// A number as quantized, in f32 as TVM computes it; NaN becomes the greatest value.
pub(super) fn quantize_f32(x: f32, scale: f32, zero: i64, dtype: DType) -> i64 {
    let (lo, hi) = bounds(dtype);
    let q = (x / scale).round() + zero as f32;
    q.min(hi as f32).max(lo as f32) as i64
}

/// A number as quantized, as an expression; NaN becomes the greatest value.
pub(super) fn quantize_scalar(x: Scalar, scale: Scalar, zero: Scalar, dtype: DType) -> Scalar {
    let (lo, hi) = bounds(dtype);
    let real = |i: i64| Scalar::float(i as f64, DType::F32);
    let q = Scalar::unary(UnOp::Round, x / scale) + zero.cast(DType::F32);
    q.min(real(hi)).max(real(lo)).cast(dtype)
}

/// Roles of the arguments of an operator on `data` and vectors along its channel axis.
pub(super) fn channel_roles(attrs: &Attrs, args: &[Type]) -> AxisMap {
    let rank = args[0].as_tensor().map_or(0, TensorType::rank);
    let axis = channel_axis(attrs.int("axis"), rank).ok().flatten();
    let param = |t: &Type| -> Vec<AxisRole> {
        let shape = t.as_tensor().map(|t| t.shape.to_vec()).unwrap_or_default();
        let role = |n: Option<i64>| match (n, axis) {
            (Some(n), Some(k)) if n > 1 => AxisRole::Maps(k),
            (Some(1), Some(k)) => AxisRole::Broadcasts(k),
            _ => AxisRole::Opaque,
        };
        shape.iter().map(|d| role(d.known())).collect()
    };
    let data = (0..rank).map(AxisRole::Maps).collect();
    AxisMap(std::iter::once(data).chain(args[1..].iter().map(param)).collect())
}

/// `qnn.quantize`.
#[derive(Debug)]
struct Quantize;

impl Op for Quantize {
    fn name(&self) -> &'static str {
        "qnn.quantize"
    }
    fn doc(&self) -> &'static str {
        "out = clip(round(data / output_scale) + output_zero_point) to out_dtype's range, in float32, halves away from zero.
        C1: data is float32, out_dtype int8, uint8, int16, uint16 or int32. C2: scale (float32) and zero point (int32) are
        single numbers or vectors of data's axis."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "output_scale", "output_zero_point"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] =
            &[AttrField::new("out_dtype", AttrKind::DType, AttrDefault::DType(DType::I8)), AXIS];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        Ok(quantized_type(attrs, args, ["output_scale", "output_zero_point"])?.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, scale, zero] = [0, 1, 2].map(|i| args[i].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::I8);
        let channels = Channels::new(x.shape(), channel_axis(attrs.int("axis"), x.shape().len())?);
        let out = Tensor::from_i64_fn(dtype, x.shape(), |i| {
            let (s, z) = (scale.get_f64(channels.at(i, scale)), zero.get_i64(channels.at(i, zero)));
            quantize_f32(x.get_f64(i) as f32, s as f32, z, dtype)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        channel_roles(attrs, args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(5.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, scale, zero] = [0, 1, 2].map(|i| args[i].tensor());
        let shape = b.shape(x).to_vec();
        let (axis, dtype) = (channel_axis(attrs.int("axis"), shape.len())?, attrs.opt_dtype("out_dtype"));
        let out = b.map(&shape, |b, i| {
            let channel = axis.map(|k| &i[k]);
            let (s, z) = (read_param(b, scale, channel), read_param(b, zero, channel));
            quantize_scalar(b.read(x, i.iter().cloned()), s, z, dtype.unwrap_or(DType::I8))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |dtype: DType, axis: i64, n: &[i64]| Sample {
            attrs: vec![("out_dtype", dtype.into()), ("axis", axis.into())],
            args: vec![Type::tensor(&[2, 3, 2], DType::F32), Type::tensor(n, DType::F32), Type::tensor(n, DType::I32)],
        };
        vec![call(DType::I8, -1, &[]), call(DType::U8, 1, &[3]), call(DType::I16, 0, &[1])]
    }
}

/// The greatest finite number of `float16`.
const GREATEST_F16: f64 = 65504.0;

/// `qnn.dequantize`.
#[derive(Debug)]
struct Dequantize;

impl Op for Dequantize {
    fn name(&self) -> &'static str {
        "qnn.dequantize"
    }
    fn doc(&self) -> &'static str {
        "out = (data - input_zero_point) * input_scale, in float32, clipped to the range of float16 where out_dtype is that.
        C1: data is int8, uint8, int16, uint16 or int32, out_dtype float32 or float16. C2: scale (float32) and zero point
        (int32) are single numbers or vectors of data's axis."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "input_scale", "input_zero_point"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] =
            &[AttrField::new("out_dtype", AttrKind::DType, AttrDefault::DType(DType::F32)), AXIS];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        check_quantized(x, "data", &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32])?;
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::F32);
        op_ensure!(
            matches!(dtype, DType::F32 | DType::F16),
            "C1: `out_dtype` is {dtype}, but should be float32 or float16"
        );
        let single = [1, 2].iter().all(|&k| args[k].as_tensor().is_some_and(|t| t.elements() == Some(1)));
        let extent = if single { None } else { channel_extent(x, channel_axis(attrs.int("axis"), x.rank())?) };
        check_param(args, 1, "input_scale", DType::F32, extent)?;
        check_param(args, 2, "input_zero_point", DType::I32, extent)?;
        Ok(TensorType { shape: x.shape.clone(), dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, scale, zero] = [0, 1, 2].map(|i| args[i].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::F32);
        // An axis that there is not has no meaning, and needs none, for single numbers.
        let channels = Channels::new(x.shape(), channel_axis(attrs.int("axis"), x.shape().len()).ok().flatten());
        let out = Tensor::from_f64_fn(dtype, x.shape(), |i| {
            let (s, z) = (scale.get_f64(channels.at(i, scale)), zero.get_i64(channels.at(i, zero)));
            let value = dequantize_f32(x.get_i64(i), s as f32, z) as f64;
            if dtype == DType::F16 { value.clamp(-GREATEST_F16, GREATEST_F16) } else { value }
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        channel_roles(attrs, args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(3.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, scale, zero] = [0, 1, 2].map(|i| args[i].tensor());
        let shape = b.shape(x).to_vec();
        let axis = channel_axis(attrs.int("axis"), shape.len()).ok().flatten();
        let dtype = attrs.opt_dtype("out_dtype");
        let out = b.map(&shape, |b, i| {
            let channel = axis.map(|k| &i[k]);
            let (s, z) = (read_param(b, scale, channel), read_param(b, zero, channel));
            let shifted = b.read(x, i.iter().cloned()).cast(DType::I32) - z;
            let value = shifted.cast(DType::F32) * s;
            match dtype {
                Some(DType::F16) => {
                    let end = |v: f64| Scalar::float(v, DType::F32);
                    value.min(end(GREATEST_F16)).max(end(-GREATEST_F16)).cast(DType::F16)
                }
                _ => value,
            }
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |dtype: DType, axis: i64, n: &[i64]| Sample {
            attrs: vec![("axis", axis.into())],
            args: vec![Type::tensor(&[2, 3, 2], dtype), Type::tensor(n, DType::F32), Type::tensor(n, DType::I32)],
        };
        let mut half = call(DType::I16, -1, &[]);
        half.attrs.push(("out_dtype", DType::F16.into()));
        vec![
            call(DType::I8, -1, &[]),
            call(DType::U8, 1, &[3]),
            call(DType::I32, 0, &[1]),
            call(DType::I16, 7, &[]),
            half,
        ]
    }
}

/// The number that a quantized one stands for, in f32.
pub(super) fn dequantize_f32(q: i64, scale: f32, zero: i64) -> f32 {
    q.wrapping_sub(zero) as i32 as f32 * scale
}

/// `qnn.requantize`.
#[derive(Debug)]
struct Requantize;

/// How `qnn.requantize` computes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Compute {
    /// With fixed-point factors in 64-bit integers.
    Fixed,
    /// In this float type.
    Float(DType),
}

/// Rounding and compute type; where they are left open, halves round up, in integers, on every machine.
/// `wide` says that the data is of 64 bits.
fn modes(attrs: &Attrs, wide: bool) -> Result<(Rounding, Compute), OpError> {
    let rounding = match attrs.str("rounding") {
        "None" | "UPWARD" => Rounding::Upward,
        "TONEAREST" => Rounding::ToNearest,
        "TFLITE" if wide => Rounding::TfLiteWide,
        "TFLITE" => Rounding::TfLite,
        other => {
            op_bail!("C3: `rounding` is \"{other}\", but should be \"UPWARD\", \"TONEAREST\", \"TFLITE\" or \"None\"")
        }
    };
    let compute = match attrs.str("compute_dtype") {
        "None" | "int64" => Compute::Fixed,
        "float32" => Compute::Float(DType::F32),
        "float64" => Compute::Float(DType::F64),
        other => op_bail!("C3: `compute_dtype` is \"{other}\", but should be int64, float32, float64 or None"),
    };
    op_ensure!(
        attrs.str("rounding") != "TFLITE" || compute == Compute::Fixed,
        "C3: `rounding` is \"TFLITE\", which is in integers, but `compute_dtype` is a float"
    );
    Ok((rounding, compute))
}

/// One element from one scale to another, as an `int32`.
pub(super) fn requantize_int(q: i64, zero: i64, factor: (i64, i64), to_zero: i64, rounding: Rounding) -> i64 {
    let shifted = match rounding {
        Rounding::TfLiteWide => q.wrapping_sub(zero),
        _ => (q as i32).wrapping_sub(zero as i32) as i64,
    };
    (multiply(shifted, factor, rounding) as i32).wrapping_add(to_zero as i32) as i64
}

/// One element from one scale to another in floats, as an `int32`.
fn requantize_float(q: i64, zero: i64, ratio: f64, to_zero: i64, rounding: Rounding, dtype: DType) -> i64 {
    let rounded = |v: f64| if dtype == DType::F32 { v as f32 as f64 } else { v };
    let shifted = rounded(rounded(q as f64) - rounded(zero as f64));
    let moved = rounded(rounded(rounded(ratio) * shifted) + rounded(to_zero as f64));
    let rounded = match rounding {
        Rounding::ToNearest => moved.round(),
        _ => rounded(moved + 0.5).floor(),
    };
    rounded.clamp(i32::MIN as f64, i32::MAX as f64) as i64
}

/// One element from one scale to another with a fixed-point factor, as an `int32` expression.
pub(super) fn requantize_scalar(
    q: Scalar,
    zero: Scalar,
    factor: Factor,
    to_zero: Scalar,
    rounding: Rounding,
) -> Scalar {
    let shifted = match rounding {
        Rounding::TfLiteWide => q.cast(DType::I64) - zero.cast(DType::I64),
        _ => (q.cast(DType::I32) - zero).cast(DType::I64),
    };
    factor.apply(shifted, rounding) + to_zero
}

impl Op for Requantize {
    fn name(&self) -> &'static str {
        "qnn.requantize"
    }
    fn doc(&self) -> &'static str {
        "out = clip(round((data - input_zero_point) * input_scale / output_scale) + output_zero_point) to out_dtype's range;
        the quotient of scales is a fixed-point factor of 31 bits, or a float where compute_dtype names one.
        C1: data is int8, uint8, int16, int32 or int64, out_dtype int8, uint8, int16 or int32. C2: input scale (float32,
        or float64) and zero point (int32) are single numbers or vectors of data's axis, those of the output single numbers.
        C3: rounding is UPWARD, TONEAREST (halves away from zero), TFLITE (as that one's reference kernels: twice, to 31 bits
        less with halves up, and what is shifted after that with halves away from zero; of int64, once, with a factor of
        15 bits) or None (UPWARD); compute_dtype int64, float32, float64 or None (int64)."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "input_scale", "input_zero_point", "output_scale", "output_zero_point"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AXIS,
            AttrField::new("rounding", AttrKind::Str, AttrDefault::Str("None")),
            AttrField::new("compute_dtype", AttrKind::Str, AttrDefault::Str("None")),
            AttrField::new("out_dtype", AttrKind::DType, AttrDefault::DType(DType::I8)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        check_quantized(x, "data", &[DType::I8, DType::U8, DType::I16, DType::I32, DType::I64])?;
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::I8);
        op_ensure!(
            matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::I32),
            "C1: `out_dtype` is {dtype}, but should be int8, uint8, int16 or int32"
        );
        modes(attrs, false)?;
        let extent = channel_extent(x, channel_axis(attrs.int("axis"), x.rank())?);
        // Quotients are of float64: a scale that is a product of two may say it in full.
        let of = |i: usize| match tensor_arg(args, i, "scale").map(|t| t.dtype) {
            Ok(DType::F64) => DType::F64,
            _ => DType::F32,
        };
        check_param(args, 1, "input_scale", of(1), extent)?;
        check_param(args, 2, "input_zero_point", DType::I32, extent)?;
        check_single(args, 3, "output_scale", of(3))?;
        check_single(args, 4, "output_zero_point", DType::I32)?;
        Ok(TensorType { shape: x.shape.clone(), dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, scale, zero, to_scale, to_zero] = [0, 1, 2, 3, 4].map(|i| args[i].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::I8);
        let (rounding, compute) = modes(attrs, x.dtype() == DType::I64)?;
        let channels = Channels::new(x.shape(), channel_axis(attrs.int("axis"), x.shape().len())?);
        let ratios: Vec<f64> = (0..scale.len()).map(|c| scale.get_f64(c) / to_scale.get_f64(0)).collect();
        let factors: Vec<(i64, i64)> = ratios.iter().map(|&r| fixed_point(r)).collect();
        let (to_zero, (lo, hi)) = (to_zero.get_i64(0), bounds(dtype));
        let out = Tensor::from_i64_fn(dtype, x.shape(), |i| {
            let (q, c, z) = (x.get_i64(i), channels.at(i, scale), zero.get_i64(channels.at(i, zero)));
            let moved = match compute {
                Compute::Fixed => requantize_int(q, z, factors[c], to_zero, rounding),
                Compute::Float(d) => requantize_float(q, z, ratios[c], to_zero, rounding, d),
            };
            moved.clamp(lo, hi)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        channel_roles(attrs, args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(8.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, scale, zero, to_scale, to_zero] = [0, 1, 2, 3, 4].map(|i| args[i].tensor());
        let shape = b.shape(x).to_vec();
        let (axis, dtype) = (channel_axis(attrs.int("axis"), shape.len())?, attrs.opt_dtype("out_dtype"));
        let dtype = dtype.unwrap_or(DType::I8);
        let (rounding, compute) = modes(attrs, b.dtype(x) == DType::I64)?;
        let fixed: Option<Factors> = (compute == Compute::Fixed).then(|| factors(scale, to_scale, b));
        let out = b.map(&shape, |b, i| {
            let channel = axis.map(|k| &i[k]);
            let (q, z) = (b.read(x, i.iter().cloned()), read_param(b, zero, channel));
            let to_zero = read_param(b, to_zero, None);
            let moved = match (compute, fixed) {
                (Compute::Float(float), _) => {
                    let real = |t: TensorId, channel| read_param(b, t, channel).cast(DType::F64);
                    let ratio = (real(scale, channel) / real(to_scale, None)).cast(float);
                    let half = Scalar::float(0.5, float);
                    let moved = ratio * (q.cast(float) - z.cast(float)) + to_zero.cast(float);
                    let rounded = match rounding {
                        Rounding::ToNearest => Scalar::unary(UnOp::Round, moved),
                        _ => Scalar::unary(UnOp::Floor, moved + half),
                    };
                    // The range of int32, in a type that holds its ends.
                    let (lo, hi) = bounds(DType::I32);
                    let wide = rounded.cast(DType::F64);
                    let end = |i: i64| Scalar::float(i as f64, DType::F64);
                    wide.max(end(lo)).min(end(hi)).cast(DType::I32)
                }
                (Compute::Fixed, Some(factors)) => requantize_scalar(q, z, factors.read(b, channel), to_zero, rounding),
                (Compute::Fixed, None) => unreachable!("fixed-point factors were just made"),
            };
            narrow(moved, dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |from: DType, to: DType, n: &[i64], rounding: &str, compute: &str| Sample {
            attrs: vec![
                ("out_dtype", to.into()),
                ("axis", 1.into()),
                ("rounding", rounding.into()),
                ("compute_dtype", compute.into()),
            ],
            args: vec![
                Type::tensor(&[2, 3, 2], from),
                Type::tensor(n, DType::F32),
                Type::tensor(n, DType::I32),
                Type::tensor(&[], DType::F32),
                Type::tensor(&[], DType::I32),
            ],
        };
        vec![
            call(DType::I32, DType::I8, &[], "None", "None"),
            call(DType::I32, DType::U8, &[3], "UPWARD", "int64"),
            call(DType::U8, DType::I8, &[], "TONEAREST", "None"),
            call(DType::I32, DType::I32, &[3], "TONEAREST", "int64"),
            call(DType::I32, DType::I8, &[3], "TFLITE", "None"),
            call(DType::I64, DType::I16, &[], "TFLITE", "int64"),
            call(DType::I8, DType::I8, &[], "UPWARD", "float32"),
            call(DType::I32, DType::U8, &[3], "TONEAREST", "float64"),
        ]
    }
}
