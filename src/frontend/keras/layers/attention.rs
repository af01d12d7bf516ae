//! Attention.

use super::{
    super::call::{Arg, Call, Held, turned},
    Class, Masks, activation, class,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("MultiHeadAttention", Masks::Pass, multi_head),
    class("GroupedQueryAttention", Masks::Pass, multi_head),
    class("GroupQueryAttention", Masks::Pass, multi_head),
    class("Attention", Masks::Own, |c| scored(c, false)),
    class("AdditiveAttention", Masks::Own, |c| scored(c, true)),
];

/// Queries, values and keys, and which of their steps count.
struct Sequences {
    query: ExprId,
    value: ExprId,
    key: ExprId,
    /// (batch, queries, values) and what broadcasts to that.
    mask: Option<ExprId>,
}

/// A dense part of the layer: from (.., inputs) to (.., heads, size), or back.
struct Part<'a> {
    groups: [&'a str; 2],
    name: &'a str,
}

const QUERY: Part = Part { groups: ["query_dense", "_query_dense"], name: "query" };
const KEY: Part = Part { groups: ["key_dense", "_key_dense"], name: "key" };
const VALUE: Part = Part { groups: ["value_dense", "_value_dense"], name: "value" };
const GATE: Part = Part { groups: ["gate_dense", "_gate_dense"], name: "gate" };
const OUTPUT: Part = Part { groups: ["output_dense", "_output_dense"], name: "attention_output" };

/// A product with a part's kernel, whose first `inputs` axes are summed; and the bias.
fn part(c: &mut Call, x: ExprId, p: &Part, inputs: usize) -> Convert {
    let mut layer = (*c.layer).clone();
    layer.place.group = c.s.weights.part(&c.layer.place.group, &p.groups);
    layer.place.names.push(p.name.to_owned());
    let layer = layer.shared();
    c.within(&layer, |c| {
        let shape = c.array(0, "kernel")?.shape().to_vec();
        if shape.len() <= inputs {
            return Err(c.refuse(format!("the kernel of its {} has {} axes", p.name, shape.len())));
        }
        let (k, n): (usize, usize) = (shape[..inputs].iter().product(), shape[inputs..].iter().product());
        let kernel = c.weight_as(0, "kernel", "turned matrix", |t| turned(&t.reshaped(&[k, n])))?;
        // The summed axes as one.
        let rank = c.rank(x)?;
        if rank < inputs {
            return Err(c.refuse(format!("the input of its {} has too few axes", p.name)));
        }
        let mut merged = vec![0; rank - inputs];
        merged.push(k as i64);
        let x = if inputs == 1 { x } else { c.reshape(x, &merged)? };
        let mut y = c.dense(x, kernel)?;
        if c.layer.bool("use_bias", true) {
            let bias = c.weight_as(1, "bias", "vector", |t| Ok(t.reshaped(&[t.len()])))?;
            y = c.op("nn.bias_add", &[y, bias], &[("axis", (-1).into())])?;
        }
        if shape.len() - inputs == 1 {
            return Ok(y);
        }
        let mut split = vec![0; rank - inputs];
        split.extend(shape[inputs..].iter().map(|&n| n as i64));
        c.reshape(y, &split)
    })
}

/// Places along the axis of queries or values, (n, 1) or (1, n), as the program finds them.
fn places(c: &mut Call, x: ExprId, axis: i64) -> Convert {
    let line = match c.shape(x)?.get(1).copied().flatten() {
        Some(n) => {
            let n = c.count(n)?;
            c.constant(Tensor::from_i64_fn(DType::I32, &[n], |i| i as i64))
        }
        None => {
            let shape = c.op("shape_of", &[x], &[("dtype", DType::I32.into())])?;
            let n = c.slice(shape, 0, 1, 2)?;
            let n = c.op("squeeze", &[n], &[("axis", [0].into())])?;
            let (zero, one) = (c.s.b.scalar(DType::I32, 0.0), c.s.b.scalar(DType::I32, 1.0));
            c.op("arange", &[zero, n, one], &[("dtype", DType::I32.into())])?
        }
    };
    c.expand(line, axis, 1)
}

