//! `keras.ops` in functional models: functions of tensors that are nodes of their own.

mod movement;
mod reduction;
pub(super) mod tensorflow;

use serde_json::Value as Json;

use super::{
    super::{
        call::{Arg, Call},
        layer::{as_int, ints, is_array, numbers},
    },
    activation, merge, norm, resize,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// What converts a function's call.
type Function = fn(&mut Call) -> Convert<Arg>;

/// The functions, by the names of their classes.
const OPERATIONS: &[&[(&str, Function)]] = &[BINARY, UNARY, PARAMETRIC, movement::OPERATIONS, reduction::OPERATIONS];

/// The converter of a function.
pub(super) fn find(class: &str) -> Option<Function> {
    OPERATIONS.iter().flat_map(|t| t.iter()).find(|(n, _)| *n == class).map(|(_, f)| *f)
}

const BINARY: &[(&str, Function)] = &[
    ("Add", |c| binary(c, "add")),
    ("Subtract", |c| binary(c, "subtract")),
    ("Multiply", |c| binary(c, "multiply")),
    ("Divide", divide),
    ("TrueDivide", divide),
    ("FloorDivide", |c| binary(c, "floor_divide")),
    ("Mod", |c| binary(c, "floor_mod")),
    ("Power", |c| binary(c, "power")),
    ("Maximum", |c| binary(c, "maximum")),
    ("Minimum", |c| binary(c, "minimum")),
    ("Equal", |c| binary(c, "equal")),
    ("NotEqual", |c| binary(c, "not_equal")),
    ("Less", |c| binary(c, "less")),
    ("LessEqual", |c| binary(c, "less_equal")),
    ("Greater", |c| binary(c, "greater")),
    ("GreaterEqual", |c| binary(c, "greater_equal")),
    ("LogicalAnd", |c| logical(c, "logical_and")),
    ("LogicalOr", |c| logical(c, "logical_or")),
    ("LogicalXor", |c| logical(c, "logical_xor")),
    ("SquaredDifference", |c| {
        let (a, b) = operands(c)?;
        let d = c.bin("subtract", a, b)?;
        c.bin("multiply", d, d).map(Arg::of)
    }),
    ("Where", |c| {
        let condition = tensor(c, 0, "condition")?;
        let condition = c.cast(condition, DType::Bool)?;
        let (x, y) = pair(c, (1, "x1"), (2, "x2"))?;
        c.select(condition, x, y).map(Arg::of)
    }),
    ("Matmul", matmul),
    ("Dot", |c| {
        let (a, b) = operands(c)?;
        if c.rank(b)? > 2 {
            return Err(c.refuse("products of more axes are not supported"));
        }
        product(c, a, b).map(Arg::of)
    }),
    ("Einsum", einsum),
];

const UNARY: &[(&str, Function)] = &[
    ("Negative", |c| unary(c, "negative")),
    ("Absolute", |c| unary(c, "abs")),
    ("Abs", |c| unary(c, "abs")),
    ("Exp", |c| float(c, |c, x| c.un("exp", x))),
    ("Expm1", |c| {
        float(c, |c, x| {
            let e = c.un("exp", x)?;
            c.with("subtract", e, 1.0)
        })
    }),
    ("Log", |c| float(c, |c, x| c.un("log", x))),
    ("Log2", |c| float(c, |c, x| c.un("log2", x))),
    ("Log10", |c| float(c, |c, x| c.un("log10", x))),
    ("Log1p", |c| {
        float(c, |c, x| {
            let y = c.with("add", x, 1.0)?;
            c.un("log", y)
        })
    }),
    ("Sqrt", |c| float(c, |c, x| c.un("sqrt", x))),
    ("Rsqrt", |c| float(c, |c, x| c.un("rsqrt", x))),
    ("Square", |c| {
        let x = tensor(c, 0, "x")?;
        c.bin("multiply", x, x).map(Arg::of)
    }),
    ("Reciprocal", |c| {
        float(c, |c, x| {
            let one = c.number(x, 1.0)?;
            c.bin("divide", one, x)
        })
    }),
    ("Sin", |c| float(c, |c, x| c.un("sin", x))),
    ("Cos", |c| float(c, |c, x| c.un("cos", x))),
    ("Tan", |c| float(c, |c, x| c.un("tan", x))),
    ("Arcsin", |c| float(c, |c, x| c.un("asin", x))),
    ("Arccos", |c| float(c, |c, x| c.un("acos", x))),
    ("Arctan", |c| float(c, |c, x| c.un("atan", x))),
    ("Sinh", |c| float(c, |c, x| c.un("sinh", x))),
    ("Cosh", |c| float(c, |c, x| c.un("cosh", x))),
    ("Tanh", |c| float(c, |c, x| c.un("tanh", x))),
    ("Arcsinh", |c| float(c, |c, x| c.un("asinh", x))),
    ("Arccosh", |c| float(c, |c, x| c.un("acosh", x))),
    ("Arctanh", |c| float(c, |c, x| c.un("atanh", x))),
    ("Erf", |c| float(c, |c, x| c.un("erf", x))),
    ("Floor", |c| float(c, |c, x| c.un("floor", x))),
    ("Ceil", |c| float(c, |c, x| c.un("ceil", x))),
    ("Trunc", |c| float(c, |c, x| c.un("trunc", x))),
    ("Round", round),
    ("Sign", |c| unary(c, "sign")),
    ("Isnan", |c| unary(c, "isnan")),
    ("Isinf", |c| unary(c, "isinf")),
    ("Isfinite", |c| unary(c, "isfinite")),
    ("LogicalNot", |c| {
        let x = tensor(c, 0, "x")?;
        let x = c.cast(x, DType::Bool)?;
        c.un("logical_not", x).map(Arg::of)
    }),
    ("ZerosLike", |c| filled(c, "zeros_like")),
    ("OnesLike", |c| filled(c, "ones_like")),
    ("Identity", |c| tensor(c, 0, "x").map(Arg::of)),
    ("Copy", |c| tensor(c, 0, "x").map(Arg::of)),
    ("StopGradient", |c| tensor(c, 0, "variable").map(Arg::of)),
    ("Relu", |c| named(c, "relu")),
    ("Relu6", |c| named(c, "relu6")),
    ("Sigmoid", |c| named(c, "sigmoid")),
    ("Silu", |c| named(c, "silu")),
    ("Selu", |c| named(c, "selu")),
    ("Softplus", |c| named(c, "softplus")),
    ("Softsign", |c| named(c, "softsign")),
    ("HardSigmoid", |c| named(c, "hard_sigmoid")),
    ("HardSilu", |c| named(c, "hard_silu")),
    ("HardTanh", |c| named(c, "hard_tanh")),
    ("LogSigmoid", |c| named(c, "log_sigmoid")),
    ("TanhShrink", |c| named(c, "tanh_shrink")),
    ("SparsePlus", |c| named(c, "sparse_plus")),
    ("SparseSigmoid", |c| named(c, "sparse_sigmoid")),
    ("Mish", |c| named(c, "mish")),
    ("Exponential", |c| named(c, "exponential")),
];

const PARAMETRIC: &[(&str, Function)] = &[
    ("Gelu", |c| {
        // Keras' operation approximates where it does not say otherwise.
        let approximate = parameter(c, 1, "approximate").and_then(|v| v.as_bool()).unwrap_or(true);
        float(c, |c, x| activation::gelu(c, x, approximate))
    }),
    ("LeakyRelu", |c| {
        let slope = number(c, "negative_slope", 0.2)?;
        float(c, |c, x| activation::leaky(c, x, slope))
    }),
    ("Elu", |c| {
        let alpha = number(c, "alpha", 1.0)?;
        float(c, |c, x| activation::elu(c, x, alpha))
    }),
    ("Celu", |c| {
        let alpha = number(c, "alpha", 1.0)?;
        float(c, |c, x| activation::celu(c, x, alpha))
    }),
    ("Squareplus", |c| {
        let b = number(c, "b", 4.0)?;
        float(c, |c, x| activation::squareplus(c, x, b))
    }),
    ("SoftShrink", |c| {
        let t = number(c, "threshold", 0.5)?;
        float(c, |c, x| activation::soft_shrink(c, x, t))
    }),
    ("HardShrink", |c| {
        let t = number(c, "threshold", 0.5)?;
        float(c, |c, x| activation::hard_shrink(c, x, t))
    }),
    ("Threshold", |c| {
        let (t, value) = (number(c, "threshold", 0.0)?, number(c, "default_value", 0.0)?);
        float(c, |c, x| {
            let above = c.with("greater", x, t)?;
            let value = c.number(x, value)?;
            c.select(above, x, value)
        })
    }),
    ("ReLU", |c| {
        let (slope, threshold) = (number(c, "negative_slope", 0.0)?, number(c, "threshold", 0.0)?);
        let most = parameter(c, 2, "max_value").and_then(|v| v.as_f64());
        float(c, |c, x| activation::relu(c, x, slope, most, threshold))
    }),
    ("Softmax", |c| {
        let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_else(|| vec![-1]);
        float(c, |c, x| activation::softmax(c, x, &axes))
    }),
    ("LogSoftmax", |c| {
        let axis = integer(c, 1, "axis", -1)?;
        float(c, |c, x| c.op("nn.log_softmax", &[x], &[("axis", axis.into())]))
    }),
    ("Sparsemax", |c| {
        let axis = integer(c, 1, "axis", -1)?;
        float(c, |c, x| activation::sparsemax(c, x, axis))
    }),
    ("Glu", |c| {
        let axis = integer(c, 1, "axis", -1)?;
        float(c, |c, x| activation::glu(c, x, axis))
    }),
    ("Normalize", |c| {
        let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_else(|| vec![-1]);
        let order = parameter(c, 2, "order").and_then(|v| v.as_f64()).unwrap_or(2.0);
        let epsilon = number(c, "epsilon", 1e-7)?;
        if order != 2.0 {
            return Err(c.refuse(format!("norms of order {order} are not supported")));
        }
        float(c, |c, x| norm::unit_length(c, x, &axes, epsilon))
    }),
    ("RMSNorm", |c| {
        let axes = parameter(c, 2, "axis").as_ref().and_then(ints).unwrap_or_else(|| vec![-1]);
        let epsilon = number(c, "epsilon", 1e-7)?;
        let scale = c.tensor_arg(1, "scale")?.map(|t| t.id);
        float(c, |c, x| {
            let y = norm::root_mean_square(c, x, &axes, epsilon)?;
            match scale {
                Some(scale) => c.bin("multiply", y, scale),
                None => Ok(y),
            }
        })
    }),
    ("Clip", |c| {
        let x = tensor(c, 0, "x")?;
        let (low, high) = (parameter(c, 1, "x_min"), parameter(c, 2, "x_max"));
        match (low.and_then(|v| v.as_f64()), high.and_then(|v| v.as_f64())) {
            (Some(low), Some(high)) => activation::clip(c, x, low, high).map(Arg::of),
            _ => Err(c.refuse("its limits are not numbers")),
        }
    }),
    ("Cast", |c| {
        let x = tensor(c, 0, "x")?;
        let name = parameter(c, 1, "dtype").and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        let dtype: DType = name.parse().map_err(|_| c.refuse(format!("its dtype `{name}` is not supported")))?;
        c.cast(x, dtype).map(Arg::of)
    }),
    ("Resize", resize::operation),
    ("OneHot", |c| {
        let x = tensor(c, 0, "x")?;
        let depth = integer(c, 1, "num_classes", 0)?;
        let axis = integer(c, 2, "axis", -1)?;
        let (on, off) = (c.s.b.scalar(DType::F32, 1.0), c.s.b.scalar(DType::F32, 0.0));
        let attrs = [("depth", depth.into()), ("axis", axis.into()), ("dtype", DType::F32.into())];
        c.op("one_hot", &[x, on, off], &attrs).map(Arg::of)
    }),
];

/// A parameter: of the configuration, or an argument that is no tensor.
fn parameter(c: &Call, position: usize, name: &str) -> Option<Json> {
    if let Some(v) = c.layer.get(name) {
        return Some(v.clone());
    }
    plain_json(c.arg(position, name)?)
}

/// An argument without tensors as JSON.
fn plain_json(a: &Arg) -> Option<Json> {
    match a {
        Arg::Json(v) => Some(v.clone()),
        Arg::List(items) => items.iter().map(plain_json).collect::<Option<Vec<Json>>>().map(Json::Array),
        _ => None,
    }
}

fn number(c: &Call, name: &str, default: f64) -> Convert<f64> {
    match parameter(c, usize::MAX, name) {
        None => Ok(default),
        Some(v) => v.as_f64().ok_or_else(|| c.refuse(format!("its `{name}` is {v}, which is not a number"))),
    }
}

fn integer(c: &Call, position: usize, name: &str, default: i64) -> Convert<i64> {
    match parameter(c, position, name) {
        None => Ok(default),
        Some(v) => as_int(&v).ok_or_else(|| c.refuse(format!("its `{name}` is {v}, which is not an integer"))),
    }
}

/// An argument that must be a tensor.
fn tensor(c: &mut Call, position: usize, name: &str) -> Convert {
    let found = match c.arg(position, name) {
        Some(Arg::Tensor(t)) => Some(t.id),
        Some(Arg::Json(v)) if is_array(v) => return array(c, &v.clone()),
        _ if position == 0 => return c.input(),
        _ => None,
    };
    found.ok_or_else(|| c.refuse(format!("its argument `{name}` is not a tensor")))
}

/// An array that the configuration holds.
fn array(c: &mut Call, v: &Json) -> Convert {
    let found = numbers(v).ok_or_else(|| c.refuse("one of its arguments is no array of numbers"))?;
    Ok(c.constant(found))
}

/// The type that both are converted to, as far as models need it: floats win over integers, wide over narrow.
fn common(a: DType, b: DType) -> DType {
    let rank = |d: DType| (d.is_float(), d != DType::Bool, d.bytes());
    match (a, b) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        _ if rank(a) >= rank(b) => a,
        _ => b,
    }
}

