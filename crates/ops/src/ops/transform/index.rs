//! Elements chosen by index tensors.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{axis_of, bytes, field, lowered_shapes, may_equal, op_head, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Take, &Gather, &GatherNd];

/// Work of an operator that reads indices and as many elements as it writes.
fn indexed_work(indices: &Type, out: &Type) -> Work {
    Work { flops: 0.0, bytes_read: bytes(indices) + bytes(out), bytes_written: bytes(out) }
}

/// What becomes of an index that lies outside an axis.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Mode {
    /// It becomes the nearest one inside.
    Clip,
    /// It counts modulo the extent.
    Wrap,
    /// It is not allowed; generated code stays inside.
    Fast,
}

impl Mode {
    fn of(attrs: &Attrs) -> Mode {
        match attrs.str("mode") {
            "wrap" => Mode::Wrap,
            "fast" => Mode::Fast,
            _ => Mode::Clip,
        }
    }

    fn resolve(self, index: i64, extent: usize) -> Result<usize, OpError> {
        let n = extent as i64;
        op_ensure!(n > 0, "there is nothing to take: the axis has no elements");
        Ok(match self {
            Mode::Clip => index.clamp(0, n - 1),
            Mode::Wrap => index.rem_euclid(n),
            Mode::Fast => {
                op_ensure!((0..n).contains(&index), "index {index} lies outside {n} elements");
                index
            }
        } as usize)
    }

    fn lower(self, index: Scalar, extent: i64) -> Scalar {
        match self {
            Mode::Clip | Mode::Fast => nearest(index, extent),
            Mode::Wrap => Scalar::binary(BinOp::FloorMod, index, Scalar::index(extent)),
        }
    }
}

/// The nearest index inside an extent: compiled code checks none, and may not read beyond.
pub(super) fn nearest(index: Scalar, extent: i64) -> Scalar {
    index.min(Scalar::index(extent - 1)).max(Scalar::index(0))
}

/// `take`.
#[derive(Debug)]
struct Take;

impl Take {
    /// The axis and the number of batch axes; `None` where elements of the flattened data are taken.
    fn places(attrs: &Attrs, x: usize, indices: usize) -> Result<Option<(usize, usize)>, OpError> {
        let Some(axis) = attrs.opt_int("axis") else { return Ok(None) };
        let axis = axis_of(axis, x)?;
        let given = attrs.int("batch_dims");
        let batch = if given < 0 { given + indices as i64 } else { given };
        op_ensure!(
            0 <= batch && batch <= indices as i64 && batch <= axis as i64,
            "C2: `batch_dims` is {given}, but should be no more than the axis, {axis}, and the axes of `indices`, {indices}"
        );
        Ok(Some((axis, batch as usize)))
    }
}

