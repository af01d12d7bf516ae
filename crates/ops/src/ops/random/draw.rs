//! Numbers drawn from distributions.

use super::threefry::{check_key, complete_key, generate, key_type, lower_generate, shape_attr};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, extents, field, op_head, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Draw {
        name: "random.uniform",
        doc: "The next key, and a tensor of out_shape of numbers (out_dtype) drawn evenly from low to before high.
        C1: key is a key. C2: no extent is negative. C3: out_dtype is float32 or float64, and low and high are scalars of it.",
        inputs: &["key", "low", "high"],
        normal: false,
    },
    &Draw {
        name: "random.normal",
        doc: "The next key, and a tensor of out_shape of numbers (out_dtype) drawn from the normal distribution of that mean
        and standard deviation, by Box and Muller's transform. C1: key is a key. C2: no extent is negative. C3: out_dtype is
        float32 or float64, and mean and scale are scalars of it.",
        inputs: &["key", "mean", "scale"],
        normal: true,
    },
    &Multinomial,
];

/// Bits of a float's fraction, and of the integer whose upper bits become it.
fn fraction(dtype: DType) -> (u32, u32) {
    if dtype == DType::F64 { (52, 64) } else { (23, 32) }
}

/// Random bits as a float from 0 to before 1: their fraction's worth, exactly.
fn unit(bits: u64, dtype: DType) -> f64 {
    let (fraction, width) = fraction(dtype);
    let bits = if width == 32 { bits as u32 as u64 } else { bits };
    (bits >> (width - fraction)) as f64 / (1u64 << fraction) as f64
}

/// The same as an expression.
fn lowered_unit(bits: Scalar, dtype: DType) -> Scalar {
    let (fraction, width) = fraction(dtype);
    let int = if width == 32 { DType::U32 } else { DType::U64 };
    let kept = Scalar::binary(BinOp::Shr, bits.cast(int), Scalar::int((width - fraction) as i64, int));
    // Signed integers convert to floats faster, and the value fits.
    let signed = if width == 32 { DType::I32 } else { DType::I64 };
    kept.cast(signed).cast(dtype) * Scalar::float(1.0 / (1u64 << fraction) as f64, dtype)
}

/// `random.uniform` or `random.normal`.
#[derive(Debug)]
struct Draw {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    normal: bool,
}

impl Draw {
    fn dtype(attrs: &Attrs) -> Result<DType, OpError> {
        let dtype = attrs.opt_dtype("out_dtype");
        match dtype {
            Some(d @ (DType::F32 | DType::F64)) => Ok(d),
            Some(d) => Err(OpError(format!("C3: `out_dtype` is {d}, but should be float32 or float64"))),
            None => Err(OpError("C3: `out_dtype` is not set".into())),
        }
    }
}

