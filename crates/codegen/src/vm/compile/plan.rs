//! Where each expression of a function is evaluated.
//!
//! A *region* is what happens on one way through a function: its body, a branch of an `if`, a clause of a `match`, the
//! body of a function within it. An expression that one region uses belongs to that region. One that several use belongs
//! to the innermost region around them, its *home*:
//! - where the home itself uses it, so that it is needed in any case, it is evaluated at the latest before the first region
//!   that uses it is entered;
//! - where only branches of one `if` or `match` use it, each of them evaluates it by itself (up to a number of copies);
//! - else it is *delayed*: made into a function without parameters that whoever needs it first calls.
//!
//! What has effects is never moved ahead: at the first region that uses it, it is delayed unless it is known by then.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::facts::{Facts, is_kernel};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Expr, ExprId, Module, VarId, children, reachable},
};

/// An expression is compiled at most so many times, in as many branches.
const COPIES: usize = 8;

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct RegionId(u32);

/// What a region is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// The body of a function of the module.
    Outermost,
    /// The body of a function within another.
    Body(ExprId),
    /// A branch or clause of this expression.
    Arm(ExprId),
    /// The evaluation of an expression that may be delayed.
    Delayed,
}

struct Region {
    parent: Option<RegionId>,
    depth: u32,
    kind: Kind,
    /// What must be known, or delayed, in the region around it before it is entered.
    needs: Vec<Need>,
}

/// What is needed before a region is entered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// An expression, in its home.
    Value(ExprId, RegionId),
    /// What the function needs.
    Function(ExprId),
}

/// Where an expression is evaluated.
#[derive(Copy, Clone, Debug)]
pub(super) struct Home {
    pub(super) region: RegionId,
    /// Whether several ask for it.
    pub(super) shared: bool,
    /// The region of its evaluation, where it may be delayed.
    pub(super) delayed: Option<RegionId>,
    /// Whether it may be evaluated before it is asked for.
    pub(super) early: bool,
}

/// The regions that use an expression, each once, and the number of uses.
#[derive(Default)]
struct Uses {
    regions: SmallVec<[RegionId; 2]>,
    count: u32,
}

/// The regions of one function of the module.
pub(super) struct Plan<'a> {
    m: &'a Module,
    facts: &'a Facts,
    regions: Vec<Region>,
    uses: HashMap<ExprId, Uses>,
    homes: HashMap<ExprId, SmallVec<[Home; 1]>>,
    /// The regions that an expression owns: branches, clauses, a body.
    owned: HashMap<ExprId, SmallVec<[RegionId; 2]>>,
    /// The variables that functions are bound to, which they may call themselves by.
    names: HashMap<ExprId, SmallVec<[VarId; 1]>>,
    /// What depends on such a variable, as far as asked for.
    dependents: HashMap<VarId, HashSet<ExprId>>,
    ids: Vec<ExprId>,
}

