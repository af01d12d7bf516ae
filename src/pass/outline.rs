//! Calls moved into a function of their own.

use hashbrown::{HashMap, HashSet};

use crate::{
    infer::TypedModule,
    ir::{Attrs, Copier, Expr, ExprId, Function, Module, Type, children},
    ops::kernel::INLINE_CONSTANT,
};

/// The call of a new function that computes `results` (a tuple of them, where they are several) from what `members` read.
///
/// `members` are calls of operators; `done` says what became of everything older that they read. The function is made of the
/// members, the tuples and projections between them, and small constants; all else becomes an argument.
pub(crate) fn outline(
    typed: &TypedModule,
    members: &[ExprId],
    results: &[ExprId],
    attrs: Attrs,
    done: &HashMap<ExprId, ExprId>,
    out: &mut Module,
) -> ExprId {
    let m = typed.module();
    let inside: HashSet<ExprId> = members.iter().copied().collect();
    let is_local = |e: ExprId| match &m[e] {
        Expr::Op(_) | Expr::Tuple(_) => true,
        Expr::Constant(t) => t.len() <= INLINE_CONSTANT,
        Expr::Proj(t, _) => inside.contains(t),
        _ => inside.contains(&e),
    };
    // Arguments are evaluated in the order in which the members would have asked for them: they may have effects.
    let (mut local, mut outer) = (Vec::new(), Vec::new());
    let mut seen: HashSet<ExprId> = HashSet::new();
    let mut stack: Vec<ExprId> = results.iter().rev().copied().collect();
    while let Some(e) = stack.pop() {
        if !seen.insert(e) {
            continue;
        }
        if is_local(e) {
            local.push(e);
            let parts = stack.len();
            children(&m[e], |c| stack.push(c));
            stack[parts..].reverse();
        } else {
            outer.push(e);
        }
    }
    let (mut params, mut args) = (Vec::new(), Vec::new());
    let mut copier = Copier::new();
    for e in outer {
        let var = out.new_var(format!("p{}", params.len()), Some(typed.ty(e).clone()));
        params.push(var);
        args.push(done[&e]);
        let used = out.add(Expr::Var(var));
        copier.replace(e, used);
    }
    local.sort_unstable();
    for e in local {
        copier.copy(m, e, out);
    }
    let copied: Vec<ExprId> = results.iter().map(|r| copier.get(*r).expect("results are members")).collect();
    let (body, ret) = match (&copied[..], results) {
        ([one], [result]) => (*one, typed.ty(*result).clone()),
        _ => {
            let types: Vec<Type> = results.iter().map(|r| typed.ty(*r).clone()).collect();
            (out.add(Expr::Tuple(copied)), Type::tuple(types))
        }
    };
    let span = m.span(results[results.len() - 1]).cloned();
    let func = Function { type_params: vec![], params, ret: Some(ret), body, attrs };
    let callee = out.add_at(Expr::Func(Box::new(func)), span.clone());
    out.add_at(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] }, span)
}
