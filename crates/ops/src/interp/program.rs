//! What is known of a module before it runs: which function's activation each expression belongs to, and how often each
//! result is asked for.

use hashbrown::HashMap;

use super::frame::FOREVER;
use crate::ir::{Expr, ExprId, Module, VarId, children, reachable};

/// A function as a scope, or the scope around all functions (number 0).
pub struct Scope {
    pub(crate) parent: u32,
    pub(crate) depth: u32,
    /// Slots that an activation needs.
    pub slots: u32,
}

/// Where a value is kept.
#[derive(Copy, Clone)]
pub struct Place {
    pub(crate) scope: u32,
    pub(crate) slot: u32,
    /// How often it is asked for, at most.
    pub uses: u32,
}

/// A module, ready to run.
pub struct Program<'a> {
    pub(crate) m: &'a Module,
    pub(crate) scopes: Vec<Scope>,
    /// The scope that each expression belongs to: the innermost one that holds all of its uses.
    home: Vec<u32>,
    /// Places of the expressions that are used more than once.
    shared: HashMap<ExprId, Place>,
    vars: Vec<Option<Place>>,
    /// Variables that are bound to a function as written, which is made again at each use: kept, it would hold the frame that
    /// holds it.
    aliases: HashMap<VarId, (ExprId, u32)>,
    /// The scopes that functions are.
    scope_of: HashMap<ExprId, u32>,
}

/// How an expression is used.
#[derive(Copy, Clone)]
struct Uses {
    scope: u32,
    count: u32,
    /// From different scopes, so that the count says nothing.
    scattered: bool,
}

impl<'a> Program<'a> {
    /// Looks at a whole module, which must be well formed.
    pub fn new(m: &'a Module) -> Program<'a> {
        let mut scopes = vec![Scope { parent: 0, depth: 0, slots: 0 }];
        let mut scope_of = HashMap::new();
        let mut used: Vec<Option<Uses>> = vec![None; m.len()];
        let ids = reachable(m, m.functions().map(|(_, f)| f));
        for (_, f) in m.functions() {
            used[f.index()] = Some(Uses { scope: 0, count: 1, scattered: false });
        }
        // Parents come before children: whoever uses an expression has been placed by then.
        for &e in ids.iter().rev() {
            let home = used[e.index()].map_or(0, |u| u.scope);
            let inner = match m[e] {
                Expr::Func(_) => {
                    let depth = scopes[home as usize].depth + 1;
                    scopes.push(Scope { parent: home, depth, slots: 0 });
                    let scope = scopes.len() as u32 - 1;
                    scope_of.insert(e, scope);
                    scope
                }
                _ => home,
            };
            children(&m[e], |c| {
                let u = used[c.index()].get_or_insert(Uses { scope: inner, count: 0, scattered: false });
                u.count += 1;
                if u.scope != inner {
                    u.scattered = true;
                    u.scope = common(&scopes, u.scope, inner);
                }
            });
        }
        let mut p = Program {
            m,
            scopes,
            home: used.iter().map(|u| u.map_or(0, |u| u.scope)).collect(),
            shared: HashMap::new(),
            vars: vec![None; m.var_count()],
            aliases: HashMap::new(),
            scope_of,
        };
        p.place_vars(&ids, &used);
        for &e in &ids {
            let Some(u) = used[e.index()] else { continue };
            let leaf = matches!(
                m[e],
                Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) | Expr::Func(_)
            );
            if u.count > 1 && !leaf {
                let place = p.place(u.scope, if u.scattered { FOREVER } else { u.count });
                p.shared.insert(e, place);
            }
        }
        p
    }

    fn place(&mut self, scope: u32, uses: u32) -> Place {
        let slots = &mut self.scopes[scope as usize].slots;
        *slots += 1;
        Place { scope, slot: *slots - 1, uses }
    }

    fn place_vars(&mut self, ids: &[ExprId], used: &[Option<Uses>]) {
        let m = self.m;
        let bind = |p: &mut Program, v: VarId, scope: u32| p.vars[v.0 as usize] = Some(p.place(scope, 0));
        for &e in ids {
            let home = self.home[e.index()];
            match &m[e] {
                Expr::Func(f) => {
                    let scope = self.scope_of[&e];
                    f.params.iter().for_each(|&v| bind(self, v, scope));
                }
                Expr::Let { var, value, .. } => match m[*value] {
                    Expr::Func(_) => drop(self.aliases.insert(*var, (*value, self.home[value.index()]))),
                    _ => bind(self, *var, home),
                },
                Expr::Match { clauses, .. } => {
                    for v in clauses.iter().flat_map(|c| c.pattern.vars()) {
                        bind(self, v, home);
                    }
                }
                _ => {}
            }
        }
        for &e in ids {
            if let Expr::Var(v) = m[e]
                && let Some(u) = used[e.index()]
                && let Some(place) = &mut self.vars[v.0 as usize]
            {
                place.uses = match u.scattered || u.scope != place.scope {
                    true => FOREVER,
                    false => place.uses.saturating_add(u.count),
                };
            }
        }
    }

    /// Where the result of an expression is kept, where it is used more than once.
    pub fn shared(&self, e: ExprId) -> Option<Place> {
        self.shared.get(&e).copied()
    }

    /// Where a variable is kept.
    pub fn var(&self, v: VarId) -> Option<Place> {
        self.vars[v.0 as usize]
    }

    /// The function that a variable is another name of, and the scope that the function belongs to.
    pub fn alias(&self, v: VarId) -> Option<(ExprId, u32)> {
        self.aliases.get(&v).copied()
    }

    /// The scope that a function is.
    pub fn scope_of(&self, func: ExprId) -> u32 {
        self.scope_of[&func]
    }

    /// The scope that an expression belongs to.
    pub fn home(&self, e: ExprId) -> u32 {
        self.home[e.index()]
    }

    /// How many functions lie between an inner scope and one that it sees.
    pub fn hops(&self, inner: u32, outer: u32) -> u32 {
        self.scopes[inner as usize].depth - self.scopes[outer as usize].depth
    }
}

/// The innermost scope that holds both.
fn common(scopes: &[Scope], mut a: u32, mut b: u32) -> u32 {
    while a != b {
        match scopes[a as usize].depth >= scopes[b as usize].depth {
            true => a = scopes[a as usize].parent,
            false => b = scopes[b as usize].parent,
        }
    }
    a
}
