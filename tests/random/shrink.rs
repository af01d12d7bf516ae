//! Smaller programs with the same fault.
//!
//! A candidate replaces an expression by a parameter that is given the value that the expression had, or by one of its own
//! parts, or the whole body by a part of it.

use std::collections::HashMap;

use resat::{
    infer::{TypedModule, infer_types},
    interp,
    ir::{Copier, Expr, ExprId, Function, Module, Type, VarId, children, free_vars, reachable},
    tensor::Value,
};

use crate::make::{Case, type_of};

/// The smallest program found for which `fails` still holds, within so many trials.
pub(crate) fn shrink(case: Case, mut trials: usize, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut best = compact(&case).unwrap_or(case);
    loop {
        let mut better = None;
        for candidate in candidates(&best) {
            if trials == 0 {
                return best;
            }
            let Some(candidate) = compact(&candidate) else { continue };
            if size(&candidate) >= size(&best) {
                continue;
            }
            trials -= 1;
            if fails(&candidate) {
                better = Some(candidate);
                break;
            }
        }
        match better {
            Some(b) => best = b,
            None => return best,
        }
    }
}

/// Calls count more than leaves.
fn size(case: &Case) -> usize {
    let ids = reachable(&case.m, case.m.functions().map(|(_, f)| f));
    let weight = |e: &Expr| match e {
        Expr::Var(_) | Expr::Op(_) | Expr::Constructor(_) | Expr::Global(_) => 1,
        Expr::Constant(_) => 2,
        _ => 10,
    };
    ids.into_iter().map(|e| weight(&case.m[e])).sum::<usize>() + case.inputs.len()
}

/// Without what nothing uses: parameters, functions, expressions.
fn compact(case: &Case) -> Option<Case> {
    let main = case.m.function("main")?.clone();
    let used = free_vars(&case.m, main.body);
    let keep: Vec<bool> = main.params.iter().map(|p| used.contains(p)).collect();
    let kept = |i: &usize| keep[*i];
    let params: Vec<VarId> = (0..keep.len()).filter(kept).map(|i| main.params[i]).collect();
    let inputs = (0..keep.len()).filter(kept).map(|i| case.inputs[i].clone()).collect();
    // Functions that `@main` reaches.
    let mut names = vec!["main".to_owned()];
    let mut at = 0;
    while at < names.len() {
        let root = if at == 0 { main.body } else { case.m.function_id(&names[at])? };
        for e in reachable(&case.m, [root]) {
            if let Expr::Global(name) = &case.m[e]
                && !names.iter().any(|n| n == name.as_str())
            {
                names.push(name.to_string());
            }
        }
        at += 1;
    }
    let (mut to, mut copier) = (case.m.derive(), Copier::new());
    for (name, f) in case.m.functions().filter(|(n, _)| names[1..].iter().any(|m| *m == n.as_str())) {
        let new = copier.copy(&case.m, f, &mut to);
        to.define(name.clone(), new);
    }
    let body = copier.copy(&case.m, main.body, &mut to);
    let f = to.add(Expr::Func(Box::new(Function { params, body, ..main })));
    to.define("main", f);
    Some(Case { m: to, inputs })
}

/// The values that calls of operators had first.
fn values(case: &Case) -> HashMap<ExprId, Value> {
    let mut seen = HashMap::new();
    if let Ok(mut interp) = interp::Interpreter::new(&case.m) {
        interp.observe(|e, _, _, out| {
            seen.entry(e).or_insert_with(|| out.clone());
        });
        // What was seen before an error counts, too.
        drop(interp.call("main", case.inputs.iter().cloned().map(interp::Value::from).collect()));
    }
    seen
}

