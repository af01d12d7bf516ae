//! Activations.

use super::{
    Row,
    math::{operands, unary},
    row,
    twister::Twister,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, kit::is_half, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Celu", celu),
    row("Dropout", dropout),
    row("Elu", elu),
    row("Gelu", |n| {
        let (x, tanh) = (n.x(0)?, n.text("approximate", "none")? == "tanh");
        let y = gelu(n, x, tanh)?;
        n.one(y)
    }),
    row("HardSigmoid", hard_sigmoid),
    row("HardSwish", hard_swish),
    row("Hardmax", hardmax),
    row("LeakyRelu", leaky_relu),
    row("LogSoftmax", |n| softmax(n, "nn.log_softmax")),
    row("Mish", mish),
    row("PRelu", prelu),
    row("Relu", relu),
    row("Selu", selu),
    row("Shrink", shrink),
    row("Sigmoid", |n| unary(n, "sigmoid")),
    row("Softmax", |n| softmax(n, "nn.softmax")),
    row("Softplus", |n| {
        let x = n.x(0)?;
        let y = softplus(n, x)?;
        n.one(y)
    }),
    row("Softsign", softsign),
    row("Swish", swish),
    row("ThresholdedRelu", thresholded_relu),
];

fn relu(n: &mut Node) -> Convert<Vec<Val>> {
    unary(n, "nn.relu")
}

/// `positive` where x is not negative, else `alpha * (e^x - 1)`.
fn exponential(n: &mut Node, x: ExprId, alpha: f64, inside: f64) -> Convert {
    let scaled = if inside == 1.0 { x } else { n.with("divide", x, inside)? };
    let low = n.with("minimum", scaled, 0.0)?;
    let e = n.un("exp", low)?;
    let less = n.with("subtract", e, 1.0)?;
    n.with("multiply", less, alpha)
}

fn elu(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, alpha) = (n.x(0)?, n.float("alpha", 1.0)?);
    let negative = exponential(n, x, alpha, 1.0)?;
    let below = n.with("less", x, 0.0)?;
    let y = n.select(below, negative, x)?;
    n.one(y)
}

fn celu(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, alpha) = (n.x(0)?, n.float("alpha", 1.0)?);
    let negative = exponential(n, x, alpha, alpha)?;
    let positive = n.un("nn.relu", x)?;
    let y = n.add(positive, negative)?;
    n.one(y)
}

fn selu(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let (alpha, gamma) = match n.version {
        1..6 => (1.6732, 1.0507),
        _ => (1.673_263_192_176_818_8, 1.050_701_022_148_132_3),
    };
    let (alpha, gamma) = (n.float("alpha", alpha)?, n.float("gamma", gamma)?);
    let negative = exponential(n, x, alpha, 1.0)?;
    let below = n.with("less_equal", x, 0.0)?;
    let y = n.select(below, negative, x)?;
    let y = n.with("multiply", y, gamma)?;
    n.one(y)
}

/// The Gaussian error linear unit, exact or by tanh.
pub(in crate::frontend::onnx) fn gelu(n: &mut Node, x: ExprId, tanh: bool) -> Convert {
    let inner = if tanh {
        let squared = n.mul(x, x)?;
        let cubed = n.mul(squared, x)?;
        let part = n.with("multiply", cubed, 0.044715)?;
        let sum = n.add(x, part)?;
        let scaled = n.with("multiply", sum, (2.0 / std::f64::consts::PI).sqrt())?;
        n.un("tanh", scaled)?
    } else {
        let scaled = n.with("divide", x, std::f64::consts::SQRT_2)?;
        n.un("erf", scaled)?
    };
    let one = n.with("add", inner, 1.0)?;
    let half = n.with("multiply", x, 0.5)?;
    n.mul(half, one)
}

fn linear_clipped(n: &mut Node, x: ExprId, alpha: f64, beta: f64) -> Convert {
    let scaled = n.with("multiply", x, alpha)?;
    let moved = n.with("add", scaled, beta)?;
    n.op("clip", &[moved], &[("a_min", 0.0.into()), ("a_max", 1.0.into())])
}