fn both(c: &mut Call, a: Option<ExprId>, b: ExprId) -> Convert<Option<ExprId>> {
    Ok(Some(match a {
        None => b,
        Some(a) => c.bin("logical_and", a, b)?,
    }))
}

fn sequences(c: &mut Call) -> Convert<Sequences> {
    let query = c.held()?;
    let given = c.tensor_arg(1, "value")?;
    let value = given.ok_or_else(|| c.refuse("it is called without a value"))?;
    let key = c.tensor_arg(2, "key")?;
    let named = |c: &Call, name: &str| c.tensor_arg(usize::MAX, name).map(|t| t.map(|t| t.id));
    let masks = [
        (named(c, "query_mask")?.or(query.mask), 2),
        (named(c, "value_mask")?.or(value.mask), 1),
        (named(c, "key_mask")?.or(key.and_then(|k| k.mask)), 1),
    ];
    let mut mask = None;
    for (m, axis) in masks {
        if let Some(m) = m {
            let m = c.cast(m, DType::Bool)?;
            let m = c.expand(m, axis, 1)?;
            mask = both(c, mask, m)?;
        }
    }
    let causal = c.flag("use_causal_mask");
    let window = c.layer.get("sliding_window").and_then(|v| v.as_i64());
    if causal || window.is_some() {
        let (rows, columns) = (places(c, query.id, 1)?, places(c, value.id, 0)?);
        let mut holds = None;
        if causal {
            let before = c.bin("greater_equal", rows, columns)?;
            holds = both(c, holds, before)?;
        }
        if let Some(window) = window {
            let distance = c.bin("subtract", rows, columns)?;
            let distance = c.un("abs", distance)?;
            let near = c.with("less", distance, window as f64)?;
            holds = both(c, holds, near)?;
        }
        if let Some(holds) = holds {
            let holds = c.expand(holds, 0, 1)?;
            mask = both(c, mask, holds)?;
        }
    }
    if let Some(m) = named(c, "attention_mask")? {
        let m = c.cast(m, DType::Bool)?;
        // A mask of heads has an axis more.
        let axes = c.rank(m)?;
        mask = match mask {
            Some(own) if axes == 4 => {
                let own = c.expand(own, 1, 1)?;
                both(c, Some(own), m)?
            }
            own => both(c, own, m)?,
        };
    }
    Ok(Sequences { query: query.id, value: value.id, key: key.map_or(value.id, |k| k.id), mask })
}

fn multi_head(c: &mut Call) -> Convert<Arg> {
    let s = sequences(c)?;
    let gate = match c.layer.bool("use_gate", false) {
        true => {
            let g = part(c, s.query, &GATE, 1)?;
            Some(c.un("sigmoid", g)?)
        }
        false => None,
    };
    let query = part(c, s.query, &QUERY, 1)?;
    let mut key = part(c, s.key, &KEY, 1)?;
    let mut value = part(c, s.value, &VALUE, 1)?;
    let (rank, shape) = (c.rank(query)?, c.shape(query)?);
    let heads = shape[rank - 2].unwrap_or(1);
    let of_keys = c.extent(key, rank.saturating_sub(2))?;
    if of_keys != heads {
        // Several queries share a key.
        if of_keys < 1 || heads % of_keys != 0 {
            return Err(c.refuse(format!("{heads} heads of queries do not share {of_keys} of keys")));
        }
        let attrs = [("repeats", (heads / of_keys).into()), ("axis", (rank as i64 - 2).into())];
        key = c.op("repeat", &[key], &attrs)?;
        value = c.op("repeat", &[value], &attrs)?;
    }
    let size = c.extent(query, rank - 1)?;
    let scale = 1.0 / (size as f64).sqrt();
    let scores = c.flag("return_attention_scores");
    let dropout = c.layer.float("dropout", 0.0)? > 0.0;
    let direct = rank == 4 && !scores && !(dropout && s.mask.is_some());
    let (mut out, scores) = match direct {
        true => (attend(c, query, key, value, s.mask, scale)?, None),
        false => by_equations(c, query, key, value, s.mask, scale)?,
    };
    if let Some(gate) = gate {
        out = c.bin("multiply", out, gate)?;
    }
    let out = Arg::of(part(c, out, &OUTPUT, 2)?);
    Ok(match scores.filter(|_| c.flag("return_attention_scores")) {
        Some(scores) => Arg::List(vec![out, Arg::of(scores)]),
        None => out,
    })
}

