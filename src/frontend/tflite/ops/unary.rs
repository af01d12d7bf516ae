//! Functions of one element.

use super::{
    super::{
        fixed::{LONG, divided},
        node::Node,
        quant::{Target, range, short_logistic, short_tanh, to_twelve_thousandths},
    },
    Results,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    ops::{fixed_point, tflite_scaled},
    tensor::DType,
};

/// Operators that are one of Relay's.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident = $relay:literal;)*) => {$(
        $(#[$doc])*
        pub(in crate::frontend::tflite) fn $name(n: &mut Node) -> Results {
            let x = n.x(0)?;
            Ok(vec![n.un($relay, x)?])
        }
    )*};
}

plain! {
    /// FLOOR.
    floor = "floor";
    /// CEIL.
    ceil = "ceil";
    /// SIN.
    sin = "sin";
    /// COS.
    cos = "cos";
    /// NEG.
    neg = "negative";
    /// SIGN.
    sign = "sign";
    /// LOGICAL_NOT.
    logical_not = "logical_not";
    /// ZEROS_LIKE.
    zeros_like = "zeros_like";
}

/// A function of floats, or of quantized numbers by the kernels' table.
fn tabled(n: &mut Node, relay: &str, f: impl Fn(f32) -> f32) -> Results {
    let e = match n.quantized()? {
        true => n.table_of(f)?,
        false => {
            let x = n.x(0)?;
            n.un(relay, x)?
        }
    };
    Ok(vec![e])
}

/// EXP.
pub(in crate::frontend::tflite) fn exp(n: &mut Node) -> Results {
    tabled(n, "exp", f32::exp)
}

