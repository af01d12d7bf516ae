//! Schedules of kernels whose extents change: loops of the same form at every size.
//!
//! A schedule for given extents chooses (which axis is the vector, how large tiles are, in which order loops run), and cuts what does
//! not come out even as the extents ask for. Of a kernel that is to serve many sizes, what is chosen at one is noted, and taken at all
//! others; and loops over axes that change keep their form whatever the extents are: so many whole tiles, then smaller ones, and any of
//! these may be none. So kernels for two sizes differ in numbers only, which a [`Family`](crate::loops::Family) makes one of.

use std::{any::Any, sync::Arc};

use hashbrown::{HashMap, HashSet};

use super::{Emitter, Loop, bind};
use crate::{
    loops::{
        Axis, AxisId, BinOp, Kernel, LoopKind, Scalar, ScalarKind, Stages, Stmt,
        affine::{self, Affine, Facts, Meaning, Memo},
    },
    lower::affine::for_each_node,
    machine::Core,
    tensor::DType,
};

/// Wider edges are not treated place by place.
const WIDEST_EDGE: i64 = 3;

/// A choice, and the first variable that was free after it was made.
#[derive(Clone)]
struct Decision {
    made: Arc<dyn Any + Send + Sync>,
    next_axis: u32,
}

/// What was chosen for a kernel at one size, to be chosen at others.
#[derive(Clone, Default)]
pub struct Decisions(Arc<Vec<Decision>>);

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} decisions", self.0.len())
    }
}

/// How a kernel is scheduled whose extents change.
pub(super) struct Sizes {
    /// Axes and loop variables whose extents do.
    changing: HashSet<AxisId>,
    /// What is decided here, or what was at another size.
    decisions: Decisions,
    /// The decision that is taken next; none while they are made.
    next: Option<usize>,
    /// Whether what was chosen at another size can't be chosen here.
    diverged: bool,
    /// Numbers with names, which are bound around the whole kernel.
    numbers: Vec<(AxisId, i64)>,
}

/// The axes of stages whose extents differ between groups that are otherwise lowered alike; none where they are not.
pub fn changing(groups: &[&Stages]) -> Option<HashSet<AxisId>> {
    let axes: Vec<Vec<(AxisId, i64)>> = groups.iter().map(|g| all_axes(g)).collect();
    let first = axes.first()?;
    let mut found = HashSet::new();
    for other in &axes[1..] {
        if other.len() != first.len() {
            return None;
        }
        for (a, b) in first.iter().zip(other) {
            if a.0 != b.0 {
                return None;
            }
            if a.1 != b.1 {
                found.insert(a.0);
            }
        }
    }
    Some(found)
}

fn all_axes(group: &Stages) -> Vec<(AxisId, i64)> {
    use crate::loops::{Body, Definition, Stage};
    let of = |s: &Stage| -> Vec<(AxisId, i64)> {
        let reduced = match &s.body {
            Body::Reduce { axes, .. } => &axes[..],
            Body::Map(_) => &[],
        };
        s.axes.iter().chain(reduced).map(|a| (a.id, a.extent)).collect()
    };
    let definition = |d: &Definition| match d {
        Definition::Stage(s) => of(s),
        Definition::Routine(r) => {
            r.starts.iter().flat_map(of).chain(r.indices.iter().map(|a| (a.id, a.extent))).collect()
        }
    };
    group.definitions.iter().flat_map(definition).collect()
}

/// The kernel of a group of which these axes change, by decisions that were made at another size; or with decisions of its own, where none
/// are given. None where those can't be taken here.
pub fn schedule_sized(
    name: &str,
    group: &Stages,
    unit: Core,
    changing: &HashSet<AxisId>,
    decisions: Option<&Decisions>,
) -> Option<(Kernel, Decisions)> {
    let sizes = Sizes {
        changing: changing.clone(),
        decisions: decisions.cloned().unwrap_or_default(),
        next: decisions.map(|_| 0),
        diverged: false,
        numbers: Vec::new(),
    };
    let (kernel, sizes) = super::scheduled(name, group, unit, &[], Some(sizes));
    let sizes = sizes.filter(|s| !s.diverged)?;
    Some((kernel.kernel, sizes.decisions))
}

/// The intervals of values of variables, for conditions that hold all over a piece of a loop.
struct Known {
    ranges: HashMap<AxisId, (i64, i64)>,
    numbers: HashMap<AxisId, Affine>,
}

impl affine::Scope for Known {
    fn meaning(&self, axis: AxisId) -> Meaning<'_> {
        match self.numbers.get(&axis) {
            Some(n) => Meaning::Sum(n),
            None => Meaning::Atom(Facts { range: self.ranges.get(&axis).copied(), level: 0, varying: false }),
        }
    }
}

