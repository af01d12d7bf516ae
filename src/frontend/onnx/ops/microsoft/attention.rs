//! Attention with masks of many kinds, whole or with its projections.

use super::{
    super::{
        Row,
        attention::{join_heads, split_heads},
        quant::centred,
    },
    own, refuse_set,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] =
    &[own("Attention", attention), own("MultiHeadAttention", multi_head), own("QAttention", quantized)];

/// What is attended to, by head: (batch, heads, length, size).
pub(super) struct Heads {
    pub q: ExprId,
    pub k: ExprId,
    pub v: ExprId,
}

/// The factor of scores: the attribute `scale`, or one over the root of a head's size.
pub(super) fn scale(n: &Node, q: ExprId) -> Convert<f64> {
    match n.float("scale", 0.0)? {
        0.0 => Ok(1.0 / (n.extent(q, 3)? as f64).sqrt()),
        s => Ok(s),
    }
}

/// The scores, (batch, heads, length, keys), with what is added to them.
pub(super) fn scores(n: &mut Node, heads: &Heads, scale: f64, cap: f64, biases: &[ExprId]) -> Convert {
    let kt = n.transpose(heads.k, &[0, 1, 3, 2])?;
    let product = n.matmul(heads.q, kt, None)?;
    scored(n, product, scale, cap, biases)
}

/// Products of queries and keys as scores.
pub(super) fn scored(n: &mut Node, product: ExprId, scale: f64, cap: f64, biases: &[ExprId]) -> Convert {
    let mut y = n.with("multiply", product, scale)?;
    if cap > 0.0 {
        let inner = n.with("divide", y, cap)?;
        let inner = n.un("tanh", inner)?;
        y = n.with("multiply", inner, cap)?;
    }
    biases.iter().try_fold(y, |y, &b| n.add(y, b))
}

/// Values by weights, with heads side by side: (batch, length, heads * size).
pub(super) fn weighted(n: &mut Node, weights: ExprId, v: ExprId) -> Convert {
    let y = n.matmul(weights, v, None)?;
    join_heads(n, y)
}

fn attended(n: &mut Node, heads: &Heads, biases: &[ExprId]) -> Convert {
    let s = scores(n, heads, scale(n, heads.q)?, 0.0, biases)?;
    let weights = n.op("nn.softmax", &[s], &[("axis", (-1).into())])?;
    weighted(n, weights, heads.v)
}

/// Nothing where a condition holds, else a number that takes the place of minus infinity.
pub(super) fn unless(n: &mut Node, holds: ExprId, dtype: DType, never: f64) -> Convert {
    let (zero, never) = (n.im.b.scalar(dtype, 0.0), n.im.b.scalar(dtype, never));
    n.select(holds, zero, never)
}

/// The least finite number of a type of scores.
pub(super) fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        _ => f32::MIN.into(),
    }
}

/// A mask in one of its forms, as what is added to scores: lengths of rows, or ends and starts, (batch) or (2 * batch); which keys
/// count, (batch, keys); the same for each query, (batch, length, keys); or for a whole square of places, (batch, 1, most, most).
fn mask_bias(n: &mut Node, mask: ExprId, heads: &Heads, past: Option<ExprId>) -> Convert {
    let dtype = n.dtype(heads.q)?;
    let never = n.float("mask_filter_value", -10000.0)?;
    let holds = match n.rank(mask)? {
        1 => {
            let columns = n.places(heads.k, 2, DType::I32)?;
            let lengths = n.cast(mask, DType::I32)?;
            let batch = n.dims(heads.q)?[0];
            match (n.dims(mask)?[0], batch) {
                (Some(m), Some(b)) if m == 2 * b => {
                    let (ends, starts) = (n.slice(lengths, 0, 0, b)?, n.slice(lengths, 0, b, m)?);
                    let (ends, starts) = (n.trailing(ends, 3)?, n.trailing(starts, 3)?);
                    let (below, above) = (n.bin("less", columns, ends)?, n.bin("greater_equal", columns, starts)?);
                    n.bin("logical_and", below, above)?
                }
                (Some(m), Some(b)) if m != b => {
                    return Err(n.refuse(format!("masks of {m} numbers for a batch of {b} are not supported")));
                }
                _ => {
                    let lengths = n.trailing(lengths, 3)?;
                    n.bin("less", columns, lengths)?
                }
            }
        }
        rank @ 2..=4 => {
            let mut m = mask;
            if rank == 4 {
                // The rows of these queries and the columns of all keys.
                let (length, keys) = (n.extent(heads.q, 2)?, n.extent(heads.k, 2)?);
                let before = if past.is_some() { keys - length } else { 0 };
                m = n.slice(m, 2, before, before + length)?;
                m = n.slice(m, 3, 0, keys)?;
            }
            let m = n.expand(m, 1, 4 - rank)?;
            n.with("greater", m, 0.0)?
        }
        rank => return Err(n.refuse(format!("masks of {rank} axes are not supported"))),
    };
    unless(n, holds, dtype, never)
}

