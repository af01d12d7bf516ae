//! Schedules that are gone through for their numbers alone.
//!
//! What tiles are made of is the same at every size, but for numbers in it. So where a kernel is for many sizes, expressions have names
//! for the numbers in them that change (strides, bounds of conditions) before any tile is built: all that tiles are built of is then either
//! the same at all sizes or a name, and nothing within a tile needs to be built to know what the names stand for. What is met on the way
//! (the form of expressions, extents of axes that do not change, numbers that were the same at all sizes looked at) is compared with
//! what was met when the kernel was made: where it differs, the schedule has to be gone through in full.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};

use super::{Decisions, Emitter, flat_sum, sizes::Sizes};
use crate::{
    loops::{AxisId, BufferId, LoopKind, Scalar, ScalarKind, Space, Stages, Stmt},
    lower::affine::{Affine, Substitution},
    machine::Core,
    tensor::DType,
};

/// What is known of what schedules meet by the same decisions.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Noted {
    /// By number, in the order in which they are met: what it is at all sizes, where that is the same.
    fixed: Vec<Option<i64>>,
    /// Of everything else.
    form: u64,
    /// Whether numbers within tiles depend on the size in other ways.
    is_opaque: bool,
}

impl Noted {
    pub(super) fn is_opaque(&self) -> bool {
        self.is_opaque
    }
}

/// What a schedule met.
pub(super) struct Met {
    noted: Option<Arc<Noted>>,
    is_dry: bool,
    is_opaque: bool,
    numbers: Vec<i64>,
    /// Those of them that have names.
    pub(super) named: Vec<(AxisId, i64)>,
    form: DefaultHasher,
}

/// Expressions that were met, by address: which it was, itself and what it became.
type Done = HashMap<usize, (usize, Scalar, Scalar)>;

/// What changes in a kernel from size to size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Numbers {
    /// The first numbers of the kernel's outline.
    pub(crate) first: Vec<i64>,
    /// Bytes of each buffer in the workspace.
    pub(crate) scratch: Vec<i64>,
}

impl Met {
    pub(super) fn new(noted: Option<Arc<Noted>>, is_dry: bool) -> Met {
        Met { noted, is_dry, is_opaque: false, numbers: Vec::new(), named: Vec::new(), form: DefaultHasher::new() }
    }

    /// Whether all of it is as noted.
    fn is_as_noted(&self) -> bool {
        let same = |(n, fixed): (&i64, &Option<i64>)| fixed.is_none_or(|f| f == *n);
        self.noted.as_ref().is_some_and(|noted| {
            !self.is_opaque
                && !noted.is_opaque
                && self.numbers.len() == noted.fixed.len()
                && self.form.finish() == noted.form
                && self.numbers.iter().zip(&noted.fixed).all(same)
        })
    }
}

fn dry_run(
    group: &Stages,
    unit: Core,
    changing: &HashSet<AxisId>,
    decisions: Option<&Decisions>,
) -> Option<(Decisions, Met, Numbers)> {
    let (scheduled, sizes) = super::scheduled("", group, unit, &[], Some(Sizes::new(changing, decisions, true)));
    let (decisions, met, mut first) = sizes?.decided()?;
    first.extend(met.named.iter().map(|n| n.1));
    let shared = scheduled.kernel.buffers.iter().filter(|b| b.space == Space::Shared);
    let scratch = shared.map(|b| b.len * b.dtype.bytes() as i64).collect();
    Some((decisions, met, Numbers { first, scratch }))
}

