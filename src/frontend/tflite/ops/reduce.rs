//! Reductions over axes.

use super::{
    super::{
        node::Node,
        quant::{Target, range},
    },
    Results,
};
use crate::{frontend::Convert, ir::ExprId, ops::fixed_point, tensor::DType};

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

/// The sum of quantized numbers, less their zero points, and how many there are of each.
fn sum_of_integers(n: &mut Node) -> Convert<(ExprId, i64)> {
    let x = n.x(0)?;
    let (_, zero) = n.quant_in(0)?;
    let mut count = 1i64;
    for a in axes(n)? {
        count = count.saturating_mul(n.extent(x, a)?);
    }
    let x = n.cast(x, DType::I32)?;
    let sum = fold(n, "sum", x)?;
    let less = zero.saturating_mul(count);
    Ok((if less == 0 { sum } else { n.with("subtract", sum, less as f64)? }, count))
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
    let mut count = 1i64;
    for a in axes(n)? {
        count = count.saturating_mul(n.extent(x, a)?);
    }
    let scale = s / so;
    let bias = -(z as f32) * scale * count as f32;
    let x = n.cast(x, DType::I32)?;
    let sum = fold(n, "sum", x)?;
    let sum = n.cast(sum, DType::F32)?;
    let e = n.with("multiply", sum, scale as f64)?;
    let e = n.with("add", e, bias as f64)?;
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
        let mut count = 1i64;
        for a in axes(n)? {
            count = count.saturating_mul(n.extent(x, a)?);
        }
        let x = n.cast(x, DType::I64)?;
        let sum = fold(n, "sum", x)?;
        let mean = n.with("trunc_divide", sum, count as f64)?;
        return Ok(vec![n.cast(mean, dtype)?]);
    }
    let ((s, _), (so, zo)) = (n.quant_in(0)?, n.quant_out(0)?);
    let (sum, count) = sum_of_integers(n)?;
    if count < 1 {
        return n.refuse("the mean of nothing is not supported");
    }
    // The number of elements divides the significand, which is lengthened so far before.
    let (significand, exponent) = fixed_point(s as f64 / so as f64);
    let by = (63 - count.leading_zeros() as i64).min(32).min(31 + exponent).max(0);
    let e = n.times(sum, (significand << by) / count, exponent - by)?;
    let e = n.with("add", e, zo as f64)?;
    let e = n.within(e, range(dtype))?;
    Ok(vec![n.cast(e, dtype)?])
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
