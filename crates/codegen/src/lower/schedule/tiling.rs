//! How a reduction is cut: register tiles, the pieces of axes that loops go through, and the places of tiles.

use super::{
    Access, cut_evenly,
    sizes::{descending, tails},
};
use crate::{
    loops::{Axis, AxisId, Scalar},
    machine::Timing,
};

/// How a reduction runs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tiling {
    /// The axis whose elements are the lanes of a vector.
    pub(super) vector: AxisId,
    /// Whether that axis is reduced over, so that lanes are combined at the end.
    pub(super) across: bool,
    /// Lanes of a vector (less than the machine's where the axis is short).
    pub(super) lanes: i64,
    /// Register tile: axes and their sizes; of the vector axis, in vectors. Outermost first.
    pub(super) tiles: Vec<(AxisId, i64)>,
    /// The reduced axis of which several elements at once are multiplied and added, and how many, where [`Form::dot`] allows.
    pub(super) dot: Option<(AxisId, i64)>,
    /// Where matrix registers multiply: how they go through the reduction.
    pub(super) matrix: Option<Matrix>,
}

impl Tiling {
    /// One element at a time; `vector` is an axis of nothing.
    pub(super) fn single(vector: AxisId) -> Tiling {
        Tiling { vector, across: false, lanes: 1, tiles: vec![], dot: None, matrix: None }
    }
}

/// What a reduction does with what it reads.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Form {
    /// Operations of a value beyond one multiplication.
    pub(super) extra_ops: f64,
    /// Where the value is a product of narrow numbers and the reduction its sum in 32 bits.
    pub(super) dot: Option<Dot>,
    /// Where it is such a sum, and the machine brings bytes together that lie a vector's lanes apart.
    pub(super) taps: bool,
}

/// Narrow numbers that are multiplied and added to one lane of 32 bits at once.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Dot {
    /// How many: as many as fill the lane.
    pub(super) count: i64,
    /// Instructions for it.
    pub(super) ops: i64,
}

/// How matrix registers go through a reduction.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Matrix {
    /// The reduced axis of the numbers of a word.
    pub(super) part: AxisId,
    /// The reduced axis of words.
    pub(super) words: AxisId,
    /// How many words there are.
    pub(super) depth: i64,
}

/// A part of an output axis that is handled by one loop.
#[derive(Copy, Clone, Debug)]
pub(super) struct Piece {
    /// First element.
    pub(super) start: i64,
    /// Iterations.
    pub(super) count: i64,
    /// Accumulators along the axis per iteration.
    pub(super) size: i64,
    /// Elements of each: the lanes along the vector axis, else 1.
    pub(super) lanes: i64,
    /// Iterations of the axis' pieces before this one.
    pub(super) before: i64,
    /// Whether how many iterations there are changes from size to size.
    pub(super) changes: bool,
    /// Whether where it begins does.
    pub(super) moves: bool,
    /// Whether it is one iteration at most.
    pub(super) once: bool,
    /// Whether no window reaches over an edge there, at any size.
    pub(super) inside: bool,
}

impl Piece {
    /// A piece of so many tiles of that size, the first of its axis.
    #[cfg(test)]
    pub(super) fn of(count: i64, size: i64) -> Piece {
        Piece::plain(0, count, size, 1)
    }

    /// A piece of known extents.
    pub(super) fn plain(start: i64, count: i64, size: i64, lanes: i64) -> Piece {
        Piece { start, count, size, lanes, before: 0, changes: false, moves: false, once: false, inside: false }
    }

    /// Elements of an iteration.
    pub(super) fn step(&self) -> i64 {
        self.size * self.lanes
    }

    pub(super) fn elements(&self) -> i64 {
        self.count * self.step()
    }
}

/// Where along an axis a tile is.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) axis: AxisId,
    /// Where it begins.
    pub(super) at: Scalar,
    /// How many tiles of its piece come before it along the axis.
    pub(super) turn: Scalar,
    /// The piece that it is of.
    pub(super) piece: Piece,
}

/// Cycles to store a vector of results, with what an epilogue does to it.
pub(super) fn store_cycles(t: &Timing) -> f64 {
    1.0 / t.stores + 1.0
}

/// The step of an access along an axis, in elements; none where it is no multiple of the axis.
pub(super) fn coeff(a: &Access, axis: AxisId) -> Option<i64> {
    match &a.offset {
        Some(o) => Some(o.coeff(axis)),
        None if a.axes.contains(&axis) => None,
        None => Some(0),
    }
}

