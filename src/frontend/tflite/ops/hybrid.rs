//! Products of floats with 8-bit weights ("dynamic range"): data is quantized while the model runs, products are sums of integers, and these
//! become floats again.

use super::{super::node::Node, unary};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// A range of numbers below which the factor of the kernels, 127 divided by it, is infinite.
const LEAST_RANGE: f32 = 127.0 / f32::MAX;

/// A range below which the reciprocal of a step, of which there are 255, is infinite.
const LEAST_WIDTH: f32 = 255.0 * f32::MIN_POSITIVE;

/// A weight beside floats.
pub(super) struct Weight {
    /// Floats, or `int8`.
    pub(super) e: ExprId,
    /// What the integers are multiplied by: one number, or one for each of the results; none of floats.
    pub(super) scales: Option<Vec<f32>>,
}

/// Argument `i`, a weight for `dtype`: bytes stay bytes where their zero points are 0, as the kernels take them to be; others are widened.
/// Kernels read unsigned bytes as signed ones.
pub(super) fn weight(n: &mut Node, i: usize, dtype: DType) -> Convert<Weight> {
    let e = n.x(i)?;
    let quant = n.input(i)?.quant.as_ref().filter(|q| q.zeros.iter().all(|z| *z == 0));
    match (n.dtype(e)?, quant) {
        (DType::I8 | DType::U8, Some(q)) if dtype == DType::F32 => {
            let same = q.scales.iter().all(|s| *s == q.scales[0]);
            let scales = if same { vec![q.scales[0]] } else { q.scales.clone() };
            Ok(Weight { e: n.cast(e, DType::I8)?, scales: Some(scales) })
        }
        (d, _) if d.is_float() => Ok(Weight { e: n.cast(e, dtype)?, scales: None }),
        _ => Ok(Weight { e: unary::widened(n, i)?, scales: None }),
    }
}

/// Floats as `scale * (q - zero)`, where rows have a scale and a zero point each.
#[derive(Copy, Clone)]
pub(super) struct Rows {
    /// The integers, `int8`.
    pub(super) q: ExprId,
    /// `float32`, the axes within rows of extent 1.
    pub(super) scale: ExprId,
    /// `int32`, likewise; none where it is 0.
    pub(super) zero: Option<ExprId>,
}

impl Rows {
    /// `q - zero`, as `int32`.
    pub(super) fn differences(self, n: &mut Node) -> Convert {
        let q = n.cast(self.q, DType::I32)?;
        self.zero.map_or(Ok(q), |z| n.bin("subtract", q, z))
    }
}

/// Quantizes `x` in rows of the axes `within`: by the greatest size, or by the least and the greatest number.
pub(super) fn quantized(n: &mut Node, x: ExprId, within: &[i64], asymmetric: bool) -> Convert<Rows> {
    quantized_padded(n, x, within, asymmetric, &[])
}

/// The same with 0 around `x`, which every scale has an integer for: so many before and after each axis, if any.
pub(super) fn quantized_padded(
    n: &mut Node,
    x: ExprId,
    within: &[i64],
    asymmetric: bool,
    pads: &[i64],
) -> Convert<Rows> {
    let padded = |n: &mut Node| match pads.iter().all(|p| *p == 0) {
        true => Ok(x),
        false => {
            let zero = n.f32(0.0);
            n.op("nn.pad", &[x, zero], &[("pad_width", super::shape::pairs(pads))])
        }
    };
    let reduced =
        |n: &mut Node, relay: &str, x| n.op(relay, &[x], &[("axis", within.into()), ("keepdims", true.into())]);
    if !asymmetric {
        let size = n.un("abs", x)?;
        let size = reduced(n, "max", size)?;
        let size = n.with("maximum", size, LEAST_RANGE as f64)?;
        let most = n.f32(127.0);
        let factor = n.bin("divide", most, size)?;
        let (_, scale) = steps(n, size, 127.0)?;
        let x = padded(n)?;
        let q = n.bin("multiply", x, factor)?;
        let q = n.un("round", q)?;
        let q = n.clip(q, -127.0, 127.0)?;
        return Ok(Rows { q: n.cast(q, DType::I8)?, scale, zero: None });
    }
    let (low, high) = (reduced(n, "min", x)?, reduced(n, "max", x)?);
    let (low, high) = (n.with("minimum", low, 0.0)?, n.with("maximum", high, 0.0)?);
    let width = n.bin("subtract", high, low)?;
    let width = n.with("maximum", width, LEAST_WIDTH as f64)?;
    let (step, scale) = steps(n, width, 255.0)?;
    let one = n.f32(1.0);
    let factor = n.bin("divide", one, scale)?;
    // The zero point is that which the lesser error gives.
    let [low, high] = [low, high].map(|e| n.cast(e, DType::F64));
    let (low, high) = (n.bin("divide", low?, step)?, n.bin("divide", high?, step)?);
    let one = n.num(low, 1.0)?;
    let sizes = [n.bin("subtract", one, low)?, high];
    let below = n.bin("less", sizes[0], sizes[1])?;
    let (least, most) = (n.num(low, -128.0)?, n.num(high, 127.0)?);
    let ends = [n.bin("subtract", least, low)?, n.bin("subtract", most, high)?];
    let zero = n.op("where", &[below, ends[0], ends[1]], &[])?;
    let zero = n.un("round", zero)?;
    let zero = n.clip(zero, -128.0, 127.0)?;
    let x = padded(n)?;
    let q = n.bin("multiply", x, factor)?;
    let q = n.un("round", q)?;
    let shift = n.cast(zero, DType::F32)?;
    let q = n.bin("add", q, shift)?;
    let q = n.clip(q, -128.0, 127.0)?;
    Ok(Rows { q: n.cast(q, DType::I8)?, scale, zero: Some(n.cast(zero, DType::I32)?) })
}