/// SQRT: the kernel cuts quantized results off, and rounds none.
pub(in crate::frontend::tflite) fn sqrt(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if !n.quantized()? {
        return Ok(vec![n.un("sqrt", x)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let out = n.out_dtype(0)?;
    let (lo, hi) = range(out);
    let e = n.table(x, out, |q| (((s * (q - z) as f32).max(0.0).sqrt() / so) as i64 + zo).clamp(lo, hi))?;
    Ok(vec![e])
}

/// LOG.
pub(in crate::frontend::tflite) fn log(n: &mut Node) -> Results {
    let least = match n.quantized()? {
        true => {
            let (scale, zero) = n.quant_out(0)?;
            (range(n.out_dtype(0)?).0 - zero) as f32 * scale
        }
        false => 0.0,
    };
    tabled(n, "log", move |x| if x <= 0.0 { least } else { x.ln() })
}

/// SQUARE.
pub(in crate::frontend::tflite) fn square(n: &mut Node) -> Results {
    let x = n.x(0)?;
    Ok(vec![n.bin("multiply", x, x)?])
}

/// ABS.
pub(in crate::frontend::tflite) fn abs(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if !n.quantized()? {
        return Ok(vec![n.un("abs", x)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let factor = (s / so) as f64;
    let out = n.out_dtype(0)?;
    let scaled = move |v: i64| if s == so { v } else { tflite_scaled(v, factor) };
    Ok(vec![n.table(x, out, |q| scaled((q - z).abs()) + zo)?])
}

/// RSQRT.
pub(in crate::frontend::tflite) fn rsqrt(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if !n.quantized()? {
        return Ok(vec![n.un("rsqrt", x)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let out = n.out_dtype(0)?;
    let (_, most) = range(out);
    if n.dtype(x)? == DType::I16 {
        let largest = i16::MAX as f32 * so;
        return Ok(vec![n.table_of(move |v| if v <= 0.0 { largest } else { 1.0 / v.sqrt() })?]);
    }
    let (significand, exponent) = fixed_point(1.0 / (s.sqrt() * so) as f64);
    let e = n.table(x, out, |q| {
        let value = q - z;
        if value <= 0 {
            return most;
        }
        let (root, shift) = inverse_root(value);
        // 20 bits are kept behind the point between the two products.
        let data = product(1, root, 20 - shift);
        product(data, significand, exponent - 20) + zo
    })?;
    Ok(vec![e])
}

/// `x * significand * 2^(exponent - 31)`, rounded as the kernels do.
fn product(x: i64, significand: i64, exponent: i64) -> i64 {
    let high = ((x << exponent.clamp(0, 31)) as i32 as i64 * significand + (1 << 30)) >> 31;
    divided(high, (-exponent).max(0))
}

/// `1 / sqrt(x)` as a significand of 31 bits and how far it is shifted to the right: five rounds of Newton's method.
fn inverse_root(x: i64) -> (i64, i64) {
    if x <= 1 {
        return (i32::MAX as i64, 0);
    }
    let (mut x, mut shift) = (x, 11);
    while x >= 1 << 29 {
        x /= 4;
        shift += 1;
    }
    let pairs = ((x as u32).leading_zeros() as i64 - 1) / 2 - 1;
    shift -= pairs;
    x <<= 2 * pairs;
    // Numbers have three integer bits; products gain as many as both have and are brought back to three.
    let rescale = |v: i64, by: i64| (v << by).clamp(i32::MIN as i64, i32::MAX as i64);
    let input = x >> 1;
    let half = divided(input, 1);
    let three_halves = (1 << 28) + (1 << 27);
    let mut root = 1i64 << 28;
    for _ in 0..5 {
        let cube = rescale(LONG.times(LONG.times(root, root), root), 6);
        root = rescale(LONG.times(three_halves, root) - LONG.times(half, cube), 3);
    }
    let mut root = LONG.times(root, 1_518_500_250);
    if shift < 0 {
        root <<= -shift;
        shift = 0;
    }
    (root, shift)
}

/// ROUND: halves to even.
pub(in crate::frontend::tflite) fn round(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let nearest = n.un("round", x)?;
    let half = n.with("multiply", x, 0.5)?;
    let half = n.un("round", half)?;
    let even = n.with("multiply", half, 2.0)?;
    let whole = n.un("trunc", x)?;
    let rest = n.bin("subtract", x, whole)?;
    let rest = n.un("abs", rest)?;
    let tie = n.with("equal", rest, 0.5)?;
    Ok(vec![n.op("where", &[tie, even, nearest], &[])?])
}

/// RELU and its kin: bounds, of quantized numbers after a change of scale.
fn bounded(n: &mut Node, low: f32, high: f32) -> Results {
    let x = n.x(0)?;
    if n.quantized()? {
        let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
        let dtype = n.out_dtype(0)?;
        let (least, most) = range(dtype);
        let q = |v: f32| zo + (v / so).round() as i64;
        let bounds = (least.max(q(low)), if high.is_finite() { most.min(q(high)) } else { most });
        let e = n.scaled(x, z, (s / so) as f64, Target { zero: zo, dtype })?;
        return Ok(vec![n.within(e, bounds)?]);
    }
    let e = match high.is_finite() {
        true => n.clip(x, low as f64, high as f64)?,
        false => n.activate(x, 1)?,
    };
    Ok(vec![e])
}

/// RELU.
pub(in crate::frontend::tflite) fn relu(n: &mut Node) -> Results {
    bounded(n, 0.0, f32::INFINITY)
}

/// RELU6.
pub(in crate::frontend::tflite) fn relu6(n: &mut Node) -> Results {
    bounded(n, 0.0, 6.0)
}

/// RELU_N1_TO_1.
pub(in crate::frontend::tflite) fn relu_n1_to_1(n: &mut Node) -> Results {
    bounded(n, -1.0, 1.0)
}

/// RELU_0_TO_1.
pub(in crate::frontend::tflite) fn relu_0_to_1(n: &mut Node) -> Results {
    bounded(n, 0.0, 1.0)
}

/// ELU.
pub(in crate::frontend::tflite) fn elu(n: &mut Node) -> Results {
    if n.quantized()? {
        return Ok(vec![n.table_of(|x| if x < 0.0 { x.exp_m1() } else { x })?]);
    }
    let x = n.x(0)?;
    let negative = n.with("minimum", x, 0.0)?;
    let e = n.un("exp", negative)?;
    let e = n.with("subtract", e, 1.0)?;
    let relu = n.un("nn.relu", x)?;
    Ok(vec![n.bin("add", relu, e)?])
}

/// LEAKY_RELU.
pub(in crate::frontend::tflite) fn leaky_relu(n: &mut Node) -> Results {
    let (x, alpha) = (n.x(0)?, n.number(0));
    if !n.quantized()? {
        return Ok(vec![n.op("nn.leaky_relu", &[x], &[("alpha", (alpha as f64).into())])?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let (identity, slope) = ((s / so) as f64, (s * alpha / so) as f64);
    let out = n.out_dtype(0)?;
    let e = n.table(x, out, |q| match q - z {
        v if v >= 0 => zo + tflite_scaled(v, identity),
        v if slope < 0.0 => zo - tflite_scaled(v, -slope),
        v => zo + tflite_scaled(v, slope),
    })?;
    Ok(vec![e])
}

/// HARD_SWISH.
pub(in crate::frontend::tflite) fn hard_swish(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if !n.quantized()? {
        let shifted = n.with("add", x, 3.0)?;
        let gate = n.clip(shifted, 0.0, 6.0)?;
        let e = n.bin("multiply", x, gate)?;
        return Ok(vec![n.with("divide", e, 6.0)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    // Numbers have 7 bits more than the input, in 16 bits; significands are brought to 15 bits.
    let fine = (1.0f32 / 128.0) * s;
    let short = |f: f32| {
        let (significand, exponent) = fixed_point(f as f64);
        (((significand + (1 << 15)) >> 16).min(0x7FFF), exponent)
    };
    let (out_by, out_exponent) = short(fine / so);
    let (gate_by, gate_exponent) = short(fine / (3.0f32 / 32768.0));
    if gate_exponent > 15 {
        return n.refuse(format!("a scale of {s} is too large"));
    }
    let fit = |v: i64| v.clamp(i16::MIN as i64, i16::MAX as i64);
    let times = |a: i64, b: i64| (a * b + (1 << 14)) >> 15;
    let out = n.out_dtype(0)?;
    let e = n.table(x, out, |q| {
        let value = ((q - z) << 7) as i16 as i64;
        let scaled = times(value, out_by);
        let mut gate = value;
        if gate_exponent > 0 {
            gate = fit(gate << (gate_exponent - 1));
        }
        gate = times(gate, gate_by);
        if gate_exponent > 0 {
            gate = fit(gate << 1);
        }
        gate = divided(gate, (-gate_exponent).max(0));
        gate = (gate + (1 << 15)) >> 1;
        // This product is rounded towards zero.
        let product = gate * scaled / (1 << 15);
        divided(product, (-out_exponent).max(0)) + zo
    })?;
    Ok(vec![e])
}

/// GELU.
pub(in crate::frontend::tflite) fn gelu(n: &mut Node) -> Results {
    let approximate = n.flag(0);
    const ROOT_OF_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
    const ROOT_OF_2_BY_PI: f32 = 0.797_884_6;
    if n.quantized()? {
        let e = n.table_of(|x| match approximate {
            true => 0.5 * x * (1.0 + (ROOT_OF_2_BY_PI * (x + 0.044715 * x * x * x)).tanh()),
            false => 0.5 * x * (1.0 + crate::tensor::erf((x * ROOT_OF_HALF) as f64) as f32),
        })?;
        return Ok(vec![e]);
    }
    let x = n.x(0)?;
    let inner = match approximate {
        true => {
            let square = n.bin("multiply", x, x)?;
            let cube = n.bin("multiply", square, x)?;
            let cube = n.with("multiply", cube, 0.044715)?;
            let sum = n.bin("add", x, cube)?;
            let sum = n.with("multiply", sum, ROOT_OF_2_BY_PI as f64)?;
            n.un("tanh", sum)?
        }
        false => {
            let scaled = n.with("multiply", x, ROOT_OF_HALF as f64)?;
            n.un("erf", scaled)?
        }
    };
    let gate = n.with("add", inner, 1.0)?;
    let half = n.with("multiply", x, 0.5)?;
    Ok(vec![n.bin("multiply", half, gate)?])
}

/// LOGISTIC.
pub(in crate::frontend::tflite) fn logistic(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if n.quantized()? && n.dtype(x)? == DType::I16 {
        let (by, shift) = to_twelve_thousandths(n.quant_in(0)?.0, 0);
        return Ok(vec![short(n, by, shift, short_logistic)?]);
    }
    tabled(n, "sigmoid", |x| 1.0 / (1.0 + (-x).exp()))
}

/// TANH.
pub(in crate::frontend::tflite) fn tanh(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if n.quantized()? && n.dtype(x)? == DType::I16 {
        let (by, shift) = to_twelve_thousandths(n.quant_in(0)?.0, 1);
        return Ok(vec![short(n, by, shift, short_tanh)?]);
    }
    tabled(n, "tanh", f32::tanh)
}

fn short(n: &mut Node, by: i64, shift: u32, f: impl Fn(i64) -> i64) -> Convert {
    let x = n.x(0)?;
    let half = if shift > 0 { 1i64 << (shift - 1) } else { 0 };
    n.table(x, DType::I16, |q| f((q * by + half) >> shift))
}

/// CAST.
pub(in crate::frontend::tflite) fn cast(n: &mut Node) -> Results {
    let (x, out) = (n.x(0)?, n.out_dtype(0)?);
    Ok(vec![n.cast(x, out)?])
}

/// BITCAST.
pub(in crate::frontend::tflite) fn bitcast(n: &mut Node) -> Results {
    let (x, out) = (n.x(0)?, n.out_dtype(0)?);
    let from = n.dtype(x)?;
    if from.bytes() == out.bytes() {
        return Ok(vec![n.op("reinterpret", &[x], &[("dtype", out.into())])?]);
    }
    let unsigned = |bytes: usize| match bytes {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    let (wide, narrow) = (unsigned(from.bytes().max(out.bytes())), unsigned(from.bytes().min(out.bytes())));
    let parts = wide.bytes() / narrow.bytes();
    let bits = 8 * narrow.bytes() as i64;
    let shifts = crate::tensor::Tensor::from_i64_fn(wide, &[parts], |i| i as i64 * bits);
    let shifts = n.b.constant(shifts);
    let e = if out.bytes() < from.bytes() {
        // One more axis, of the parts, the least significant one first.
        let whole = n.op("reinterpret", &[x], &[("dtype", wide.into())])?;
        let whole = n.expand(whole, -1)?;
        let parts = n.bin("right_shift", whole, shifts)?;
        n.cast(parts, narrow)?
    } else {
        let parts = n.op("reinterpret", &[x], &[("dtype", narrow.into())])?;
        let parts = n.cast(parts, wide)?;
        let placed = n.bin("left_shift", parts, shifts)?;
        n.op("sum", &[placed], &[("axis", [-1].into())])?
    };
    Ok(vec![if n.dtype(e)? == out { e } else { n.op("reinterpret", &[e], &[("dtype", out.into())])? }])
}

/// QUANTIZE.
pub(in crate::frontend::tflite) fn quantize(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (so, zo) = n.quant_out(0)?;
    let dtype = n.out_dtype(0)?;
    if n.dtype(x)?.is_float() {
        let x = n.cast(x, DType::F32)?;
        let scale = n.f32(so);
        let zero = n.b.scalar(DType::I32, zo as f64);
        return Ok(vec![n.op("qnn.quantize", &[x, scale, zero], &[("out_dtype", dtype.into())])?]);
    }
    let (s, z) = n.quant_in(0)?;
    let factor = s as f64 / so as f64;
    Ok(vec![n.scaled(x, z, factor, Target { zero: zo, dtype })?])
}

/// DEQUANTIZE, and what widens `float16`.
pub(in crate::frontend::tflite) fn dequantize(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let out = n.out_dtype(0)?;
    if n.dtype(x)?.is_float() {
        return Ok(vec![n.cast(x, out)?]);
    }
    Ok(vec![widened(n, 0)?])
}

/// The numbers that a quantized argument stands for.
pub(super) fn widened(n: &mut Node, i: usize) -> Convert<ExprId> {
    let x = n.x(i)?;
    let Some(q) = n.input(i)?.quant.clone() else {
        return n.refuse(format!("`{}` has no scale", n.input(i)?.name));
    };
    let zeros: Vec<i32> = q.zeros.iter().map(|&z| z as i32).collect();
    let (scale, zero) = match zeros.len() {
        1 => (crate::tensor::Tensor::scalar(q.scales[0]), crate::tensor::Tensor::scalar(zeros[0])),
        k => (crate::tensor::Tensor::from_slice(&[k], &q.scales), crate::tensor::Tensor::from_slice(&[k], &zeros)),
    };
    let (scale, zero) = (n.b.constant(scale), n.b.constant(zero));
    n.op("qnn.dequantize", &[x, scale, zero], &[("axis", (q.axis as i64).into())])
}

/// Numbers as those that a scale and a zero point have for integers of a type.
pub(super) fn narrowed(n: &mut Node, x: ExprId, scale: f32, zero: i64, dtype: DType) -> Convert {
    let scale = n.f32(scale);
    let zero = n.b.scalar(DType::I32, zero as f64);
    n.op("qnn.quantize", &[x, scale, zero], &[("out_dtype", dtype.into())])
}

/// FAKE_QUANT.
pub(in crate::frontend::tflite) fn fake_quant(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (min, max, bits, narrow) = (n.number(0), n.number(1), n.int(2, 0), n.flag(3));
    if !(2..=16).contains(&bits) || min.is_nan() || max.is_nan() || min >= max {
        return n.refuse(format!("{bits} bits from {min} to {max} have no meaning"));
    }
    let (low, high) = (if narrow { 1.0f32 } else { 0.0 }, ((1i64 << bits) - 1) as f32);
    // Zero is one of the numbers that are kept.
    let scale = (max - min) / (high - low);
    let zero = low - min / scale;
    let zero = if zero < low {
        low
    } else if zero > high {
        high
    } else {
        zero.round()
    };
    let (least, most) = ((low - zero) * scale, (high - zero) * scale);
    let inverse = 1.0 / scale;
    let bounded = n.clip(x, least as f64, most as f64)?;
    let shifted = n.with("subtract", bounded, least as f64)?;
    let steps = n.with("multiply", shifted, inverse as f64)?;
    let steps = n.with("add", steps, 0.5)?;
    let steps = n.un("floor", steps)?;
    let e = n.with("multiply", steps, scale as f64)?;
    Ok(vec![n.with("add", e, least as f64)?])
}
