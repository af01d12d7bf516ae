//! Sparse matrices by rows: all entries (or blocks of entries) one after another, the column of each, and where each row
//! starts among them, with the end of the last.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Work,
        nn::numbers::{Num, in_arithmetic},
        op_ensure,
        util::{
            bytes, elements, field, lowered_shapes, may_equal, op_head, opaque_axes, sample, t, tensor_arg,
            value_shapes, work_per_element,
        },
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Product {
        name: "nn.sparse_dense",
        doc: "dense_data times the transpose of a sparse matrix; with sparse_lhs the sparse matrix times the transpose of
        dense_data. sparse_data holds entries (one axis) or blocks of entries (three), sparse_indices their columns (of
        blocks), and sparse_indptr where each row (of blocks) starts among them, and the end.
        C1: sparse_data has one or three axes. C2: sparse_indices is a list of integers, one per entry. C3: sparse_indptr is a
        list of integers, not empty. C4: dense_data has two axes. C5: both are of one element type.",
        conv: false,
    },
    &Product {
        name: "nn.internal.sparse_dense_padded",
        doc: "The same as nn.sparse_dense, of matrices whose rows are filled up with zeros, as graphics processors like them.
        C1: sparse_data has one or three axes. C2: sparse_indices is a list of integers, one per entry. C3: sparse_indptr is a
        list of integers, not empty. C4: dense_data has two axes. C5: both are of one element type.",
        conv: false,
    },
    &Product {
        name: "nn.sparse_conv2d",
        doc: "conv2d of one tap with a sparse weight: at each place the products of dense_data's channels with a sparse matrix.
        sparse_data holds blocks of entries, of one column (two axes) or several (three), sparse_indices their columns (of
        blocks), and sparse_indptr where each row of blocks starts among them, and the end.
        C1: sparse_data has two or three axes. C2: sparse_indices is a list of integers, one per block. C3: sparse_indptr is a
        list of integers, not empty. C4: dense_data has the four axes of layout. C5: both are of one element type.
        C6: kernel_size is 1.",
        conv: true,
    },
    &SparseAdd,
    &SparseTranspose,
];

/// Checks the three lists of a sparse matrix, and gives its number of rows (of blocks).
fn check_rows(args: &[Type], first: usize, dtype: DType) -> Result<Dim, OpError> {
    let (data, indices) = (tensor_arg(args, first, "sparse_data")?, tensor_arg(args, first + 1, "sparse_indices")?);
    let starts = tensor_arg(args, first + 2, "sparse_indptr")?;
    op_ensure!(
        indices.rank() == 1 && indices.dtype.is_int() && may_equal(indices.shape[0], data.shape[0]),
        "C2: `sparse_data` is {data} and `sparse_indices` {indices}"
    );
    op_ensure!(
        starts.rank() == 1 && starts.dtype.is_int() && starts.shape[0] != Dim::Known(0),
        "C3: `sparse_indptr` is {starts}, but should be a list of integers, not empty"
    );
    op_ensure!(data.dtype == dtype, "C5: `sparse_data` is {data}, but should hold {dtype}");
    Ok(starts.shape[0].known().map_or(Dim::Any, |n| Dim::Known(n - 1)))
}

/// The entries of each row, as numbers, in order; those that do not exist are left out.
fn entries(starts: &Tensor, count: usize) -> Vec<std::ops::Range<usize>> {
    let at = |k: usize| starts.get_i64(k).clamp(0, count as i64) as usize;
    (1..starts.len()).map(|row| at(row - 1)..at(row).max(at(row - 1))).collect()
}

/// A column that should be one of `extent`.
fn column(indices: &Tensor, entry: usize, extent: usize) -> Result<usize, OpError> {
    let c = indices.get_i64(entry);
    op_ensure!((0..extent as i64).contains(&c), "column {c} is not one of {extent}");
    Ok(c as usize)
}

/// Calls `body` for the number of each entry of a row.
fn for_row(r: &mut Nest<'_>, starts: TensorId, row: &Scalar, count: i64, body: impl FnOnce(&mut Nest<'_>, Scalar)) {
    let bound = |r: &Nest<'_>, at: Scalar| {
        let place = r.read(starts, [at]).cast(DType::I64);
        place.max(Scalar::index(0)).min(Scalar::index(count))
    };
    let (from, to) = (r.let_(bound(r, row.clone())), r.let_(bound(r, row.clone() + 1)));
    let to = to.max(from.clone());
    r.for_range(from, to, body);
}

