//! Operators as values become functions that call them.

use hashbrown::HashMap;

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Attrs, Copier, Expr, ExprId, Function, Module, Name, OpId, Span, VarId, map_children, reachable},
    ops,
};

/// The module with a function in the place of each operator that is not called right there, `fn (%a, %b) { add(%a, %b) }`
/// for `add`. Calls of variables that are bound to an operator become calls of the operator. Constructors and functions
/// of the module are values as they are.
///
/// Refuses operators whose attributes have no defaults, and attributes that the operator of a call does not have.
pub fn eta_expand(m: &Module) -> Result<Module, Refused> {
    let bound = bound_operators(m);
    let mut out = m.derive();
    let mut copier = Copier::new();
    let mut refused: Vec<Diagnostic> = Vec::new();
    for (name, func) in m.functions() {
        let new = copier.copy_with(m, func, &mut out, |out, from, expr| {
            let span = m.span(from).cloned();
            match expr {
                Expr::Var(v) => bound.get(v).map(|&op| out.add_at(Expr::Op(op), span)),
                Expr::Let { var, body, .. } if bound.contains_key(var) => {
                    Some(if_expanded(out, *body, span, &mut refused).unwrap_or(*body))
                }
                _ => {
                    let mut changed = false;
                    let callee = match expr {
                        Expr::Call { callee, .. } => Some(*callee),
                        _ => None,
                    };
                    let mut new = map_children(expr, |c| {
                        if Some(c) == callee {
                            return c;
                        }
                        let expanded = if_expanded(out, c, m.span(from).cloned(), &mut refused);
                        changed |= expanded.is_some();
                        expanded.unwrap_or(c)
                    });
                    // The attributes that are written at the call of a variable are the operator's.
                    if let (Expr::Call { callee: was, .. }, Expr::Call { callee, attrs, .. }) = (&m[from], &mut new)
                        && let Expr::Op(op) = out[*callee]
                        && !matches!(m[*was], Expr::Op(_))
                    {
                        *attrs = complete(op, attrs, span.clone(), &mut refused);
                        changed = true;
                    }
                    changed.then(|| out.add_at(new, span))
                }
            }
        });
        out.define(name.clone(), new);
    }
    if refused.is_empty() { Ok(out) } else { Err(Refused(refused)) }
}

/// Variables that a `let` binds to an operator, by whatever names.
fn bound_operators(m: &Module) -> HashMap<VarId, OpId> {
    let mut bound: HashMap<VarId, OpId> = HashMap::new();
    let lets = reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter_map(|e| match m[e] {
        Expr::Let { var, value, .. } => Some((var, value)),
        _ => None,
    });
    // A `let` is older than those around it: what it names is bound by a younger one.
    for (var, value) in lets.collect::<Vec<_>>().into_iter().rev() {
        let op = match &m[value] {
            Expr::Op(op) => Some(*op),
            Expr::Var(v) => bound.get(v).copied(),
            _ => None,
        };
        if let Some(op) = op {
            bound.insert(var, op);
        }
    }
    bound
}

fn complete(op: OpId, given: &Attrs, span: Option<Span>, refused: &mut Vec<Diagnostic>) -> Attrs {
    let given: Vec<(Name, crate::ir::AttrValue)> = given.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
    ops::make_attrs(op, &given).unwrap_or_else(|e| {
        refused.push(Diagnostic::new(e.to_string()).at(span));
        Attrs::empty()
    })
}

/// The function that calls the operator that an expression is.
fn if_expanded(out: &mut Module, e: ExprId, span: Option<Span>, refused: &mut Vec<Diagnostic>) -> Option<ExprId> {
    let Expr::Op(op) = out[e] else { return None };
    let attrs = complete(op, &Attrs::empty(), span.clone(), refused);
    let params: Vec<VarId> = op.op().inputs().iter().map(|name| out.new_var(*name, None)).collect();
    let args = params.iter().map(|&p| out.add(Expr::Var(p))).collect();
    let body = out.add_at(Expr::Call { callee: e, args, attrs, type_args: Vec::new() }, span.clone());
    Some(out.add_at(Expr::Func(Box::new(Function::new(params, body, None))), span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer_types, relay::text::parse_module};

    fn values(text: &str) -> usize {
        let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).expect("it parses");
        let m = eta_expand(&m).unwrap_or_else(|e| panic!("{e}"));
        let m = infer_types(m).unwrap_or_else(|e| panic!("{e}")).into_module();
        let ids = reachable(&m, m.functions().map(|(_, f)| f));
        let is_value = |e: ExprId| {
            let mut found = 0;
            crate::ir::children(&m[e], |c| found += matches!(m[c], Expr::Op(_)) as usize);
            found - matches!(&m[e], Expr::Call { callee, .. } if matches!(m[*callee], Expr::Op(_))) as usize
        };
        ids.into_iter().map(is_value).sum()
    }

    #[test]
    fn operators_are_values_no_more() {
        let twice = "def @twice[A](%f: fn (A, A) -> A, %x: A) -> A { %f(%x, %f(%x, %x)) }";
        assert_eq!(values(&format!("{twice} def @main(%x: int32) {{ @twice(add, %x) }}")), 0);
        assert_eq!(
            values(&format!("{twice} def @main(%x: int32) {{ let %f = add; (@twice(%f, %x), @twice(%f, 1f)) }}")),
            0
        );
        assert_eq!(values("def @main(%x: int32) { let %f = add; let %g = %f; (%g(%x, 1), %g(1f, 2f)) }"), 0);
    }
}
