//! Regions: calls that one external compiler takes over together.
//!
//! This is the one definition of what may be a region and of how regions grow, for programs that are annotated by hand, by
//! `AnnotateTarget`, or not at all. A region is *convex*: nothing leaves it and comes back into it; and regions do not wait
//! for each other in circles, so that each can become one call. Tuples and projections between calls are looked through.
//! What a region reads is known where it is called, and it is called within one activation of one function.

mod annotations;
mod scopes;
mod split;

use hashbrown::{HashMap, HashSet};

pub(super) use annotations::{read, without_defaults, write};
pub(super) use scopes::{Scopes, interior, is_kept};
pub use split::split;

use super::effects::Effects;
use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Module, Name, children},
};

/// A region while it grows.
#[derive(Debug)]
struct Region {
    compiler: Name,
    /// Its calls, children first.
    members: Vec<ExprId>,
    /// The scope around all members.
    place: usize,
    /// The innermost scope that binds something which a member depends on.
    need: usize,
    /// Whether a member takes long: it is not computed where a branch might have spared it.
    heavy: bool,
    /// Whether it must stay as it is, because evaluating its arguments has effects, whose order others would change.
    alone: bool,
    /// The regions that it reads, directly or through what is in no region.
    reads: HashSet<usize>,
    /// Those that it reads through what is in no region.
    through: HashSet<usize>,
}

/// Which calls of a module are in regions of which compilers.
#[derive(Debug)]
pub struct Regions<'a> {
    typed: &'a TypedModule,
    scopes: Scopes,
    effects: Effects,
    regions: Vec<Region>,
    of: HashMap<ExprId, usize>,
    /// What a region has become part of; itself, as long as it is one.
    became: Vec<usize>,
}

impl<'a> Regions<'a> {
    /// No regions yet.
    pub fn new(typed: &'a TypedModule) -> Regions<'a> {
        let m = typed.module();
        Regions {
            typed,
            scopes: Scopes::new(m),
            effects: Effects::new(m),
            regions: Vec::new(),
            of: HashMap::new(),
            became: Vec::new(),
        }
    }

    /// The module.
    pub fn typed(&self) -> &'a TypedModule {
        self.typed
    }

    /// The calls that may be in regions and are in none: of operators, and of functions with the attribute `Composite`, children
    /// first. Those within functions with the attributes `Primitive`, `Compiler` and `Composite` are not among them.
    pub fn free_calls(&self) -> Vec<ExprId> {
        let m = self.typed.module();
        self.scopes.order().iter().copied().filter(|&e| may_be_member(m, e) && !self.of.contains_key(&e)).collect()
    }

    /// Says that these calls, which are in no region yet, are to be regions of a compiler: one, where they can be one, else as few as
    /// [growing](Regions::grow) makes of them.
    pub fn add(&mut self, compiler: impl Into<Name>, members: &[ExprId]) {
        let number = self.regions.len();
        let mut members = members.to_vec();
        members.sort_unstable();
        for &e in &members {
            assert!(may_be_member(self.typed.module(), e), "calls are members of regions");
            assert!(self.of.insert(e, number).is_none(), "a call is in one region");
        }
        let region = self.made_of(compiler.into(), members);
        self.regions.push(region);
        self.became.push(number);
    }

    fn made_of(&self, compiler: Name, members: Vec<ExprId>) -> Region {
        let m = self.typed.module();
        let first = *members.first().expect("a region has members");
        let mut place = self.scopes.place(first);
        let mut need = self.scopes.need(first);
        let (mut heavy, mut alone) = (false, false);
        for &e in &members {
            place = self.scopes.around(place, self.scopes.place(e));
            need = self.scopes.inner(need, self.scopes.need(e));
            heavy |= m.op_call(e).is_none_or(|(op, ..)| op.op().class().is_heavy());
            alone |= arguments(m, e).iter().any(|&a| self.effects.has(a));
        }
        let (reads, through) = Default::default();
        Region { compiler, members, place, need, heavy, alone, reads, through }
    }

    /// Finds out which regions read which, and takes apart what can't be a region: its calls are regions by themselves, and grow
    /// together again as far as they can. To be called once, when all regions have been added.
    pub fn split_unsound(&mut self) {
        self.link();
        let mut apart: HashSet<usize> = self.tangled();
        apart.extend((0..self.regions.len()).filter(|&r| !self.is_sound(r)));
        apart.retain(|&r| self.regions[r].members.len() > 1);
        if apart.is_empty() {
            return;
        }
        let mut origin: HashMap<ExprId, usize> = HashMap::new();
        let mut order: Vec<usize> = apart.into_iter().collect();
        order.sort_unstable();
        for r in order {
            let compiler = self.regions[r].compiler.clone();
            let mut members = std::mem::take(&mut self.regions[r].members);
            for &e in &members {
                origin.insert(e, r);
            }
            // The first stays in the region that was.
            for e in members.split_off(1) {
                let number = self.regions.len();
                let single = self.made_of(compiler.clone(), vec![e]);
                self.regions.push(single);
                self.became.push(number);
                self.of.insert(e, number);
            }
            self.regions[r] = self.made_of(compiler, members);
        }
        self.link();
        self.grow_among(&|a, b| origin.contains_key(&a) && origin.get(&a) == origin.get(&b));
    }

