//! Arithmetic, element by element, and products of matrices.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, kit::is_half, node::Node},
    },
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Abs", |n| unary(n, "abs")),
    row("Acos", |n| unary(n, "acos")),
    row("Acosh", |n| unary(n, "acosh")),
    row("Add", |n| binary(n, "add")),
    row("Asin", |n| unary(n, "asin")),
    row("Asinh", |n| unary(n, "asinh")),
    row("Atan", |n| unary(n, "atan")),
    row("Atanh", |n| unary(n, "atanh")),
    row("BitShift", bit_shift),
    row("BitwiseAnd", |n| binary(n, "bitwise_and")),
    row("BitwiseNot", |n| unary(n, "bitwise_not")),
    row("BitwiseOr", |n| binary(n, "bitwise_or")),
    row("BitwiseXor", |n| binary(n, "bitwise_xor")),
    row("Ceil", |n| unary(n, "ceil")),
    row("Clip", clip),
    row("Cos", |n| unary(n, "cos")),
    row("Cosh", |n| unary(n, "cosh")),
    row("Det", det),
    row("Div", |n| binary(n, "divide")),
    row("Einsum", einsum),
    row("Erf", |n| unary(n, "erf")),
    row("Exp", |n| unary(n, "exp")),
    row("Floor", |n| unary(n, "floor")),
    row("Gemm", gemm),
    row("Identity", |n| Ok(vec![n.inputs.first().cloned().flatten().unwrap_or(Val::Absent)])),
    row("Log", |n| unary(n, "log")),
    row("MatMul", matmul),
    row("Max", |n| several(n, "maximum")),
    row("Mean", mean),
    row("Min", |n| several(n, "minimum")),
    row("Mod", modulo),
    row("Mul", |n| binary(n, "multiply")),
    row("Neg", |n| unary(n, "negative")),
    row("Pow", pow),
    row("Reciprocal", reciprocal),
    row("Round", round),
    row("Sign", |n| unary(n, "sign")),
    row("Sin", |n| unary(n, "sin")),
    row("Sinh", |n| unary(n, "sinh")),
    row("Sqrt", |n| unary(n, "sqrt")),
    row("Sub", |n| binary(n, "subtract")),
    row("Sum", |n| several(n, "add")),
    row("Tan", |n| unary(n, "tan")),
    row("Tanh", |n| unary(n, "tanh")),
];

/// An operator that Relay has under another name.
pub(super) fn unary(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let y = n.un(name, x)?;
    n.one(y)
}

/// The two operands of a node that broadcasts, in every version's way.
pub(super) fn operands(n: &mut Node) -> Convert<(ExprId, ExprId)> {
    let (x, y) = (n.x(0)?, n.x(1)?);
    // Before version 7 the second operand was laid along axes from `axis` on.
    if n.version >= 7 || n.int("broadcast", 0)? == 0 {
        return Ok((x, y));
    }
    let (rx, ry) = (n.rank(x)?, n.rank(y)?);
    match n.opt_int("axis")? {
        Some(axis) => {
            let axis = n.axis_of(axis, rx)?;
            n.ensure(axis + ry <= rx, || "the second operand has too many axes".into())?;
            let y = n.trailing(y, rx - axis - ry)?;
            Ok((x, y))
        }
        None => Ok((x, y)),
    }
}

fn binary(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let (x, y) = operands(n)?;
    let z = n.bin(name, x, y)?;
    n.one(z)
}

fn several(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let z = folded(n, name)?;
    n.one(z)
}

fn folded(n: &mut Node, name: &str) -> Convert {
    let all = n.all()?;
    let (&first, rest) = all.split_first().ok_or_else(|| n.refuse("it has no inputs"))?;
    rest.iter().try_fold(first, |acc, &x| n.bin(name, acc, x))
}

fn mean(n: &mut Node) -> Convert<Vec<Val>> {
    let count = n.all()?.len();
    let sum = folded(n, "add")?;
    let z = n.with("divide", sum, count as f64)?;
    n.one(z)
}

fn bit_shift(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let name = match n.text("direction", "")?.as_str() {
        "LEFT" => "left_shift",
        "RIGHT" => "right_shift",
        other => return Err(n.refuse(format!("its direction is `{other}`, but should be LEFT or RIGHT"))),
    };
    let z = n.bin(name, x, y)?;
    n.one(z)
}

fn clip(n: &mut Node) -> Convert<Vec<Val>> {
    let mut x = n.x(0)?;
    let bound = |n: &mut Node, i: usize, name: &str| -> Convert<Option<ExprId>> {
        if n.version >= 11 {
            return n.opt(i);
        }
        match n.opt_float(name)? {
            Some(v) => n.c(x, v).map(Some),
            None => Ok(None),
        }
    };
    let (low, high) = (bound(n, 1, "min")?, bound(n, 2, "max")?);
    // Constant bounds of floats are one operator.
    if let (Some(l), Some(h), true) = (low, high, n.dtype(x)?.is_float())
        && let (Some(l), Some(h)) = (n.value(l), n.value(h))
        && l.len() == 1
        && h.len() == 1
        && l.get_f64(0) <= h.get_f64(0)
    {
        let y = n.op("clip", &[x], &[("a_min", l.get_f64(0).into()), ("a_max", h.get_f64(0).into())])?;
        return n.one(y);
    }
    if let Some(low) = low {
        x = n.bin("maximum", low, x)?;
    }
    if let Some(high) = high {
        x = n.bin("minimum", high, x)?;
    }
    n.one(x)
}

fn modulo(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let name = if n.flag("fmod", false)? { "trunc_mod" } else { "floor_mod" };
    // Remainders of floats with the dividend's sign.
    let z = n.bin(if name == "trunc_mod" { "mod" } else { name }, x, y)?;
    n.one(z)
}

