//! If, Loop and Scan.
//!
//! A condition that is known chooses its branch when the model is read, and few iterations of a known number are laid out one after
//! another. Other loops become functions of the program that call themselves.

use super::{
    Row,
    lists::unified,
    repeat::{Captured, Iteration, repeated},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::{Frame, Tens, Val},
            node::Node,
            proto::GraphProto,
        },
    },
    ir::{Expr, ExprId, Type},
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[row("If", branch), row("Loop", iterate), row("Scan", scan)];

/// The most iterations that are laid out one after another.
const MOST_UNROLLED: i64 = 32;

/// The most steps of a scan that are laid out one after another.
const MOST_SCANNED: i64 = 4096;

fn branch(n: &mut Node) -> Convert<Vec<Val>> {
    let cond = n.x(0)?;
    let cond = n.reshape(cond, &[])?;
    if let Some(v) = n.value(cond) {
        let graph = n.graph(if v.get_i64(0) != 0 { "then_branch" } else { "else_branch" })?;
        return Ok(n.im.body(graph, Vec::new(), Frame::body())?.0);
    }
    let (mut then, _) = n.im.body(n.graph("then_branch")?, Vec::new(), Frame::body())?;
    let (mut other, _) = n.im.body(n.graph("else_branch")?, Vec::new(), Frame::body())?;
    for (t, o) in then.iter_mut().zip(&mut other) {
        if let Some((a, b)) = unified(n, t, o)? {
            (*t, *o) = (a, b);
        }
    }
    let (mut ts, mut os): (Vec<Tens>, Vec<Tens>) =
        (then.iter().flat_map(Val::tensors).collect(), other.iter().flat_map(Val::tensors).collect());
    n.ensure(ts.len() == os.len(), || "its branches give values of different structure".into())?;
    let mut types = Vec::new();
    let mut results = Vec::new();
    let (mut chosen_ts, mut chosen_os) = (Vec::new(), Vec::new());
    for (t, o) in ts.iter_mut().zip(&mut os) {
        n.ensure(t.elem == o.elem, || "its branches give tensors of different elements".into())?;
        if let Some(e) = without_axes(n, t.e, o.e) {
            results.push(Some(e));
            continue;
        }
        let (a, b, ty) = n.branches(cond, t.e, o.e)?;
        chosen_ts.push(a);
        chosen_os.push(b);
        types.push(ty);
        results.push(None);
    }
    let chosen = match types.as_slice() {
        [] => Vec::new(),
        [ty] => vec![n.im.b.if_else(cond, chosen_ts[0], chosen_os[0], ty.clone())],
        _ => {
            let (t, o) = (n.im.b.tuple(&chosen_ts), n.im.b.tuple(&chosen_os));
            let count = types.len();
            let all = n.im.b.if_else(cond, t, o, Type::tuple(types));
            (0..count).map(|i| n.im.b.field(all, i)).collect()
        }
    };
    let mut chosen = chosen.into_iter();
    let mut next = results.into_iter().map(|r| r.or_else(|| chosen.next()));
    Ok(then.iter().map(|v| v.rebuilt(&mut |t| Tens { e: next.next().flatten().unwrap_or(t.e), ..t })).collect())
}

/// Of a tensor and the same without some axes, the latter: exporters choose it where these axes turn out to have extent 1, and what
/// follows takes a number of axes that is known. Where an extent is another one, the program stops when it takes the axis off.
fn without_axes(n: &Node, then: ExprId, otherwise: ExprId) -> Option<ExprId> {
    let m = n.im.b.module();
    let squeezes = |a: ExprId, b: ExprId| match &m[a] {
        Expr::Call { callee, args, .. } => {
            args.as_slice() == [b] && matches!(m[*callee], Expr::Op(op) if op.op().name() == "squeeze")
        }
        _ => false,
    };
    [(then, otherwise), (otherwise, then)].into_iter().find(|&(a, b)| squeezes(a, b)).map(|p| p.0)
}

/// Tensors that iterations collect, side by side.
fn collected(n: &mut Node, parts: &[Tens], axis: usize) -> Convert<Val> {
    let all: Vec<ExprId> = parts.iter().map(|t| t.e).collect();
    let e = n.stack(&all, axis)?;
    Ok(Val::Tensor(Tens { e, elem: parts[0].elem }))
}

fn tensor_of(n: &Node, v: &Val) -> Convert<Tens> {
    match v {
        Val::Tensor(t) => Ok(*t),
        _ => Err(n.refuse("a tensor was expected, not a sequence or an absent value")),
    }
}

