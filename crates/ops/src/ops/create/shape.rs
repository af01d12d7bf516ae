//! Shapes as values.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work,
        util::{axis_of, bytes, field, op_head, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&ShapeOf, &NdarraySize, &ArangeLike];

/// `shape_of`.
#[derive(Debug)]
struct ShapeOf;

fn dtype_attr(attrs: &Attrs) -> Result<DType, OpError> {
    attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))
}

fn extents(t: &Tensor) -> Vec<i64> {
    t.shape().iter().map(|&n| n as i64).collect()
}

/// Extents as a tensor; 1 without axes where there are none.
fn extents_of(dtype: DType, s: &[i64]) -> Tensor {
    let shape = if s.is_empty() { vec![] } else { vec![s.len()] };
    Tensor::from_i64_fn(dtype, &shape, |i| s.get(i).copied().unwrap_or(1))
}

/// The number of elements, as a tensor without axes.
fn count_of(dtype: DType, s: &[i64]) -> Tensor {
    Tensor::from_i64_fn(dtype, &[], |_| s.iter().fold(1i64, |n, &d| n.saturating_mul(d)))
}

impl Op for ShapeOf {
    op_head!(
        "shape_of",
        "The extents of data as a tensor of dtype with one axis; of a tensor without axes, 1 without axes.",
        ["data"],
        [field("dtype", AttrKind::DType, AttrDefault::None)],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let shape = if x.rank() == 0 { vec![] } else { vec![x.rank() as i64] };
        Ok(Type::tensor(&shape, dtype_attr(attrs)?))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(extents_of(dtype_attr(attrs)?, &extents(args[0].tensor())).into())
    }
    fn of_extents(&self, attrs: &Attrs, extents: &[Vec<i64>]) -> Option<Tensor> {
        Some(extents_of(attrs.opt_dtype("dtype")?, extents.first()?))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        Work { flops: 0.0, bytes_read: 0.0, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let s = b.shape(args[0].tensor()).to_vec();
        let dtype = dtype_attr(attrs)?;
        let shape = if s.is_empty() { vec![] } else { vec![s.len() as i64] };
        let out = b.map(&shape, |_, i| {
            let Some(at) = i.first() else { return Scalar::int(1, dtype) };
            let last = Scalar::int(s[s.len() - 1], dtype);
            (0..s.len() - 1).rev().fold(last, |rest, k| {
                Scalar::select(at.clone().lt(Scalar::index(k as i64 + 1)), Scalar::int(s[k], dtype), rest)
            })
        });
        Ok(out.into())
    }
    fn reads_types_only(&self) -> bool {
        true
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: &[i64], d: DType| sample([("dtype", d.into())], vec![t(s, DType::F32)]);
        vec![call(&[2, 3, 4], DType::I32), call(&[5], DType::I64), call(&[], DType::I32)]
    }
}

/// `ndarray_size`.
#[derive(Debug)]
struct NdarraySize;

impl Op for NdarraySize {
    op_head!(
        "ndarray_size",
        "The number of elements of data, as a tensor of dtype without axes.",
        ["data"],
        [field("dtype", AttrKind::DType, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        tensor_arg(args, 0, "data")?;
        Ok(Type::tensor(&[], dtype_attr(attrs)?))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(count_of(dtype_attr(attrs)?, &extents(args[0].tensor())).into())
    }
    fn of_extents(&self, attrs: &Attrs, extents: &[Vec<i64>]) -> Option<Tensor> {
        Some(count_of(attrs.opt_dtype("dtype")?, extents.first()?))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        Work { flops: 0.0, bytes_read: 0.0, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (n, dtype) = (b.shape(args[0].tensor()).iter().product(), dtype_attr(attrs)?);
        Ok(b.map(&[], |_, _| Scalar::int(n, dtype)).into())
    }
    fn reads_types_only(&self) -> bool {
        true
    }
    fn samples(&self) -> Vec<Sample> {
        vec![sample([("dtype", DType::I32.into())], vec![t(&[2, 3], DType::F32)])]
    }
}

/// `arange_like`.
#[derive(Debug)]
struct ArangeLike;

impl Op for ArangeLike {
    op_head!(
        "arange_like",
        "out[i] = i, as many as data has along an axis, as a tensor of dtype with one axis. Unlike `arange` of an extent, it reads no value
        that decides extents.
        C1: axis is one of data's, from the end where it is negative.",
        ["data"],
        [field("axis", AttrKind::Int, AttrDefault::Int(0)), field("dtype", AttrKind::DType, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let axis = axis_of(attrs.int("axis"), x.rank()).map_err(|e| OpError(format!("C1: {e}")))?;
        Ok(TensorType::of([x.shape[axis]], dtype_attr(attrs)?).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let s = args[0].tensor().shape();
        let n = s[axis_of(attrs.int("axis"), s.len())?];
        Ok(Tensor::from_i64_fn(dtype_attr(attrs)?, &[n], |i| i as i64).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        Work { flops: 0.0, bytes_read: 0.0, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let s = b.shape(args[0].tensor());
        let n = s[axis_of(attrs.int("axis"), s.len())?];
        let dtype = dtype_attr(attrs)?;
        Ok(b.map(&[n], |_, i| i[0].clone().cast(dtype)).into())
    }
    fn reads_types_only(&self) -> bool {
        true
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: &[i64], axis: i64, d: DType| {
            sample([("axis", axis.into()), ("dtype", d.into())], vec![t(s, DType::F32)])
        };
        vec![call(&[2, 7], 1, DType::I64), call(&[5, 2, 3], -3, DType::I32), call(&[19], 0, DType::F32)]
    }
}
