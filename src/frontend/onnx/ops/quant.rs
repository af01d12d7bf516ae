//! Quantization.

use super::{
    Row,
    conv::convolved_integers,
    convert::{narrowed, rounded_within, widened},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("DequantizeLinear", dequantize),
    row("DynamicQuantizeLinear", dynamic_quantize),
    row("MatMulInteger", matmul_integer),
    row("QLinearConv", |n| qlinear_conv(n, |_, x| Ok(x), |_, y| Ok(y))),
    row("QLinearMatMul", qlinear_matmul),
    row("QuantizeLinear", quantize),
];

/// A scale or zero point, laid out along the data: one for all, one for each place along an axis, or one for each block.
fn along(n: &mut Node, s: ExprId, data: ExprId, axis: i64, block: i64) -> Convert {
    let (rank, own) = (n.rank(data)?, n.rank(s)?);
    if own == 0 || n.ty(s)?.elements() == Some(1) && own <= 1 {
        return n.reshape(s, &[]);
    }
    let axis = n.axis_of(axis, rank)?;
    if own == 1 {
        return n.trailing(s, rank - 1 - axis);
    }
    n.ensure(own == rank && block > 0, || "its scale has axes, but no block size is given".into())?;
    let long = n.op("repeat", &[s], &[("repeats", block.into()), ("axis", (axis as i64).into())])?;
    let (have, want) = (n.extent(long, axis)?, n.extent(data, axis)?);
    if have > want { n.slice(long, axis, 0, want) } else { Ok(long) }
}

pub(super) fn quantize(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale, zero) = (n.x(0)?, n.tens(1)?, n.opt_tens(2)?);
    let (axis, block, saturate) = (n.int("axis", 1)?, n.int("block_size", 0)?, n.flag("saturate", true)?);
    let to = match (zero, n.int("output_dtype", 0)?) {
        (Some(z), _) => z.elem,
        (None, 0) => Elem::Plain(DType::U8),
        (None, code) => n.elem(code)?,
    };
    let within = DType::F32;
    let x = n.cast(x, within)?;
    let scale = widened(n, scale, within)?;
    let scale = along(n, scale, x, axis, block)?;
    let scaled = n.div(x, scale)?;
    let range = match to {
        Elem::Plain(d) => d.int_range().map(|(a, b)| (a as f64, b as f64)),
        Elem::Small(s) => s.int_range().map(|(a, b)| (a as f64, b as f64)),
        Elem::Text => None,
    };
    let Some((low, high)) = range else {
        let Elem::Small(s) = to else { return Err(n.refuse(format!("quantizing to {} is not supported", to.name()))) };
        let e = narrowed(n, scaled, s, saturate)?;
        return Ok(vec![Val::Tensor(Tens { e, elem: to })]);
    };
    let mut r = super::math::round_even(n, scaled)?;
    if let Some(z) = zero {
        let z = widened(n, z, within)?;
        let z = along(n, z, x, axis, block)?;
        r = n.add(r, z)?;
    }
    let y = n.op("clip", &[r], &[("a_min", low.into()), ("a_max", high.into())])?;
    let y = n.cast(y, DType::I32)?;
    let e = match to {
        Elem::Small(s) => narrowed(n, y, s, saturate)?,
        _ => n.cast(y, to.storage())?,
    };
    Ok(vec![Val::Tensor(Tens { e, elem: to })])
}

pub(super) fn dequantize(n: &mut Node) -> Convert<Vec<Val>> {
    let (t, scale, zero) = (n.tens(0)?, n.tens(1)?, n.opt_tens(2)?);
    let (axis, block) = (n.int("axis", 1)?, n.int("block_size", 0)?);
    let to = match n.int("output_dtype", 0)? {
        0 => scale.elem,
        code => n.elem(code)?,
    };
    let Elem::Plain(to) = to else { return Err(n.refuse("dequantizing to small types is not supported")) };
    let integer = |e: Elem| match e {
        Elem::Plain(d) => d.is_int(),
        Elem::Small(s) => s.int_range().is_some(),
        Elem::Text => false,
    };
    if let Some(y) = plainly_dequantized(n, t, scale, zero, (axis, block, to))? {
        return n.one(y);
    }
    let within = if integer(t.elem) { DType::I32 } else { DType::F32 };
    let mut x = widened(n, t, within)?;
    if let Some(z) = zero {
        let z = widened(n, z, within)?;
        let z = along(n, z, x, axis, block)?;
        x = n.sub(x, z)?;
    }
    let scale = widened(n, scale, DType::F32)?;
    let scale = along(n, scale, x, axis, block)?;
    let x = n.cast(x, DType::F32)?;
    let y = n.mul(x, scale)?;
    let y = n.cast(y, to)?;
    n.one(y)
}

