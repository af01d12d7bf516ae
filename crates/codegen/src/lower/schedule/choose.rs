//! The choice of vector axis and register tile for a reduction, by a small model of a core: fused multiply-adds and loads a
//! cycle, a latency to hide, a limited number of vector registers, two caches.

use std::{cell::RefCell, rc::Rc};

use hashbrown::{HashMap, HashSet};

use super::{
    Access,
    cache::near_bytes,
    pieces::{LEAST_EDGED, edged_size},
    sizes::{FEW, TilesAlong, changing_tiles, is_streamed},
    taps,
    tiling::{Dot, Form, Stored, Tiling, coeff, store_cycles},
    turns::{FACTORS, places},
};
use crate::{
    loops::{Axis, AxisId, MOST_RUNS},
    lower::affine::Affine,
    machine::{Core, Timing},
};

/// Cycles to store each lane of a vector of results where these lie apart.
const SCATTER: f64 = 5.0;
/// Cycles to combine the lanes of a vector, by lane.
const COMBINE: f64 = 0.5;
/// Cycles in which a tile is begun, and its sums are stored.
const TILE: f64 = 12.0;
/// How many times the work it is to widen bytes in each step, where registers do not hold those of a window's row: the loop over that is not written
/// out then. (Fitted on Zen 3: depthwise convolutions.)
const READ_AGAIN: f64 = 1.25;
/// The widest gap that is priced, in lines: wider strides are priced as those that evict.
const WIDEST_GAP: i64 = 4;
/// Operations for a fixed-point multiplication of a vector.
const SCALE: f64 = 8.0;
/// Cycles of each step for a vector that does not lie beside the others of its operand.
const STRIDED: f64 = 0.02;
/// Bytes of an element, or of those that are treated at once.
const ELEMENT: f64 = 4.0;
/// No more than so many accumulators wide along one axis: code size.
const WIDEST: i64 = 14;
/// The same along an axis whose steps in an operand change from size to size: each place has an address of its own, and registers for
/// these run out.
const WIDEST_APART: i64 = 2;
/// The same along one of so many known places in all: a narrower tile would read the other operand again for those that are left.
const WHOLE_APART: i64 = 4;

/// Of so many registers one holds an accumulator at most where nothing that is multiplied is the same for all lanes, as in depthwise convolutions:
/// compilers load more of that ahead than they have registers for.
const LANE_BY_LANE: i64 = 2;
/// Registers that what is multiplied in groups passes through. Instructions for that read nothing from memory that is the same for all
/// lanes, and it is loaded before its use. A tile that leaves fewer is spilled as a whole around its innermost loop.
const IN_PASSING: f64 = 4.0;
/// The same of numbers of fewer bits than a byte.
const UNPACKING: f64 = 4.0;

/// What the model takes from a core's timing, in cycles and bytes. The shares are fitted to measured loops on processors with
/// 48 KB of L1 and 1 MB of L2; that they are shares is what carries over to others.
struct Limits {
    /// Bytes of an operand that stay in L1 beside everything else.
    l1_bytes: f64,
    /// Lines of a set of L1, and of L2, that an operand may take beside everything else.
    l1_ways: i64,
    l2_ways: i64,
    /// Cycles of each step for what neither cache holds and no prefetcher brings: out-of-order execution hides most of the latency.
    beyond: f64,
    /// And of each line of it.
    beyond_line: f64,
    /// The same in L2.
    l2_bytes: f64,
    /// Cycles of a line with gaps around it that comes from L2, and from beyond it: prefetchers bring the gaps. (Granite Rapids, ResNet-50: 1 x 1
    /// convolutions with strides take 1.15 and 1.45 times as long as without.)
    gap_l2: f64,
    gap_l3: f64,
}