/// Two arguments of one element type; numbers take that of the tensor.
fn pair(c: &mut Call, first: (usize, &str), second: (usize, &str)) -> Convert<(ExprId, ExprId)> {
    let arg = |c: &Call, (at, name): (usize, &str)| match c.arg(at, name) {
        Some(a) => Ok(a.clone()),
        None => Err(c.refuse(format!("it lacks its argument `{name}`"))),
    };
    let (a, b) = (arg(c, first)?, arg(c, second)?);
    let of_number = |c: &mut Call, v: &Json, like: DType| {
        if is_array(v) {
            return array(c, v);
        }
        let value = match v {
            Json::Bool(b) => *b as u8 as f64,
            v => v.as_f64().ok_or_else(|| c.refuse(format!("its argument {v} is not a number")))?,
        };
        let whole = v.is_i64() || v.is_u64() || v.is_boolean();
        let dtype = if like.is_float() || whole && like != DType::Bool { like } else { DType::F32 };
        Ok::<ExprId, crate::diag::Refused>(c.s.b.scalar(dtype, value))
    };
    let (a, b) = match (&a, &b) {
        (Arg::Tensor(a), Arg::Tensor(b)) => (a.id, b.id),
        (Arg::Tensor(a), Arg::Json(v)) => {
            let like = c.dtype(a.id)?;
            (a.id, of_number(c, v, like)?)
        }
        (Arg::Json(v), Arg::Tensor(b)) => {
            let like = c.dtype(b.id)?;
            (of_number(c, v, like)?, b.id)
        }
        _ => return Err(c.refuse("its arguments are not tensors and numbers")),
    };
    let dtype = common(c.dtype(a)?, c.dtype(b)?);
    Ok((c.cast(a, dtype)?, c.cast(b, dtype)?))
}

