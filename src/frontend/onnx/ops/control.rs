//! If, Loop and Scan.
//!
//! A condition that is known chooses its branch when the model is read, and few iterations of a known number are laid out one after
//! another. Other loops become functions of the program that call themselves.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::{Capture, Frame, Tens, Val},
            kit::join,
            node::Node,
            proto::GraphProto,
        },
    },
    ir::{Dim, Expr, ExprId, FuncType, Function, TensorType, Type, VarId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[row("If", branch), row("Loop", iterate), row("Scan", scan)];

/// The most iterations that are laid out one after another.
const MOST_UNROLLED: i64 = 32;

fn branch(n: &mut Node) -> Convert<Vec<Val>> {
    let cond = n.x(0)?;
    let cond = n.reshape(cond, &[])?;
    if let Some(v) = n.value(cond) {
        let graph = n.graph(if v.get_i64(0) != 0 { "then_branch" } else { "else_branch" })?;
        return Ok(n.im.body(graph, Vec::new(), Frame::body())?.0);
    }
    let (then, _) = n.im.body(n.graph("then_branch")?, Vec::new(), Frame::body())?;
    let (other, _) = n.im.body(n.graph("else_branch")?, Vec::new(), Frame::body())?;
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
    recursive(n, body, trips, cond, carried)
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

/// A parameter of a function of the program.
fn parameter(n: &mut Node, name: &str, ty: &Type) -> (VarId, ExprId) {
    n.im.b.var(name, ty.clone())
}

fn recursive(
    n: &mut Node,
    body: &GraphProto,
    trips: Option<ExprId>,
    cond: Option<ExprId>,
    carried: Vec<Val>,
) -> Convert<Vec<Val>> {
    let states = carried.len();
    let outer: Vec<Tens> = carried.iter().flat_map(Val::tensors).collect();
    let scans = body.output.len().saturating_sub(1 + states);
    let mut types: Vec<Type> = outer.iter().map(|t| n.im.b.ty(t.e).clone()).collect();
    let scalar = |d: DType| Type::tensor(&[], d);
    // Types of what is carried are widened until the body keeps them.
    for _ in 0..8 {
        let (i, c) = (parameter(n, "i", &scalar(DType::I64)), parameter(n, "go", &scalar(DType::Bool)));
        let vars: Vec<(VarId, ExprId)> = types.iter().map(|t| parameter(n, "state", t)).collect();
        let mut next = vars.iter();
        let mut inputs = vec![n.out(i.1)?, n.out(c.1)?];
        inputs.extend(carried.iter().map(|v| v.rebuilt(&mut |t| Tens { e: next.next().map_or(t.e, |v| v.1), ..t })));
        let graph = n.graph("body")?;
        let (outputs, frame) = n.im.body(graph, inputs, Frame::function())?;
        let state: Vec<Tens> = outputs[1..=states].iter().flat_map(Val::tensors).collect();
        n.ensure(state.len() == types.len(), || {
            "its body changes how long a sequence is, and how often it runs is known only while running".into()
        })?;
        let mut kept = true;
        for (ty, s) in types.iter_mut().zip(&state) {
            let both = join(ty, n.im.b.ty(s.e));
            let both = both.ok_or_else(|| n.refuse("its body changes the rank or elements of what it carries"))?;
            kept &= both == *ty;
            *ty = both;
        }
        if !kept {
            continue;
        }
        let again = tensor_of(n, &outputs[0])?;
        let again = n.reshape(again.e, &[])?;
        let collect = outputs[1 + states..].iter().map(|v| tensor_of(n, v)).collect::<Convert<Vec<_>>>()?;
        n.ensure(collect.len() == scans, || "its body has outputs of different number".into())?;
        let parts = Parts { i, c, vars, again, state, collect, captures: frame.into_captures() };
        let results = function(n, parts, trips, cond, &outer, &types)?;
        let mut next = results[..types.len()].iter();
        let mut all: Vec<Val> =
            carried.iter().map(|v| v.rebuilt(&mut |t| Tens { e: *next.next().unwrap_or(&t.e), ..t })).collect();
        let elems = outputs[1 + states..].iter().map(|v| tensor_of(n, v)).collect::<Convert<Vec<_>>>()?;
        all.extend(results[types.len()..].iter().zip(elems).map(|(&e, t)| Val::Tensor(Tens { e, elem: t.elem })));
        return Ok(all);
    }
    Err(n.refuse("the types of what it carries do not settle"))
}

/// What a loop's function is made of.
struct Parts {
    i: (VarId, ExprId),
    c: (VarId, ExprId),
    vars: Vec<(VarId, ExprId)>,
    again: ExprId,
    state: Vec<Tens>,
    collect: Vec<Tens>,
    captures: Vec<Capture>,
}

/// Defines `loop(i, go, trips, states…, collected…, captured…)`, which gives states and what was collected, and calls it.
fn function(
    n: &mut Node,
    p: Parts,
    trips: Option<ExprId>,
    cond: Option<ExprId>,
    outer: &[Tens],
    types: &[Type],
) -> Convert<Vec<ExprId>> {
    let mut lists = Vec::new();
    let mut first = Vec::new();
    for t in &p.collect {
        let ty = n.ty(t.e)?;
        let shape = [Dim::Any].into_iter().chain(ty.shape.iter().copied());
        lists.push(parameter(n, "collected", &TensorType::of(shape.collect::<Vec<_>>(), ty.dtype).into()));
        let extents = ty.shape.iter().map(|d| d.known().unwrap_or(0) as usize);
        let none: Vec<usize> = [0].into_iter().chain(extents).collect();
        first.push(n.constant(Tensor::zeros(ty.dtype, &none)));
    }
    let scalar = Type::tensor(&[], DType::I64);
    let limit = parameter(n, "trips", &scalar);
    let params: Vec<(VarId, ExprId)> = [p.i, p.c, limit]
        .into_iter()
        .chain(p.vars.iter().copied())
        .chain(lists.iter().copied())
        .chain(p.captures.iter().map(|c| (c.var, c.inner)))
        .collect();
    let results: Vec<Type> = types.iter().cloned().chain(lists.iter().map(|l| n.im.b.ty(l.1).clone())).collect();
    let ret = Type::tuple(results);
    let fn_type = FuncType {
        type_params: Vec::new(),
        params: params.iter().map(|v| n.im.b.ty(v.1).clone()).collect(),
        ret: ret.clone(),
    };
    let name = format!("loop_{}", n.im.loops);
    n.im.loops += 1;
    let itself = n.im.b.add(Expr::Global(name.as_str().into()), Type::Func(fn_type.into()));
    let next = n.with("add", p.i.1, 1.0)?;
    let mut args = vec![next, p.again, limit.1];
    args.extend(p.state.iter().map(|t| t.e));
    for (list, t) in lists.iter().zip(&p.collect) {
        let one = n.expand(t.e, 0, 1)?;
        let more = match n.ty(t.e)?.known_shape() {
            Some(_) => n.concat(&[list.1, one], 0)?,
            // The first iteration shows the extents.
            None => {
                let first = n.with("equal", p.i.1, 0.0)?;
                let both = n.concat(&[list.1, one], 0)?;
                n.either(first, one, both)?
            }
        };
        args.push(more);
    }
    args.extend(p.captures.iter().map(|c| c.inner));
    let again = n.im.b.call(itself, &args, ret.clone());
    let done: Vec<ExprId> = p.vars.iter().chain(&lists).map(|v| v.1).collect();
    let done = n.im.b.tuple(&done);
    let within = n.bin("less", p.i.1, limit.1)?;
    let go = n.bin("logical_and", within, p.c.1)?;
    let whole = n.im.b.if_else(go, again, done, ret.clone());
    let func = Function::new(params.iter().map(|v| v.0).collect(), whole, Some(ret.clone()));
    let func = n.im.b.module_mut().add(Expr::Func(Box::new(func)));
    n.im.b.module_mut().define(name.as_str(), func);
    let start = n.im.b.scalar(DType::I64, 0.0);
    let cond = cond.unwrap_or_else(|| n.im.b.scalar(DType::Bool, 1.0));
    let trips = match trips {
        Some(t) => n.cast(t, DType::I64)?,
        None => n.constant(Tensor::scalar(i64::MAX)),
    };
    let mut args = vec![start, cond, trips];
    args.extend(outer.iter().map(|t| t.e));
    args.extend(first);
    args.extend(p.captures.iter().map(|c| c.outer.e));
    let all = n.im.b.call(itself, &args, ret);
    Ok((0..types.len() + lists.len()).map(|i| n.im.b.field(all, i)).collect())
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
    let mut length = None;
    for (t, &axis) in scans.iter().zip(&axes) {
        let axis = n.axis_of(axis, n.rank(t.e)?)?;
        let extent = n.extent(t.e, axis)?;
        n.ensure(*length.get_or_insert(extent) == extent, || "what it scans has different lengths".into())?;
        at.push(axis);
    }
    let length = length.unwrap_or(0);
    n.ensure((1..=4096).contains(&length), || format!("scans of length {length} are not supported"))?;
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
