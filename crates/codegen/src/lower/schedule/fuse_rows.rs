//! Several steps as one loop over rows: axes that all steps share, and along which they read each other only at the same place,
//! become outer loops around all of them. What one step writes there is read back from the cache, and what nobody else reads is a
//! row on the thread's own stack instead of a tensor in memory.

use hashbrown::{HashMap, HashSet};

use super::{
    Emitter, Loop, Threads, cut, cut_evenly,
    sizes::{descending, tails},
};
use crate::{
    loops::{Axis, AxisId, BufferId, Combine, Scalar, ScalarKind, Space, Stmt, TensorDecl, TensorId},
    lower::{
        affine::{Substitution, replace_axes},
        normalize::{Reduction, Step, reads},
    },
};

/// Bytes of a thread's stack that rows of intermediate tensors may take at most, by piece of the loop; there are up to two.
const STACK: i64 = 256 << 10;
/// Bytes of a page of memory, and how far from a whole number of pages rows of changing extents lie apart.
const PAGE: i64 = 4096;
const APART: i64 = 320;
/// Elements at once along an axis that is shared and lies densest in memory, in vectors.
const VECTORS: i64 = 4;

/// Operands of a product are copied before all of it where less than so many products, one for each matrix of a batch, stand side by side.
const APART_BELOW: i64 = 16;

/// An axis that all steps share.
#[derive(Clone)]
struct Shared {
    extent: i64,
    /// By step, which of its axes it is.
    at: Vec<usize>,
}

/// How the loop over rows goes.
#[derive(Clone)]
struct Plan {
    shared: Vec<Shared>,
    /// The shared axis of which several places are treated at once, and how many.
    block: Option<(usize, i64)>,
}

/// The tensors of which a thread may have only the rows at hand.
#[derive(Clone, Default)]
struct Own {
    /// The tensor whose rows each overwrites; itself, where none.
    over: HashMap<TensorId, TensorId>,
    /// Bytes of the rows whose extents are the same at all sizes.
    fixed: i64,
    /// The others: the extent that changes, the bytes of what there is for each place along it, and of an element.
    changing: HashMap<TensorId, (i64, i64, i64)>,
}

impl Own {
    /// How far the rows of changing extents lie apart, by tensor, in places along the extent that changes: the same at all sizes, so that addresses
    /// are those of a fixed layout. None where that is too little, or where there is no place for the rest.
    fn pitches(&self, bytes: i64) -> Option<HashMap<TensorId, i64>> {
        let each = (bytes - self.fixed) / (self.changing.len() as i64).max(1);
        let pitch = |(&t, &(extent, per_place, bytes)): (&TensorId, &(i64, i64, i64))| {
            let most = each / per_place.max(1);
            // Not powers of two apart, which would meet in the same sets of the caches.
            let (page, apart) = (PAGE / bytes, APART / bytes);
            let pitch = if most > page { most - (most - apart) % page } else { most };
            (pitch >= extent).then_some((t, pitch))
        };
        (self.fixed <= bytes).then(|| self.changing.iter().map(pitch).collect()).flatten()
    }
}

/// Where a thread's own rows lie.
struct Rows {
    /// The tensor whose rows each overwrites; itself, where none.
    over: HashMap<TensorId, TensorId>,
    /// How far those whose extents change from size to size lie apart.
    pitches: HashMap<TensorId, i64>,
    /// The buffers of these: pieces follow each other, and have them in the same place.
    buffers: HashMap<TensorId, BufferId>,
}

/// All tensors that a step reads, and where, but for its own accumulators.
fn all_reads(s: &Step) -> Vec<(TensorId, Vec<Scalar>)> {
    let own = s.reduction.as_ref().map(|r| r.tensor);
    let combined = s.reduction.iter().flat_map(|r| reads(&r.value));
    reads(&s.value).into_iter().filter(|(t, _)| Some(*t) != own).chain(combined).collect()
}

