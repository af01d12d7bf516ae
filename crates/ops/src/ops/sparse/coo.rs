//! Sparse tensors as lists of coordinates, a row of indices per entry.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, ints_attr, may_equal, op_head, opaque_axes, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&SparseToDense, &SparseReshape];

/// `sparse_to_dense`.
#[derive(Debug)]
struct SparseToDense;

impl Op for SparseToDense {
    op_head!(
        "sparse_to_dense",
        "An array of extents output_shape that holds sparse_values[j] where its first indices are sparse_indices[j, ..] (or,
        of one index per entry, sparse_indices[j]), the last such j counting, and default_value elsewhere. Indices outside
        hit nothing. C1: sparse_indices are integers with at most two axes. C2: sparse_values has an element per row of them.
        C3: default_value has no axes. C4: no extent of output_shape is negative. C5: a row has no more indices than the
        result axes, which are at least one.",
        ["sparse_indices", "sparse_values", "default_value"],
        [field("output_shape", AttrKind::Ints, AttrDefault::Required)],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (indices, values) = (tensor_arg(args, 0, "sparse_indices")?, tensor_arg(args, 1, "sparse_values")?);
        let default = tensor_arg(args, 2, "default_value")?;
        op_ensure!(
            indices.dtype.is_int() && indices.rank() <= 2,
            "C1: `sparse_indices` is {indices}, but should be integers with at most two axes"
        );
        op_ensure!(
            values.rank() == indices.rank().min(1)
                && values.shape.iter().zip(indices.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
            "C2: `sparse_indices` is {indices} and `sparse_values` {values}"
        );
        op_ensure!(default.rank() == 0, "C3: `default_value` is {default}, but should have no axes");
        let shape = ints_attr(attrs, "output_shape")?;
        op_ensure!(shape.iter().all(|&n| n >= 0), "C4: `output_shape` is {shape:?}");
        let depth = indices.shape.get(1).map_or(Some(1), |d| d.known());
        op_ensure!(
            !shape.is_empty() && depth.is_none_or(|n| n <= shape.len() as i64),
            "C5: `sparse_indices` is {indices} and `output_shape` {shape:?}"
        );
        Ok(Type::tensor(&shape, values.dtype))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [indices, values, default] = [0, 1, 2].map(|k| args[k].tensor());
        let shape: Vec<usize> = ints_attr(attrs, "output_shape")?.iter().map(|&n| n as usize).collect();
        let depth = indices.shape().get(1).copied().unwrap_or(1);
        op_ensure!(depth <= shape.len(), "C5: rows of {depth} indices into {} axes", shape.len());
        let inner: usize = shape[depth..].iter().product();
        let strides = row_major_strides(&shape);
        let coordinates = indices.to_i64_vec();
        let mut from = vec![None; shape.iter().product()];
        for j in 0..values.len() {
            let row = &coordinates[j * depth..(j + 1) * depth];
            if row.iter().zip(&shape).all(|(&i, &n)| (0..n as i64).contains(&i)) {
                let start: usize = row.iter().zip(&strides).map(|(&i, s)| i as usize * s).sum();
                from[start..start + inner].fill(Some(j));
            }
        }
        let dtype = values.dtype();
        let out = match dtype.is_float() {
            true => {
                let fill = default.get_f64(0);
                Tensor::from_f64_fn(dtype, &shape, |i| from[i].map_or(fill, |j| values.get_f64(j)))
            }
            false if default.dtype().is_float() => {
                let fill = Tensor::from_f64_fn(dtype, &[], |_| default.get_f64(0)).get_i64(0);
                Tensor::from_i64_fn(dtype, &shape, |i| from[i].map_or(fill, |j| values.get_i64(j)))
            }
            false => {
                let fill = default.get_i64(0);
                Tensor::from_i64_fn(dtype, &shape, |i| from[i].map_or(fill, |j| values.get_i64(j)))
            }
        };
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [indices, values, default] = [0, 1, 2].map(|k| args[k].tensor());
        let (shape, dtype) = (ints_attr(attrs, "output_shape")?, b.dtype(values));
        let index_shape = b.shape(indices).to_vec();
        let count = index_shape.first().copied().unwrap_or(1);
        let depth = index_shape.get(1).copied().unwrap_or(1);
        op_ensure!(depth <= shape.len() as i64, "C5: rows of {depth} indices into {} axes", shape.len());
        let scalar = b.shape(values).is_empty();
        let out = b.routine(|r| {
            let out = r.output_from(&shape, |b, _| b.read(default, []).cast(dtype));
            r.for_(count, |r, j| {
                // As many of an entry's number and its place as the arguments have axes.
                let row = |k: i64| [j.clone(), Scalar::index(k)][..index_shape.len()].to_vec();
                let start: Vec<Scalar> = (0..depth).map(|k| r.let_(r.read(indices, row(k)).cast(DType::I64))).collect();
                let inside = start.iter().zip(&shape).fold(Scalar::bool(true), |all, (i, &n)| {
                    all.and(i.clone().ge(Scalar::index(0))).and(i.clone().lt(Scalar::index(n)))
                });
                r.if_(inside, |r| {
                    let value = r.let_(r.read(values, [j.clone()][..!scalar as usize].to_vec()));
                    r.for_each(&shape[depth as usize..], |r, i| r.store(out, [&start, i].concat(), value));
                });
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |shape: &[i64], indices: Type, values: &[i64], (value, default): (DType, DType)| {
            sample([("output_shape", shape.into())], vec![indices, t(values, value), t(&[], default)])
        };
        let f = (DType::F32, DType::F32);
        vec![
            call(&[3, 4], t(&[3, 2], DType::I64), &[3], f),
            call(&[5], t(&[4], DType::I32), &[4], (DType::I64, DType::I32)),
            call(&[4], t(&[], DType::I64), &[], (DType::I8, DType::I8)),
            call(&[4, 2], t(&[2], DType::I32), &[2], f),
            call(&[4, 3, 2], t(&[2, 2], DType::I8), &[2], (DType::F32, DType::I32)),
            call(&[4, 2], t(&[0, 2], DType::I64), &[0], f),
            call(&[0, 2], t(&[2, 2], DType::I64), &[2], f),
        ]
    }
}

/// `sparse_reshape`.
#[derive(Debug)]
struct SparseReshape;

/// Extents of an array from the one that is asked for: -1 stands for what the others leave of `total` elements.
fn resolved_shape(total: i64, wanted: &[i64]) -> Result<Vec<i64>, OpError> {
    let others = product(wanted.iter().copied().filter(|&n| n != -1))?;
    wanted
        .iter()
        .map(|&n| match n {
            -1 => total.checked_div(others).ok_or_else(|| OpError("an extent of -1 stands beside one of 0".into())),
            n => Ok(n),
        })
        .collect()
}

fn product(extents: impl Iterator<Item = i64>) -> Result<i64, OpError> {
    let mut all = 1i64;
    for n in extents {
        op_ensure!(n >= 0, "an extent of {n} is negative");
        all = all.checked_mul(n).ok_or_else(|| OpError("there are too many elements".into()))?;
    }
    Ok(all)
}

impl Op for SparseReshape {
    op_head!(
        "sparse_reshape",
        "The indices that entries at sparse_indices of an array of extents prev_shape have after a reshape to new_shape, and
        these extents; -1 in new_shape stands for what the other extents leave.
        C1: sparse_indices are integers, a row of indices per entry. C2: both shapes are lists of integers. C3: a row has an
        index per extent of prev_shape.",
        ["sparse_indices", "prev_shape", "new_shape"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let indices = tensor_arg(args, 0, "sparse_indices")?;
        let (prev, new) = (tensor_arg(args, 1, "prev_shape")?, tensor_arg(args, 2, "new_shape")?);
        op_ensure!(
            indices.rank() == 2 && indices.dtype.is_int(),
            "C1: `sparse_indices` is {indices}, but should be rows of integers"
        );
        op_ensure!(
            [prev, new].iter().all(|s| s.rank() == 1 && s.dtype.is_int()),
            "C2: `prev_shape` is {prev} and `new_shape` {new}, but both should be lists of integers"
        );
        op_ensure!(
            may_equal(indices.shape[1], prev.shape[0]),
            "C3: `sparse_indices` is {indices} and `prev_shape` {prev}"
        );
        let moved = TensorType::of([indices.shape[0], new.shape[0]], indices.dtype);
        Ok(Type::tuple([moved.into(), new.clone().into()]))
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [indices, prev, new] = [0, 1, 2].map(|k| args[k].tensor());
        let (from, wanted) = (prev.to_i64_vec(), new.to_i64_vec());
        op_ensure!(indices.shape()[1] == from.len(), "C3: rows of {} indices into {from:?}", indices.shape()[1]);
        let to = resolved_shape(product(from.iter().copied())?, &wanted)?;
        product(to.iter().copied())?;
        let values = indices.to_i64_vec();
        let mut moved = Vec::with_capacity(indices.shape()[0] * to.len());
        for row in values.chunks(from.len().max(1)) {
            if from == to {
                moved.extend_from_slice(row);
                continue;
            }
            let flat = row.iter().zip(&from).try_fold(0i64, |sum, (&i, &n)| sum.checked_mul(n)?.checked_add(i));
            let mut rest = flat.ok_or_else(|| OpError(format!("the index {row:?} is too large")))?;
            for k in 0..to.len() {
                let inner: i64 = to[k + 1..].iter().product();
                op_ensure!(inner > 0, "an index into the extents {to:?}");
                moved.push(rest.div_euclid(inner));
                rest = rest.rem_euclid(inner);
            }
        }
        if from.is_empty() {
            moved = vec![0; indices.shape()[0] * to.len()];
        }
        let moved = Tensor::from_i64_fn(indices.dtype(), &[indices.shape()[0], to.len()], |i| moved[i]);
        let to = Tensor::from_i64_fn(new.dtype(), &[to.len()], |i| to[i]);
        Ok(Value::Tuple(vec![moved.into(), to.into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(6.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [indices, prev, new] = [0, 1, 2].map(|k| args[k].tensor());
        let (dtype, shape_dtype) = (b.dtype(indices), b.dtype(new));
        let (rows, from, to) = (b.shape(indices)[0], b.shape(prev)[0], b.shape(new)[0]);
        let one = || Scalar::index(1);
        let extent = |b: &Builder, t, k: &Scalar| b.read(t, [k.clone()]).cast(DType::I64);
        let asked = |s: &Scalar| Scalar::binary(BinOp::Eq, s.clone(), Scalar::index(-1));
        let total = b.reduce(&[], &[from], Combine::Prod, |b, _, r| extent(b, prev, &r[0]));
        let others = b.reduce(&[], &[to], Combine::Prod, |b, _, r| {
            let n = extent(b, new, &r[0]);
            Scalar::select(asked(&n), one(), n)
        });
        let shape = b.map(&[to], |b, i| {
            let n = extent(b, new, &i[0]);
            Scalar::select(asked(&n), Scalar::binary(BinOp::Div, b.read(total, []), b.read(others, [])), n)
        });
        // From an index along each axis to the next: as many elements as the further axes have.
        let steps = |b: &mut Builder, shape, n: i64| {
            b.reduce(&[n], &[n], Combine::Prod, |b, i, r| {
                Scalar::select(i[0].clone().lt(r[0].clone()), extent(b, shape, &r[0]), one())
            })
        };
        let (old_steps, new_steps) = (steps(b, prev, from), steps(b, shape, to));
        let flat = b.reduce(&[rows], &[from], Combine::Sum, |b, i, r| {
            b.read(indices, [i[0].clone(), r[0].clone()]).cast(DType::I64) * b.read(old_steps, [r[0].clone()])
        });
        let same = (from == to).then(|| {
            b.reduce(&[], &[to], Combine::All, |b, _, r| {
                Scalar::binary(BinOp::Eq, extent(b, prev, &r[0]), b.read(shape, [r[0].clone()]))
            })
        });
        let moved = b.map(&[rows, to], |b, i| {
            let (flat, k) = (b.read(flat, [i[0].clone()]), &i[1]);
            // What the axes before have left of the number: it is less than their innermost step.
            let before = b.read(new_steps, [(k.clone() - 1).max(Scalar::index(0))]);
            let rest = Scalar::binary(BinOp::FloorMod, flat.clone(), before);
            let rest = Scalar::select(k.clone().lt(one()), flat, rest);
            let place = Scalar::binary(BinOp::FloorDiv, rest, b.read(new_steps, [k.clone()])).cast(dtype);
            match same {
                Some(same) => Scalar::select(b.read(same, []), b.read(indices, i.iter().cloned()), place),
                None => place,
            }
        });
        let shape = b.map(&[to], |b, i| b.read(shape, i.iter().cloned()).cast(shape_dtype));
        Ok(Operand::Tuple(vec![moved.into(), shape.into()]))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |rows: i64, from: i64, to: i64, index: DType, shape: DType| {
            sample([], vec![t(&[rows, from], index), t(&[from], DType::I64), t(&[to], shape)])
        };
        vec![
            call(3, 2, 3, DType::I64, DType::I64),
            call(4, 3, 1, DType::I32, DType::I64),
            call(3, 2, 2, DType::I64, DType::I32),
            call(0, 2, 2, DType::I32, DType::I8),
        ]
    }
}