fn operands(c: &mut Call) -> Convert<(ExprId, ExprId)> {
    pair(c, (0, "x1"), (1, "x2"))
}

fn binary(c: &mut Call, name: &str) -> Convert<Arg> {
    // In files without modules a layer of that name looks the same.
    if c.args.len() == 1 && matches!(c.args[0], Arg::List(_)) {
        let found = merge::CLASSES.iter().find(|class| class.name == c.layer.class());
        return match found {
            Some(class) => (class.convert)(c),
            None => Err(c.refuse("it takes two arguments")),
        };
    }
    let (a, b) = operands(c)?;
    c.bin(name, a, b).map(Arg::of)
}

fn divide(c: &mut Call) -> Convert<Arg> {
    let (a, b) = operands(c)?;
    let dtype = if c.dtype(a)?.is_float() { c.dtype(a)? } else { DType::F32 };
    let (a, b) = (c.cast(a, dtype)?, c.cast(b, dtype)?);
    c.bin("divide", a, b).map(Arg::of)
}

fn logical(c: &mut Call, name: &str) -> Convert<Arg> {
    let (a, b) = operands(c)?;
    let (a, b) = (c.cast(a, DType::Bool)?, c.cast(b, DType::Bool)?);
    c.bin(name, a, b).map(Arg::of)
}