/// Whether an index is just that axis.
fn is_axis(index: Option<&Scalar>, axis: AxisId) -> bool {
    matches!(index.map(Scalar::kind), Some(ScalarKind::Axis(a)) if *a == axis)
}

impl Emitter {
    /// All steps of a run. `later` says whether a tensor is read after it, and is asked only where something is decided.
    pub(super) fn steps(&mut self, steps: Vec<Step>, later: &dyn Fn(TensorId) -> bool) -> Vec<Stmt> {
        let (first, steps) = self.packed_first(steps, later);
        let mut all = self.one_by_one(&first);
        let Some(plan) = self.decide(|e| e.plan(&steps, later)).and_then(|plan| self.plan_here(plan, &steps)) else {
            all.extend(self.one_by_one(&steps));
            return all;
        };
        let work: i64 = steps.iter().map(Step::visits).sum();
        let over = self.decide(|e| {
            let own = e.own(&steps, &plan, plan.block, later);
            own.pitches(e.on_stack()).map(|_| own.over).unwrap_or_default()
        });
        let mut rows = Rows { over, pitches: HashMap::new(), buffers: HashMap::new() };
        if self.is_sized() && !rows.over.is_empty() {
            // Where rows are longer than there is place for, other decisions are made.
            match self.own(&steps, &plan, plan.block, later).pitches(self.on_stack()) {
                Some(pitches) => rows.pitches = pitches,
                None => self.diverge(),
            }
        }
        let threads = self.threads_of(work, &steps);
        let shared: Vec<&Step> = steps.iter().filter(|s| !rows.over.contains_key(&s.tensor)).collect();
        self.in_memory(shared);
        let block_changes = plan.block.is_some_and(|(b, _)| self.shared_changes(&plan, b, &steps));
        let pieces = match plan.block {
            None => vec![(0, 1, 1)],
            Some((b, size)) if block_changes => {
                let mut sizes = vec![size];
                sizes.extend(tails(size));
                descending(plan.shared[b].extent, &sizes)
            }
            Some((b, size)) if plan.is_dense(&steps, b) => cut(plan.shared[b].extent, size),
            Some((b, size)) => cut_evenly(plan.shared[b].extent, size),
        };
        for piece in pieces {
            all.push(self.piece(&steps, &plan, &mut rows, piece, threads));
        }
        all
    }

    /// A plan that was made at another size, for the extents at hand.
    fn plan_here(&mut self, mut plan: Plan, steps: &[Step]) -> Option<Plan> {
        for s in &mut plan.shared {
            let fits = s.at.len() == steps.len() && steps.iter().zip(&s.at).all(|(step, at)| *at < step.axes.len());
            if !fits {
                self.diverge();
                return None;
            }
            s.extent = steps.last()?.axes[*s.at.last()?].extent;
        }
        Some(plan)
    }

    /// Whether the extent of a shared axis changes from size to size.
    fn shared_changes(&self, plan: &Plan, shared: usize, steps: &[Step]) -> bool {
        steps.iter().zip(&plan.shared[shared].at).any(|(s, at)| self.changes(s.axes[*at].id))
    }

    /// Bytes of rows of intermediate tensors that stay in the second cache, on a thread's stack.
    fn on_stack(&self) -> i64 {
        (self.unit.timing.l2.bytes * 5 / 32).min(STACK)
    }

    /// Steps by themselves.
    fn one_by_one(&mut self, steps: &[Step]) -> Vec<Stmt> {
        self.in_memory(steps);
        let one = |s: &Step| {
            let threads = self.threads_of(s.visits(), std::slice::from_ref(s));
            self.step(s, threads)
        };
        steps.iter().map(one).collect()
    }

