//! Attention and its relatives.

use super::{Row, row, row_of};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Frame, Val},
            kit::is_half,
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Attention", attention),
    row("CausalConvWithState", causal_conv),
    row_of("ai.onnx.preview", "FlexAttention", flex_attention),
    row("LinearAttention", linear_attention),
    row("RotaryEmbedding", rotary_embedding),
];

/// Heads as an axis of their own: (batch, length, heads * size) becomes (batch, heads, length, size).
pub(super) fn split_heads(n: &mut Node, x: ExprId, heads: i64) -> Convert {
    let width = n.extent(x, 2)?;
    n.ensure(heads > 0 && width % heads == 0, || format!("{width} elements are not {heads} heads"))?;
    let y = match n.ty(x)?.known_shape() {
        Some(s) => n.reshape(x, &[s[0], s[1], heads, width / heads])?,
        None => n.op("reshape", &[x], &[("newshape", [0, 0, heads, width / heads].into())])?,
    };
    n.transpose(y, &[0, 2, 1, 3])
}

/// The way back.
pub(super) fn join_heads(n: &mut Node, x: ExprId) -> Convert {
    let y = n.transpose(x, &[0, 2, 1, 3])?;
    match n.ty(y)?.known_shape() {
        Some(s) => n.reshape(y, &[s[0], s[1], s[2] * s[3]]),
        None => n.op("reshape", &[y], &[("newshape", [0, 0, -3].into())]),
    }
}

/// Each head several times in a row.
pub(super) fn repeated(n: &mut Node, x: ExprId, times: i64) -> Convert {
    if times == 1 {
        return Ok(x);
    }
    n.op("repeat", &[x], &[("repeats", times.into()), ("axis", 1.into())])
}

fn attention(n: &mut Node) -> Convert<Vec<Val>> {
    let (mut q, mut k, mut v) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (mask, past_k, past_v, lengths) = (n.opt(3)?, n.opt(4)?, n.opt(5)?, n.opt(6)?);
    let flat = n.rank(q)? == 3;
    if flat {
        let (qh, kh) = (n.int("q_num_heads", 0)?, n.int("kv_num_heads", 0)?);
        q = split_heads(n, q, qh)?;
        k = split_heads(n, k, kh)?;
        v = split_heads(n, v, kh)?;
    }
    let (heads, shared) = (n.extent(q, 1)?, n.extent(k, 1)?);
    n.ensure(shared > 0 && heads % shared == 0, || format!("{heads} heads do not share {shared}"))?;
    let dtype = n.dtype(q)?;
    let size = n.extent(q, 3)?;
    let scale = n.opt_float("scale")?.unwrap_or(1.0 / (size as f64).sqrt()).sqrt();
    if let Some(p) = past_k {
        k = n.concat(&[p, k], 2)?;
    }
    if let Some(p) = past_v {
        v = n.concat(&[p, v], 2)?;
    }
    let (present_k, present_v) = (k, v);
    let group = heads / shared;
    let (k, v) = (repeated(n, k, group)?, repeated(n, v, group)?);
    let (q, k) = (n.with("multiply", q, scale)?, n.with("multiply", k, scale)?);
    let kt = n.transpose(k, &[0, 1, 3, 2])?;
    let mut scores = n.matmul(q, kt, None)?;
    let mode = n.int("qk_matmul_output_mode", 0)?;
    let raw = scores;
    let cap = n.float("softcap", 0.0)?;
    if cap > 0.0 {
        let y = n.with("divide", scores, cap)?;
        let y = n.un("tanh", y)?;
        scores = n.with("multiply", y, cap)?;
    }
    let capped = scores;
    for bias in biases(n, scores, present_k, mask, past_k, lengths)? {
        scores = n.add(scores, bias)?;
    }
    let biased = scores;
    if let Some(code) = n.opt_int("softmax_precision")? {
        let Elem::Plain(d) = n.elem(code)? else { return Err(n.refuse("its softmax_precision is no plain type")) };
        scores = n.cast(scores, d)?;
    }
    let held = n.dtype(scores)?;
    let scores = if is_half(held) { n.cast(scores, DType::F32)? } else { scores };
    let weights = n.op("nn.softmax", &[scores], &[("axis", (-1).into())])?;
    let weights = n.cast(weights, dtype)?;
    let v = n.cast(v, dtype)?;
    let mut y = n.matmul(weights, v, None)?;
    if flat {
        y = join_heads(n, y)?;
    }
    let mut outputs = vec![n.out(y)?, n.out(present_k)?, n.out(present_v)?];
    if n.wants(3) {
        let shown = match mode {
            0 => raw,
            1 => capped,
            2 => biased,
            _ => weights,
        };
        let shown = n.cast(shown, dtype)?;
        outputs.push(n.out(shown)?);
    }
    Ok(outputs)
}