/// `qnn.dequantize`, which passes about quantized programs know, where that has the types: integers of one scale, or of one for each place along an
/// axis, as `float32`.
fn plainly_dequantized(
    n: &mut Node,
    t: Tens,
    scale: Tens,
    zero: Option<Tens>,
    (axis, block, to): (i64, i64, DType),
) -> Convert<Option<ExprId>> {
    let Elem::Plain(from @ (DType::I8 | DType::U8 | DType::I16 | DType::I32)) = t.elem else { return Ok(None) };
    let plain = |p: Tens, dtype: DType| matches!(p.elem, Elem::Plain(d) if d == dtype);
    if to != DType::F32 || block != 0 || !plain(scale, DType::F32) || zero.is_some_and(|z| !plain(z, from)) {
        return Ok(None);
    }
    let rank = n.rank(t.e)?;
    let single = |n: &Node, e: ExprId| {
        Ok::<_, crate::diag::Refused>(n.rank(e)? == 0 || n.ty(e)?.elements() == Some(1) && n.rank(e)? <= 1)
    };
    let one = single(n, scale.e)?;
    // A scale is a number or a vector, and its zero point is of the same shape.
    let (dims, vector) = (n.dims(scale.e)?, n.rank(scale.e)? == 1 && n.ty(scale.e)?.elements() != Some(0));
    let alike = match zero {
        Some(z) => n.dims(z.e)? == dims || one && single(n, z.e)?,
        None => true,
    };
    if !alike || !one && !vector {
        return Ok(None);
    }
    let axis = if one { -1 } else { n.axis_of(axis, rank)? as i64 };
    let s = if one { n.reshape(scale.e, &[])? } else { scale.e };
    let z = match zero {
        None => n.constant(Tensor::from_i64_fn(DType::I32, &[], |_| 0)),
        // Rules ask for the numbers, and mostly there is but one.
        Some(z) if n.value(z.e).is_some() => {
            let values = n.value(z.e).map(|v| v.to_i64_vec()).unwrap_or_default();
            let all_same = values.windows(2).all(|pair| pair[0] == pair[1]);
            let shape: &[usize] = if all_same { &[] } else { &[values.len()] };
            n.constant(Tensor::from_i64_fn(DType::I32, shape, |i| values[i]))
        }
        Some(z) => {
            let wide = n.cast(z.e, DType::I32)?;
            if single(n, z.e)? { n.reshape(wide, &[])? } else { wide }
        }
    };
    n.op("qnn.dequantize", &[t.e, s, z], &[("out_dtype", DType::F32.into()), ("axis", axis.into())]).map(Some)
}

fn dynamic_quantize(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    dynamically_quantized(n, x)?.into_iter().map(|e| n.out(e)).collect()
}

/// A tensor as uint8 between its own least and greatest number; its scale and its zero point.
pub(super) fn dynamically_quantized(n: &mut Node, x: ExprId) -> Convert<[ExprId; 3]> {
    let axes: Vec<usize> = (0..n.rank(x)?).collect();
    let (high, low) = (n.reduce("max", x, &axes, false)?, n.reduce("min", x, &axes, false)?);
    let (high, low) = (n.with("maximum", high, 0.0)?, n.with("minimum", low, 0.0)?);
    let width = n.sub(high, low)?;
    let scale = n.with("divide", width, 255.0)?;
    let offset = n.div(low, scale)?;
    let offset = n.un("negative", offset)?;
    let zero = rounded_within(n, offset, 0.0, 255.0)?;
    let scaled = n.div(x, scale)?;
    let r = super::math::round_even(n, scaled)?;
    let sum = n.add(r, zero)?;
    let y = n.op("clip", &[sum], &[("a_min", 0.0.into()), ("a_max", 255.0.into())])?;
    let (y, zero) = (n.cast(y, DType::U8)?, n.cast(zero, DType::U8)?);
    Ok([y, scale, zero])
}

