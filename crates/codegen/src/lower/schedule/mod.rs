//! From steps to loop nests: which axis becomes the vector, which are tiled into registers, in which order the rest runs.
//!
//! Operators say what each element is (`Op::lower`), never in which order: one schedule for reductions serves convolutions, dense layers,
//! matrix multiplications, pooling and sums. It enumerates vector axes and register tiles and prices them with a model of a core
//! (`choose`). Operands whose order is wrong, or whose rows lie powers of two apart, are packed first where the model says that it pays
//! (`pack`); axes that lie one within the other are summed over as one (`merged`); axes that an operand has in blocks are split (`split`), so that packed constants are read in order; long sums are cut into
//! parts (`split_k`); while the tiles that share a panel of weights compute, the next panel is prefetched into L2 (`prefetch`).
//!
//! A register tile's longest axis is unrolled outermost, so that what is loaded last is used at once: loads that wait for their use would
//! spill. Epilogues are found, not declared: a step that reads a reduction only at its own place is computed on the accumulators (`reduce`).

mod cache;
mod choose;
mod combine;
mod conditions;
mod dry;
mod factored;
mod fuse_rows;
mod map;
mod matrix;
mod matrix_cost;
mod merged;
mod order;
mod pack;
mod padding;
mod pieces;
mod prefetch;
mod reduce;
mod routine;
mod shares;
mod sizes;
mod slices;
mod split;
mod split_k;
mod stream;
mod taps;
mod tiling;
mod turns;

use std::cell::LazyCell;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

pub(super) use dry::{noted, numbers_sized};
pub use sizes::{Decisions, changing, schedule_sized};

use super::{
    affine::{Affine, Substitution, replace_axes},
    index::{Simplifier, same_affine},
    normalize::{Part, Reduction, Step, parts, reads},
};
use crate::loops::{
    Axis, AxisId, BinOp, Buffer, BufferId, Kernel, LoopKind, Scalar, ScalarKind, Space, Stages, Stmt, TensorId,
    cut_evenly,
};
use crate::{
    machine::Core,
    tensor::{DType, row_major_strides},
};

/// Below so many element operations a loop is not worth handing to other threads: waking them costs microseconds.
const PARALLEL_FROM: i64 = 64 * 1024;
/// A parallel loop is cut into at least so many iterations where there are so many, for balance between threads.
const PARALLEL_PIECES: i64 = 64;
/// So many are enough where more would cost something.
const PARALLEL_ENOUGH: i64 = PARALLEL_PIECES / 4;

/// The first variable within tiles of kernels for many sizes: which are taken outside does not depend on whether tiles are built.
const WITHIN: u32 = 1 << 24;

/// By how many threads loops run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Threads {
    /// By one.
    One,
    /// They are shared out.
    All,
    /// They are shared out where there is enough to do, as there is at the extents at hand or is not: by the same code.
    Enough(bool),
}

/// A loop to be wrapped around a body.
#[derive(Clone, Debug)]
struct Loop {
    var: AxisId,
    extent: i64,
}

/// A read of an expression.
#[derive(Clone)]
struct Access {
    /// What is read; none for a packed copy that is yet to be made.
    tensor: Option<TensorId>,
    /// Its flat offset, where affine.
    offset: Option<Affine>,
    /// The axes it depends on.
    axes: Vec<AxisId>,
    /// Bytes of an element.
    bytes: i64,
}

/// So many ways to run a reduction are candidates: those that the model finds best.
const CANDIDATES: usize = 12;

/// A reduction of a kernel, and the ways in which it may run.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// Tilings with the cycles that the model thinks they take, the best first: the candidates, and others as far as that which was asked for.
    ranked: Vec<(f64, tiling::Tiling)>,
    all: usize,
}

impl Reduced {
    /// How many ways there are to choose from.
    pub fn candidates(&self) -> usize {
        self.ranked.len().min(CANDIDATES)
    }

