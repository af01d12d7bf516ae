//! Extents that are computed become extents that are known.

#[cfg(feature = "llvm")]
use hashbrown::{HashMap, HashSet};

use super::{
    computed_extents::follows_from_types,
    fold_constant::{Folded, fold_calls},
};
use crate::{
    diag::{Diagnostic, Refused},
    infer::{TypedModule, infer_types},
    ir::{Copier, Expr, ExprId, Module, Type, reachable},
    tensor::{Tensor, Value},
};
#[cfg(feature = "llvm")]
use crate::{
    interp,
    ir::{Function, children, reachable_outside},
};

/// The module with calls whose extents follow from constants (`dyn.reshape` and its like) turned into calls whose extents
/// follow from types, and what reads shapes alone turned into constants where these are known; again and again, for
/// one makes the other known. What is computed from unknown extents and follows from types at every size is replaced,
/// too ([`follows_from_types`]).
///
/// Refuses a module whose types are wrong, and constants that make no legal call.
pub fn dynamic_to_static(m: Module) -> Result<Module, Refused> {
    let mut m = m;
    // Other modules keep their constants as they are written: rules may look for them.
    while has_computed_extents(&m) {
        let typed = infer_types(fold_calls(m, Folded::Narrow)?)?;
        match step(&typed)? {
            Some(next) => m = next,
            None => match follows_from_types(&typed) {
                Some(next) => m = next,
                None => return Ok(typed.into_module()),
            },
        }
    }
    Ok(m)
}

/// The module with what reads shapes alone turned into constants where these are known.
pub(super) fn known_shapes(m: Module) -> Result<Module, Refused> {
    let reads = |e: ExprId| m.op_call(e).is_some_and(|(op, ..)| op.op().reads_types_only());
    if !reachable(&m, m.functions().map(|(_, f)| f)).into_iter().any(reads) {
        return Ok(m);
    }
    let typed = infer_types(m)?;
    let m = typed.module();
    let (mut out, mut copier) = (m.derive(), Copier::new());
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, _| {
            let (op, ..) = m.op_call(from)?;
            let value = op.op().reads_types_only().then(|| shape_value(&typed, &|e| typed.ty(e), from))??;
            Some(out.add_at(Expr::Constant(value), m.span(from).cloned()))
        });
        out.define(name.clone(), new);
    }
    Ok(out)
}

fn has_computed_extents(m: &Module) -> bool {
    reachable(m, m.functions().map(|(_, f)| f))
        .into_iter()
        .any(|e| m.op_call(e).is_some_and(|(op, _, attrs)| !op.op().decided_by(attrs).is_empty()))
}

/// The module with calls whose extents follow from constants turned into calls whose extents follow from types: one round,
/// without folding anything.
#[cfg(feature = "llvm")]
pub(crate) fn static_calls(typed: TypedModule) -> Result<TypedModule, Refused> {
    match step(&typed)? {
        Some(m) => infer_types(m),
        None => Ok(typed),
    }
}

/// The module of a program whose inputs have known extents and whose operators stand in primitive functions, with constants in the place
/// of what decides extents, where that follows from extents alone; again and again, for one makes the other known.
///
/// Refuses a module whose types are wrong, and values that make no legal call.
#[cfg(feature = "llvm")]
pub(crate) fn resolve_extents(m: Module, entry: &str) -> Result<TypedModule, Refused> {
    let mut typed = infer_types(m)?;
    while let Some(next) = resolve_once(&typed, entry)? {
        typed = static_calls(infer_types(next)?)?;
    }
    Ok(typed)
}

/// What decides extents, and all that it is made of, in a body whose operators stand in primitive functions.
#[cfg(feature = "llvm")]
pub(crate) fn deciding(m: &Module, body: ExprId) -> HashSet<ExprId> {
    let order = reachable_outside(m, [body], |e| matches!(e, Expr::Func(_)));
    let mut deciding: HashSet<ExprId> = HashSet::new();
    for &e in order.iter().rev() {
        match &m[e] {
            Expr::Call { callee, args, .. } => {
                let decisive = primitive(m, *callee).map_or_else(Vec::new, |f| decisive(m, f));
                let decides = |i: usize| deciding.contains(&e) || decisive.contains(&i);
                let args: Vec<ExprId> = args.iter().enumerate().filter(|(i, _)| decides(*i)).map(|a| *a.1).collect();
                deciding.extend(args);
            }
            other if deciding.contains(&e) => children(other, |c| _ = deciding.insert(c)),
            _ => {}
        }
    }
    deciding
}