/// A column, brought within its extent whatever the indices hold.
fn clamped(r: &Nest<'_>, indices: TensorId, entry: &Scalar, extent: i64) -> Scalar {
    let c = r.read(indices, [entry.clone()]).cast(DType::I64);
    c.max(Scalar::index(0)).min(Scalar::index(extent - 1))
}

/// `nn.sparse_dense` or `nn.sparse_conv2d`.
#[derive(Debug)]
struct Product {
    name: &'static str,
    doc: &'static str,
    conv: bool,
}

/// Where things are: the result has one axis for the sparse matrix's rows, in place of the dense array's for its columns.
struct Places {
    /// The dense array's axis that is summed over.
    summed: usize,
    /// The result's axis of the sparse matrix's rows.
    rows: usize,
    /// For each further axis of the dense array, the result's.
    others: Vec<(usize, usize)>,
}

impl Product {
    fn places(&self, attrs: &Attrs) -> Places {
        match (self.conv, self.conv && attrs.str("layout") == "NCHW") {
            (false, _) if attrs.bool("sparse_lhs") => Places { summed: 1, rows: 0, others: vec![(0, 1)] },
            (false, _) => Places { summed: 1, rows: 1, others: vec![(0, 0)] },
            (true, true) => Places { summed: 1, rows: 1, others: vec![(0, 0), (2, 2), (3, 3)] },
            (true, false) => Places { summed: 3, rows: 3, others: vec![(0, 0), (1, 1), (2, 2)] },
        }
    }

    fn ranks(&self) -> [usize; 2] {
        if self.conv { [2, 3] } else { [1, 3] }
    }
}