    /// How many tilings the model knows, most of them slow: any number below may be asked for as a candidate is.
    pub fn tilings(&self) -> usize {
        self.all
    }

    /// The cycles of the best, by the model.
    pub fn cycles(&self) -> f64 {
        self.ranked.first().map_or(0.0, |c| c.0)
    }

    /// The cycles of a candidate, by the model; of one that there is not, those of the best.
    pub fn cycles_of(&self, candidate: usize) -> f64 {
        self.ranked.get(candidate).map_or(self.cycles(), |c| c.0)
    }

    /// The candidates in words: the same words are the same list.
    pub fn described(&self) -> String {
        let tilings: Vec<&tiling::Tiling> = self.ranked.iter().take(CANDIDATES).map(|c| &c.1).collect();
        format!("{tilings:?}")
    }
}

/// A kernel and what there was to choose from.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The loop nests.
    pub kernel: Kernel,
    /// Its reductions, in the order in which they are scheduled.
    pub reductions: Vec<Reduced>,
}

struct Emitter {
    /// What is computed, without its definitions.
    group: Stages,
    unit: Core,
    buffers: Vec<Buffer>,
    buffer_of: HashMap<TensorId, BufferId>,
    next_axis: u32,
    /// The first free variable of those that stand within tiles, while one is built.
    next_within: u32,
    is_within: bool,
    /// The extents of the steps' axes.
    extents: HashMap<AxisId, i64>,
    /// By number of reduction: which of its candidates it takes. The first where nothing is said.
    choices: Vec<usize>,
    /// The reductions that were scheduled so far.
    reductions: Vec<Reduced>,
    /// Whether threads begin with parts of an image in the steps at hand.
    rows_first: bool,
    /// Where the kernel is for many sizes: what changes, and what was chosen.
    sizes: Option<sizes::Sizes>,
}

/// The kernel of a group: arguments are inputs 0.., results the pointers after them, in order.
pub fn kernel(name: &str, group: &Stages, unit: Core) -> Kernel {
    schedule(name, group, unit, &[]).kernel
}

/// The same, where the reductions take these of their candidates, in the order in which they are scheduled; what is not said, or out of
/// range, is the model's choice.
pub fn schedule(name: &str, group: &Stages, unit: Core, choices: &[usize]) -> Scheduled {
    scheduled(name, group, unit, choices, None).0
}

fn scheduled(
    name: &str,
    group: &Stages,
    unit: Core,
    choices: &[usize],
    sizes: Option<sizes::Sizes>,
) -> (Scheduled, Option<sizes::Sizes>) {
    let mut e = Emitter {
        group: group.declared(),
        unit,
        buffers: Vec::new(),
        buffer_of: HashMap::new(),
        next_axis: group.axis_count(),
        next_within: WITHIN,
        is_within: false,
        extents: HashMap::new(),
        choices: choices.to_vec(),
        reductions: Vec::new(),
        rows_first: false,
        sizes,
    };
    for (i, &t) in group.args.iter().enumerate() {
        e.declare(t, Space::Input(i as u32));
    }
    for (i, &t) in group.results.iter().enumerate() {
        e.declare(t, Space::Output((group.args.len() + i) as u32));
    }
    e.same((group.args.len(), group.results.iter().map(|t| group.args.contains(t)).collect::<Vec<bool>>()));
    let mut body = Vec::new();
    let changing = e.changing().cloned();
    let whole = |dtype| unit.has_tiles(dtype);
    let once = unit.excess_precision.then_some(unit.bf16_dot > 0);
    let parts = parts(group, once, &whole, changing.as_ref(), &mut |inline| e.decide(|_| inline()));
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Steps(steps) => {
                let steps: Vec<Step> = steps.iter().map(|s| e.with_merged_axes(s)).collect();
                let axes = steps.iter().flat_map(|s| s.axes.iter().chain(s.reduction.iter().flat_map(|r| &r.axes)));
                e.extents.extend(axes.map(|a| (a.id, a.extent)));
                let steps = e.pack_operands(steps);
                e.rows_first = e.decide(|e| {
                    let image = |s: &Step| s.reduction.as_ref().and_then(|r| e.by_rows(s.tensor, &s.axes, r)).is_some();
                    steps.iter().any(image)
                });
                let later =
                    LazyCell::new(|| parts[at + 1..].iter().flat_map(Part::reads).collect::<HashSet<TensorId>>());
                body.extend(e.steps(steps, &|t| later.contains(&t)));
            }
            Part::Routine(r, stored) => body.push(e.routine(r, stored.as_deref())),
        }
    }
    for (i, &t) in group.results.iter().enumerate() {
        if group.args.contains(&t) || group.results[..i].contains(&t) {
            body.push(e.copy_result(t, (group.args.len() + i) as u32));
        }
    }
    let body = e.with_numbers(Stmt::Block(body));
    let kernel = Kernel { name: name.to_owned(), buffers: e.buffers, body };
    (Scheduled { kernel, reductions: e.reductions }, e.sizes)
}

