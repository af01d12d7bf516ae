//! Sparse tensors whose empty rows get an entry.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, StaticCall, Work, make_attrs, op, op_ensure,
        util::{field, may_equal, op_head, opaque_axes, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&FillEmptyRows, &StaticFillEmptyRows];

/// `sparse_fill_empty_rows`.
#[derive(Debug)]
struct FillEmptyRows;

/// The same, with the number of rows as an attribute.
#[derive(Debug)]
struct StaticFillEmptyRows;

/// Checks what both forms take.
fn infer(indices: &TensorType, values: &TensorType, default: &TensorType, rows: Dim) -> Result<Type, OpError> {
    op_ensure!(
        indices.rank() == 2 && indices.dtype.is_int(),
        "C1: `sparse_indices` is {indices}, but should be rows of integers"
    );
    op_ensure!(
        values.rank() == 1 && may_equal(values.shape[0], indices.shape[0]),
        "C2: `sparse_indices` is {indices} and `sparse_values` {values}"
    );
    op_ensure!(
        default.elements().is_none_or(|n| n == 1) && default.rank() <= 1,
        "C4: `default_value` is {default}, but should have one element"
    );
    let depth = indices.shape[1];
    Ok(Type::tuple([
        TensorType::of([Dim::Any, depth], DType::I64).into(),
        TensorType::of([Dim::Any], DType::I64).into(),
        TensorType::of([rows], DType::I64).into(),
    ]))
}

fn eval(indices: &Tensor, values: &Tensor, default: &Tensor, rows: i64) -> Result<Value, OpError> {
    op_ensure!((0..1 << 31).contains(&rows), "`dense_shape` asks for {rows} rows");
    let depth = indices.shape()[1];
    op_ensure!(depth > 0, "`sparse_indices` has no column for rows");
    let (mut new_indices, mut new_values, mut empty) = (Vec::new(), Vec::new(), vec![0i64; rows as usize]);
    let coordinates = indices.to_i64_vec();
    let mut next = 0;
    let mut fill_to = |row: i64, next: i64, new_indices: &mut Vec<i64>, new_values: &mut Vec<i64>| {
        for row in next.max(0)..row.min(rows) {
            new_indices.push(row);
            new_indices.extend(std::iter::repeat_n(0, depth - 1));
            new_values.push(default.get_i64(0));
            empty[row as usize] = 1;
        }
    };
    for (entry, place) in coordinates.chunks(depth).enumerate() {
        fill_to(place[0], next, &mut new_indices, &mut new_values);
        new_indices.extend_from_slice(place);
        new_values.push(values.get_i64(entry));
        next = next.max(place[0].saturating_add(1));
    }
    fill_to(rows, next, &mut new_indices, &mut new_values);
    Ok(Value::Tuple(vec![
        Tensor::from_slice(&[new_values.len(), depth], &new_indices).into(),
        Tensor::from_slice(&[new_values.len()], &new_values).into(),
        Tensor::from_slice(&[rows as usize], &empty).into(),
    ]))
}

impl Op for FillEmptyRows {
    op_head!(
        "sparse_fill_empty_rows",
        "The entries of a sparse array of dense_shape[0] rows (indices in row-major order, and values), where every row
        without an entry gets one: default_value, with index 0 along further axes; and for each row whether it got one (1 or
        0). All as int64. C1: sparse_indices are integers, a row of indices per entry. C2: sparse_values has an element per
        entry. C3: dense_shape is a list of integers, an extent per index. C4: default_value has one element.",
        ["sparse_indices", "sparse_values", "dense_shape", "default_value"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (indices, values) = (tensor_arg(args, 0, "sparse_indices")?, tensor_arg(args, 1, "sparse_values")?);
        let (shape, default) = (tensor_arg(args, 2, "dense_shape")?, tensor_arg(args, 3, "default_value")?);
        let out = infer(indices, values, default, Dim::Any)?;
        op_ensure!(
            shape.rank() == 1 && shape.dtype.is_int() && may_equal(shape.shape[0], indices.shape[1]),
            "C3: `sparse_indices` is {indices} and `dense_shape` {shape}"
        );
        Ok(out)
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [indices, values, shape, default] = [0, 1, 2, 3].map(|k| args[k].tensor());
        op_ensure!(!shape.is_empty(), "`dense_shape` is empty");
        eval(indices, values, default, shape.get_i64(0))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, _: &Attrs, _: &[Operand], _: &mut Builder) -> Result<Operand, OpError> {
        Err(OpError("the number of rows is an argument whose value is not known".into()))
    }
    fn decided_by(&self, _: &Attrs) -> &'static [usize] {
        &[2]
    }
    fn to_static(&self, _: &Attrs, values: &[&Tensor]) -> Result<StaticCall, OpError> {
        op_ensure!(!values[0].is_empty(), "`dense_shape` is empty");
        let op = op(StaticFillEmptyRows.name());
        let attrs = make_attrs(op, &[("rows".into(), values[0].get_i64(0).into())]);
        Ok(StaticCall { op, attrs: attrs.map_err(|e| OpError(e.to_string()))?, args: vec![0, 1, 3] })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |entries: i64, depth: i64, default: Type| {
            let shape = t(&[depth], DType::I8);
            sample([], vec![t(&[entries, depth], DType::I8), t(&[entries], DType::I32), shape, default])
        };
        vec![call(3, 2, t(&[1], DType::I32)), call(0, 3, t(&[1], DType::I32)), call(1, 1, t(&[], DType::I64))]
    }
}