    /// Gives the tensors that steps write their place in memory.
    fn in_memory<'a>(&mut self, steps: impl IntoIterator<Item = &'a Step>) {
        for s in steps {
            if !self.buffer_of.contains_key(&s.tensor) {
                self.declare(s.tensor, Space::Shared);
            }
        }
    }

    /// Copies of operands that could be made before all else, apart from the rest, where that lets the rest share more.
    fn packed_first(&mut self, steps: Vec<Step>, later: &dyn Fn(TensorId) -> bool) -> (Vec<Step>, Vec<Step>) {
        let written: HashSet<TensorId> = steps.iter().map(|s| s.tensor).collect();
        let copies = |s: &Step| self.is_copy(s) && all_reads(s).iter().all(|(t, _)| !written.contains(t));
        let (first, rest): (Vec<Step>, Vec<Step>) = steps.iter().cloned().partition(copies);
        let iterations = |p: Option<Plan>| p.map_or(1, |p| p.shared.iter().map(|s| s.extent).product::<i64>());
        let apart = self.decide(|e| {
            let fused = || iterations(e.plan(&steps, later));
            match &rest[..] {
                // Each product's operands are copied where that is computed if there are enough for all threads.
                [product] if !e.operands(product).is_empty() => fused() < APART_BELOW,
                [_] => false,
                _ => iterations(e.plan(&rest, later)) > fused(),
            }
        });
        match apart && !first.is_empty() {
            true => (first, rest),
            false => (Vec::new(), steps),
        }
    }

    /// Whether a step copies what another tensor has, and nothing else.
    fn is_copy(&self, s: &Step) -> bool {
        s.reduction.is_none()
            && matches!(s.value.kind(), ScalarKind::Read(..))
            && !self.group.results.contains(&s.tensor)
    }

    /// How to go through the rows that the steps share; none where there are less than two.
    fn plan(&self, steps: &[Step], later: &dyn Fn(TensorId) -> bool) -> Option<Plan> {
        let last = steps.last().filter(|_| steps.len() > 1)?;
        let heavy: Vec<Vec<HashSet<AxisId>>> = steps.iter().map(|s| self.operands(s)).collect();
        let shared: Vec<Shared> = (0..last.axes.len()).filter_map(|k| shared_axis(steps, k)).collect();
        let mut plan = Plan { shared, block: None };
        // The axis along which some operand of a product is the same.
        let again = |s: &Shared| {
            let same = |(k, operands): (usize, &Vec<HashSet<AxisId>>)| {
                let axis = steps[k].axes[s.at[k]].id;
                operands.iter().any(|o| !o.contains(&axis)) && operands.iter().any(|o| o.contains(&axis))
            };
            heavy.iter().enumerate().any(same)
        };
        if heavy.iter().any(|h| !h.is_empty()) {
            let several = |s: &Shared| s.extent > 1 && again(s);
            let rows =
                |p: &Plan| (0..p.shared.len()).filter(|&i| several(&p.shared[i])).max_by_key(|&i| p.shared[i].extent);
            // Products fill vectors along the densest axis.
            let dense = (0..plan.shared.len()).find(|&i| plan.is_dense(steps, i));
            if let Some(dense) = dense.filter(|d| rows(&plan) != Some(*d)) {
                plan.shared.remove(dense);
            }
            let others = steps.iter().filter(|s| !self.is_copy(s)).count();
            plan.block = rows(&plan).filter(|_| others > 1).and_then(|i| {
                // Where products with what is the same for all rows are summed up: as many as a register tile has.
                let most = ((self.unit.vector_registers - 4) / 2).min(plan.shared[i].extent);
                let fits = |&b: &(usize, i64)| {
                    let own = self.own(steps, &plan, Some(b), later);
                    // Rows of which more than one extent changes are nowhere but in memory.
                    own.pitches(self.on_stack()).is_some() && !(self.is_sized() && own.over.is_empty())
                };
                (1..=most).rev().map(|n| (i, n)).find(fits)
            });
            if plan.block.is_none() {
                // Products want their register tiles: only what lies outside of all else is shared.
                let leading = |(i, s): &(usize, &Shared)| s.at.iter().all(|at| at == i);
                let leading = plan.shared.iter().enumerate().take_while(leading).count();
                plan.shared.truncate(leading);
                plan.shared.retain(|s| !again(s));
            }
        } else {
            let dense = (0..plan.shared.len()).find(|&i| plan.is_dense(steps, i));
            plan.block = dense.map(|i| (i, plan.shared[i].extent.min(VECTORS * self.unit.lanes())));
        }
        let turns = |(i, s): (usize, &Shared)| match plan.block {
            Some((b, size)) if b == i => (s.extent + size - 1) / size.max(1),
            _ => s.extent,
        };
        let iterations: i64 = plan.shared.iter().enumerate().map(turns).product();
        (iterations > 1).then_some(plan)
    }

    /// The axes that each operand of a step's sum of products depends on, where it is one.
    fn operands(&self, s: &Step) -> Vec<HashSet<AxisId>> {
        let Some(r) = s.reduction.as_ref().filter(|r| r.combine == Combine::Sum) else { return Vec::new() };
        let operands: Vec<HashSet<AxisId>> =
            self.accesses(&r.value).into_iter().map(|a| a.axes.into_iter().collect()).collect();
        let sums = |o: &HashSet<AxisId>| r.axes.iter().any(|a| o.contains(&a.id));
        if operands.iter().filter(|o| sums(o)).count() > 1 && s.visits() > 16 * r.visits() { operands } else { vec![] }
    }

    /// The tensors of which a thread may have only the rows at hand.
    fn own(&self, steps: &[Step], plan: &Plan, block: Option<(usize, i64)>, later: &dyn Fn(TensorId) -> bool) -> Own {
        let mut own = Own::default();
        for (k, s) in steps.iter().enumerate() {
            if self.group.results.contains(&s.tensor) || later(s.tensor) {
                continue;
            }
            // A fixed layout has but one extent that changes.
            let mut changing =
                plan.kept(s, steps, block.map(|b| b.0)).filter(|&(at, b)| !b && self.changes(s.axes[at].id));
            let changing = match (changing.next(), changing.next()) {
                (_, Some(_)) => continue,
                (one, None) => one.map(|(at, _)| s.axes[at].extent),
            };
            // Element by element over what is read here for the last time.
            let is_over = |t: TensorId| {
                let here = reads(&s.value).into_iter().filter(|(r, _)| *r == t);
                s.reduction.is_none()
                    && self.group.decl(t).dtype == self.group.decl(s.tensor).dtype
                    && self.group.decl(t).shape == self.group.decl(s.tensor).shape
                    && here.clone().count() > 0
                    && here.into_iter().all(|(_, i)| {
                        i.len() == s.axes.len() && i.iter().zip(&s.axes).all(|(i, a)| is_axis(Some(i), a.id))
                    })
                    && !steps[k + 1..].iter().any(|s| all_reads(s).iter().any(|(r, _)| *r == t))
            };
            let over = steps[..k].iter().map(|s| s.tensor).find(|t| own.over.contains_key(t) && is_over(*t));
            if over.is_none() {
                let of_element = self.group.decl(s.tensor).dtype.bytes() as i64;
                let bytes = plan.elements(s, steps, block) * of_element;
                match changing {
                    Some(extent) => _ = own.changing.insert(s.tensor, (extent, bytes / extent.max(1), of_element)),
                    None => own.fixed += bytes,
                }
            }
            own.over.insert(s.tensor, over.map_or(s.tensor, |t| own.over[&t]));
        }
        own
    }

    /// The loop over a piece of the rows: (first element, turns, elements a turn) of the axis that is treated in blocks.
    fn piece(
        &mut self,
        steps: &[Step],
        plan: &Plan,
        of_threads: &mut Rows,
        (start, turns, size): (i64, i64, i64),
        threads: Threads,
    ) -> Stmt {
        let block = plan.block.map(|(b, _)| b);
        // What goes through blocks comes last: the same operands are met again from turn to turn.
        let mut order: Vec<usize> = (0..plan.shared.len()).filter(|i| Some(*i) != block).collect();
        order.extend(block);
        let loops: Vec<Loop> = order
            .iter()
            .map(|&i| {
                let extent = if Some(i) == block { turns } else { plan.shared[i].extent };
                let var = self.fresh();
                self.extents.insert(var, extent);
                if self.shared_changes(plan, i, steps) {
                    self.mark(var);
                }
                Loop { var, extent }
            })
            .collect();
        let changes = plan.block.is_some_and(|(b, largest)| size < largest && self.shared_changes(plan, b, steps));
        let start = if changes { self.number(start) } else { Scalar::index(start) };
        let var = |i: usize| loops[order.iter().position(|&o| o == i).expect("all are in order")].var;
        // The rows that threads have of their own.
        let mut rows: HashMap<TensorId, TensorId> = HashMap::new();
        let first_on_them = |s: &&Step| of_threads.over.get(&s.tensor) == Some(&s.tensor);
        for s in steps.iter().filter(first_on_them).collect::<Vec<&Step>>() {
            let pitch = of_threads.pitches.get(&s.tensor).copied();
            let extent = |(at, is_block): (usize, bool)| match pitch {
                _ if is_block => size,
                Some(pitch) if self.changes(s.axes[at].id) => pitch,
                _ => s.axes[at].extent,
            };
            let shape: Vec<i64> = plan.kept(s, steps, block).map(extent).collect();
            let dtype = self.group.decl(s.tensor).dtype;
            self.group.tensors.push(TensorDecl { shape, dtype });
            let row = TensorId(self.group.tensors.len() as u32 - 1);
            match of_threads.buffers.get(&s.tensor) {
                Some(buffer) => _ = self.buffer_of.insert(row, *buffer),
                None => self.declare(row, Space::Local),
            }
            if pitch.is_some() {
                of_threads.buffers.insert(s.tensor, self.buffer_of[&row]);
            }
            rows.insert(s.tensor, row);
        }
        let row_of = |t: &TensorId| of_threads.over.get(t).map(|over| rows[over]);
        let places: HashMap<TensorId, Vec<(usize, bool)>> =
            steps.iter().map(|s| (s.tensor, plan.kept(s, steps, block).collect())).collect();
        let mut body = Vec::new();
        for (k, s) in steps.iter().enumerate() {
            let inner = Axis { id: self.fresh(), extent: size };
            self.extents.insert(inner.id, size);
            let mut with: HashMap<AxisId, Scalar> = HashMap::new();
            for (i, sh) in plan.shared.iter().enumerate() {
                let at = match Some(i) == block {
                    true => Scalar::axis(var(i)) * size + start.clone() + Scalar::axis(inner.id),
                    false => Scalar::axis(var(i)),
                };
                with.insert(s.axes[sh.at[k]].id, at);
            }
            let accumulators = s.reduction.as_ref().map(|r| r.tensor);
            let rewrite = |e: &Scalar, is_value: bool| {
                let local = Substitution::new(|e: &Scalar| match e.kind() {
                    ScalarKind::Read(t, index) if !(is_value && accumulators == Some(*t)) => {
                        let row = row_of(t)?;
                        let keep = places[t].iter();
                        let at = keep.map(|&(at, b)| if b { Scalar::axis(inner.id) } else { index[at].clone() });
                        Some(Scalar::read(row, at.collect(), e.dtype()))
                    }
                    _ => None,
                })
                .apply(e);
                replace_axes(&local, &with)
            };
            let value = rewrite(&s.value, true);
            let reduction = s.reduction.as_ref().map(|r| Reduction { value: rewrite(&r.value, false), ..r.clone() });
            let axes: Vec<Axis> = places[&s.tensor].iter().map(|&(at, b)| if b { inner } else { s.axes[at] }).collect();
            let (tensor, index): (TensorId, Vec<Scalar>) = match row_of(&s.tensor) {
                Some(row) => (row, axes.iter().map(|a| Scalar::axis(a.id)).collect()),
                None => (s.tensor, s.axes.iter().map(|a| replace_axes(&Scalar::axis(a.id), &with)).collect()),
            };
            let to = self.flat(tensor, &index);
            body.push(self.scheduled(tensor, axes, to, value, reduction, Threads::One));
        }
        self.loops(&loops, Stmt::Block(body), threads)
    }
}

