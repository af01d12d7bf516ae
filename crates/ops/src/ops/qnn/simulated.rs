//! Quantization that stays among floats: values are rounded as if to integers, so that errors of it can be studied.

use super::params::channel_axis;
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_bail,
        op_ensure,
        util::{field, op_head, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Simulated {
        name: "qnn.simulated_quantize",
        doc: "data as qnn.quantize would quantize it, as floats: clip(round(data / scale) + zero point) to the range of the type that
        out_dtype's value tells (1 int8, 2 uint8, 3 int32), and data itself for any other value. Scales and zero points are taken
        round and round along axis.
        C1: data has floats and a type of at least one axis, of which axis is one, unless there is one scale and zero point. C2:
        out_dtype is a single integer, scale a number, zero point a number, or vectors of such.",
        inputs: &["data", "out_dtype", "output_scale", "output_zero_point"],
        attrs: &[AXIS],
        back: false,
    },
    &Simulated {
        name: "qnn.simulated_dequantize",
        doc: "data as qnn.dequantize would take it, from floats: (data - zero point) * scale where in_dtype's value is 1 (int8), 2
        (uint8) or 3 (int32), and data itself for any other value. Scales and zero points are taken round and round along axis.
        C1: data has floats and a type of at least one axis, of which axis is one, unless there is one scale and zero point. C2:
        in_dtype is a single integer, scale a number, zero point a number, or vectors of such.",
        inputs: &["data", "in_dtype", "input_scale", "input_zero_point"],
        attrs: &[field("out_dtype", AttrKind::DType, AttrDefault::None), AXIS],
        back: true,
    },
];

/// The older operator of this kind, which is no dialect's.
pub(in crate::ops) const ANNOTATED: Family = &[&Annotated];

const AXIS: AttrField = field("axis", AttrKind::Int, AttrDefault::Int(-1));

/// `qnn.simulated_quantize` or `qnn.simulated_dequantize`.
#[derive(Debug)]
struct Simulated {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    attrs: &'static [AttrField],
    /// From quantized numbers.
    back: bool,
}

/// The codes of types, with their ranges.
const CODES: [(i64, f64, f64); 3] = [(1, -128.0, 127.0), (2, 0.0, 255.0), (3, i32::MIN as f64, i32::MAX as f64)];

fn is_number(t: &TensorType) -> bool {
    t.dtype != DType::Bool && t.rank() <= 1 && t.shape.first().is_none_or(|d| d.known() != Some(0))
}