/// Sequences of (batch, steps, heads, size), each head by itself.
fn attend(c: &mut Call, query: ExprId, key: ExprId, value: ExprId, mask: Option<ExprId>, scale: f64) -> Convert {
    let dtype = c.dtype(query)?;
    let mask = match mask {
        None => c.constant(Tensor::zeros(dtype, &[1, 1, 1, 1])),
        Some(m) => {
            let missing = 4 - c.rank(m)?.min(4) as i64;
            let m = c.expand(m, 1, missing)?;
            // Far below all logits, and above where softmax would divide by zero.
            let far = if dtype == DType::F16 { -3e4 } else { -1e9 };
            let (zero, far) = (c.s.b.scalar(dtype, 0.0), c.s.b.scalar(dtype, far));
            c.select(m, zero, far)?
        }
    };
    let attrs = [
        ("scale", scale.into()),
        ("query_layout", "BSHD".into()),
        ("key_layout", "BSHD".into()),
        ("value_layout", "BSHD".into()),
        ("out_layout", "BSHD".into()),
    ];
    c.op("nn.attention", &[query, key, value, mask], &attrs)
}

/// Attention over any axes: (batch.., attended.., heads, size).
fn by_equations(
    c: &mut Call,
    query: ExprId,
    key: ExprId,
    value: ExprId,
    mask: Option<ExprId>,
    scale: f64,
) -> Convert<(ExprId, Option<ExprId>)> {
    let rank = c.rank(query)?;
    let given = c.layer.ints("attention_axes").unwrap_or_else(|| (1..rank as i64 - 2).collect());
    let axes = given.iter().map(|&a| c.axis(a, rank - 1)).collect::<Convert<Vec<usize>>>()?;
    if rank + axes.len() > 26 {
        return Err(c.refuse("its input has too many axes"));
    }
    let letter = |i: usize| (b'a' + i as u8) as char;
    let target: Vec<char> = (0..rank).map(letter).collect();
    let mut source = target.clone();
    let mut next = rank;
    for (i, axis) in source.iter_mut().enumerate().take(rank - 1) {
        if axes.contains(&i) {
            *axis = letter(next);
            next += 1;
        }
    }
    let batch = (0..rank - 1).filter(|i| !axes.contains(i)).map(|i| target[i]);
    let product: String = batch.chain(axes.iter().map(|&i| target[i])).chain(axes.iter().map(|&i| source[i])).collect();
    let (target, source): (String, String) = (target.into_iter().collect(), source.into_iter().collect());
    let einsum = |c: &mut Call, equation: String, args: &[ExprId]| {
        let tuple = c.s.b.tuple(args);
        c.op("einsum", &[tuple], &[("equation", equation.as_str().into())])
    };
    let query = c.with("multiply", query, scale)?;
    let logits = einsum(c, format!("{source},{target}->{product}"), &[key, query])?;
    let all = c.rank(logits)?;
    let softmax_axes: Vec<i64> = (all - axes.len()..all).map(|a| a as i64).collect();
    let scores = match mask {
        None => activation::softmax(c, logits, &softmax_axes)?,
        Some(m) => {
            let missing = (all - c.rank(m)?.min(all)) as i64;
            // New axes stand before those of queries and values.
            let m = c.expand(m, -(axes.len() as i64) * 2 - 1, missing)?;
            activation::masked_softmax(c, logits, m, &softmax_axes)?
        }
    };
    let out = einsum(c, format!("{product},{source}->{target}"), &[scores, value])?;
    Ok((out, Some(scores)))
}