/// The argument that a group's single result repeats byte for byte, where it does: reshapes and their like.
pub fn is_view(group: &Stages) -> Option<usize> {
    let [result] = group.results[..] else { return None };
    if let Some(arg) = group.args.iter().position(|a| *a == result) {
        return Some(arg);
    }
    let parts = parts(group, None, &|_| false, None, &mut |inline| inline());
    let [Part::Steps(steps)] = &parts[..] else { return None };
    let [Step { tensor, axes, reduction: None, value }] = &steps[..] else { return None };
    let ScalarKind::Read(source, index) = value.kind() else { return None };
    let size = |t| group.decl(t).shape.iter().product::<i64>();
    let arg = group.args.iter().position(|a| a == source)?;
    let same_elements = *tensor == result && size(*source) == size(result) && value.dtype() == group.decl(result).dtype;
    let extents = axes.iter().map(|a| (a.id, a.extent)).collect();
    let mut simplifier = Simplifier::new(&extents);
    let mut place = |t, index: &[Scalar]| simplifier.simplify(&flat_place(group, t, index));
    let to: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
    let still = |e: Scalar| {
        let single = axes.iter().filter(|a| a.extent == 1).map(|a| (a.id, Scalar::index(0))).collect();
        replace_axes(&e, &single)
    };
    (same_elements && same_affine(&still(place(*source, index)), &still(place(result, &to)))).then_some(arg)
}

/// Flat element offset of a place in a tensor. A single index is one already.
fn flat_place(group: &Stages, t: TensorId, index: &[Scalar]) -> Scalar {
    if let [flat] = index {
        return flat.clone();
    }
    let shape: Vec<usize> = group.decl(t).shape.iter().map(|&n| n as usize).collect();
    let sum = index.iter().zip(row_major_strides(&shape)).map(|(i, s)| i.clone() * s as i64).reduce(|a, b| a + b);
    sum.unwrap_or_else(|| Scalar::index(0))
}

/// The same, where it is a sum of axes.
fn flat_sum(group: &Stages, t: TensorId, index: &[Scalar]) -> Option<Affine> {
    if let [flat] = index {
        return Affine::of(flat);
    }
    let mut step = 1;
    let mut sum: SmallVec<[(&Scalar, i64); 8]> = SmallVec::new();
    for (i, n) in index.iter().zip(&group.decl(t).shape).rev() {
        sum.push((i, step));
        step *= n;
    }
    Affine::of_sum(sum)
}

impl Emitter {
    fn declare(&mut self, t: TensorId, space: Space) {
        let decl = self.group.decl(t);
        let (dtype, len) = (decl.dtype, decl.shape.iter().product::<i64>().max(1));
        let is_own = matches!(space, Space::Local | Space::Register);
        self.same((t, dtype, std::mem::discriminant(&space), if is_own { len } else { 0 }));
        self.buffers.push(Buffer { dtype, len, space });
        self.buffer_of.entry(t).or_insert(TensorId(self.buffers.len() as u32 - 1));
    }

