//! Variance about a given mean.

use super::{AXIS, EXCLUDE, KEEPDIMS, Plan, fold::reduce, reduced_axes};
use crate::{
    ir::{AttrValue, Attrs, Dim, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{
            broadcast_read, broadcast_sources, elements, field, may_equal, op_head, sample, t, tensor_arg,
            work_per_element,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Variance];

/// `variance`.
#[derive(Debug)]
struct Variance;

impl Op for Variance {
    op_head!(
        "variance",
        "Sum of (data - mean)^2 over the given axes (all, where none are given; all others with exclude), divided by the
        number of summed elements, or by one less with unbiased. C1: data holds floats. C2: mean broadcasts to data, with as
        many axes and the same element type.",
        ["data", "mean"],
        [AXIS, KEEPDIMS, EXCLUDE, field("unbiased", AttrKind::Bool, AttrDefault::Bool(false))],
        Reduce
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, mean) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "mean")?);
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but the operator takes floats only");
        let fits = |k: usize| mean.shape[k] == Dim::Known(1) || may_equal(x.shape[k], mean.shape[k]);
        op_ensure!(
            x.rank() == mean.rank() && x.dtype == mean.dtype && (0..x.rank()).all(fits),
            "C2: `data` is {x} and `mean` is {mean}, which does not broadcast to it"
        );
        Ok(Plan::new(attrs, x.rank())?.infer(x, x.dtype))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, mean) = (args[0].tensor(), args[1].tensor());
        let plan = Plan::new(attrs, x.shape().len())?;
        let (targets, shape) = (plan.targets(x.shape()), plan.shape(x.shape(), 1));
        let sources = broadcast_sources(mean.shape(), x.shape());
        let (xs, means) = (x.to_f64_vec(), mean.to_f64_vec());
        let mut sums = vec![0.0; shape.iter().product()];
        for (i, &to) in targets.iter().enumerate() {
            let d = xs[i] - means[sources.at(i)];
            sums[to] += d * d;
        }
        let count = plan.over(x.shape()).iter().product::<usize>() as f64 - attrs.bool("unbiased") as u8 as f64;
        Ok(Tensor::from_f64_fn(x.dtype(), &shape, |i| sums[i] / count).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let mut map = reduced_axes(attrs, &args[0]);
        let role = |(k, d): (usize, &Dim)| match (d, map.0[0].get(k)) {
            (Dim::Known(1), Some(AxisRole::Maps(to))) => AxisRole::Broadcasts(*to),
            (_, Some(role)) => *role,
            (_, None) => AxisRole::Opaque,
        };
        let mean = args[1].as_tensor().map_or(vec![], |m| m.shape.iter().enumerate().map(role).collect());
        map.0.push(mean);
        map
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 3.0 * elements(&args[0]), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, mean) = (args[0].tensor(), args[1].tensor());
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let plan = Plan::new(attrs, from.len())?;
        let (shape, over) = (plan.shape(&from, 1), plan.over(&from));
        let sums = reduce(b, &shape, &over, Combine::Sum, dtype, |b, i, r| {
            let index = plan.index(i, r);
            let d = b.read(x, index.clone()) - broadcast_read(b, mean, &index);
            d.clone() * d
        });
        let count = over.iter().product::<i64>() - attrs.bool("unbiased") as i64;
        let out = b.map(&shape, |b, i| {
            let sum = b.read(sums, i.iter().cloned());
            let wide = sum.dtype();
            (sum / Scalar::float(count as f64, wide)).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let axis = |a: &[i64]| ("axis", AttrValue::ints(a));
        vec![
            sample([axis(&[-1]), ("keepdims", true.into())], vec![t(&[2, 4], DType::F32), t(&[2, 1], DType::F32)]),
            sample([axis(&[0, 2])], vec![t(&[2, 3, 2], DType::F32), t(&[1, 3, 1], DType::F32)]),
            sample([axis(&[1]), ("unbiased", true.into())], vec![t(&[2, 4], DType::F16), t(&[2, 1], DType::F16)]),
            sample([axis(&[1]), ("exclude", true.into())], vec![t(&[2, 3], DType::F32), t(&[1, 3], DType::F32)]),
        ]
    }
}
