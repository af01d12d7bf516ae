//! Control flow between subgraphs, and variables.

use super::super::{
    graph::{Import, Val, joined, tuple_type},
    schema::{Graph, Operator},
};
use crate::{
    frontend::{Builder, Convert},
    ir::{Expr, ExprId, TensorType, Type, VarId},
    tensor::DType,
};

/// What a rule for control flow is given: the arguments, among them handles and those that are left out.
type Args<'v> = &'v [Option<Val>];

/// A subgraph's number in an option.
fn subgraph(im: &Import, op: &Operator, slot: u16) -> Convert<usize> {
    let given = op.options.and_then(|o| o.int(slot)).unwrap_or(0);
    usize::try_from(given).map_err(|_| im.b.refuse(format!("{}: there is no subgraph {given}", op.name)))
}

/// Arguments, none of which may be left out.
fn present(im: &Import, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let all = args
        .iter()
        .enumerate()
        .map(|(i, v)| v.clone().ok_or_else(|| im.b.refuse(format!("{}: input {i} is missing", op.name))));
    all.collect()
}

/// Plain tensors.
fn plain(im: &Import, op: &Operator, values: Vec<Val>) -> Convert<Vec<ExprId>> {
    let all = values.into_iter().enumerate().map(|(i, v)| match v {
        Val::One(e) => Ok(e),
        _ => Err(im.b.refuse(format!("{}: value {i} is no tensor of plain numbers", op.name))),
    });
    all.collect()
}

/// A single condition, which may have axes of extent 1.
fn condition(im: &mut Import, e: ExprId) -> Convert {
    let t = im.b.tensor(e)?;
    if t.dtype != DType::Bool {
        let message = format!("a condition should be bool, but is {t}");
        return Err(im.b.refuse(message));
    }
    match t.rank() {
        0 => Ok(e),
        _ => im.b.op("reshape", &[e], &[("newshape", Vec::<i64>::new().into())]),
    }
}

/// Several expressions as one, and back.
fn pack(b: &mut Builder, es: &[ExprId]) -> ExprId {
    match es {
        [one] => *one,
        several => b.tuple(several),
    }
}

fn unpack(im: &mut Import, e: ExprId, count: usize) -> Vec<Val> {
    match count {
        1 => vec![Val::One(e)],
        _ => (0..count).map(|i| Val::One(im.b.field(e, i))).collect(),
    }
}

/// Reads a subgraph whose code may run any number of times.
fn conditional(im: &mut Import, op: &Operator, graph: usize, args: Vec<Val>) -> Convert<Vec<ExprId>> {
    let before = std::mem::replace(&mut im.conditional, true);
    let results = im.run(graph, args);
    im.conditional = before;
    plain(im, op, results?)
}

/// IF.
pub(in crate::frontend::tflite) fn branch(im: &mut Import, _: &Graph, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let mut args = present(im, op, args)?;
    if args.is_empty() {
        return Err(im.b.refuse("IF: the condition is missing"));
    }
    let first = vec![args.remove(0)];
    let cond = plain(im, op, first)?[0];
    let (then, otherwise) = (subgraph(im, op, 0)?, subgraph(im, op, 1)?);
    if let Some(known) = im.b.value(cond) {
        // Decided by constants alone.
        return im.run(if known.len() == 1 && known.get_i64(0) != 0 { then } else { otherwise }, args);
    }
    let cond = condition(im, cond)?;
    let then = conditional(im, op, then, args.clone())?;
    let otherwise = conditional(im, op, otherwise, args)?;
    if then.len() != otherwise.len() {
        return Err(im.b.refuse("IF: both branches should have as many results"));
    }
    let types = then.iter().zip(&otherwise).map(|(&a, &b)| im.join(a, b)).collect::<Convert<Vec<TensorType>>>()?;
    let count = then.len();
    let (then, otherwise) = (pack(&mut im.b, &then), pack(&mut im.b, &otherwise));
    let e = im.b.if_else(cond, then, otherwise, tuple_type(&types));
    Ok(unpack(im, e, count))
}

/// A loop: the values `params` become `next` as long as `go`, from `start` on. A tuple of them where there are several.
pub(super) fn looped(
    b: &mut Builder,
    params: &[(VarId, ExprId)],
    go: ExprId,
    next: &[ExprId],
    start: &[ExprId],
    types: &[TensorType],
) -> ExprId {
    let ty = tuple_type(types);
    let func = crate::ir::FuncType {
        type_params: Vec::new(),
        params: types.iter().map(|t| Type::from(t.clone())).collect(),
        ret: ty.clone(),
    };
    let (again, callee) = b.var("loop", Type::Func(func.into()));
    let round = b.call(callee, next, ty.clone());
    let done: Vec<ExprId> = params.iter().map(|p| p.1).collect();
    let done = pack(b, &done);
    let choice = b.if_else(go, round, done, ty.clone());
    let function = b.func(params.iter().map(|p| p.0).collect(), choice, ty.clone());
    let first = b.call(callee, start, ty.clone());
    b.add(Expr::Let { var: again, value: function, body: first }, ty)
}

