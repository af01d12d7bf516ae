//! Bindings of plain values become sharing, so that passes over operators see the operators behind variables.

use hashbrown::{HashMap, HashSet};

use super::{effects::Effects, regions::Scopes};
use crate::ir::{Copier, Expr, ExprId, Module, VarId, children, reachable};

/// The module with the uses of `let` variables replaced by their values, where that changes neither what is computed nor how
/// often: values without effects and without calls of unknown functions, which no inner function uses. (An inner function would compute
/// them at each call.)
pub(super) fn share_bindings(m: Module) -> Module {
    let plain = plain_bindings(&m);
    if plain.is_empty() {
        return m;
    }
    let mut out = m.derive();
    let mut copier = Copier::new();
    // Values are older than their uses, so that they are copied before.
    let mut values: HashMap<ExprId, ExprId> = HashMap::new();
    for (name, f) in m.functions() {
        let mut todo = reachable(&m, [f]);
        todo.retain(|&e| copier.get(e).is_none());
        for e in todo {
            match &m[e] {
                Expr::Var(v) if plain.contains_key(v) => copier.replace(e, values[&plain[v]]),
                Expr::Let { var, body, .. } if plain.contains_key(var) => {
                    let body = copier.get(*body).expect("children come first");
                    copier.replace(e, body);
                }
                _ => drop(copier.copy(&m, e, &mut out)),
            }
            values.insert(e, copier.get(e).expect("just copied"));
        }
        out.define(name.clone(), copier.get(f).expect("just copied"));
    }
    out
}

/// The bindings that may become sharing, and their values.
fn plain_bindings(m: &Module) -> HashMap<VarId, ExprId> {
    let lets = |e: &ExprId| matches!(m[*e], Expr::Let { .. });
    if !m.ids().any(|e| lets(&e)) {
        return HashMap::new();
    }
    let (scopes, effects) = (Scopes::new(m), Effects::new(m));
    let mut calm: HashSet<ExprId> = HashSet::new();
    for &e in scopes.order() {
        let mut all = match &m[e] {
            Expr::Func(_) | Expr::Global(_) => true,
            Expr::Call { callee, .. } => {
                matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)) || super::regions::is_kept(&m[*callee])
            }
            _ => !effects.has(e),
        };
        if !matches!(m[e], Expr::Func(_)) {
            children(&m[e], |c| all &= calm.contains(&c));
        }
        if all {
            calm.insert(e);
        }
    }
    let mut plain: HashMap<VarId, ExprId> = HashMap::new();
    let mut bound_in: HashMap<VarId, usize> = HashMap::new();
    for &e in scopes.order() {
        if let Expr::Let { var, value, .. } = &m[e]
            && calm.contains(value)
            && !effects.has(*value)
            && !matches!(m[*value], Expr::Func(_))
        {
            plain.insert(*var, *value);
            bound_in.insert(*var, scopes.function(scopes.place(e)));
        }
    }
    for &e in scopes.order() {
        let user = scopes.function(scopes.place(e));
        let within = matches!(m[e], Expr::Func(_));
        children(&m[e], |c| {
            let Expr::Var(v) = m[c] else { return };
            // Of a function whose body is the variable, the place is where the function is made.
            if plain.get(&v).is_some_and(|&value| within || value > c || bound_in[&v] != user) {
                plain.remove(&v);
            }
        });
    }
    plain
}
