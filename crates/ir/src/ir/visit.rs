//! Walking and copying expressions, without recursion.

use hashbrown::{HashMap, HashSet};

use super::{Clause, Expr, ExprId, Function, Module, VarId};

/// Calls `f` on every direct child, in order.
pub fn children(expr: &Expr, mut f: impl FnMut(ExprId)) {
    match expr {
        Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) => {}
        Expr::Call { callee, args, .. } => {
            f(*callee);
            args.iter().copied().for_each(f);
        }
        Expr::Tuple(fields) => fields.iter().copied().for_each(f),
        Expr::Proj(e, _) | Expr::RefNew(e) | Expr::RefRead(e) => f(*e),
        Expr::Let { value, body, .. } => {
            f(*value);
            f(*body);
        }
        Expr::If { cond, then, otherwise } => {
            f(*cond);
            f(*then);
            f(*otherwise);
        }
        Expr::Func(func) => f(func.body),
        Expr::Match { data, clauses, .. } => {
            f(*data);
            clauses.iter().for_each(|c| f(c.body));
        }
        Expr::RefWrite(cell, value) => {
            f(*cell);
            f(*value);
        }
    }
}

/// The same expression with each child replaced.
pub fn map_children(expr: &Expr, mut f: impl FnMut(ExprId) -> ExprId) -> Expr {
    match expr {
        Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) => expr.clone(),
        Expr::Call { callee, args, attrs, type_args } => Expr::Call {
            callee: f(*callee),
            args: args.iter().map(|&a| f(a)).collect(),
            attrs: attrs.clone(),
            type_args: type_args.clone(),
        },
        Expr::Tuple(fields) => Expr::Tuple(fields.iter().map(|&e| f(e)).collect()),
        Expr::Proj(e, i) => Expr::Proj(f(*e), *i),
        Expr::Let { var, value, body } => Expr::Let { var: *var, value: f(*value), body: f(*body) },
        Expr::If { cond, then, otherwise } => Expr::If { cond: f(*cond), then: f(*then), otherwise: f(*otherwise) },
        Expr::Func(func) => Expr::Func(Box::new(Function { body: f(func.body), ..(**func).clone() })),
        Expr::Match { data, clauses, complete } => Expr::Match {
            data: f(*data),
            clauses: clauses.iter().map(|c| Clause { pattern: c.pattern.clone(), body: f(c.body) }).collect(),
            complete: *complete,
        },
        Expr::RefNew(e) => Expr::RefNew(f(*e)),
        Expr::RefRead(e) => Expr::RefRead(f(*e)),
        Expr::RefWrite(cell, value) => Expr::RefWrite(f(*cell), f(*value)),
    }
}

/// All expressions that the given ones are made of (themselves included), children before parents.
pub fn reachable(m: &Module, roots: impl IntoIterator<Item = ExprId>) -> Vec<ExprId> {
    reachable_outside(m, roots, |_| false)
}

/// The same, but for what is within those that are `closed`, which are there themselves.
pub fn reachable_outside(
    m: &Module,
    roots: impl IntoIterator<Item = ExprId>,
    closed: impl Fn(&Expr) -> bool,
) -> Vec<ExprId> {
    let mut stack: Vec<ExprId> = roots.into_iter().collect();
    let mut seen: HashSet<ExprId> = stack.iter().copied().collect();
    while let Some(id) = stack.pop() {
        if closed(&m[id]) {
            continue;
        }
        children(&m[id], |c| {
            if seen.insert(c) {
                stack.push(c);
            }
        });
    }
    let mut ids: Vec<ExprId> = seen.into_iter().collect();
    ids.sort_unstable();
    ids
}

/// The variables that are used in `root` but bound outside of it, in order of first use.
pub fn free_vars(m: &Module, root: ExprId) -> Vec<VarId> {
    let ids = reachable(m, [root]);
    let mut bound: HashSet<VarId> = HashSet::new();
    for &id in &ids {
        match &m[id] {
            Expr::Let { var, .. } => drop(bound.insert(*var)),
            Expr::Func(f) => bound.extend(&f.params),
            Expr::Match { clauses, .. } => bound.extend(clauses.iter().flat_map(|c| c.pattern.vars())),
            _ => {}
        }
    }
    let mut free = Vec::new();
    for &id in &ids {
        if let Expr::Var(v) = m[id]
            && !bound.contains(&v)
            && !free.contains(&v)
        {
            free.push(v);
        }
    }
    free
}

/// Copies expressions from one module into another, keeping sharing and spans.
#[derive(Debug, Default)]
pub struct Copier {
    done: HashMap<ExprId, ExprId>,
}

impl Copier {
    /// A copier that has copied nothing yet.
    pub fn new() -> Copier {
        Copier::default()
    }

    /// Says that uses of `from` become uses of `to`.
    pub fn replace(&mut self, from: ExprId, to: ExprId) {
        self.done.insert(from, to);
    }

    /// What became of an expression, where it was copied or replaced.
    pub fn get(&self, from: ExprId) -> Option<ExprId> {
        self.done.get(&from).copied()
    }

    /// Copies `root` and what it is made of. `edit` may give another expression (added to `to` by itself) for one whose
    /// children have been copied: it gets the target, the source's id and the copied expression.
    pub fn copy_with(
        &mut self,
        from: &Module,
        root: ExprId,
        to: &mut Module,
        mut edit: impl FnMut(&mut Module, ExprId, &Expr) -> Option<ExprId>,
    ) -> ExprId {
        let mut stack = vec![root];
        let mut todo = Vec::new();
        let mut seen = HashSet::new();
        while let Some(id) = stack.pop() {
            if self.done.contains_key(&id) || !seen.insert(id) {
                continue;
            }
            todo.push(id);
            children(&from[id], |c| stack.push(c));
        }
        todo.sort_unstable();
        for id in todo {
            let expr = map_children(&from[id], |c| self.done[&c]);
            let new = match edit(to, id, &expr) {
                Some(new) => new,
                None => to.add_at(expr, from.span(id).cloned()),
            };
            self.done.insert(id, new);
        }
        self.done[&root]
    }

    /// Copies `root` and what it is made of, unchanged.
    pub fn copy(&mut self, from: &Module, root: ExprId, to: &mut Module) -> ExprId {
        self.copy_with(from, root, to, |_, _, _| None)
    }
}