fn hard_sigmoid(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let (alpha, beta) = (n.float("alpha", 0.2f32.into())?, n.float("beta", 0.5)?);
    let y = linear_clipped(n, x, alpha, beta)?;
    n.one(y)
}

fn hard_swish(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let gate = linear_clipped(n, x, 1.0 / 6.0, 0.5)?;
    let y = n.mul(x, gate)?;
    n.one(y)
}

fn swish(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, alpha) = (n.x(0)?, n.float("alpha", 1.0)?);
    let scaled = if alpha == 1.0 { x } else { n.with("multiply", x, alpha)? };
    let gate = n.un("sigmoid", scaled)?;
    let y = n.mul(x, gate)?;
    n.one(y)
}

/// log(1 + e^x), without overflow.
pub(super) fn softplus(n: &mut Node, x: ExprId) -> Convert {
    let magnitude = n.un("abs", x)?;
    let negative = n.un("negative", magnitude)?;
    let e = n.un("exp", negative)?;
    let sum = n.with("add", e, 1.0)?;
    let log = n.un("log", sum)?;
    let positive = n.un("nn.relu", x)?;
    n.add(positive, log)
}

fn mish(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let inner = softplus(n, x)?;
    let tanh = n.un("tanh", inner)?;
    let y = n.mul(x, tanh)?;
    n.one(y)
}

fn softsign(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let magnitude = n.un("abs", x)?;
    let below = n.with("add", magnitude, 1.0)?;
    let y = n.div(x, below)?;
    n.one(y)
}

fn leaky_relu(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, alpha) = (n.x(0)?, n.float("alpha", 0.01f32.into())?);
    let y = n.op("nn.leaky_relu", &[x], &[("alpha", alpha.into())])?;
    n.one(y)
}

fn thresholded_relu(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, alpha) = (n.x(0)?, n.float("alpha", 1.0)?);
    let above = n.with("greater", x, alpha)?;
    let zero = n.c(x, 0.0)?;
    let y = n.select(above, x, zero)?;
    n.one(y)
}

fn shrink(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, bias, bound) = (n.x(0)?, n.float("bias", 0.0)?, n.float("lambd", 0.5)?);
    // Bounds need not be numbers that the elements' type has.
    let wide = if n.dtype(x)?.is_float() { x } else { n.cast(x, DType::F64)? };
    let zero = n.c(wide, 0.0)?;
    let (below, above) = (n.with("less", wide, -bound)?, n.with("greater", wide, bound)?);
    let (up, down) = (n.with("add", wide, bias)?, n.with("subtract", wide, bias)?);
    let high = n.select(above, down, zero)?;
    let y = n.select(below, up, high)?;
    let dtype = n.dtype(x)?;
    let y = n.cast(y, dtype)?;
    n.one(y)
}

fn prelu(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, mut slope) = operands(n)?;
    // Before version 7 slopes were one for each channel.
    if n.version < 7 && n.rank(slope)? == 1 && n.dims(slope)?[0] != Some(1) {
        let rank = n.rank(x)?;
        slope = n.trailing(slope, rank.saturating_sub(2))?;
    }
    let scaled = n.mul(x, slope)?;
    let below = n.with("less", x, 0.0)?;
    let y = n.select(below, scaled, x)?;
    n.one(y)
}

/// Of halves, exponentials and their sums are of `float32`; the result is rounded once.
fn softmax(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let dtype = n.dtype(x)?;
    let x = if is_half(dtype) { n.cast(x, DType::F32)? } else { x };
    let rank = n.rank(x)?;
    if n.version >= 13 {
        let axis = n.int("axis", -1)?;
        let axis = n.axis_of(axis, rank)?;
        let y = n.op(name, &[x], &[("axis", (axis as i64).into())])?;
        let y = n.cast(y, dtype)?;
        return n.one(y);
    }
    // Of a matrix: all axes from `axis` on are one.
    let axis = n.int("axis", 1)?;
    let axis = if axis == rank as i64 { rank } else { n.axis_of(axis, rank)? };
    let y = coerced(n, x, axis, |n, m| n.op(name, &[m], &[("axis", 1.into())]))?;
    let y = n.cast(y, dtype)?;
    n.one(y)
}

