//! Sequences and optional values. Their structure is known when the model is read, but for how long sequences are that loops and splits
//! make ([`lists`](super::lists)).

use super::{Row, lists, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::{Frame, Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[
    row("ConcatFromSequence", concat_from_sequence),
    row("Optional", |n| Ok(vec![n.val(0).cloned().unwrap_or(Val::Absent)])),
    row("OptionalGetElement", |n| match n.val(0) {
        Some(Val::Maybe { value, .. }) => Ok(vec![(**value).clone()]),
        Some(v) => Ok(vec![v.clone()]),
        None => Err(n.refuse("the optional value is absent")),
    }),
    row("OptionalHasElement", |n| {
        if let Some(Val::Maybe { there, .. }) = n.val(0) {
            return Ok(vec![Val::Tensor(*there)]);
        }
        let there = n.im.b.scalar(DType::Bool, f64::from(n.has(0)));
        n.one(there)
    }),
    row("SequenceAt", sequence_at),
    row("SequenceConstruct", |n| Ok(vec![Val::Seq(n.inputs.iter().flatten().cloned().collect())])),
    row("SequenceEmpty", |_| Ok(vec![Val::Seq(Vec::new())])),
    row("SequenceErase", sequence_erase),
    row("SequenceInsert", sequence_insert),
    row("SequenceLength", |n| {
        if let Some(list) = n.list(0) {
            let length = list.length(n)?;
            return n.one(length);
        }
        let length = n.seq(0)?.len();
        let length = n.im.b.scalar(DType::I64, length as f64);
        n.one(length)
    }),
    row("SequenceMap", sequence_map),
    row("SplitToSequence", split_to_sequence),
];

/// A place in a sequence, which must be known.
fn place(n: &mut Node, i: usize, length: usize) -> Convert<Option<usize>> {
    let Some(at) = n.known_ints(i)? else { return Ok(None) };
    let at = at.first().copied().unwrap_or(0);
    let counted = if at < 0 { at + length as i64 } else { at };
    usize::try_from(counted).map(Some).map_err(|_| n.refuse(format!("{at} is no place in a sequence of {length}")))
}

/// A place in a sequence that is known only while running, counted from its front.
fn unknown_place(n: &mut Node, i: usize, length: usize) -> Convert<Option<ExprId>> {
    let Some(at) = n.opt(i)? else { return Ok(None) };
    if n.value(at).is_some() {
        return Ok(None);
    }
    let at = n.counted(at, length)?;
    n.reshape(at, &[]).map(Some)
}

/// One of two tensors, chosen while running.
fn chosen(n: &mut Node, cond: ExprId, a: &Val, b: &Val) -> Convert<Val> {
    match (a, b) {
        (Val::Tensor(x), Val::Tensor(y)) if x.elem == y.elem => {
            Ok(Val::Tensor(Tens { e: n.either(cond, x.e, y.e)?, ..*x }))
        }
        _ => Err(n.refuse("what is chosen while running are no tensors of one element type")),
    }
}

fn sequence_at(n: &mut Node) -> Convert<Vec<Val>> {
    if let Some(list) = n.list(0) {
        return list.sequence_at(n);
    }
    let items = n.seq(0)?;
    if let (Some(at), Some((last, rest))) = (unknown_place(n, 1, items.len())?, items.split_last()) {
        let mut found = last.clone();
        for (k, item) in rest.iter().enumerate() {
            let hit = n.with("equal", at, k as f64)?;
            found = chosen(n, hit, item, &found)?;
        }
        return Ok(vec![found]);
    }
    let at = place(n, 1, items.len())?.unwrap_or(0);
    let found = items.get(at).cloned();
    Ok(vec![found.ok_or_else(|| n.refuse(format!("{at} is no place in a sequence of {}", items.len())))?])
}

fn sequence_erase(n: &mut Node) -> Convert<Vec<Val>> {
    if let Some(list) = n.list(0) {
        return list.erase(n);
    }
    let mut items = n.seq(0)?;
    if let (Some(at), false) = (unknown_place(n, 1, items.len())?, items.is_empty()) {
        let mut left = Vec::new();
        for k in 0..items.len() - 1 {
            let before = n.from("greater", k as f64, at)?;
            let same = n.from("equal", k as f64, at)?;
            let shifted = n.bin("logical_or", before, same)?;
            left.push(chosen(n, shifted, &items[k + 1], &items[k])?);
        }
        return Ok(vec![Val::Seq(left)]);
    }
    let at = place(n, 1, items.len())?.unwrap_or(items.len().saturating_sub(1));
    n.ensure(at < items.len(), || format!("{at} is no place in a sequence of {}", items.len()))?;
    items.remove(at);
    Ok(vec![Val::Seq(items)])
}

fn sequence_insert(n: &mut Node) -> Convert<Vec<Val>> {
    if let Some(list) = n.list(0) {
        return list.insert(n);
    }
    let mut items = n.seq(0)?;
    let item = n.val(1).cloned().ok_or_else(|| n.refuse("what it inserts is not given"))?;
    if let Some(at) = unknown_place(n, 2, items.len())? {
        let mut more = Vec::new();
        for k in 0..=items.len() {
            let hit = n.with("equal", at, k as f64)?;
            let below = n.with("less", at, k as f64)?;
            // Before the place, things stay; after it, they come one later.
            let mut v = if k < items.len() { items[k].clone() } else { item.clone() };
            if k > 0 {
                v = chosen(n, below, &items[k - 1], &v)?;
            }
            more.push(chosen(n, hit, &item, &v)?);
        }
        return Ok(vec![Val::Seq(more)]);
    }
    let at = place(n, 2, items.len())?.unwrap_or(items.len());
    n.ensure(at <= items.len(), || format!("{at} is no place in a sequence of {}", items.len()))?;
    items.insert(at, item);
    Ok(vec![Val::Seq(items)])
}

fn sequence_map(n: &mut Node) -> Convert<Vec<Val>> {
    let length = n.seq(0)?.len();
    let graph = n.graph("body")?;
    let mut results: Vec<Vec<Val>> = vec![Vec::new(); graph.output.len()];
    for k in 0..length {
        let mut inputs = Vec::new();
        for i in 0..n.inputs.len() {
            inputs.push(match n.val(i) {
                Some(Val::Seq(items)) => {
                    items.get(k).cloned().ok_or_else(|| n.refuse("its sequences have different lengths"))?
                }
                Some(v) => v.clone(),
                None => Val::Absent,
            });
        }
        let (outputs, _) = n.im.body(graph, inputs, Frame::body())?;
        results.iter_mut().zip(outputs).for_each(|(list, v)| list.push(v));
    }
    Ok(results.into_iter().map(Val::Seq).collect())
}

fn concat_from_sequence(n: &mut Node) -> Convert<Vec<Val>> {
    let new = n.flag("new_axis", false)?;
    if let Some(list) = n.list(0) {
        let rank = list.rank(n)? + usize::from(new);
        let axis = n.axis_of(n.int("axis", 0)?, rank)?;
        return list.concatenated(n, axis, new);
    }
    let items = n.seq(0)?;
    let tensors: Vec<Tens> = items.iter().flat_map(Val::tensors).collect();
    let first = *tensors.first().ok_or_else(|| n.refuse("the sequence is empty"))?;
    let rank = n.rank(first.e)? + usize::from(new);
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let all: Vec<_> = tensors.iter().map(|t| t.e).collect();
    let e = if new { n.stack(&all, axis)? } else { n.concat(&all, axis)? };
    Ok(vec![Val::Tensor(Tens { e, elem: first.elem })])
}

fn split_to_sequence(n: &mut Node) -> Convert<Vec<Val>> {
    let t = n.tens(0)?;
    let rank = n.rank(t.e)?;
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let (sizes, keep) = match n.opt(1)? {
        None => (vec![1; n.extent(t.e, axis)?.max(0) as usize], n.flag("keepdims", true)?),
        Some(e) if n.rank(e)? == 0 && (n.value(e).is_none() || n.dims(t.e)?[axis].is_none()) => {
            return Ok(vec![Val::List(lists::split(n, t, axis, e)?)]);
        }
        Some(e) if n.rank(e)? == 1 && n.value(e).is_none() => {
            let parts = super::shape::split_while_running(n, t.e, e, axis)?;
            let items = parts.into_iter().map(|e| Val::Tensor(Tens { e, elem: t.elem }));
            return Ok(vec![Val::Seq(items.collect())]);
        }
        Some(e) => {
            let given = n.known_ints(1)?.unwrap_or_default();
            let sizes = match (n.rank(e)?, given.as_slice()) {
                (0, &[chunk]) if chunk > 0 => {
                    let extent = n.extent(t.e, axis)?;
                    (0..extent).step_by(chunk as usize).map(|b| chunk.min(extent - b)).collect()
                }
                _ => given,
            };
            (sizes, true)
        }
    };
    let mut begin = 0;
    let mut items = Vec::new();
    for size in sizes {
        let e = n.slice(t.e, axis, begin, begin + size)?;
        let e = if keep { e } else { n.squeeze(e, &[axis])? };
        items.push(Val::Tensor(Tens { e, elem: t.elem }));
        begin += size;
    }
    Ok(vec![Val::Seq(items)])
}