/// The same pieces with the first and the last turn by themselves, so that in between no window reaches over an edge.
pub(super) fn edges_apart(mut pieces: Vec<Piece>) -> Vec<Piece> {
    if let Some(first) = pieces.first_mut().filter(|p| p.count > 1) {
        let edge = Piece { count: 1, ..*first };
        first.start += first.size * first.lanes;
        first.count -= 1;
        pieces.insert(0, edge);
    }
    if let Some(last) = pieces.last_mut().filter(|p| p.count > 1) {
        last.count -= 1;
        let edge = Piece { start: last.start + last.elements(), count: 1, ..*last };
        pieces.push(edge);
    }
    pieces
}

/// The same pieces, each with the number of turns before it.
pub(super) fn counted(mut pieces: Vec<Piece>) -> Vec<Piece> {
    let mut before = 0;
    for p in &mut pieces {
        p.before = before;
        before += p.count;
    }
    pieces
}

/// How an output axis is cut.
pub(super) fn pieces(axis: &Axis, tiling: &Tiling) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
    if axis.id != tiling.vector {
        let piece = |(start, count, size)| Piece::plain(start, count, size, 1);
        return cut_evenly(axis.extent, size).into_iter().map(piece).collect();
    }
    let lanes = tiling.lanes;
    let mut pieces: Vec<Piece> = cut_evenly(axis.extent / lanes, size)
        .into_iter()
        .map(|(start, count, size)| Piece::plain(start * lanes, count, size, lanes))
        .collect();
    let rest = axis.extent % lanes;
    if rest > 0 {
        pieces.push(Piece::plain(axis.extent - rest, 1, 1, rest));
    }
    pieces
}

/// How an output axis is cut whose extent changes from size to size: whole tiles, the first and the last by themselves where windows
/// reach over the edges, and then ever smaller ones. There may be none of any.
pub(super) fn changing_pieces(axis: &Axis, tiling: &Tiling, guarded: bool) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1).max(1);
    let is_vector = axis.id == tiling.vector;
    let lanes = if is_vector { tiling.lanes } else { 1 };
    let step = size * lanes;
    let tiles = axis.extent / step;
    let piece = |start, count, size, lanes, moves, once| Piece {
        changes: true,
        moves,
        once,
        inside: !once && !moves,
        ..Piece::plain(start, count, size, lanes)
    };
    let mut all = match guarded {
        true => vec![
            piece(0, tiles.min(1), size, lanes, false, true),
            piece(step, (tiles - 2).max(0), size, lanes, false, false),
            piece((tiles - 1).max(0) * step, i64::from(tiles > 1), size, lanes, true, true),
        ],
        false => vec![piece(0, tiles, size, lanes, false, false)],
    };
    let mut rest: Vec<(i64, i64)> = match is_vector {
        true if size > 1 => vec![(1, lanes)],
        true => vec![],
        false => tails(size).into_iter().map(|n| (n, 1)).collect(),
    };
    if is_vector {
        rest.extend([lanes / 2, lanes / 4, 1].into_iter().filter(|n| *n > 0 && *n < lanes).map(|n| (1, n)));
        rest.dedup();
    }
    let mut done = tiles * step;
    for (size, lanes) in rest {
        let count = (axis.extent - done) / (size * lanes);
        all.push(piece(done, count, size, lanes, true, false));
        done += count * size * lanes;
    }
    all
}

/// The same where windows reach over an edge at so many places from either end: these one by one, and those in between in tiles.
pub(super) fn edged_pieces(axis: &Axis, tiling: &Tiling, edge: i64) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1).max(1);
    let (first, between) = (edge.min(axis.extent), (axis.extent - 2 * edge).max(0));
    let piece = |start, count, size, moves, inside| Piece {
        changes: true,
        moves,
        inside,
        ..Piece::plain(start, count, size, 1)
    };
    let sizes: Vec<i64> = [size].into_iter().chain(tails(size)).collect();
    let tiles = descending(between, &sizes).into_iter();
    let tiles = tiles.map(|(at, count, n)| piece(edge + at, count, n, n < size, true));
    let last = piece(first + between, axis.extent - first - between, 1, true, false);
    [piece(0, first, 1, false, false)].into_iter().chain(tiles).chain([last]).collect()
}
