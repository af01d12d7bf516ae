//! Fusion undone: calls of primitive functions become the operators that they are made of.

use hashbrown::{HashMap, HashSet};

use super::{
    effects::has_references,
    regions::{interior, is_kept},
};
use crate::ir::{Copier, Expr, ExprId, Module, children, reachable};

/// The module with the bodies of functions that compute by operators alone in the places of their calls: primitive ones, and others
/// that are called right where they stand. Functions for external compilers stay, and so does what is a value rather than called.
/// Where an argument has effects, the call stays, as they would be in another place.
pub fn defuse(m: &Module) -> Module {
    let mut out = m.derive();
    let effects = effects(m);
    for (name, id) in m.functions() {
        let new = Defuse { m, effects: &effects, done: HashMap::new() }.run(id, &mut out);
        out.define(name.clone(), new);
    }
    out
}

/// The module with the bodies of composites that no compiler has taken in the places of their calls. Those within functions for external
/// compilers stay.
pub fn dissolve_composites(m: Module) -> Module {
    let is_composite = |e: ExprId| matches!(&m[e], Expr::Func(f) if f.attrs.get("Composite").is_some());
    if !interior(&m).into_iter().any(is_composite) {
        return m;
    }
    let mut out = m.derive();
    let mut done: HashMap<ExprId, ExprId> = HashMap::new();
    for e in interior(&m) {
        let new = match &m[e] {
            Expr::Call { callee, args, .. } if is_composite(*callee) => {
                let f = m.func(*callee);
                let mut copier = Copier::new();
                for v in reachable(&m, [f.body]) {
                    if let Expr::Var(var) = m[v]
                        && let Some(at) = f.params.iter().position(|p| *p == var)
                    {
                        copier.replace(v, done[&args[at]]);
                    }
                }
                copier.copy(&m, f.body, &mut out)
            }
            other if is_kept(other) => Copier::new().copy(&m, e, &mut out),
            other => {
                let mut copier = Copier::new();
                children(other, |c| copier.replace(c, done[&c]));
                copier.copy(&m, e, &mut out)
            }
        };
        done.insert(e, new);
    }
    for (name, f) in m.functions() {
        out.define(name.clone(), done[&f]);
    }
    out
}

/// The function that is called, where it computes by operators alone.
fn dissolving(m: &Module, callee: ExprId) -> Option<ExprId> {
    let func = match &m[callee] {
        Expr::Func(_) => callee,
        Expr::Global(name) => m.function_id(name).filter(|&f| m.func(f).is_primitive())?,
        _ => return None,
    };
    let f = m.func(func);
    let is_plain = |e: &ExprId| match &m[*e] {
        Expr::Var(v) => f.params.contains(v),
        Expr::Call { .. } => m.op_call(*e).is_some(),
        Expr::Op(_) | Expr::Constant(_) | Expr::Tuple(_) | Expr::Proj(..) => true,
        _ => false,
    };
    let is_kept = f.compiler().is_some() || f.attrs.get("Composite").is_some();
    (!is_kept && reachable(m, [f.body]).iter().all(is_plain)).then_some(func)
}

/// By expression, whether it makes, reads or writes a reference, or calls what may.
fn effects(m: &Module) -> Vec<bool> {
    let mut has = vec![false; m.len()];
    if !has_references(m) {
        return has;
    }
    for e in m.ids() {
        let mut any = match &m[e] {
            Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..) => true,
            Expr::Call { callee, .. } => {
                !matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)) && dissolving(m, *callee).is_none()
            }
            Expr::Func(_) => continue,
            _ => false,
        };
        children(&m[e], |c| any |= has[c.index()]);
        has[e.index()] = any;
    }
    has
}

struct Defuse<'a> {
    m: &'a Module,
    effects: &'a [bool],
    done: HashMap<ExprId, ExprId>,
}

impl Defuse<'_> {
    /// The function whose body takes the place of a call.
    fn dissolved(&self, call: ExprId) -> Option<ExprId> {
        let Expr::Call { callee, args, .. } = &self.m[call] else { return None };
        let calm = args.iter().all(|a| !self.effects[a.index()]);
        dissolving(self.m, *callee).filter(|_| calm)
    }

    /// Copies what `root` is made of; functions that are only called become nothing by themselves.
    fn run(mut self, root: ExprId, out: &mut Module) -> ExprId {
        for id in self.needed(root) {
            let new = match (&self.m[id], self.dissolved(id)) {
                (Expr::Call { args, .. }, Some(func)) => self.body(func, args, out),
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
                Expr::Call { callee, .. } => self.dissolved(e).map(|_| *callee),
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

    /// A function's body over these arguments.
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

    #[test]
    fn effects_keep_their_order() {
        let text = |body: &str| {
            let head = "fn (%a: float32, %b: float32, Primitive=1) -> float32 { subtract(%b, %a) }";
            format!("#[version = \"0.0.5\"]\ndef @main(%x: float32) {{ let %r = ref(%x); %0 = {head}; {body} }}")
        };
        let defused = |body: &str| {
            let m = text::parse_module("t", &text(body)).unwrap_or_else(|e| panic!("{e}"));
            let typed = infer_types(m).unwrap_or_else(|e| panic!("{e}"));
            text::print_module(&defuse(typed.module()))
        };
        let stays = defused("%0(ref_read(%r), %x)");
        assert!(stays.contains("Primitive=1"), "{stays}");
        let goes = defused("%0(%x, %0(%x, %x))");
        assert!(!goes.contains("Primitive=1"), "{goes}");
    }

    #[test]
    fn stops_go_with_what_they_stopped() {
        let text = r#"#[version = "0.0.5"]
            def @main(%x: Tensor[(2, 3), float32]) { exp(annotation.stop_fusion(add(%x, 1f))) }"#;
        let m = text::parse_module("t", text).unwrap_or_else(|e| panic!("{e}"));
        let fused = fuse(&infer_types(m).unwrap_or_else(|e| panic!("{e}")), LARGEST_KERNEL);
        let text = text::print_module(&fused);
        assert_eq!((text.matches("Primitive=1").count(), text.contains("stop_fusion")), (2, false), "{text}");
    }
}
