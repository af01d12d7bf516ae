//! Which expression belongs to which region: what is decided before any e-graph is made.
//!
//! A region is a stretch of pure dataflow: the body of a function of the module, of a closure, of a branch, or what
//! follows a binding that can't be dissolved. An expression that several regions use belongs to the innermost region
//! around all of them and is *captured* by the others; a call that might not return, before it is known to be needed, has a
//! copy in every region.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::ir::{self, Expr, ExprId, Function, Module, VarId};

/// A region of a [`Plan`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u32);

impl RegionId {
    /// Position in the plan.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is decided of one region.
#[derive(Clone, Debug)]
pub(super) struct PlannedRegion {
    /// The region around it; none for the body of a function of the module.
    pub(super) parent: Option<RegionId>,
    /// Its result.
    pub(super) root: ExprId,
    /// Whether it is to stay as it is: a kernel already fused, or the work of an external compiler.
    pub(super) frozen: bool,
    depth: u32,
}

/// The regions of one function of the module.
#[derive(Clone, Debug)]
pub(super) struct FunctionPlan {
    /// The function's expression.
    pub(super) func: ExprId,
    /// The body's region; none where effects are shared in ways that only leave the function as it is.
    pub(super) body: Option<RegionId>,
}

/// The regions of a module.
#[derive(Debug)]
pub(super) struct Plan {
    flags: Vec<Flags>,
    lets: HashMap<VarId, ExprId>,
    pub(super) regions: Vec<PlannedRegion>,
    homes: HashMap<ExprId, SmallVec<[RegionId; 1]>>,
    /// The regions that a carried expression owns, by its home.
    owned: HashMap<(ExprId, RegionId), Vec<(ExprId, RegionId)>>,
    pub(super) functions: Vec<FunctionPlan>,
}

/// What evaluating an expression may do.
#[derive(Copy, Clone, Debug, Default)]
struct Flags {
    /// Read or write references: order and number of evaluations matter.
    effect: bool,
    /// Call unknown code, which might not return.
    partial: bool,
    /// Nothing but compute on constants.
    constant: bool,
}

/// Part of a carried expression that is filled in again.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Hole {
    /// Evaluated where the carried expression is.
    Operand(ExprId),
    /// A region of its own; the flag says that it belongs to a function that must stay as it is.
    Body(ExprId, bool),
}

/// Whether a function's body must stay as it is.
fn carried_whole(f: &Function) -> bool {
    f.is_primitive() || f.compiler().is_some() || f.attrs.get("Composite").is_some()
}

impl Plan {
    /// Plans all functions of a module.
    pub(super) fn new(m: &Module) -> Plan {
        let ids = ir::reachable(m, m.functions().map(|(_, f)| f));
        let flags = flags(m, &ids);
        let mut lets = HashMap::new();
        for &id in &ids {
            if let Expr::Let { var, value, .. } = m[id]
                && !flags[value.index()].effect
                && !is_recursive(m, var, value)
            {
                lets.insert(var, value);
            }
        }
        let mut plan = Plan {
            flags,
            lets,
            regions: Vec::new(),
            homes: HashMap::new(),
            owned: HashMap::new(),
            functions: Vec::new(),
        };
        for (_, func) in m.functions() {
            plan.function(m, func);
        }
        plan
    }

    fn function(&mut self, m: &Module, func: ExprId) {
        let f = m.func(func);
        let body = self.region(None, f.body, carried_whole(f));
        let mut walk = Walk { uses: HashMap::new(), absorbed: HashSet::new(), tangled: false };
        walk.uses.entry(f.body).or_default().push(body);
        for id in ir::reachable(m, [f.body]).into_iter().rev() {
            if let Some(uses) = walk.uses.remove(&id) {
                self.place(m, id, &uses, &mut walk);
            }
        }
        self.functions.push(FunctionPlan { func, body: (!walk.tangled).then_some(body) });
    }

    fn region(&mut self, parent: Option<RegionId>, root: ExprId, frozen: bool) -> RegionId {
        let (depth, frozen) = parent
            .map_or((0, frozen), |p| (self.regions[p.index()].depth + 1, frozen || self.regions[p.index()].frozen));
        self.regions.push(PlannedRegion { parent, root, frozen, depth });
        RegionId(self.regions.len() as u32 - 1)
    }

