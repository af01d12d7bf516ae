//! Selection by a condition.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{
            broadcast_axes, broadcast_extents, broadcast_read, broadcast_shapes, broadcast_sources, op_head, sample, t,
            tensor_arg, work_per_element,
        },
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Where];

/// `where`.
#[derive(Debug)]
struct Where;

impl Op for Where {
    op_head!(
        "where",
        "x where condition is not zero, else y; all three broadcast. C1: x and y have one element type.",
        ["condition", "x", "y"],
        [],
        Broadcast
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (c, x, y) = (tensor_arg(args, 0, "condition")?, tensor_arg(args, 1, "x")?, tensor_arg(args, 2, "y")?);
        op_ensure!(x.dtype == y.dtype, "C1: `x` is {x} and `y` is {y}: their element types should be equal");
        let shape = broadcast_shapes(&c.shape, &broadcast_shapes(&x.shape, &y.shape)?)?;
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (c, x, y) = (args[0].tensor(), args[1].tensor(), args[2].tensor());
        let shape = broadcast_extents(&[c.shape(), x.shape(), y.shape()])?;
        let sources = [c, x, y].map(|t| broadcast_sources(t.shape(), &shape));
        let holds: Vec<bool> = match c.dtype().is_float() {
            true => c.to_f64_vec().into_iter().map(|v| v != 0.0).collect(),
            false => c.to_i64_vec().into_iter().map(|v| v != 0).collect(),
        };
        let mut out = y.pick(&shape, |i| Some(sources[2].at(i)));
        let chosen = x.pick(&shape, |i| Some(sources[1].at(i)));
        let size = x.dtype().bytes();
        for (i, (to, from)) in out.bytes_mut().chunks_exact_mut(size).zip(chosen.bytes().chunks_exact(size)).enumerate()
        {
            if holds[sources[0].at(i)] {
                to.copy_from_slice(from);
            }
        }
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        broadcast_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [c, x, y] = [0, 1, 2].map(|k| args[k].tensor());
        let rank = [c, x, y].map(|t| b.shape(t).len()).into_iter().max().unwrap_or(0);
        let mut shape = vec![1; rank];
        for id in [c, x, y] {
            let s = b.shape(id);
            for (axis, &n) in s.iter().enumerate().filter(|(_, n)| **n != 1) {
                shape[axis + rank - s.len()] = n;
            }
        }
        let out = b.map(&shape, |b, i| {
            let cond = broadcast_read(b, c, i);
            let zero = Scalar::int(0, cond.dtype());
            let cond = if cond.dtype() == DType::Bool { cond } else { Scalar::binary(BinOp::Ne, cond, zero) };
            Scalar::select(cond, broadcast_read(b, x, i), broadcast_read(b, y, i))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 3], DType::Bool), t(&[2, 3], DType::F32), t(&[2, 3], DType::F32)]),
            sample([], vec![t(&[2, 1], DType::Bool), t(&[], DType::I64), t(&[4, 1, 3], DType::I64)]),
            sample([], vec![t(&[3], DType::I8), t(&[2, 3], DType::F16), t(&[1], DType::F16)]),
            sample([], vec![t(&[3], DType::F32), t(&[3], DType::U8), t(&[3], DType::U8)]),
        ]
    }
}
