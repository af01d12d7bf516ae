//! Sparse tensors as lists of coordinates, a row of indices per entry.

use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{elements, field, ints_attr, may_equal, op_head, opaque_axes, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&SparseToDense];

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
        // Generated code asks every entry for every element.
        Work { flops: elements(&args[0]) * elements(out), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [indices, values, default] = [0, 1, 2].map(|k| args[k].tensor());
        let (shape, dtype) = (ints_attr(attrs, "output_shape")?, b.dtype(values));
        let index_shape = b.shape(indices).to_vec();
        let count = index_shape.first().copied().unwrap_or(1);
        let fill = |b: &Builder| b.read(default, []).cast(dtype);
        if count == 0 {
            return Ok(b.map(&shape, |b, _| fill(b)).into());
        }
        let depth = index_shape.get(1).copied().unwrap_or(1);
        // Indices of an entry's row: as many of its number and its place as the arguments have axes.
        let row = |j: &Scalar, k: i64| [j.clone(), Scalar::index(k)][..index_shape.len()].to_vec();
        let last = b.reduce(&shape, &[count], Combine::Max, |b, i, r| {
            let hit = (0..depth).fold(Scalar::bool(true), |all, k| {
                let index = b.read(indices, row(&r[0], k)).cast(DType::I64);
                all.and(Scalar::binary(BinOp::Eq, index, i[k as usize].clone()))
            });
            Scalar::select(hit, r[0].clone(), Scalar::index(-1))
        });
        let scalar = b.shape(values).is_empty();
        let out = b.map(&shape, |b, i| {
            let j = b.read(last, i.iter().cloned());
            let at = if scalar { vec![] } else { vec![j.clone()] };
            Scalar::select(j.ge(Scalar::index(0)), b.read(values, at), fill(b))
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