fn unary(c: &mut Call, name: &str) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    c.un(name, x).map(Arg::of)
}

fn filled(c: &mut Call, name: &str) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let y = c.un(name, x)?;
    match parameter(c, 1, "dtype").and_then(|v| v.as_str().and_then(|n| n.parse().ok())) {
        Some(dtype) => c.cast(y, dtype).map(Arg::of),
        None => Ok(Arg::of(y)),
    }
}

/// A function of floats; integers become float32.
fn float(c: &mut Call, f: impl FnOnce(&mut Call, ExprId) -> Convert) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let x = if c.dtype(x)?.is_float() { x } else { c.cast(x, DType::F32)? };
    f(c, x).map(Arg::of)
}

fn named(c: &mut Call, name: &str) -> Convert<Arg> {
    let f = activation::function(name).ok_or_else(|| c.refuse(format!("there is no function `{name}`")))?;
    float(c, f)
}

/// To the nearest integer, halves to the even one.
fn round(c: &mut Call) -> Convert<Arg> {
    if integer(c, 1, "decimals", 0)? != 0 {
        return Err(c.refuse("rounding to decimals is not supported"));
    }
    float(c, rounded)
}

/// Floats to the nearest integers, halves to the even ones.
pub(super) fn rounded(c: &mut Call, x: ExprId) -> Convert {
    let below = c.un("floor", x)?;
    let part = c.bin("subtract", x, below)?;
    let above = c.with("add", below, 1.0)?;
    let even = c.with("multiply", above, 0.5)?;
    let even = c.un("floor", even)?;
    let even = c.with("multiply", even, 2.0)?;
    let more = c.with("greater", part, 0.5)?;
    let less = c.with("less", part, 0.5)?;
    let rest = c.select(less, below, even)?;
    c.select(more, above, rest)
}