/// The parts of a condition that all must hold.
fn parts_of<'a>(c: &'a Scalar, out: &mut Vec<&'a Scalar>) {
    match c.kind() {
        ScalarKind::Binary(BinOp::And, a, b) if a.dtype() == DType::Bool => {
            parts_of(a, out);
            parts_of(b, out);
        }
        _ => out.push(c),
    }
}

/// The variables of a tile's place along an axis whose extent changes.
pub(super) struct Along {
    /// Variables.
    pub(super) axes: Vec<AxisId>,
    /// Whether no window reaches over an edge there.
    pub(super) inside: bool,
    /// Whether there is such a place at this size.
    pub(super) is_met: bool,
}

impl Emitter {
    /// What is chosen here: what was chosen at another size, where the kernel is for many.
    pub(super) fn decide<T: Any + Clone + Send + Sync>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        let Some(sizes) = &mut self.sizes else { return make(self) };
        let Some(next) = sizes.next else {
            let made = make(self);
            let decision = Decision { made: Arc::new(made.clone()), next_axis: self.next_axis };
            if let Some(sizes) = &mut self.sizes {
                Arc::make_mut(&mut sizes.decisions.0).push(decision);
            }
            return made;
        };
        sizes.next = Some(next + 1);
        let decision = sizes.decisions.0.get(next);
        let made = decision.and_then(|d| Some((d.made.downcast_ref::<T>()?.clone(), d.next_axis)));
        match made {
            Some((made, next_axis)) => {
                self.next_axis = next_axis;
                made
            }
            None => {
                self.diverge();
                make(self)
            }
        }
    }

    /// What was chosen elsewhere is not what can be done here.
    pub(super) fn diverge(&mut self) {
        if let Some(sizes) = &mut self.sizes {
            sizes.diverged = true;
        }
    }

    /// Whether the kernel is for many sizes.
    pub(super) fn is_sized(&self) -> bool {
        self.sizes.is_some()
    }

    /// The axes and loop variables whose extents change, where the kernel is for many sizes.
    pub(super) fn changing(&self) -> Option<&HashSet<AxisId>> {
        self.sizes.as_ref().map(|s| &s.changing)
    }

    /// Whether an axis' extent, or how often a loop runs, changes from size to size.
    pub(super) fn changes(&self, axis: AxisId) -> bool {
        self.sizes.as_ref().is_some_and(|s| s.changing.contains(&axis))
    }

    /// Notes that how often a loop over this variable runs changes from size to size, where the kernel is for many.
    pub(super) fn mark(&mut self, axis: AxisId) {
        if let Some(sizes) = &mut self.sizes {
            sizes.changing.insert(axis);
        }
    }

    /// A number that changes from size to size: an expression that is the same whatever it is.
    pub(super) fn number(&mut self, n: i64) -> Scalar {
        let axis = self.fresh();
        match &mut self.sizes {
            Some(sizes) => sizes.numbers.push((axis, n)),
            None => return Scalar::index(n),
        }
        Scalar::axis(axis)
    }

    /// How often a loop runs.
    pub(super) fn turns(&mut self, l: &Loop) -> Scalar {
        if self.changes(l.var) { self.number(l.extent) } else { Scalar::index(l.extent) }
    }

    /// One loop; none where it is known to run once.
    pub(super) fn one_loop(&mut self, l: &Loop, kind: LoopKind, body: Stmt) -> Stmt {
        if self.changes(l.var) {
            let extent = self.number(l.extent);
            return Stmt::For { var: l.var, extent, kind, body: Box::new(body) };
        }
        match l.extent {
            1 => bind(l.var, Scalar::index(0), body),
            n => super::for_(l.var, n, kind, body),
        }
    }

    /// How many places from either end of an axis windows may reach over an edge, where that is few: those in between are inside at this
    /// size.
    pub(super) fn edge(&self, axis: &Axis, others: &[Axis], value: &Scalar) -> Option<i64> {
        let mut parts = Vec::new();
        let mut conditions = Vec::new();
        for_each_node(value, &mut |n| {
            if let ScalarKind::Select(c, ..) = n.kind()
                && !affine::reads(c)
            {
                conditions.push(c.clone());
            }
        });
        conditions.iter().for_each(|c| parts_of(c, &mut parts));
        let is_about = |p: &&Scalar| affine::any(p, &mut |n| matches!(n.kind(), ScalarKind::Axis(a) if *a == axis.id));
        let about: Vec<&Scalar> = parts.into_iter().filter(is_about).collect();
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        let numbers: HashMap<AxisId, Affine> = numbers.map(|&(a, n)| (a, Affine::constant(n))).collect();
        (1..=WIDEST_EDGE).find(|&edge| {
            let last = axis.extent - 1 - edge;
            let mut ranges: HashMap<AxisId, (i64, i64)> =
                others.iter().map(|a| (a.id, (0, (a.extent - 1).max(0)))).collect();
            ranges.insert(axis.id, (edge, last));
            let known = Known { ranges, numbers: numbers.clone() };
            let mut memo = Memo::default();
            edge <= last && about.iter().all(|p| affine::decide(p, &known, &mut memo) == Some(true))
        })
    }

    /// The value that a tile combines, without the conditions that hold at all its places because these lie inside. Conditions about
    /// places at an edge stay as they are, so that all sizes have the same ones.
    pub(super) fn resolved(&mut self, value: &Scalar, ranges: HashMap<AxisId, (i64, i64)>, places: &[Along]) -> Scalar {
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        let known = Known { ranges, numbers: numbers.map(|&(a, n)| (a, Affine::constant(n))).collect() };
        let mut conditions: Vec<Scalar> = Vec::new();
        for_each_node(value, &mut |n| {
            if let ScalarKind::Select(c, ..) = n.kind()
                && !affine::reads(c)
                && !conditions.iter().any(|known| known.key() == c.key())
            {
                conditions.push(c.clone());
            }
        });
        let mut memo = Memo::default();
        let mut gone: Vec<Vec<bool>> = Vec::new();
        let mut empty = Vec::new();
        for c in &conditions {
            let mut parts = Vec::new();
            parts_of(c, &mut parts);
            let about = |p: &Scalar| -> Vec<&Along> {
                let is_in =
                    |a: &&Along| affine::any(p, &mut |n| matches!(n.kind(), ScalarKind::Axis(x) if a.axes.contains(x)));
                places.iter().filter(is_in).collect()
            };
            let inside = |p: &&Scalar| {
                let about = about(p);
                !about.is_empty() && about.iter().all(|a| a.inside)
            };
            empty.push(parts.iter().map(|p| about(p).iter().any(|a| !a.is_met)).collect::<Vec<bool>>());
            // Of a piece that there is none of here, other sizes tell.
            let unmet = |p: &&Scalar| about(p).iter().any(|a| !a.is_met);
            let holds = |p: &&Scalar| inside(p) && (unmet(p) || affine::decide(p, &known, &mut memo) == Some(true));
            gone.push(parts.iter().map(holds).collect());
        }
        let decided = self.decide(|_| gone.clone());
        // A piece that there is none of may have any form.
        let alike = decided.len() == gone.len()
            && decided
                .iter()
                .zip(&gone)
                .zip(&empty)
                .all(|((d, g), e)| d.len() == g.len() && d.iter().zip(g).zip(e).all(|((d, g), e)| !d || *g || *e));
        if !alike {
            self.diverge();
            return value.clone();
        }
        let left = |c: &Scalar, gone: &[bool]| {
            let mut parts = Vec::new();
            parts_of(c, &mut parts);
            let left = parts.into_iter().zip(gone).filter(|(_, gone)| !**gone).map(|(p, _)| p.clone());
            left.reduce(Scalar::and).unwrap_or_else(|| Scalar::bool(true))
        };
        let left: HashMap<usize, Scalar> =
            conditions.iter().zip(&decided).map(|(c, gone)| (c.key(), left(c, gone))).collect();
        rebuilt(value, &left, &mut HashMap::new())
    }

    /// [`Emitter::resolved`] of a value without conditions: there is nothing to decide at any size.
    pub(super) fn unconditional(&mut self, value: Scalar) -> Scalar {
        if !self.decide(|_| Vec::<Vec<bool>>::new()).is_empty() {
            self.diverge();
        }
        value
    }

    /// The statement with the named numbers bound around it.
    pub(super) fn with_numbers(&self, body: Stmt) -> Stmt {
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        numbers.rev().fold(body, |body, &(var, n)| bind(var, Scalar::index(n), body))
    }
}