impl<'a> Plan<'a> {
    /// Plans a function of the module.
    pub(super) fn new(m: &'a Module, facts: &'a Facts, func: ExprId) -> Result<Plan<'a>, Refused> {
        let body = m.func(func).body;
        let mut plan = Plan {
            m,
            facts,
            regions: Vec::new(),
            uses: HashMap::new(),
            homes: HashMap::new(),
            owned: HashMap::new(),
            names: HashMap::new(),
            dependents: HashMap::new(),
            ids: reachable(m, [body]),
        };
        for &e in &plan.ids {
            if let Expr::Let { var, value, .. } = m[e]
                && matches!(m[value], Expr::Func(_))
            {
                plan.names.entry(value).or_default().push(var);
            }
        }
        let outermost = plan.region(None, Kind::Outermost);
        plan.owned.insert(func, [outermost].into_iter().collect());
        plan.use_in(body, outermost);
        for at in (0..plan.ids.len()).rev() {
            let e = plan.ids[at];
            if let Some(uses) = plan.uses.remove(&e) {
                plan.place(e, uses)?;
            }
        }
        Ok(plan)
    }

    /// The regions that an expression owns: branches, clauses, or a body.
    pub(super) fn owned(&self, e: ExprId) -> &[RegionId] {
        &self.owned[&e]
    }

    /// The variables that a function may call itself by.
    pub(super) fn names(&self, func: ExprId) -> &[VarId] {
        self.names.get(&func).map_or(&[], |n| n)
    }

    /// Where an expression that a region uses is evaluated.
    pub(super) fn home(&self, e: ExprId, user: RegionId) -> Home {
        let homes = &self.homes[&e];
        match homes[..] {
            [home] => home,
            _ => {
                let around = |h: &&Home| self.ancestors(user).any(|r| r == h.region);
                *homes.iter().find(around).expect("every region that uses an expression has a home of it around")
            }
        }
    }

    /// What must be known before a region is entered.
    pub(super) fn needs(&self, region: RegionId) -> &[Need] {
        &self.regions[region.0 as usize].needs
    }

    fn region(&mut self, parent: Option<RegionId>, kind: Kind) -> RegionId {
        let depth = parent.map_or(0, |p| self.regions[p.0 as usize].depth + 1);
        self.regions.push(Region { parent, depth, kind, needs: Vec::new() });
        RegionId(self.regions.len() as u32 - 1)
    }

    fn parent(&self, r: RegionId) -> Option<RegionId> {
        self.regions[r.0 as usize].parent
    }

    /// A region and those around it, from within.
    fn ancestors(&self, r: RegionId) -> impl Iterator<Item = RegionId> {
        std::iter::successors(Some(r), |&r| self.parent(r))
    }

    /// The innermost region around both.
    fn common(&self, mut a: RegionId, mut b: RegionId) -> RegionId {
        while a != b {
            let up = match self.regions[a.0 as usize].depth >= self.regions[b.0 as usize].depth {
                true => &mut a,
                false => &mut b,
            };
            *up = self.parent(*up).expect("regions of one function have its body around them");
        }
        a
    }

    /// The region right inside of `outer` that `inner` is in or is.
    fn within(&self, outer: RegionId, inner: RegionId) -> Option<RegionId> {
        self.ancestors(inner).take_while(|&r| r != outer).last()
    }

    fn use_in(&mut self, e: ExprId, region: RegionId) {
        let leaf = match &self.m[e] {
            Expr::Var(_) | Expr::Constant(_) | Expr::Global(_) | Expr::Op(_) | Expr::Constructor(_) => true,
            Expr::Func(f) => is_kernel(f),
            _ => false,
        };
        if !leaf {
            let uses = self.uses.entry(e).or_default();
            uses.count += 1;
            if !uses.regions.contains(&region) {
                uses.regions.push(region);
            }
        }
    }

    /// Says that something must be known before the regions that use it are entered.
    fn need(&mut self, need: Need, home: RegionId, users: &[RegionId]) {
        for &user in users {
            if let Some(entered) = self.within(home, user) {
                let needs = &mut self.regions[entered.0 as usize].needs;
                if !needs.contains(&need) {
                    needs.push(need);
                }
            }
        }
    }

    /// Decides where an expression is evaluated whose users are all placed, and says so to its parts.
    fn place(&mut self, e: ExprId, uses: Uses) -> Result<(), Refused> {
        if let Expr::Func(f) = &self.m[e] {
            let home = uses.regions.iter().copied().reduce(|a, b| self.common(a, b)).expect("it is used");
            let body = self.region(Some(home), Kind::Body(e));
            self.owned.insert(e, [body].into_iter().collect());
            self.need(Need::Function(e), home, &uses.regions);
            self.use_in(f.body, body);
            return Ok(());
        }
        let shared = uses.count > 1;
        let straight = matches!(self.m[e], Expr::Call { .. } | Expr::Tuple(_) | Expr::Proj(..));
        let (effect, cheap) = (self.facts.has_effect(e), self.facts.is_cheap(e));
        let mut homes: SmallVec<[Home; 1]> = SmallVec::new();
        let mut groups = vec![uses.regions];
        while let Some(group) = groups.pop() {
            if let [region] = group[..] {
                homes.push(Home { region, shared, delayed: None, early: true });
                continue;
            }
            let home = group.iter().copied().reduce(|a, b| self.common(a, b)).expect("a group is not empty");
            if let Some(parts) = self.parted_by_recursion(e, home, &group) {
                if !straight || effect {
                    let message = "this is evaluated once for a recursive function and for what is around it, yet needs the function";
                    return Err(Diagnostic::new(message).at(self.m.span(e).cloned()).into());
                }
                groups.extend(parts);
                continue;
            }
            let needed = group.contains(&home);
            let by_itself = !needed && !cheap && !effect && straight;
            if by_itself && homes.len() + groups.len() < COPIES && self.exclude_each_other(home, &group) {
                groups.extend(self.grouped(home, &group));
                continue;
            }
            let early = !effect && (needed || cheap);
            let delayed = (!early).then(|| self.region(Some(home), Kind::Delayed));
            self.need(Need::Value(e, home), home, &group);
            homes.push(Home { region: home, shared: true, delayed, early });
        }
        for home in &homes {
            self.use_parts(e, home.delayed.unwrap_or(home.region));
        }
        self.homes.insert(e, homes);
        Ok(())
    }

    fn use_parts(&mut self, e: ExprId, region: RegionId) {
        let m = self.m;
        match &m[e] {
            Expr::If { cond, then, otherwise } => {
                self.use_in(*cond, region);
                self.use_arms(e, region, &[*then, *otherwise]);
            }
            Expr::Match { data, clauses, .. } => {
                self.use_in(*data, region);
                let bodies: Vec<ExprId> = clauses.iter().map(|c| c.body).collect();
                self.use_arms(e, region, &bodies);
            }
            expr => children(expr, |c| self.use_in(c, region)),
        }
    }

    fn use_arms(&mut self, e: ExprId, region: RegionId, arms: &[ExprId]) {
        let mut regions = SmallVec::new();
        for &arm in arms {
            let r = self.region(Some(region), Kind::Arm(e));
            self.use_in(arm, r);
            regions.push(r);
        }
        self.owned.insert(e, regions);
    }

    /// The users by the region right inside of `home` that they are in, in order of discovery.
    fn grouped(&self, home: RegionId, users: &[RegionId]) -> Vec<SmallVec<[RegionId; 2]>> {
        let mut groups: Vec<(Option<RegionId>, SmallVec<[RegionId; 2]>)> = Vec::new();
        for &user in users {
            let within = self.within(home, user);
            match groups.iter_mut().find(|g| g.0 == within) {
                Some(g) => g.1.push(user),
                None => groups.push((within, [user].into_iter().collect())),
            }
        }
        groups.into_iter().map(|g| g.1).collect()
    }

    /// Whether all users are in branches of one `if` or `match` of the home, so that one of them runs at most.
    fn exclude_each_other(&self, home: RegionId, users: &[RegionId]) -> bool {
        let mut kinds = users.iter().map(|&u| self.within(home, u).map(|r| self.regions[r.0 as usize].kind));
        let first = kinds.next().flatten();
        matches!(first, Some(Kind::Arm(_))) && kinds.all(|k| k == first)
    }

    /// The users inside and outside of a function that the expression calls, or mentions, by a name that is bound to the
    /// function only after it was made.
    fn parted_by_recursion(
        &mut self,
        e: ExprId,
        home: RegionId,
        users: &[RegionId],
    ) -> Option<[SmallVec<[RegionId; 2]>; 2]> {
        for &user in users {
            let Some(within) = self.within(home, user) else { continue };
            let Kind::Body(func) = self.regions[within.0 as usize].kind else { continue };
            let names = self.names.get(&func).cloned().unwrap_or_default();
            if names.into_iter().any(|name| self.depends_on(e, name)) {
                let (inside, outside) = users.iter().copied().partition(|&u| self.within(home, u) == Some(within));
                return Some([inside, outside]);
            }
        }
        None
    }

    fn depends_on(&mut self, e: ExprId, name: VarId) -> bool {
        let (m, ids) = (self.m, &self.ids);
        let dependents = self.dependents.entry(name).or_insert_with(|| {
            let mut found: HashSet<ExprId> = HashSet::new();
            for &id in ids {
                let mut depends = matches!(m[id], Expr::Var(v) if v == name);
                children(&m[id], |c| depends |= found.contains(&c));
                if depends {
                    found.insert(id);
                }
            }
            found
        });
        dependents.contains(&e)
    }
}