/// An operand of a product as int32 without its zero point; `rows` says that zero points of a vector are for rows.
pub(super) fn centred(n: &mut Node, x: ExprId, zero: Option<ExprId>, rows: bool) -> Convert {
    let x = n.cast(x, DType::I32)?;
    let Some(z) = zero else { return Ok(x) };
    let z = n.cast(z, DType::I32)?;
    let z = if rows && n.rank(z)? == 1 && n.dims(z)?[0] != Some(1) { n.trailing(z, 1)? } else { z };
    n.sub(x, z)
}

/// A constant weight for int8 dot products, which multiply uint8 by int8: as int8, and its zero point as int32, where it has one other than 0.
/// None where it is no constant of int8 or uint8.
pub(super) fn signed_weight(
    n: &mut Node,
    w: ExprId,
    zero: Option<ExprId>,
) -> Convert<Option<(ExprId, Option<ExprId>)>> {
    let dtype = n.dtype(w)?;
    if !matches!(dtype, DType::U8 | DType::I8) || !n.im.b.is_constant(w) {
        return Ok(None);
    }
    let mut zero = zero.map(|z| n.cast(z, DType::I32)).transpose()?;
    let mut w = w;
    if dtype == DType::U8 {
        let wide = n.cast(w, DType::I32)?;
        let less = n.with("subtract", wide, 128.0)?;
        w = n.cast(less, DType::I8)?;
        zero = Some(match zero {
            Some(z) => n.with("subtract", z, 128.0)?,
            None => n.constant(Tensor::scalar(-128_i32)),
        });
    }
    if let Some(z) = zero
        && n.value(z).is_some_and(|z| z.to_i64_vec().iter().all(|&z| z == 0))
    {
        zero = None;
    }
    Ok(Some((w, zero)))
}

/// The product of two matrices of integers less their zero points, as int32; those of a vector are for rows of the first one, and for columns of
/// the second one.
fn product_of_integers(n: &mut Node, a: (ExprId, Option<ExprId>), b: (ExprId, Option<ExprId>)) -> Convert {
    if let Some(y) = int8_product(n, a, b)? {
        return Ok(y);
    }
    let (x, y) = (centred(n, a.0, a.1, true)?, centred(n, b.0, b.1, false)?);
    n.matmul(x, y, Some(DType::I32))
}

/// The same where int8 or uint8 are multiplied by a constant matrix of these, by int8 dot products: (a - p) (b - q) = a b - p (sum of b's columns - k q) -
/// q (sum of a's rows), modulo 2^32.
fn int8_product(
    n: &mut Node,
    (a, za): (ExprId, Option<ExprId>),
    (b, zb): (ExprId, Option<ExprId>),
) -> Convert<Option<ExprId>> {
    let rank = n.rank(a)?;
    let fits = matches!(n.dtype(a)?, DType::U8 | DType::I8) && rank >= 2 && n.rank(b)? == 2;
    let is_one = |z: Option<ExprId>| -> Convert<bool> { z.map_or(Ok(true), |z| Ok(n.ty(z)?.elements() == Some(1))) };
    let single = (is_one(za)?, is_one(zb)?);
    if !fits || !single.0 || !(single.1 || zb.map_or(Ok(0), |z| n.rank(z))? == 1) {
        return Ok(None);
    }
    let Some((b, zb)) = signed_weight(n, b, zb)? else { return Ok(None) };
    let zb = if single.1 { zb.map(|z| n.reshape(z, &[])).transpose()? } else { zb };
    let mut sum = n.matmul(a, b, Some(DType::I32))?;
    if let Some(za) = za {
        let za = n.cast(za, DType::I32)?;
        let za = n.reshape(za, &[])?;
        let wide = n.cast(b, DType::I32)?;
        let mut columns = n.reduce("sum", wide, &[0], false)?;
        if let Some(zb) = zb {
            let all = n.with("multiply", zb, n.extent(b, 0)? as f64)?;
            columns = n.sub(columns, all)?;
        }
        let off = n.mul(columns, za)?;
        sum = n.sub(sum, off)?;
    }
    if let Some(zb) = zb {
        let wide = n.cast(a, DType::I32)?;
        let rows = n.reduce("sum", wide, &[rank - 1], true)?;
        let off = n.mul(rows, zb)?;
        sum = n.sub(sum, off)?;
    }
    Ok(Some(sum))
}