/// The value with other conditions, by the address of those that it has.
fn rebuilt(e: &Scalar, with: &HashMap<usize, Scalar>, done: &mut HashMap<usize, Scalar>) -> Scalar {
    if let Some(new) = done.get(&e.key()) {
        return new.clone();
    }
    let new = match e.kind() {
        ScalarKind::Read(..) => e.clone(),
        ScalarKind::Select(c, a, b) => {
            let a = rebuilt(a, with, done);
            let b = rebuilt(b, with, done);
            Scalar::select(with.get(&c.key()).unwrap_or(c).clone(), a, b)
        }
        _ => e.map_operands(|o| rebuilt(o, with, done)),
    };
    done.insert(e.key(), new.clone());
    new
}

/// An extent that changes in pieces of `largest`, then of smaller ones: (first element, pieces, extent of each), any of which may be none.
pub(super) fn descending(extent: i64, sizes: &[i64]) -> Vec<(i64, i64, i64)> {
    let mut done = 0;
    sizes
        .iter()
        .map(|&size| {
            let (first, count) = (done, (extent - done) / size);
            done += count * size;
            (first, count, size)
        })
        .collect()
}

/// What is left of an extent after tiles of a size goes through tiles of these, one of each at most: powers of two.
pub(super) fn tails(size: i64) -> Vec<i64> {
    (0..63).rev().map(|p| 1 << p).filter(|n| *n < size).collect()
}
