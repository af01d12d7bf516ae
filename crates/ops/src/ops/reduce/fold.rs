//! Sums, products, extremes and quantifiers: a table row each.

use super::{AXIS, EXCLUDE, KEEPDIMS, Plan, attribute_samples, reduced_axes};
use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId},
    ops::{
        AttrField, AxisMap, Class, Family, Op, OpError, Sample, Work,
        elementwise::Takes,
        op_ensure,
        util::{elements, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// A reduction to one value per remaining element, of the input's type.
#[derive(Debug)]
struct Fold {
    name: &'static str,
    doc: &'static str,
    takes: Takes,
    combine: Combine,
    /// Whether the sum is divided by the number of elements.
    mean: bool,
    /// The value of no elements, and of two; on floats, in f64.
    float: (f64, fn(f64, f64) -> f64),
    /// The same on integers, wrapped to the type at the end.
    int: (i128, fn(i128, i128) -> i128),
}

/// The reductions.
pub(in crate::ops) const OPS: Family = &[
    &Fold {
        name: "sum",
        doc: "Sum over the given axes (all, where none are given; all others with exclude); of bools, whether any holds.",
        takes: Takes::Any,
        combine: Combine::Sum,
        mean: false,
        float: (0.0, |a, b| a + b),
        int: (0, i128::wrapping_add),
    },
    &Fold {
        name: "mean",
        doc: "Sum over the given axes (all, where none are given; all others with exclude) divided by the number of elements
        that it sums; integers truncate towards zero.",
        takes: Takes::Numbers,
        combine: Combine::Sum,
        mean: true,
        float: (0.0, |a, b| a + b),
        int: (0, i128::wrapping_add),
    },
    &Fold {
        name: "prod",
        doc: "Product over the given axes (all, where none are given; all others with exclude); of bools, whether all hold.",
        takes: Takes::Any,
        combine: Combine::Prod,
        mean: false,
        float: (1.0, |a, b| a * b),
        int: (1, i128::wrapping_mul),
    },
    &Fold {
        name: "max",
        doc: "Greatest over the given axes (all, where none are given; all others with exclude). NaN are left out.",
        takes: Takes::Any,
        combine: Combine::Max,
        mean: false,
        float: (f64::NEG_INFINITY, |a, b| if b > a { b } else { a }),
        int: (i128::MIN, i128::max),
    },
    &Fold {
        name: "min",
        doc: "Least over the given axes (all, where none are given; all others with exclude). NaN are left out.",
        takes: Takes::Any,
        combine: Combine::Min,
        mean: false,
        float: (f64::INFINITY, |a, b| if b < a { b } else { a }),
        int: (i128::MAX, i128::min),
    },
    &Fold {
        name: "all",
        doc: "Whether all hold over the given axes (all, where none are given; all others with exclude).",
        takes: Takes::Bools,
        combine: Combine::All,
        mean: false,
        float: (1.0, |a, b| a * b),
        int: (1, |a, b| a & b),
    },
    &Fold {
        name: "any",
        doc: "Whether any holds over the given axes (all, where none are given; all others with exclude).",
        takes: Takes::Bools,
        combine: Combine::Any,
        mean: false,
        float: (0.0, f64::max),
        int: (0, |a, b| a | b),
    },
];

/// The integer that an element of `dtype` keeps of `v`.
fn wrapped(v: i128, dtype: DType) -> i128 {
    let (least, greatest) = dtype.int_range().expect("an integer type");
    (v - least).rem_euclid(greatest - least + 1) + least
}

impl Fold {
    fn fold_floats(&self, x: &Tensor, targets: &[usize], shape: &[usize], count: f64) -> Tensor {
        let mut out = vec![self.float.0; shape.iter().product()];
        for (&to, v) in targets.iter().zip(x.to_f64_vec()) {
            out[to] = (self.float.1)(out[to], v);
        }
        Tensor::from_f64_fn(x.dtype(), shape, |i| if self.mean { out[i] / count } else { out[i] })
    }

    fn fold_ints(&self, x: &Tensor, targets: &[usize], shape: &[usize], count: i128) -> Result<Tensor, OpError> {
        let mut out = vec![self.int.0; shape.iter().product()];
        let unsigned = x.dtype() == DType::U64;
        for (&to, v) in targets.iter().zip(x.to_i64_vec()) {
            out[to] = (self.int.1)(out[to], if unsigned { v as u64 as i128 } else { v as i128 });
        }
        // The least (greatest) of no integers is the type's greatest (least).
        let (least, greatest) = x.dtype().int_range().expect("an integer type");
        let out: Vec<i128> = match self.combine {
            _ if x.dtype() == DType::Bool => out.into_iter().map(|v| v.clamp(0, 1)).collect(),
            Combine::Max | Combine::Min => out.into_iter().map(|v| v.clamp(least, greatest)).collect(),
            _ => out.into_iter().map(|v| wrapped(v, x.dtype())).collect(),
        };
        let divisor = if self.mean { wrapped(count, x.dtype()) } else { 1 };
        op_ensure!(divisor != 0, "the mean of {count} elements of {} would divide by zero", x.dtype());
        Ok(Tensor::from_i64_fn(x.dtype(), shape, |i| (out[i] / divisor) as i64))
    }
}

impl Op for Fold {
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
        const ATTRS: &[AttrField] = &[AXIS, KEEPDIMS, EXCLUDE];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Reduce
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(self.takes.holds(x.dtype), "`data` is {x}, but the operator takes {} only", self.takes.words());
        Ok(Plan::new(attrs, x.rank())?.infer(x, x.dtype))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let plan = Plan::new(attrs, x.shape().len())?;
        let (targets, shape) = (plan.targets(x.shape()), plan.shape(x.shape(), 1));
        let count: usize = plan.over(x.shape()).iter().product();
        Ok(match x.dtype().is_float() {
            true => self.fold_floats(x, &targets, &shape, count as f64),
            false => self.fold_ints(x, &targets, &shape, count as i128)?,
        }
        .into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        reduced_axes(attrs, &args[0])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: elements(&args[0]), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let plan = Plan::new(attrs, from.len())?;
        let (shape, over) = (plan.shape(&from, 1), plan.over(&from));
        let combine = match (dtype, self.combine) {
            (DType::Bool, Combine::Sum | Combine::Max) => Combine::Any,
            (DType::Bool, Combine::Prod | Combine::Min) => Combine::All,
            (_, combine) => combine,
        };
        let folded = reduce(b, &shape, &over, combine, dtype, |b, i, r| b.read(x, plan.index(i, r)));
        let count: i64 = over.iter().product();
        if !self.mean && b.dtype(folded) == dtype {
            return Ok(folded.into());
        }
        let wide = b.dtype(folded);
        let divisor = match dtype.is_float() {
            true => Scalar::float(count as f64, wide),
            false => Scalar::int(wrapped(count as i128, dtype) as i64, wide),
        };
        let out = b.map(&shape, |b, i| {
            let v = b.read(folded, i.iter().cloned());
            let v = if self.mean { Scalar::binary(BinOp::Div, v, divisor) } else { v };
            v.cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let dtypes = [DType::F32, DType::F16, DType::I32, DType::I8, DType::U8, DType::Bool];
        let taken: Vec<DType> = dtypes.into_iter().filter(|&d| self.takes.holds(d)).collect();
        let calls = attribute_samples().into_iter().enumerate();
        calls.map(|(k, (attrs, s))| Sample { attrs, args: vec![t(s, taken[k % taken.len()])] }).collect()
    }
}

/// A reduction stage; half-precision sums and products run in f32. Where there are no axes to combine, a plain copy.
pub(super) fn reduce(
    b: &mut Builder,
    shape: &[i64],
    over: &[i64],
    combine: Combine,
    dtype: DType,
    value: impl FnOnce(&Builder, &[Scalar], &[Scalar]) -> Scalar,
) -> TensorId {
    let half = matches!(dtype, DType::F16 | DType::BF16) && matches!(combine, Combine::Sum | Combine::Prod);
    let to = if half { DType::F32 } else { dtype };
    if over.is_empty() {
        return b.map(shape, |b, i| value(b, i, &[]).cast(to));
    }
    b.reduce(shape, over, combine, |b, i, r| value(b, i, r).cast(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_truncate() {
        assert_eq!(wrapped(200, DType::I8), -56);
        assert_eq!(wrapped(-1, DType::U8), 255);
        let mean = crate::ops::op("mean");
        let attrs = crate::ops::make_attrs(mean, &[]).expect("no attribute is required");
        let x = Tensor::from_slice(&[2], &[-4i32, 1]);
        let y = mean.op().eval(&attrs, &[x.into()]).expect("two elements");
        assert_eq!(y.tensor(), &Tensor::scalar(-1i32));
    }
}
