//! SOFTMAX: of quantized numbers, with a table of exponentials and the reciprocal of their sum in fixed point.

use super::{
    super::{
        fixed::{LONG, divided},
        node::Node,
        quant::{Ends, look_up, short_table},
    },
    Results,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    ops::fixed_point,
    tensor::{DType, Tensor},
};

/// The greatest fraction of 31 bits, which stands for 1.
const ONE: i64 = i32::MAX as i64;
/// Integer bits of what the exponential is taken of.
const DIFF_BITS: i64 = 5;
/// Integer bits of the sum of exponentials.
const SUM_BITS: i64 = 12;

/// SOFTMAX along the last axis.
pub(in crate::frontend::tflite) fn softmax(n: &mut Node) -> Results {
    let (x, beta) = (n.x(0)?, n.number(0));
    if !n.quantized()? {
        let x = if beta == 1.0 { x } else { n.with("multiply", x, beta as f64)? };
        return Ok(vec![n.op("nn.softmax", &[x], &[("axis", (-1).into())])?]);
    }
    let (scale, _) = n.quant_in(0)?;
    let (from, to) = (n.dtype(x)?, n.out_dtype(0)?);
    let e = match from {
        DType::I16 => sixteen_bits(n, x, scale, beta)?,
        _ => eight_bits(n, x, scale, beta, to)?,
    };
    Ok(vec![e])
}

/// Differences from the greatest element of each row.
fn differences(n: &mut Node, x: ExprId) -> Convert {
    let x = n.cast(x, DType::I32)?;
    let most = n.op("max", &[x], &[("axis", [-1].into()), ("keepdims", true.into())])?;
    n.bin("subtract", x, most)
}

fn row_sum(n: &mut Node, x: ExprId) -> Convert {
    n.op("sum", &[x], &[("axis", [-1].into()), ("keepdims", true.into())])
}

/// Elements of a table at differences, of which 0 is the last.
fn at_differences(n: &mut Node, d: ExprId, table: Tensor) -> Convert {
    let last = table.len() as f64 - 1.0;
    let table = n.b.weight("SOFTMAX table", table);
    let index = n.with("add", d, last)?;
    n.op("take", &[table, index], &[("axis", 0.into()), ("mode", "fast".into())])
}

fn eight_bits(n: &mut Node, x: ExprId, scale: f32, beta: f32, to: DType) -> Convert {
    let (least, bits) = match to {
        DType::I8 => (i8::MIN as i64, 8),
        DType::U8 => (0, 8),
        DType::I16 => (i16::MIN as i64, 16),
        other => return n.refuse(format!("{other} results are not supported")),
    };
    let unit = (1i64 << (31 - DIFF_BITS)) as f64;
    let factor = (beta as f64 * scale as f64 * unit).min((1i64 << 31) as f64 - 1.0);
    let (significand, left) = fixed_point(factor);
    if left < 0 {
        return n.refuse(format!("a scale of {scale} is too small"));
    }
    let radius = (((1i64 << DIFF_BITS) - 1) as f64 * unit / (1i64 << left.min(62)) as f64).floor() as i64;
    let exponential = |d: i64| match d >= -radius {
        true => LONG.exp(LONG.times((d << left) as i32 as i64, significand), DIFF_BITS),
        false => 0,
    };
    let exponentials = Tensor::from_i64_fn(DType::I64, &[256], |i| exponential(i as i64 - 255));
    let addends = Tensor::from_i64_fn(DType::I32, &[256], |i| divided(exponentials.get_i64(i), SUM_BITS));
    let d = differences(n, x)?;
    let addends = at_differences(n, d, addends)?;
    let sum = row_sum(n, addends)?;
    let headroom = leading_zeros(n, sum)?;
    let reciprocal = reciprocal(n, sum, headroom)?;
    let exponentials = at_differences(n, d, exponentials)?;
    let product = high_of(n, reciprocal, exponentials)?;
    // Divided by a power of two that depends on the sum; nothing is negative.
    let by = n.num(headroom, (SUM_BITS + 31 - bits) as f64)?;
    let by = n.bin("subtract", by, headroom)?;
    let one = n.num(by, 1.0)?;
    let half = n.bin("left_shift", one, by)?;
    let half = n.with("right_shift", half, 1.0)?;
    let rounded = n.bin("add", product, half)?;
    let e = n.bin("right_shift", rounded, by)?;
    let e = n.with("add", e, least as f64)?;
    let most = least + (1 << bits) - 1;
    let e = n.with("minimum", e, most as f64)?;
    n.cast(e, to)
}

/// The product of fractions of 31 bits in 64-bit tensors.
fn high_of(n: &mut Node, a: ExprId, b: ExprId) -> Convert {
    let product = n.bin("multiply", a, b)?;
    let product = n.with("add", product, (1i64 << 30) as f64)?;
    n.with("right_shift", product, 31.0)
}

