//! Fusion undone: calls of primitive functions become the operators that they are made of.

use hashbrown::{HashMap, HashSet};

use crate::ir::{Copier, Expr, ExprId, Module, children, reachable};

/// The module with the bodies of primitive functions in the places of their calls. Functions for external compilers stay, and so do
/// primitive functions where they are values rather than called.
pub fn defuse(m: &Module) -> Module {
    let mut out = m.derive();
    for (name, id) in m.functions() {
        let new = Defuse { m, done: HashMap::new() }.run(id, &mut out);
        out.define(name.clone(), new);
    }
    out
}

struct Defuse<'a> {
    m: &'a Module,
    done: HashMap<ExprId, ExprId>,
}

impl Defuse<'_> {
    /// The primitive function that is called.
    fn primitive(&self, callee: ExprId) -> Option<ExprId> {
        let func = match &self.m[callee] {
            Expr::Func(_) => callee,
            Expr::Global(name) => self.m.function_id(name)?,
            _ => return None,
        };
        let f = self.m.func(func);
        (f.is_primitive() && f.compiler().is_none()).then_some(func)
    }

    /// Copies what `root` is made of; functions that are only called become nothing by themselves.
    fn run(mut self, root: ExprId, out: &mut Module) -> ExprId {
        for id in self.needed(root) {
            let new = match &self.m[id] {
                Expr::Call { callee, args, .. } => match self.primitive(*callee) {
                    Some(func) => self.body(func, args, out),
                    None => self.copy(id, out),
                },
                _ => self.copy(id, out),
            };
            self.done.insert(id, new);
        }
        self.done[&root]
    }

    /// What is to be copied, children first: callees that dissolve are left out, with their bodies.
    fn needed(&self, root: ExprId) -> Vec<ExprId> {
        let mut ids = vec![root];
        let mut seen: HashSet<ExprId> = HashSet::from_iter([root]);
        let mut next = 0;
        while let Some(&e) = ids.get(next) {
            next += 1;
            let dissolved = match &self.m[e] {
                Expr::Call { callee, .. } => self.primitive(*callee).map(|_| *callee),
                _ => None,
            };
            children(&self.m[e], |c| {
                if Some(c) != dissolved && seen.insert(c) {
                    ids.push(c);
                }
            });
        }
        ids.sort_unstable();
        ids
    }

    fn copy(&self, id: ExprId, out: &mut Module) -> ExprId {
        let mut copier = Copier::new();
        children(&self.m[id], |c| copier.replace(c, self.done[&c]));
        copier.copy(self.m, id, out)
    }

    /// A primitive function's body over these arguments.
    fn body(&self, func: ExprId, args: &[ExprId], out: &mut Module) -> ExprId {
        let f = self.m.func(func);
        let mut copier = Copier::new();
        for e in reachable(self.m, [f.body]) {
            if let Expr::Var(v) = self.m[e]
                && let Some(at) = f.params.iter().position(|p| *p == v)
            {
                copier.replace(e, self.done[&args[at]]);
            }
        }
        copier.copy(self.m, f.body, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer_types, ops::kernel::LARGEST_KERNEL, pass::fuse, relay::text};

    #[test]
    fn what_was_fused_comes_back() {
        let text = r#"#[version = "0.0.5"]
            def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) {
                let %f = fn (%a: Tensor[(2, 3), float32], Compiler="c") -> Tensor[(2, 3), float32] { exp(%a) };
                (transpose(exp(add(%x, %y))), %f(nn.relu(%x)))
            }"#;
        let m = text::parse_module("t", text).unwrap_or_else(|e| panic!("{e}"));
        let typed = infer_types(m).unwrap_or_else(|e| panic!("{e}"));
        let fused = fuse(&typed, LARGEST_KERNEL);
        let primitives = |m: &Module| text::print_module(m).matches("Primitive=1").count();
        assert_eq!(primitives(&fused), 2);
        let back = infer_types(defuse(&fused)).unwrap_or_else(|e| panic!("{e}")).into_module();
        assert_eq!(primitives(&back), 0);
        assert_eq!(text::print_module(&back), text::print_module(typed.module()));
    }
}
