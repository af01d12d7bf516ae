//! Buffers that keep the latest inputs.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{axis_of, field, may_equal, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&FifoBuffer];

/// `nn.fifo_buffer`.
#[derive(Debug)]
struct FifoBuffer;

impl Op for FifoBuffer {
    op_head!(
        "nn.fifo_buffer",
        "buffer followed by data along axis, without as many first elements as data has: the buffer after data came in.
        C1: both have the same element type and the same extents except along axis. C2: data is no longer than buffer along
        axis.",
        ["data", "buffer"],
        [field("axis", AttrKind::Int, AttrDefault::Int(0))],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, buffer) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "buffer")?);
        let axis = axis_of(attrs.int("axis"), buffer.rank())?;
        op_ensure!(
            x.dtype == buffer.dtype
                && x.rank() == buffer.rank()
                && (0..x.rank()).all(|k| k == axis || may_equal(x.shape[k], buffer.shape[k])),
            "C1: `data` is {x} and `buffer` {buffer}"
        );
        let longer = matches!((x.shape[axis], buffer.shape[axis]), (Dim::Known(n), Dim::Known(m)) if n > m);
        op_ensure!(!longer, "C2: `data` is {x} and `buffer` {buffer}");
        Ok(buffer.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, buffer) = (args[0].tensor(), args[1].tensor());
        let shape = buffer.shape();
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let (new, all) = (x.shape()[axis], shape[axis]);
        op_ensure!(new <= all, "C2: {new} new elements do not fit a buffer of {all}");
        let width = buffer.dtype().bytes();
        let inner: usize = shape[axis + 1..].iter().product::<usize>() * width;
        let mut out = Tensor::zeros(buffer.dtype(), shape);
        if out.is_empty() {
            return Ok(out.into());
        }
        let rows = out.bytes_mut().chunks_mut(all * inner);
        for ((to, old), row) in rows.zip(buffer.bytes().chunks(all * inner)).zip(0..) {
            let (kept, latest) = to.split_at_mut((all - new) * inner);
            kept.copy_from_slice(&old[new * inner..]);
            latest.copy_from_slice(&x.bytes()[row * new * inner..][..new * inner]);
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[1].as_tensor().map_or(0, TensorType::rank);
        let axis = axis_of(attrs.int("axis"), rank).ok();
        let roles = (0..rank).map(|k| if Some(k) == axis { AxisRole::Opaque } else { AxisRole::Maps(k) });
        let roles: Vec<AxisRole> = roles.collect();
        AxisMap(vec![roles.clone(), roles])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, buffer) = (args[0].tensor(), args[1].tensor());
        let shape = b.shape(buffer).to_vec();
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let new = b.shape(x)[axis];
        let kept = shape[axis] - new;
        let out = b.map(&shape, |b, i| {
            let at = |place: Scalar| {
                let mut index = i.to_vec();
                index[axis] = place;
                index
            };
            let old = b.read(buffer, at(i[axis].clone() + new));
            let latest = b.read(x, at(i[axis].clone() - kept));
            Scalar::select(i[axis].clone().lt(Scalar::index(kept)), old, latest)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call =
            |axis: i64, x: &[i64], buffer: &[i64], d| sample([("axis", axis.into())], vec![t(x, d), t(buffer, d)]);
        vec![
            call(0, &[2], &[5], DType::F32),
            call(1, &[2, 1, 3], &[2, 4, 3], DType::I8),
            call(-1, &[2, 3], &[2, 3], DType::F32),
            call(0, &[1, 2, 1, 2, 1], &[3, 2, 1, 2, 1], DType::Bool),
        ]
    }
}