fn pow(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, mut y) = operands(n)?;
    let (dx, dy) = (n.dtype(x)?, n.dtype(y)?);
    if dx == dy && dx.is_float() {
        let z = n.bin("power", x, y)?;
        return n.one(z);
    }
    // Powers of integers are computed in floats.
    let within = if dx.is_float() { dx } else { DType::F64 };
    let x = n.cast(x, within)?;
    y = n.cast(y, within)?;
    let z = n.bin("power", x, y)?;
    let z = n.cast(z, dx)?;
    n.one(z)
}

fn reciprocal(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let y = n.from("divide", 1.0, x)?;
    n.one(y)
}

fn round(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let y = round_even(n, x)?;
    n.one(y)
}

/// Rounded to the nearest integer, halves to the even one.
pub(in crate::frontend::onnx) fn round_even(n: &mut Node, x: ExprId) -> Convert {
    n.un("round_even", x)
}

fn matmul(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let z = n.matmul(x, y, None)?;
    n.one(z)
}

fn gemm(n: &mut Node) -> Convert<Vec<Val>> {
    let y = scaled_product(n)?;
    n.one(y)
}

/// `alpha * A * B + beta * C`, by the node's attributes.
pub(super) fn scaled_product(n: &mut Node) -> Convert {
    let (a, b) = (n.x(0)?, n.x(1)?);
    let (ta, tb) = (n.flag("transA", false)?, n.flag("transB", false)?);
    let (alpha, beta) = (n.float("alpha", 1.0)?, n.float("beta", 1.0)?);
    n.ensure(n.rank(a)? == 2 && n.rank(b)? == 2, || "its operands should be matrices".into())?;
    // Products of halves are summed in `float32`, and rounded once.
    let dtype = n.dtype(a)?;
    let within = if is_half(dtype) { DType::F32 } else { dtype };
    let out = ("out_dtype", if within == dtype { AttrValue::None } else { within.into() });
    let mut y = match (ta, tb) {
        (false, true) => {
            let units = n.dims(b)?[0].map_or(AttrValue::None, AttrValue::from);
            n.op("nn.dense", &[a, b], &[("units", units), out])?
        }
        _ => n.op("nn.matmul", &[a, b], &[("transpose_a", ta.into()), ("transpose_b", tb.into()), out])?,
    };
    if alpha != 1.0 {
        y = n.with("multiply", y, alpha)?;
    }
    if let Some(mut c) = n.opt(2)? {
        c = n.cast(c, within)?;
        if beta != 1.0 {
            c = n.with("multiply", c, beta)?;
        }
        y = n.add(y, c)?;
    }
    n.cast(y, dtype)
}

fn einsum(n: &mut Node) -> Convert<Vec<Val>> {
    let equation: String = n.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let all = n.all()?;
    let operands = n.im.b.tuple(&all);
    let y = n.op("einsum", &[operands], &[("equation", equation.as_str().into())])?;
    n.one(y)
}

/// The determinant, by elimination with the greatest pivot, a column at a time.
fn det(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    n.ensure(rank >= 2, || "its input should be matrices".into())?;
    let size = n.extent(x, rank - 1)?;
    n.ensure(size == n.extent(x, rank - 2)? && size <= 64, || format!("matrices of {size} columns are not supported"))?;
    let dtype = n.dtype(x)?;
    let shape = n.shape(x)?;
    let batch: i64 = shape[..rank - 2].iter().product();
    let mut m = n.reshape(x, &[batch, size, size])?;
    let mut det = n.constant(Tensor::from_f64_fn(dtype, &[batch as usize, 1, 1], |_| 1.0));
    for k in 0..size {
        let left = size - k;
        // The row with the greatest first element comes to the front: rows are mixed by a permutation matrix of zeros and ones.
        let column = n.slice(m, 2, 0, 1)?;
        let magnitude = n.un("abs", column)?;
        let best = n.op("argmax", &[magnitude], &[("axis", [1].into()), ("keepdims", true.into())])?;
        let line = n.constant(Tensor::from_i64_fn(DType::I32, &[1, left as usize, 1], |i| i as i64));
        let chosen = n.bin("equal", line, best)?;
        let chosen = n.cast(chosen, dtype)?;
        let weighted = n.mul(m, chosen)?;
        let pivot_row = n.reduce("sum", weighted, &[1], true)?;
        let pivot = n.slice(pivot_row, 2, 0, 1)?;
        let first = n.slice(m, 1, 0, 1)?;
        let swapped = n.with("not_equal", best, 0.0)?;
        let swapped = n.cast(swapped, dtype)?;
        let sign = n.with("multiply", swapped, -2.0)?;
        let sign = n.with("add", sign, 1.0)?;
        det = n.mul(det, pivot)?;
        det = n.mul(det, sign)?;
        if left == 1 {
            break;
        }
        // The first row goes where the pivot's was.
        let kept = n.from("subtract", 1.0, chosen)?;
        let kept = n.mul(m, kept)?;
        let moved = n.mul(chosen, first)?;
        let rows = n.add(kept, moved)?;
        let rest = n.slice(rows, 1, 1, left)?;
        let zero = n.with("equal", pivot, 0.0)?;
        let one = n.c(pivot, 1.0)?;
        let safe = n.select(zero, one, pivot)?;
        let column = n.slice(rest, 2, 0, 1)?;
        let factor = n.div(column, safe)?;
        let part = n.mul(factor, pivot_row)?;
        let reduced = n.sub(rest, part)?;
        m = n.slice(reduced, 2, 1, left)?;
    }
    let y = n.reshape(det, &shape[..rank - 2])?;
    n.one(y)
}