impl Plan {
    /// Whether it is the axis along which the steps' results lie densest.
    fn is_dense(&self, steps: &[Step], shared: usize) -> bool {
        let largest = (0..steps.len()).max_by_key(|&k| (steps[k].axes.len(), k)).unwrap_or(0);
        self.shared[shared].at[largest] + 1 == steps[largest].axes.len()
    }

    /// The axes of a step that are not outer loops, and whether each is the one of which a block is treated at once.
    fn kept<'a>(
        &'a self,
        s: &'a Step,
        steps: &'a [Step],
        block: Option<usize>,
    ) -> impl Iterator<Item = (usize, bool)> + 'a {
        let k = steps.iter().position(|x| x.tensor == s.tensor).expect("it is one of the steps");
        (0..s.axes.len()).filter_map(move |at| match self.shared.iter().position(|sh| sh.at[k] == at) {
            None => Some((at, false)),
            Some(i) if Some(i) == block => Some((at, true)),
            Some(_) => None,
        })
    }

    /// Elements of a step's tensor in one turn of the loops.
    fn elements(&self, s: &Step, steps: &[Step], block: Option<(usize, i64)>) -> i64 {
        let extent = |(at, b): (usize, bool)| match block {
            Some((_, size)) if b => size,
            _ => s.axes[at].extent,
        };
        self.kept(s, steps, block.map(|b| b.0)).map(extent).product()
    }
}

