//! Parts of tensors.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{axes_of, axis_of, field, ints_attr, op_head, sample, signed_strides, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&StridedSlice, &SliceLike];

/// What is kept of one axis.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) begin: i64,
    pub(super) len: i64,
    pub(super) step: i64,
}

impl Cut {
    /// All of an axis.
    fn whole(extent: i64) -> Cut {
        Cut { begin: 0, len: extent, step: 1 }
    }

    /// From `begin` to before `end` in steps, both counted from the end of the axis where negative, and clamped to it.
    pub(super) fn new(begin: i64, end: i64, step: i64, extent: i64) -> Result<Cut, OpError> {
        op_ensure!(step != 0, "C2: a stride is 0");
        let (least, most) = if step < 0 { (-1, extent - 1) } else { (0, extent) };
        let place = |at: i64| (if at < 0 { at.saturating_add(extent) } else { at }).clamp(least, most.max(least));
        let (begin, end) = (place(begin), place(end));
        let span = if step < 0 { begin - end } else { end - begin };
        op_ensure!(span >= 0, "C3: the slice ends before it begins, at {begin} of {extent} elements");
        Ok(Cut { begin, len: span / step.saturating_abs() + (span % step.saturating_abs() != 0) as i64, step })
    }
}

/// `strided_slice`.
#[derive(Debug)]
struct StridedSlice;

impl StridedSlice {
    /// What is kept of each axis; `None` where the axis' extent is not known and it is not kept whole.
    fn cuts(attrs: &Attrs, shape: &[Dim]) -> Result<Vec<(Dim, Option<Cut>)>, OpError> {
        let rank = shape.len();
        let (begin, end) = (ints_attr(attrs, "begin")?, ints_attr(attrs, "end")?);
        let mut strides = ints_attr(attrs, "strides")?;
        let by_size = attrs.str("slice_mode") == "size";
        let axes = match attrs.get("axes") {
            Some(crate::ir::AttrValue::None) | None => {
                op_ensure!(
                    begin.len() <= rank && end.len() <= rank && strides.len() <= rank,
                    "C1: `begin`, `end` or `strides` speak of more axes than the {rank} of `data`"
                );
                None
            }
            Some(_) => {
                let axes = axes_of(&ints_attr(attrs, "axes")?, rank)?;
                if strides.is_empty() {
                    strides = vec![1; axes.len()];
                }
                op_ensure!(
                    begin.len() == axes.len() && end.len() == axes.len() && (by_size || strides.len() == axes.len()),
                    "C1: `axes`, `begin`, `end` and `strides` should be equally long"
                );
                Some(axes)
            }
        };
        let mut cuts = Vec::with_capacity(rank);
        for (axis, &dim) in shape.iter().enumerate() {
            let at = match &axes {
                None => Some(axis),
                Some(axes) => axes.iter().position(|&a| a == axis),
            };
            let given = |list: &[i64]| at.and_then(|at| list.get(at).copied());
            let step = if by_size { 1 } else { given(&strides).unwrap_or(1) };
            op_ensure!(step != 0, "C2: the stride of axis {axis} is 0");
            let from = given(&begin).unwrap_or(if step < 0 { i64::MAX } else { 0 });
            let to = match given(&end) {
                None => {
                    if step < 0 {
                        0
                    } else {
                        i64::MAX
                    }
                }
                Some(size) if by_size => {
                    if size < 0 {
                        i64::MAX
                    } else {
                        from.saturating_add(size)
                    }
                }
                Some(to) => to,
            };
            cuts.push(match dim {
                Dim::Known(n) => {
                    let cut = Cut::new(from, to, step, n)?;
                    (Dim::Known(cut.len), Some(cut))
                }
                // An axis that no list speaks of stays what it is.
                _ if at.is_none() || (given(&begin), given(&end), step) == (None, None, 1) => (dim, None),
                _ => (Dim::Any, None),
            });
        }
        Ok(cuts)
    }

