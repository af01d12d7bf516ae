//! Which part of the work each thread begins with.
//!
//! A thread's share of a parallel loop is the same part of every loop (`runtime/pool.rs`). Where cores share no cache, to read what another one has
//! written, or to write where it has, takes as long as many operations. So layers that make images and have few weights begin with the image's
//! rows: each thread finds in its cache what it wrote in the layer before. Where there are many weights, threads begin with channels of results
//! instead, and each reads a part of the weights only.

use hashbrown::HashSet;

use super::{
    Access, Emitter, Loop, PARALLEL_ENOUGH, PARALLEL_PIECES, Threads, bind, for_,
    pieces::{counted, edges_apart, pieces},
    reduce::Job,
    taken_apart,
    tiling::{Cut, Piece, Place, Tiling, coeff},
};
use crate::{
    loops::{Axis, AxisId, BinOp, LoopKind, Scalar, Stmt, TensorId},
    lower::normalize::Reduction,
};

/// Threads begin with parts of an image where there are so many times as many bytes of images as of weights.
const WEIGHTS_AGAINST_IMAGES: i64 = 4;

/// As many iterations are enough for threads where matrix registers multiply: what a nest reads again takes longer there than products do.
const PARALLEL_IN_TILES: i64 = 8;

/// An image's rows are cut into so many blocks for threads to begin with.
const ROW_BLOCKS: [i64; 3] = [4, 3, 2];
/// A block has at least so many register tiles one behind the other.
const LEAST_TURNS: i64 = 4;
/// Where a register tile has so many rows, what it reads of the rows around it is little.
const FEW_ROWS: i64 = 7;

/// So many rows of images are gone through at most before the next channels are, where these have nothing in common.
const ROWS_AT_ONCE: i64 = 8;

/// So many leading axes have iterations enough for all threads, which share out those of all pieces at once or of one after another.
pub(super) fn outer_axes(pieces: &[(AxisId, Vec<Piece>)], at_once: bool, in_tiles: bool) -> usize {
    let mut iterations = 1;
    let enough = if in_tiles { PARALLEL_IN_TILES } else { PARALLEL_ENOUGH };
    for (at, (_, pieces)) in pieces.iter().enumerate() {
        // Each piece of an outer axis is a nest of its own, which reads again what all axes around it read.
        if iterations >= enough && pieces.len() > 1 {
            return at;
        }
        let counts = pieces.iter().map(|p| p.count);
        iterations *= if at_once { counts.sum() } else { counts.max().unwrap_or(1) };
        if iterations >= PARALLEL_PIECES {
            return at + 1;
        }
    }
    pieces.len()
}

/// Of so many turns a thread has about as many as another.
const EVEN_TURNS: i64 = 12;

/// Whether both halves of the outermost loop's turns have as much to do, within 2 %. Otherwise threads had better share out its pieces one after
/// another, as a thread that is done early finds chunks of the other's that have begun.
pub(super) fn is_even(pieces: &[(AxisId, Vec<Piece>)]) -> bool {
    let turns =
        pieces.iter().map(|(_, all)| all.iter().flat_map(|p| (0..p.count).map(|_| p.step())).collect::<Vec<i64>>());
    let Some(steps) = turns.into_iter().find(|steps| steps.len() > 1) else { return true };
    let half = steps.len() / 2;
    let (first, last): (i64, i64) = (steps[..half].iter().sum(), steps[steps.len() - half..].iter().sum());
    50 * (first - last).abs() <= steps.iter().sum::<i64>()
}

impl Emitter {
    /// The same where extents change from size to size: whether it is so at all of them, because the outermost loop's do not.
    pub(super) fn begins_evenly(&self, pieces: &[(AxisId, Vec<Piece>)]) -> bool {
        let Some((first, _)) = pieces.split_first() else { return false };
        let turns: i64 = first.1.iter().map(|p| p.count).sum();
        !self.changes(first.0) && turns > 1 && is_even(std::slice::from_ref(first))
    }