/// What is done to the matrix that a tensor is when flattened around an axis.
fn coerced(n: &mut Node, x: ExprId, axis: usize, f: impl FnOnce(&mut Node, ExprId) -> Convert) -> Convert {
    let shape = n.shape_of(x)?;
    let m = n.flattened(x, axis)?;
    let y = f(n, m)?;
    n.reshape_to(y, shape)
}

fn hardmax(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let y = if n.version >= 13 {
        let axis = n.int("axis", -1)?;
        let axis = n.axis_of(axis, rank)?;
        first_greatest(n, x, axis)?
    } else {
        let axis = n.int("axis", 1)?;
        let axis = if axis == rank as i64 { rank } else { n.axis_of(axis, rank)? };
        coerced(n, x, axis, |n, m| first_greatest(n, m, 1))?
    };
    n.one(y)
}

fn first_greatest(n: &mut Node, x: ExprId, axis: usize) -> Convert {
    let best = n.op("argmax", &[x], &[("axis", [axis as i64].into()), ("keepdims", true.into())])?;
    let places = n.places(x, axis, DType::I32)?;
    let rank = n.rank(x)?;
    let places = n.trailing(places, rank - 1 - axis)?;
    let hit = n.bin("equal", places, best)?;
    let dtype = n.dtype(x)?;
    n.cast(hit, dtype)
}

/// The most elements of which a seed says whether they are dropped.
const MOST_DRAWN: i64 = 1 << 26;

fn dropout(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let training = match n.version {
        12.. => n.opt(2)?,
        _ => None,
    };
    let known = |n: &mut Node, e: Option<ExprId>| e.and_then(|e| n.value(e)).map(|v| v.get_f64(0));
    let ratio = n.opt(1).ok().flatten().filter(|_| n.version >= 12);
    let never = training.is_none() || known(n, training) == Some(0.0) || known(n, ratio) == Some(0.0);
    if let (Some(training), false) = (training, never) {
        return dropped(n, x, training, ratio);
    }
    let mut outputs = vec![n.out(x)?];
    if n.wants(1) {
        let shape = n.shape_of(x)?;
        let yes = n.constant(Tensor::from_bools(&[], &[true]));
        let mask = n.filled(yes, shape)?;
        let mask = if n.version >= 10 { mask } else { n.cast(mask, n.dtype(x)?)? };
        outputs.push(n.out(mask)?);
    }
    Ok(outputs)
}

/// Dropout by the node's seed, where it trains.
fn dropped(n: &mut Node, x: ExprId, training: ExprId, ratio: Option<ExprId>) -> Convert<Vec<Val>> {
    let seed = n.opt_int("seed")?.ok_or_else(|| n.refuse("drops elements at random and has no seed: not supported"))?;
    let (dtype, shape) = (n.dtype(x)?, n.shape(x)?);
    n.ensure(shape.iter().product::<i64>() <= MOST_DRAWN, || {
        format!("drops elements of {shape:?}, which are too many")
    })?;
    let mut twister = Twister::new(seed as u32);
    let extents: Vec<usize> = shape.iter().map(|&d| d.max(0) as usize).collect();
    let drawn = n.constant(Tensor::from_f64_fn(DType::F64, &extents, |_| twister.uniform()));
    let training = n.cast(training, DType::Bool)?;
    let training = n.reshape(training, &[])?;
    let ratio = match ratio {
        Some(r) => {
            let r = n.cast(r, DType::F64)?;
            n.reshape(r, &[])?
        }
        None => n.im.b.scalar(DType::F64, 0.5),
    };
    let above = n.bin("greater_equal", drawn, ratio)?;
    let not = n.un("logical_not", training)?;
    let kept = n.bin("logical_or", above, not)?;
    let share = n.from("subtract", 1.0, ratio)?;
    let factor = n.from("divide", 1.0, share)?;
    let one = n.c(factor, 1.0)?;
    let factor = n.select(training, factor, one)?;
    let factor = n.cast(factor, dtype)?;
    let scaled = n.mul(x, factor)?;
    let zero = n.c(x, 0.0)?;
    let y = n.select(kept, scaled, zero)?;
    Ok(vec![n.out(y)?, n.out(kept)?])
}