/// What a node's body makes of a tensor, where it has that body.
fn modified(n: &mut Node, body: &str, x: ExprId) -> Convert {
    if n.attr(body).is_none() {
        return Ok(x);
    }
    let (dtype, graph) = (n.dtype(x)?, n.graph(body)?);
    let input = n.out(x)?;
    let (outputs, _) = n.im.body(graph, vec![input], Frame::body())?;
    match outputs.as_slice() {
        [Val::Tensor(t)] => n.cast(t.e, dtype),
        _ => Err(n.refuse(format!("its `{body}` should give one tensor"))),
    }
}

fn flex_attention(n: &mut Node) -> Convert<Vec<Val>> {
    let (q, k, v) = (n.x(0)?, n.x(1)?, n.x(2)?);
    n.ensure(n.rank(q)? == 4 && n.rank(k)? == 4 && n.rank(v)? == 4, || "its inputs should have four axes".into())?;
    let (heads, shared, size) = (n.extent(q, 1)?, n.extent(k, 1)?, n.extent(q, 3)?);
    n.ensure(shared > 0 && heads % shared == 0, || format!("{heads} heads do not share {shared}"))?;
    let dtype = n.dtype(q)?;
    let scale = n.opt_float("scale")?.unwrap_or(1.0 / (size as f64).sqrt()).sqrt();
    let within = match n.opt_int("softmax_precision")? {
        Some(code) => n.elem(code)?.storage(),
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let (k, v) = (repeated(n, k, heads / shared)?, repeated(n, v, heads / shared)?);
    let (q, k) = (n.with("multiply", q, scale)?, n.with("multiply", k, scale)?);
    let kt = n.transpose(k, &[0, 1, 3, 2])?;
    let scores = n.matmul(q, kt, None)?;
    let scores = n.cast(scores, within)?;
    let scores = modified(n, "score_mod", scores)?;
    let weights = n.op("nn.softmax", &[scores], &[("axis", (-1).into())])?;
    let weights = modified(n, "prob_mod", weights)?;
    let own = n.dtype(v)?;
    let v = n.cast(v, within)?;
    let y = n.matmul(weights, v, None)?;
    let y = n.cast(y, own)?;
    n.one(y)
}

/// Minus infinity where a mask does not hold, zero where it does.
fn masked(n: &mut Node, mask: ExprId, dtype: DType) -> Convert {
    let (zero, never) = (n.im.b.scalar(dtype, 0.0), n.im.b.scalar(dtype, f64::NEG_INFINITY));
    n.select(mask, zero, never)
}

/// What is added to scores: the mask, the order of time, and the lengths of sequences.
fn biases(
    n: &mut Node,
    scores: ExprId,
    keys: ExprId,
    mask: Option<ExprId>,
    past: Option<ExprId>,
    lengths: Option<ExprId>,
) -> Convert<Vec<ExprId>> {
    let dtype = n.dtype(scores)?;
    let mut all = Vec::new();
    if let Some(m) = mask {
        let mut bias = match n.dtype(m)? {
            DType::Bool => masked(n, m, dtype)?,
            _ => n.cast(m, dtype)?,
        };
        let rank = n.rank(bias)?;
        // A mask that is too short holds nothing of what is beyond.
        if let (Some(have), Some(want)) = (n.dims(bias)?[rank - 1], n.dims(keys)?[2])
            && have < want
        {
            let (before, mut after) = (vec![0; rank], vec![0; rank]);
            after[rank - 1] = want - have;
            let never = n.c(bias, f64::NEG_INFINITY)?;
            bias = n.pad(bias, &before, &after, never)?;
        }
        all.push(bias);
    }
    if n.flag("is_causal", false)? {
        let rows = n.places(scores, 2, DType::I64)?;
        let columns = n.places(scores, 3, DType::I64)?;
        let mut rows = n.trailing(rows, 1)?;
        if let Some(p) = past {
            let offset = n.size(p, 2, DType::I64)?;
            rows = n.add(rows, offset)?;
        }
        let holds = n.bin("greater_equal", rows, columns)?;
        all.push(masked(n, holds, dtype)?);
    }
    if let Some(l) = lengths {
        let columns = n.places(scores, 3, DType::I64)?;
        let l = n.cast(l, DType::I64)?;
        let l = n.trailing(l, 3)?;
        let holds = n.bin("less", columns, l)?;
        all.push(masked(n, holds, dtype)?);
    }
    Ok(all)
}

fn rotary_embedding(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, mut cos, mut sin, places) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?);
    let flat = n.rank(x)? == 3;
    let by_head = if flat {
        let heads = n.int("num_heads", 0)?;
        split_heads(n, x, heads)?
    } else {
        x
    };
    let size = n.extent(by_head, 3)?;
    let part = match n.int("rotary_embedding_dim", 0)? {
        0 => size,
        d => d,
    };
    if let Some(p) = places {
        (cos, sin) = (n.take(cos, p, 0)?, n.take(sin, p, 0)?);
    }
    let interleaved = n.flag("interleaved", false)?;
    let y = rotated(n, by_head, cos, sin, part, interleaved)?;
    let y = if flat { join_heads(n, y)? } else { y };
    n.one(y)
}