impl Limits {
    fn of(t: &Timing) -> Limits {
        Limits {
            l1_bytes: t.l1.bytes as f64 / 3.0,
            l1_ways: (t.l1.ways * 3 / 5).max(1),
            l2_ways: (t.l2.ways * 3 / 4).max(1),
            beyond: t.l3.latency / 8.0,
            beyond_line: t.l3.line as f64 / t.l3.bytes_per_cycle,
            l2_bytes: near_bytes(t) as f64,
            gap_l2: t.l2.latency / 4.0,
            gap_l3: t.l3.latency / 8.0,
        }
    }
}

struct Model<'a> {
    accesses: &'a [Access],
    unit: Core,
    /// Operations on a vector of values besides the multiply-add's two.
    extra_ops: f64,
    /// Operations to widen what is read, by access.
    widened: f64,
    /// Whether integers are added up.
    integers: bool,
    /// The axis along which vectors of results lie side by side, and what becomes of them, where that is more than to be stored.
    packed: Option<(AxisId, Stored)>,
    /// The reduced axes.
    over: &'a [Axis],
    /// The innermost reduced axis, where each step treats one element.
    innermost: Option<Axis>,
    reduced: f64,
    /// Cycles to store one accumulator.
    store: f64,
    /// How many elements each step treats at once.
    dot: i64,
    /// Cycles from a sum to the next one.
    latency: f64,
    /// By access, how it goes on from step to step.
    strides: &'a [Stride],
    /// The reduced axes of which each step treats one element: set where the elements that are treated together lie apart.
    windows: Option<Vec<Axis>>,
    /// Axes whose extents are others at other sizes.
    changing: Option<&'a HashSet<AxisId>>,
    /// Axes along which windows reach over edges.
    guarded: &'a HashSet<AxisId>,
    /// Axes along which not all taps of windows count everywhere.
    cuts: &'a HashMap<AxisId, Vec<taps::Cut>>,
    /// How axes are cut: asked for again and again.
    pieces: &'a Pieces,
}

/// How often there are tiles of each size, by the extent, the largest size, and whether the extent changes and windows reach over its edges.
type Pieces = RefCell<HashMap<(i64, i64, bool, bool), Rc<[(f64, i64)]>>>;

/// How a read goes on from step to step of the reduction.
#[derive(Copy, Clone)]
struct Stride {
    /// Whether each step meets another line.
    lines: bool,
    /// Whether lines that lie powers of two apart evict one another from the first cache before the next tile needs them.
    evicts_l1: bool,
    /// And from the second.
    evicts_l2: bool,
    /// See [`gap`].
    gap: i64,
    /// Bytes of all lines that are read, and of those in the gaps between them.
    span: f64,
}

impl Stride {
    fn of(a: &Access, axes: &[Axis], reduced: &[Axis], t: &Timing) -> Stride {
        let gap = gap(a, axes, reduced, t);
        let used = axes.iter().chain(reduced).filter(|x| coeff(a, x.id) != Some(0));
        let span = used.map(|x| x.extent as f64).product::<f64>() * (a.bytes * gap) as f64;
        let innermost =
            |o: &Affine| reduced.iter().rev().find(|r| o.coeff(r.id) != 0).map(|r| (o.coeff(r.id), r.extent));
        let Some((step, turns)) = a.offset.as_ref().and_then(innermost) else {
            return Stride { lines: false, evicts_l1: false, evicts_l2: false, gap, span };
        };
        let bytes = (step * ELEMENT as i64).abs();
        let apart = 1 << bytes.trailing_zeros();
        let lines = bytes >= t.l1.line;
        let crowded = |stride: i64, ways: i64| lines && apart >= t.l1.line && turns > (stride / apart).max(1) * ways;
        let limits = Limits::of(t);
        Stride {
            lines,
            evicts_l1: crowded(t.l1.set_stride(), limits.l1_ways),
            evicts_l2: bytes >= t.prefetch_reach && crowded(t.l2.set_stride(), limits.l2_ways),
            gap,
            span,
        }
    }
}

