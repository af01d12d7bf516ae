//! Activations: functions by name, and layers that are one.

use serde_json::Value as Json;

use super::{
    super::{
        call::{Arg, Call, invoke},
        layer::ints,
    },
    Class, Masks, class,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Activation", Masks::Pass, |c| {
        let x = c.input()?;
        configured(c, "activation", x).map(Arg::of)
    }),
    class("ReLU", Masks::Pass, relu_layer),
    class("LeakyReLU", Masks::Pass, |c| {
        let x = c.input()?;
        // Keras 2 called it `alpha`.
        let key = if c.layer.get("negative_slope").is_some() { "negative_slope" } else { "alpha" };
        let slope = c.layer.float(key, 0.3)?;
        leaky(c, x, slope).map(Arg::of)
    }),
    class("ThresholdedReLU", Masks::Pass, |c| {
        let x = c.input()?;
        let theta = c.layer.float("theta", 1.0)?;
        let above = c.with("greater", x, theta)?;
        let zero = c.number(x, 0.0)?;
        c.select(above, x, zero).map(Arg::of)
    }),
    class("ELU", Masks::Pass, |c| {
        let x = c.input()?;
        let alpha = c.layer.float("alpha", 1.0)?;
        elu(c, x, alpha).map(Arg::of)
    }),
    class("PReLU", Masks::Pass, prelu),
    class("Softmax", Masks::Pass, softmax_layer),
];

/// A function of one tensor.
type Function = fn(&mut Call, ExprId) -> Convert;

/// The functions that Keras knows by name.
const FUNCTIONS: &[(&str, Function)] = &[
    ("linear", |_, x| Ok(x)),
    ("relu", |c, x| c.un("nn.relu", x)),
    ("relu6", |c, x| clip(c, x, 0.0, 6.0)),
    ("leaky_relu", |c, x| leaky(c, x, 0.2)),
    ("elu", |c, x| elu(c, x, 1.0)),
    ("celu", |c, x| celu(c, x, 1.0)),
    ("selu", selu),
    ("sigmoid", |c, x| c.un("sigmoid", x)),
    ("tanh", |c, x| c.un("tanh", x)),
    ("exponential", |c, x| c.un("exp", x)),
    ("softplus", softplus),
    ("softsign", |c, x| {
        let a = c.un("abs", x)?;
        let d = c.with("add", a, 1.0)?;
        c.bin("divide", x, d)
    }),
    ("squareplus", |c, x| squareplus(c, x, 4.0)),
    ("soft_shrink", |c, x| soft_shrink(c, x, 0.5)),
    ("hard_shrink", |c, x| hard_shrink(c, x, 0.5)),
    ("tanh_shrink", |c, x| {
        let t = c.un("tanh", x)?;
        c.bin("subtract", x, t)
    }),
    ("sparse_plus", sparse_plus),
    ("sparse_sigmoid", |c, x| {
        let y = c.with("add", x, 1.0)?;
        let y = c.with("multiply", y, 0.5)?;
        clip(c, y, 0.0, 1.0)
    }),
    ("silu", silu),
    ("swish", silu),
    ("gelu", |c, x| gelu(c, x, false)),
    ("glu", |c, x| glu(c, x, -1)),
    ("mish", |c, x| {
        let s = softplus(c, x)?;
        let t = c.un("tanh", s)?;
        c.bin("multiply", x, t)
    }),
    ("log_sigmoid", |c, x| {
        let n = c.un("negative", x)?;
        let s = softplus(c, n)?;
        c.un("negative", s)
    }),
    ("hard_sigmoid", hard_sigmoid),
    ("hard_silu", hard_silu),
    ("hard_swish", hard_silu),
    ("hard_tanh", |c, x| clip(c, x, -1.0, 1.0)),
    ("softmax", |c, x| softmax(c, x, &[-1])),
    ("log_softmax", |c, x| c.op("nn.log_softmax", &[x], &[("axis", (-1).into())])),
    ("sparsemax", |c, x| sparsemax(c, x, -1)),
];

/// The function of that name.
pub(super) fn function(name: &str) -> Option<Function> {
    FUNCTIONS.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
}

