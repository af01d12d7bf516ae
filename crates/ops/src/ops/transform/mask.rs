//! Elements kept or replaced by where they are.

use super::slice::Cut;
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{field, may_equal, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Trilu, &SequenceMask, &StridedSet];

/// `trilu`.
#[derive(Debug)]
struct Trilu;

impl Op for Trilu {
    op_head!(
        "trilu",
        "The upper (or lower) triangle of the matrices in the last two axes of data, zeros elsewhere; k shifts the diagonal
        that is kept towards the upper right. C1: data has two axes or more. C2: k is one integer.",
        ["data", "k"],
        [field("upper", AttrKind::Bool, AttrDefault::Bool(true))],
        Injective
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, k) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "k")?);
        op_ensure!(x.rank() >= 2, "C1: `data` is {x}, but should have two axes or more");
        op_ensure!(k.rank() == 0 && k.dtype.is_int(), "C2: `k` is {k}, but should be one integer");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, k) = (args[0].tensor(), args[1].tensor().get_i64(0));
        let (rows, columns) = (x.shape()[x.shape().len() - 2], x.shape()[x.shape().len() - 1]);
        let kept = |i: usize| {
            let (row, column) = ((i / columns % rows) as i64, (i % columns) as i64);
            let diagonal = column.saturating_sub(k);
            if attrs.bool("upper") { row <= diagonal } else { row >= diagonal }
        };
        Ok(x.pick(x.shape(), |i| kept(i).then_some(i)).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let role = |k| if k + 2 < rank { AxisRole::Maps(k) } else { AxisRole::Opaque };
        AxisMap(vec![(0..rank).map(role).collect(), vec![]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, k) = (args[0].tensor(), args[1].tensor());
        let shape = b.shape(x).to_vec();
        let op = if attrs.bool("upper") { BinOp::Le } else { BinOp::Ge };
        let out = b.map(&shape, |b, i| {
            let (row, column) = (i[i.len() - 2].clone(), i[i.len() - 1].clone());
            let kept = Scalar::binary(op, row, column - b.read(k, []).cast(DType::I64));
            Scalar::select(kept, b.read(x, i.iter().cloned()), Scalar::int(0, b.dtype(x)))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |upper: bool, s: &[i64], d| sample([("upper", upper.into())], vec![t(s, d), t(&[], DType::I32)]);
        vec![call(true, &[4, 5], DType::F32), call(false, &[2, 3, 4], DType::I8)]
    }
}

/// `sequence_mask`.
#[derive(Debug)]
struct SequenceMask;

impl SequenceMask {
    /// The axis of time and that of the batch.
    fn axes(attrs: &Attrs) -> Result<(usize, usize), OpError> {
        match attrs.int("axis") {
            0 => Ok((0, 1)),
            1 => Ok((1, 0)),
            axis => op_bail!("C1: `axis` is {axis}, but should be 0 or 1"),
        }
    }

    /// The mask value as an element of the data's type.
    fn value(attrs: &Attrs, dtype: DType) -> Tensor {
        Tensor::from_f64_fn(dtype, &[], |_| attrs.float("mask_value"))
    }
}

impl Op for SequenceMask {
    op_head!(
        "sequence_mask",
        "data, but mask_value where the index along axis is valid_length[b] or more, b being the index along the other one of
        the first two axes. C1: axis is 0 or 1, and data has two axes or more. C2: valid_length has the batch axis' extent.",
        ["data", "valid_length"],
        [
            field("mask_value", AttrKind::Float, AttrDefault::Float(0.0)),
            field("axis", AttrKind::Int, AttrDefault::Int(0))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, n) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "valid_length")?);
        let (_, batch) = SequenceMask::axes(attrs)?;
        op_ensure!(x.rank() >= 2, "C1: `data` is {x}, but should have two axes or more");
        op_ensure!(
            n.rank() == 1 && n.dtype != DType::Bool && may_equal(n.shape[0], x.shape[batch]),
            "C2: `valid_length` is {n}, but should have one element for each place along axis {batch} of {x}"
        );
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, lengths) = (args[0].tensor(), args[1].tensor().to_f64_vec());
        let (time, batch) = SequenceMask::axes(attrs)?;
        let strides = row_major_strides(x.shape());
        let at = |i: usize, axis: usize| i / strides[axis] % x.shape()[axis];
        let masked = |i: usize| at(i, time) as f64 >= lengths[at(i, batch)];
        let mask = SequenceMask::value(attrs, x.dtype());
        Ok(match x.dtype().is_float() {
            true => {
                Tensor::from_f64_fn(x.dtype(), x.shape(), |i| if masked(i) { mask.get_f64(0) } else { x.get_f64(i) })
            }
            false => {
                Tensor::from_i64_fn(x.dtype(), x.shape(), |i| if masked(i) { mask.get_i64(0) } else { x.get_i64(i) })
            }
        }
        .into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok((time, batch)) = SequenceMask::axes(attrs) else { return AxisMap::opaque([rank, 1]) };
        let role = |k| if k == time { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect(), vec![AxisRole::Maps(batch)]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, lengths) = (args[0].tensor(), args[1].tensor());
        let (shape, dtype, count) = (b.shape(x).to_vec(), b.dtype(x), b.dtype(lengths));
        let (time, batch) = SequenceMask::axes(attrs)?;
        let mask = SequenceMask::value(attrs, dtype);
        let mask = match dtype.is_float() {
            true => Scalar::float(mask.get_f64(0), dtype),
            false => Scalar::int(mask.get_i64(0), dtype),
        };
        // Compared as float64 where lengths are floats, else as int64, so that no index wraps.
        let wide = if count.is_float() { DType::F64 } else { DType::I64 };
        let out = b.map(&shape, |b, i| {
            let length = b.read(lengths, [i[batch].clone()]).cast(wide);
            Scalar::select(i[time].clone().cast(wide).ge(length), mask, b.read(x, i.iter().cloned()))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, v: f64, args| sample([("axis", axis.into()), ("mask_value", v.into())], args);
        vec![
            call(0, -1.5, vec![t(&[4, 2, 3], DType::F32), t(&[2], DType::I32)]),
            call(1, 7.0, vec![t(&[2, 4], DType::I8), t(&[2], DType::I64)]),
            call(1, 0.0, vec![t(&[2, 3], DType::F32), t(&[2], DType::F32)]),
        ]
    }
}

/// `strided_set`.
#[derive(Debug)]
struct StridedSet;

impl Op for StridedSet {
    op_head!(
        "strided_set",
        "data with the slice that strided_slice would take, from begin to before end in steps of strides, replaced by v.
        C1: v has data's element type and number of axes. C2: begin, end and strides are lists of integers. C3: v has the
        slice's shape.",
        ["data", "v", "begin", "end", "strides"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, v) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "v")?);
        op_ensure!(x.dtype == v.dtype && x.rank() == v.rank(), "C1: `data` is {x} and `v` {v}");
        for (i, name) in ["begin", "end", "strides"].into_iter().enumerate() {
            let list = tensor_arg(args, i + 2, name)?;
            let fits = list.rank() == 1 && !matches!(list.shape[0], Dim::Known(n) if n > x.rank() as i64);
            op_ensure!(list.dtype.is_int() && fits, "C2: `{name}` is {list}, but should list integers for axes of {x}");
        }
        Ok(x.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let [begin, end, strides] = [2, 3, 4].map(|k| args[k].tensor().to_i64_vec());
        let mut cuts = Vec::new();
        for (k, &n) in x.shape().iter().enumerate() {
            let step = strides.get(k).copied().unwrap_or(1);
            let from = begin.get(k).copied().unwrap_or(if step < 0 { i64::MAX } else { 0 });
            let to = end.get(k).copied().unwrap_or(if step < 0 { i64::MIN } else { i64::MAX });
            cuts.push(Cut::new(from, to, step, n as i64)?);
        }
        op_ensure!(
            cuts.iter().map(|c| c.len as usize).eq(v.shape().iter().copied()),
            "C3: `v` has shape {:?}, but the slice of {:?} has {:?}",
            v.shape(),
            x.shape(),
            cuts.iter().map(|c| c.len).collect::<Vec<_>>()
        );
        let (from, to) = (row_major_strides(v.shape()), row_major_strides(x.shape()));
        let mut out = x.clone();
        let size = x.dtype().bytes();
        for (i, element) in v.bytes().chunks_exact(size).enumerate() {
            let place =
                |(k, c): (usize, &Cut)| (c.begin + (i / from[k] % v.shape()[k]) as i64 * c.step) as usize * to[k];
            let at: usize = cuts.iter().enumerate().map(place).sum();
            out.bytes_mut()[at * size..][..size].copy_from_slice(element);
        }
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, v, begin, end, strides] = [0, 1, 2, 3, 4].map(|k| args[k].tensor());
        let (shape, size) = (b.shape(x).to_vec(), b.shape(v).to_vec());
        let out = b.routine(|r| {
            let out = r.output_from(&shape, |b, i| b.read(x, i.iter().cloned()));
            let mut cuts = Vec::new();
            let mut fits = Scalar::bool(true);
            for (k, (&n, &len)) in shape.iter().zip(&size).enumerate() {
                let listed = |r: &mut Nest<'_>, list: TensorId| {
                    let value = (k as i64) < r.shape(list)[0];
                    value.then(|| r.let_(r.read(list, [k as i64]).cast(DType::I64)))
                };
                let (step, first, last) = (listed(r, strides), listed(r, begin), listed(r, end));
                let step = step.unwrap_or_else(|| Scalar::index(1));
                let down = step.clone().lt(Scalar::index(0));
                let choose = |a: i64, b: i64| Scalar::select(down.clone(), Scalar::index(a), Scalar::index(b));
                let (least, most) = (choose(-1, 0), choose((n - 1).max(-1), n));
                // Counted from the end where negative, then clamped.
                let place = |r: &mut Nest<'_>, at: Scalar| {
                    let negative = at.clone().lt(Scalar::index(0));
                    let at = Scalar::select(negative, at.clone() + n, at);
                    r.let_(at.max(least.clone()).min(most.clone()))
                };
                let first = first.map_or_else(|| choose(n - 1, 0), |at| place(r, at));
                let last = last.map_or_else(|| choose(-1, n), |at| place(r, at));
                // As long as v is: as many steps as reach no further than the end, and not one more.
                let span = Scalar::select(down, first.clone() - last.clone(), last - first.clone());
                let pace = r.let_(Scalar::unary(UnOp::Abs, step.clone()).max(Scalar::index(1)));
                let count = Scalar::binary(BinOp::Div, span + pace.clone() - 1, pace);
                fits = fits.and(count.equals(len));
                cuts.push((r.let_(first), step));
            }
            r.if_(fits, |r| {
                r.parallel_each(&size, |r, i| {
                    let at = i.iter().zip(&cuts).map(|(i, (first, step))| first.clone() + i.clone() * step.clone());
                    let at: Vec<Scalar> = at.collect();
                    let value = r.read(v, i.iter().cloned());
                    r.store_within(out, at, value);
                });
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let list = |n: i64| t(&[n], DType::I64);
        vec![
            sample([], vec![t(&[2, 3], DType::F32), t(&[2, 3], DType::F32), list(0), list(0), list(0)]),
            sample([], vec![t(&[], DType::I8), t(&[], DType::I8), list(0), list(0), list(0)]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_replaced() {
        let op = crate::ops::op("strided_set");
        let attrs = crate::ops::make_attrs(op, &[]).expect("no attributes");
        let list = |v: &[i64]| Value::from(Tensor::from_slice(&[v.len()], v));
        let x = Tensor::from_slice(&[5], &[1i8, 2, 3, 4, 5]);
        let v = Tensor::from_slice(&[2], &[8i8, 9]);
        let args = [x.into(), v.into(), list(&[-1]), list(&[1]), list(&[-2])];
        let y = op.op().eval(&attrs, &args).expect("a slice of two elements");
        assert_eq!(y.tensor(), &Tensor::from_slice(&[5], &[1i8, 2, 9, 4, 8]));
    }
}