fn iterate(n: &mut Node) -> Convert<Vec<Val>> {
    let body = n.graph("body")?;
    let (trips, cond) = (n.opt(0)?, n.opt(1)?);
    let trips = trips.map(|t| n.reshape(t, &[])).transpose()?;
    let cond = cond.map(|c| n.reshape(c, &[])).transpose()?;
    let carried: Vec<Val> = (2..n.inputs.len()).map(|i| n.inputs[i].clone().unwrap_or(Val::Absent)).collect();
    let known = |n: &mut Node, e: Option<ExprId>| e.map(|e| n.value(e).map(|v| v.get_i64(0)));
    let (count, first) = (known(n, trips), known(n, cond));
    if let (Some(count), Some(true)) = (count.flatten(), first.map_or(Some(true), |c| c.map(|c| c != 0)))
        && count <= MOST_UNROLLED
        && let Some(done) = unrolled(n, body, count, carried.clone())?
    {
        return Ok(done);
    }
    while_running(n, trips, cond, carried)
}

/// Iterations one after another, as long as it is known that there is another one.
fn unrolled(n: &mut Node, body: &'_ GraphProto, count: i64, carried: Vec<Val>) -> Convert<Option<Vec<Val>>> {
    let states = carried.len();
    let mut state = carried;
    let mut collect: Vec<Vec<Tens>> = vec![Vec::new(); body.output.len().saturating_sub(1 + states)];
    for i in 0..count.max(0) {
        let (at, go) = (n.im.b.scalar(DType::I64, i as f64), n.im.b.scalar(DType::Bool, 1.0));
        let mut inputs = vec![n.out(at)?, n.out(go)?];
        inputs.extend(state);
        let graph = n.graph("body")?;
        let (outputs, _) = n.im.body(graph, inputs, Frame::body())?;
        let again = tensor_of(n, &outputs[0])?;
        state = outputs[1..=states].to_vec();
        for (list, v) in collect.iter_mut().zip(&outputs[1 + states..]) {
            list.push(tensor_of(n, v)?);
        }
        match n.value(again.e).map(|v| v.get_i64(0) != 0) {
            Some(true) => {}
            Some(false) => break,
            None => return Ok(None),
        }
    }
    if collect.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    for list in collect {
        state.push(collected(n, &list, 0)?);
    }
    Ok(Some(state))
}

/// A loop whose number of iterations is known only while running, or is large.
fn while_running(n: &mut Node, trips: Option<ExprId>, cond: Option<ExprId>, carried: Vec<Val>) -> Convert<Vec<Val>> {
    let states = carried.len();
    let (mut state, collected) = repeated(n, trips, cond, carried, &mut |n, i, go, carried| {
        let mut inputs = vec![n.out(i)?, n.out(go)?];
        inputs.extend(carried);
        let graph = n.graph("body")?;
        let (outputs, frame) = n.im.body(graph, inputs, Frame::function())?;
        n.ensure(outputs.len() > states, || format!("its body has {} outputs", outputs.len()))?;
        Ok(Iteration {
            again: tensor_of(n, &outputs[0])?.e,
            state: outputs[1..=states].to_vec(),
            collect: outputs[1 + states..].iter().map(|v| tensor_of(n, v)).collect::<Convert<_>>()?,
            captures: frame.into_captures(),
        })
    })?;
    state.extend(collected.into_iter().map(Val::Tensor));
    Ok(state)
}

fn scan(n: &mut Node) -> Convert<Vec<Val>> {
    let body = n.graph("body")?;
    let count = usize::try_from(n.int("num_scan_inputs", 0)?).unwrap_or(0);
    if n.version < 9 {
        return scan_of_batches(n, body, count);
    }
    let all = (0..n.inputs.len()).map(|i| n.tens(i)).collect::<Convert<Vec<_>>>()?;
    n.ensure(count <= all.len() && count > 0, || format!("it has {} inputs, {count} of which it scans", all.len()))?;
    let outputs = scanned(n, body, all, count)?;
    outputs.into_iter().map(|t| Ok(Val::Tensor(t))).collect()
}

