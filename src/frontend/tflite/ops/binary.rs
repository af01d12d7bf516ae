//! Functions of two elements, with broadcasting.

use super::{
    super::{
        node::Node,
        quant::{Target, range},
    },
    Results,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// Operators that are one of Relay's, of plain numbers, with the fused activation in an option.
fn plain(n: &mut Node, relay: &str, activation: Option<u16>) -> Results {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let e = n.bin(relay, x, y)?;
    let code = activation.map_or(0, |slot| n.byte(slot));
    Ok(vec![n.activate(e, code)?])
}

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident = $relay:literal;)*) => {$(
        $(#[$doc])*
        pub(in crate::frontend::tflite) fn $name(n: &mut Node) -> Results {
            plain(n, $relay, None)
        }
    )*};
}

plain! {
    /// FLOOR_MOD.
    floor_mod = "floor_mod";
    /// LOGICAL_AND.
    logical_and = "logical_and";
    /// LOGICAL_OR.
    logical_or = "logical_or";
    /// BITWISE_XOR.
    bitwise_xor = "bitwise_xor";
}

/// POW: of integers by double precision, as the kernel does it.
pub(in crate::frontend::tflite) fn pow(n: &mut Node) -> Results {
    let out = n.out_dtype(0)?;
    if out.is_float() {
        return plain(n, "power", None);
    }
    let (x, y) = (n.x(0)?, n.x(1)?);
    let (x, y) = (n.cast(x, DType::F64)?, n.cast(y, DType::F64)?);
    let e = n.bin("power", x, y)?;
    Ok(vec![n.cast(e, out)?])
}

/// Bits that both sides of a sum are shifted left by before their scales are made one.
fn headroom(dtype: DType) -> i64 {
    if dtype == DType::I16 { 15 } else { 20 }
}