/// How many zeros lead the 32 bits of a positive number, as `int64`.
fn leading_zeros(n: &mut Node, x: ExprId) -> Convert {
    let powers = Tensor::from_i64_fn(DType::I64, &[31], |i| 1 << i);
    let powers = n.b.constant(powers);
    let x = n.cast(x, DType::I64)?;
    let x = n.expand(x, -1)?;
    let reached = n.bin("greater_equal", x, powers)?;
    let reached = n.cast(reached, DType::I64)?;
    let bits = n.op("sum", &[reached], &[("axis", [-1].into())])?;
    let all = n.num(bits, 32.0)?;
    n.bin("subtract", all, bits)
}

/// The reciprocal of sums, shifted so that they lie between 1 and 2, as a fraction of 31 bits: Newton's method.
fn reciprocal(n: &mut Node, sum: ExprId, headroom: ExprId) -> Convert {
    const FORTY_EIGHT_BY_17: i64 = 1_515_870_810;
    const MINUS_THIRTY_TWO_BY_17: i64 = -1_010_580_540;
    let sum = n.cast(sum, DType::I64)?;
    let shifted = n.bin("left_shift", sum, headroom)?;
    let less_one = n.with("subtract", shifted, (1i64 << 31) as f64)?;
    // Half of that and 1, rounded away from zero; it is positive.
    let twice = n.with("add", less_one, (ONE + 1) as f64)?;
    let half = n.with("right_shift", twice, 1.0)?;
    let slope = n.num(half, MINUS_THIRTY_TWO_BY_17 as f64)?;
    let x = high_of(n, half, slope)?;
    // Numbers have two integer bits here.
    let mut x = n.with("add", x, FORTY_EIGHT_BY_17 as f64)?;
    for _ in 0..3 {
        let product = high_of(n, half, x)?;
        let one = n.num(product, (1i64 << 29) as f64)?;
        let rest = n.bin("subtract", one, product)?;
        let step = high_of(n, x, rest)?;
        let step = n.with("multiply", step, 4.0)?;
        let step = saturated(n, step)?;
        x = n.bin("add", x, step)?;
    }
    // Half of it has one integer bit; then there is none left.
    let x = n.with("multiply", x, 2.0)?;
    saturated(n, x)
}

/// 64-bit numbers within 32 bits.
fn saturated(n: &mut Node, x: ExprId) -> Convert {
    let x = n.with("maximum", x, i32::MIN as f64)?;
    n.with("minimum", x, ONE as f64)
}

fn sixteen_bits(n: &mut Node, x: ExprId, scale: f32, beta: f32) -> Convert {
    let (least, most) = (i16::MIN as i64, i16::MAX as i64);
    let unit = 1.0f64 / 65535.0;
    let ends = |from: (f64, i64)| Ends { from, to: (2.0 / 65535.0, 0), double: true };
    let of_exp = short_table(&ends((10.0 / 65535.0, most)), f64::exp);
    let of_inverse = short_table(&ends((unit, least)), |v| 1.0 / (1.0 + v));
    let factor = (scale * beta) as f64 / (10.0 / 65535.0);
    let table = Tensor::from_i64_fn(DType::I32, &[65536], |i| {
        let scaled = crate::ops::tflite_scaled(i as i64 - 65535, factor);
        look_up(&of_exp, (scaled + most).clamp(least, most))
    });
    let d = differences(n, x)?;
    let exponentials = at_differences(n, d, table)?;
    let sum = row_sum(n, exponentials)?;
    let headroom = leading_zeros(n, sum)?;
    let sum = n.cast(sum, DType::I64)?;
    let by = n.with("subtract", headroom, 1.0)?;
    let shifted = n.bin("left_shift", sum, by)?;
    let shifted = n.with("add", shifted, (1i64 << 13) as f64)?;
    let shifted = n.with("right_shift", shifted, 14.0)?;
    // From between 1 and 2, in 16 bits, to all 16-bit integers.
    let place = n.with("subtract", shifted, ((1i64 << 15) + (1 << 16)) as f64)?;
    let place = n.with("maximum", place, least as f64)?;
    let place = n.with("minimum", place, most as f64)?;
    let inverses = Tensor::from_i64_fn(DType::I64, &[65536], |i| look_up(&of_inverse, i as i64 + least));
    let inverses = n.b.weight("SOFTMAX table", inverses);
    let index = n.with("subtract", place, least as f64)?;
    let inverse = n.op("take", &[inverses, index], &[("axis", 0.into()), ("mode", "fast".into())])?;
    let wide = n.cast(exponentials, DType::I64)?;
    let product = n.bin("multiply", wide, inverse)?;
    let right = n.num(headroom, 31.0)?;
    let right = n.bin("subtract", right, headroom)?;
    let one = n.num(right, 1.0)?;
    let half = n.bin("left_shift", one, right)?;
    let half = n.with("right_shift", half, 1.0)?;
    let sum = n.bin("add", product, half)?;
    let e = n.bin("right_shift", sum, right)?;
    let e = n.with("maximum", e, 0.0)?;
    let e = n.with("minimum", e, most as f64)?;
    n.cast(e, DType::I16)
}