/// That queries see no keys after them.
fn causal_bias(n: &mut Node, heads: &Heads) -> Convert {
    let dtype = n.dtype(heads.q)?;
    let rows = n.places(heads.q, 2, DType::I64)?;
    let columns = n.places(heads.k, 2, DType::I64)?;
    let (length, keys) = (n.size(heads.q, 2, DType::I64)?, n.size(heads.k, 2, DType::I64)?);
    let before = n.sub(keys, length)?;
    let rows = n.add(rows, before)?;
    let rows = n.trailing(rows, 1)?;
    let holds = n.bin("greater_equal", rows, columns)?;
    unless(n, holds, dtype, lowest(dtype))
}

/// Part of a vector or of the last axis.
fn columns(n: &mut Node, x: ExprId, from: i64, to: i64) -> Convert {
    let last = n.rank(x)? - 1;
    n.slice(x, last, from, to)
}

/// Keys and values after those of the past, a tensor (2, batch, heads, length, size), and both as such a tensor.
fn after_past(n: &mut Node, heads: &mut Heads, past: Option<ExprId>) -> Convert {
    if let Some(p) = past {
        let (k, v) = (n.index(p, 0, 0)?, n.index(p, 0, 1)?);
        heads.k = n.concat(&[k, heads.k], 2)?;
        heads.v = n.concat(&[v, heads.v], 2)?;
    }
    if n.wants(1) { n.stack(&[heads.k, heads.v], 0) } else { Ok(heads.k) }
}

/// Attention over a projection that holds queries, keys and values side by side.
fn of_projection(
    n: &mut Node,
    all: ExprId,
    mask: Option<ExprId>,
    past: Option<ExprId>,
    bias: Option<ExprId>,
) -> Convert<Vec<Val>> {
    refuse_set(n, &["do_rotary", "past_present_share_buffer"])?;
    let (count, width) = (n.int("num_heads", 0)?, n.extent(all, 2)?);
    let sizes = match n.ints("qkv_hidden_sizes")? {
        Some(s) => s,
        None => vec![width / 3; 3],
    };
    n.ensure(sizes.len() == 3 && sizes.iter().sum::<i64>() == width && sizes.iter().all(|&s| s > 0), || {
        format!("a projection of {width} columns is not {sizes:?}")
    })?;
    let (q, k, v) = (
        columns(n, all, 0, sizes[0])?,
        columns(n, all, sizes[0], sizes[0] + sizes[1])?,
        columns(n, all, sizes[0] + sizes[1], width)?,
    );
    let mut heads = Heads { q: split_heads(n, q, count)?, k: split_heads(n, k, count)?, v: split_heads(n, v, count)? };
    let present = after_past(n, &mut heads, past)?;
    let mut biases = Vec::new();
    if let Some(m) = mask {
        biases.push(mask_bias(n, m, &heads, past)?);
    }
    if n.flag("unidirectional", false)? {
        biases.push(causal_bias(n, &heads)?);
    }
    biases.extend(bias);
    let y = attended(n, &heads, &biases)?;
    Ok(vec![n.out(y)?, n.out(present)?])
}