impl Model<'_> {
    /// Cycles per step of the reduction for one tile of the given sizes.
    fn cycles(&self, vector: AxisId, lanes: i64, tiles: &[(AxisId, i64)]) -> f64 {
        let t = &self.unit.timing;
        let (limits, line) = (Limits::of(t), t.l1.line as f64);
        let accumulators: f64 = tiles.iter().map(|t| t.1 as f64).product();
        let (mut loads, mut from_l2, mut beyond) = (0.0, 0.0, 0.0);
        let mut live: f64 = 0.0;
        let window = self.window(tiles);
        for ((i, a), stride) in self.accesses.iter().enumerate().zip(self.strides) {
            let copies: f64 =
                tiles.iter().filter(|(axis, _)| coeff(a, *axis) != Some(0)).map(|(_, size)| *size as f64).product();
            let each = match coeff(a, vector) {
                Some(0 | 1) => 1.0,
                Some(step) if self.dot > 1 && step == self.dot => 1.0,
                // Whole vectors, and all but one of them put in order.
                Some(step) if (2..=MOST_RUNS).contains(&step) => (2 * step - 1) as f64,
                _ => 1.5 * lanes as f64,
            };
            // Places that lie powers of two apart evict one another from the first cache, but for a few.
            let crowded = |(axis, size): &(AxisId, i64)| {
                *size > limits.l1_ways
                    && coeff(a, *axis).is_some_and(|c| c != 0 && (c * ELEMENT as i64) % t.l1.set_stride() == 0)
            };
            let places = window.as_ref().and_then(|w| w[i]).unwrap_or(copies);
            loads += places * each * if tiles.iter().any(crowded) { 4.0 } else { 1.0 };
            if coeff(a, vector) != Some(0) {
                let beside = tiles.iter().find(|t| t.0 == vector).map_or(1, |t| t.1) as f64;
                beyond += STRIDED * (copies / beside - 1.0);
            }
            // What a tile reads of an operand, step after step, is read again by the next tile: from the first cache only where
            // it fits there.
            let adjacent = || tiles.iter().any(|t| t.1 > 1 && coeff(a, t.0) == Some(1));
            let bytes = match coeff(a, vector) {
                Some(0) if !stride.lines => copies * ELEMENT,
                Some(0) if adjacent() => (copies * ELEMENT).max(line),
                Some(0) => copies * line,
                _ => copies * self.unit.vector_bytes as f64,
            };
            let fits = bytes * self.reduced <= limits.l1_bytes
                || self.dot == 1 && bytes * distinct(a, self.over, tiles) / copies <= limits.l1_bytes;
            if !fits || stride.evicts_l1 {
                from_l2 += bytes;
            }
            if stride.gap > 1 && stride.span > limits.l1_bytes {
                let far = stride.span > limits.l2_bytes;
                beyond += bytes / line * if far { limits.gap_l3 } else { limits.gap_l2 };
            }
            if stride.evicts_l2 {
                beyond += limits.beyond + limits.beyond_line * bytes / line;
            }
            // The operand with the fewest copies stays in registers while the others stream by.
            live = if live == 0.0 { copies } else { live.min(copies) };
        }
        let passing = match self.accesses.len() {
            ..=1 => 0.0,
            _ if self.dot > 1 => IN_PASSING,
            // Bytes, the number taken out of them, and what that is multiplied with.
            _ if !self.integers && self.widened > 0.0 && self.extra_ops > 0.0 => UNPACKING,
            _ => 1.0,
        };
        let registers = accumulators + live + passing;
        let spilled = (registers - self.unit.vector_registers as f64).max(0.0);
        let operations = accumulators * (1.0 + self.extra_ops) + self.widening(tiles);
        let arithmetic = match self.integers {
            // An addition is an operation of its own.
            true => (accumulators / t.dot.per_cycle).max((operations + accumulators) / t.adds),
            false => operations / t.fma.per_cycle,
        };
        arithmetic.max((loads + spilled) / t.loads).max(from_l2 / t.l2.bytes_per_cycle).max(self.latency)
            + beyond
            + 3.0 * (accumulators + 8.0 - 16.0).max(0.0) * spilled.min(1.0)
    }

    /// By operand, how many places each step loads where those of a window are loaded once for all accumulators, which is where registers hold all
    /// of them beside these, and turns over the window are written out.
    fn window(&self, tiles: &[(AxisId, i64)]) -> Option<Vec<Option<f64>>> {
        let last = self.innermost.filter(|last| FACTORS.contains(&last.extent))?;
        let all: Vec<Option<i64>> = self.accesses.iter().map(|a| places(a, last, tiles)).collect();
        let most = all.iter().flatten().max()?;
        let accumulators: i64 = tiles.iter().map(|t| t.1).product();
        let each = |p: Option<i64>| p.map(|p| p as f64 / last.extent as f64);
        (accumulators + most <= self.unit.vector_registers).then(|| all.into_iter().map(each).collect())
    }

    /// Operations to widen what a tile reads in a step: each place of a window once, where registers hold it, else for each multiply-add.
    fn widening(&self, tiles: &[(AxisId, i64)]) -> f64 {
        if self.widened == 0.0 {
            return 0.0;
        }
        let accumulators: i64 = tiles.iter().map(|t| t.1).product();
        let read = |a: &Access| -> f64 {
            let held = |last: Axis| {
                let places = places(a, last, tiles).filter(|p| accumulators + p <= self.unit.vector_registers)?;
                Some(places as f64 / last.extent as f64)
            };
            let copies = || -> f64 { tiles.iter().filter(|t| coeff(a, t.0) != Some(0)).map(|t| t.1 as f64).product() };
            let again = if self.integers { READ_AGAIN } else { 1.0 };
            self.innermost.and_then(held).unwrap_or_else(|| again * copies())
        };
        self.widened * self.accesses.iter().map(read).sum::<f64>()
    }

    /// The same where what is multiplied together is brought together first: loaded across lines and put in order, once for all
    /// elements of a tile whose windows meet there, while registers hold it.
    fn cycles_of_taps(&self, windows: &[Axis], tiles: &[(AxisId, i64)]) -> f64 {
        let accumulators: f64 = tiles.iter().map(|t| t.1 as f64).product();
        let brought: Vec<f64> = self.accesses.iter().map(|a| distinct(a, windows, tiles)).collect();
        let all: f64 = brought.iter().sum();
        let t = &self.unit.timing;
        let spilled = (accumulators + all + IN_PASSING - self.unit.vector_registers as f64).max(0.0);
        let steps = self.reduced.max(1.0);
        // A vector that mostly lies across two lines takes two loads.
        let loads = all * 1.8 / t.loads / steps;
        ((accumulators + all / steps) / t.dot.per_cycle).max(loads) + 2.0 * spilled / steps
    }

    /// Cycles to store each vector of a tile.
    fn store_cycles(&self, tiles: &[(AxisId, i64)]) -> f64 {
        let Some((beside, stored)) = self.packed else { return self.store };
        let adjacent = tiles.iter().find(|t| t.0 == beside).map_or(1, |t| t.1);
        let scale = if stored.is_scaled { SCALE } else { 0.0 };
        self.store + (scale + stored.packing(adjacent)) / self.unit.timing.adds
    }

    /// Cycles for all tiles of these axes, tails included, `outside` times.
    fn total(&self, vector: AxisId, lanes: i64, tiles: &[(AxisId, i64)], extents: &[i64], outside: f64) -> f64 {
        fn walk(
            m: &Model<'_>,
            vector: AxisId,
            lanes: i64,
            tiles: &[(AxisId, i64)],
            extents: &[i64],
            chosen: &mut Vec<(AxisId, i64)>,
        ) -> f64 {
            let Some(&(axis, size)) = tiles.get(chosen.len()) else {
                let accumulators: f64 = chosen.iter().map(|t| t.1 as f64).product();
                let step = match &m.windows {
                    Some(windows) => m.cycles_of_taps(windows, chosen),
                    None => m.cycles(vector, lanes, chosen),
                };
                // Starting and storing a tile costs, too: that is spread over the reduction.
                return step * m.reduced + m.store_cycles(chosen) * accumulators + TILE;
            };
            let extent = extents[chosen.len()];
            let changes = axis != vector && m.changing.is_some_and(|c| c.contains(&axis));
            let guarded = m.guarded.contains(&axis);
            let even = |extent: i64, share: f64| {
                super::cut_evenly(extent, size).into_iter().map(move |(_, n, size)| (n as f64 * share, size))
            };
            let cut = || match changes {
                true if guarded && size >= LEAST_EDGED => edged_pieces(extent, size).into(),
                true => changing_pieces(extent, size, is_streamed(m.reduced, m.unit)).into(),
                false => even(extent, 1.0).collect(),
            };
            let pieces: Rc<[(f64, i64)]> = match m.cuts.get(&axis).filter(|_| size > 1 && !changes) {
                Some(cuts) => cuts.iter().flat_map(|&(extent, share)| even(extent, share)).collect(),
                None => m.pieces.borrow_mut().entry((extent, size, changes, guarded)).or_insert_with(cut).clone(),
            };
            pieces
                .iter()
                .map(|&(count, size)| {
                    chosen.push((axis, size));
                    let cost = walk(m, vector, lanes, tiles, extents, chosen);
                    chosen.pop();
                    count * cost
                })
                .sum()
        }
        outside * walk(self, vector, lanes, tiles, extents, &mut Vec::new())
    }
}