    /// Whether a region by itself may be one: in one function, its arguments known where it is called, effects in order.
    fn is_sound(&self, r: usize) -> bool {
        let region = &self.regions[r];
        let function = |scope| self.scopes.function(scope);
        let together = region.members.iter().all(|&e| function(self.scopes.place(e)) == function(region.place));
        together && !region.alone && self.scopes.is_around(region.need, region.place)
    }

    /// The region of a call.
    pub fn region_of(&self, e: ExprId) -> Option<usize> {
        self.of.get(&e).map(|&r| self.now(r))
    }

    /// The number of regions.
    pub fn count(&self) -> usize {
        (0..self.regions.len()).filter(|&r| self.became[r] == r).count()
    }

    /// The compiler of a region.
    pub fn compiler(&self, region: usize) -> &Name {
        &self.regions[region].compiler
    }

    /// The calls of a region, children first.
    pub fn members(&self, region: usize) -> &[ExprId] {
        &self.regions[region].members
    }

    /// The module with annotations: `annotation.compiler_begin` on what a region reads, `annotation.compiler_end` on what it gives.
    pub fn annotated(&self) -> Module {
        write(self, true)
    }

    fn now(&self, mut r: usize) -> usize {
        while self.became[r] != r {
            r = self.became[r];
        }
        r
    }

    /// Lets neighbours of one compiler become one region, wherever that keeps regions convex and in order. A call in a branch of
    /// `if` or `match` may join a region outside of it, which is computed whether or not the branch is taken, unless it takes long.
    pub fn grow(&mut self) {
        self.grow_among(&|_, _| true);
    }

    fn grow_among(&mut self, may: &dyn Fn(ExprId, ExprId) -> bool) {
        let m = self.typed.module();
        let mut members: Vec<ExprId> = self.of.keys().copied().collect();
        members.sort_unstable();
        // What has joined a region may have been what stood between others.
        let mut again = true;
        while std::mem::take(&mut again) {
            for &e in &members {
                for a in leaves(m, e) {
                    if may(a, e)
                        && let (Some(maker), Some(own)) = (self.region_of(a), self.region_of(e))
                        && maker != own
                    {
                        again |= self.join(maker, own);
                    }
                }
            }
        }
    }