impl Op for Take {
    op_head!(
        "take",
        "Slices of data along axis at indices: out[b.., p.., i.., q..] = data[b.., p.., indices[b.., i..], q..] with batch_dims
        axes b; without axis, elements of the flattened data. Indices outside are clamped (mode clip), count modulo the extent
        (wrap), or are not allowed (fast).
        C1: indices are integers. C2: batch_dims is no more than axis. C3: batch extents are equal.",
        ["data", "indices"],
        [
            field("batch_dims", AttrKind::Int, AttrDefault::Int(0)),
            field("axis", AttrKind::Int, AttrDefault::None),
            field("mode", AttrKind::OneOf(&["clip", "wrap", "fast"]), AttrDefault::Str("clip"))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, indices) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "indices")?);
        op_ensure!(indices.dtype.is_int(), "C1: `indices` is {indices}, but should hold integers");
        let Some((axis, batch)) = Take::places(attrs, x.rank(), indices.rank())? else {
            return Ok(TensorType { shape: indices.shape.clone(), dtype: x.dtype }.into());
        };
        op_ensure!(
            (0..batch).all(|k| may_equal(x.shape[k], indices.shape[k])),
            "C3: `data` is {x} and `indices` {indices}, whose first {batch} extents should be equal"
        );
        let shape = [&x.shape[..axis], &indices.shape[batch..], &x.shape[axis + 1..]].concat();
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let mode = Mode::of(attrs);
        let shape = &value_shapes(self, attrs, args)?[0];
        let resolved = |extent: usize| -> Result<Vec<usize>, OpError> {
            indices.to_i64_vec().into_iter().map(|i| mode.resolve(i, extent)).collect()
        };
        let Some((axis, batch)) = Take::places(attrs, x.shape().len(), indices.shape().len())? else {
            let at = resolved(x.len())?;
            return Ok(x.pick(shape, |i| Some(at[i])).into());
        };
        let at = resolved(x.shape()[axis])?;
        let product = |s: &[usize]| s.iter().product::<usize>();
        // The result's axes in four runs: batch, before the axis, indices, after the axis.
        let (inner, count) = (product(&x.shape()[axis + 1..]), product(&indices.shape()[batch..]));
        let middle = product(&x.shape()[batch..axis]);
        let extent = x.shape()[axis];
        let out = x.pick(shape, |i| {
            let (q, i) = (i % inner, i / inner);
            let (k, i) = (i % count, i / count);
            let (p, b) = (i % middle, i / middle);
            Some(((b * middle + p) * extent + at[b * count + k]) * inner + q)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = [0, 1].map(|k| args[k].as_tensor().map_or(0, TensorType::rank));
        match Take::places(attrs, ranks[0], ranks[1]) {
            Ok(Some((axis, batch))) => {
                let data = (0..ranks[0]).map(|k| match k {
                    _ if k < axis => AxisRole::Maps(k),
                    _ if k == axis => AxisRole::Opaque,
                    _ => AxisRole::Maps(k - 1 + ranks[1] - batch),
                });
                let indices = (0..ranks[1]).map(|k| AxisRole::Maps(if k < batch { k } else { k - batch + axis }));
                AxisMap(vec![data.collect(), indices.collect()])
            }
            _ => AxisMap(vec![vec![AxisRole::Opaque; ranks[0]], (0..ranks[1]).map(AxisRole::Maps).collect()]),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        indexed_work(&args[1], out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let mode = Mode::of(attrs);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let from = b.shape(x).to_vec();
        let n = b.shape(indices).len();
        let Some((axis, batch)) = Take::places(attrs, from.len(), n)? else {
            let count: i64 = from.iter().product();
            let out = b.map(&shape, |b, i| {
                let at = mode.lower(b.read(indices, i.iter().cloned()).cast(DType::I64), count);
                b.read(x, super::shape::reshape_index(&from, &[count], &[at], b.is_for_all_sizes()))
            });
            return Ok(out.into());
        };
        let out = b.map(&shape, |b, i| {
            let (head, rest) = i.split_at(axis);
            let (chosen, tail) = rest.split_at(n - batch);
            let at = b.read(indices, head[..batch].iter().chain(chosen).cloned()).cast(DType::I64);
            let at = mode.lower(at, from[axis]);
            b.read(x, head.iter().chain([&at]).chain(tail).cloned())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let (f, i) = (|s: &[i64]| t(s, DType::F32), |s: &[i64]| t(s, DType::I32));
        vec![
            sample([], vec![f(&[2, 4]), i(&[3])]),
            sample([("axis", 0.into())], vec![f(&[4, 3]), i(&[2, 3])]),
            sample([("axis", (-1).into()), ("mode", "wrap".into())], vec![f(&[2, 5]), t(&[3], DType::I64)]),
            sample([("axis", 1.into()), ("mode", "fast".into())], vec![f(&[2, 4, 2]), i(&[3])]),
            sample([("axis", 0.into())], vec![t(&[4, 3], DType::I8), t(&[], DType::U8)]),
            sample([("axis", 1.into()), ("batch_dims", 1.into())], vec![f(&[2, 4, 3]), i(&[2, 5])]),
            sample([("axis", 2.into()), ("batch_dims", 1.into())], vec![f(&[2, 3, 4]), i(&[2, 5])]),
        ]
    }
}

/// `gather`.
#[derive(Debug)]
struct Gather;

impl Gather {
    fn axis(attrs: &Attrs, rank: usize) -> Result<usize, OpError> {
        axis_of(attrs.opt_int("axis").ok_or_else(|| OpError("C3: `axis` is not set".into()))?, rank)
    }
}

impl Op for Gather {
    op_head!(
        "gather",
        "out[i] = data[i with indices[i] at axis]; indices outside are not allowed. C1: data and indices have as many axes,
        with equal extents except along axis. C2: indices are integers. C3: axis is set.",
        ["data", "indices"],
        [field("axis", AttrKind::Int, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, indices) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "indices")?);
        let axis = Gather::axis(attrs, x.rank())?;
        op_ensure!(indices.dtype.is_int(), "C2: `indices` is {indices}, but should hold integers");
        op_ensure!(
            x.rank() == indices.rank() && (0..x.rank()).all(|k| k == axis || may_equal(x.shape[k], indices.shape[k])),
            "C1: `data` is {x} and `indices` {indices}, which should have equal extents except at axis {axis}"
        );
        Ok(TensorType { shape: indices.shape.clone(), dtype: x.dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let axis = Gather::axis(attrs, x.shape().len())?;
        let at = indices
            .to_i64_vec()
            .into_iter()
            .map(|i| Mode::Fast.resolve(i, x.shape()[axis]))
            .collect::<Result<Vec<usize>, OpError>>()?;
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let (n, m) = (x.shape()[axis], indices.shape()[axis]);
        Ok(x.pick(indices.shape(), |i| Some((i / inner / m * n + at[i]) * inner + i % inner)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let axis = Gather::axis(attrs, rank).ok();
        let data = (0..rank).map(|k| if Some(k) == axis { AxisRole::Opaque } else { AxisRole::Maps(k) });
        AxisMap(vec![data.collect(), (0..rank).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        indexed_work(&args[1], out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let shape = b.shape(indices).to_vec();
        let axis = Gather::axis(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            index[axis] = nearest(b.read(indices, i.iter().cloned()).cast(DType::I64), b.shape(x)[axis]);
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([("axis", 0.into())], vec![t(&[4, 2], DType::F32), t(&[3, 2], DType::I32)]),
            sample([("axis", (-1).into())], vec![t(&[2, 4], DType::I8), t(&[2, 6], DType::I64)]),
            sample([("axis", 1.into())], vec![t(&[2, 4, 2], DType::F32), t(&[2, 1, 2], DType::I32)]),
        ]
    }
}

/// `gather_nd`.
#[derive(Debug)]
struct GatherNd;

impl GatherNd {
    /// The number of axes that index tuples address, and of batch axes.
    fn places(attrs: &Attrs, x: &TensorType, indices: &TensorType) -> Result<(usize, usize), OpError> {
        let batch = attrs.int("batch_dims");
        let Some(Dim::Known(m)) = indices.shape.first().copied() else {
            return Err(OpError(format!("C1: `indices` is {indices}, whose first extent should be known")));
        };
        op_ensure!(
            m >= 0 && batch >= 0 && m + batch <= x.rank() as i64 && batch < indices.rank() as i64,
            "C2: `indices` is {indices} with {batch} batch axes, which addresses more axes than `data`, {x}, has"
        );
        Ok((m as usize, batch as usize))
    }
}

impl Op for GatherNd {
    op_head!(
        "gather_nd",
        "out[b.., y.., z..] = data[b.., indices[0, b.., y..], …, indices[M-1, b.., y..], z..] with batch_dims axes b; indices
        outside are not allowed. C1: M, the first extent of indices, is known. C2: data has M + batch_dims axes or more.
        C3: batch extents are equal. C4: indices are integers.",
        ["data", "indices"],
        [
            field("batch_dims", AttrKind::Int, AttrDefault::Int(0)),
            field("index_rank", AttrKind::Int, AttrDefault::None)
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, indices) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "indices")?);
        let (m, batch) = GatherNd::places(attrs, x, indices)?;
        op_ensure!(indices.dtype.is_int(), "C4: `indices` is {indices}, but should hold integers");
        op_ensure!(
            (0..batch).all(|k| may_equal(x.shape[k], indices.shape[k + 1])),
            "C3: `data` is {x} and `indices` {indices}, whose {batch} batch extents should be equal"
        );
        Ok(TensorType::of([&indices.shape[1..], &x.shape[m + batch..]].concat(), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let shape = &value_shapes(self, attrs, args)?[0];
        let (m, batch) = (indices.shape()[0], attrs.int("batch_dims") as usize);
        let strides = row_major_strides(x.shape());
        let inner: usize = x.shape()[m + batch..].iter().product();
        let places: usize = indices.shape()[1..].iter().product();
        let per_batch: usize = indices.shape()[1 + batch..].iter().product();
        let block: usize = x.shape()[batch..].iter().product();
        let values = indices.to_i64_vec();
        let starts = (0..places)
            .map(|p| {
                (0..m).try_fold(p / per_batch.max(1) * block, |sum, k| {
                    Ok(sum + Mode::Fast.resolve(values[k * places + p], x.shape()[batch + k])? * strides[batch + k])
                })
            })
            .collect::<Result<Vec<usize>, OpError>>()?;
        Ok(x.pick(shape, |i| Some(starts[i / inner] + i % inner)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let (Some(x), Some(indices)) = (args[0].as_tensor(), args[1].as_tensor()) else {
            return AxisMap::opaque([0, 0]);
        };
        let Ok((m, batch)) = GatherNd::places(attrs, x, indices) else {
            return AxisMap::opaque([x.rank(), indices.rank()]);
        };
        let data = (0..x.rank()).map(|k| match k {
            _ if k < batch => AxisRole::Maps(k),
            _ if k < batch + m => AxisRole::Opaque,
            _ => AxisRole::Maps(k - batch - m + indices.rank() - 1),
        });
        let places = (0..indices.rank()).map(|k| if k == 0 { AxisRole::Opaque } else { AxisRole::Maps(k - 1) });
        AxisMap(vec![data.collect(), places.collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        indexed_work(&args[1], out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, indices) = (args[0].tensor(), args[1].tensor());
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let n = b.shape(indices).len() - 1;
        let (m, batch) = (b.shape(indices)[0], attrs.int("batch_dims") as usize);
        let out = b.map(&shape, |b, i| {
            let mut index = i[..batch].to_vec();
            for k in 0..m {
                let at = [&[Scalar::index(k)], &i[..n]].concat();
                index.push(nearest(b.read(indices, at).cast(DType::I64), b.shape(x)[batch + k as usize]));
            }
            index.extend(i[n..].iter().cloned());
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let batch = |n: i64| [("batch_dims", n.into())];
        vec![
            sample([], vec![t(&[4, 4], DType::F32), t(&[2, 3], DType::I32)]),
            sample([], vec![t(&[4, 3, 2], DType::F32), t(&[1, 5], DType::I64)]),
            sample(batch(1), vec![t(&[2, 4, 3], DType::I8), t(&[1, 2], DType::I32)]),
            sample(batch(1), vec![t(&[2, 4, 4, 2], DType::F32), t(&[2, 2, 3], DType::I32)]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn modes() {
        let at = |m: Mode, i: i64| m.resolve(i, 4).ok();
        assert_eq!([at(Mode::Clip, -1), at(Mode::Clip, 9), at(Mode::Clip, 2)], [Some(0), Some(3), Some(2)]);
        assert_eq!([at(Mode::Wrap, -1), at(Mode::Wrap, 9), at(Mode::Wrap, 2)], [Some(3), Some(1), Some(2)]);
        assert_eq!([at(Mode::Fast, -1), at(Mode::Fast, 9), at(Mode::Fast, 2)], [None, None, Some(2)]);
    }

    #[test]
    fn taken_rows() {
        let x = Tensor::from_slice(&[2, 2], &[1i8, 2, 3, 4]);
        let attrs = crate::ops::make_attrs(crate::ops::op("take"), &[("axis".into(), 0.into())]).expect("legal");
        let y = Take.eval(&attrs, &[x.into(), Tensor::from_slice(&[1], &[1i32]).into()]).expect("inside");
        assert_eq!(y.tensor(), &Tensor::from_slice(&[1, 2], &[3i8, 4]));
    }
}