/// The distance between the nearest cache lines of an operand that are read, in lines: 1 where they adjoin, more where strides leave lines out.
pub(super) fn gap(a: &Access, axes: &[Axis], reduced: &[Axis], t: &Timing) -> i64 {
    let Some(offset) = &a.offset else { return 1 };
    let line = (t.l1.line / a.bytes).max(1);
    let steps = axes.iter().chain(reduced).map(|x| (offset.coeff(x.id).abs(), x.extent));
    let far = steps.filter(|(step, extent)| *step > 0 && *extent > 1 && step * extent > line);
    far.map(|(step, _)| if step % line == 0 { step / line } else { 1 }).min().unwrap_or(1).min(WIDEST_GAP)
}

/// How many elements a tile reads of an operand in all, each once, where windows of its places overlap.
fn distinct(a: &Access, reduced: &[Axis], tiles: &[(AxisId, i64)]) -> f64 {
    let mut left: Vec<&Axis> = reduced.iter().filter(|w| coeff(a, w.id) != Some(0)).collect();
    let along = |(axis, size): &(AxisId, i64)| {
        let step = match coeff(a, *axis) {
            Some(0) => return None,
            Some(step) => step,
            None => return Some(*size),
        };
        let meets = |w: &&Axis| coeff(a, w.id).is_some_and(|c| step % c == 0);
        Some(match left.iter().position(meets).map(|at| left.remove(at)) {
            Some(w) => ((size - 1) * (step / coeff(a, w.id).unwrap_or(1)).abs() + w.extent).min(size * w.extent),
            None => *size,
        })
    };
    let tiled: i64 = tiles.iter().filter_map(along).product();
    (tiled * left.iter().map(|w| w.extent).product::<i64>()) as f64
}

