//! Attention of decoders: heads that share keys, caches of keys and values, rotated embeddings.

use super::{
    super::{
        Row,
        attention::{join_heads, rotated, split_heads},
    },
    attention::{Heads, lowest, scale, scored, unless},
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
    &[own("GroupQueryAttention", grouped), own("RotaryEmbedding", rotary)];

fn rotary(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, places, cos, sin) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?);
    refuse_set(n, &["is_packed_batching"])?;
    n.ensure(matches!(n.opt_float("scale")?, None | Some(1.0)), || "its attribute `scale` is not supported".into())?;
    let interleaved = n.flag("interleaved", false)?;
    let width = 2 * n.extent(cos, 1)?;
    let flat = n.rank(x)? == 3;
    let by_head = if flat {
        let heads = match n.int("num_heads", 0)? {
            0 => n.extent(x, 2)? / width.max(1),
            h => h,
        };
        split_heads(n, x, heads)?
    } else {
        x
    };
    // One number is the place of the first; the others follow.
    let places = if n.rank(places)? == 1 {
        let rest = n.places(by_head, 2, n.dtype(places)?)?;
        let all = n.add(rest, places)?;
        n.expand(all, 0, 1)?
    } else {
        places
    };
    let (cos, sin) = (n.take(cos, places, 0)?, n.take(sin, places, 0)?);
    let y = rotated(n, by_head, cos, sin, width, interleaved)?;
    let y = if flat { join_heads(n, y)? } else { y };
    n.one(y)
}

/// Rows of a batch, (batch, heads, from, size), in the order that places say, (batch, to).
fn picked(n: &mut Node, x: ExprId, places: ExprId) -> Convert {
    let (heads, size) = (n.extent(x, 1)?, n.extent(x, 3)?);
    let batch = n.size(x, 0, DType::I64)?;
    let length = n.size(x, 2, DType::I64)?;
    let rows = n.transpose(x, &[0, 2, 1, 3])?;
    let rows = n.reshape(rows, &[-1, heads * size])?;
    let first = n.places(x, 0, DType::I64)?;
    let first = n.mul(first, length)?;
    let first = n.trailing(first, 1)?;
    let flat = n.add(places, first)?;
    let y = n.take(rows, flat, 0)?;
    let (batch, minus) = (n.reshape(batch, &[1])?, n.im.b.ints(&[-1]));
    let tail = n.im.b.ints(&[heads, size]);
    let shape = n.concat(&[batch, minus, tail], 0)?;
    let y = n.reshape_to(y, shape)?;
    n.transpose(y, &[0, 2, 1, 3])
}

/// Weights of scores, where every head has a score for attending to nothing.
fn with_sink(n: &mut Node, scores: ExprId, sink: ExprId) -> Convert {
    let last = n.rank(scores)? - 1;
    let high = n.reduce("max", scores, &[last], true)?;
    let high = n.bin("maximum", high, sink)?;
    let less = n.sub(scores, high)?;
    let e = n.un("exp", less)?;
    let of_sink = n.sub(sink, high)?;
    let of_sink = n.un("exp", of_sink)?;
    let sum = n.reduce("sum", e, &[last], true)?;
    let sum = n.add(sum, of_sink)?;
    n.div(e, sum)
}

/// Whether all rows have as much past as the cache holds, so that what is new goes to its end: where `total`, one more than `last`, is
/// computed as the past's extent and another. As the operator has it, that is the length of what is new.
fn is_grown(n: &mut Node, query: ExprId, past: ExprId, last: ExprId, total: ExprId) -> Convert<bool> {
    let room = n.size(past, 2, DType::I64)?;
    let (Some(room), Some(last), Some(total)) = (n.im.b.sum(room), n.im.b.sum(last), n.im.b.sum(total)) else {
        return Ok(false);
    };
    let new = total.plus(&room, -1);
    let length = n.dims(query)?[2];
    let is_length = new.is_an_extent() || length.is_some_and(|l| new == l.into());
    Ok(total.plus(&last, -1) == 1.into() && is_length)
}

/// Heads, of which each so many in a row share keys and values: what these do is one product for all of them. Batches may be unknown.
#[derive(Copy, Clone)]
struct Groups {
    /// How many heads keys and values have.
    shared: i64,
    /// How many heads of queries each of them serves.
    group: i64,
}

