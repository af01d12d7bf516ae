//! Sums that undo broadcasting.

use super::fold::reduce;
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, StaticCall, Work, op, op_ensure,
        util::{
            broadcast_shapes, broadcast_sources, bytes, elements, extents, field, may_equal, op_head, sample, show, t,
            tensor_arg,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&CollapseSumLike, &CollapseSumTo];

/// Refuses shapes of which the second does not broadcast to the first.
fn check(x: &TensorType, to: &[Dim]) -> Result<(), OpError> {
    let all = broadcast_shapes(&x.shape, to)?;
    op_ensure!(
        all.len() == x.rank() && all.iter().zip(x.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
        "C1: a tensor of shape {} does not broadcast to `data`, {x}",
        show(to)
    );
    Ok(())
}

fn collapse(x: &Tensor, shape: &[usize]) -> Result<Tensor, OpError> {
    let fits = shape.len() <= x.shape().len()
        && x.shape().iter().rev().zip(shape.iter().rev()).all(|(n, m)| m == n || *m == 1);
    op_ensure!(fits, "C1: a tensor of shape {shape:?} does not broadcast to `data`, {x:?}");
    let to = broadcast_sources(shape, x.shape());
    let count = shape.iter().product();
    if x.dtype().is_float() {
        let mut sums = vec![0.0; count];
        x.to_f64_vec().into_iter().enumerate().for_each(|(i, v)| sums[to.at(i)] += v);
        return Ok(Tensor::from_f64_fn(x.dtype(), shape, |i| sums[i]));
    }
    let mut sums = vec![0i64; count];
    x.to_i64_vec().into_iter().enumerate().for_each(|(i, v)| sums[to.at(i)] = sums[to.at(i)].wrapping_add(v));
    Ok(Tensor::from_i64_fn(x.dtype(), shape, |i| sums[i]))
}

fn lower_collapse(x: &Operand, shape: &[i64], b: &mut Builder) -> Operand {
    let x = x.tensor();
    let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
    let skip = from.len() - shape.len();
    let gone: Vec<bool> = (0..from.len()).map(|k| k < skip || shape[k - skip] != from[k]).collect();
    let over: Vec<i64> = (0..from.len()).filter(|&k| gone[k]).map(|k| from[k]).collect();
    let combine = if dtype == DType::Bool { Combine::Any } else { Combine::Sum };
    let sum = reduce(b, shape, &over, combine, dtype, |b, i, r| {
        let mut inner = r.iter();
        let place = |k: usize| if gone[k] { inner.next().expect("an axis of the sum") } else { &i[k - skip] };
        b.read(x, (0..from.len()).map(place).cloned().collect::<Vec<Scalar>>())
    });
    if b.dtype(sum) == dtype {
        return sum.into();
    }
    b.map(shape, |b, i| b.read(sum, i.iter().cloned()).cast(dtype)).into()
}

/// Roles of `data`'s axes for a result of this shape.
fn data_roles(x: &Type, to: &[Dim]) -> Vec<AxisRole> {
    let Some(x) = x.as_tensor() else { return vec![] };
    let Some(skip) = x.rank().checked_sub(to.len()) else { return vec![AxisRole::Opaque; x.rank()] };
    let role = |k: usize| match (x.shape[k], k.checked_sub(skip).map(|k| to[k])) {
        (_, None) => AxisRole::Reduced,
        (Dim::Known(n), Some(Dim::Known(m))) if n == m => AxisRole::Maps(k - skip),
        (Dim::Known(_), Some(Dim::Known(_))) => AxisRole::Reduced,
        _ => AxisRole::Opaque,
    };
    (0..x.rank()).map(role).collect()
}

fn sum_work(args: &[Type], out: &Type) -> Work {
    Work { flops: elements(&args[0]), bytes_read: bytes(&args[0]), bytes_written: bytes(out) }
}

/// `collapse_sum_like`.
#[derive(Debug)]
struct CollapseSumLike;

impl Op for CollapseSumLike {
    op_head!(
        "collapse_sum_like",
        "data summed to collapse_type's shape: each element of the result is the sum of those that it would be broadcast to.
        The values of collapse_type are not read. C1: collapse_type's shape broadcasts to data's. C2: element types are equal.",
        ["data", "collapse_type"],
        [],
        Reduce
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, like) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "collapse_type")?);
        op_ensure!(x.dtype == like.dtype, "C2: `data` is {x} and `collapse_type` {like}");
        check(x, &like.shape)?;
        Ok(like.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(collapse(args[0].tensor(), args[1].tensor().shape())?.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let to = args[1].as_tensor().map_or(&[][..], |t| &t.shape);
        AxisMap(vec![data_roles(&args[0], to), vec![AxisRole::Opaque; to.len()]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        sum_work(args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = b.shape(args[1].tensor()).to_vec();
        Ok(lower_collapse(&args[0], &shape, b))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], to: &[i64], d| sample([], vec![t(x, d), t(to, d)]);
        vec![
            call(&[2, 3, 4], &[3, 4], DType::F32),
            call(&[2, 3, 4], &[1, 4], DType::I8),
            call(&[2, 3], &[], DType::F16),
            call(&[2, 3], &[2, 3], DType::F32),
            call(&[2, 3], &[2, 1], DType::Bool),
        ]
    }
}

/// `collapse_sum_to`.
#[derive(Debug)]
struct CollapseSumTo;

impl Op for CollapseSumTo {
    op_head!(
        "collapse_sum_to",
        "data summed to the extents in the attribute shape, or, where that is not set, in the argument shape: each element of
        the result is the sum of those that it would be broadcast to. C1: that shape broadcasts to data's. C2: the argument
        shape is a list of integers of known length.",
        ["data", "shape"],
        [field("shape", AttrKind::Ints, AttrDefault::None), field("dtype", AttrKind::DType, AttrDefault::None)],
        Reduce
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, to) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "shape")?);
        let rank = match to.shape[..] {
            [Dim::Known(n)] if to.dtype.is_int() && (0..=1024).contains(&n) => n as usize,
            _ => return Err(OpError(format!("C2: `shape` is {to}, but should be a list of integers of known length"))),
        };
        let shape = match attrs.opt_ints("shape") {
            Some(shape) => shape.into_iter().map(Dim::Known).collect(),
            None => vec![Dim::Any; rank],
        };
        check(x, &shape)?;
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = attrs.opt_ints("shape").unwrap_or_else(|| args[1].tensor().to_i64_vec());
        op_ensure!(shape.iter().all(|&n| n >= 0), "C1: `shape` is {shape:?}");
        Ok(collapse(args[0].tensor(), &extents(&shape))?.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let data = match attrs.opt_ints("shape") {
            Some(to) => data_roles(&args[0], &to.into_iter().map(Dim::Known).collect::<Vec<_>>()),
            _ => vec![AxisRole::Opaque; args[0].as_tensor().map_or(0, TensorType::rank)],
        };
        AxisMap(vec![data, vec![AxisRole::Opaque; args[1].as_tensor().map_or(0, TensorType::rank)]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        sum_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        match attrs.opt_ints("shape") {
            Some(shape) => Ok(lower_collapse(&args[0], &shape, b)),
            None => Err(OpError("the result's extents follow from values, not from types".into())),
        }
    }
    fn decided_by(&self, attrs: &Attrs) -> &'static [usize] {
        if attrs.opt_ints("shape").is_some() { &[] } else { &[1] }
    }
    fn to_static(&self, attrs: &Attrs, values: &[&Tensor]) -> Result<StaticCall, OpError> {
        Ok(StaticCall {
            op: op("collapse_sum_to"),
            attrs: attrs.with("shape", values[0].to_i64_vec()),
            args: vec![0, 1],
        })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], to: &[i64]| {
            sample([("shape", to.into())], vec![t(x, DType::F32), t(&[to.len() as i64], DType::I32)])
        };
        vec![
            call(&[2, 3, 4], &[3, 4]),
            call(&[2, 3, 4], &[3, 1]),
            call(&[2], &[]),
            sample([], vec![t(&[2, 3], DType::F32), t(&[0], DType::I64)]),
        ]
    }
}
