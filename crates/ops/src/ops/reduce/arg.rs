//! Where the extremes are.

use super::{AXIS, EXCLUDE, KEEPDIMS, Plan, attribute_samples, fold::reduce, reduced_axes};
use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{elements, field, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &ArgExtreme {
        name: "argmax",
        doc: "Place (int32) of the greatest over the given axes (all, where none are given; all others with exclude), counted
        row-major over these axes; of equals the first, or the last with select_last_index. NaN are left out; of nothing else it is the
        last place, or the first with select_last_index.",
        greatest: true,
    },
    &ArgExtreme {
        name: "argmin",
        doc: "Place (int32) of the least over the given axes (all, where none are given; all others with exclude), counted
        row-major over these axes; of equals the first, or the last with select_last_index. NaN are left out; of nothing else it is the
        last place, or the first with select_last_index.",
        greatest: false,
    },
];

/// `argmax` or `argmin`.
#[derive(Debug)]
struct ArgExtreme {
    name: &'static str,
    doc: &'static str,
    greatest: bool,
}

impl ArgExtreme {
    /// For each element of the result the place of its extreme, of values in the input's order.
    fn places<T: PartialOrd + Copy>(&self, values: &[T], targets: &[usize], count: usize, last: bool) -> Vec<i64> {
        let mut seen = vec![0i64; count];
        let mut best: Vec<Option<(T, i64)>> = vec![None; count];
        for (&v, &to) in values.iter().zip(targets) {
            let better = match best[to] {
                // NaN, which alone is not itself, is no extreme.
                None => v.partial_cmp(&v).is_some(),
                Some((b, _)) if last && v == b => true,
                Some((b, _)) => {
                    if self.greatest {
                        v > b
                    } else {
                        v < b
                    }
                }
            };
            if better {
                best[to] = Some((v, seen[to]));
            }
            seen[to] += 1;
        }
        let missing = |seen: i64| if last { 0 } else { (seen - 1).max(0) };
        best.into_iter().zip(seen).map(|(b, seen)| b.map_or(missing(seen), |(_, at)| at)).collect()
    }
}

impl Op for ArgExtreme {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] =
            &[AXIS, KEEPDIMS, field("select_last_index", AttrKind::Bool, AttrDefault::Bool(false)), EXCLUDE];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Reduce
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype != DType::Bool, "`data` is {x}, but the operator takes numbers only");
        Ok(Plan::new(attrs, x.rank())?.infer(x, DType::I32))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let plan = Plan::new(attrs, x.shape().len())?;
        let (targets, shape) = (plan.targets(x.shape()), plan.shape(x.shape(), 1));
        let (count, last) = (shape.iter().product(), attrs.bool("select_last_index"));
        let places = match x.dtype() {
            DType::U64 => self.places(x.as_slice::<u64>(), &targets, count, last),
            d if d.is_float() => self.places(&x.to_f64_vec(), &targets, count, last),
            _ => self.places(&x.to_i64_vec(), &targets, count, last),
        };
        Ok(Tensor::from_i64_fn(DType::I32, &shape, |i| places[i]).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        reduced_axes(attrs, &args[0])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 2.0 * elements(&args[0]), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let plan = Plan::new(attrs, from.len())?;
        let (shape, over) = (plan.shape(&from, 1), plan.over(&from));
        // Of one element and of none it is the first.
        if over.is_empty() || over.contains(&0) {
            return Ok(b.map(&shape, |_, _| Scalar::int(0, DType::I32)).into());
        }
        // First the extreme itself, then the least (last: greatest) place that holds it.
        let extreme = if self.greatest { Combine::Max } else { Combine::Min };
        let best = reduce(b, &shape, &over, extreme, dtype, |b, i, r| b.read(x, plan.index(i, r)));
        let (places, missing) = match attrs.bool("select_last_index") {
            true => (Combine::Max, 0),
            false => (Combine::Min, over.iter().product::<i64>() - 1),
        };
        let out = b.reduce(&shape, &over, places, |b, i, r| {
            let value = b.read(x, plan.index(i, r));
            let at = r.iter().zip(&over).fold(Scalar::index(0), |sum, (r, &n)| sum * n + r.clone());
            let found = Scalar::binary(BinOp::Eq, value, b.read(best, i.iter().cloned()));
            Scalar::select(found, at.cast(DType::I32), Scalar::int(missing, DType::I32))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let dtypes = [DType::F32, DType::I32, DType::I8, DType::U8];
        let mut calls: Vec<Sample> = attribute_samples()
            .into_iter()
            .enumerate()
            .map(|(k, (attrs, s))| Sample { attrs, args: vec![t(s, dtypes[k % 4])] })
            .collect();
        calls.push(Sample {
            attrs: vec![("axis", [-1].into()), ("select_last_index", true.into())],
            args: vec![t(&[2, 5], DType::I32)],
        });
        calls
    }
}