impl Reduction {
    /// Elements that are combined to one.
    fn visits(&self) -> i64 {
        self.axes.iter().map(|a| a.extent).product()
    }
}

/// The axis of all steps that is the last step's axis of that number, where they read each other only at the same place along it.
fn shared_axis(steps: &[Step], number: usize) -> Option<Shared> {
    let step_of: HashMap<TensorId, usize> = steps.iter().enumerate().map(|(k, s)| (s.tensor, k)).collect();
    if step_of.len() < steps.len() {
        return None;
    }
    let mut at: Vec<Option<usize>> = vec![None; steps.len()];
    *at.last_mut()? = Some(number);
    // Readers stand behind what they read: one walk back decides what the last step reads, one forward what else reads that.
    let own = |s: &Step| -> Vec<(usize, Vec<Scalar>)> {
        all_reads(s).into_iter().filter_map(|(t, index)| Some((*step_of.get(&t)?, index))).collect()
    };
    for (k, s) in steps.iter().enumerate().rev() {
        let Some(axis) = at[k].map(|p| s.axes[p].id) else { continue };
        for (read, index) in own(s) {
            at[read] = at[read].or_else(|| index.iter().position(|i| is_axis(Some(i), axis)));
        }
    }
    for (k, s) in steps.iter().enumerate() {
        if at[k].is_none() {
            let known = own(s).into_iter().find_map(|(read, index)| Some((at[read]?, index)));
            at[k] = match known {
                Some((p, index)) => s.axes.iter().position(|a| is_axis(index.get(p), a.id)),
                None => Some(number),
            };
        }
    }
    let at: Vec<usize> = at.into_iter().collect::<Option<_>>()?;
    let extent = steps.last()?.axes[number].extent;
    let fits = |(k, s): (usize, &Step)| {
        s.axes.get(at[k]).is_some_and(|a| a.extent == extent)
            && own(s).into_iter().all(|(read, index)| is_axis(index.get(at[read]), s.axes[at[k]].id))
    };
    steps.iter().enumerate().all(fits).then_some(Shared { extent, at })
}
