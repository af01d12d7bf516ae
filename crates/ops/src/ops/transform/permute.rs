//! Axes in another order or direction, and layouts.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{
            axes_of, axis_of, field, ints_attr, lowered_shapes, op_head, sample, signed_strides, t, tensor_arg,
            work_per_element,
        },
    },
    tensor::{DType, IndexPart, Layout, SourceIndex, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Transpose, &LayoutTransform, &Reverse, &ReverseSequence];

/// `transpose`.
#[derive(Debug)]
struct Transpose;

impl Transpose {
    fn order(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
        match attrs.get("axes") {
            Some(crate::ir::AttrValue::None) | None => Ok((0..rank).rev().collect()),
            Some(_) => {
                let axes = ints_attr(attrs, "axes")?;
                op_ensure!(axes.len() == rank, "C1: `axes` is {axes:?}, but `data` has {rank} axes");
                axes_of(&axes, rank)
            }
        }
    }
}

impl Op for Transpose {
    op_head!(
        "transpose",
        "Axis k of the result is axis axes[k] of data; without axes their order is reversed.
        C1: axes names each axis of data once.",
        ["data"],
        [field("axes", AttrKind::Ints, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let order = Transpose::order(attrs, x.rank())?;
        Ok(TensorType::of(order.into_iter().map(|k| x.shape[k]), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let order = Transpose::order(attrs, x.shape().len())?;
        let strides = signed_strides(x.shape());
        let shape: Vec<usize> = order.iter().map(|&k| x.shape()[k]).collect();
        Ok(x.strided(&shape, 0, &order.iter().map(|&k| strides[k]).collect::<Vec<_>>()).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(order) = Transpose::order(attrs, rank) else { return AxisMap::opaque([rank]) };
        let to = |k: usize| order.iter().position(|&axis| axis == k).expect("a permutation");
        AxisMap(vec![(0..rank).map(|k| AxisRole::Maps(to(k))).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let order = Transpose::order(attrs, from.len())?;
        let shape: Vec<i64> = order.iter().map(|&k| from[k]).collect();
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            order.iter().enumerate().for_each(|(to, &k)| index[k] = i[to].clone());
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 3, 4], DType::F32)]),
            sample([("axes", [0, 2, 3, 1].into())], vec![t(&[1, 2, 3, 4], DType::F32)]),
            sample([("axes", [2, 0, -2].into())], vec![t(&[2, 3, 4], DType::I8)]),
            sample([("axes", [1, 0].into())], vec![t(&[2, 3], DType::F16)]),
        ]
    }
}

/// By axis of a conversion's result: what each index along it adds to the number of the source's element. `None` where that number
/// is no sum of such parts, or some elements of the result have no source.
fn offsets(sources: &[SourceIndex], from: &[usize], to: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut tables: Vec<Vec<usize>> = to.iter().map(|&n| vec![0; n]).collect();
    let strides = crate::tensor::row_major_strides(from);
    for ((source, &n), &stride) in sources.iter().zip(from).zip(&strides) {
        let most: i64 = source.terms.iter().map(|&(axis, scale)| (to[axis] as i64 - 1).max(0) * scale).sum();
        let part = |sum: i64| match source.part {
            IndexPart::Whole => sum,
            IndexPart::Block(block) => sum / block,
            IndexPart::Within(block) => sum % block,
        };
        let is_sum = source.part == IndexPart::Whole || source.terms.len() == 1;
        let within = match source.part {
            IndexPart::Within(block) => block <= n as i64,
            _ => part(most) < n as i64,
        };
        if !is_sum || !within {
            return None;
        }
        for &(axis, scale) in &source.terms {
            for (i, offset) in tables[axis].iter_mut().enumerate() {
                *offset += part(i as i64 * scale) as usize * stride;
            }
        }
    }
    Some(tables)
}

/// The elements of a tensor at the sums of one entry of each table, the last table's first.
fn at_sums(x: &Tensor, shape: &[usize], tables: &[Vec<usize>]) -> Tensor {
    let (within, outer) = tables.split_last().map_or((&[0][..], &[][..]), |(within, outer)| (&within[..], outer));
    let mut bases = vec![0];
    for table in outer {
        bases = bases.iter().flat_map(|&base| table.iter().map(move |&offset| base + offset)).collect();
    }
    x.pick_rows(shape, &bases, within)
}

/// `layout_transform`.
#[derive(Debug)]
struct LayoutTransform;

impl LayoutTransform {
    fn layouts(attrs: &Attrs) -> Result<(Layout, Layout), OpError> {
        let (from, to): (Layout, Layout) = (attrs.str("src_layout").parse()?, attrs.str("dst_layout").parse()?);
        op_ensure!(from.is_convertible(&to), "C1: layouts {from} and {to} should name the same axes");
        Ok((from, to))
    }
}

impl Op for LayoutTransform {
    op_head!(
        "layout_transform",
        "data, whose axes src_layout names, in the order and blocks of dst_layout (as NCHW to NCHW8c). The last block of an
        axis that its extent does not divide is filled up with zeros; undoing the transform leaves them in.
        C1: both layouts name the same axes. C2: the blocks of data are those of src_layout.",
        ["data"],
        [
            field("src_layout", AttrKind::Str, AttrDefault::Required),
            field("dst_layout", AttrKind::Str, AttrDefault::Required)
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let (from, to) = LayoutTransform::layouts(attrs)?;
        let shape: Vec<Option<i64>> = x.shape.iter().map(|d| d.known()).collect();
        let shape = from.convert_shape(&to, &shape)?;
        Ok(TensorType::of(shape.into_iter().map(|d| d.map_or(Dim::Any, Dim::Known)), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let (from, to) = LayoutTransform::layouts(attrs)?;
        let known: Vec<Option<i64>> = x.shape().iter().map(|&n| Some(n as i64)).collect();
        let shape: Vec<usize> = from
            .convert_shape(&to, &known)?
            .into_iter()
            .map(|d| d.expect("values have known extents") as usize)
            .collect();
        let sources = from.sources(&to).ok_or_else(|| OpError(format!("{from} does not convert to {to}")))?;
        if let Some(tables) = offsets(&sources, x.shape(), &shape) {
            return Ok(at_sums(x, &shape, &tables).into());
        }
        let mut index = vec![0i64; shape.len()];
        let out = x.pick(&shape, |_| {
            let mut at = Some(0);
            for (source, &n) in sources.iter().zip(x.shape()) {
                let i = source.at(&index) as usize;
                at = at.filter(|_| i < n).map(|at| at * n + i);
            }
            // On to the next index of the result.
            for (i, &n) in index.iter_mut().zip(&shape).rev() {
                *i += 1;
                if *i < n as i64 {
                    break;
                }
                *i = 0;
            }
            at
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Some(sources) = LayoutTransform::layouts(attrs).ok().and_then(|(from, to)| from.sources(&to)) else {
            return AxisMap::opaque([rank]);
        };
        let role = |k: usize| match &sources[k] {
            s if s.part == IndexPart::Whole && s.terms.len() == 1 => AxisRole::Maps(s.terms[0].0),
            _ => AxisRole::Opaque,
        };
        AxisMap(vec![(0..rank).map(|k| if k < sources.len() { role(k) } else { AxisRole::Opaque }).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (from, to) = LayoutTransform::layouts(attrs)?;
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let sources = from.sources(&to).ok_or_else(|| OpError(format!("{from} does not convert to {to}")))?;
        let extent = b.shape(x).to_vec();
        // The greatest index that a source's sum reaches: beyond the extent lies padding.
        let reach = |k: usize| {
            let sum: i64 = sources[k].terms.iter().map(|&(axis, scale)| (shape[axis] - 1) * scale).sum();
            match sources[k].part {
                IndexPart::Whole => sum,
                IndexPart::Block(n) => sum / n,
                IndexPart::Within(n) => n - 1,
            }
        };
        let padded: Vec<bool> = (0..sources.len()).map(|k| reach(k) >= extent[k]).collect();
        let out = b.map(&shape, |b, i| {
            let mut inside = Scalar::bool(true);
            let mut index = Vec::new();
            for (k, source) in sources.iter().enumerate() {
                let sum =
                    source.terms.iter().fold(Scalar::index(0), |sum, &(axis, scale)| sum + i[axis].clone() * scale);
                let at = match source.part {
                    IndexPart::Whole => sum,
                    IndexPart::Block(n) => sum.floor_div(n),
                    IndexPart::Within(n) => sum.floor_mod(n),
                };
                if padded[k] {
                    inside = inside.and(at.clone().lt(Scalar::index(extent[k])));
                }
                index.push(at);
            }
            let zero = Scalar::int(0, b.dtype(x));
            Scalar::select(inside, b.read(x, index), zero)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |from: &str, to: &str, shape: &[i64], d| {
            sample([("src_layout", from.into()), ("dst_layout", to.into())], vec![t(shape, d)])
        };
        vec![
            call("NCHW", "NHWC", &[1, 3, 2, 4], DType::F32),
            call("NCHW", "NCHW4c", &[1, 8, 2, 3], DType::F32),
            call("NCHW", "NCHW4c", &[1, 6, 2, 3], DType::F32),
            call("NCHW4c", "NCHW", &[1, 2, 2, 3, 4], DType::I8),
            call("NCHW4c", "NCHW2c", &[1, 2, 2, 3, 4], DType::F32),
            call("NCHW4c", "NHWC4c", &[1, 2, 2, 3, 4], DType::F32),
            call("NHWC", "NCHW2c", &[1, 2, 3, 4], DType::F32),
            call("OIHW", "OIHW2i4o", &[8, 4, 1, 3], DType::F32),
            call("OIHW", "HWIO", &[3, 2, 1, 2], DType::F16),
            call("NC", "NC3n", &[4, 2], DType::F32),
        ]
    }
}

/// `reverse`.
#[derive(Debug)]
struct Reverse;

impl Reverse {
    fn axis(attrs: &Attrs, rank: usize) -> Result<usize, OpError> {
        axis_of(attrs.opt_int("axis").ok_or_else(|| OpError("C1: `axis` is not set".into()))?, rank)
    }
}

impl Op for Reverse {
    op_head!(
        "reverse",
        "data with the order along axis reversed. C1: axis is set, and one of data's.",
        ["data"],
        [field("axis", AttrKind::Int, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        Reverse::axis(attrs, x.rank())?;
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let axis = Reverse::axis(attrs, x.shape().len())?;
        let mut strides = signed_strides(x.shape());
        let offset = (x.shape()[axis] as i64 - 1) * strides[axis];
        strides[axis] = -strides[axis];
        Ok(x.strided(x.shape(), offset, &strides).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let turned = Reverse::axis(attrs, rank).ok();
        let role = |k| if Some(k) == turned { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        let axis = Reverse::axis(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            index[axis] = Scalar::index(shape[axis] - 1) - i[axis].clone();
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([("axis", 0.into())], vec![t(&[3], DType::F32)]),
            sample([("axis", 1.into())], vec![t(&[2, 3, 2], DType::I8)]),
            sample([("axis", (-1).into())], vec![t(&[2, 3], DType::F64)]),
        ]
    }
}

/// `reverse_sequence`.
#[derive(Debug)]
struct ReverseSequence;

impl ReverseSequence {
    fn places(attrs: &Attrs, rank: usize) -> Result<(usize, usize), OpError> {
        Ok((axis_of(attrs.int("seq_axis"), rank)?, axis_of(attrs.int("batch_axis"), rank)?))
    }
}

impl Op for ReverseSequence {
    op_head!(
        "reverse_sequence",
        "data with the first seq_lengths[b] elements along seq_axis reversed, for each place b along batch_axis. Lengths of 0
        or 1 reverse nothing; those beyond the extent count as the extent.
        C1: seq_lengths has one axis, of batch_axis' extent, and holds integers.",
        ["data", "seq_lengths"],
        [
            field("seq_axis", AttrKind::Int, AttrDefault::Int(1)),
            field("batch_axis", AttrKind::Int, AttrDefault::Int(0))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, n) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "seq_lengths")?);
        let (_, batch) = ReverseSequence::places(attrs, x.rank())?;
        op_ensure!(
            n.rank() == 1 && n.dtype.is_int() && crate::ops::util::may_equal(n.shape[0], x.shape[batch]),
            "C1: `seq_lengths` is {n}, but should be integers, as many as axis {batch} of `data`, which is {x}"
        );
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, lengths) = (args[0].tensor(), args[1].tensor().to_i64_vec());
        let (seq, batch) = ReverseSequence::places(attrs, x.shape().len())?;
        let strides = crate::tensor::row_major_strides(x.shape());
        let n = x.shape()[seq];
        let at = |i: usize, axis: usize| i / strides[axis] % x.shape()[axis];
        let out = x.pick(x.shape(), |i| {
            let (k, length) = (at(i, seq), lengths[at(i, batch)].clamp(0, n as i64) as usize);
            Some(if k < length { i - k * strides[seq] + (length - 1 - k) * strides[seq] } else { i })
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok((seq, batch)) = ReverseSequence::places(attrs, rank) else { return AxisMap::opaque([rank, 1]) };
        let role = |k| if k == seq { AxisRole::Opaque } else { AxisRole::Maps(k) };
        let lengths = if seq == batch { AxisRole::Opaque } else { AxisRole::Maps(batch) };
        AxisMap(vec![(0..rank).map(role).collect(), vec![lengths]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, lengths) = (args[0].tensor(), args[1].tensor());
        let shape = b.shape(x).to_vec();
        let (seq, batch) = ReverseSequence::places(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let length = b.read(lengths, [i[batch].clone()]).cast(DType::I64).min(Scalar::index(shape[seq]));
            let k = i[seq].clone();
            let mut index = i.to_vec();
            index[seq] = Scalar::select(k.clone().lt(length.clone()), length - 1 - k.clone(), k);
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 4], DType::F32), t(&[2], DType::I32)]),
            sample(
                [("seq_axis", 0.into()), ("batch_axis", 1.into())],
                vec![t(&[4, 3, 2], DType::I8), t(&[3], DType::I64)],
            ),
        ]
    }
}