fn candidates(case: &Case) -> Vec<Case> {
    let Ok(typed) = infer_types(case.m.clone()) else { return Vec::new() };
    let m = &case.m;
    let Some(main) = m.function("main") else { return Vec::new() };
    let mut ids = reachable(m, [main.body]);
    ids.retain(|&e| !matches!(m[e], Expr::Op(_) | Expr::Constructor(_)));
    let mut found = Vec::new();
    // Parts instead of the whole, small ones first.
    let plain = |e: &ExprId| *e != main.body && typed.ty(*e).flatten().is_some_and(|t| !t.is_empty());
    for &e in ids.iter().filter(|e| plain(e)) {
        if free_vars(m, e).iter().all(|v| main.params.contains(v)) && !matches!(m[e], Expr::Var(_) | Expr::Constant(_))
        {
            found.push(with_body(case, e));
        }
    }
    // Tuples of results without one of them.
    if let Expr::Tuple(items) = &m[main.body] {
        for k in 0..items.len() {
            let mut rest = items.clone();
            rest.remove(k);
            let mut c = case.clone();
            let body = c.m.add(Expr::Tuple(rest));
            found.push(with_body(&c, body));
        }
    }
    // Parameters instead of calls, late ones first: they stand for most.
    let seen = values(case);
    for &e in ids.iter().rev() {
        if let Some(v) = seen.get(&e).filter(|v| type_of(v) == *typed.ty(e)) {
            found.push(parameter(case, e, v.clone()));
        }
    }
    // Parts of the same type instead of what they are parts of, in all functions.
    let all = reachable(m, m.functions().map(|(_, f)| f));
    for &e in all.iter().rev() {
        for part in parts(&typed, e) {
            found.push(replaced(case, e, part));
        }
    }
    found
}

/// Parts that could stand for the whole: of the same type, and meaningful outside of it.
fn parts(m: &TypedModule, e: ExprId) -> Vec<ExprId> {
    if matches!(m[e], Expr::Func(_) | Expr::Op(_) | Expr::Constructor(_)) || matches!(m.ty(e), Type::Hole(_)) {
        return Vec::new();
    }
    let outer = free_vars(m, e);
    let mut parts = Vec::new();
    children(&m[e], |c| parts.push(c));
    parts.retain(|&c| m.ty(c) == m.ty(e) && free_vars(m, c).iter().all(|v| outer.contains(v)));
    parts
}

fn with_body(case: &Case, body: ExprId) -> Case {
    let mut m = case.m.clone();
    let main = Function { body, ret: None, ..m.function("main").expect("it is there").clone() };
    let f = m.add(Expr::Func(Box::new(main)));
    m.define("main", f);
    Case { m, inputs: case.inputs.clone() }
}

fn parameter(case: &Case, e: ExprId, value: Value) -> Case {
    let (mut to, mut copier, mut inputs) = (case.m.derive(), Copier::new(), case.inputs.clone());
    let mut main = case.m.function("main").expect("it is there").clone();
    let v = to.new_var(format!("q{}", case.m.var_count()), Some(type_of(&value)));
    let var = to.add(Expr::Var(v));
    copier.replace(e, var);
    main.params.push(v);
    inputs.push(value);
    let body = copier.copy(&case.m, main.body, &mut to);
    others(&case.m, &mut to);
    let f = to.add(Expr::Func(Box::new(Function { body, ..main })));
    to.define("main", f);
    Case { m: to, inputs }
}

/// Copies all functions but `@main`.
fn others(from: &Module, to: &mut Module) {
    let mut copier = Copier::new();
    for (name, f) in from.functions().filter(|(n, _)| n.as_str() != "main") {
        let new = copier.copy(from, f, to);
        to.define(name.clone(), new);
    }
}

fn replaced(case: &Case, e: ExprId, part: ExprId) -> Case {
    let (mut to, mut copier) = (case.m.derive(), Copier::new());
    let new = copier.copy(&case.m, part, &mut to);
    copier.replace(e, new);
    for (name, f) in case.m.functions() {
        let new = copier.copy(&case.m, f, &mut to);
        to.define(name.clone(), new);
    }
    Case { m: to, inputs: case.inputs.clone() }
}