impl Op for StaticFillEmptyRows {
    op_head!(
        "static.sparse_fill_empty_rows",
        "As sparse_fill_empty_rows, with the first extent of dense_shape as the attribute rows. (Of resat's own making.)",
        ["sparse_indices", "sparse_values", "default_value"],
        [field("rows", AttrKind::Int, AttrDefault::Required)],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (indices, values) = (tensor_arg(args, 0, "sparse_indices")?, tensor_arg(args, 1, "sparse_values")?);
        let rows = attrs.int("rows");
        op_ensure!((0..1 << 31).contains(&rows), "`rows` is {rows}");
        op_ensure!(
            indices.shape.get(1) != Some(&Dim::Known(0)),
            "C1: `sparse_indices` is {indices}, without a column for rows"
        );
        infer(indices, values, tensor_arg(args, 2, "default_value")?, Dim::Known(rows))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [indices, values, default] = [0, 1, 2].map(|k| args[k].tensor());
        eval(indices, values, default, attrs.int("rows"))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [indices, values, default] = [0, 1, 2].map(|k| args[k].tensor());
        let rows = attrs.int("rows");
        let (entries, depth) = (b.shape(indices)[0], b.shape(indices)[1]);
        let default_at: &[i64] = if b.shape(default).is_empty() { &[] } else { &[0] };
        let (new_indices, new_values, empty, count) = b.routine(|r| {
            let new_indices = r.output(&[entries + rows, depth], DType::I64);
            let new_values = r.output(&[entries + rows], DType::I64);
            let empty = r.output(&[rows], DType::I64);
            let count = r.output(&[1], DType::I64);
            r.for_(rows, |r, i| r.store(empty, [i], 0));
            let (at, next) = (r.var(0), r.var(0));
            // Rows from `next` up to one that has an entry get theirs. No row gets two: there is room for all.
            let fill_to = |r: &mut crate::loops::Nest<'_>, row: Scalar| {
                let to = r.let_(row.min(Scalar::index(rows)));
                r.for_range(r.get(next), to, |r, row| {
                    let place = r.let_(r.get(at));
                    r.store(new_indices, [place.clone(), Scalar::index(0)], row.clone());
                    r.for_(depth - 1, |r, k| r.store(new_indices, [place.clone(), k + 1], 0));
                    let value = r.read(default, default_at.iter().copied()).cast(DType::I64);
                    r.store(new_values, [place.clone()], value);
                    r.store(empty, [row], 1);
                    r.set(at, place + 1);
                });
            };
            r.for_(entries, |r, entry| {
                let row = r.let_(r.read(indices, [entry.clone(), Scalar::index(0)]).cast(DType::I64));
                fill_to(r, row.clone());
                let place = r.let_(r.get(at));
                r.for_(depth, |r, k| {
                    let index = r.read(indices, [entry.clone(), k.clone()]).cast(DType::I64);
                    r.store(new_indices, [place.clone(), k], index);
                });
                let value = r.read(values, [entry]).cast(DType::I64);
                r.store(new_values, [place.clone()], value);
                r.set(at, place + 1);
                let after = r.let_(row.min(Scalar::index(rows)) + 1);
                r.set(next, r.get(next).max(after));
            });
            fill_to(r, Scalar::index(rows));
            r.store(count, [0], r.get(at));
            (new_indices, new_values, empty, count)
        });
        let counted = |tensor| Operand::Counted { tensor, count };
        Ok(Operand::Tuple(vec![counted(new_indices), counted(new_values), empty.into()]))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |rows: i64, entries: i64, depth: i64, d: DType| {
            let args = vec![t(&[entries, depth], d), t(&[entries], DType::I32), t(&[1], DType::I32)];
            sample([("rows", rows.into())], args)
        };
        vec![call(6, 3, 2, DType::I64), call(2, 4, 1, DType::I32), call(3, 0, 3, DType::I64), call(0, 2, 2, DType::I64)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_entries_get_one() {
        let op = op("sparse_fill_empty_rows").op();
        let args = [
            Tensor::from_slice(&[4, 2], &[0i64, 3, 1, 0, 1, 2, 3, 1]),
            Tensor::from_slice(&[4], &[5i64, 10, 13, 14]),
            Tensor::from_slice(&[2], &[5i64, 6]),
            Tensor::from_slice(&[1], &[7i64]),
        ];
        let out = op.eval(&Attrs::empty(), &args.map(Value::from)).unwrap_or_else(|e| panic!("{e}")).flatten();
        assert_eq!(out[0], Tensor::from_slice(&[6, 2], &[0i64, 3, 1, 0, 1, 2, 2, 0, 3, 1, 4, 0]));
        assert_eq!(out[1], Tensor::from_slice(&[6], &[5i64, 10, 13, 7, 14, 7]));
        assert_eq!(out[2], Tensor::from_slice(&[5], &[0i64, 0, 1, 0, 1]));
    }
}