/// ADD and SUB.
fn sum(n: &mut Node, relay: &str) -> Results {
    let code = n.byte(0);
    if !n.quantized()? {
        return plain(n, relay, Some(0));
    }
    let (x, y) = (n.x(0)?, n.x(1)?);
    let ((s1, z1), (s2, z2), (so, zo)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    let left = headroom(dtype);
    let widest = 2.0 * s1.max(s2) as f64;
    let x = lifted(n, x, z1, left, s1 as f64 / widest)?;
    let y = lifted(n, y, z2, left, s2 as f64 / widest)?;
    let e = n.bin(relay, x, y)?;
    let e = n.scaled(e, 0, widest / ((1i64 << left) as f64 * so as f64), Target { zero: zo, dtype })?;
    Ok(vec![n.activate_quantized(e, code)?])
}

/// Integers shifted left, times a factor of at most 1, as `int32`.
fn lifted(n: &mut Node, x: ExprId, zero: i64, left: i64, factor: f64) -> Convert {
    let x = n.shifted(x, zero)?;
    let x = n.with("left_shift", x, left as f64)?;
    n.scaled(x, 0, factor, Target { zero: 0, dtype: DType::I32 })
}

/// ADD.
pub(in crate::frontend::tflite) fn add(n: &mut Node) -> Results {
    sum(n, "add")
}

/// SUB.
pub(in crate::frontend::tflite) fn sub(n: &mut Node) -> Results {
    sum(n, "subtract")
}

/// MUL.
pub(in crate::frontend::tflite) fn mul(n: &mut Node) -> Results {
    let code = n.byte(0);
    if !n.quantized()? {
        return plain(n, "multiply", Some(0));
    }
    let (x, y) = (n.x(0)?, n.x(1)?);
    let ((s1, z1), (s2, z2), (so, zo)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    let (x, y) = (n.shifted(x, z1)?, n.shifted(y, z2)?);
    let e = n.bin("multiply", x, y)?;
    let e = n.scaled(e, 0, (s1 * s2 / so) as f64, Target { zero: zo, dtype })?;
    Ok(vec![n.activate_quantized(e, code)?])
}

/// DIV.
pub(in crate::frontend::tflite) fn div(n: &mut Node) -> Results {
    let code = n.byte(0);
    let (x, y) = (n.x(0)?, n.x(1)?);
    if n.quantized()? {
        let (so, zo) = n.quant_out(0)?;
        let dtype = n.out_dtype(0)?;
        let (x, y) = (super::unary::widened(n, 0)?, super::unary::widened(n, 1)?);
        let e = n.bin("divide", x, y)?;
        let e = super::unary::narrowed(n, e, so, zo, dtype)?;
        return Ok(vec![n.activate_quantized(e, code)?]);
    }
    let relay = if n.dtype(x)?.is_float() { "divide" } else { "trunc_divide" };
    let e = n.bin(relay, x, y)?;
    Ok(vec![n.activate(e, code)?])
}

/// FLOOR_DIV.
pub(in crate::frontend::tflite) fn floor_div(n: &mut Node) -> Results {
    let (x, y) = (n.x(0)?, n.x(1)?);
    if n.dtype(x)?.is_float() {
        let e = n.bin("divide", x, y)?;
        return Ok(vec![n.un("floor", e)?]);
    }
    Ok(vec![n.bin("floor_divide", x, y)?])
}

/// MAXIMUM and MINIMUM, which the file gives one scale for all.
fn extreme(n: &mut Node, relay: &str) -> Results {
    plain(n, relay, None)
}

/// MAXIMUM.
pub(in crate::frontend::tflite) fn maximum(n: &mut Node) -> Results {
    extreme(n, "maximum")
}

/// MINIMUM.
pub(in crate::frontend::tflite) fn minimum(n: &mut Node) -> Results {
    extreme(n, "minimum")
}

/// SQUARED_DIFFERENCE.
pub(in crate::frontend::tflite) fn squared_difference(n: &mut Node) -> Results {
    let (x, y) = (n.x(0)?, n.x(1)?);
    if !n.quantized()? {
        let d = n.bin("subtract", x, y)?;
        return Ok(vec![n.bin("multiply", d, d)?]);
    }
    let ((s1, z1), (s2, z2), (so, zo)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    const LEFT: i64 = 7;
    let widest = (2.0 * s1.max(s2)) as f64;
    let x = lifted(n, x, z1, LEFT, s1 as f64 / widest)?;
    let y = lifted(n, y, z2, LEFT, s2 as f64 / widest)?;
    let d = n.bin("subtract", x, y)?;
    let e = n.bin("multiply", d, d)?;
    let unit = ((1i64 << (2 * LEFT)) as f32 * so) as f64;
    Ok(vec![n.scaled(e, 0, widest * widest / unit, Target { zero: zo, dtype })?])
}

/// ATAN2.
pub(in crate::frontend::tflite) fn atan2(n: &mut Node) -> Results {
    use std::f64::consts::{FRAC_PI_2, PI};
    let (y, x) = (n.x(0)?, n.x(1)?);
    let (left, up) = (n.with("less", x, 0.0)?, n.with("greater_equal", y, 0.0)?);
    let upright = n.with("equal", x, 0.0)?;
    let above = n.with("greater", y, 0.0)?;
    let below = n.with("less", y, 0.0)?;
    let one = n.num(x, 1.0)?;
    let divisor = n.op("where", &[upright, one, x], &[])?;
    let ratio = n.bin("divide", y, divisor)?;
    let angle = n.un("atan", ratio)?;
    let [pi, minus_pi, quarter, minus_quarter, zero] = [PI, -PI, FRAC_PI_2, -FRAC_PI_2, 0.0].map(|v| n.num(x, v));
    let turn = n.op("where", &[up, pi?, minus_pi?], &[])?;
    let zero = zero?;
    let turn = n.op("where", &[left, turn, zero], &[])?;
    let angle = n.bin("add", angle, turn)?;
    let down = n.op("where", &[below, minus_quarter?, zero], &[])?;
    let axis = n.op("where", &[above, quarter?, down], &[])?;
    Ok(vec![n.op("where", &[upright, axis, angle], &[])?])
}

/// Comparisons: quantized numbers at one scale, that both sides are brought to.
fn compare(n: &mut Node, relay: &str) -> Results {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let info = (n.input(0)?, n.input(1)?);
    if !Node::is_quantized(info.0) || !Node::is_quantized(info.1) {
        return Ok(vec![n.bin(relay, x, y)?]);
    }
    let ((s1, z1), (s2, z2)) = (n.quant_in(0)?, n.quant_in(1)?);
    const LEFT: i64 = 8;
    let x = lifted(n, x, z1, LEFT, s1 as f64)?;
    let y = lifted(n, y, z2, LEFT, s2 as f64)?;
    Ok(vec![n.bin(relay, x, y)?])
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = $relay:literal;)*) => {$(
        $(#[$doc])*
        pub(in crate::frontend::tflite) fn $name(n: &mut Node) -> Results {
            compare(n, $relay)
        }
    )*};
}

comparisons! {
    /// EQUAL.
    equal = "equal";
    /// NOT_EQUAL.
    not_equal = "not_equal";
    /// LESS.
    less = "less";
    /// LESS_EQUAL.
    less_equal = "less_equal";
    /// GREATER.
    greater = "greater";
    /// GREATER_EQUAL.
    greater_equal = "greater_equal";
}

/// RIGHT_SHIFT: as far as the type has bits, at most.
pub(in crate::frontend::tflite) fn right_shift(n: &mut Node) -> Results {
    let (x, by) = (n.x(0)?, n.x(1)?);
    let dtype = n.dtype(x)?;
    let bits = dtype.bits() as f64;
    let by = if dtype.is_signed_int() { n.with("maximum", by, 0.0)? } else { by };
    let by = n.with("minimum", by, bits - 1.0)?;
    Ok(vec![n.bin("right_shift", x, by)?])
}

/// ADD_N.
pub(in crate::frontend::tflite) fn add_n(n: &mut Node) -> Results {
    let mut e = n.x(0)?;
    for i in 1..n.count() {
        let y = n.x(i)?;
        e = n.bin("add", e, y)?;
    }
    Ok(vec![e])
}

/// PRELU.
pub(in crate::frontend::tflite) fn prelu(n: &mut Node) -> Results {
    let (x, alpha) = (n.x(0)?, n.x(1)?);
    if !n.quantized()? {
        let slope = n.bin("multiply", x, alpha)?;
        let zero = n.num(x, 0.0)?;
        let positive = n.bin("greater_equal", x, zero)?;
        return Ok(vec![n.op("where", &[positive, x, slope], &[])?]);
    }
    let ((s, z), (sa, za), (so, zo)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_out(0)?);
    let (x, alpha) = (n.shifted(x, z)?, n.shifted(alpha, za)?);
    let to = || Target { zero: 0, dtype: DType::I32 };
    let kept = n.scaled(x, 0, (s / so) as f64, to())?;
    let product = n.bin("multiply", x, alpha)?;
    let sloped = n.scaled(product, 0, (s * sa / so) as f64, to())?;
    let positive = n.with("greater_equal", x, 0.0)?;
    let e = n.op("where", &[positive, kept, sloped], &[])?;
    let e = n.with("add", e, zo as f64)?;
    let dtype = n.out_dtype(0)?;
    let e = n.within(e, range(dtype))?;
    Ok(vec![n.cast(e, dtype)?])
}