    /// Decides the homes of an expression whose users are all placed, and says so to its children.
    fn place(&mut self, m: &Module, id: ExprId, uses: &[RegionId], walk: &mut Walk) {
        let flags = self.flags[id.index()];
        if flags.effect && (uses.len() > 1 || walk.absorbed.contains(&id)) {
            walk.tangled = true;
            return;
        }
        // What binds variables or has regions of its own is in one place only: copies of it would share what is inside.
        let copies = flags.partial && (self.dissolves(m, id) || matches!(m[id], Expr::Call { .. }));
        let homes: SmallVec<[RegionId; 1]> = match flags.constant {
            true => uses.into(),
            false if copies => self.outermost(uses),
            false => {
                let common = uses[1..].iter().fold(uses[0], |a, &b| self.common(a, b));
                [common].into_iter().collect()
            }
        };
        for &home in &homes {
            if self.dissolves(m, id) {
                ir::children(&m[id], |c| walk.use_in(m, c, home));
                continue;
            }
            let mut owned: Vec<(ExprId, RegionId)> = Vec::new();
            for hole in self.holes(m, id, |absorbed| walk.tangled |= !walk.absorbed.insert(absorbed)) {
                match hole {
                    Hole::Operand(c) => walk.use_in(m, c, home),
                    Hole::Body(root, frozen) => {
                        let region = self.region(Some(home), root, frozen);
                        walk.use_in(m, root, region);
                        owned.push((root, region));
                    }
                }
            }
            self.owned.insert((id, home), owned);
        }
        self.homes.entry(id).or_default().extend(homes);
    }

    /// The innermost region around both.
    fn common(&self, mut a: RegionId, mut b: RegionId) -> RegionId {
        while a != b {
            let (x, y) = (&self.regions[a.index()], &self.regions[b.index()]);
            if x.depth >= y.depth {
                a = x.parent.expect("regions of one function have its body around them");
            } else {
                b = y.parent.expect("regions of one function have its body around them");
            }
        }
        a
    }

    /// Those of the regions that no other of them is around.
    fn outermost(&self, uses: &[RegionId]) -> SmallVec<[RegionId; 1]> {
        let all: HashSet<RegionId> = uses.iter().copied().collect();
        let around = |&r: &RegionId| self.ancestors(r).skip(1).any(|a| all.contains(&a));
        uses.iter().copied().filter(|r| !around(r)).collect()
    }

    /// A region and those around it, from within.
    pub(super) fn ancestors(&self, region: RegionId) -> impl Iterator<Item = RegionId> {
        std::iter::successors(Some(region), |r| self.regions[r.index()].parent)
    }

    /// Whether the expression becomes an e-node of its own kind, or vanishes into sharing, rather than being carried.
    pub(super) fn dissolves(&self, m: &Module, id: ExprId) -> bool {
        if self.flags[id.index()].effect {
            // A pure binding in front of effects is still sharing.
            return matches!(m[id], Expr::Let { var, .. } if self.lets.contains_key(&var));
        }
        match &m[id] {
            Expr::Var(_) | Expr::Constant(_) | Expr::Tuple(_) | Expr::Proj(..) => true,
            Expr::Let { var, .. } => self.lets.contains_key(var),
            Expr::Call { .. } => m.op_call(id).is_some(),
            _ => false,
        }
    }

    /// Follows pure bindings to what a use of the expression uses in the end.
    pub(super) fn resolve(&self, m: &Module, mut id: ExprId) -> ExprId {
        loop {
            id = match &m[id] {
                Expr::Var(v) if self.lets.contains_key(v) => self.lets[v],
                Expr::Let { var, body, .. } if self.lets.contains_key(var) => *body,
                _ => return id,
            }
        }
    }

    /// Whether a resolved expression is computed in the region itself, not captured.
    pub(super) fn is_local(&self, m: &Module, id: ExprId, region: RegionId) -> bool {
        is_leaf(&m[id])
            || self.flags[id.index()].constant
            || self.homes.get(&id).is_some_and(|homes| homes.contains(&region))
    }

    /// The regions that the expression, carried in `home`, owns: their roots, and they.
    pub(super) fn owned(&self, id: ExprId, home: RegionId) -> &[(ExprId, RegionId)] {
        self.owned.get(&(id, home)).map_or(&[], Vec::as_slice)
    }