/// So often the types of a loop's values are widened until a round does not change them.
const ROUNDS: usize = 4;

/// WHILE: a function that calls itself.
pub(in crate::frontend::tflite) fn repeat(im: &mut Import, _: &Graph, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let args = present(im, op, args)?;
    let start = plain(im, op, args)?;
    let (cond, body) = (subgraph(im, op, 0)?, subgraph(im, op, 1)?);
    let mut types = Vec::new();
    for &e in &start {
        types.push(im.b.tensor(e)?.clone());
    }
    for _ in 0..ROUNDS {
        let params: Vec<_> =
            types.iter().enumerate().map(|(i, t)| im.b.var(&format!("v{i}"), Type::from(t.clone()))).collect();
        let values: Vec<Val> = params.iter().map(|p| Val::One(p.1)).collect();
        let go = conditional(im, op, cond, values.clone())?;
        let [go] = go[..] else { return Err(im.b.refuse("WHILE: the condition should have one result")) };
        let go = condition(im, go)?;
        let next = conditional(im, op, body, values)?;
        if next.len() != types.len() {
            return Err(im.b.refuse("WHILE: the body should have as many results as inputs"));
        }
        let mut wider = Vec::new();
        for (t, &e) in types.iter().zip(&next) {
            let found = im.b.tensor(e)?;
            let both = joined(t, found);
            wider.push(both.ok_or_else(|| im.b.refuse(format!("WHILE: {t} becomes {}", im.b.ty(e))))?);
        }
        if wider != types {
            types = wider;
            continue;
        }
        let e = looped(&mut im.b, &params, go, &next, &start, &types);
        return Ok(unpack(im, e, start.len()));
    }
    Err(im.b.refuse("WHILE: the types of the loop's values do not come to a fixed point"))
}

/// CALL_ONCE: what sets up variables, which each run starts with.
pub(in crate::frontend::tflite) fn once(im: &mut Import, _: &Graph, op: &Operator, _: Args) -> Convert<Vec<Val>> {
    let graph = subgraph(im, op, 0)?;
    im.run(graph, Vec::new())?;
    Ok(Vec::new())
}

/// CALL.
pub(in crate::frontend::tflite) fn call(im: &mut Import, _: &Graph, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let (graph, args) = (subgraph(im, op, 0)?, present(im, op, args)?);
    im.run(graph, args)
}

/// STABLEHLO_COMPOSITE: what it is made of.
pub(in crate::frontend::tflite) fn composite(
    im: &mut Import,
    _: &Graph,
    op: &Operator,
    args: Args,
) -> Convert<Vec<Val>> {
    let (graph, args) = (subgraph(im, op, 1)?, present(im, op, args)?);
    im.run(graph, args)
}

/// VAR_HANDLE.
pub(in crate::frontend::tflite) fn var_handle(_: &mut Import, _: &Graph, op: &Operator, _: Args) -> Convert<Vec<Val>> {
    let text = |slot| op.options.and_then(|o| o.text(slot)).unwrap_or_default();
    Ok(vec![Val::Handle(format!("{}/{}", text(0), text(1)))])
}

/// The variable that an argument is a handle of.
fn handle(im: &Import, op: &Operator, args: Args) -> Convert<String> {
    match args.first() {
        Some(Some(Val::Handle(name))) => Ok(name.clone()),
        _ => Err(im.b.refuse(format!("{}: input 0 should be a handle of a variable", op.name))),
    }
}

/// READ_VARIABLE.
pub(in crate::frontend::tflite) fn read(im: &mut Import, _: &Graph, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let name = handle(im, op, args)?;
    match im.variables.get(&name) {
        Some(&e) => Ok(vec![Val::One(e)]),
        None => Err(im.b.refuse(format!("READ_VARIABLE: `{name}` is read before anything is assigned to it"))),
    }
}

/// ASSIGN_VARIABLE.
pub(in crate::frontend::tflite) fn assign(im: &mut Import, _: &Graph, op: &Operator, args: Args) -> Convert<Vec<Val>> {
    let name = handle(im, op, args)?;
    if im.conditional {
        let message =
            format!("ASSIGN_VARIABLE: `{name}` is assigned to within a branch or a loop, which is not supported");
        return Err(im.b.refuse(message));
    }
    match args.get(1) {
        Some(Some(Val::One(e))) => {
            im.variables.insert(name, *e);
            Ok(Vec::new())
        }
        _ => Err(im.b.refuse(format!("ASSIGN_VARIABLE: there is no value for `{name}`"))),
    }
}