/// Decisions for groups that are alike but for the extents of axes that change, the first of which they are made for, with what is found
/// out by all of them about numbers in expressions.
pub(crate) fn noted(groups: &[&Stages], unit: Core, changing: &HashSet<AxisId>) -> Option<Decisions> {
    let (mut decisions, first, _) = dry_run(groups.first()?, unit, changing, None)?;
    let form = first.form.finish();
    let mut fixed: Vec<Option<i64>> = first.numbers.iter().copied().map(Some).collect();
    for group in &groups[1..] {
        // A size at which decisions can't be taken says nothing of others.
        let Some((_, met, _)) = dry_run(group, unit, changing, Some(&decisions)) else { continue };
        if met.form.finish() == form && met.numbers.len() == fixed.len() {
            fixed.iter_mut().zip(met.numbers).for_each(|(f, n)| *f = f.filter(|f| *f == n));
        }
    }
    decisions.noted = Some(Arc::new(Noted { fixed, form, is_opaque: first.is_opaque }));
    Some(decisions)
}

/// What changes in a kernel that was made by these decisions, at another size; none where that takes the whole schedule to tell.
pub(crate) fn numbers_sized(
    group: &Stages,
    unit: Core,
    changing: &HashSet<AxisId>,
    decisions: &Decisions,
) -> Option<Numbers> {
    if decisions.tell_nothing() {
        return None;
    }
    let (_, met, numbers) = dry_run(group, unit, changing, Some(decisions))?;
    met.is_as_noted().then_some(numbers)
}

impl Emitter {
    /// Notes something that tiles are built of, and that is the same at all sizes.
    pub(super) fn same(&mut self, what: impl Hash) {
        if let Some(sizes) = &mut self.sizes {
            what.hash(&mut sizes.met.form);
        }
    }

    /// Notes an axis, and its extent where that does not change.
    pub(super) fn same_axis(&mut self, axis: AxisId, extent: i64) {
        if self.is_sized() {
            let extent = if self.changes(axis) { -1 } else { extent };
            self.same((axis, extent));
        }
    }

    /// Notes that tiles are built of more than was noted.
    pub(super) fn opaque(&mut self) {
        if let Some(sizes) = &mut self.sizes {
            sizes.met.is_opaque = true;
        }
    }

    /// A number that may change from size to size: itself where it did not.
    fn met_number(&mut self, n: i64) -> Option<AxisId> {
        // Variables are the same whether or not numbers have names.
        let axis = self.fresh();
        let met = &mut self.sizes.as_mut()?.met;
        let at = met.numbers.len();
        met.numbers.push(n);
        let has_name = met.noted.as_ref().is_some_and(|noted| noted.fixed.get(at) == Some(&None));
        has_name.then(|| {
            met.named.push((axis, n));
            axis
        })
    }

    /// Whether the schedule is gone through for its numbers alone: then nothing looks at statements.
    pub(super) fn is_dry(&self) -> bool {
        self.sizes.as_ref().is_some_and(|s| s.met.is_dry)
    }

    /// What the innermost loops of a kernel for many sizes hold: nothing in it may be decided, or have a name of its own.
    pub(super) fn within(&mut self, build: impl FnOnce(&mut Self) -> Stmt) -> Stmt {
        let so_far = |e: &Self| e.sizes.as_ref().map(|s| (s.taken(), s.numbers.len(), s.met.numbers.len()));
        if self.is_dry() {
            return Stmt::Block(vec![]);
        }
        let before = so_far(self);
        let was = std::mem::replace(&mut self.is_within, self.sizes.is_some());
        let built = build(self);
        self.is_within = was;
        debug_assert_eq!(before, so_far(self), "tiles are built of what is the same at all sizes");
        built
    }

    /// The expression over flat buffers; where the kernel is for many sizes, with names for the numbers in it that change. What goes through
    /// a schedule for its numbers is given anything.
    pub(super) fn named(&mut self, e: &Scalar) -> Scalar {
        match self.is_sized() {
            true => self.named_parts(e, &mut Done::new()),
            false => self.flatten(e),
        }
    }

    /// The place in a buffer, in the same way.
    pub(super) fn named_place(&mut self, place: &Scalar) -> Scalar {
        match self.is_sized() {
            true => self.named_sum(place, &mut Done::new()),
            false => place.clone(),
        }
    }