    /// The holes of a carried expression, each once. Effects within it are part of it, so that they keep their order;
    /// `absorbed` hears of each.
    pub(super) fn holes(&self, m: &Module, id: ExprId, mut absorbed: impl FnMut(ExprId)) -> Vec<Hole> {
        let mut holes = Vec::new();
        let mut seen: HashSet<Hole> = HashSet::new();
        let mut stack = vec![id];
        let mut entered = HashSet::new();
        while let Some(at) = stack.pop() {
            if !entered.insert(at) {
                continue;
            }
            if at != id {
                absorbed(at);
            }
            let mut hole = |h: Hole| {
                if seen.insert(h) {
                    holes.push(h);
                }
            };
            let mut operand = |c: ExprId, hole: &mut dyn FnMut(Hole)| match &m[c] {
                Expr::Global(_) | Expr::Op(_) | Expr::Constructor(_) => {}
                _ if self.flags[c.index()].effect => stack.push(c),
                _ => hole(Hole::Operand(c)),
            };
            match &m[at] {
                Expr::Let { var, value, body } if !self.lets.contains_key(var) => {
                    match &m[*value] {
                        Expr::Func(f) => hole(Hole::Body(f.body, carried_whole(f))),
                        _ => hole(Hole::Body(*value, false)),
                    }
                    hole(Hole::Body(*body, false));
                }
                Expr::If { cond, then, otherwise } => {
                    operand(*cond, &mut hole);
                    hole(Hole::Body(*then, false));
                    hole(Hole::Body(*otherwise, false));
                }
                Expr::Match { data, clauses, .. } => {
                    operand(*data, &mut hole);
                    clauses.iter().for_each(|c| hole(Hole::Body(c.body, false)));
                }
                Expr::Func(f) => hole(Hole::Body(f.body, carried_whole(f))),
                other => ir::children(other, |c| operand(c, &mut hole)),
            }
        }
        holes
    }
}

/// The state of one function's walk, parents before children.
struct Walk {
    /// The regions that use what is not placed yet, each once, in order of discovery.
    uses: HashMap<ExprId, SmallVec<[RegionId; 1]>>,
    /// Effects that are part of a carried expression around them.
    absorbed: HashSet<ExprId>,
    /// Whether an effect is shared by several users.
    tangled: bool,
}

impl Walk {
    fn use_in(&mut self, m: &Module, id: ExprId, region: RegionId) {
        if is_leaf(&m[id]) {
            return;
        }
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&region) {
            uses.push(region);
        }
    }
}

/// What every region names for itself.
fn is_leaf(e: &Expr) -> bool {
    matches!(e, Expr::Var(_) | Expr::Constant(_) | Expr::Global(_) | Expr::Op(_) | Expr::Constructor(_))
}

/// Whether a binding's value, a function, calls itself by the variable.
fn is_recursive(m: &Module, var: VarId, value: ExprId) -> bool {
    matches!(m[value], Expr::Func(_)) && ir::reachable(m, [value]).iter().any(|&e| m[e] == Expr::Var(var))
}

/// What evaluating each expression may do. Calls of unknown code have effects only in modules that have references.
fn flags(m: &Module, ids: &[ExprId]) -> Vec<Flags> {
    let has_refs = ids.iter().any(|&id| matches!(m[id], Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..)));
    let mut flags = vec![Flags::default(); m.len()];
    for &id in ids {
        let expr = &m[id];
        let mut of = Flags::default();
        if !matches!(expr, Expr::Func(_)) {
            ir::children(expr, |c| {
                of.effect |= flags[c.index()].effect;
                of.partial |= flags[c.index()].partial;
            });
        }
        match expr {
            Expr::RefNew(_) | Expr::RefRead(_) | Expr::RefWrite(..) => of.effect = true,
            Expr::Call { callee, .. } if !matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)) => {
                of.partial = true;
                of.effect |= has_refs;
            }
            _ => {}
        }
        let constant = |c: &ExprId| flags[c.index()].constant;
        of.constant = match expr {
            Expr::Constant(_) => true,
            Expr::Tuple(fields) => fields.iter().all(constant),
            Expr::Proj(e, _) => constant(e),
            Expr::Call { args, .. } => m.op_call(id).is_some() && args.iter().all(constant),
            _ => false,
        };
        flags[id.index()] = of;
    }
    flags
}