    fn bytes_of(&self, t: TensorId) -> i64 {
        let decl = self.group.decl(t);
        decl.shape.iter().product::<i64>() * decl.dtype.bytes() as i64
    }

    fn register(&mut self, dtype: DType, len: i64) -> BufferId {
        self.buffers.push(Buffer { dtype, len, space: Space::Register });
        TensorId(self.buffers.len() as u32 - 1)
    }

    fn fresh(&mut self) -> AxisId {
        let next = if self.is_within { &mut self.next_within } else { &mut self.next_axis };
        *next += 1;
        AxisId(*next - 1)
    }

    /// A result that is an argument, or a second time the same tensor: copied element by element.
    fn copy_result(&mut self, t: TensorId, pointer: u32) -> Stmt {
        let to = self
            .buffers
            .iter()
            .position(|b| b.space == Space::Output(pointer))
            .map(|i| TensorId(i as u32))
            .expect("every result has a buffer");
        let var = self.fresh();
        self.mark(var);
        let decl = self.group.decl(t);
        let len = decl.shape.iter().product();
        let value = Scalar::read(self.buffer_of[&t], vec![Scalar::axis(var)], decl.dtype);
        let store = Stmt::Store { buffer: to, index: Scalar::axis(var), value };
        self.loops(&[Loop { var, extent: len }], store, Threads::One)
    }

    /// Flat element offset of a place in a tensor.
    fn flat(&self, t: TensorId, index: &[Scalar]) -> Scalar {
        // Of a sum of axes there is nothing to simplify.
        if let Some(sum) = flat_sum(&self.group, t, index) {
            return if self.is_sized() { sum.in_order() } else { sum.to_scalar() };
        }
        let mut simplifier = Simplifier::new(&self.extents).with_changing(self.changing(), self.group.axis_count());
        let sum = simplifier.simplify(&flat_place(&self.group, t, index));
        // The order of terms by what they are multiplied by may differ from size to size.
        Affine::of(&sum).map_or(sum, |a| if self.is_sized() { a.in_order() } else { a.to_scalar() })
    }

    /// The same expression over flat buffers.
    fn flatten(&self, e: &Scalar) -> Scalar {
        Substitution::new(self.flattening()).apply(e)
    }

    /// What becomes of axes and reads over flat buffers.
    fn flattening(&self) -> impl Fn(&Scalar) -> Option<Scalar> {
        |s: &Scalar| match s.kind() {
            ScalarKind::Read(t, index) => {
                let buffer = *self.buffer_of.get(t)?;
                Some(Scalar::read(buffer, vec![self.flat(*t, index)], s.dtype()))
            }
            _ => None,
        }
    }

    fn accesses(&self, e: &Scalar) -> Vec<Access> {
        reads(e)
            .into_iter()
            .map(|(tensor, index)| {
                let bytes = self.group.decl(tensor).dtype.bytes() as i64;
                if let Some(sum) = flat_sum(&self.group, tensor, &index) {
                    let axes = sum.terms.iter().map(|t| t.0).collect();
                    return Access { tensor: Some(tensor), offset: Some(sum), axes, bytes };
                }
                let flat = self.flat(tensor, &index);
                let mut axes = Vec::new();
                super::affine::for_each_node(&flat, &mut |n| {
                    if let ScalarKind::Axis(a) = n.kind() {
                        axes.push(*a);
                    }
                });
                Access { tensor: Some(tensor), offset: Affine::of(&flat), axes, bytes }
            })
            .collect()
    }

    /// One step by itself.
    fn step(&mut self, s: &Step, threads: Threads) -> Stmt {
        let index: Vec<Scalar> = s.axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let to = self.flat(s.tensor, &index);
        self.scheduled(s.tensor, s.axes.clone(), to, s.value.clone(), s.reduction.clone(), threads)
    }

