//! Softmax and its kin.

use super::norm::axis_of;
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&SOFTMAX, &LOG_SOFTMAX, &FAST_SOFTMAX];

/// Softmax along an axis, or its logarithm.
#[derive(Debug)]
struct Softmax {
    name: &'static str,
    doc: &'static str,
    log: bool,
}

const SOFTMAX: Softmax = Softmax {
    name: "nn.softmax",
    doc: "out = exp(data - m) / (sum of exp(data - m) along axis), with m the greatest along axis.
        C1: axis is one of data's; the elements are floats.",
    log: false,
};

const LOG_SOFTMAX: Softmax = Softmax {
    name: "nn.log_softmax",
    doc: "out = data - m - log(sum of exp(data - m) along axis), with m the greatest along axis.
        C1: axis is one of data's; the elements are floats.",
    log: true,
};

/// The approximation that TVM allows here is not taken: exact is fast enough.
const FAST_SOFTMAX: Softmax = Softmax { name: "nn.fast_softmax", ..SOFTMAX };

impl Op for Softmax {
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
        const ATTRS: &[AttrField] = &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(-1))];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        axis_of(attrs.int("axis"), x.rank())?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should be of floats");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let shape = x.shape();
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let (inner, extent) = (shape[axis + 1..].iter().product::<usize>(), shape[axis]);
        let mut values = x.to_f64_vec();
        for first in (0..values.len()).filter(|i| i / inner % extent.max(1) == 0) {
            let line = |k: usize| first + k * inner;
            let greatest = (0..extent).fold(f64::NEG_INFINITY, |m, k| m.max(values[line(k)]));
            let sum: f64 = (0..extent).map(|k| (values[line(k)] - greatest).exp()).sum();
            for k in 0..extent {
                let v = values[line(k)] - greatest;
                values[line(k)] = if self.log { v - sum.ln() } else { v.exp() / sum };
            }
        }
        Ok(Tensor::from_f64_fn(x.dtype(), shape, |i| values[i]).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(axis) = axis_of(attrs.int("axis"), rank) else { return AxisMap::opaque([rank]) };
        let role = |k| if k == axis { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 21.0 * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let mut lines = shape.clone();
        lines.remove(axis);
        let with = |i: &[Scalar], at: &Scalar| {
            let mut index = i.to_vec();
            index.insert(axis, at.clone());
            index
        };
        let without = |i: &[Scalar]| {
            let mut index = i.to_vec();
            index.remove(axis);
            index
        };
        let greatest = b.reduce(&lines, &shape[axis..=axis], Combine::Max, |b, i, r| b.read(x, with(i, &r[0])));
        if self.log {
            let off = |b: &Builder, i: &[Scalar]| b.read(x, i.to_vec()) - b.read(greatest, without(i));
            let sum = b.reduce(&lines, &shape[axis..=axis], Combine::Sum, |b, i, r| {
                Scalar::unary(UnOp::Exp, off(b, &with(i, &r[0])))
            });
            let log = b.map(&lines, |b, i| Scalar::unary(UnOp::Log, b.read(sum, i.iter().cloned())));
            return Ok(b.map(&shape, |b, i| off(b, i) - b.read(log, without(i))).into());
        }
        let powers =
            b.map(&shape, |b, i| Scalar::unary(UnOp::Exp, b.read(x, i.iter().cloned()) - b.read(greatest, without(i))));
        let sum = b.reduce(&lines, &shape[axis..=axis], Combine::Sum, |b, i, r| b.read(powers, with(i, &r[0])));
        if b.dtype(x) != DType::F32 {
            return Ok(b.map(&shape, |b, i| b.read(powers, i.iter().cloned()) / b.read(sum, without(i))).into());
        }
        // One division a line: the products are within a unit in the last place of the quotients.
        let inverse = b.map(&lines, |b, i| Scalar::float(1.0, DType::F32) / b.read(sum, i.iter().cloned()));
        Ok(b.map(&shape, |b, i| b.read(powers, i.iter().cloned()) * b.read(inverse, without(i))).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, shape: &[i64]| Sample {
            attrs: vec![("axis", axis.into())],
            args: vec![Type::tensor(shape, DType::F32)],
        };
        vec![call(-1, &[2, 5]), call(1, &[2, 3, 4]), call(0, &[7])]
    }
}