/// A range in so many steps: the size of one in `float64`, and as `float32`. A quotient has to be right to the last bit, which decides how
/// zero points between two integers are rounded.
fn steps(n: &mut Node, range: ExprId, count: f64) -> Convert<(ExprId, ExprId)> {
    let range = n.cast(range, DType::F64)?;
    let step = n.with("divide", range, count)?;
    Ok((step, n.cast(step, DType::F32)?))
}

/// A weight's scales, and whether kernels multiply sums by their products with those of rows, or by either.
#[derive(Copy, Clone)]
pub(super) enum Scales<'s> {
    AtOnce(&'s [f32]),
    OneByOne(&'s [f32]),
}

/// The numbers that sums stand for, whose last axis is that of the weight's scales; `of_weight` are the sums of the weight alone.
pub(super) fn numbers(n: &mut Node, sums: ExprId, rows: Rows, scales: Scales, of_weight: ExprId) -> Convert {
    let sums = match rows.zero {
        Some(zero) => {
            let less = n.bin("multiply", zero, of_weight)?;
            n.bin("subtract", sums, less)?
        }
        None => sums,
    };
    let sums = n.cast(sums, DType::F32)?;
    scaled(n, sums, rows, scales)
}

/// Sums, as floats, in the scale of what was multiplied.
pub(super) fn scaled(n: &mut Node, sums: ExprId, rows: Rows, scales: Scales) -> Convert {
    let (Scales::AtOnce(values) | Scales::OneByOne(values)) = scales;
    let values = n.b.constant(match values {
        [one] => Tensor::scalar(*one),
        several => Tensor::from_slice(&[several.len()], several),
    });
    match scales {
        Scales::AtOnce(_) => {
            let factor = n.bin("multiply", rows.scale, values)?;
            n.bin("multiply", sums, factor)
        }
        Scales::OneByOne(_) => {
            let e = n.bin("multiply", sums, values)?;
            n.bin("multiply", e, rows.scale)
        }
    }
}

/// The sums of a weight over axes.
pub(super) fn sums_of_weight(n: &mut Node, w: ExprId, over: &[i64]) -> Convert {
    let w = n.cast(w, DType::I32)?;
    n.op("sum", &[w], &[("axis", over.into())])
}

/// Rows of data that are multiplied by matrices: quantized once, where one of these is of bytes.
pub(super) struct Data {
    x: ExprId,
    asymmetric: bool,
    rows: Option<Rows>,
}

impl Data {
    /// Data (rows, depth).
    pub(super) fn new(x: ExprId, asymmetric: bool) -> Data {
        Data { x, asymmetric, rows: None }
    }

    /// The product with a weight (results, depth).
    pub(super) fn times(&mut self, n: &mut Node, w: &Weight) -> Convert {
        let Some(scales) = &w.scales else { return n.op("nn.dense", &[self.x, w.e], &[]) };
        let rows = match self.rows {
            Some(rows) => rows,
            None => quantized(n, self.x, &[1], self.asymmetric)?,
        };
        self.rows = Some(rows);
        let results = n.extent(w.e, 0)?;
        check(n, scales, results)?;
        let [zero, one] = [n.b.scalar(DType::I32, 0.0), n.f32(1.0)];
        let attrs = [("units", results.into()), ("out_dtype", DType::I32.into())];
        let sums = n.op("qnn.dense", &[rows.q, w.e, zero, zero, one, one], &attrs)?;
        let of_weight = sums_of_weight(n, w.e, &[1])?;
        numbers(n, sums, rows, Scales::AtOnce(scales), of_weight)
    }
}

/// That there is one scale, or one for each result.
pub(super) fn check(n: &Node, scales: &[f32], results: i64) -> Convert<()> {
    match scales.len() == 1 || scales.len() as i64 == results {
        true => Ok(()),
        false => n.refuse(format!("{} scales of the weight do not fit {results} results", scales.len())),
    }
}

/// Adds a bias and applies the fused activation of floats.
pub(super) fn finish(n: &mut Node, e: ExprId, bias: Option<ExprId>, code: i8) -> Convert {
    let e = match bias {
        Some(b) => n.bin("add", e, b)?,
        None => e,
    };
    n.activate(e, code)
}
