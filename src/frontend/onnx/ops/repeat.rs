//! Loops of the program: functions that call themselves.

use super::lists::unified;
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::{Capture, Tens, Val},
            kit::join,
            node::Node,
        },
    },
    ir::{Dim, Expr, ExprId, FuncType, Function, TensorType, Type, VarId},
    tensor::{DType, Tensor},
};

/// What a loop's body gives.
pub(super) struct Iteration {
    /// Whether there is another iteration: a `bool` of one element.
    pub again: ExprId,
    /// What is carried into the next one: as much as was carried into this one.
    pub state: Vec<Val>,
    /// What is collected of each iteration, along a new first axis.
    pub collect: Vec<Tens>,
    /// What the body takes from outside.
    pub captures: Vec<Capture>,
}

/// What a body that is not the model's own takes from outside.
#[derive(Default)]
pub(super) struct Captured(Vec<Capture>);

impl Captured {
    /// A tensor from outside, within the body.
    pub(super) fn take(&mut self, n: &mut Node, e: ExprId) -> ExprId {
        n.im.captured(&mut self.0, "outer", e)
    }

    /// All that was taken.
    pub(super) fn into_captures(self) -> Vec<Capture> {
        self.0
    }
}

/// What converts an iteration, given its number, a condition that holds, and what is carried.
pub(super) type Body<'b> = dyn FnMut(&mut Node, ExprId, ExprId, Vec<Val>) -> Convert<Iteration> + 'b;

/// A parameter of a function of the program.
fn parameter(n: &mut Node, name: &str, ty: &Type) -> (VarId, ExprId) {
    n.im.b.var(name, ty.clone())
}

/// Runs a body at most `trips` times, and as long as a condition holds. Gives what is carried out of the last iteration, and what was
/// collected. The body may be converted several times: types of what is carried are widened until it keeps them.
pub(super) fn repeated(
    n: &mut Node,
    trips: Option<ExprId>,
    cond: Option<ExprId>,
    mut carried: Vec<Val>,
    body: &mut Body,
) -> Convert<(Vec<Val>, Vec<Tens>)> {
    let mut outer: Vec<Tens> = carried.iter().flat_map(Val::tensors).collect();
    let mut types: Vec<Type> = outer.iter().map(|t| n.im.b.ty(t.e).clone()).collect();
    let scalar = |d: DType| Type::tensor(&[], d);
    for _ in 0..8 {
        let (i, c) = (parameter(n, "i", &scalar(DType::I64)), parameter(n, "go", &scalar(DType::Bool)));
        let vars: Vec<(VarId, ExprId)> = types.iter().map(|t| parameter(n, "state", t)).collect();
        let mut next = vars.iter();
        let inputs = carried.iter().map(|v| v.rebuilt(&mut |t| Tens { e: next.next().map_or(t.e, |v| v.1), ..t }));
        let inputs = inputs.collect();
        let mut done = body(n, i.1, c.1, inputs)?;
        // Sequences that grow, and values that come to be there, are carried in another form.
        let mut same = true;
        for (start, state) in carried.iter_mut().zip(&mut done.state) {
            if let Some((a, b)) = unified(n, start, state)? {
                same &= matches!((&*start, &a), (Val::List(_), Val::List(_)) | (Val::Maybe { .. }, Val::Maybe { .. }));
                (*start, *state) = (a, b);
            }
        }
        if !same {
            outer = carried.iter().flat_map(Val::tensors).collect();
            types = outer.iter().map(|t| n.im.b.ty(t.e).clone()).collect();
            continue;
        }
        let state: Vec<Tens> = done.state.iter().flat_map(Val::tensors).collect();
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
        let again = n.reshape(done.again, &[])?;
        let parts = Parts { i, c, vars, again, state, collect: done.collect, captures: done.captures };
        let elems: Vec<_> = parts.collect.iter().map(|t| t.elem).collect();
        let results = function(n, parts, trips, cond, &outer, &types)?;
        let (states, lists) = results.split_at(types.len());
        let mut next = states.iter();
        let rebuilt = carried.iter().map(|v| v.rebuilt(&mut |t| Tens { e: *next.next().unwrap_or(&t.e), ..t }));
        let rebuilt = rebuilt.collect();
        let collected = lists.iter().zip(elems).map(|(&e, elem)| Tens { e, elem });
        return Ok((rebuilt, collected.collect()));
    }
    Err(n.refuse("the types of what it carries do not come to a fixed point"))
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
    args.extend(p.captures.iter().map(|c| c.outer));
    let all = n.im.b.call(itself, &args, ret);
    Ok((0..types.len() + lists.len()).map(|i| n.im.b.field(all, i)).collect())
}