    /// Statements of a routine, in the same way; what is bound to `numbers` changes.
    pub(super) fn named_statements(&mut self, s: &Stmt, numbers: &[AxisId]) -> Stmt {
        self.named_stmt(s, numbers, &mut Done::new()).unwrap_or(Stmt::Block(vec![]))
    }

    fn named_parts(&mut self, e: &Scalar, done: &mut Done) -> Scalar {
        let dtype = e.dtype();
        match e.kind() {
            ScalarKind::Int(i) if dtype == DType::Bool => {
                self.same((0, i));
                return e.clone();
            }
            ScalarKind::Int(i) => {
                self.same((1, dtype));
                return self.met_number(*i).map_or_else(|| e.clone(), |n| Scalar::axis(n).cast(dtype));
            }
            ScalarKind::Float(f) => {
                self.same((2, dtype));
                let bits = self.met_number(f.to_bits() as i64);
                return bits.map_or_else(|| e.clone(), |n| Scalar::axis(n).bits(DType::F64).cast(dtype));
            }
            ScalarKind::Axis(a) => {
                self.same((3, dtype, a));
                return e.clone();
            }
            _ => {}
        }
        if let Some((number, _, new)) = done.get(&e.key()) {
            let (number, new) = (*number, new.clone());
            self.same((4, number));
            return new;
        }
        let new = match e.kind() {
            ScalarKind::Read(t, index) if self.buffer_of.contains_key(t) => {
                let buffer = self.buffer_of[t];
                self.same((5, dtype, t));
                let place = match flat_sum(&self.group, *t, index) {
                    Some(sum) => self.named_terms(buffer, sum),
                    None => {
                        let flat = self.flat(*t, index);
                        self.named_at(buffer, &flat, done)
                    }
                };
                if self.is_dry() { e.clone() } else { Scalar::read(buffer, vec![place], dtype) }
            }
            kind => {
                let op = match kind {
                    ScalarKind::Binary(op, ..) => *op as u32,
                    ScalarKind::Unary(op, _) => *op as u32,
                    ScalarKind::Read(t, _) => t.0,
                    _ => 0,
                };
                let operands = e.operands();
                self.same((6, dtype, std::mem::discriminant(kind), op, operands.len()));
                match self.is_dry() {
                    true => {
                        operands.into_iter().for_each(|o| _ = self.named_parts(o, done));
                        e.clone()
                    }
                    false => e.map_operands(|o| self.named_parts(o, done)),
                }
            }
        };
        // The expression is kept, so that its address stays its own.
        done.insert(e.key(), (done.len(), e.clone(), new.clone()));
        new
    }

    fn named_sum(&mut self, e: &Scalar, done: &mut Done) -> Scalar {
        match Affine::of(e) {
            Some(sum) => self.named_products(sum),
            None => {
                self.same(7);
                self.named_parts(e, done)
            }
        }
    }

    fn named_products(&mut self, sum: Affine) -> Scalar {
        self.same((8, sum.terms.len()));
        let base = self.met_number(sum.base);
        let mut all: Option<Scalar> = None;
        for (axis, c) in sum.terms {
            self.same(axis);
            let by = self.met_number(c);
            if self.is_dry() {
                continue;
            }
            let term = match by {
                Some(by) => Scalar::axis(axis) * Scalar::axis(by),
                None => Scalar::axis(axis) * c,
            };
            all = Some(match all {
                Some(all) => all + term,
                None => term,
            });
        }
        let base = base.map_or_else(|| Scalar::index(sum.base), Scalar::axis);
        all.map_or(base.clone(), |all| all + base)
    }

    /// A place in a buffer. Those of registers are the same at all sizes.
    fn named_terms(&mut self, buffer: BufferId, sum: Affine) -> Scalar {
        if !self.is_register(buffer) {
            return self.named_products(sum);
        }
        self.same((9, sum.base, &sum.terms));
        if self.is_dry() { Scalar::index(0) } else { sum.in_order() }
    }