/// The primitive function that stands there, where one does that is not for another compiler.
#[cfg(feature = "llvm")]
pub(crate) fn primitive(m: &Module, callee: ExprId) -> Option<&Function> {
    match &m[callee] {
        Expr::Func(f) if f.is_primitive() && f.compiler().is_none() => Some(&**f),
        _ => None,
    }
}

/// One round; `None` where nothing is left to do.
#[cfg(feature = "llvm")]
fn resolve_once(typed: &TypedModule, entry: &str) -> Result<Option<Module>, Refused> {
    let m = typed.module();
    let body = typed.entry(entry)?.body;
    let deciding = deciding(m, body);
    let (mut out, mut copier, mut changed) = (m.derive(), Copier::new(), false);
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| {
            let Expr::Call { args, attrs, type_args, .. } = expr else { return None };
            let Expr::Call { callee, .. } = &m[from] else { return None };
            let f = primitive(m, *callee)?;
            let span = || m.span(from).cloned();
            let given: Vec<Option<Tensor>> = args
                .iter()
                .map(|&a| match &out[a] {
                    Expr::Constant(t) => Some(t.clone()),
                    _ => None,
                })
                .collect();
            let value = match &m[f.body] {
                Expr::Constant(t) => Some(t.clone()),
                _ if deciding.contains(&from) => evaluated(m, f, &|e| typed.ty(e), &given),
                _ => None,
            };
            if let Some(value) = value {
                changed = true;
                return Some(out.add_at(Expr::Constant(value), span()));
            }
            let known: Vec<usize> = decisive(m, f).into_iter().filter(|&i| given[i].is_some()).collect();
            if known.is_empty() {
                return None;
            }
            changed = true;
            let mut inner = Copier::new();
            let body = inner.copy_with(m, f.body, out, |out, _, e| match e {
                Expr::Var(v) => {
                    let i = f.params.iter().position(|p| p == v).filter(|i| known.contains(i))?;
                    Some(out.add(Expr::Constant(given[i].clone()?)))
                }
                _ => None,
            });
            let left = |i: &usize| !known.contains(i);
            let params = (0..f.params.len()).filter(left).map(|i| f.params[i]).collect();
            let func = Function { params, body, ret: None, ..f.clone() };
            let callee = out.add_at(Expr::Func(Box::new(func)), m.span(*callee).cloned());
            let args = (0..args.len()).filter(left).map(|i| args[i]).collect();
            let call = Expr::Call { callee, args, attrs: attrs.clone(), type_args: type_args.clone() };
            Some(out.add_at(call, span()))
        });
        out.define(name.clone(), new);
    }
    Ok(changed.then_some(out))
}

/// The places of a function's parameters whose values decide extents within it.
#[cfg(feature = "llvm")]
pub(crate) fn decisive(m: &Module, f: &Function) -> Vec<usize> {
    let mut found = Vec::new();
    for e in reachable(m, [f.body]) {
        let Some((op, args, attrs)) = m.op_call(e) else { continue };
        let param = |&i: &usize| match &m[args[i]] {
            Expr::Var(v) => f.params.iter().position(|p| p == v),
            _ => None,
        };
        found.extend(op.op().decided_by(attrs).iter().filter_map(param));
    }
    found
}

/// The result of a function of operators, where it is a tensor and follows from those arguments that are given and from extents, which
/// the types of the expressions within say.
#[cfg(feature = "llvm")]
pub(crate) fn evaluated<'t>(
    m: &Module,
    f: &Function,
    ty: &dyn Fn(ExprId) -> &'t Type,
    given: &[Option<Tensor>],
) -> Option<Tensor> {
    let mut values: HashMap<ExprId, Value> = HashMap::new();
    for e in reachable(m, [f.body]) {
        let value = match &m[e] {
            Expr::Constant(t) => Some(t.clone().into()),
            Expr::Var(v) => {
                let at = f.params.iter().position(|p| p == v)?;
                given[at].clone().map(Value::from)
            }
            Expr::Tuple(fields) => {
                fields.iter().map(|f| values.get(f).cloned()).collect::<Option<_>>().map(Value::Tuple)
            }
            Expr::Proj(tuple, i) => match values.get(tuple) {
                Some(Value::Tuple(fields)) => fields.get(*i).cloned(),
                _ => None,
            },
            _ => match m.op_call(e) {
                Some((op, ..)) if op.op().reads_types_only() => shape_value(m, ty, e).map(Value::from),
                Some((op, args, attrs)) => {
                    let args: Option<Vec<Value>> = args.iter().map(|a| values.get(a).cloned()).collect();
                    // What is not legal is reported where it runs.
                    args.and_then(|args| interp::eval_op(op, attrs, &args).ok())
                }
                None => None,
            },
        };
        values.extend(value.map(|v| (e, v)));
    }
    match values.remove(&f.body) {
        Some(Value::Tensor(t)) => Some(t),
        _ => None,
    }
}