/// Attention of whole sequences, without heads.
fn scored(c: &mut Call, additive: bool) -> Convert<Arg> {
    let items = match c.args.first() {
        Some(Arg::List(items)) => items.iter().flat_map(Arg::tensors).collect::<Vec<Held>>(),
        _ => Vec::new(),
    };
    let &[q, v, ..] = &items[..] else { return Err(c.refuse("it takes a list of query, value, and maybe key")) };
    let (query, value, key) = (q.id, v.id, items.get(2).map_or(v.id, |k| k.id));
    let given = match c.arg(usize::MAX, "mask") {
        Some(Arg::List(masks)) => masks.iter().map(|m| m.tensors().first().map(|t| t.id)).collect(),
        _ => vec![q.mask, v.mask],
    };
    let (q_mask, v_mask) = (given.first().copied().flatten(), given.get(1).copied().flatten());
    let scores = if additive || c.layer.str("score_mode") == Some("concat") {
        concat_scores(c, query, key, additive)?
    } else {
        let s = c.op("nn.batch_matmul", &[query, key], &[("transpose_b", true.into())])?;
        match c.layer.bool("use_scale", false) {
            true => {
                let scale = c.weight(0, "scale")?;
                c.bin("multiply", s, scale)?
            }
            false => s,
        }
    };
    let mut mask = None;
    if let Some(m) = v_mask {
        let m = c.cast(m, DType::Bool)?;
        let m = if c.rank(m)? == 2 { c.expand(m, 1, 1)? } else { m };
        mask = Some(m);
    }
    if c.flag("use_causal_mask") || c.layer.bool("causal", false) {
        let (rows, columns) = (places(c, query, 1)?, places(c, value, 0)?);
        let before = c.bin("greater_equal", rows, columns)?;
        let before = c.expand(before, 0, 1)?;
        mask = both(c, mask, before)?;
    }
    let logits = match mask {
        None => scores,
        Some(m) => {
            let far = if c.dtype(scores)? == DType::F16 { 65504.0 } else { 1e9 };
            let down = c.with("subtract", scores, far)?;
            c.select(m, scores, down)?
        }
    };
    let weights = activation::softmax(c, logits, &[-1])?;
    let mut out = c.op("nn.batch_matmul", &[weights, value], &[("transpose_b", false.into())])?;
    if let Some(m) = q_mask {
        let m = c.cast(m, DType::Bool)?;
        let m = c.expand(m, -1, 1)?;
        let zero = c.number(out, 0.0)?;
        out = c.select(m, out, zero)?;
    }
    let out = Arg::Tensor(Held { id: out, mask: q_mask });
    Ok(match c.flag("return_attention_scores") {
        true => Arg::List(vec![out, Arg::of(weights)]),
        false => out,
    })
}

/// Sums over tanh(query + key), each with each.
fn concat_scores(c: &mut Call, query: ExprId, key: ExprId, additive: bool) -> Convert {
    let q = c.expand(query, 2, 1)?;
    let k = c.expand(key, 1, 1)?;
    let mut sum = c.bin("add", q, k)?;
    let scaled = c.layer.bool("use_scale", additive);
    if additive {
        let t = c.un("tanh", sum)?;
        let t = match scaled {
            true => {
                let scale = c.weight(0, "scale")?;
                c.bin("multiply", t, scale)?
            }
            false => t,
        };
        return c.reduce("sum", t, &[-1], false);
    }
    if scaled {
        let scale = c.weight(0, "scale")?;
        sum = c.bin("multiply", sum, scale)?;
    }
    let t = c.un("tanh", sum)?;
    let t = c.reduce("sum", t, &[-1], false)?;
    let weight = c.weight(scaled as usize, "concat_score_weight")?;
    c.bin("multiply", t, weight)
}