/// Applies the activation that a field of the layer's configuration names.
pub(super) fn configured(c: &mut Call, key: &str, x: ExprId) -> Convert {
    let layer = c.layer.clone();
    let Some(json) = layer.get(key) else { return Ok(x) };
    let unknown = |name: &str| {
        layer.refuse(format!(
            "its `{key}` is the function `{name}`, which the file does not hold and Keras does not ship"
        ))
    };
    let text = |key: &str| json.get(key).and_then(Json::as_str);
    let name = match json {
        Json::String(name) => name.as_str(),
        _ if text("class_name") == Some("function") => {
            let name = text("config").unwrap_or_default();
            let module = text("module").unwrap_or("builtins");
            if !["builtins", "keras", "tf_keras"].contains(&module.split('.').next().unwrap_or_default()) {
                return Err(unknown(name));
            }
            name
        }
        // A layer in place of a function.
        json => {
            let inner = layer.inner_of(json)?.shared();
            let out = invoke(c.s, &inner, vec![Arg::of(x)], Vec::new())?;
            return match out {
                Arg::Tensor(t) => Ok(t.id),
                _ => Err(layer.refuse(format!("its `{key}` does not give a tensor"))),
            };
        }
    };
    match function(name) {
        Some(f) => f(c, x),
        None => Err(unknown(name)),
    }
}

/// Values kept within limits.
pub(super) fn clip(c: &mut Call, x: ExprId, low: f64, high: f64) -> Convert {
    c.op("clip", &[x], &[("a_min", low.into()), ("a_max", high.into())])
}

/// A slope below zero.
pub(super) fn leaky(c: &mut Call, x: ExprId, slope: f64) -> Convert {
    c.op("nn.leaky_relu", &[x], &[("alpha", slope.into())])
}

/// e^x - 1 below zero.
fn exp_below(c: &mut Call, x: ExprId) -> Convert {
    let below = c.with("minimum", x, 0.0)?;
    let e = c.un("exp", below)?;
    c.with("subtract", e, 1.0)
}

/// The exponential linear unit.
pub(super) fn elu(c: &mut Call, x: ExprId, alpha: f64) -> Convert {
    let e = exp_below(c, x)?;
    let e = if alpha == 1.0 { e } else { c.with("multiply", e, alpha)? };
    let above = c.with("greater", x, 0.0)?;
    c.select(above, x, e)
}

/// The continuously differentiable one.
pub(super) fn celu(c: &mut Call, x: ExprId, alpha: f64) -> Convert {
    let scaled = c.with("divide", x, alpha)?;
    let e = exp_below(c, scaled)?;
    let e = c.with("multiply", e, alpha)?;
    let above = c.un("nn.relu", x)?;
    c.bin("add", above, e)
}

fn selu(c: &mut Call, x: ExprId) -> Convert {
    let y = elu(c, x, 1.673_263_242_354_377_2)?;
    c.with("multiply", y, 1.050_700_987_355_480_5)
}

/// log(1 + e^x), for large x, too.
pub(super) fn softplus(c: &mut Call, x: ExprId) -> Convert {
    let a = c.un("abs", x)?;
    let n = c.un("negative", a)?;
    let e = c.un("exp", n)?;
    let e = c.with("add", e, 1.0)?;
    let l = c.un("log", e)?;
    let r = c.un("nn.relu", x)?;
    c.bin("add", r, l)
}

/// (x + sqrt(x^2 + b)) / 2.
pub(super) fn squareplus(c: &mut Call, x: ExprId, b: f64) -> Convert {
    let s = c.bin("multiply", x, x)?;
    let s = c.with("add", s, b)?;
    let s = c.un("sqrt", s)?;
    let s = c.bin("add", x, s)?;
    c.with("multiply", s, 0.5)
}

/// x brought nearer to zero.
pub(super) fn soft_shrink(c: &mut Call, x: ExprId, threshold: f64) -> Convert {
    let inner = clip(c, x, -threshold, threshold)?;
    c.bin("subtract", x, inner)
}