impl Op for Simulated {
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
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should have floats");
        let code = tensor_arg(args, 1, self.inputs[1])?;
        let single = code.shape.iter().all(|d| d.known().is_none_or(|n| n == 1));
        op_ensure!(single && code.dtype.is_int(), "C2: `{}` is {code}, but should be a single integer", self.inputs[1]);
        let params = [tensor_arg(args, 2, self.inputs[2])?, tensor_arg(args, 3, self.inputs[3])?];
        for (p, name) in params.iter().zip(&self.inputs[2..]) {
            op_ensure!(is_number(p), "C2: `{name}` is {p}, but should be one number or a vector of numbers");
        }
        let axis = channel_axis(attrs.int("axis"), x.rank()).map_err(|e| OpError(format!("C1: {e}")))?;
        let vectors = params.iter().any(|p| p.elements() != Some(1));
        op_ensure!(axis.is_some() || !vectors, "C1: `data` is {x}: it has no axis for vectors of scales");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, code, scale, zero] = [0, 1, 2, 3].map(|k| args[k].tensor());
        let code = code.get_i64(0);
        let Some(&(_, least, greatest)) = CODES.iter().find(|(c, _, _)| *c == code) else {
            return Ok(x.clone().into());
        };
        let axis = channel_axis(attrs.int("axis"), x.shape().len())?;
        let (inner, extent) = match axis {
            Some(k) => (x.shape()[k + 1..].iter().product::<usize>(), x.shape()[k]),
            None => (1, 1),
        };
        let of = |p: &Tensor, i: usize| p.get_f64(i / inner % extent % p.len());
        let out = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| {
            let (v, s, z) = (x.get_f64(i), of(scale, i), of(zero, i));
            if x.dtype() == DType::F64 {
                return if self.back { (v - z) * s } else { ((v / s).round() + z).min(greatest).max(least) };
            }
            let (v, s, z) = (v as f32, s as f32, z as f32);
            f64::from(match self.back {
                true => (v - z) * s,
                false => ((v / s).round() + z).min(greatest as f32).max(least as f32),
            })
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let x = args[0].as_tensor();
        let rank = x.map_or(0, TensorType::rank);
        let axis = channel_axis(attrs.int("axis"), rank).ok().flatten();
        // Scales taken round and round belong to no one index; then their axis maps to nothing.
        let extent = |t: &Type| t.as_tensor().and_then(|t| t.shape.first()?.known()).unwrap_or(1);
        let channels = axis.and_then(|k| x?.shape[k].known());
        let whole = |t: &Type| extent(t) == 1 || Some(extent(t)) == channels;
        let all = args[2..].iter().all(whole);
        let data =
            (0..rank).map(|k| if all || Some(k) != axis { AxisRole::Maps(k) } else { AxisRole::Opaque }).collect();
        let param = |t: &Type| -> Vec<AxisRole> {
            let role = match (axis, extent(t)) {
                (Some(k), n) if n > 1 && all => AxisRole::Maps(k),
                (Some(k), 1) => AxisRole::Broadcasts(k),
                _ => AxisRole::Opaque,
            };
            vec![role; t.as_tensor().map_or(0, TensorType::rank)]
        };
        let code = vec![AxisRole::Opaque; args[1].as_tensor().map_or(0, TensorType::rank)];
        AxisMap(vec![data, code, param(&args[2]), param(&args[3])])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(6.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, code, scale, zero] = [0, 1, 2, 3].map(|k| args[k].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let real = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let axis = channel_axis(attrs.int("axis"), shape.len())?;
        let out = b.map(&shape, |b, i| {
            let of = |p: TensorId| {
                let n = b.shape(p).iter().product::<i64>();
                let at = match axis {
                    Some(k) if n > 1 => i[k].clone().floor_mod(n),
                    _ => Scalar::index(0),
                };
                b.read(p, vec![at; b.shape(p).len()]).cast(real)
            };
            let value = b.read(x, i.iter().cloned());
            let code = b.read(code, vec![Scalar::index(0); b.shape(code).len()]).cast(DType::I64);
            let is = |c: i64| Scalar::binary(BinOp::Eq, code.clone(), Scalar::index(c));
            let plain = value.clone().cast(real);
            let out = match self.back {
                true => {
                    let known = CODES.iter().map(|c| is(c.0)).reduce(|a, b| Scalar::binary(BinOp::Or, a, b));
                    let moved = (plain.clone() - of(zero)) * of(scale);
                    Scalar::select(known.expect("there are codes"), moved, plain)
                }
                false => {
                    let q = Scalar::unary(UnOp::Round, plain.clone() / of(scale)) + of(zero);
                    CODES.iter().fold(plain, |rest, &(c, least, greatest)| {
                        let end = |v: f64| Scalar::float(v, real);
                        Scalar::select(is(c), q.clone().min(end(greatest)).max(end(least)), rest)
                    })
                }
            };
            out.cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |shape: &[i64], axis: i64, params: [&[i64]; 2], d, zero| Sample {
            attrs: vec![("axis", axis.into())],
            args: vec![t(shape, d), t(&[], DType::I32), t(params[0], DType::F32), t(params[1], zero)],
        };
        vec![
            call(&[2, 3], -1, [&[1], &[1]], DType::F32, DType::I32),
            call(&[2, 3, 4], 1, [&[3], &[3]], DType::F32, DType::I32),
            call(&[2, 4], 1, [&[2], &[1]], DType::F32, DType::F32),
            call(&[], -1, [&[], &[]], DType::F32, DType::I32),
            call(&[5], 0, [&[5], &[]], DType::F64, DType::I8),
        ]
    }
}

/// `relay.op.annotation.simulated_quantize`.
#[derive(Debug)]
struct Annotated;

/// The kind that leaves data as it is.
const IDENTITY: i64 = 0;

impl Op for Annotated {
    op_head!(
        "relay.op.annotation.simulated_quantize",
        "round(max(min(data / dom_scale, clip_max), clip_min)) * dom_scale, in floats, halves away from zero; data itself where kind
        is 0 (identity).
        C1: data has floats and at least one axis. C2: dom_scale, clip_min and clip_max are float32 without axes. C3: sign is set
        and rounding is \"round\", unless kind is 0.",
        ["data", "dom_scale", "clip_min", "clip_max"],
        [
            field("kind", AttrKind::Int, AttrDefault::Required),
            field("sign", AttrKind::Bool, AttrDefault::Bool(true)),
            field("rounding", AttrKind::OneOf(&["round", "floor", "ceil"]), AttrDefault::Str("round")),
        ],
        Elementwise
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(
            x.dtype.is_float() && x.rank() > 0,
            "C1: `data` is {x}, but should have floats and at least one axis"
        );
        for (k, name) in self.inputs().iter().enumerate().skip(1) {
            let p = tensor_arg(args, k, name)?;
            op_ensure!(
                p.rank() == 0 && p.dtype == DType::F32,
                "C2: `{name}` is {p}, but should be a float32 without axes"
            );
        }
        if !attrs.bool("sign") || attrs.str("rounding") != "round" {
            op_bail!("C3: only signed types and the rounding \"round\" have a meaning");
        }
        Ok(x.clone().into())
    }
    fn complete(&self, _: &Attrs, _: &[Type]) -> Vec<(usize, Type)> {
        (1..4).map(|k| (k, t(&[], DType::F32))).collect()
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, scale, least, greatest] = [0, 1, 2, 3].map(|k| args[k].tensor());
        if attrs.int("kind") == IDENTITY {
            return Ok(x.clone().into());
        }
        let [scale, least, greatest] = [scale, least, greatest].map(|t| t.get_f64(0));
        let out = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| {
            let v = x.get_f64(i);
            if x.dtype() == DType::F64 {
                return (v / scale).min(greatest).max(least).round() * scale;
            }
            let [scale, least, greatest] = [scale, least, greatest].map(|v| v as f32);
            f64::from((v as f32 / scale).min(greatest).max(least).round() * scale)
        });
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let data = (0..args[0].as_tensor().map_or(0, TensorType::rank)).map(AxisRole::Maps).collect();
        AxisMap(vec![data, vec![], vec![], vec![]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(6.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, scale, least, greatest] = [0, 1, 2, 3].map(|k| args[k].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let real = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let identity = attrs.int("kind") == IDENTITY;
        let out = b.map(&shape, |b, i| {
            let value = b.read(x, i.iter().cloned());
            if identity {
                return value;
            }
            let one = |p: TensorId| b.read(p, []).cast(real);
            let clipped = (value.cast(real) / one(scale)).min(one(greatest)).max(one(least));
            (Scalar::unary(UnOp::Round, clipped) * one(scale)).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |kind: i64, d| Sample {
            attrs: vec![("kind", kind.into())],
            args: vec![t(&[2, 3], d), t(&[], DType::F32), t(&[], DType::F32), t(&[], DType::F32)],
        };
        vec![call(1, DType::F32), call(2, DType::F64), call(0, DType::F32)]
    }
}