/// At an extent that changes: another one that is as likely, and how many elements of it are as many as one of this one.
fn longer(extent: i64) -> (i64, f64) {
    let more = extent + extent / 2 + 1;
    (more, extent as f64 / more as f64)
}

/// Extents up to this one, as those of batches, say little about others.
const FEW_PLACES: i64 = 4;
/// Where there are few places, there may as well be one, or so many.
const MORE_PLACES: i64 = 8;

/// The extents that are as likely as one that changes, each with what an element at it counts.
fn likely(extent: i64) -> Vec<(i64, f64)> {
    let as_one = |other: i64| extent as f64 / other as f64;
    match extent {
        ..=FEW_PLACES => vec![(extent, 0.5), (1, as_one(1) / 4.0), (MORE_PLACES, as_one(MORE_PLACES) / 4.0)],
        _ => {
            let (more, share) = longer(extent);
            vec![(extent, 0.5), (more, share / 2.0)]
        }
    }
}

/// The same as [`changing_pieces`] where windows reach over the edges.
fn edged_pieces(extent: i64, size: i64) -> Vec<(f64, i64)> {
    let tiles = |(extent, share): (i64, f64)| {
        let size = edged_size(extent, size, 1).unwrap_or(1);
        (((extent + size - 1) / size) as f64 * share / 2.0, size)
    };
    vec![tiles((extent, 1.0)), tiles(longer(extent))]
}