    fn named_at(&mut self, buffer: BufferId, place: &Scalar, done: &mut Done) -> Scalar {
        match Affine::of(place) {
            Some(sum) => self.named_terms(buffer, sum),
            None => {
                if self.is_register(buffer) {
                    self.opaque();
                }
                self.same(7);
                self.named_parts(place, done)
            }
        }
    }

    fn is_register(&self, buffer: BufferId) -> bool {
        self.buffers[buffer.0 as usize].space == Space::Register
    }

    /// None where the schedule is gone through for its numbers.
    fn named_stmt(&mut self, s: &Stmt, numbers: &[AxisId], done: &mut Done) -> Option<Stmt> {
        let is_dry = self.is_dry();
        self.same(std::mem::discriminant(s));
        Some(match s {
            Stmt::Block(all) => {
                self.same(all.len());
                let all = all.iter().map(|s| self.named_stmt(s, numbers, done));
                match is_dry {
                    true => all.for_each(drop),
                    false => return all.collect::<Option<Vec<Stmt>>>().map(Stmt::Block),
                }
                return None;
            }
            Stmt::For { var, extent, kind, body } => {
                self.same((var, *kind as u32));
                let extent = match (kind, extent.as_int()) {
                    (LoopKind::Unrolled | LoopKind::Vector, Some(n)) => {
                        self.same(n);
                        extent.clone()
                    }
                    _ => self.named_parts(extent, done),
                };
                Stmt::For { var: *var, extent, kind: *kind, body: Box::new(self.named_stmt(body, numbers, done)?) }
            }
            Stmt::Store { buffer, index, value } => {
                self.same(buffer);
                let buffer = self.buffer_of[buffer];
                let index = self.named_at(buffer, index, done);
                let value = self.named_parts(value, done);
                (!is_dry).then_some(Stmt::Store { buffer, index, value })?
            }
            Stmt::Prefetch { buffer, index } => {
                // What is in no memory is not prefetched.
                let known = self.buffer_of.get(buffer).copied();
                self.same((buffer, known.is_some()));
                let Some(buffer) = known else { return (!is_dry).then_some(Stmt::Block(vec![])) };
                let index = self.named_sum(index, done);
                (!is_dry).then_some(Stmt::Prefetch { buffer, index })?
            }
            Stmt::Transpose { from, at, stride, to, extent } => {
                self.same((from, to, extent));
                let (from, to) = (self.buffer_of[from], self.buffer_of[to]);
                let at = self.named_sum(at, done);
                let stride = self.named_parts(stride, done);
                (!is_dry).then_some(Stmt::Transpose { from, at, stride, to, extent: *extent })?
            }
            Stmt::Let { var, value, body } => {
                self.same(var);
                let value = match value.as_int().filter(|_| numbers.contains(var)) {
                    Some(n) => self.number(n),
                    None => self.named_parts(value, done),
                };
                Stmt::Let { var: *var, value, body: Box::new(self.named_stmt(body, numbers, done)?) }
            }
            Stmt::If { cond, then, otherwise } => {
                self.same(otherwise.is_some());
                let cond = self.named_parts(cond, done);
                let then = self.named_stmt(then, numbers, done);
                let otherwise = otherwise.as_ref().map(|o| self.named_stmt(o, numbers, done));
                Stmt::If { cond, then: Box::new(then?), otherwise: otherwise.and_then(|o| o.map(Box::new)) }
            }
            Stmt::While { cond, body } => {
                let cond = self.named_parts(cond, done);
                Stmt::While { cond, body: Box::new(self.named_stmt(body, numbers, done)?) }
            }
            Stmt::Tiles { .. } => {
                self.opaque();
                let mut flat = Substitution::new(self.flattening());
                s.map(&mut |e| flat.apply(e), &|t| self.buffer_of[&t])
            }
        })
    }
}
