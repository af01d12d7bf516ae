//! Elements repeated.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{
            axis_of, broadcast_read, broadcast_sources, field, ints_attr, lowered_shapes, op_head, sample, show, t,
            tensor_arg, value_shapes, work_per_element,
        },
    },
    tensor::{DType, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Repeat, &Tile, &BroadcastTo, &BroadcastToLike];

fn times(d: Dim, n: i64) -> Dim {
    d.known().and_then(|d| d.checked_mul(n)).map_or(Dim::Any, Dim::Known)
}

/// `repeat`.
#[derive(Debug)]
struct Repeat;

impl Repeat {
    fn axis(attrs: &Attrs, rank: usize) -> Result<usize, OpError> {
        axis_of(attrs.opt_int("axis").ok_or_else(|| OpError("C2: `axis` is not set".into()))?, rank)
    }
}

impl Op for Repeat {
    op_head!(
        "repeat",
        "data with each element along axis repeated. C1: repeats is positive. C2: axis is set, and one of data's.",
        ["data"],
        [field("repeats", AttrKind::Int, AttrDefault::Required), field("axis", AttrKind::Int, AttrDefault::None)],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let (axis, n) = (Repeat::axis(attrs, x.rank())?, attrs.int("repeats"));
        op_ensure!(n >= 1, "C1: `repeats` is {n}, but should be positive");
        let mut shape = x.shape.to_vec();
        shape[axis] = times(shape[axis], n);
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let axis = Repeat::axis(attrs, x.shape().len())?;
        let n = attrs.int("repeats") as usize;
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let shape = &value_shapes(self, attrs, args)?[0];
        Ok(x.pick(shape, |i| Some(i / (inner * n) * inner + i % inner)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let axis = Repeat::axis(attrs, rank).ok();
        AxisMap(vec![(0..rank).map(|k| if Some(k) == axis { AxisRole::Opaque } else { AxisRole::Maps(k) }).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let axis = Repeat::axis(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            index[axis] = i[axis].clone().floor_div(attrs.int("repeats"));
            b.read(args[0].tensor(), index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call =
            |n: i64, axis: i64, s: &[i64], d| sample([("repeats", n.into()), ("axis", axis.into())], vec![t(s, d)]);
        vec![call(2, 0, &[2, 3], DType::F32), call(3, -1, &[2, 2], DType::I8), call(2, 1, &[2, 3, 2], DType::F32)]
    }
}

/// `tile`.
#[derive(Debug)]
struct Tile;

impl Op for Tile {
    op_head!(
        "tile",
        "data repeated as a whole, reps[k] times along axis k; the shorter of shape and reps is filled up with leading 1s.
        C1: no number is negative or 0.",
        ["data"],
        [field("reps", AttrKind::Ints, AttrDefault::Required)],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let reps = ints_attr(attrs, "reps")?;
        op_ensure!(reps.iter().all(|&n| n > 0), "C1: `reps` is {reps:?}, but should hold positive numbers");
        let rank = x.rank().max(reps.len());
        let shape = (0..rank).map(|k| {
            let n = if k + reps.len() < rank { 1 } else { reps[k + reps.len() - rank] };
            times(if k + x.rank() < rank { Dim::Known(1) } else { x.shape[k + x.rank() - rank] }, n)
        });
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let shape = &value_shapes(self, attrs, args)?[0];
        let skip = shape.len() - x.shape().len();
        let (to, from) = (row_major_strides(shape), row_major_strides(x.shape()));
        let source = |i: usize| {
            x.shape().iter().enumerate().map(|(k, &n)| i / to[k + skip] % shape[k + skip] % n * from[k]).sum()
        };
        Ok(x.pick(shape, |i| Some(source(i))).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let reps = ints_attr(attrs, "reps").unwrap_or_default();
        let out = rank.max(reps.len());
        let role = |k: usize| {
            let to = k + out - rank;
            let once = to + reps.len() < out || reps[to + reps.len() - out] == 1;
            if once { AxisRole::Maps(to) } else { AxisRole::Opaque }
        };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let skip = shape.len() - from.len();
        let out = b.map(&shape, |b, i| {
            let index = from.iter().enumerate().map(|(k, &n)| match shape[k + skip] == n {
                true => i[k + skip].clone(),
                false => i[k + skip].clone().floor_mod(n),
            });
            b.read(x, index.collect::<Vec<_>>())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |reps: &[i64], s: &[i64], d| sample([("reps", reps.into())], vec![t(s, d)]);
        vec![
            call(&[2, 3], &[2, 2], DType::F32),
            call(&[2, 1, 2], &[3, 2], DType::I8),
            call(&[2], &[2, 3], DType::F32),
            call(&[1, 1], &[2, 3], DType::F32),
            call(&[2], &[], DType::F32),
        ]
    }
}

/// The roles of a tensor's axes that broadcasts to `out`.
fn broadcast_roles(x: &Type, out: Result<Type, OpError>) -> Vec<AxisRole> {
    let Some(x) = x.as_tensor() else { return vec![] };
    let Ok(Type::Tensor(out)) = out else { return vec![AxisRole::Opaque; x.rank()] };
    let skip = out.rank() - x.rank();
    (0..x.rank())
        .map(|k| match (x.shape[k], out.shape[k + skip]) {
            (Dim::Known(1), _) => AxisRole::Broadcasts(k + skip),
            (Dim::Known(n), Dim::Known(m)) if n == m => AxisRole::Maps(k + skip),
            _ => AxisRole::Opaque,
        })
        .collect()
}

/// The result of broadcasting a tensor to a shape.
fn broadcast_type(x: &TensorType, to: &[Dim]) -> Result<Type, OpError> {
    op_ensure!(x.rank() <= to.len(), "C1: `data` is {x}, which has more axes than shape {}", show(to));
    let skip = to.len() - x.rank();
    for (k, &d) in x.shape.iter().enumerate() {
        if let (Dim::Known(n), Dim::Known(m)) = (d, to[k + skip])
            && n != m
            && n != 1
        {
            op_bail!("C1: `data` is {x}, which does not broadcast to shape {}", show(to));
        }
    }
    Ok(TensorType::of(to.iter().copied(), x.dtype).into())
}

fn broadcast_value(op: &dyn Op, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
    let x = args[0].tensor();
    let shape = &value_shapes(op, attrs, args)?[0];
    let sources = broadcast_sources(x.shape(), shape);
    Ok(x.pick(shape, |i| Some(sources.at(i))).into())
}

fn lower_broadcast(op: &dyn Op, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
    let shape = lowered_shapes(op, attrs, args, b)?.remove(0);
    Ok(b.map(&shape, |b, i| broadcast_read(b, args[0].tensor(), i)).into())
}

/// `broadcast_to`.
#[derive(Debug)]
struct BroadcastTo;

impl Op for BroadcastTo {
    op_head!(
        "broadcast_to",
        "data broadcast to shape, aligned at the last axis. C1: each extent of data is 1 or the shape's.",
        ["data"],
        [field("shape", AttrKind::Ints, AttrDefault::Required), field("dtype", AttrKind::DType, AttrDefault::None)],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let shape = ints_attr(attrs, "shape")?;
        op_ensure!(shape.iter().all(|&n| n >= 0), "`shape` is {shape:?}, but should hold no negative numbers");
        broadcast_type(x, &shape.into_iter().map(Dim::Known).collect::<Vec<_>>())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        broadcast_value(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![broadcast_roles(&args[0], self.infer(attrs, args))])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        lower_broadcast(self, attrs, args, b)
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |to: &[i64], s: &[i64], d| sample([("shape", to.into())], vec![t(s, d)]);
        vec![call(&[2, 3], &[3], DType::F32), call(&[2, 4, 3], &[4, 1], DType::I8), call(&[2, 2], &[], DType::Bool)]
    }
}

/// `broadcast_to_like`.
#[derive(Debug)]
struct BroadcastToLike;

impl Op for BroadcastToLike {
    op_head!(
        "broadcast_to_like",
        "data broadcast to the shape of broadcast_type, aligned at the last axis. C1: each extent of data is 1 or the shape's.",
        ["data", "broadcast_type"],
        [],
        Broadcast
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        broadcast_type(tensor_arg(args, 0, "data")?, &tensor_arg(args, 1, "broadcast_type")?.shape)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        broadcast_value(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let like = args[1].as_tensor().map_or(0, TensorType::rank);
        AxisMap(vec![broadcast_roles(&args[0], self.infer(attrs, args)), vec![AxisRole::Opaque; like]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, &args[..1], out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        lower_broadcast(self, attrs, args, b)
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[3, 1], DType::F32), t(&[2, 3, 4], DType::I32)]),
            sample([], vec![t(&[], DType::F32), t(&[2], DType::F32)]),
        ]
    }
}