impl Op for Product {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["dense_data", "sparse_data", "sparse_indices", "sparse_indptr"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const DENSE: &[AttrField] = &[field("sparse_lhs", AttrKind::Bool, AttrDefault::Bool(false))];
        const CONV: &[AttrField] = &[
            field("layout", AttrKind::OneOf(&["NHWC", "NCHW"]), AttrDefault::Str("NHWC")),
            field("kernel_size", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
        ];
        if self.conv { CONV } else { DENSE }
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, data) = (tensor_arg(args, 0, "dense_data")?, tensor_arg(args, 1, "sparse_data")?);
        op_ensure!(
            self.ranks().contains(&data.rank()),
            "C1: `sparse_data` is {data}, but should have {} or {} axes",
            self.ranks()[0],
            self.ranks()[1]
        );
        let rows = check_rows(args, 1, x.dtype)?;
        let rank = if self.conv { 4 } else { 2 };
        op_ensure!(x.rank() == rank, "C4: `dense_data` is {x}, but should have {rank} axes");
        if self.conv {
            let size = attrs.ints("kernel_size");
            op_ensure!(size.iter().all(|&n| n == 1), "C6: `kernel_size` is {size:?}");
        }
        let per_block = data.shape.get(1).copied().unwrap_or(Dim::Known(1));
        let rows = match (rows, per_block) {
            (Dim::Known(n), Dim::Known(m)) => Dim::Known(n.saturating_mul(m)),
            _ => Dim::Any,
        };
        let places = self.places(attrs);
        let mut shape = vec![rows; rank];
        places.others.iter().for_each(|&(from, to)| shape[to] = x.shape[from]);
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let all = [0, 1, 2, 3].map(|k| args[k].tensor());
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let out = in_arithmetic!(all[0].dtype(), multiply(&self.places(attrs), all, &shape))?;
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let summed = self.places(attrs).summed;
        let columns = args[0].as_tensor().and_then(|t| t.shape.get(summed)?.known()).unwrap_or(1).max(1);
        let lines = elements(&args[0]) / columns as f64;
        Work {
            flops: 2.0 * lines * elements(&args[1]),
            bytes_read: args.iter().map(bytes).sum(),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, data, indices, starts] = [0, 1, 2, 3].map(|k| args[k].tensor());
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (places, dtype) = (self.places(attrs), b.dtype(x));
        let data_shape = b.shape(data).to_vec();
        let (height, width) = block(&data_shape);
        let columns = b.shape(x)[places.summed] / width.max(1);
        let mut over: Vec<i64> = places.others.iter().map(|&(from, _)| b.shape(x)[from]).collect();
        over.push(b.shape(starts)[0] - 1);
        let out = b.routine(|r| {
            let out = r.output(&shape, dtype);
            r.parallel_each(&over, |r, i| {
                let row = i[over.len() - 1].clone();
                r.for_(height, |r, line| {
                    let sum = r.var(Scalar::int(0, dtype));
                    let (mut from, mut to) = (vec![Scalar::index(0); shape.len()], vec![Scalar::index(0); shape.len()]);
                    for (&(a, b), k) in places.others.iter().zip(i) {
                        (from[a], to[b]) = (k.clone(), k.clone());
                    }
                    to[places.rows] = row.clone() * height + line.clone();
                    if columns > 0 {
                        for_row(r, starts, &row, data_shape[0], |r, entry| {
                            let column = r.let_(clamped(r, indices, &entry, columns) * width);
                            r.for_(width, |r, c| {
                                from[places.summed] = column + c.clone();
                                let at = [entry, line, c];
                                let value = r.read(data, at[..data_shape.len()].iter().cloned());
                                r.set(sum, r.get(sum) + value * r.read(x, from));
                            });
                        });
                    }
                    r.store(out, to, r.get(sum));
                });
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |name: &'static str, value: AttrValue, x: &[i64], data: &[i64], rows: i64, d: DType| {
            sample([(name, value)], vec![t(x, d), t(data, d), t(&data[..1], DType::I32), t(&[rows + 1], DType::I32)])
        };
        let f = DType::F32;
        match self.conv {
            false => vec![
                call("sparse_lhs", false.into(), &[2, 4], &[4], 3, f),
                call("sparse_lhs", true.into(), &[2, 4], &[4], 3, f),
                call("sparse_lhs", false.into(), &[2, 8], &[4, 3, 2], 2, f),
                call("sparse_lhs", true.into(), &[2, 8], &[4, 1, 2], 3, DType::F16),
                call("sparse_lhs", false.into(), &[2, 4], &[5], 2, DType::I8),
                call("sparse_lhs", false.into(), &[2, 4], &[0], 2, f),
            ],
            true => vec![
                call("layout", "NHWC".into(), &[1, 2, 3, 8], &[4, 3, 2], 2, f),
                call("layout", "NCHW".into(), &[2, 8, 1, 2], &[4, 1, 2], 3, f),
                call("layout", "NCHW".into(), &[1, 4, 2, 2], &[4, 2], 3, f),
            ],
        }
    }
}

/// Rows and columns of a block of entries.
fn block(data: &[i64]) -> (i64, i64) {
    (data.get(1).copied().unwrap_or(1), data.get(2).copied().unwrap_or(1))
}

fn multiply<T: Num>(places: &Places, args: [&Tensor; 4], shape: &[usize]) -> Result<Tensor, OpError> {
    let [x, data, indices, starts] = args;
    let (from, to) = (row_major_strides(x.shape()), row_major_strides(shape));
    // The offsets of all places along the axes that nothing is summed over.
    let mut lines = vec![(0, 0)];
    for &(a, b) in &places.others {
        let (steps, n) = ((from[a], to[b]), x.shape()[a]);
        lines = lines.iter().flat_map(|&(i, o)| (0..n).map(move |k| (i + k * steps.0, o + k * steps.1))).collect();
    }
    let extents: Vec<i64> = data.shape().iter().map(|&n| n as i64).collect();
    let (height, width) = block(&extents);
    let (height, width) = (height as usize, width as usize);
    let columns = x.shape()[places.summed] / width.max(1);
    let (xs, ds) = (T::read(x), T::read(data));
    let mut out = vec![T::default(); shape.iter().product()];
    for (row, entries) in entries(starts, data.shape()[0]).into_iter().enumerate() {
        for e in entries {
            let first = column(indices, e, columns)? * width;
            for (r, c) in (0..height).flat_map(|r| (0..width).map(move |c| (r, c))) {
                for &(i, o) in &lines {
                    let product = ds[(e * height + r) * width + c] * xs[i + (first + c) * from[places.summed]];
                    out[o + (row * height + r) * to[places.rows]] += product;
                }
            }
        }
    }
    Ok(T::write(x.dtype(), shape, &out))
}

/// `nn.sparse_add`.
#[derive(Debug)]
struct SparseAdd;

fn add<T: Num>(args: [&Tensor; 4]) -> Result<Tensor, OpError> {
    let [x, data, indices, starts] = args;
    let (mut out, ds, n) = (T::read(x), T::read(data), x.shape()[1]);
    for (row, entries) in entries(starts, data.len()).into_iter().enumerate() {
        for e in entries {
            out[row * n + column(indices, e, n)?] += ds[e];
        }
    }
    Ok(T::write(x.dtype(), x.shape(), &out))
}

impl Op for SparseAdd {
    op_head!(
        "nn.sparse_add",
        "dense_data plus a sparse matrix: sparse_data holds its entries, sparse_indices their columns, and sparse_indptr where
        each row starts among them, and the end. C1: sparse_data has one axis. C2: sparse_indices is a list of integers, one
        per entry. C3: sparse_indptr is a list of integers, one more than rows. C4: dense_data has two axes. C5: both are of
        one element type.",
        ["dense_data", "sparse_data", "sparse_indices", "sparse_indptr"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, data) = (tensor_arg(args, 0, "dense_data")?, tensor_arg(args, 1, "sparse_data")?);
        op_ensure!(data.rank() == 1, "C1: `sparse_data` is {data}, but should have one axis");
        let rows = check_rows(args, 1, x.dtype)?;
        op_ensure!(x.rank() == 2, "C4: `dense_data` is {x}, but should have two axes");
        op_ensure!(may_equal(rows, x.shape[0]), "C3: `dense_data` is {x}, and `sparse_indptr` for {rows} rows");
        Ok(x.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let all = [0, 1, 2, 3].map(|k| args[k].tensor());
        Ok(in_arithmetic!(all[0].dtype(), add(all))?.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: elements(&args[1]), ..work_per_element(0.0, args, out) }
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, data, indices, starts] = [0, 1, 2, 3].map(|k| args[k].tensor());
        let (shape, dtype, count) = (b.shape(x).to_vec(), b.dtype(x), b.shape(data)[0]);
        let (rows, columns) = (shape[0], shape[1]);
        let out = b.routine(|r| {
            let out = r.output(&shape, dtype);
            r.parallel(rows, |r, row| {
                r.for_(columns, |r, c| {
                    let at = [row.clone(), c];
                    r.store(out, at.clone(), r.read(x, at));
                });
                if columns > 0 {
                    for_row(r, starts, &row, count, |r, entry| {
                        let c = r.let_(clamped(r, indices, &entry, columns));
                        let at = [row.clone(), c];
                        r.store(out, at.clone(), r.read(out, at) + r.read(data, [entry]));
                    });
                }
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], entries: i64, d: DType, index: DType| {
            sample([], vec![t(x, d), t(&[entries], d), t(&[entries], index), t(&[x[0] + 1], index)])
        };
        vec![
            call(&[3, 4], 4, DType::F32, DType::I32),
            call(&[2, 5], 3, DType::I8, DType::I64),
            call(&[2, 4], 0, DType::F32, DType::I32),
        ]
    }
}

/// `nn.sparse_transpose`.
#[derive(Debug)]
struct SparseTranspose;

impl Op for SparseTranspose {
    op_head!(
        "nn.sparse_transpose",
        "The transpose of a square sparse matrix: sparse_data holds its entries, sparse_indices their columns, and
        sparse_indptr where each row starts among them, and the end; the result likewise. Entries of one column keep their
        order. C1: sparse_data has one axis. C2: sparse_indices is a list of integers, one per entry. C3: sparse_indptr is a
        list of integers, not empty.",
        ["sparse_data", "sparse_indices", "sparse_indptr"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let data = tensor_arg(args, 0, "sparse_data")?;
        op_ensure!(data.rank() == 1, "C1: `sparse_data` is {data}, but should have one axis");
        check_rows(args, 0, data.dtype)?;
        Ok(Type::tuple(args.iter().cloned()))
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [data, indices, starts] = [0, 1, 2].map(|k| args[k].tensor());
        let (count, n) = (data.len(), starts.len() - 1);
        let mut all = Vec::with_capacity(count);
        for (row, entries) in entries(starts, count).into_iter().enumerate() {
            for e in entries {
                all.push((column(indices, e, n)?, row, e));
            }
        }
        all.sort_by_key(|&(column, ..)| column);
        let out_starts = |k: usize| all.partition_point(|&(column, ..)| column < k) as i64;
        let out_starts = Tensor::from_i64_fn(starts.dtype(), &[n + 1], out_starts);
        // Where rows leave entries out, the rest is zero.
        let out_indices =
            Tensor::from_i64_fn(indices.dtype(), &[count], |i| all.get(i).map_or(0, |&(_, row, _)| row as i64));
        let out_data = data.pick(&[count], |i| all.get(i).map(|&(.., e)| e));
        Ok(Value::Tuple(vec![out_data.into(), out_indices.into(), out_starts.into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(2.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [data, indices, starts] = [0, 1, 2].map(|k| args[k].tensor());
        let (count, n) = (b.shape(data)[0], b.shape(starts)[0] - 1);
        let (dtype, index_dtype, start_dtype) = (b.dtype(data), b.dtype(indices), b.dtype(starts));
        let out = b.routine(|r| {
            let out = [r.output(&[count], dtype), r.output(&[count], index_dtype), r.output(&[n + 1], start_dtype)];
            // Where the next entry of each column goes; first, one place on, how many there are.
            let next = r.scratch(&[n + 1], DType::I64);
            r.for_(count, |r, i| {
                r.store(out[0], [i.clone()], Scalar::int(0, dtype));
                r.store(out[1], [i], 0);
            });
            r.for_(n + 1, |r, i| r.store(next, [i], 0));
            if n > 0 {
                r.for_(n, |r, row| {
                    for_row(r, starts, &row, count, |r, entry| {
                        let c = r.let_(clamped(r, indices, &entry, n) + 1);
                        r.store(next, [c.clone()], r.read(next, [c]) + 1);
                    });
                });
            }
            r.for_(n, |r, c| r.store(next, [c.clone() + 1], r.read(next, [c.clone()]) + r.read(next, [c + 1])));
            r.for_(n + 1, |r, i| r.store(out[2], [i.clone()], r.read(next, [i]).cast(start_dtype)));
            if n > 0 {
                r.for_(n, |r, row| {
                    for_row(r, starts, &row, count, |r, entry| {
                        let c = r.let_(clamped(r, indices, &entry, n));
                        let to = r.let_(r.read(next, [c.clone()]));
                        let value = r.read(data, [entry]);
                        r.store_within(out[0], [to.clone()], value);
                        r.store_within(out[1], [to.clone()], row.clone().cast(index_dtype));
                        r.store(next, [c], to + 1);
                    });
                });
            }
            out
        });
        Ok(Operand::Tuple(out.map(Operand::Tensor).into()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |rows: i64, entries: i64, d: DType, index: DType| {
            sample([], vec![t(&[entries], d), t(&[entries], index), t(&[rows + 1], index)])
        };
        vec![call(4, 5, DType::F32, DType::I32), call(5, 3, DType::I8, DType::I64), call(4, 0, DType::F32, DType::I32)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{make_attrs, op};

    fn run(name: &str, given: &[(&str, AttrValue)], args: &[&Tensor]) -> Vec<Tensor> {
        let op = op(name);
        let given: Vec<_> = given.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let attrs = make_attrs(op, &given).unwrap_or_else(|e| panic!("{e}"));
        let args: Vec<Value> = args.iter().map(|&t| t.clone().into()).collect();
        op.op().eval(&attrs, &args).unwrap_or_else(|e| panic!("{e}")).flatten()
    }

    /// The matrix [[0, 2, 0], [3, 0, 4], [0, 0, 5]].
    fn matrix() -> [Tensor; 3] {
        [
            Tensor::from_slice(&[4], &[2.0f32, 3.0, 4.0, 5.0]),
            Tensor::from_slice(&[4], &[1i32, 0, 2, 2]),
            Tensor::from_slice(&[4], &[0i32, 1, 3, 4]),
        ]
    }

    #[test]
    fn products_are_those_of_the_dense_matrix() {
        let [data, indices, starts] = matrix();
        let x = Tensor::from_slice(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let out = run("nn.sparse_dense", &[], &[&x, &data, &indices, &starts]);
        assert_eq!(out, [Tensor::from_slice(&[2, 3], &[4.0f32, 15.0, 15.0, 10.0, 36.0, 30.0])]);
        let out = run("nn.sparse_dense", &[("sparse_lhs", true.into())], &[&x, &data, &indices, &starts]);
        assert_eq!(out, [Tensor::from_slice(&[3, 2], &[4.0f32, 10.0, 15.0, 36.0, 15.0, 30.0])]);
    }

    #[test]
    fn sums_are_those_of_the_dense_matrix() {
        let [data, indices, starts] = matrix();
        let x = Tensor::from_slice(&[3, 3], &[1.0f32; 9]);
        let out = run("nn.sparse_add", &[], &[&x, &data, &indices, &starts]);
        assert_eq!(out, [Tensor::from_slice(&[3, 3], &[1.0f32, 3.0, 1.0, 4.0, 1.0, 5.0, 1.0, 1.0, 6.0])]);
    }

    #[test]
    fn transposed_twice_is_the_same() {
        let m = matrix();
        let once = run("nn.sparse_transpose", &[], &[&m[0], &m[1], &m[2]]);
        assert_eq!(once[0], Tensor::from_slice(&[4], &[3.0f32, 2.0, 4.0, 5.0]));
        assert_eq!(once[2], Tensor::from_slice(&[4], &[0i32, 1, 2, 4]));
        assert_eq!(run("nn.sparse_transpose", &[], &[&once[0], &once[1], &once[2]]), m);
    }
}