    /// Makes one region of two, where they may be one.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (x, y) = (&self.regions[a], &self.regions[b]);
        if x.compiler != y.compiler || x.alone || y.alone {
            return false;
        }
        let s = &self.scopes;
        let place = s.around(x.place, y.place);
        let need = s.inner(x.need, y.need);
        let in_one_function = s.function(x.place) == s.function(place) && s.function(y.place) == s.function(place);
        let spared = |r: &Region| r.heavy && s.is_conditional(r.place, place);
        if !in_one_function || spared(x) || spared(y) || !s.is_around(need, place) {
            return false;
        }
        if self.comes_back(a, b) || self.comes_back(b, a) {
            return false;
        }
        let (keep, gone) = if x.members.len() >= y.members.len() { (a, b) } else { (b, a) };
        let took = &mut self.regions[gone];
        let members = std::mem::take(&mut took.members);
        let (reads, through, heavy) = (std::mem::take(&mut took.reads), std::mem::take(&mut took.through), took.heavy);
        self.became[gone] = keep;
        let kept = &mut self.regions[keep];
        kept.members.extend(members);
        kept.members.sort_unstable();
        kept.reads.extend(reads);
        kept.through.extend(through);
        kept.reads.remove(&keep);
        kept.reads.remove(&gone);
        (kept.place, kept.need, kept.heavy) = (place, need, kept.heavy | heavy);
        true
    }

    /// Whether `reader` waits for `maker` through something else: another region, or what is in none.
    fn comes_back(&self, maker: usize, reader: usize) -> bool {
        let (first, from) = (self.regions[maker].members[0], &self.regions[reader]);
        if from.through.iter().any(|&r| self.now(r) == maker) {
            return true;
        }
        let mut seen: HashSet<usize> = HashSet::from_iter([reader]);
        let mut stack: Vec<usize> = from.reads.iter().map(|&r| self.now(r)).filter(|&r| r != maker).collect();
        while let Some(r) = stack.pop() {
            if r == maker {
                return true;
            }
            // What is older than the maker can't wait for it.
            if self.regions[r].members.last().is_some_and(|&last| last > first) && seen.insert(r) {
                stack.extend(self.regions[r].reads.iter().map(|&r| self.now(r)));
            }
        }
        false
    }

    /// Notes which regions read which.
    fn link(&mut self) {
        let m = self.typed.module();
        let of = &self.of;
        let mut outside: HashMap<ExprId, HashSet<usize>> = HashMap::new();
        // A variable may be met before what it is bound to, where the module was not written in that order.
        let mut again = true;
        while std::mem::take(&mut again) {
            let mut seen_late: HashMap<ExprId, usize> = HashMap::new();
            for &e in self.scopes.order() {
                if of.contains_key(&e) {
                    continue;
                }
                let mut from: HashSet<usize> = HashSet::new();
                let mut add = |c: ExprId| match of.get(&c) {
                    Some(&r) => drop(from.insert(r)),
                    None => from.extend(outside.get(&c).into_iter().flatten()),
                };
                match &m[e] {
                    Expr::Var(v) => {
                        if let Some(value) = self.scopes.bound_to(*v) {
                            add(value);
                            if value > e {
                                seen_late.insert(value, from.len());
                            }
                        }
                    }
                    kept if is_kept(kept) => {}
                    other => children(other, add),
                }
                if let Some(before) = seen_late.remove(&e) {
                    again |= from.len() > before;
                }
                if !from.is_empty() {
                    outside.insert(e, from);
                }
            }
        }
        let mut reads = vec![(HashSet::new(), HashSet::new()); self.regions.len()];
        for (&e, &r) in &self.of {
            let (all, through) = &mut reads[r];
            for a in leaves(m, e) {
                match self.of.get(&a) {
                    Some(&own) if own == r => {}
                    Some(&other) => drop(all.insert(other)),
                    None => {
                        let sources = outside.get(&a).into_iter().flatten().copied();
                        through.extend(sources.clone());
                        all.extend(sources);
                    }
                }
            }
        }
        for (region, (reads, through)) in self.regions.iter_mut().zip(reads) {
            (region.reads, region.through) = (reads, through);
        }
    }

    /// The regions that wait for themselves, or for each other in circles.
    fn tangled(&self) -> HashSet<usize> {
        // Regions that wait for none that is left are taken away until nothing changes, and the same the other way round.
        let mut left: HashSet<usize> = (0..self.regions.len()).collect();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.regions.len()];
        for (r, region) in self.regions.iter().enumerate() {
            region.reads.iter().for_each(|&s| readers[s].push(r));
        }
        let reads: Vec<Vec<usize>> = self.regions.iter().map(|r| r.reads.iter().copied().collect()).collect();
        for (towards, back) in [(&reads, &readers), (&readers, &reads)] {
            let waits = |r: usize, left: &HashSet<usize>| towards[r].iter().filter(|s| left.contains(*s)).count();
            let mut waiting: HashMap<usize, usize> = left.iter().map(|&r| (r, waits(r, &left))).collect();
            let mut free: Vec<usize> = waiting.iter().filter(|(_, n)| **n == 0).map(|(&r, _)| r).collect();
            while let Some(r) = free.pop() {
                left.remove(&r);
                for &b in back[r].iter().filter(|b| left.contains(*b)) {
                    let n = waiting.get_mut(&b).expect("what is left is counted");
                    *n -= 1;
                    if *n == 0 {
                        free.push(b);
                    }
                }
            }
        }
        left
    }
}

/// Whether an expression may be in a region: the call of an operator, or of a function with the attribute `Composite`. What has no
/// arguments, such as `zeros()`, is not: nothing begins a region there, and a region reads it like a constant.
fn may_be_member(m: &Module, e: ExprId) -> bool {
    !arguments(m, e).is_empty() && (m.op_call(e).is_some() || composite(m, e).is_some())
}

/// The function of a call of a composite, and its name.
pub(super) fn composite(m: &Module, call: ExprId) -> Option<(ExprId, Name)> {
    let Expr::Call { callee, .. } = &m[call] else { return None };
    let Expr::Func(f) = &m[*callee] else { return None };
    match f.attrs.get("Composite") {
        Some(crate::ir::AttrValue::Str(name)) if f.compiler().is_none() => Some((*callee, name.as_str().into())),
        _ => None,
    }
}

/// The arguments of a call.
fn arguments(m: &Module, e: ExprId) -> &[ExprId] {
    match &m[e] {
        Expr::Call { args, .. } => args,
        _ => &[],
    }
}

/// What a call reads, tuples and projections looked through, each once.
fn leaves(m: &Module, e: ExprId) -> Vec<ExprId> {
    let mut found = Vec::new();
    let mut seen: HashSet<ExprId> = HashSet::new();
    let mut stack: Vec<ExprId> = arguments(m, e).iter().rev().copied().collect();
    while let Some(a) = stack.pop() {
        if !seen.insert(a) {
            continue;
        }
        match &m[a] {
            Expr::Tuple(fields) => stack.extend(fields.iter().rev()),
            Expr::Proj(t, _) => stack.push(*t),
            _ => found.push(a),
        }
    }
    found
}
