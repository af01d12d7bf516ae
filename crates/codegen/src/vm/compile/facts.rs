//! What is known of a module's expressions before any function is compiled.

use hashbrown::HashSet;

use crate::ir::{Expr, ExprId, Function, Module, VarId, children};

/// What evaluating expressions means.
pub(super) struct Facts {
    effect: Vec<bool>,
    cheap: Vec<bool>,
    used: HashSet<VarId>,
}

impl Facts {
    pub(super) fn new(m: &Module) -> Facts {
        let has_refs = m.ids().any(|e| matches!(m[e], Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..)));
        let mut effect = vec![false; m.len()];
        let mut cheap = vec![false; m.len()];
        let mut used = HashSet::new();
        for e in m.ids() {
            let expr = &m[e];
            let (mut any_effect, mut all_cheap) = (false, true);
            children(expr, |c| {
                any_effect |= effect[c.index()];
                all_cheap &= cheap[c.index()];
            });
            (effect[e.index()], cheap[e.index()]) = match expr {
                Expr::Var(v) => {
                    used.insert(*v);
                    (false, true)
                }
                Expr::Constant(_) | Expr::Global(_) | Expr::Constructor(_) => (false, true),
                // Making a closure has no effect, whatever its body does.
                Expr::Func(_) => (false, false),
                Expr::Tuple(_) | Expr::Proj(..) => (any_effect, all_cheap),
                Expr::Call { callee, .. } => match &m[*callee] {
                    Expr::Constructor(_) => (any_effect, all_cheap),
                    _ => (any_effect || has_refs && kernel(m, *callee).is_none(), false),
                },
                Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..) => (true, false),
                _ => (any_effect, false),
            };
        }
        Facts { effect, cheap, used }
    }

    /// Whether references are made, read or written, or may be.
    pub(super) fn has_effect(&self, e: ExprId) -> bool {
        self.effect[e.index()]
    }

    /// Whether evaluating it too early costs nothing worth mentioning and can't fail: tuples, fields and values of data
    /// types that are made of variables.
    pub(super) fn is_cheap(&self, e: ExprId) -> bool {
        self.cheap[e.index()]
    }

    /// Whether anything uses the variable.
    pub(super) fn is_used(&self, v: VarId) -> bool {
        self.used.contains(&v)
    }
}

/// Whether it is one kernel: the machine calls it and does not look into it.
pub(super) fn is_kernel(f: &Function) -> bool {
    f.is_primitive() || f.compiler().is_some()
}

/// The function that an expression is or names, where that is a kernel.
pub(super) fn kernel(m: &Module, e: ExprId) -> Option<ExprId> {
    let func = match &m[e] {
        Expr::Func(_) => e,
        Expr::Global(name) => m.function_id(name)?,
        _ => return None,
    };
    is_kernel(m.func(func)).then_some(func)
}