fn scanned(n: &mut Node, body: &GraphProto, all: Vec<Tens>, count: usize) -> Convert<Vec<Tens>> {
    let states = all.len() - count;
    let (mut state, scans) = (all[..states].to_vec(), &all[states..]);
    let outs = body.output.len().saturating_sub(states);
    let list = |name: &str, len: usize| -> Convert<Vec<i64>> { Ok(n.ints(name)?.unwrap_or_else(|| vec![0; len])) };
    let (axes, back) = (list("scan_input_axes", count)?, list("scan_input_directions", count)?);
    let (out_axes, out_back) = (list("scan_output_axes", outs)?, list("scan_output_directions", outs)?);
    let fits = axes.len() == count && back.len() == count && out_axes.len() == outs && out_back.len() == outs;
    n.ensure(fits, || "its lists of axes and directions are as long as what they are for".into())?;
    let mut at = Vec::new();
    let mut lengths = Vec::new();
    for (t, &axis) in scans.iter().zip(&axes) {
        let axis = n.axis_of(axis, n.rank(t.e)?)?;
        lengths.push(n.dims(t.e)?[axis]);
        at.push(axis);
    }
    let known: Vec<i64> = lengths.iter().copied().flatten().collect();
    n.ensure(known.windows(2).all(|w| w[0] == w[1]), || "what it scans has different lengths".into())?;
    let Some(length) = known.first().copied().filter(|l| known.len() == count && (1..=MOST_SCANNED).contains(l)) else {
        let (mut state, collected) = scanned_while_running(n, state, scans, &at, &back)?;
        for (k, t) in collected.into_iter().enumerate() {
            let rank = n.rank(t.e)?;
            let axis = n.axis_of(out_axes[k], rank)?;
            let mut e = t.e;
            if out_back[k] == 1 {
                e = n.op("reverse", &[e], &[("axis", 0.into())])?;
            }
            let mut order: Vec<usize> = (1..rank).collect();
            order.insert(axis, 0);
            state.push(Tens { e: n.transpose(e, &order)?, ..t });
        }
        return Ok(state);
    };
    let mut collect: Vec<Vec<Tens>> = vec![Vec::new(); outs];
    for i in 0..length {
        let mut inputs: Vec<Val> = state.iter().map(|&t| Val::Tensor(t)).collect();
        for (k, t) in scans.iter().enumerate() {
            let place = if back[k] == 1 { length - 1 - i } else { i };
            let e = n.index(t.e, at[k], place)?;
            inputs.push(Val::Tensor(Tens { e, ..*t }));
        }
        let graph = n.graph("body")?;
        let (outputs, _) = n.im.body(graph, inputs, Frame::body())?;
        let outputs = outputs.iter().map(|v| tensor_of(n, v)).collect::<Convert<Vec<_>>>()?;
        state = outputs[..states].to_vec();
        collect.iter_mut().zip(&outputs[states..]).for_each(|(l, &t)| l.push(t));
    }
    for (k, mut list) in collect.into_iter().enumerate() {
        if out_back[k] == 1 {
            list.reverse();
        }
        let axis = n.axis_of(out_axes[k], n.rank(list[0].e)? + 1)?;
        let v = collected(n, &list, axis)?;
        state.push(tensor_of(n, &v)?);
    }
    Ok(state)
}

/// The states and what is collected, along the first axis, of a scan over a length that is known only while running, or is large.
fn scanned_while_running(
    n: &mut Node,
    state: Vec<Tens>,
    scans: &[Tens],
    at: &[usize],
    back: &[i64],
) -> Convert<(Vec<Tens>, Vec<Tens>)> {
    let length = n.size(scans[0].e, at[0], DType::I64)?;
    let states = state.len();
    let carried = state.into_iter().map(Val::Tensor).collect();
    let (state, collected) = repeated(n, Some(length), None, carried, &mut |n, i, go, carried| {
        let mut outside = Captured::default();
        let mut inputs = carried;
        for (k, t) in scans.iter().enumerate() {
            let all = outside.take(n, t.e);
            let place = match back[k] {
                1 => {
                    let length = n.size(all, at[k], DType::I64)?;
                    let last = n.with("subtract", length, 1.0)?;
                    n.sub(last, i)?
                }
                _ => i,
            };
            inputs.push(Val::Tensor(Tens { e: n.take(all, place, at[k])?, ..*t }));
        }
        let graph = n.graph("body")?;
        let (outputs, frame) = n.im.body(graph, inputs, Frame::function())?;
        let collect = outputs[states..].iter().map(|v| tensor_of(n, v)).collect::<Convert<_>>()?;
        let captures = outside.into_captures().into_iter().chain(frame.into_captures()).collect();
        Ok(Iteration { again: go, state: outputs[..states].to_vec(), collect, captures })
    })?;
    let state = state.iter().map(|v| tensor_of(n, v)).collect::<Convert<_>>()?;
    Ok((state, collected))
}

/// Before version 9, a scan ran over each element of a batch.
fn scan_of_batches(n: &mut Node, body: &GraphProto, count: usize) -> Convert<Vec<Val>> {
    n.ensure(!n.has(0), || "lengths of sequences are not supported".into())?;
    let all = (1..n.inputs.len()).map(|i| n.tens(i)).collect::<Convert<Vec<_>>>()?;
    n.ensure(count <= all.len() && count > 0, || format!("it has {} inputs, {count} of which it scans", all.len()))?;
    let batch = n.extent(all[0].e, 0)?;
    n.ensure((1..=1024).contains(&batch), || format!("batches of {batch} are not supported"))?;
    let mut results: Vec<Vec<Tens>> = Vec::new();
    for b in 0..batch {
        let mut one = Vec::new();
        for t in &all {
            one.push(Tens { e: n.index(t.e, 0, b)?, ..*t });
        }
        results.push(scanned(n, body, one, count)?);
    }
    let outputs = results[0].len();
    (0..outputs)
        .map(|k| {
            let parts: Vec<Tens> = results.iter().map(|r| r[k]).collect();
            collected(n, &parts, 0)
        })
        .collect()
}