/// One round; `None` where nothing is left to do.
fn step(typed: &TypedModule) -> Result<Option<Module>, Refused> {
    let m = typed.module();
    let mut out = m.derive();
    let mut copier = Copier::new();
    let (mut changed, mut refused) = (false, Vec::new());
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| {
            let Expr::Call { callee, args, attrs, type_args } = expr else { return None };
            let Expr::Op(op) = out[*callee] else { return None };
            let span = || m.span(from).cloned();
            if op.op().reads_types_only() {
                let value = shape_value(m, &|e| typed.ty(e), from)?;
                changed = true;
                return Some(out.add_at(Expr::Constant(value), span()));
            }
            let decisive = op.op().decided_by(attrs);
            if decisive.is_empty() {
                return None;
            }
            let constant = |&i: &usize| match &out[args[i]] {
                Expr::Constant(t) => Some(t),
                _ => None,
            };
            let values: Vec<&Tensor> = decisive.iter().map(constant).collect::<Option<_>>()?;
            if op.op().runs_as_is() {
                let values: Vec<Value> = values.into_iter().cloned().map(Value::from).collect();
                return match op.op().eval(attrs, &values) {
                    Ok(value) => {
                        changed = true;
                        Some(out.add_at(Expr::Constant(value.tensor().clone()), span()))
                    }
                    Err(e) => {
                        refused.push(Diagnostic::new(format!("`{}`: {e}", op.op().name())).at(span()));
                        None
                    }
                };
            }
            match op.op().to_static(attrs, &values) {
                Ok(s) => {
                    changed = true;
                    let callee = out.add_at(Expr::Op(s.op), span());
                    let args = s.args.iter().map(|&i| args[i]).collect();
                    let call = Expr::Call { callee, args, attrs: s.attrs, type_args: type_args.clone() };
                    Some(out.add_at(call, span()))
                }
                Err(e) => {
                    refused.push(Diagnostic::new(format!("`{}`: {e}", op.op().name())).at(span()));
                    None
                }
            }
        });
        out.define(name.clone(), new);
    }
    match (refused.is_empty(), changed) {
        (false, _) => Err(Refused(refused)),
        (true, true) => Ok(Some(out)),
        (true, false) => Ok(None),
    }
}

/// The value of a call that reads nothing but the types of its arguments, where these are known.
fn shape_value<'t>(m: &Module, ty: &dyn Fn(ExprId) -> &'t Type, call: ExprId) -> Option<Tensor> {
    let (op, args, attrs) = m.op_call(call)?;
    let extents: Vec<Vec<i64>> = args.iter().map(|&a| ty(a).as_tensor()?.known_shape()).collect::<Option<_>>()?;
    op.op().of_extents(attrs, &extents)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::relay::text::{parse_module, print_module};

    /// The program after the pass, as text.
    pub(in crate::pass) fn after(text: &str) -> String {
        let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).expect("it parses");
        print_module(&dynamic_to_static(m).unwrap_or_else(|e| panic!("{e}")))
    }

    #[test]
    fn shapes_of_known_extents_are_constants() {
        let text = after(
            "def @main(%x: Tensor[(2, 6), float32], %y: Tensor[(3, 4), float32]) {
                add(dyn.reshape(%x, shape_of(%y, dtype=\"int64\")), %y) }",
        );
        assert!(text.contains("reshape(%x, newshape=[3, 4]") && !text.contains("dyn."), "{text}");
    }

    #[test]
    fn shapes_of_large_tensors_are_constants() {
        let text = "#[version = \"0.0.5\"]
            def @main(%x: Tensor[(1000000, 100000), float32]) {
                (shape_of(%x, dtype=\"int64\"), ndarray_size(%x, dtype=\"int64\")) }";
        let m = parse_module("test", text).expect("it parses");
        let text = print_module(&known_shapes(m).unwrap_or_else(|e| panic!("{e}")));
        assert!(!text.contains("shape_of") && !text.contains("ndarray_size"), "{text}");
    }

    #[test]
    fn what_is_unknown_stays() {
        let text = after("def @main(%x: Tensor[(2, 6), float32], %s: Tensor[(2), int64]) { dyn.reshape(%x, %s) }");
        assert!(text.contains("dyn.reshape"), "{text}");
    }

    #[test]
    fn arange_of_constants_is_a_constant() {
        let text = after("def @main() { arange(0, multiply(2, 5), 3, dtype=\"int32\") }");
        assert!(!text.contains("arange"), "{text}");
    }
}
