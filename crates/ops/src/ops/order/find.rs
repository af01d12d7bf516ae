//! Places of elements.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{lowered_shapes, op_head, sample, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&ArgWhere, &UnravelIndex];

/// `argwhere`.
#[derive(Debug)]
struct ArgWhere;

impl Op for ArgWhere {
    op_head!(
        "argwhere",
        "The indices (int32) of the elements of condition that are not zero, a row each, in row-major order.",
        ["condition"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "condition")?;
        Ok(TensorType::of([Dim::Any, Dim::Known(x.rank() as i64)], DType::I32).into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let set: Vec<usize> = match x.dtype().is_float() {
            true => x.to_f64_vec().iter().enumerate().filter(|(_, v)| **v != 0.0).map(|(i, _)| i).collect(),
            false => x.to_i64_vec().iter().enumerate().filter(|(_, v)| **v != 0).map(|(i, _)| i).collect(),
        };
        let (rank, strides) = (x.shape().len(), row_major_strides(x.shape()));
        let out = |i: usize| (set[i / rank] / strides[i % rank] % x.shape()[i % rank]) as i64;
        Ok(Tensor::from_i64_fn(DType::I32, &[set.len(), rank], out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let most = shape.iter().product();
        let (tensor, count) = b.routine(|r| {
            let rows = r.output(&[most, shape.len() as i64], DType::I32);
            let count = r.output(&[1], DType::I64);
            let found = r.var(0);
            r.for_each(&shape, |r, index| {
                let set = r.read(x, index.iter().cloned()).differs(Scalar::int(0, dtype));
                r.if_(set, |r| {
                    let row = r.let_(r.get(found));
                    for (k, i) in index.iter().enumerate() {
                        r.store(rows, [row.clone(), Scalar::index(k as i64)], i.clone().cast(DType::I32));
                    }
                    r.set(found, row + 1);
                });
            });
            r.store(count, [0], r.get(found));
            (rows, count)
        });
        Ok(Operand::Counted { tensor, count })
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 3], DType::Bool)]),
            sample([], vec![t(&[4], DType::F32)]),
            sample([], vec![t(&[], DType::I32)]),
            sample([], vec![t(&[2, 0, 3], DType::I32)]),
        ]
    }
}

/// `unravel_index`.
#[derive(Debug)]
struct UnravelIndex;

impl Op for UnravelIndex {
    op_head!(
        "unravel_index",
        "For each element of data the index, under shape, of the element of that row-major number, a row per axis of shape.
        C1: data holds integers and has no axes or one. C2: shape is a list of integers of known length.",
        ["data", "shape"],
        [],
        Injective
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, s) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "shape")?);
        op_ensure!(
            x.rank() <= 1 && x.dtype.is_int(),
            "C1: `data` is {x}, but should be integers with at most one axis"
        );
        op_ensure!(
            s.rank() == 1 && s.dtype.is_int() && s.shape[0].known().is_some(),
            "C2: `shape` is {s}, but should be a list of integers of known length"
        );
        Ok(TensorType::of([&s.shape[..], &x.shape[..]].concat(), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (values, extents) = (args[0].tensor().to_i64_vec(), args[1].tensor().to_i64_vec());
        op_ensure!(extents.iter().all(|&n| n > 0), "`shape` is {extents:?}, but should hold positive numbers");
        op_ensure!(values.iter().all(|&v| v >= 0), "`data` holds negative numbers");
        let n = values.len();
        let out = |i: usize| {
            let inner = extents[i / n + 1..].iter().fold(1i64, |p, &n| p.saturating_mul(n));
            values[i % n] / inner % extents[i / n]
        };
        Ok(Tensor::from_i64_fn(args[0].tensor().dtype(), &value_shapes(self, attrs, args)?[0], out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        AxisMap(vec![(0..rank).map(|k| AxisRole::Maps(k + 1)).collect(), vec![AxisRole::Opaque]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(4.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, s) = (args[0].tensor(), args[1].tensor());
        let dtype = b.dtype(x);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let out = b.map(&shape, |b, i| {
            let extent = |k: i64| b.read(s, [Scalar::index(k)]).cast(DType::I64);
            let value = b.read(x, i[1..].iter().cloned()).cast(DType::I64);
            // The product of the extents of further axes: those after this row's.
            let inner = (0..shape[0]).fold(Scalar::index(1), |p, k| {
                let after = i[0].clone().lt(Scalar::index(k));
                p * Scalar::select(after, extent(k), Scalar::index(1))
            });
            let mine = b.read(s, [i[0].clone()]).cast(DType::I64);
            Scalar::binary(BinOp::Rem, Scalar::binary(BinOp::Div, value, inner), mine).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[4], DType::I32), t(&[3], DType::I32)]),
            sample([], vec![t(&[], DType::I64), t(&[2], DType::I32)]),
        ]
    }
}