    /// Whether the outer loops are over tiles of several sizes, but almost one: of each by itself there would be few at some extents.
    pub(super) fn are_alike(&self, pieces: &[(AxisId, Vec<Piece>)], guarded: &HashSet<AxisId>) -> bool {
        let outer = &pieces[..outer_axes(pieces, true, false)];
        outer.iter().all(|(axis, _)| !guarded.contains(axis))
            && outer.iter().any(|(axis, all)| self.changes(*axis) && all.len() > 1)
    }

    /// Where a step makes an image in blocks of channels and reads few weights for it, beside what it reads and writes of images: how far
    /// its rows, or the pixels of a row, lie apart. Threads had better begin with parts of the image then: as each layer reads all
    /// channels, half of them would be what other threads have written. Of many weights, none should be read twice.
    pub(super) fn by_rows(&self, tensor: TensorId, axes: &[Axis], r: &Reduction) -> Option<[i64; 2]> {
        let decl = self.group.decl(tensor);
        let ([_, _, rows, columns, block], [_, _, row, ..]) = (&decl.shape[..], axes) else { return None };
        let bytes = |t: TensorId| self.bytes_of(t);
        let (images, weights): (Vec<Access>, Vec<Access>) =
            self.accesses(&r.value).into_iter().partition(|a| a.axes.contains(&row.id));
        let sum = |all: Vec<Access>| all.iter().filter_map(|a| a.tensor).map(bytes).sum::<i64>();
        let few = WEIGHTS_AGAINST_IMAGES * sum(weights) <= sum(images) + bytes(tensor);
        (few && *rows > 1 && axes.len() == 5).then_some([columns * block, *block])
    }

    /// The tiles of all pieces of the outer axes in one parallel loop: an iteration is a turn of each. Threads wait for each other once, and begin
    /// with parts of the first axis.
    pub(super) fn tiles_at_once(
        &mut self,
        job: &Job<'_>,
        outer: &[(AxisId, Vec<Piece>)],
        inner: &[(AxisId, Vec<Piece>)],
        rows: Option<(Axis, Axis)>,
    ) -> Stmt {
        let number = self.fresh();
        let turns: Vec<Loop> = outer
            .iter()
            .map(|(_, all)| Loop { var: self.fresh(), extent: all.iter().map(|p| p.count).sum() })
            .collect();
        let all: Vec<Loop> = job.blocks.iter().map(|b| b.turns.clone()).chain(turns.clone()).collect();
        let total = all.iter().map(|l| l.extent).product();
        if self.is_sized() {
            self.same((outer.len(), inner.len()));
            for (l, (axis, _)) in turns.iter().zip(outer) {
                if self.changes(*axis) {
                    self.mark(l.var);
                }
            }
            let body = self.within(|e| e.pieces_by_turn(job, outer, &turns, inner, rows, &mut Vec::new()));
            return self.changing_parallel(number, total, &all, body, Threads::All);
        }
        let body = self.pieces_by_turn(job, outer, &turns, inner, rows, &mut Vec::new());
        for_(number, total, LoopKind::Parallel, taken_apart(number, &turns, body))
    }

