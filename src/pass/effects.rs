//! Which expressions do more than give a value.

use crate::ir::{Expr, ExprId, Module, children};

/// The expressions whose evaluation makes, reads or writes a reference, or may: a call of a function that is not known counts
/// where the module has references at all. Making a closure has no effect, whatever its body does.
#[derive(Debug)]
pub(super) struct Effects(Vec<bool>);

impl Effects {
    pub(super) fn new(m: &Module) -> Effects {
        let mut has = vec![false; m.len()];
        if !has_references(m) {
            return Effects(has);
        }
        for e in m.ids() {
            let own = match &m[e] {
                Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..) => true,
                Expr::Call { callee, .. } => !matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)),
                Expr::Func(_) => continue,
                _ => false,
            };
            let mut any = own;
            children(&m[e], |c| any |= has[c.index()]);
            has[e.index()] = any;
        }
        Effects(has)
    }

    /// Whether evaluating the expression has an effect.
    pub(super) fn has(&self, e: ExprId) -> bool {
        self.0[e.index()]
    }
}

/// Whether a module deals in references.
pub(super) fn has_references(m: &Module) -> bool {
    m.ids().any(|e| matches!(m[e], Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..)))
}