    /// A computation over these axes, stored at `to` in a tensor.
    fn scheduled(
        &mut self,
        tensor: TensorId,
        axes: Vec<Axis>,
        to: Scalar,
        value: Scalar,
        reduction: Option<Reduction>,
        threads: Threads,
    ) -> Stmt {
        match reduction {
            None => self.map(tensor, axes, to, value, threads),
            Some(r) => {
                let parts = match threads {
                    Threads::All => self.sum_in_parts(tensor, &axes, &to, &value, &r),
                    Threads::One | Threads::Enough(_) => None,
                };
                let parts = parts.or_else(|| match threads {
                    Threads::All | Threads::Enough(_) => self.sum_by_slices(tensor, &axes, &to, &value, &r, threads),
                    Threads::One => None,
                });
                parts.unwrap_or_else(|| self.reduce(tensor, axes, to, value, r, threads))
            }
        }
    }

    /// By how many threads steps run that do so many operations on elements: by all where it is worth it. Where a kernel is for many sizes, and
    /// it is not at the one that decisions are made for, it may be at others.
    fn threads_of(&mut self, work: i64, steps: &[Step]) -> Threads {
        let decided = self.decide(|e| {
            let mut axes = steps.iter().flat_map(|s| s.axes.iter().chain(s.reduction.iter().flat_map(|r| &r.axes)));
            match work >= PARALLEL_FROM {
                true => Threads::All,
                false if axes.any(|a| e.changes(a.id)) => Threads::Enough(false),
                false => Threads::One,
            }
        });
        self.threads_here(decided, work)
    }

    /// The same of a part of what runs by `threads`.
    fn threads_for(&mut self, threads: Threads, work: i64) -> Threads {
        let decided = match threads {
            Threads::All if self.decide(|_| work < PARALLEL_FROM) => Threads::One,
            _ => threads,
        };
        self.threads_here(decided, work)
    }

    fn threads_here(&self, decided: Threads, work: i64) -> Threads {
        match decided {
            Threads::Enough(_) => Threads::Enough(work >= PARALLEL_FROM),
            _ => decided,
        }
    }

    /// Loops around a body, outermost first. In parallel, leading loops are merged until there are enough iterations.
    fn loops(&mut self, loops: &[Loop], body: Stmt, threads: Threads) -> Stmt {
        self.same((loops.len(), std::mem::discriminant(&threads)));
        for l in loops {
            self.same_axis(l.var, l.extent);
        }
        let merged = match threads {
            Threads::All | Threads::Enough(_) => self.decide(|_| {
                let (mut merged, mut pieces) = (0, 1);
                while merged < loops.len() && pieces < PARALLEL_PIECES {
                    pieces *= loops[merged].extent;
                    merged += 1;
                }
                merged
            }),
            Threads::One => 0,
        };
        // What was decided for other extents may be about loops that are none here.
        if merged > loops.len() {
            self.diverge();
        }
        let merged = merged.min(loops.len());
        let inner = loops[merged..].iter().rev().fold(body, |body, l| self.one_loop(l, LoopKind::Serial, body));
        if merged == 0 {
            return inner;
        }
        let var = self.fresh();
        let total: i64 = loops[..merged].iter().map(|l| l.extent).product();
        if loops[..merged].iter().any(|l| self.changes(l.var)) {
            return self.changing_parallel(var, total, &loops[..merged], inner, threads);
        }
        let body = if self.is_dry() { inner } else { taken_apart(var, &loops[..merged], inner) };
        match threads {
            Threads::Enough(enough) => self.shared_where(var, total, enough, body),
            Threads::One | Threads::All => for_(var, total, LoopKind::Parallel, body),
        }
    }