impl Groups {
    fn reshape(n: &mut Node, x: ExprId, to: &[i64]) -> Convert {
        n.op("reshape", &[x], &[("newshape", to.into())])
    }

    /// Queries, (batch, heads, length, size), as (batch, shared, group, length, size).
    fn split(self, n: &mut Node, x: ExprId) -> Convert {
        Groups::reshape(n, x, &[0, -4, self.shared, self.group, 0, 0])
    }

    /// (batch, shared, group, length, size) as (batch * shared, group * length, size).
    fn merged(n: &mut Node, x: ExprId) -> Convert {
        Groups::reshape(n, x, &[-3, -3, 0])
    }

    /// The way back.
    fn apart(self, n: &mut Node, x: ExprId) -> Convert {
        Groups::reshape(n, x, &[-4, -1, self.shared, -4, self.group, -1, 0])
    }

    /// Keys or values, (batch, shared, length, size), as (batch * shared, length, size).
    fn flat(n: &mut Node, x: ExprId) -> Convert {
        Groups::reshape(n, x, &[-3, 0, 0])
    }

    /// What is added to scores, (batch, heads, length, keys), of which extents may be 1.
    fn bias(self, n: &mut Node, x: ExprId) -> Convert {
        match n.extent(x, 1)? {
            1 => n.expand(x, 1, 1),
            _ => self.split(n, x),
        }
    }
}

