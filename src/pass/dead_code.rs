//! What nothing needs goes.

use hashbrown::HashSet;

use super::effects::Effects;
use crate::ir::{Copier, Expr, ExprId, Module, Name, VarId, children, reachable};

/// The module without bindings whose variables nothing uses (unless their values have effects) and, where it has a
/// `@main`, without functions that `@main` does not reach.
pub fn dead_code(m: &Module) -> Module {
    let effects = Effects::new(m);
    let live = live_vars(m, &effects);
    let mut out = m.derive();
    let mut copier = Copier::new();
    for name in needed_functions(m) {
        let id = m.function_id(&name).expect("it is one of the module's");
        let new = copier.copy_with(m, id, &mut out, |_, from, expr| match (&m[from], expr) {
            (Expr::Let { var, value, .. }, Expr::Let { body, .. }) if !live.contains(var) && !effects.has(*value) => {
                Some(*body)
            }
            _ => None,
        });
        out.define(name, new);
    }
    out
}

/// Variables that something needed uses.
fn live_vars(m: &Module, effects: &Effects) -> HashSet<VarId> {
    let mut live = HashSet::new();
    let mut values: hashbrown::HashMap<VarId, ExprId> = hashbrown::HashMap::new();
    let mut seen: HashSet<ExprId> = HashSet::new();
    let mut todo: Vec<ExprId> = m.functions().map(|(_, f)| f).collect();
    while let Some(e) = todo.pop() {
        if !seen.insert(e) {
            continue;
        }
        match &m[e] {
            Expr::Let { var, value, body } => {
                todo.push(*body);
                if live.contains(var) || effects.has(*value) {
                    todo.push(*value);
                } else {
                    values.insert(*var, *value);
                }
            }
            Expr::Var(v) => {
                if live.insert(*v)
                    && let Some(value) = values.remove(v)
                {
                    todo.push(value);
                }
            }
            expr => children(expr, |c| todo.push(c)),
        }
    }
    live
}

/// The functions that `@main` reaches, or all where there is none; in the module's order.
pub(super) fn needed_functions(m: &Module) -> Vec<Name> {
    let Some(main) = m.function_id("main") else { return m.functions().map(|(n, _)| n.clone()).collect() };
    let mut needed: HashSet<Name> = HashSet::from(["main".into()]);
    let mut todo = vec![main];
    while let Some(f) = todo.pop() {
        for e in reachable(m, [f]) {
            if let Expr::Global(name) = &m[e]
                && needed.insert(name.clone())
            {
                todo.extend(m.function_id(name));
            }
        }
    }
    m.functions().map(|(n, _)| n.clone()).filter(|n| needed.contains(n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::text::parse_module;

    fn lets(text: &str) -> usize {
        let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).expect("it parses");
        let m = dead_code(&m);
        let ids = reachable(&m, m.functions().map(|(_, f)| f));
        ids.into_iter().filter(|&e| matches!(m[e], Expr::Let { .. })).count()
    }

    #[test]
    fn unused_bindings_go_with_what_only_they_use() {
        assert_eq!(lets("def @main() { let %a = 1; let %b = add(%a, 2); let %c = 3; %c }"), 1);
        assert_eq!(lets("def @main() { let %f = fn (%x: int32) { %f(%x) }; 1 }"), 0);
    }

    #[test]
    fn effects_stay() {
        assert_eq!(lets("def @main() { let %r = ref(1); let %u = ref_write(%r, 2); let %dead = 5; 1 }"), 2);
    }

    #[test]
    fn unused_functions_go() {
        let text = "#[version = \"0.0.5\"] def @f() { @g() } def @g() { 1 } def @main() { @g() }";
        let m = dead_code(&parse_module("test", text).expect("it parses"));
        assert_eq!(m.functions().map(|(n, _)| n.to_string()).collect::<Vec<_>>(), ["g", "main"]);
    }
}