    fn known(attrs: &Attrs, shape: &[i64]) -> Result<Vec<Cut>, OpError> {
        let dims: Vec<Dim> = shape.iter().map(|&n| Dim::Known(n)).collect();
        Ok(StridedSlice::cuts(attrs, &dims)?.into_iter().map(|(_, cut)| cut.expect("extents are known")).collect())
    }
}

impl Op for StridedSlice {
    op_head!(
        "strided_slice",
        "Of each axis the elements from begin to before end, in steps of strides. Negative places count from the end of the
        axis; places beyond it are clamped. With slice_mode `size`, end holds lengths (-1: up to the end) and strides count as
        1. With axes, the lists speak of these axes, else of the first ones; other axes are kept whole.
        C1: the lists fit the axes. C2: no stride is 0. C3: no slice ends before it begins.",
        ["data"],
        [
            field("begin", AttrKind::Ints, AttrDefault::Required),
            field("end", AttrKind::Ints, AttrDefault::Required),
            field("strides", AttrKind::Ints, AttrDefault::Required),
            field("slice_mode", AttrKind::OneOf(&["end", "size"]), AttrDefault::Str("end")),
            field("axes", AttrKind::Ints, AttrDefault::None)
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let cuts = StridedSlice::cuts(attrs, &x.shape)?;
        Ok(TensorType::of(cuts.into_iter().map(|(dim, _)| dim), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let from: Vec<i64> = x.shape().iter().map(|&n| n as i64).collect();
        let (cuts, strides) = (StridedSlice::known(attrs, &from)?, signed_strides(x.shape()));
        let shape: Vec<usize> = cuts.iter().map(|c| c.len as usize).collect();
        let offset = cuts.iter().zip(&strides).map(|(c, s)| c.begin * s).sum();
        let steps: Vec<i64> = cuts.iter().zip(&strides).map(|(c, s)| c.step * s).collect();
        Ok(x.strided(&shape, offset, &steps).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let Some(x) = args[0].as_tensor() else { return AxisMap::opaque([0]) };
        let Ok(cuts) = StridedSlice::cuts(attrs, &x.shape) else { return AxisMap::opaque([x.rank()]) };
        let role = |(k, (dim, cut)): (usize, &(Dim, Option<Cut>))| match cut {
            Some(c) if x.shape[k] == *dim && *c == Cut::whole(c.len) => AxisRole::Maps(k),
            None if x.shape[k] == *dim && *dim != Dim::Any => AxisRole::Maps(k),
            _ => AxisRole::Opaque,
        };
        AxisMap(vec![cuts.iter().enumerate().map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let moved = crate::ops::util::bytes(out);
        Work { bytes_read: moved, ..work_per_element(0.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let cuts = StridedSlice::known(attrs, b.shape(x))?;
        let shape: Vec<i64> = cuts.iter().map(|c| c.len).collect();
        let out = b.map(&shape, |b, i| {
            let index = cuts.iter().zip(i).map(|(c, i)| i.clone() * c.step + c.begin);
            b.read(x, index.collect::<Vec<Scalar>>())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |begin: &[i64], end: &[i64], strides: &[i64], shape: &[i64]| {
            sample(
                [("begin", begin.into()), ("end", end.into()), ("strides", strides.into())],
                vec![t(shape, DType::F32)],
            )
        };
        let with = |mut s: Sample, name: &'static str, value: crate::ir::AttrValue| {
            s.attrs.push((name, value));
            s
        };
        vec![
            call(&[1, 1, 0], &[4, 4, 3], &[2, 1, 1], &[3, 4, 3]),
            call(&[1], &[3], &[1], &[4, 2]),
            call(&[-1, 0], &[-4, 100], &[-1, 2], &[3, 4]),
            call(&[0, 2], &[2, -1], &[1], &[2, 5]),
            with(call(&[1, 0], &[-1, 2], &[1], &[4, 3]), "slice_mode", "size".into()),
            with(call(&[1], &[3], &[1], &[2, 4, 2]), "axes", [1].into()),
            with(call(&[0, 1], &[2, 4], &[1, 2], &[2, 4, 5]), "axes", [-1, 1].into()),
        ]
    }
}

/// `slice_like`.
#[derive(Debug)]
struct SliceLike;

impl SliceLike {
    fn shape(attrs: &Attrs, x: &TensorType, like: &TensorType) -> Result<Vec<Dim>, OpError> {
        let mut axes = Vec::new();
        match attrs.get("axes") {
            Some(crate::ir::AttrValue::List(l)) if !l.is_empty() => {
                for axis in ints_attr(attrs, "axes")? {
                    let at = axis_of(axis, x.rank())?;
                    op_ensure!(at < like.rank(), "C1: `shape_like` is {like}, which lacks axis {axis}");
                    axes.push(at);
                }
            }
            _ => {
                op_ensure!(x.rank() >= like.rank(), "C1: `data` is {x} and `shape_like` {like}, which has more axes");
                axes.extend(0..like.rank());
            }
        }
        let mut shape = x.shape.to_vec();
        for axis in axes {
            if let (Dim::Known(n), Dim::Known(m)) = (shape[axis], like.shape[axis]) {
                op_ensure!(m <= n, "C2: `data` is {x} and `shape_like` {like}, which is longer at axis {axis}");
            }
            shape[axis] = like.shape[axis];
        }
        Ok(shape)
    }
}

impl Op for SliceLike {
    op_head!(
        "slice_like",
        "The first elements of data along the given axes, or along all that shape_like has, as many as shape_like has there.
        C1: both have these axes. C2: shape_like is no longer than data.",
        ["data", "shape_like"],
        [field("axes", AttrKind::Ints, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, like) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "shape_like")?);
        Ok(TensorType::of(SliceLike::shape(attrs, x, like)?, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let shape = &crate::ops::util::value_shapes(self, attrs, args)?[0];
        Ok(x.strided(shape, 0, &signed_strides(x.shape())).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let (Some(x), Some(like)) = (args[0].as_tensor(), args[1].as_tensor()) else { return AxisMap::opaque([0, 0]) };
        let shape = SliceLike::shape(attrs, x, like).unwrap_or_default();
        let kept = |k: usize| shape.get(k) == Some(&x.shape[k]) && x.shape[k].known().is_some();
        let data = (0..x.rank()).map(|k| if kept(k) { AxisRole::Maps(k) } else { AxisRole::Opaque });
        AxisMap(vec![data.collect(), vec![AxisRole::Opaque; like.rank()]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let moved = crate::ops::util::bytes(out);
        Work { bytes_read: moved, ..work_per_element(0.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = crate::ops::util::lowered_shapes(self, attrs, args, b)?.remove(0);
        Ok(b.map(&shape, |b, i| b.read(args[0].tensor(), i.iter().cloned())).into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[3, 4], DType::F32), t(&[2, 3], DType::F32)]),
            sample([("axes", [1].into())], vec![t(&[3, 4], DType::I8), t(&[5, 2], DType::F32)]),
            sample([("axes", [-1, 0].into())], vec![t(&[3, 2, 4], DType::F32), t(&[1, 9, 3], DType::I32)]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_clamp() {
        assert_eq!(Cut::new(0, i64::MAX, 1, 5), Ok(Cut { begin: 0, len: 5, step: 1 }));
        assert_eq!(Cut::new(i64::MAX, 0, -1, 5), Ok(Cut { begin: 4, len: 4, step: -1 }));
        assert_eq!(Cut::new(-1, -10, -2, 5), Ok(Cut { begin: 4, len: 3, step: -2 }));
        assert!(Cut::new(3, 1, 1, 5).is_err());
        assert!(Cut::new(0, 1, 0, 5).is_err());
    }
}