fn matmul(c: &mut Call) -> Convert<Arg> {
    let (a, b) = operands(c)?;
    product(c, a, b).map(Arg::of)
}

/// numpy's product of matrices.
fn product(c: &mut Call, a: ExprId, b: ExprId) -> Convert {
    let (ra, rb) = (c.rank(a)?, c.rank(b)?);
    match (ra, rb) {
        (2.., 2) => c.op("nn.matmul", &[a, b], &[]),
        (3, 3) => c.op("nn.batch_matmul", &[a, b], &[("transpose_a", false.into()), ("transpose_b", false.into())]),
        _ => {
            let (left, right, out) = match (ra, rb) {
                (1, 1) => ("k", "k", ""),
                (1, _) => ("k", "...kn", "...n"),
                (_, 1) => ("...mk", "k", "...m"),
                _ => ("...mk", "...kn", "...mn"),
            };
            let tuple = c.s.b.tuple(&[a, b]);
            c.op("einsum", &[tuple], &[("equation", format!("{left},{right}->{out}").as_str().into())])
        }
    }
}

fn einsum(c: &mut Call) -> Convert<Arg> {
    let equation = c.layer.str("subscripts").unwrap_or_default().replace(' ', "");
    let args: Vec<ExprId> = c.args.iter().flat_map(Arg::tensors).map(|t| t.id).collect();
    let mut dtype = None;
    for &a in &args {
        let own = c.dtype(a)?;
        dtype = Some(dtype.map_or(own, |d| common(d, own)));
    }
    let Some(dtype) = dtype else { return Err(c.refuse("it has no arguments")) };
    let args = args.into_iter().map(|a| c.cast(a, dtype)).collect::<Convert<Vec<ExprId>>>()?;
    let tuple = c.s.b.tuple(&args);
    c.op("einsum", &[tuple], &[("equation", equation.as_str().into())]).map(Arg::of)
}
