//! Reductions over axes.

use super::{
    super::{
        node::Node,
        quant::{Target, range},
    },
    Results,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    ops::fixed_point,
    tensor::{DType, Tensor},
};

/// The axes, from 0, in order, each once.
fn axes(n: &mut Node) -> Convert<Vec<usize>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let mut axes: Vec<usize> = n.ints(1)?.into_iter().map(|a| n.axis(a, rank)).collect::<Convert<_>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

fn fold(n: &mut Node, relay: &str, x: ExprId) -> Convert {
    let axes: Vec<i64> = axes(n)?.into_iter().map(|a| a as i64).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let keep = n.flag(0);
    n.op(relay, &[x], &[("axis", axes.into()), ("keepdims", keep.into())])
}

/// Operators that are one of Relay's.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident = $relay:literal;)*) => {$(
        $(#[$doc])*
        pub(in crate::frontend::tflite) fn $name(n: &mut Node) -> Results {
            let x = n.x(0)?;
            Ok(vec![fold(n, $relay, x)?])
        }
    )*};
}

plain! {
    /// REDUCE_MAX.
    max = "max";
    /// REDUCE_MIN.
    min = "min";
    /// REDUCE_ALL.
    all = "all";
    /// REDUCE_ANY.
    any = "any";
}

/// How many elements make one result: a number, or what an extent that is known only at run time makes of it, as `int64`.
enum Count {
    Known(i64),
    Open(ExprId),
}

fn count(n: &mut Node) -> Convert<Count> {
    let x = n.x(0)?;
    let (axes, shape) = (axes(n)?, n.shape(x)?);
    if let Some(all) = axes.iter().map(|&a| shape[a]).collect::<Option<Vec<i64>>>() {
        return Ok(Count::Known(all.into_iter().fold(1, i64::saturating_mul)));
    }
    let extents = n.op("shape_of", &[x], &[("dtype", DType::I64.into())])?;
    let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
    let axes = n.b.ints(&axes);
    let extents = n.op("take", &[extents, axes], &[("axis", 0.into())])?;
    Ok(Count::Open(n.op("prod", &[extents], &[])?))
}

/// SUM.
pub(in crate::frontend::tflite) fn sum(n: &mut Node) -> Results {
    if !n.quantized()? {
        let x = n.x(0)?;
        return Ok(vec![fold(n, "sum", x)?]);
    }
    // The reference kernel loses the zero point here: this is what the others do, in floats.
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    let x = n.x(0)?;
    let scale = s / so;
    let bias = -(z as f32) * scale;
    let bias = match count(n)? {
        Count::Known(count) => n.f32(bias * count as f32),
        Count::Open(count) => {
            let count = n.cast(count, DType::F32)?;
            n.with("multiply", count, bias as f64)?
        }
    };
    let x = n.cast(x, DType::I32)?;
    let sum = fold(n, "sum", x)?;
    let sum = n.cast(sum, DType::F32)?;
    let e = n.with("multiply", sum, scale as f64)?;
    let e = n.bin("add", e, bias)?;
    let e = n.un("round", e)?;
    let (least, most) = range(dtype);
    let e = n.with("add", e, zo as f64)?;
    let e = n.clip(e, least as f64, most as f64)?;
    Ok(vec![n.cast(e, dtype)?])
}