/// x, but zero near zero.
pub(super) fn hard_shrink(c: &mut Call, x: ExprId, threshold: f64) -> Convert {
    let a = c.un("abs", x)?;
    let far = c.with("greater", a, threshold)?;
    let zero = c.number(x, 0.0)?;
    c.select(far, x, zero)
}

fn sparse_plus(c: &mut Call, x: ExprId) -> Convert {
    let y = c.with("add", x, 1.0)?;
    let y = c.bin("multiply", y, y)?;
    let y = c.with("multiply", y, 0.25)?;
    let zero = c.number(x, 0.0)?;
    let below = c.with("less_equal", x, -1.0)?;
    let inner = c.with("less", x, 1.0)?;
    let rest = c.select(inner, y, x)?;
    c.select(below, zero, rest)
}

/// x * sigmoid(x).
pub(super) fn silu(c: &mut Call, x: ExprId) -> Convert {
    let s = c.un("sigmoid", x)?;
    c.bin("multiply", x, s)
}

/// x times the normal distribution's function of x, or its approximation by tanh.
pub(super) fn gelu(c: &mut Call, x: ExprId, approximate: bool) -> Convert {
    let inner = if approximate {
        let s = c.bin("multiply", x, x)?;
        let s = c.bin("multiply", s, x)?;
        let s = c.with("multiply", s, 0.044715)?;
        let s = c.bin("add", x, s)?;
        let s = c.with("multiply", s, std::f64::consts::FRAC_2_PI.sqrt())?;
        c.un("tanh", s)?
    } else {
        let s = c.with("multiply", x, std::f64::consts::FRAC_1_SQRT_2)?;
        c.un("erf", s)?
    };
    let inner = c.with("add", inner, 1.0)?;
    let half = c.with("multiply", x, 0.5)?;
    c.bin("multiply", half, inner)
}

/// One half times the sigmoid of the other.
pub(super) fn glu(c: &mut Call, x: ExprId, axis: i64) -> Convert {
    let rank = c.rank(x)?;
    let at = c.axis(axis, rank)?;
    if c.extent(x, at)? % 2 != 0 {
        return Err(c.refuse("the axis that is halved has an odd extent"));
    }
    let halves = c.op("split", &[x], &[("indices_or_sections", 2.into()), ("axis", (at as i64).into())])?;
    let (a, b) = (c.s.b.field(halves, 0), c.s.b.field(halves, 1));
    let b = c.un("sigmoid", b)?;
    c.bin("multiply", a, b)
}

/// A sigmoid of straight lines; Keras 2 had a flatter one.
pub(super) fn hard_sigmoid(c: &mut Call, x: ExprId) -> Convert {
    if c.layer.keras2 {
        let y = c.with("multiply", x, 0.2)?;
        let y = c.with("add", y, 0.5)?;
        return clip(c, y, 0.0, 1.0);
    }
    let y = c.with("add", x, 3.0)?;
    let y = clip(c, y, 0.0, 6.0)?;
    c.with("multiply", y, 1.0 / 6.0)
}

/// x times that.
pub(super) fn hard_silu(c: &mut Call, x: ExprId) -> Convert {
    let s = hard_sigmoid(c, x)?;
    c.bin("multiply", x, s)
}

/// Softmax over one axis or several together.
pub(super) fn softmax(c: &mut Call, x: ExprId, axes: &[i64]) -> Convert {
    if let [one] = axes {
        return c.op("nn.softmax", &[x], &[("axis", (*one).into())]);
    }
    let most = c.reduce("max", x, axes, true)?;
    let e = c.bin("subtract", x, most)?;
    let e = c.un("exp", e)?;
    let sum = c.reduce("sum", e, axes, true)?;
    c.bin("divide", e, sum)
}