fn attention(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let (mask, past, added) = (n.opt(3)?, n.opt(4)?, n.opt(5)?);
    let mut all = n.matmul(x, w, None)?;
    if let Some(b) = bias {
        all = n.add(all, b)?;
    }
    of_projection(n, all, mask, past, added)
}

fn quantized(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias, sx, sw) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?, n.x(4)?);
    let (mask, zx, zw, past) = (n.opt(5)?, n.opt(6)?, n.opt(7)?, n.opt(8)?);
    let scalar = |n: &mut Node, z: Option<ExprId>| z.map(|z| n.reshape(z, &[])).transpose();
    let zx = scalar(n, zx)?;
    let (x, w) = (centred(n, x, zx, false)?, centred(n, w, zw, false)?);
    let sum = n.matmul(x, w, Some(DType::I32))?;
    let factor = n.mul(sx, sw)?;
    let sum = n.cast(sum, n.dtype(factor)?)?;
    let all = n.mul(sum, factor)?;
    let all = n.add(all, bias)?;
    of_projection(n, all, mask, past, None)
}

fn multi_head(n: &mut Node) -> Convert<Vec<Val>> {
    let (mut q, key, value) = (n.x(0)?, n.opt(1)?, n.opt(2)?);
    let (bias, mask, added) = (n.opt(3)?, n.opt(4)?, n.opt(5)?);
    let (past_k, past_v) = (n.opt(6)?, n.opt(7)?);
    n.ensure(!n.has(8) && !n.has(9), || "caches that several calls share are not supported".into())?;
    let count = n.int("num_heads", 0)?;
    // A bias is for queries, keys and values, one after another.
    let part = |n: &mut Node, x: ExprId, from: i64| -> Convert {
        let Some(b) = bias else { return Ok(x) };
        let width = n.extent(x, 2)?;
        let b = n.slice(b, 0, from, from + width)?;
        n.add(x, b)
    };
    let mut heads = match (key, value) {
        (None, None) => {
            // (batch, length, heads, 3, size).
            n.ensure(n.rank(q)? == 5 && bias.is_none(), || "its query should hold keys and values, too".into())?;
            let each = |n: &mut Node, i: i64| -> Convert {
                let x = n.index(q, 3, i)?;
                n.transpose(x, &[0, 2, 1, 3])
            };
            Heads { q: each(n, 0)?, k: each(n, 1)?, v: each(n, 2)? }
        }
        (Some(k), None) => {
            // (batch, keys, heads, 2, size).
            n.ensure(n.rank(k)? == 5, || "its key should hold values, too".into())?;
            q = part(n, q, 0)?;
            let each = |n: &mut Node, i: i64| -> Convert {
                let x = n.index(k, 3, i)?;
                n.transpose(x, &[0, 2, 1, 3])
            };
            Heads { q: split_heads(n, q, count)?, k: each(n, 0)?, v: each(n, 1)? }
        }
        (Some(k), Some(v)) if n.rank(k)? == 4 => {
            // Those of an encoder, by head already.
            q = part(n, q, 0)?;
            Heads { q: split_heads(n, q, count)?, k, v }
        }
        (Some(k), Some(v)) => {
            let width = n.extent(q, 2)?;
            let of_keys = n.extent(k, 2)?;
            q = part(n, q, 0)?;
            let (k, v) = (part(n, k, width)?, part(n, v, width + of_keys)?);
            Heads { q: split_heads(n, q, count)?, k: split_heads(n, k, count)?, v: split_heads(n, v, count)? }
        }
        (None, Some(_)) => return Err(n.refuse("it has values, but no keys")),
    };
    if let (Some(k), Some(v)) = (past_k, past_v) {
        heads.k = n.concat(&[k, heads.k], 2)?;
        heads.v = n.concat(&[v, heads.v], 2)?;
    }
    let mut biases = Vec::new();
    if let Some(m) = mask {
        biases.push(mask_bias(n, m, &heads, past_k)?);
    }
    if n.flag("unidirectional", false)? {
        biases.push(causal_bias(n, &heads)?);
    }
    biases.extend(added);
    let y = attended(n, &heads, &biases)?;
    Ok(vec![n.out(y)?, n.out(heads.k)?, n.out(heads.v)?])
}