    /// The pieces of the first outer axis, of which the turn says which it is, those of the others within, and the tiles within these.
    fn pieces_by_turn(
        &mut self,
        job: &Job<'_>,
        outer: &[(AxisId, Vec<Piece>)],
        turns: &[Loop],
        inner: &[(AxisId, Vec<Piece>)],
        rows: Option<(Axis, Axis)>,
        places: &mut Vec<Place>,
    ) -> Stmt {
        let (Some(((axis, pieces), rest)), Some((turn, turns))) = (outer.split_first(), turns.split_first()) else {
            return match rows {
                Some(rows) => self.nest(job, &within_block(places, inner, rows, job.tiling), places),
                None => self.nest(job, inner, places),
            };
        };
        let mut all: Option<Stmt> = None;
        for &piece in pieces.iter().rev() {
            let (own, place) = self.place(job, *axis, piece);
            let named = place.named.clone();
            places.push(place);
            let body = Place::with_names(named.into_iter(), self.pieces_by_turn(job, rest, turns, inner, rows, places));
            places.pop();
            // Within its piece the turn is in range anyhow: so it is known to be.
            let (before, last, end) = match piece.changes {
                true => {
                    let Cut { before, turns, .. } = job.cuts[axis][piece.number].clone();
                    (before.clone(), turns.clone() - 1, before + turns)
                }
                false => {
                    let (before, count) = (piece.before, piece.count);
                    (Scalar::index(before), Scalar::index(count - 1), Scalar::index(before + count))
                }
            };
            let at = Scalar::binary(BinOp::Max, Scalar::axis(turn.var) - before, Scalar::index(0));
            let body = bind(own.var, Scalar::binary(BinOp::Min, at, last), body);
            all = Some(match all {
                None => body,
                Some(later) => Stmt::If {
                    cond: Scalar::binary(BinOp::Lt, Scalar::axis(turn.var), end),
                    then: Box::new(body),
                    otherwise: Some(Box::new(later)),
                },
            });
        }
        all.unwrap_or(Stmt::Block(vec![]))
    }

    /// Has threads begin with parts of each image where how many rows it has changes from size to size: the loop over tiles of rows, or of pixels,
    /// becomes the outermost one of an image, where threads get shares of about the same length. Whether it is that.
    pub(super) fn changing_rows_outermost(&mut self, axes: &mut Vec<Axis>, at: usize, tiling: &Tiling) -> bool {
        let to = self.decide(|e| {
            let rows = axes[at];
            let turns: i64 = pieces(&rows, tiling).iter().map(|p| p.count).sum();
            let is_image = |a: &Axis| e.changes(a.id) && a.id != rows.id && a.id != tiling.vector;
            let to = axes[..at].iter().take_while(|a| is_image(a)).count();
            (e.changes(rows.id) && turns >= EVEN_TURNS).then_some(to)
        });
        if let Some(to) = to.filter(|to| *to < at && at < axes.len()) {
            let rows = axes.remove(at);
            axes.insert(to, rows);
        }
        to.is_some()
    }

    /// Whether the outermost loops are over rows, of which there are more or fewer, and over something that what is read of these depends on, as channels
    /// of depthwise convolutions are: windows of rows below each other then share what they read, and what lies beside each other does not.
    pub(super) fn in_blocks_of_rows(&self, axes: &[Axis], r: &Reduction) -> bool {
        let [rows, others, ..] = axes else { return false };
        if !self.changes(rows.id) || self.changes(others.id) || others.extent == 1 {
            return false;
        }
        let accesses = self.accesses(&r.value);
        let of_rows: Vec<&Access> = accesses.iter().filter(|a| a.axes.contains(&rows.id)).collect();
        let overlap = |a: &Access| {
            let (Some(step), Some(offset)) = (coeff(a, rows.id), &a.offset) else { return false };
            let within = |w: &Axis| (offset.coeff(w.id) != 0).then(|| step / offset.coeff(w.id));
            r.axes.iter().any(|w| within(w).is_some_and(|rows| rows > 0 && rows < w.extent))
        };
        of_rows.iter().all(|a| a.axes.contains(&others.id)) && of_rows.iter().any(|a| overlap(a))
    }