    /// A loop that is shared out where there is enough to do, else goes on in one thread: as many turns of one iteration each, or one turn of
    /// all of them.
    fn shared_where(&mut self, var: AxisId, total: i64, enough: bool, body: Stmt) -> Stmt {
        let (turn, within) = (self.fresh(), self.fresh());
        let [turns, each] = if enough { [total, 1] } else { [1, total] }.map(|n| self.number(n));
        // One of the two is 0.
        let body = bind(var, Scalar::axis(turn) + Scalar::axis(within), body);
        let body = Stmt::For { var: within, extent: each, kind: LoopKind::Serial, body: Box::new(body) };
        Stmt::For { var: turn, extent: turns, kind: LoopKind::Parallel, body: Box::new(body) }
    }

    /// Loops, some of whose extents change from size to size, as a parallel one.
    pub(super) fn changing_parallel(
        &mut self,
        var: AxisId,
        total: i64,
        loops: &[Loop],
        body: Stmt,
        threads: Threads,
    ) -> Stmt {
        let mut below = (1, false);
        let mut bound = body;
        if self.is_dry() {
            // The same numbers, in the same order.
            for (i, l) in loops.iter().enumerate().rev() {
                if below.1 {
                    self.name(below.0);
                }
                if i > 0 && self.changes(l.var) {
                    self.name(l.extent);
                }
                below = (below.0 * l.extent, below.1 || self.changes(l.var));
            }
            match threads {
                Threads::Enough(enough) => return self.shared_where(var, total, enough, bound),
                Threads::One | Threads::All => self.name(total),
            };
            return bound;
        }
        for (i, l) in loops.iter().enumerate().rev() {
            let step = if below.1 { self.number(below.0) } else { Scalar::index(below.0) };
            let quotient = Scalar::binary(BinOp::FloorDiv, Scalar::axis(var), step);
            let at = match i {
                0 => quotient,
                _ => {
                    let extent = self.turns(l);
                    Scalar::binary(BinOp::FloorMod, quotient, extent)
                }
            };
            below = (below.0 * l.extent, below.1 || self.changes(l.var));
            bound = bind(l.var, at, bound);
        }
        if let Threads::Enough(enough) = threads {
            return self.shared_where(var, total, enough, bound);
        }
        let extent = self.number(total);
        Stmt::For { var, extent, kind: LoopKind::Parallel, body: Box::new(bound) }
    }
}

impl Step {
    /// How often its expression is evaluated.
    pub(super) fn visits(&self) -> i64 {
        let reduced: i64 = self.reduction.iter().flat_map(|r| &r.axes).map(|a| a.extent).product();
        self.axes.iter().map(|a| a.extent).product::<i64>() * reduced
    }
}

fn for_(var: AxisId, extent: i64, kind: LoopKind, body: Stmt) -> Stmt {
    Stmt::For { var, extent: Scalar::index(extent), kind, body: Box::new(body) }
}

fn bind(var: AxisId, value: Scalar, body: Stmt) -> Stmt {
    Stmt::Let { var, value, body: Box::new(body) }
}

/// A body within loops of which there is the number of the iteration only.
fn taken_apart(number: AxisId, loops: &[Loop], body: Stmt) -> Stmt {
    let total: i64 = loops.iter().map(|l| l.extent).product();
    let mut below = 1;
    loops.iter().rev().fold(body, |body, l| {
        let at = Scalar::axis(number).floor_div(below).floor_mod(l.extent);
        let at = if below * l.extent == total { Scalar::axis(number).floor_div(below) } else { at };
        below *= l.extent;
        bind(l.var, at, body)
    })
}

/// An extent cut into full tiles and a rest: (first element, tiles, tile size).
fn cut(extent: i64, tile: i64) -> Vec<(i64, i64, i64)> {
    let (full, rest) = (extent / tile, extent % tile);
    let mut pieces = Vec::new();
    if full > 0 {
        pieces.push((0, full, tile));
    }
    if rest > 0 {
        pieces.push((full * tile, 1, rest));
    }
    pieces
}