/// How often there are tiles of each size along an axis whose extent changes: as at the extent at hand for the one half, and for the other
/// as at those that are as likely, brought down to as many elements. Of small ones more, where what they read is `streamed`.
fn changing_pieces(extent: i64, size: i64, streamed: bool) -> Vec<(f64, i64)> {
    let as_long = |size: i64| if streamed { size.max(FEW) as f64 / size as f64 } else { 1.0 };
    let mut all: Vec<(f64, i64)> = Vec::new();
    let along = TilesAlong { streamed: true, may_overlap: true, many: TilesAlong::is_many(extent, size) };
    for (extent, weight) in likely(extent) {
        let tiles = changing_tiles(extent, size, along).into_iter();
        all.resize_with(tiles.len(), Default::default);
        for (sum, (_, n, size)) in all.iter_mut().zip(tiles) {
            // One place is one tile anyhow.
            let as_long = if extent > 1 { as_long(size) } else { 1.0 };
            *sum = (sum.0 + as_long * n as f64 * weight, size);
        }
    }
    all
}

/// The reduced axis along which so many elements of each operand lie side by side, while the lanes of one of them lie as many apart
/// and the other is the same for all lanes.
fn dot_along(v: AxisId, count: i64, reduced: &[Axis], accesses: &[Access]) -> Option<AxisId> {
    let mut steps: Vec<Option<i64>> = accesses.iter().map(|a| coeff(a, v)).collect();
    steps.sort_unstable();
    let along = |r: &&Axis| r.extent % count == 0 && accesses.iter().all(|a| coeff(a, r.id) == Some(1));
    reduced.iter().find(along).filter(|_| steps == [Some(0), Some(count)]).map(|r| r.id)
}

/// The reduced axis whose elements, four at most, lie as from_l2 apart in both operands as a vector of them is long.
fn taps_along(v: AxisId, lanes: i64, reduced: &[Axis], accesses: &[Access]) -> Option<Axis> {
    let beside = accesses.len() == 2 && accesses.iter().all(|a| coeff(a, v) == Some(1));
    let along = |r: &&Axis| (2..=4).contains(&r.extent) && accesses.iter().all(|a| coeff(a, r.id) == Some(lanes));
    reduced.iter().find(along).filter(|_| beside).copied()
}

/// The best tiling of a reduction over `reduced` into `axes`, and its cycles. `to` is where a result goes, where that is affine; the
/// extents of `changing` axes are others at other sizes.
pub(super) fn choose(
    axes: &[Axis],
    to: Option<&Affine>,
    reduced: &[Axis],
    accesses: &[Access],
    form: Form,
    unit: Core,
    changing: Option<&HashSet<AxisId>>,
) -> Option<(f64, Tiling)> {
    ranked(axes, to, reduced, accesses, form, unit, changing, &HashSet::new(), &HashMap::new(), 1).best.pop()
}