/// The product of two quantized matrices as floats: each with its scale and its zero point, of which the second one's may be one for each column.
pub(super) fn product_of_quantized(
    n: &mut Node,
    a: (ExprId, ExprId, Option<ExprId>),
    b: (ExprId, ExprId, Option<ExprId>),
) -> Convert {
    let sum = product_of_integers(n, (a.0, a.2), (b.0, b.2))?;
    let scale = if n.rank(a.1)? == 1 && n.dims(a.1)?[0] != Some(1) { n.trailing(a.1, 1)? } else { a.1 };
    let factor = n.mul(scale, b.1)?;
    let sum = n.cast(sum, n.dtype(factor)?)?;
    // A scale in a vector of its own adds no axes.
    let factor = if n.ty(factor)?.elements() == Some(1) { n.reshape(factor, &[])? } else { factor };
    n.mul(sum, factor)
}

fn matmul_integer(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b, za, zb) = (n.x(0)?, n.x(1)?, n.opt(2)?, n.opt(3)?);
    let y = product_of_integers(n, (a, za), (b, zb))?;
    n.one(y)
}

/// Sums of int32 as elements of the output's scale.
pub(super) fn requantized(n: &mut Node, sum: ExprId, factor: ExprId, zero: ExprId) -> Convert {
    let dtype = n.dtype(zero)?;
    let sum = n.cast(sum, DType::F32)?;
    let scaled = n.mul(sum, factor)?;
    let r = super::math::round_even(n, scaled)?;
    let z = n.cast(zero, DType::F32)?;
    let moved = n.add(r, z)?;
    let (low, high) = dtype.int_range().unwrap_or((0, 255));
    let y = n.op("clip", &[moved], &[("a_min", (low as f64).into()), ("a_max", (high as f64).into())])?;
    let y = n.cast(y, DType::I32)?;
    n.cast(y, dtype)
}

fn qlinear_matmul(n: &mut Node) -> Convert<Vec<Val>> {
    let [a, sa, za, b, sb, zb, sy, zy] = {
        let all = (0..8).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
        [all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]]
    };
    let sum = product_of_integers(n, (a, Some(za)), (b, Some(zb)))?;
    let wide = |n: &mut Node, e: ExprId| n.cast(e, DType::F32);
    let (sa, sb, sy) = (wide(n, sa)?, wide(n, sb)?, wide(n, sy)?);
    let sa = if n.rank(sa)? == 1 && n.dims(sa)?[0] != Some(1) { n.trailing(sa, 1)? } else { sa };
    let both = n.mul(sa, sb)?;
    let factor = n.div(both, sy)?;
    let y = requantized(n, sum, factor, zy)?;
    n.one(y)
}

/// A convolution of quantized numbers: `data` and `placed` lay out the data with channels first, and the result.
pub(super) fn qlinear_conv(
    n: &mut Node,
    data: impl FnOnce(&mut Node, ExprId) -> Convert,
    placed: impl FnOnce(&mut Node, ExprId) -> Convert,
) -> Convert<Vec<Val>> {
    let all = (0..8).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
    let [x, sx, zx, w, sw, zw, sy, zy] = [all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]];
    let bias = n.opt(8)?;
    let rank = n.rank(w)?;
    let per_channel = |n: &mut Node, e: ExprId, trailing: usize| -> Convert {
        match n.ty(e)?.elements() {
            Some(1) => n.reshape(e, &[]),
            _ => n.trailing(e, trailing),
        }
    };
    let x = data(n, x)?;
    let mut sum = convolved_integers(n, (x, Some(zx)), (w, Some(zw)))?;
    if let Some(b) = bias {
        sum = n.op("nn.bias_add", &[sum, b], &[("axis", 1.into())])?;
    }
    let (sx, sy) = (n.reshape(sx, &[])?, n.reshape(sy, &[])?);
    let sw = per_channel(n, sw, rank - 2)?;
    let both = n.mul(sx, sw)?;
    let factor = n.div(both, sy)?;
    let zy = n.reshape(zy, &[])?;
    let y = requantized(n, sum, factor, zy)?;
    let y = placed(n, y)?;
    n.one(y)
}
