//! Distinct elements.

use hashbrown::HashMap;

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, make_attrs, op, op_ensure,
        util::{field, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Unique];

/// `unique`.
#[derive(Debug)]
struct Unique;

impl Op for Unique {
    op_head!(
        "unique",
        "A tuple of: the distinct elements of data, ascending where sorted, else as they first occur; the place at which each
        first occurs (int32); for each of data's elements, which of the distinct ones it is (int32); how many are distinct
        (int32, along an axis of one); and with return_counts, how often each occurs (int32). What is given of each distinct
        element is as long as data: after the last of them follow zeros, and data's length in place of places.
        C1: data holds numbers along one axis, none of them NaN.",
        ["data"],
        [
            field("sorted", AttrKind::Bool, AttrDefault::Bool(true)),
            field("return_counts", AttrKind::Bool, AttrDefault::Bool(false))
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.rank() == 1 && x.dtype != DType::Bool, "C1: `data` is {x}, but should be numbers along one axis");
        let places = || Type::from(TensorType { shape: x.shape.clone(), dtype: DType::I32 });
        let mut fields = vec![x.clone().into(), places(), places(), Type::tensor(&[1], DType::I32)];
        if attrs.bool("return_counts") {
            fields.push(places());
        }
        Ok(Type::tuple(fields))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let n = x.len();
        // Equal numbers have equal keys, of which the order is theirs. NaNs, too, are put together.
        let key = |i: usize| match x.dtype().is_float() {
            true => {
                let v = x.get_f64(i) + 0.0;
                let bits = if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() } as i64;
                bits ^ ((bits >> 63) as u64 >> 1) as i64
            }
            false if x.dtype() == DType::U64 => x.get_i64(i) ^ i64::MIN,
            false => x.get_i64(i),
        };
        let mut known: HashMap<i64, usize> = HashMap::new();
        let mut firsts: Vec<usize> = Vec::new();
        let mut which: Vec<usize> = Vec::with_capacity(n);
        for i in 0..n {
            let number = *known.entry(key(i)).or_insert_with(|| (firsts.push(i), firsts.len() - 1).1);
            which.push(number);
        }
        if attrs.bool("sorted") {
            let mut order: Vec<usize> = (0..firsts.len()).collect();
            order.sort_by_key(|&number| key(firsts[number]));
            let mut renamed = vec![0; order.len()];
            order.iter().enumerate().for_each(|(new, &old)| renamed[old] = new);
            firsts = order.iter().map(|&old| firsts[old]).collect();
            which.iter_mut().for_each(|number| *number = renamed[*number]);
        }
        let places = |f: &dyn Fn(usize) -> usize| Value::from(Tensor::from_i64_fn(DType::I32, &[n], |i| f(i) as i64));
        let mut fields = vec![
            x.pick(&[n], |i| firsts.get(i).copied()).into(),
            places(&|i| firsts.get(i).copied().unwrap_or(n)),
            places(&|i| which[i]),
            Tensor::from_slice(&[1], &[firsts.len() as i32]).into(),
        ];
        if attrs.bool("return_counts") {
            let mut counts = vec![0; n];
            which.iter().for_each(|&number| counts[number] += 1);
            fields.push(places(&|i| counts[i]));
        }
        Ok(Value::Tuple(fields))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([1])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let n = args[0].as_tensor().and_then(|x| x.shape.first()?.known()).unwrap_or(1);
        work_per_element(2.0 * n as f64, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (n, dtype) = (b.shape(x)[0], b.dtype(x));
        let argsort = op("argsort");
        let by_value = make_attrs(argsort, &[]).map_err(|e| OpError(e.to_string()))?;
        let order = argsort.op().lower(&by_value, args, b)?.tensor();
        let (sorted, counted) = (attrs.bool("sorted"), attrs.bool("return_counts"));
        let fields = b.routine(|r| {
            let elements = r.output(&[n], dtype);
            let [places, which] = [(); 2].map(|()| r.output(&[n], DType::I32));
            let distinct = r.output(&[1], DType::I32);
            let counts = counted.then(|| r.output(&[n], DType::I32));
            // Equals lie together in sorted order, and the first of them is the first to occur.
            let [groups, firsts] = [(); 2].map(|()| r.scratch(&[n], DType::I64));
            r.for_(n, |r, i| {
                r.store(elements, [i.clone()], Scalar::int(0, dtype));
                r.store(places, [i.clone()], Scalar::int(n, DType::I32));
                counts.iter().for_each(|&c| r.store(c, [i.clone()], 0));
                // Which is none of the places.
                r.store(firsts, [i], n);
            });
            let (found, last) = (r.var(-1), r.var(0));
            r.for_(n, |r, k| {
                let at = r.read(order, [k.clone()]).cast(DType::I64);
                let at = r.let_(at.max(Scalar::index(0)).min(Scalar::index(n - 1)));
                let other = r.read(x, [at.clone()]).differs(r.read(x, [r.get(last)]));
                r.if_(k.equals(0).or(other), |r| r.set(found, r.get(found) + 1));
                r.store(groups, [at.clone()], r.get(found));
                r.set(last, at);
            });
            // Distinct elements get their numbers in the order of their values or, met in data's order, of their places.
            let met = r.var(0);
            r.for_(n, |r, i| {
                let group = r.let_(r.read(groups, [i.clone()]));
                r.if_(r.read(firsts, [group.clone()]).equals(n), |r| {
                    let number = r.let_(if sorted { group.clone() } else { r.get(met) });
                    r.store(firsts, [group.clone()], number.clone());
                    r.store(elements, [number.clone()], r.read(x, [i.clone()]));
                    r.store(places, [number], i.clone().cast(DType::I32));
                    r.set(met, r.get(met) + 1);
                });
                let number = r.let_(r.read(firsts, [group]));
                r.store(which, [i], number.clone().cast(DType::I32));
                counts.iter().for_each(|&c| {
                    r.store(c, [number.clone()], r.read(c, [number.clone()]) + 1);
                });
            });
            r.store(distinct, [0], r.get(met).cast(DType::I32));
            [Some(elements), Some(places), Some(which), Some(distinct), counts]
        });
        Ok(Operand::Tuple(fields.into_iter().flatten().map(Operand::Tensor).collect()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |sorted: bool, counts: bool, n: i64, d| {
            sample([("sorted", sorted.into()), ("return_counts", counts.into())], vec![t(&[n], d)])
        };
        vec![
            call(true, false, 8, DType::I32),
            call(false, true, 8, DType::I64),
            call(true, true, 5, DType::U8),
            call(false, false, 4, DType::F32),
            call(true, true, 0, DType::I32),
        ]
    }
}