/// Whether an operand's steps along an axis change from size to size: another axis of results whose extent does lies within.
fn apart(axis: AxisId, axes: &[Axis], accesses: &[Access], changing: Option<&HashSet<AxisId>>) -> bool {
    let Some(changing) = changing else { return false };
    accesses.iter().filter_map(|a| a.offset.as_ref()).any(|o| {
        let within = |x: &Axis| o.coeff(x.id) != 0 && o.coeff(x.id).abs() < o.coeff(axis).abs();
        axes.iter().any(|x| changing.contains(&x.id) && within(x))
    })
}

/// Tilings by what the model says.
pub(super) struct Ranked {
    /// Some of them with their cycles, the best first.
    pub best: Vec<(f64, Tiling)>,
    /// How many there are in all.
    pub all: usize,
}

/// The best so many tilings.
#[expect(clippy::too_many_arguments, reason = "all that decides")]
pub(super) fn ranked(
    axes: &[Axis],
    to: Option<&Affine>,
    reduced: &[Axis],
    accesses: &[Access],
    form: Form,
    unit: Core,
    changing: Option<&HashSet<AxisId>>,
    guarded: &HashSet<AxisId>,
    cuts: &HashMap<AxisId, Vec<taps::Cut>>,
    most: usize,
) -> Ranked {
    let strides: Vec<Stride> = accesses.iter().map(|a| Stride::of(a, axes, reduced, &unit.timing)).collect();
    let volume: f64 = reduced.iter().map(|a| a.extent as f64).product();
    let pieces = Pieces::default();
    let mut best: Vec<(f64, Tiling)> = Vec::new();
    let mut offered = 0;
    let mut offer = |cost: f64, tiling: Tiling| {
        offered += 1;
        // Of equals, the first that was found stays first.
        let at = best.partition_point(|(c, _)| *c <= cost);
        if at < most {
            best.truncate(most - 1);
            best.insert(at, (cost, tiling));
        }
    };
    let widest: Vec<(AxisId, i64)> = axes
        .iter()
        .map(|a| {
            let changes = changing.is_some_and(|c| c.contains(&a.id));
            let widest = match apart(a.id, axes, accesses, changing) {
                true if !changes && a.extent <= WHOLE_APART => a.extent,
                true => WIDEST_APART,
                false => WIDEST,
            };
            (a.id, widest)
        })
        .collect();
    let widest = |axis: AxisId| widest.iter().find(|w| w.0 == axis).map_or(WIDEST, |w| w.1);
    // Along few places that change, vectors would be mostly empty at some sizes: not where another axis fills them at all sizes.
    let is_changing = |a: &Axis| changing.is_some_and(|c| c.contains(&a.id));
    let others_fill = axes.iter().any(|a| !is_changing(a) && a.extent >= unit.lanes());
    let may_fill = |a: &&Axis| a.extent > 1 && !(others_fill && is_changing(a) && a.extent <= FEW_PLACES);
    for v in axes.iter().chain(reduced).filter(may_fill) {
        let across = reduced.iter().any(|r| r.id == v.id);
        let lanes = unit.lanes().min(v.extent);
        let (vectors, rest) = (v.extent / lanes, v.extent % lanes);
        let vectors_in_all = vectors + (rest > 0) as i64;
        let dot = match form.dot {
            Some(t) if !across => dot_along(v.id, t.count, reduced, accesses).map(|r| (r, t)),
            _ => None,
        };
        let taps = match form.taps && !across && lanes == unit.lanes() {
            true => taps_along(v.id, lanes, reduced, accesses),
            false => None,
        };
        let dot = dot.or(taps.map(|r| (r.id, Dot::of(r.extent, unit.int8_dot_strided))));
        let model = Model {
            accesses,
            unit,
            store: match to.map(|t| t.coeff(v.id)) {
                Some(0 | 1) => store_cycles(&unit.timing),
                // Lane by lane.
                _ => SCATTER * lanes as f64,
            },
            extra_ops: dot.map_or(form.extra_ops, |(_, t)| t.ops - 1.0),
            packed: to.filter(|t| t.coeff(v.id) == 1 && form.stored != Stored::PLAIN).map(|t| {
                let beside = axes.iter().find(|a| a.id != v.id && t.coeff(a.id) == lanes);
                // The vector axis itself goes on beside, where it takes several vectors.
                (if vectors > 1 { v.id } else { beside.map_or(v.id, |a| a.id) }, form.stored)
            }),
            widened: if dot.is_some() { 0.0 } else { form.widened / accesses.len().max(1) as f64 },
            integers: form.integers && dot.is_none(),
            over: reduced,
            innermost: reduced.last().copied().filter(|_| dot.is_none() && !across),
            reduced: match dot {
                Some((_, t)) => volume / t.count as f64,
                None if across => volume / v.extent as f64 * vectors_in_all as f64,
                None => volume,
            },
            dot: dot.map_or(1, |(_, t)| t.count),
            latency: dot.and_then(|(_, t)| t.latency).unwrap_or(unit.timing.fma.latency),
            strides: &strides,
            changing,
            guarded,
            pieces: &pieces,
            cuts,
            windows: taps.map(|t| reduced.iter().filter(|r| r.id != t.id).copied().collect()),
        };
        let dot = dot.map(|(axis, t)| (axis, t.count));
        let is_by_lane = dot.is_none() && accesses.len() > 1 && accesses.iter().all(|a| coeff(a, v.id) != Some(0));
        let registers = unit.vector_registers / if is_by_lane { LANE_BY_LANE } else { 1 };
        // Candidate tile axes with their extents; the vector axis counts in vectors.
        let mut candidates: Vec<(AxisId, i64)> =
            axes.iter().map(|a| (a.id, if a.id == v.id { vectors } else { a.extent })).filter(|c| c.1 > 1).collect();
        if candidates.is_empty() {
            candidates.push((v.id, 1));
        }
        let changes = |axis: AxisId| axis != v.id && changing.is_some_and(|c| c.contains(&axis));
        // Where few places change, tiles may be larger than there are places here.
        let room = |(axis, extent): (AxisId, i64)| {
            let is_more = changes(axis) && !guarded.contains(&axis) && extent <= FEW_PLACES;
            if is_more { MORE_PLACES } else { extent }.min(widest(axis))
        };
        let all: f64 =
            axes.iter().map(|a| if a.id == v.id { vectors_in_all as f64 } else { a.extent as f64 }).product();
        // Tiles of one place take as long as those of several, too.
        let alone = match candidates.iter().any(|c| changes(c.0)) && is_streamed(model.reduced, unit) {
            true => FEW as f64,
            false => 1.0,
        };
        // Combining the lanes at the end.
        let combine = if across { all * COMBINE * lanes as f64 } else { 0.0 };
        for i in 0..candidates.len() {
            for j in i..candidates.len() {
                let (a, b) = (candidates[i], candidates[j]);
                for s in 1..=room(a) {
                    let most = if i == j { 1 } else { room(b) };
                    for t in 1..=most {
                        if s * t > registers {
                            break;
                        }
                        let (tiles, extents) = match i == j {
                            true => (vec![(a.0, s)], vec![a.1]),
                            false => (vec![(a.0, s), (b.0, t)], vec![a.1, b.1]),
                        };
                        let inside: f64 = extents.iter().map(|&e| e as f64).product();
                        let is_alone = !tiles.iter().any(|t| t.1 > 1 && changes(t.0));
                        let outside = all / inside * if is_alone { alone } else { 1.0 };
                        let cost = model.total(v.id, lanes, &tiles, &extents, outside) + combine;
                        offer(cost, Tiling { vector: v.id, across, lanes, tiles, dot, matrix: None });
                    }
                }
            }
        }
    }
    Ranked { best, all: offered }
}
