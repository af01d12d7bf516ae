//! Conversions of element types, and clipping.

use super::{Floats, Integers};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, float_to_int},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Cast, &CastLike, &Reinterpret, &Clip];

/// `cast`.
#[derive(Debug)]
struct Cast;

/// `cast_like`.
#[derive(Debug)]
struct CastLike;

/// `reinterpret`.
#[derive(Debug)]
struct Reinterpret;

/// `clip`.
#[derive(Debug)]
struct Clip;

/// Each element converted: to floats rounded once, to integers truncated towards zero or wrapped, to `bool` compared with 0.
fn converted(x: &Tensor, dtype: DType) -> Tensor {
    if x.dtype() == dtype {
        return x.clone();
    }
    if x.dtype().is_float() {
        let values = Floats::of(x);
        return match dtype.is_int() {
            true => Tensor::from_i64_fn(dtype, x.shape(), |i| float_to_int(values.at(i), dtype)),
            false => Tensor::from_f64_fn(dtype, x.shape(), |i| values.at(i)),
        };
    }
    let values = Integers::of(x);
    match dtype {
        // Straight to f32: by way of f64, large integers would round twice.
        DType::F32 => Tensor::from_f64_fn(dtype, x.shape(), |i| values.at(i) as f32 as f64),
        _ if dtype.is_float() => Tensor::from_f64_fn(dtype, x.shape(), |i| values.at(i) as f64),
        _ => Tensor::from_i64_fn(dtype, x.shape(), |i| values.at(i) as i64),
    }
}

fn map_axes(args: &[Type]) -> Vec<AxisRole> {
    (0..args[0].as_tensor().map_or(0, TensorType::rank)).map(AxisRole::Maps).collect()
}

/// Calls over pairs of element types.
fn pairs() -> impl Iterator<Item = (DType, DType)> {
    use DType::*;
    [
        (F32, I32),
        (F32, I8),
        (F32, Bool),
        (F32, F16),
        (F16, F32),
        (F64, F32),
        (I32, F32),
        (I64, F32),
        (I64, I8),
        (U64, F64),
        (I8, U8),
        (U8, I64),
        (Bool, F32),
        (I32, Bool),
        (F32, F32),
    ]
    .into_iter()
}

impl Op for Cast {
    op_head!(
        "cast",
        "data as elements of dtype: to floats rounded to nearest even, from integers to integers wrapped, from floats to integers
        truncated towards zero (beyond the type as x86 does it, which gives the least int32 for what has no int32), to bool
        whether it is not zero.",
        ["data"],
        [field("dtype", AttrKind::DType, AttrDefault::Required)],
        Elementwise
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let Some(dtype) = attrs.opt_dtype("dtype") else { return Err(OpError("`dtype` is not set".into())) };
        Ok(TensorType { shape: x.shape.clone(), dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        Ok(converted(args[0].tensor(), dtype).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![map_axes(args)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        let shape = b.shape(args[0].tensor()).to_vec();
        Ok(b.map(&shape, |b, i| b.read(args[0].tensor(), i.iter().cloned()).cast(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        pairs().map(|(from, to)| sample([("dtype", to.into())], vec![t(&[2, 3], from)])).collect()
    }
}

impl Op for CastLike {
    op_head!(
        "cast_like",
        "data as elements of the type that dtype_like has, converted as by cast.",
        ["data", "dtype_like"],
        [],
        Elementwise
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, like) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "dtype_like")?);
        Ok(TensorType { shape: x.shape.clone(), dtype: like.dtype }.into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(converted(args[0].tensor(), args[1].tensor().dtype()).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let like = args[1].as_tensor().map_or(0, TensorType::rank);
        AxisMap(vec![map_axes(args), vec![AxisRole::Opaque; like]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, &args[..1], out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, dtype) = (args[0].tensor(), b.dtype(args[1].tensor()));
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| b.read(x, i.iter().cloned()).cast(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        pairs().map(|(from, to)| sample([], vec![t(&[2, 3], from), t(&[4], to)])).collect()
    }
}

impl Op for Reinterpret {
    op_head!(
        "reinterpret",
        "The bits of data as elements of dtype. C1: both types have the same width.",
        ["data"],
        [field("dtype", AttrKind::DType, AttrDefault::Required)],
        Elementwise
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let Some(dtype) = attrs.opt_dtype("dtype") else { return Err(OpError("`dtype` is not set".into())) };
        op_ensure!(dtype.bits() == x.dtype.bits(), "C1: `data` is {x}, and {dtype} has another width");
        Ok(TensorType { shape: x.shape.clone(), dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        Ok(args[0].tensor().reinterpreted(dtype).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![map_axes(args)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| b.read(x, i.iter().cloned()).bits(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        [
            (DType::I8, DType::U8),
            (DType::U32, DType::I32),
            (DType::I64, DType::U64),
            (DType::F32, DType::F32),
            (DType::F32, DType::I32),
            (DType::U16, DType::F16),
            (DType::BF16, DType::I16),
            (DType::I64, DType::F64),
        ]
        .map(|(from, to)| sample([("dtype", to.into())], vec![t(&[2, 3], from)]))
        .into()
    }
}

/// The bounds of `clip` as elements of an integer type: truncated, and no further out than the type reaches.
fn integer_bounds(attrs: &Attrs, dtype: DType) -> (i128, i128) {
    let (least, greatest) = dtype.int_range().expect("an integer type");
    let bound = |name: &str| (attrs.float(name) as i128).clamp(least, greatest);
    (bound("a_min"), bound("a_max"))
}

impl Op for Clip {
    op_head!(
        "clip",
        "max(min(data, a_max), a_min), the bounds converted to data's type.",
        ["data"],
        [
            field("a_min", AttrKind::Float, AttrDefault::Required),
            field("a_max", AttrKind::Float, AttrDefault::Required)
        ],
        Elementwise
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype != DType::Bool, "`data` is {x}, but the operator takes numbers only");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let out = if x.dtype().is_float() {
            let (lo, hi) = (attrs.float("a_min"), attrs.float("a_max"));
            let values = Floats::of(x);
            Tensor::from_f64_fn(x.dtype(), x.shape(), |i| {
                let below = if values.at(i) < hi { values.at(i) } else { hi };
                if below > lo { below } else { lo }
            })
        } else {
            let (lo, hi) = integer_bounds(attrs, x.dtype());
            let values = Integers::of(x);
            Tensor::from_i64_fn(x.dtype(), x.shape(), |i| values.at(i).min(hi).max(lo) as i64)
        };
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![map_axes(args)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(2.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let dtype = b.dtype(x);
        let (lo, hi) = if dtype.is_float() {
            (Scalar::float(attrs.float("a_min"), dtype), Scalar::float(attrs.float("a_max"), dtype))
        } else {
            let (lo, hi) = integer_bounds(attrs, dtype);
            (Scalar::int(lo as i64, dtype), Scalar::int(hi as i64, dtype))
        };
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| b.read(x, i.iter().cloned()).min(hi).max(lo)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |lo: f64, hi: f64, d| sample([("a_min", lo.into()), ("a_max", hi.into())], vec![t(&[2, 3], d)]);
        vec![
            call(0.0, 6.0, DType::F32),
            call(-1.0, 1.5, DType::F16),
            call(-128.0, 127.0, DType::I32),
            call(0.0, 255.0, DType::I8),
            call(2.0, 1e30, DType::U64),
        ]
    }
}