impl Op for Draw {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        self.inputs
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            field("out_shape", AttrKind::Ints, AttrDefault::Required),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_key(args)?;
        let dtype = Draw::dtype(attrs)?;
        for i in [1, 2] {
            let v = tensor_arg(args, i, self.inputs[i])?;
            op_ensure!(v.rank() == 0 && v.dtype == dtype, "C3: `{}` is {v}, but should be {dtype}", self.inputs[i]);
        }
        Ok(Type::tuple([key_type(), Type::tensor(&shape_attr(attrs)?, dtype)]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (shape, dtype) = (extents(&shape_attr(attrs)?), Draw::dtype(attrs)?);
        let count: usize = shape.iter().product();
        let (key, bits) = generate(args[0].tensor(), if self.normal { 2 * count } else { count });
        let round = |v: f64| if dtype == DType::F32 { v as f32 as f64 } else { v };
        let (first, second) = (args[1].tensor().get_f64(0), args[2].tensor().get_f64(0));
        let out = Tensor::from_f64_fn(dtype, &shape, |i| {
            let u = unit(bits[i], dtype);
            if self.normal {
                let radius = round((-2.0 * round(round(1.0 - u).ln())).sqrt());
                let angle = round(std::f64::consts::TAU) * unit(bits[count + i], dtype);
                return round(round(radius * round(round(angle).sin())) * second) + first;
            }
            round(u * round(second - first)) + first
        });
        Ok(Value::Tuple(vec![key, out.into()]))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([1, 0, 0])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let each = if self.normal { 180.0 } else { 65.0 };
        let read = args.iter().map(bytes).sum();
        Work { flops: each * elements(out), bytes_read: read, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (shape, dtype) = (shape_attr(attrs)?, Draw::dtype(attrs)?);
        let [key, first, second] = [0, 1, 2].map(|k| args[k].tensor());
        let drawn = if self.normal { [&[2], &shape[..]].concat() } else { shape.clone() };
        let (next, bits) = lower_generate(key, &drawn, b);
        let out = b.map(&shape, |b, i| {
            let (first, second) = (b.read(first, []), b.read(second, []));
            if !self.normal {
                return lowered_unit(b.read(bits, i.iter().cloned()), dtype) * (second - first.clone()) + first;
            }
            let real = |v: f64| Scalar::float(v, dtype);
            let draw = |k: i64| lowered_unit(b.read(bits, [&[Scalar::index(k)], i].concat()), dtype);
            let radius = Scalar::unary(UnOp::Sqrt, real(-2.0) * Scalar::unary(UnOp::Log, real(1.0) - draw(0)));
            let turned = Scalar::unary(UnOp::Sin, real(std::f64::consts::TAU) * draw(1));
            radius * turned * second + first
        });
        Ok(Operand::Tuple(vec![next.into(), out.into()]))
    }
    fn complete(&self, attrs: &Attrs, _: &[Type]) -> Vec<(usize, Type)> {
        let scalars = Draw::dtype(attrs).into_iter().flat_map(|d| [1, 2].map(|i| (i, Type::tensor(&[], d))));
        complete_key().into_iter().chain(scalars).collect()
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: &[i64], d: DType| {
            sample([("out_shape", s.into()), ("out_dtype", d.into())], vec![key_type(), t(&[], d), t(&[], d)])
        };
        vec![call(&[5], DType::F32), call(&[2, 3], DType::F64), call(&[], DType::F32)]
    }
}

/// `random.multinomial`.
#[derive(Debug)]
struct Multinomial;

impl Multinomial {
    fn samples_attr(attrs: &Attrs) -> Result<i64, OpError> {
        let n = attrs.int("num_samples");
        op_ensure!(n >= 0, "C2: `num_samples` is {n}, but should not be negative");
        Ok(n)
    }
}

impl Op for Multinomial {
    op_head!(
        "random.multinomial",
        "The next key, and num_samples indices (int32) drawn for each line of probs along its last axis, each with a
        probability in proportion to its value; negative ones count as 0. C1: key is a key. C2: num_samples is not negative.
        C3: probs has an axis.",
        ["key", "probs"],
        [field("num_samples", AttrKind::Int, AttrDefault::Int(1))],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_key(args)?;
        let probs = tensor_arg(args, 1, "probs")?;
        op_ensure!(probs.rank() > 0, "C3: `probs` is {probs}, but should have an axis");
        let lines = &probs.shape[..probs.rank() - 1];
        let shape = lines.iter().copied().chain([Dim::Known(Multinomial::samples_attr(attrs)?)]);
        Ok(Type::tuple([key_type(), TensorType::of(shape, DType::I32).into()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let probs = args[1].tensor();
        let (n, count) = (*probs.shape().last().expect("an axis"), Multinomial::samples_attr(attrs)? as usize);
        let lines: usize = probs.shape()[..probs.shape().len() - 1].iter().product();
        let (key, bits) = generate(args[0].tensor(), lines * count);
        let mut out = Vec::with_capacity(lines * count);
        for line in 0..lines {
            let weights: Vec<f32> = (0..n).map(|k| (probs.get_f64(line * n + k) as f32).max(0.0)).collect();
            let total: f32 = weights.iter().sum();
            let mut sum = 0.0;
            let upto: Vec<f32> = weights.iter().map(|w| (sum += w / total, sum).1).collect();
            for s in 0..count {
                let u = unit(bits[line * count + s], DType::F32) as f32;
                let beyond = |k: usize| if upto[k] - u > 0.0 { upto[k] - u } else { 1.0 };
                let nearest = (1..n).fold(0, |best, k| if beyond(k) < beyond(best) { k } else { best });
                out.push(nearest as i32);
            }
        }
        let shape: Vec<usize> = probs.shape()[..probs.shape().len() - 1].iter().copied().chain([count]).collect();
        Ok(Value::Tuple(vec![key, Tensor::from_slice(&shape, &out).into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([1, args[1].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let choices = args[1].as_tensor().and_then(|p| p.shape.last()?.known()).unwrap_or(1) as f64;
        let read = args.iter().map(bytes).sum();
        Work { flops: (65.0 + 4.0 * choices) * elements(out), bytes_read: read, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (key, probs) = (args[0].tensor(), args[1].tensor());
        let from = b.shape(probs).to_vec();
        let (lines, n) = (&from[..from.len() - 1], from[from.len() - 1]);
        let shape = [lines, &[Multinomial::samples_attr(attrs)?]].concat();
        let (next, bits) = lower_generate(key, &shape, b);
        if n == 0 {
            let none = b.map(&shape, |_, _| Scalar::int(0, DType::I32));
            return Ok(Operand::Tuple(vec![next.into(), none.into()]));
        }
        let last = lines.len();
        let weight = |b: &Builder, line: &[Scalar], k: &Scalar| {
            let value = b.read(probs, line.iter().chain([k]).cloned()).cast(DType::F32);
            value.max(Scalar::float(0.0, DType::F32))
        };
        let total = b.reduce(lines, &[n], Combine::Sum, |b, i, r| weight(b, i, &r[0]));
        let share = b.map(&from, |b, i| weight(b, &i[..last], &i[last]) / b.read(total, i[..last].iter().cloned()));
        let upto = b.routine(|r| {
            let upto = r.output(&from, DType::F32);
            r.parallel_each(lines, |r, line| {
                let sum = r.var(Scalar::float(0.0, DType::F32));
                r.for_(n, |r, k| {
                    let at = [line, &[k]].concat();
                    r.set(sum, r.get(sum) + r.read(share, at.iter().cloned()));
                    r.store(upto, at, r.get(sum));
                });
            });
            upto
        });
        let beyond = |b: &Builder, i: &[Scalar], k: &Scalar| {
            let u = lowered_unit(b.read(bits, i.iter().cloned()), DType::F32);
            let over = b.read(upto, i[..last].iter().chain([k]).cloned()) - u;
            let none = Scalar::float(0.0, DType::F32);
            Scalar::select(none.lt(over.clone()), over, Scalar::float(1.0, DType::F32))
        };
        let best = b.reduce(&shape, &[n], Combine::Min, |b, i, r| beyond(b, i, &r[0]));
        let out = b.reduce(&shape, &[n], Combine::Min, |b, i, r| {
            let here = Scalar::binary(BinOp::Eq, beyond(b, i, &r[0]), b.read(best, i.iter().cloned()));
            Scalar::select(here, r[0].clone().cast(DType::I32), Scalar::int(n - 1, DType::I32))
        });
        Ok(Operand::Tuple(vec![next.into(), out.into()]))
    }
    fn complete(&self, _: &Attrs, _: &[Type]) -> Vec<(usize, Type)> {
        complete_key()
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |n: i64, s: &[i64], d| sample([("num_samples", n.into())], vec![key_type(), t(s, d)]);
        vec![call(1, &[3], DType::F32), call(4, &[2, 3], DType::I32)]
    }
}