/// MEAN.
pub(in crate::frontend::tflite) fn mean(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let dtype = n.dtype(x)?;
    if !n.quantized()? {
        if dtype.is_float() {
            return Ok(vec![fold(n, "mean", x)?]);
        }
        let count = match count(n)? {
            Count::Known(count) => n.b.scalar(DType::I64, count as f64),
            Count::Open(count) => count,
        };
        let x = n.cast(x, DType::I64)?;
        let sum = fold(n, "sum", x)?;
        let mean = n.bin("trunc_divide", sum, count)?;
        return Ok(vec![n.cast(mean, dtype)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let x = n.cast(x, DType::I32)?;
    let sum = fold(n, "sum", x)?;
    let (significand, exponent) = fixed_point(s as f64 / so as f64);
    let e = match count(n)? {
        Count::Known(..1) => return n.refuse("the mean of nothing is not supported"),
        Count::Known(count) => {
            let less = z.saturating_mul(count);
            let sum = if less == 0 { sum } else { n.with("subtract", sum, less as f64)? };
            // The number of elements divides the significand, which is lengthened so far before.
            let by = (63 - count.leading_zeros() as i64).min(32).min(31 + exponent).max(0);
            n.times(sum, (significand << by) / count, exponent - by)?
        }
        Count::Open(count) => mean_of_open(n, sum, count, z, significand, exponent)?,
    };
    let e = n.with("add", e, zo as f64)?;
    let e = n.within(e, range(dtype))?;
    Ok(vec![n.cast(e, dtype)?])
}

/// The same where the number of elements is known only at run time, in `int64`.
fn mean_of_open(n: &mut Node, sum: ExprId, count: ExprId, zero: i64, significand: i64, exponent: i64) -> Convert {
    let less = n.with("multiply", count, zero as f64)?;
    let sum = n.cast(sum, DType::I64)?;
    let sum = n.bin("subtract", sum, less)?;
    let count = n.with("maximum", count, 1.0)?;
    // As many powers of two as the number reaches.
    let most = (31 + exponent).clamp(0, 32);
    let mut by = n.b.scalar(DType::I64, 0.0);
    if most > 0 {
        let powers = Tensor::from_i64_fn(DType::I64, &[most as usize], |k| 2 << k);
        let powers = n.b.constant(powers);
        let reached = n.bin("greater_equal", count, powers)?;
        let reached = n.cast(reached, DType::I64)?;
        by = n.op("sum", &[reached], &[])?;
    }
    let significand = n.b.scalar(DType::I64, significand as f64);
    let longer = n.bin("left_shift", significand, by)?;
    let factor = n.bin("trunc_divide", longer, count)?;
    let exponent = n.b.scalar(DType::I64, exponent.min(31) as f64);
    let shift = n.bin("subtract", exponent, by)?;
    let left = n.with("maximum", shift, 0.0)?;
    let right = n.bin("subtract", left, shift)?;
    let right = n.with("minimum", right, 62.0)?;
    // A product of 31 fractional bits, halves up; then what is shifted, halves away from zero.
    let e = n.bin("left_shift", sum, left)?;
    let e = n.bin("multiply", e, factor)?;
    let e = n.with("add", e, (1i64 << 30) as f64)?;
    let e = n.with("right_shift", e, 31.0)?;
    let one = n.num(e, 1.0)?;
    let half = n.bin("left_shift", one, right)?;
    let half = n.with("right_shift", half, 1.0)?;
    let lower = n.with("subtract", half, 1.0)?;
    let lower = n.with("maximum", lower, 0.0)?;
    let negative = n.with("less", e, 0.0)?;
    let round = n.op("where", &[negative, lower, half], &[])?;
    let e = n.bin("add", e, round)?;
    let e = n.bin("right_shift", e, right)?;
    n.cast(e, DType::I32)
}

/// So many factors are multiplied one after the other.
const MOST_FACTORS: i64 = 4096;

/// REDUCE_PROD.
pub(in crate::frontend::tflite) fn prod(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if !n.quantized()? {
        return Ok(vec![fold(n, "prod", x)?]);
    }
    let ((s, z), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    let (axes, shape, keep) = (axes(n)?, n.known(x)?, n.flag(0));
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let count: i64 = axes.iter().map(|&a| shape[a]).product();
    let outer: i64 = kept.iter().map(|&a| shape[a]).product();
    if !(1..=MOST_FACTORS).contains(&count) {
        return n.refuse(format!("products of {count} quantized numbers are not supported"));
    }
    // Each step brings the product back to the range of 32 bits by the same factor.
    let factor = s as f64 / (so as f64).powf(1.0 / count as f64);
    let order: Vec<i64> = kept.iter().chain(&axes).map(|&a| a as i64).collect();
    let x = n.transpose(x, &order)?;
    let x = n.reshape_exact(x, &[outer, count])?;
    let x = n.shifted(x, z)?;
    let x = n.cast(x, DType::I64)?;
    let to = || Target { zero: 0, dtype: DType::I32 };
    let mut product = n.slice(x, 1, 0, 1)?;
    for i in 1..count {
        let next = n.slice(x, 1, i, i + 1)?;
        let wide = n.bin("multiply", product, next)?;
        let scaled = n.scaled(wide, 0, factor, to())?;
        product = n.cast(scaled, DType::I64)?;
    }
    let e = n.scaled(product, 0, factor, Target { zero: zo, dtype })?;
    let out: Vec<i64> = (0..shape.len())
        .filter_map(|a| match (axes.contains(&a), keep) {
            (true, true) => Some(1),
            (true, false) => None,
            (false, _) => Some(shape[a]),
        })
        .collect();
    Ok(vec![n.reshape_exact(e, &out)?])
}