/// Of the greatest, what they are beyond a threshold; zero elsewhere.
pub(super) fn sparsemax(c: &mut Call, x: ExprId, axis: i64) -> Convert {
    let rank = c.rank(x)?;
    let at = c.axis(axis, rank)?;
    let n = c.extent(x, at)?;
    let sorted = c.op("sort", &[x], &[("axis", (at as i64).into()), ("is_ascend", false.into())])?;
    let sums = c.op("cumsum", &[sorted], &[("axis", (at as i64).into())])?;
    let mut shape = vec![1; rank];
    shape[at] = c.count(n)?;
    let dtype = c.dtype(x)?;
    let places = c.constant(Tensor::from_f64_fn(dtype, &shape, |i| (i + 1) as f64));
    // The k greatest count where 1 + k * the k-th is more than their sum.
    let product = c.bin("multiply", sorted, places)?;
    let product = c.with("add", product, 1.0)?;
    let counts = c.bin("greater", product, sums)?;
    let counts = c.cast(counts, dtype)?;
    // Keras sums the sums, and not what they are sums of.
    let kept = c.bin("multiply", sums, counts)?;
    let sum = c.reduce("sum", kept, &[at as i64], true)?;
    let sum = c.with("subtract", sum, 1.0)?;
    let number = c.reduce("sum", counts, &[at as i64], true)?;
    let tau = c.bin("divide", sum, number)?;
    let y = c.bin("subtract", x, tau)?;
    c.un("nn.relu", y)
}

fn relu_layer(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let (slope, threshold) = (c.layer.float("negative_slope", 0.0)?, c.layer.float("threshold", 0.0)?);
    relu(c, x, slope, c.layer.get("max_value").and_then(Json::as_f64), threshold).map(Arg::of)
}

/// f(x) = most where x is more, x from the threshold on, and slope * (x - threshold) below.
pub(super) fn relu(c: &mut Call, x: ExprId, slope: f64, most: Option<f64>, threshold: f64) -> Convert {
    let y = if threshold == 0.0 {
        match (slope == 0.0, most) {
            (true, Some(most)) => return clip(c, x, 0.0, most),
            (true, None) => return c.un("nn.relu", x),
            (false, _) => leaky(c, x, slope)?,
        }
    } else {
        let below = c.with("subtract", x, threshold)?;
        let below = c.with("multiply", below, slope)?;
        let above = c.with("greater_equal", x, threshold)?;
        c.select(above, x, below)?
    };
    match most {
        Some(most) => c.with("minimum", y, most),
        None => Ok(y),
    }
}

fn prelu(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    // A vector along the last axis is what Relay's operator takes.
    let alpha = c.array(0, "alpha")?;
    let lead: usize = alpha.shape().iter().rev().skip(1).product();
    if lead == 1 && alpha.len() > 1 {
        let alpha = c.weight_as(0, "alpha", "vector", |t| Ok(t.reshaped(&[t.len()])))?;
        let out = c.op("nn.prelu", &[x, alpha], &[("axis", (rank as i64 - 1).into())])?;
        return Ok(Arg::of(out));
    }
    let alpha = c.weight(0, "alpha")?;
    let below = c.bin("multiply", x, alpha)?;
    let above = c.with("greater", x, 0.0)?;
    c.select(above, x, below).map(Arg::of)
}

fn softmax_layer(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let given = c.tensor_arg(1, "mask")?.map(|t| t.id);
    let axes = c.layer.get("axis").and_then(ints).unwrap_or_else(|| vec![-1]);
    // A mask that came with the input has no place for the last axis; one of the input's own extents is meant.
    let own = c.held()?.mask;
    let mask = match given.or(own) {
        Some(m) if c.rank(m)? <= c.rank(x)? => Some(m),
        _ => None,
    };
    match mask {
        Some(mask) => masked_softmax(c, x, mask, &axes).map(Arg::of),
        None => softmax(c, x, &axes).map(Arg::of),
    }
}

/// Softmax of what the mask holds for; zero elsewhere.
pub(super) fn masked_softmax(c: &mut Call, x: ExprId, mask: ExprId, axes: &[i64]) -> Convert {
    let far = c.number(x, if c.dtype(x)? == DType::F16 { -3e4 } else { -1e9 })?;
    let mask = c.cast(mask, DType::Bool)?;
    let logits = c.select(mask, x, far)?;
    let y = softmax(c, logits, axes)?;
    let zero = c.number(x, 0.0)?;
    c.select(mask, y, zero)
}