fn grouped(n: &mut Node) -> Convert<Vec<Val>> {
    let (query, key, value) = (n.x(0)?, n.opt(1)?, n.opt(2)?);
    let (past_k, past_v) = (n.opt(3)?, n.opt(4)?);
    let (last, total) = (n.x(5)?, n.x(6)?);
    let (cos, sin, places, added) = (n.opt(7)?, n.opt(8)?, n.opt(9)?, n.opt(10)?);
    let sink = n.opt(11)?;
    for (name, default) in [("k_quant_type", "NONE"), ("v_quant_type", "NONE")] {
        n.ensure(n.text(name, default)? == default, || format!("its attribute `{name}` is not supported"))?;
    }
    refuse_set(n, &["kv_cache_bit_width", "qk_output"])?;
    let (count, shared) = (n.int("num_heads", 0)?, n.int("kv_num_heads", 0)?);
    n.ensure(count > 0 && shared > 0 && count % shared == 0, || format!("{count} heads do not share {shared}"))?;
    let mut heads = match (key, value) {
        (Some(k), Some(v)) => {
            Heads { q: split_heads(n, query, count)?, k: split_heads(n, k, shared)?, v: split_heads(n, v, shared)? }
        }
        (None, None) => {
            let all = split_heads(n, query, count + 2 * shared)?;
            Heads {
                q: n.slice(all, 1, 0, count)?,
                k: n.slice(all, 1, count, count + shared)?,
                v: n.slice(all, 1, count + shared, count + 2 * shared)?,
            }
        }
        _ => return Err(n.refuse("it has keys without values, or values without keys")),
    };
    let width = count * n.extent(heads.v, 3)?;
    // How long each row's past is: of a first call there is none.
    let length = n.size(heads.q, 2, DType::I64)?;
    let grown = match past_k {
        Some(past) => is_grown(n, heads.q, past, last, total)?,
        None => false,
    };
    let (last, total) = (n.cast(last, DType::I64)?, n.cast(total, DType::I64)?);
    let total = n.reshape(total, &[])?;
    let before = match past_k.filter(|_| grown) {
        Some(past) => {
            let room = n.size(past, 2, DType::I64)?;
            n.reshape(room, &[1, 1])?
        }
        None => {
            let last = n.reshape(last, &[-1, 1])?;
            let before = n.with("add", last, 1.0)?;
            let before = n.sub(before, length)?;
            let first = n.bin("equal", length, total)?;
            let zero = n.c(before, 0.0)?;
            n.select(first, zero, before)?
        }
    };
    let steps = n.places(heads.q, 2, DType::I64)?;
    let own_places = n.add(before, steps)?;
    if n.flag("do_rotary", false)? {
        let (Some(cos), Some(sin)) = (cos, sin) else {
            return Err(n.refuse("it rotates, but lacks cosines or sines"));
        };
        let places = places.unwrap_or(own_places);
        let width = 2 * n.extent(cos, 1)?;
        let (cos, sin) = (n.take(cos, places, 0)?, n.take(sin, places, 0)?);
        let interleaved = n.flag("rotary_interleaved", false)?;
        heads.q = rotated(n, heads.q, cos, sin, width, interleaved)?;
        heads.k = rotated(n, heads.k, cos, sin, width, interleaved)?;
    }
    if let (Some(pk), Some(pv), true) = (past_k, past_v, grown) {
        heads.k = n.concat(&[pk, heads.k], 2)?;
        heads.v = n.concat(&[pv, heads.v], 2)?;
    } else if let (Some(pk), Some(pv)) = (past_k, past_v) {
        // What is new comes right after each row's past; the cache may be longer than that.
        let room = n.size(pk, 2, DType::I64)?;
        let long = n.bin("maximum", room, total)?;
        let (start, step) = (n.im.b.scalar(DType::I64, 0.0), n.im.b.scalar(DType::I64, 1.0));
        let all = n.op("arange", &[start, long, step], &[("dtype", DType::I64.into())])?;
        let since = n.sub(all, before)?;
        let is_past = n.with("less", since, 0.0)?;
        let is_new = n.bin("less", since, length)?;
        let new = n.add(since, room)?;
        let last = n.with("subtract", room, 1.0)?;
        let rest = n.bin("minimum", all, last)?;
        let from = n.select(is_new, new, rest)?;
        let from = n.select(is_past, all, from)?;
        for (e, p) in [(&mut heads.k, pk), (&mut heads.v, pv)] {
            let both = n.concat(&[p, *e], 2)?;
            *e = picked(n, both, from)?;
        }
    }
    let (present_k, present_v) = (heads.k, heads.v);
    let dtype = n.dtype(heads.q)?;
    let columns = n.places(heads.k, 2, DType::I64)?;
    let rows = n.trailing(own_places, 1)?;
    let mut holds = n.bin("less_equal", columns, rows)?;
    let window = n.int("local_window_size", -1)?;
    if window > 0 {
        let oldest = n.with("subtract", rows, window as f64)?;
        let near = n.bin("greater", columns, oldest)?;
        holds = n.bin("logical_and", holds, near)?;
    }
    let never = unless(n, holds, dtype, lowest(dtype))?;
    let groups = Groups { shared, group: count / shared };
    let mut biases = vec![n.expand(never, 1, 2)?];
    if let Some(added) = added {
        biases.push(groups.bias(n, added)?);
    }
    let cap = n.float("softcap", 0.0)?;
    let scale = scale(n, heads.q)?;
    let q = groups.split(n, heads.q)?;
    let (q, k) = (Groups::merged(n, q)?, Groups::flat(n, heads.k)?);
    let product = n.op("nn.batch_matmul", &[q, k], &[("transpose_b", true.into())])?;
    let product = groups.apart(n, product)?;
    let s = scored(n, product, scale, cap, &biases)?;
    let weights = match sink {
        Some(sink) => {
            let sink = n.cast(sink, dtype)?;
            let sink = n.reshape(sink, &[1, shared, groups.group, 1, 1])?;
            with_sink(n, s, sink)?
        }
        None if n.int("smooth_softmax", 0)? == 1 => {
            let zero = n.im.b.scalar(dtype, 0.0);
            with_sink(n, s, zero)?
        }
        None => n.op("nn.softmax", &[s], &[("axis", (-1).into())])?,
    };
    let (weights, v) = (Groups::merged(n, weights)?, Groups::flat(n, heads.v)?);
    let y = n.op("nn.batch_matmul", &[weights, v], &[("transpose_b", false.into())])?;
    // From (batch, shared, group, length, size) to (batch, length, heads * size).
    let y = groups.apart(n, y)?;
    let y = n.transpose(y, &[0, 3, 1, 2, 4])?;
    let y = Groups::reshape(n, y, &[0, 0, width])?;
    Ok(vec![n.out(y)?, n.out(present_k)?, n.out(present_v)?])
}