/// The first `width` elements of heads, (batch, heads, length, size), as pairs that are turned by angles whose cosines and sines are
/// given for each place, (batch, length, width / 2). Pairs are neighbours, or an element of each half.
pub(super) fn rotated(
    n: &mut Node,
    by_head: ExprId,
    cos: ExprId,
    sin: ExprId,
    width: i64,
    interleaved: bool,
) -> Convert {
    let size = n.extent(by_head, 3)?;
    // (batch, length, half) for all heads.
    let (cos, sin) = (n.expand(cos, 1, 1)?, n.expand(sin, 1, 1)?);
    let part = n.slice(by_head, 3, 0, width)?;
    let half = width / 2;
    let (a, b) = if interleaved {
        let every = |n: &mut Node, from: i64| {
            let attrs =
                [("begin", [from].into()), ("end", [width].into()), ("strides", [2].into()), ("axes", [3].into())];
            n.op("strided_slice", &[part], &attrs)
        };
        (every(n, 0)?, every(n, 1)?)
    } else {
        (n.slice(part, 3, 0, half)?, n.slice(part, 3, half, width)?)
    };
    let (ca, sb, sa, cb) = (n.mul(cos, a)?, n.mul(sin, b)?, n.mul(sin, a)?, n.mul(cos, b)?);
    let (real, imaginary) = (n.sub(ca, sb)?, n.add(sa, cb)?);
    let mut y = if interleaved {
        let pairs = n.stack(&[real, imaginary], 4)?;
        let shape = n.shape_of(part)?;
        n.reshape_to(pairs, shape)?
    } else {
        n.concat(&[real, imaginary], 3)?
    };
    if width < size {
        let rest = n.slice(by_head, 3, width, size)?;
        y = n.concat(&[y, rest], 3)?;
    }
    Ok(y)
}

