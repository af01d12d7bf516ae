//! Products of matrices.

use super::{
    super::{node::Node, quant::Target},
    Results,
    conv::{biased, factors, sums_of, zeros},
    hybrid::{self, Data, Scales, Weight},
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// FULLY_CONNECTED.
pub(in crate::frontend::tflite) fn fully_connected(n: &mut Node) -> Results {
    let code = n.byte(0);
    if n.byte(1) != 0 {
        return n.refuse("shuffled weights are not supported");
    }
    let keep = n.flag(2);
    let x = n.x(0)?;
    let quantized = n.quantized()?;
    let w = weight(n, quantized)?;
    let extents = n.known(w.e)?;
    let [units, depth] = extents[..] else { return n.refuse("the weight should be a matrix") };
    let shape = n.shape(x)?;
    let flat = match shape[..] {
        [_, d] if d == Some(depth) => x,
        _ => n.reshape(x, &[-1, depth])?,
    };
    let bias = n.opt(2);
    let e = match quantized {
        true => {
            let data = n.dtype(x)?;
            let f = factors(n, 0, 1, true)?;
            let sums = sums_of(n, data, bias)?;
            let (s, z) = n.quant_in(0)?;
            let (zx, zw) = (n.b.scalar(DType::I32, z as f64), zeros(n, &f.zeros));
            let (sx, sw) = (n.f32(s), n.f32(1.0));
            let attrs = [("units", units.into()), ("out_dtype", sums.into())];
            let e = n.op("qnn.dense", &[flat, w.e, zx, zw, sx, sw], &attrs)?;
            // The kernels of this operator multiply in floats.
            let (_, zero) = n.quant_out(0)?;
            let dtype = n.out_dtype(0)?;
            let e = biased(n, e, bias)?;
            let e = n.scaled_in_floats(e, &f.factors, 1, Target { zero, dtype })?;
            n.activate_quantized(e, code)?
        }
        false => {
            let e = Data::new(flat, n.flag(3)).times(n, &w)?;
            hybrid::finish(n, e, bias, code)?
        }
    };
    if !keep || shape.len() == 2 {
        return Ok(vec![e]);
    }
    let open = shape[..shape.len().saturating_sub(1)].iter().filter(|d| d.is_none()).count();
    if open > 1 {
        return n.refuse("only one extent may be unknown");
    }
    let mut out: Vec<i64> = shape[..shape.len().saturating_sub(1)].iter().map(|d| d.unwrap_or(-1)).collect();
    out.push(units);
    Ok(vec![n.reshape_exact(e, &out)?])
}

/// The weight of a product: bytes as they are where results are quantized.
fn weight(n: &mut Node, quantized: bool) -> Convert<Weight> {
    let dtype = n.out_dtype(0)?;
    match quantized {
        true => Ok(Weight { e: n.x(1)?, scales: None }),
        false => hybrid::weight(n, 1, dtype),
    }
}

/// BATCH_MATMUL.
pub(in crate::frontend::tflite) fn batch_matmul(n: &mut Node) -> Results {
    let (x, quantized) = (n.x(0)?, n.quantized()?);
    let w = weight(n, quantized || !n.dtype(x)?.is_float())?;
    let turns = [n.flag(0), n.flag(1)];
    let Some(scales) = w.scales else { return products(n, [x, w.e], turns, quantized) };
    // Each row of data has a scale of its own.
    let (rank, of_weight) = (n.rank(x)? as i64, n.rank(w.e)? as i64);
    let mut rows = hybrid::quantized(n, x, &[if turns[0] { rank - 2 } else { rank - 1 }], n.flag(2))?;
    if turns[0] {
        rows.scale = turned(n, rows.scale)?;
        rows.zero = rows.zero.map(|z| turned(n, z)).transpose()?;
    }
    let (depth, columns) = if turns[1] { (of_weight - 1, of_weight - 2) } else { (of_weight - 2, of_weight - 1) };
    let results = n.extent(w.e, columns.max(0) as usize)?;
    hybrid::check(n, &scales, results)?;
    let sums = products(n, [rows.q, w.e], turns, false)?[0];
    let of_weight = n.cast(w.e, DType::I32)?;
    let of_weight = n.op("sum", &[of_weight], &[("axis", [depth].into()), ("keepdims", true.into())])?;
    let of_weight = if turns[1] { turned(n, of_weight)? } else { of_weight };
    Ok(vec![hybrid::numbers(n, sums, rows, Scales::AtOnce(&scales), of_weight)?])
}

/// The last two axes the other way round.
fn turned(n: &mut Node, x: ExprId) -> Convert {
    let rank = n.rank(x)? as i64;
    let axes: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    n.transpose(x, &axes)
}

/// Products of matrices, of `int32` for bytes.
fn products(n: &mut Node, [x, y]: [ExprId; 2], [turn_x, turn_y]: [bool; 2], quantized: bool) -> Results {
    let (a, b) = (n.shape(x)?, n.shape(y)?);
    if a.len() < 2 || b.len() < 2 {
        return n.refuse("both sides should be matrices");
    }
    let (outer_a, outer_b) = (a[..a.len() - 2].to_vec(), b[..b.len() - 2].to_vec());
    // Batches are one axis, of one extent on both sides.
    let same = outer_a == outer_b && outer_a.iter().all(Option::is_some);
    let (flat_x, flat_y, outer) = if outer_a.len() <= 1 && outer_b.len() <= 1 {
        let lift = |n: &mut Node, e, outer: &[Option<i64>]| if outer.is_empty() { n.expand(e, 0) } else { Ok(e) };
        let (ex, ey) = (lift(n, x, &outer_a)?, lift(n, y, &outer_b)?);
        let outer = if outer_a.is_empty() && outer_b.is_empty() { Some(Vec::new()) } else { None };
        (ex, ey, outer)
    } else {
        let open = |s: &[Option<i64>]| s.iter().filter(|d| d.is_none()).count();
        if outer_a == outer_b && open(&outer_a) == 1 {
            return open_batches(n, [x, y], [turn_x, turn_y], quantized);
        }
        let (known_a, known_b) = (n.known(x)?, n.known(y)?);
        let outer = match same {
            true => known_a[..known_a.len() - 2].to_vec(),
            false => match broadcast(&known_a[..known_a.len() - 2], &known_b[..known_b.len() - 2]) {
                Some(outer) => outer,
                None => return n.refuse(format!("batches of {known_a:?} and {known_b:?} do not fit")),
            },
        };
        let count: i64 = outer.iter().product();
        let mut flat = |e, shape: &[i64]| {
            let tail = &shape[shape.len() - 2..];
            let whole: Vec<i64> = outer.iter().chain(tail).copied().collect();
            let e = if whole == shape { e } else { n.op("broadcast_to", &[e], &[("shape", whole.into())])? };
            n.reshape_exact(e, &[count, tail[0], tail[1]])
        };
        (flat(x, &known_a)?, flat(y, &known_b)?, Some(outer))
    };
    let e = product(n, [flat_x, flat_y], [turn_x, turn_y], quantized)?;
    Ok(vec![match outer {
        None => e,
        Some(outer) => {
            let tail = n.shape(e)?;
            let mut shape = outer;
            shape.extend(tail[1..].iter().map(|d| d.unwrap_or(-1)));
            n.reshape_exact(e, &shape)?
        }
    }])
}

/// The product of batches of matrices, of result 0's scale where that is quantized.
fn product(n: &mut Node, [flat_x, flat_y]: [ExprId; 2], [turn_x, turn_y]: [bool; 2], quantized: bool) -> Convert {
    let turns = [("transpose_a", turn_x.into()), ("transpose_b", turn_y.into())];
    match quantized {
        false if n.dtype(flat_x)? == DType::I8 => {
            let attrs = [turns[0].clone(), turns[1].clone(), ("out_dtype", DType::I32.into())];
            n.op("nn.batch_matmul", &[flat_x, flat_y], &attrs)
        }
        false => n.op("nn.batch_matmul", &[flat_x, flat_y], &turns),
        true => {
            let ((s1, z1), (s2, z2), (so, zo)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_out(0)?);
            let dtype = n.out_dtype(0)?;
            let sums = if dtype == DType::I16 { DType::I64 } else { DType::I32 };
            let (zx, zy) = (n.b.scalar(DType::I32, z1 as f64), n.b.scalar(DType::I32, z2 as f64));
            let (sx, sy) = (n.f32(s1), n.f32(s2));
            let attrs = [turns[0].clone(), turns[1].clone(), ("out_dtype", sums.into())];
            let e = n.op("qnn.batch_matmul", &[flat_x, flat_y, zx, zy, sx, sy], &attrs)?;
            let factor = (s1 * s2) as f64 / so as f64;
            n.scaled(e, 0, factor, Target { zero: zo, dtype })
        }
    }
}

/// The same for batches of several axes, of which one has an extent that is known only at run time.
fn open_batches(n: &mut Node, sides: [ExprId; 2], turns: [bool; 2], quantized: bool) -> Results {
    let shape = n.shape(sides[0])?;
    let mut flat = sides;
    for side in &mut flat {
        let s = n.shape(*side)?;
        let (Some(rows), Some(columns)) = (s[s.len() - 2], s[s.len() - 1]) else {
            return n.refuse("only one extent may be unknown");
        };
        *side = n.reshape(*side, &[-1, rows, columns])?;
    }
    let e = product(n, flat, turns, quantized)?;
    let mut out: Vec<i64> = shape[..shape.len() - 2].iter().map(|d| d.unwrap_or(-1)).collect();
    for axis in 1..3 {
        out.push(n.extent(e, axis)?);
    }
    Ok(vec![n.reshape_exact(e, &out)?])
}

/// The shape that two shapes broadcast to.
fn broadcast(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let rank = a.len().max(b.len());
    let at = |s: &[i64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (1, d) | (d, 1) => Some(d),
            (d, e) => (d == e).then_some(d),
        })
        .collect()
}