    /// Loops of which the two outermost go through some rows for each turn of the second one, and then through further ones: what they read stays in L1,
    /// and threads still begin with parts of the image.
    pub(super) fn blocks_of_rows(&mut self, loops: &[Loop], body: Stmt, threads: Threads) -> Stmt {
        let (outer, inner) = loops.split_at(2);
        let [rows, others] = [&outer[0], &outer[1]];
        self.same_axis(others.var, others.extent);
        let mut body = inner.iter().rev().fold(body, |body, l| self.one_loop(l, LoopKind::Serial, body));
        let most = rows_at_once(rows.extent);
        let (var, total) = (self.fresh(), rows.extent * others.extent);
        let [all, most, per_block] = [rows.extent, most, most * others.extent].map(|n| self.number(n));
        let [first, turn, here] = [self.fresh(), self.fresh(), self.fresh()];
        if !self.is_dry() {
            let op = Scalar::binary;
            let [at, first_row, in_block, rows_here] = [var, first, turn, here].map(Scalar::axis);
            // The last block has fewer rows.
            let left = op(BinOp::Min, most.clone(), all.clone() - first_row.clone());
            let row = first_row + op(BinOp::FloorMod, in_block.clone(), rows_here.clone());
            let bound = [
                (first, op(BinOp::FloorDiv, at.clone(), per_block.clone()) * most),
                (turn, op(BinOp::FloorMod, at, per_block)),
                // No divisor is 0.
                (here, op(BinOp::Max, left, Scalar::index(1))),
                (others.var, op(BinOp::FloorDiv, in_block, rows_here)),
                // So that codegen knows it to be in range.
                (rows.var, op(BinOp::Min, row, all - 1)),
            ];
            body = bound.into_iter().rev().fold(body, |body, (var, value)| bind(var, value, body));
        }
        match threads {
            Threads::Enough(enough) => self.shared_where(var, total, enough, body),
            Threads::One | Threads::All => {
                let extent = self.number(total);
                Stmt::For { var, extent, kind: LoopKind::Parallel, body: Box::new(body) }
            }
        }
    }

    /// Has threads begin with parts of the image: the loop over its rows becomes the outermost one. Where a register tile has but few rows, or all
    /// of them are one axis with the columns, it is a loop over blocks of them, so that within one loops run in the order that they had.
    /// These blocks and the axis within them, then.
    pub(super) fn rows_outermost(
        &mut self,
        axes: &mut Vec<Axis>,
        (at, merged): (usize, bool),
        tiling: &mut Tiling,
        to: &mut Scalar,
        exprs: &mut [&mut Scalar],
    ) -> Option<(Axis, Axis)> {
        let rows = axes[at];
        let tile = tiling.tiles.iter().find(|t| t.0 == rows.id).map_or(1, |t| t.1).max(1);
        if axes[..at].iter().all(|a| a.extent == 1 || a.id == tiling.vector) {
            return None;
        }
        if !merged && tile >= FEW_ROWS {
            axes.remove(at);
            axes.insert(0, rows);
            return None;
        }
        let is_cut = |blocks: &i64| {
            let block = rows.extent / blocks;
            rows.extent % blocks == 0 && block >= LEAST_TURNS * tile && (merged || block % tile == 0)
        };
        let blocks = ROW_BLOCKS.into_iter().find(is_cut)?;
        axes.remove(at);
        let [outer, inner] = self.split_axis(rows, rows.extent / blocks, to, exprs);
        axes.insert(at, inner);
        axes.insert(0, outer);
        tiling.tiles.iter_mut().filter(|t| t.0 == rows.id).for_each(|t| t.0 = inner.id);
        Some((outer, inner))
    }
}

/// How many of so many rows are gone through at once: few enough to stay in L1, in an even number of blocks.
fn rows_at_once(rows: i64) -> i64 {
    let blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    let blocks = (blocks + blocks % 2).max(2);
    ((rows + blocks - 1) / blocks).max(1)
}

/// The pieces of all inner axes, where blocks of rows are an outer one: only the first and the last block are at an edge of the image.
fn within_block(
    places: &[Place],
    inner: &[(AxisId, Vec<Piece>)],
    (blocks, within): (Axis, Axis),
    tiling: &Tiling,
) -> Vec<(AxisId, Vec<Piece>)> {
    let block = places.iter().find(|p| p.axis == blocks.id).map(|p| p.piece);
    let of = |(id, all): &(AxisId, Vec<Piece>)| match block {
        Some(block) if *id == within.id && all.len() > 1 => {
            let edges = [block.start == 0, block.start + block.count == blocks.extent];
            (*id, counted(edges_apart(pieces(&within, tiling), edges)))
        }
        _ => (*id, all.clone()),
    };
    inner.iter().map(of).collect()
}