fn causal_conv(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias, past) = (n.x(0)?, n.x(1)?, n.opt(2)?, n.opt(3)?);
    let (channels, reach) = (n.extent(x, 1)?, n.extent(w, 2)?);
    let padded = match past {
        Some(p) => n.concat(&[p, x], 2)?,
        None => {
            let zero = n.c(x, 0.0)?;
            n.pad(x, &[0, 0, reach - 1], &[0, 0, 0], zero)?
        }
    };
    let dtype = n.dtype(x)?;
    let attrs = [
        ("groups", channels.into()),
        ("channels", channels.into()),
        ("kernel_size", [reach].into()),
        ("padding", [0, 0].into()),
        ("out_dtype", if is_half(dtype) { DType::F32 } else { dtype }.into()),
    ];
    let y = n.op("nn.conv1d", &[padded, w], &attrs)?;
    let mut y = n.cast(y, dtype)?;
    if let Some(b) = bias {
        y = n.op("nn.bias_add", &[y, b], &[("axis", 1.into())])?;
    }
    match n.text("activation", "none")?.as_str() {
        "none" => {}
        "silu" | "swish" => {
            let dtype = n.dtype(y)?;
            let wide = n.cast(y, DType::F32)?;
            let gate = n.un("sigmoid", wide)?;
            let product = n.mul(wide, gate)?;
            y = n.cast(product, dtype)?;
        }
        other => return Err(n.refuse(format!("the activation `{other}` is not supported"))),
    }
    let long = n.extent(padded, 2)?;
    let present = n.slice(padded, 2, long - (reach - 1), long)?;
    Ok(vec![n.out(y)?, n.out(present)?])
}

fn linear_attention(n: &mut Node) -> Convert<Vec<Val>> {
    let (q, k, v) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (past, decay, beta) = (n.opt(3)?, n.opt(4)?, n.opt(5)?);
    let (qh, kh) = (n.int("q_num_heads", 0)?, n.int("kv_num_heads", 0)?);
    n.ensure(qh > 0 && kh > 0 && qh % kh == 0, || format!("{qh} heads do not share {kh}"))?;
    let dtype = n.dtype(q)?;
    let (batch, time) = (n.extent(q, 0)?, n.extent(q, 1)?);
    n.ensure((1..=4096).contains(&time), || format!("{time} steps are not supported"))?;
    let heads = |n: &mut Node, e: ExprId, count: i64| -> Convert {
        let e = split_heads(n, e, count)?;
        n.cast(e, DType::F32)
    };
    let (q, k, v) = (heads(n, q, qh)?, heads(n, k, kh)?, heads(n, v, kh)?);
    let (dk, dv) = (n.extent(q, 3)?, n.extent(v, 3)?);
    let decay = match decay {
        Some(d) => Some(heads(n, d, kh)?),
        None => None,
    };
    let beta = match beta {
        Some(b) => {
            let count = n.extent(b, 2)?;
            Some(heads(n, b, count)?)
        }
        None => None,
    };
    let out_state = match past {
        Some(p) => n.dtype(p)?,
        None => dtype,
    };
    let mut state = match past {
        Some(p) => n.cast(p, DType::F32)?,
        None => n.constant(Tensor::zeros(DType::F32, &[batch, kh, dk, dv].map(|d| d.max(0) as usize))),
    };
    let scale = match n.float("scale", 0.0)? {
        0.0 => 1.0 / (dk as f64).sqrt(),
        s => s,
    };
    let mut outputs = Vec::new();
    for t in 0..time {
        let at = |n: &mut Node, e: ExprId| n.slice(e, 2, t, t + 1);
        let column = |n: &mut Node, e: ExprId| -> Convert {
            let e = n.slice(e, 2, t, t + 1)?;
            n.transpose(e, &[0, 1, 3, 2])
        };
        if let Some(d) = decay {
            let g = column(n, d)?;
            let g = n.un("exp", g)?;
            state = n.mul(state, g)?;
        }
        let kt = column(n, k)?;
        let mut vt = at(n, v)?;
        if let Some(b) = beta {
            let weighted = n.mul(state, kt)?;
            let known = n.reduce("sum", weighted, &[2], true)?;
            let rest = n.sub(vt, known)?;
            let b = at(n, b)?;
            vt = n.mul(rest, b)?;
        }
        let outer = n.mul(kt, vt)?;
        state = n.add(state, outer)?;
        let read = repeated(n, state, qh / kh)?;
        let qt = column(n, q)?;
        let weighted = n.mul(read, qt)?;
        let y = n.reduce("sum", weighted, &[2], true)?;
        outputs.push(n.with("multiply", y, scale)?);
    }
    let y = n.concat(&outputs, 2)?;
    let y = n.cast(y, dtype)?;
    let y = join_heads(n, y)?;
    let state = n.cast(state, out_state)?;
    Ok(vec![n.out(y)?, n.out(state)?])
}
