//! Places of given values: in sorted lines, and in permutations.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, may_equal, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&SearchSorted, &InvertPermutation];

/// `searchsorted`.
#[derive(Debug)]
struct SearchSorted;

/// Steps that halving `n` places down to none takes.
fn halvings(n: i64) -> u32 {
    64 - (n.max(0) as u64).leading_zeros()
}

/// The place that a binary search of `n` elements ends at: before the first that `goes_before` denies.
fn search(n: usize, goes_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if goes_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl Op for SearchSorted {
    op_head!(
        "searchsorted",
        "For each of values the place (as dtype) in the ascending line of sorted_sequence at which it would be inserted: before
        all elements that are not less, or, with right, after all that are not greater. Values of outer index b are looked up
        in line b; a sequence of one axis serves all. C1: values have an axis. C2: a sequence of several axes has values'
        axes, with equal extents but for the last. C3: element types are equal.",
        ["sorted_sequence", "values"],
        [
            field("right", AttrKind::Bool, AttrDefault::Bool(false)),
            field("dtype", AttrKind::DType, AttrDefault::DType(DType::I32))
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (line, values) = (tensor_arg(args, 0, "sorted_sequence")?, tensor_arg(args, 1, "values")?);
        op_ensure!(values.rank() > 0, "C1: `values` is {values}, but should have an axis");
        let batch = line.rank().saturating_sub(1);
        op_ensure!(
            line.rank() == 1
                || (line.rank() == values.rank() && (0..batch).all(|k| may_equal(line.shape[k], values.shape[k]))),
            "C2: `sorted_sequence` is {line} and `values` {values}"
        );
        op_ensure!(line.dtype == values.dtype, "C3: `sorted_sequence` is {line} and `values` {values}");
        let dtype = attrs.opt_dtype("dtype").unwrap_or(DType::I32);
        op_ensure!(dtype.is_int(), "`dtype` is {dtype}, but should be an integer type");
        Ok(TensorType { shape: values.shape.clone(), dtype }.into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (line, values) = (args[0].tensor(), args[1].tensor());
        let (n, m) = (line.shape()[line.shape().len() - 1], values.shape()[values.shape().len() - 1]);
        let (right, unsigned) = (attrs.bool("right"), line.dtype() == DType::U64);
        let before = |a: usize, v: usize| match line.dtype().is_float() {
            true if right => line.get_f64(a) <= values.get_f64(v),
            true => line.get_f64(a) < values.get_f64(v),
            false => {
                let [a, v] =
                    [line.get_i64(a), values.get_i64(v)].map(|i| if unsigned { i as u64 as i128 } else { i.into() });
                a < v || (right && a == v)
            }
        };
        let place = |v: usize| {
            let start = if line.shape().len() == 1 { 0 } else { v / m * n };
            search(n, |k| before(start + k, v)) as i64
        };
        Ok(Tensor::from_i64_fn(attrs.opt_dtype("dtype").unwrap_or(DType::I32), values.shape(), place).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = [0, 1].map(|k| args[k].as_tensor().map_or(0, TensorType::rank));
        let line = (0..ranks[0]).map(|k| if k + 1 < ranks[0] { AxisRole::Maps(k) } else { AxisRole::Opaque });
        AxisMap(vec![line.collect(), (0..ranks[1]).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let n = args[0].as_tensor().and_then(|x| x.shape.last()?.known()).unwrap_or(1);
        work_per_element(8.0 * halvings(n) as f64, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (line, values) = (args[0].tensor(), args[1].tensor());
        let (from, shape) = (b.shape(line).to_vec(), b.shape(values).to_vec());
        let n = from[from.len() - 1];
        let order = if attrs.bool("right") { BinOp::Le } else { BinOp::Lt };
        let dtype = attrs.opt_dtype("dtype").unwrap_or(DType::I32);
        let out = b.routine(|r| {
            let out = r.output(&shape, dtype);
            r.parallel_each(&shape, |r, i| {
                let value = r.let_(r.read(values, i.iter().cloned()));
                let (low, high) = (r.var(0), r.var(n));
                r.while_(r.get(low).lt(r.get(high)), |r| {
                    let middle = r.let_(r.get(low) + (r.get(high) - r.get(low)).floor_div(2));
                    let at = i[..from.len() - 1].iter().chain([&middle]).cloned();
                    let before = Scalar::binary(order, r.read(line, at), value.clone());
                    r.if_else(before, |r| r.set(low, middle.clone() + 1), |r| r.set(high, middle.clone()));
                });
                r.store(out, i.iter().cloned(), r.get(low).cast(dtype));
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |right: bool, to: DType, line: &[i64], values: &[i64], d| {
            sample([("right", right.into()), ("dtype", to.into())], vec![t(line, d), t(values, d)])
        };
        vec![
            call(false, DType::I32, &[5], &[2, 3], DType::F32),
            call(true, DType::I64, &[2, 4], &[2, 3], DType::I32),
            call(false, DType::I32, &[2, 1], &[2, 2], DType::U8),
            call(true, DType::I32, &[0], &[3], DType::F32),
        ]
    }
}

/// `invert_permutation`.
#[derive(Debug)]
struct InvertPermutation;

impl Op for InvertPermutation {
    op_head!(
        "invert_permutation",
        "out[data[i]] = i. Places that data does not name are 0; of those that it names several times, the last counts.
        C1: data holds integers along one axis. Numbers that are no place are not allowed.",
        ["data"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.rank() == 1 && x.dtype.is_int(), "C1: `data` is {x}, but should be integers along one axis");
        Ok(x.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let mut places = vec![0; x.len()];
        for (i, at) in x.to_i64_vec().into_iter().enumerate() {
            op_ensure!((0..x.len() as i64).contains(&at), "{at} is not one of {} places", x.len());
            places[at as usize] = i as i64;
        }
        Ok(Tensor::from_i64_fn(x.dtype(), x.shape(), |i| places[i]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (n, dtype) = (b.shape(x)[0], b.dtype(x));
        let out = b.routine(|r| {
            let out = r.output(&[n], dtype);
            r.for_(n, |r, i| r.store(out, [i], Scalar::int(0, dtype)));
            r.for_(n, |r, i| {
                let at = r.let_(r.read(x, [i.clone()]).cast(DType::I64));
                r.store_within(out, [at], i.cast(dtype));
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        [(4, DType::I32), (5, DType::I64), (4, DType::U8)].map(|(n, d)| sample([], vec![t(&[n], d)])).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_end_where_the_line_rises_above() {
        let line = [1, 3, 3, 7];
        let left = |v: i32| search(4, |k| line[k] < v);
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(left), [0, 0, 1, 1, 3, 3, 4]);
        assert_eq!([0, 1, 2, 3, 4].map(halvings), [0, 1, 2, 2, 3]);
    }
}
