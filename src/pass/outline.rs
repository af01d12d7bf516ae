//! Calls moved into a function of their own.

use hashbrown::{HashMap, HashSet};

use crate::{
    infer::TypedModule,
    ir::{Attrs, Copier, Expr, ExprId, Function, Module, Type, children, reachable},
    ops::kernel::INLINE_CONSTANT,
};

/// What is to become a function: calls of operators and of functions without a name, and what of them is the result.
pub(crate) struct Outline<'a> {
    typed: &'a TypedModule,
    results: &'a [ExprId],
    /// What the function is made of, children first.
    local: Vec<ExprId>,
    /// What it reads, in the order in which it would be asked for.
    outer: Vec<ExprId>,
}

impl<'a> Outline<'a> {
    /// The function that computes `results` (a tuple of them, where they are several), each a member or a field of one, from what
    /// `members` read. It is made of the members, the tuples and projections between them, and constants of up to `constants` elements;
    /// all else it reads.
    pub(crate) fn new(
        typed: &'a TypedModule,
        members: &[ExprId],
        results: &'a [ExprId],
        constants: usize,
    ) -> Outline<'a> {
        let m = typed.module();
        let mut inside: HashSet<ExprId> = members.iter().copied().collect();
        for &e in members {
            if let Expr::Call { callee, .. } = &m[e] {
                inside.extend(reachable(m, [*callee]));
            }
        }
        // Arguments are evaluated in the order in which the members would have asked for them: they may have effects.
        let (mut local, mut outer) = (Vec::new(), Vec::new());
        let mut seen: HashSet<ExprId> = HashSet::new();
        let mut stack: Vec<ExprId> = results.iter().rev().copied().collect();
        while let Some(e) = stack.pop() {
            if !seen.insert(e) {
                continue;
            }
            let is_local = match &m[e] {
                _ if inside.contains(&e) => true,
                Expr::Op(_) | Expr::Tuple(_) => true,
                Expr::Constant(t) => t.len() <= constants,
                Expr::Proj(..) => is_field_of(m, e, &inside),
                _ => false,
            };
            if is_local {
                local.push(e);
                let parts = stack.len();
                children(&m[e], |c| stack.push(c));
                stack[parts..].reverse();
            } else {
                outer.push(e);
            }
        }
        local.sort_unstable();
        Outline { typed, results, local, outer }
    }

    /// What it reads, in the order of its parameters. Of a variable, all uses.
    pub(crate) fn arguments(&self) -> &[ExprId] {
        &self.outer
    }

    /// What it is made of, children first.
    pub(crate) fn parts(&self) -> &[ExprId] {
        &self.local
    }

    /// Adds the function; its parameters are called `prefix` and a number.
    pub(crate) fn function(&self, prefix: &str, attrs: Attrs, out: &mut Module) -> ExprId {
        let m = self.typed.module();
        let mut copier = Copier::new();
        let mut params = Vec::new();
        for &e in &self.outer {
            // A variable is asked for by several expressions, which are one argument.
            if let Some(first) = self.same_as(e) {
                let used = copier.get(first).expect("earlier ones come first");
                copier.replace(e, used);
                continue;
            }
            let var = out.new_var(format!("{prefix}{}", params.len()), Some(self.typed.ty(e).clone()));
            params.push(var);
            let used = out.add(Expr::Var(var));
            copier.replace(e, used);
        }
        for &e in &self.local {
            copier.copy(m, e, out);
        }
        let copied: Vec<ExprId> =
            self.results.iter().map(|r| copier.get(*r).expect("results are parts of the function")).collect();
        let (body, ret) = match (&copied[..], self.results) {
            ([one], [result]) => (*one, self.typed.ty(*result).clone()),
            _ => {
                let types: Vec<Type> = self.results.iter().map(|r| self.typed.ty(*r).clone()).collect();
                (out.add(Expr::Tuple(copied)), Type::tuple(types))
            }
        };
        let func = Function { type_params: vec![], params, ret: Some(ret), body, attrs };
        out.add_at(Expr::Func(Box::new(func)), self.span(m))
    }

    /// Adds the call of the function on what its arguments have become.
    pub(crate) fn call(&self, callee: ExprId, done: &HashMap<ExprId, ExprId>, out: &mut Module) -> ExprId {
        let args = self.outer.iter().filter(|&&e| self.same_as(e).is_none()).map(|e| done[e]).collect();
        let call = Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] };
        out.add_at(call, self.span(self.typed.module()))
    }

    /// The first use of the variable that an argument is, where it is a later one.
    fn same_as(&self, e: ExprId) -> Option<ExprId> {
        let m = self.typed.module();
        let Expr::Var(_) = m[e] else { return None };
        self.outer.iter().copied().find(|&o| m[o] == m[e]).filter(|&first| first != e)
    }

    fn span(&self, m: &Module) -> Option<crate::ir::Span> {
        m.span(self.results[self.results.len() - 1]).cloned()
    }
}

/// Whether a projection is a field of what is inside, or of a tuple that holds such.
fn is_field_of(m: &Module, proj: ExprId, inside: &HashSet<ExprId>) -> bool {
    let mut stack = vec![proj];
    while let Some(e) = stack.pop() {
        match &m[e] {
            _ if inside.contains(&e) => return true,
            Expr::Proj(t, _) => stack.push(*t),
            Expr::Tuple(fields) => stack.extend(fields),
            _ => {}
        }
    }
    false
}

/// The call of a new function that computes `results` (a tuple of them, where they are several) from what `members` read, as a
/// kernel takes it: small constants are inside of it, larger ones arguments.
///
/// `members` are calls of operators; `done` says what became of everything older that they read.
pub(crate) fn outline(
    typed: &TypedModule,
    members: &[ExprId],
    results: &[ExprId],
    attrs: Attrs,
    done: &HashMap<ExprId, ExprId>,
    out: &mut Module,
) -> ExprId {
    let outline = Outline::new(typed, members, results, INLINE_CONSTANT);
    let callee = outline.function("p", attrs, out);
    outline.call(callee, done, out)
}
