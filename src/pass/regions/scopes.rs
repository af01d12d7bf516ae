//! Where expressions are evaluated: the bodies of functions, branches and bindings, and which of them each expression belongs to.

use hashbrown::HashMap;

use crate::ir::{Expr, ExprId, Module, VarId, children, reachable_outside};

/// One body.
#[derive(Clone, Debug)]
struct Scope {
    parent: usize,
    /// A scope far around it, such that any one is found in few steps of one kind or the other.
    jump: usize,
    depth: u32,
    /// The function that it is in: its outermost scope.
    function: usize,
    /// How many branches of `if` and `match` are around it.
    branches: u32,
}

/// The scopes of a module.
#[derive(Debug)]
pub(in crate::pass) struct Scopes {
    scopes: Vec<Scope>,
    /// By expression: the innermost scope around all of its uses; none where nothing uses it.
    places: Vec<Option<usize>>,
    /// By expression: the innermost scope that binds something which it depends on. It is around, or is, the place.
    needs: Vec<usize>,
    /// What the functions are made of, but for the insides of [kept](is_kept) ones; children before parents.
    order: Vec<ExprId>,
    /// What variables of `let` and `match` are bound to, or are taken from.
    bound_to: HashMap<VarId, ExprId>,
}

/// The scope around all functions.
const MODULE: usize = 0;

/// Whether it is a function that is left as it is: a kernel, a part of a program that a compiler has, a composite.
pub(in crate::pass) fn is_kept(e: &Expr) -> bool {
    matches!(e, Expr::Func(f) if f.is_primitive() || f.compiler().is_some() || f.attrs.get("Composite").is_some())
}

/// What all functions of a module are made of, but for the insides of [kept](is_kept) ones; children before parents.
pub(in crate::pass) fn interior(m: &Module) -> Vec<ExprId> {
    reachable_outside(m, m.functions().map(|(_, f)| f), is_kept)
}

impl Scopes {
    pub(in crate::pass) fn new(m: &Module) -> Scopes {
        let module = Scope { parent: MODULE, jump: MODULE, depth: 0, function: MODULE, branches: 0 };
        let mut s = Scopes {
            scopes: vec![module],
            places: vec![None; m.len()],
            needs: vec![MODULE; m.len()],
            order: interior(m),
            bound_to: HashMap::new(),
        };
        let mut binders: HashMap<VarId, usize> = HashMap::new();
        for (_, f) in m.functions() {
            s.use_in(f, MODULE);
        }
        for e in s.order.clone().into_iter().rev() {
            let here = s.place(e);
            match &m[e] {
                f if is_kept(f) => {}
                Expr::Func(f) => {
                    let body = s.open(here, true, false);
                    binders.extend(f.params.iter().map(|&p| (p, body)));
                    s.use_in(f.body, body);
                }
                Expr::If { cond, then, otherwise } => {
                    s.use_in(*cond, here);
                    for branch in [then, otherwise] {
                        let scope = s.open(here, false, true);
                        s.use_in(*branch, scope);
                    }
                }
                Expr::Match { data, clauses, .. } => {
                    s.use_in(*data, here);
                    for clause in clauses {
                        let scope = s.open(here, false, true);
                        for v in clause.pattern.vars() {
                            binders.insert(v, scope);
                            s.bound_to.insert(v, *data);
                        }
                        s.use_in(clause.body, scope);
                    }
                }
                Expr::Let { var, value, body } => {
                    let scope = s.open(here, false, false);
                    binders.insert(*var, scope);
                    s.bound_to.insert(*var, *value);
                    // A function may call itself by the variable.
                    let of_value = if matches!(m[*value], Expr::Func(_)) { scope } else { here };
                    s.use_in(*value, of_value);
                    s.use_in(*body, scope);
                }
                other => children(other, |c| s.use_in(c, here)),
            }
        }
        for &e in &s.order {
            let mut need = MODULE;
            match &m[e] {
                Expr::Var(v) => need = binders.get(v).copied().unwrap_or(MODULE),
                // What binds variables itself counts as depending on all that is around it.
                Expr::Func(_) if is_kept(&m[e]) => {}
                Expr::Func(_) | Expr::If { .. } | Expr::Match { .. } | Expr::Let { .. } => need = s.place(e),
                other => children(other, |c| {
                    let of_child = s.needs[c.index()];
                    if s.scopes[of_child].depth > s.scopes[need].depth {
                        need = of_child;
                    }
                }),
            }
            s.needs[e.index()] = need;
        }
        s
    }

    fn open(&mut self, parent: usize, is_function: bool, is_branch: bool) -> usize {
        let around = self.scopes[parent].clone();
        let number = self.scopes.len();
        let depth = |s: usize| self.scopes[s].depth;
        let (near, far) = (around.jump, self.scopes[around.jump].jump);
        let jump = if around.depth - depth(near) == depth(near) - depth(far) { far } else { parent };
        self.scopes.push(Scope {
            parent,
            jump,
            depth: around.depth + 1,
            function: if is_function { number } else { around.function },
            branches: around.branches + u32::from(is_branch),
        });
        number
    }

    fn use_in(&mut self, e: ExprId, scope: usize) {
        self.places[e.index()] = Some(self.places[e.index()].map_or(scope, |place| self.around(place, scope)));
    }

    /// What the functions are made of; see [`interior`].
    pub(in crate::pass) fn order(&self) -> &[ExprId] {
        &self.order
    }

    /// What a variable of `let` is bound to, or of `match` is taken from.
    pub(in crate::pass) fn bound_to(&self, v: VarId) -> Option<ExprId> {
        self.bound_to.get(&v).copied()
    }

    /// The innermost scope around all of an expression's uses.
    pub(in crate::pass) fn place(&self, e: ExprId) -> usize {
        self.places[e.index()].unwrap_or(MODULE)
    }

    pub(in crate::pass) fn need(&self, e: ExprId) -> usize {
        self.needs[e.index()]
    }

    /// The function that a scope is in.
    pub(in crate::pass) fn function(&self, scope: usize) -> usize {
        self.scopes[scope].function
    }

    /// The innermost scope around both.
    pub(in crate::pass) fn around(&self, mut a: usize, mut b: usize) -> usize {
        if self.scopes[a].depth < self.scopes[b].depth {
            std::mem::swap(&mut a, &mut b);
        }
        let level = self.scopes[b].depth;
        while self.scopes[a].depth > level {
            let Scope { parent, jump, .. } = self.scopes[a];
            a = if self.scopes[jump].depth >= level { jump } else { parent };
        }
        // Scopes of one depth jump to one depth.
        while a != b {
            let (x, y) = (&self.scopes[a], &self.scopes[b]);
            (a, b) = if x.jump == y.jump { (x.parent, y.parent) } else { (x.jump, y.jump) };
        }
        a
    }

    /// The inner one of two scopes of which one is around the other.
    pub(in crate::pass) fn inner(&self, a: usize, b: usize) -> usize {
        if self.scopes[a].depth >= self.scopes[b].depth { a } else { b }
    }

    /// Whether a scope is another one, or around it.
    pub(in crate::pass) fn is_around(&self, outer: usize, inner: usize) -> bool {
        self.around(outer, inner) == outer
    }

    /// Whether branches lie between a scope and one around it.
    pub(in crate::pass) fn is_conditional(&self, inner: usize, outer: usize) -> bool {
        self.scopes[inner].branches != self.scopes[outer].branches
    }
}
