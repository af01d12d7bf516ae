//! How the axes of an output are cut into pieces of one tile each.

use super::{
    bind, cut_evenly,
    sizes::{changing_tiles, descending, tails},
    tiling::{End, Ends, Piece, Place, Tiling},
};
use crate::loops::{Axis, AxisId, Scalar, Stmt};

/// The same pieces with the first and the last turn by themselves, as is said of each, so that in between no window reaches over an edge.
pub(super) fn edges_apart(mut pieces: Vec<Piece>, [at_first, at_last]: [bool; 2]) -> Vec<Piece> {
    if let Some(first) = pieces.first_mut().filter(|p| at_first && p.count > 1) {
        let edge = Piece { count: 1, ..*first };
        first.start += first.size * first.lanes;
        first.count -= 1;
        pieces.insert(0, edge);
    }
    if let Some(last) = pieces.last_mut().filter(|p| at_last && p.count > 1) {
        last.count -= 1;
        let edge = Piece { start: last.start + last.elements(), count: 1, ..*last };
        pieces.push(edge);
    }
    pieces
}

/// The same pieces, each with the number of turns before it.
pub(super) fn counted(mut pieces: Vec<Piece>) -> Vec<Piece> {
    let mut before = 0;
    for (number, p) in pieces.iter_mut().enumerate() {
        (p.number, p.before) = (number, before);
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

/// How an output axis is cut whose extent changes from size to size: as [`changing_tiles`] has it; along vectors, and where windows reach over the edges,
/// whole tiles, there the first and the last by themselves, and then ever smaller ones. There may be none of any.
pub(super) fn changing_pieces(
    axis: &Axis,
    tiling: &Tiling,
    guarded: bool,
    streamed: bool,
    may_overlap: bool,
) -> Vec<Piece> {
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
        false if !is_vector => {
            let tiles = changing_tiles(axis.extent, size, streamed, may_overlap).into_iter();
            return tiles.map(|(at, count, n)| piece(at, count, n, 1, n < size, false)).collect();
        }
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

/// The same where windows reach over an edge at so many places from either end: those one by one, and those in between in tiles.
pub(super) fn edged_pieces(axis: &Axis, tiling: &Tiling, edge: i64) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1).max(1);
    let between = (axis.extent - 2 * edge).max(0);
    let piece = |start, count, size, moves| Piece { changes: true, moves, ..Piece::plain(start, count, size, 1) };
    let ends = Piece { ends: Some(Ends { first: edge, between }), ..piece(0, axis.extent - between, 1, false) };
    let sizes: Vec<i64> = [size].into_iter().chain(tails(size)).collect();
    let tiles = descending(between, &sizes).into_iter();
    let tiles = tiles.map(|(at, count, n)| Piece { inside: true, ..piece(edge + at, count, n, n < size) });
    [ends].into_iter().chain(tiles).collect()
}

/// How an axis in whole tiles with edges within them is cut along the ends of another axis, so that there are fewer kinds of tiles there.
pub(super) struct AtEnds {
    axis: AxisId,
    pub(super) pieces: Vec<Piece>,
}

impl AtEnds {
    /// Of the pieces of all axes, which loops go through in that order; none where no axis outside of the one with [`edged_tiles`] has ends.
    pub(super) fn of(loops: &[(AxisId, Vec<Piece>)], axis: &Axis, tiling: &Tiling, edge: i64) -> Option<AtEnds> {
        let outer = loops.iter().take_while(|l| l.0 != axis.id).any(|l| l.1.iter().any(|p| p.ends.is_some()));
        let (_, pieces) = loops.iter().find(|l| l.0 == axis.id).filter(|_| outer)?;
        let mut own = counted(tiles_at_ends(axis, tiling, edge));
        own.iter_mut().for_each(|p| p.number += pieces.len());
        Some(AtEnds { axis: axis.id, pieces: own })
    }

    /// The pieces of an axis with these as well.
    pub(super) fn and(ends: Option<&AtEnds>, loops: &[(AxisId, Vec<Piece>)]) -> Vec<(AxisId, Vec<Piece>)> {
        let own = |axis| ends.filter(|e| e.axis == axis).into_iter().flat_map(|e| e.pieces.iter().copied());
        loops.iter().map(|(axis, all)| (*axis, all.iter().copied().chain(own(*axis)).collect())).collect()
    }

    /// Those of an axis within outer ones.
    pub(super) fn pieces<'a>(
        ends: Option<&'a AtEnds>,
        axis: AxisId,
        pieces: &'a [Piece],
        mut outer: impl Iterator<Item = Piece>,
    ) -> &'a [Piece] {
        match ends.filter(|e| e.axis == axis && outer.any(|p| p.ends.is_some())) {
            Some(found) => &found.pieces,
            None => pieces,
        }
    }
}

/// Smaller tiles are as the edges are.
pub(super) const LEAST_EDGED: i64 = 3;

/// What a tile takes beside its places, in tenths of what a place takes.
const PER_TILE: i64 = 15;
/// The same of a place where two tiles overlap, beside what it takes in both.
const PER_OVERLAP: i64 = 10;

/// The sizes of tiles that have edges within them, where whole ones have this one: each end of the axis is in one tile alone.
fn edged_sizes(size: i64, edge: i64) -> impl Iterator<Item = i64> {
    [size, (size + edge) / 2].into_iter().filter(move |n| *n >= 2 * edge)
}

/// Which of these sizes an extent has; none where it is too short.
pub(super) fn edged_size(extent: i64, size: i64, edge: i64) -> Option<i64> {
    let cost = |size: &i64| {
        let tiles = (extent + size - 1) / size;
        tiles * (10 * size + PER_TILE) + PER_OVERLAP * (tiles * size - extent)
    };
    edged_sizes(size, edge).filter(|n| extent >= n + edge).min_by_key(cost)
}

/// The same in whole tiles: the first, and the last, which may overlap the one before it, have the edges within them. They are of two
/// sizes, of which an extent has the one that fits better. Where it is too short for both, places go one by one. None where tiles are as small as the edges.
pub(super) fn edged_tiles(axis: &Axis, tiling: &Tiling, edge: i64) -> Option<Vec<Piece>> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
    if size < 2 * edge || size < LEAST_EDGED {
        return None;
    }
    let extent = axis.extent;
    let chosen = edged_size(extent, size, edge);
    let mut all = Vec::new();
    for size in edged_sizes(size, edge) {
        let is_chosen = i64::from(chosen == Some(size));
        let (first, count) = tiles_between(is_chosen * (extent - 2 * size), size, edge);
        let piece = |start, count, moves| Piece { changes: true, moves, ..Piece::plain(start, count, size, 1) };
        let end = |start, moves, end| Piece { once: true, end: Some(end), ..piece(start, is_chosen, moves) };
        all.push(end(0, false, End::First));
        all.push(Piece { inside: true, ..piece(first, count, edge > 1) });
        // Before the first place where the extent is too short: there is none then, and conditions are what they are at other extents.
        all.push(end(extent - size, true, End::Last { places: edge }));
    }
    let single = if chosen.is_none() { extent } else { 0 };
    all.push(Piece { changes: true, ..Piece::plain(0, single, 1, 1) });
    Some(all)
}

/// The same in as few kinds of tiles as can be: those at both ends are one, whose conditions tell them apart.
fn tiles_at_ends(axis: &Axis, tiling: &Tiling, edge: i64) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
    let extent = axis.extent;
    let chosen = edged_sizes(size, edge).find(|n| *n <= extent);
    let mut all = Vec::new();
    for n in edged_sizes(size, edge) {
        let (count, between) = match chosen == Some(n) {
            true => (if extent > n { 2 } else { 1 }, extent - 2 * n),
            false => (0, 0),
        };
        let piece = |start, count| Piece { changes: true, ..Piece::plain(start, count, n, 1) };
        all.push(Piece { ends: Some(Ends { first: 1, between }), ..piece(0, count) });
        // Shorter extents have those at the ends alone.
        if n == size {
            let (start, count) = tiles_between(between, n, edge);
            all.push(Piece { inside: true, moves: edge > 1, ..piece(start, count) });
        }
    }
    all.push(Piece { changes: true, ..Piece::plain(0, if chosen.is_none() { extent } else { 0 }, 1, 1) });
    all
}

/// Where tiles of that size begin that fill what is between those at both ends, and how many there are: they may reach into the last one, but not to the edge.
fn tiles_between(between: i64, size: i64, edge: i64) -> (i64, i64) {
    let between = between.max(0);
    let reached = match between % size {
        0 => 0,
        rest => (edge - rest).max(0),
    };
    (size - reached, (between + size - 1) / size)
}

impl Place {
    /// The statement with the names of where these are.
    pub(super) fn with_names(named: impl DoubleEndedIterator<Item = (AxisId, Scalar)>, body: Stmt) -> Stmt {
        named.rev().fold(body, |body, (name, at)| bind(name, at, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::AxisId;

    /// Every place is in a tile, no tile goes beyond the axis, and none but the ends' has a place at an edge.
    #[test]
    fn edges_are_within_tiles() {
        let id = AxisId(0);
        for (size, edge) in [(3, 1), (4, 1), (7, 1), (14, 1), (5, 2), (7, 2), (8, 3), (14, 3)] {
            let tiling = Tiling { tiles: vec![(id, size)], ..Tiling::single(AxisId(1)) };
            for extent in 2 * edge + 1..120 {
                let pieces = edged_tiles(&Axis { id, extent }, &tiling, edge).expect("tiles are long enough");
                let mut seen = vec![0; extent as usize];
                for p in pieces.iter().filter(|p| p.count > 0) {
                    for (from, to) in (0..p.count).map(|i| (p.start + i * p.size, p.start + (i + 1) * p.size)) {
                        assert!(from >= 0 && to <= extent, "{extent} by {size}: {p:?}");
                        assert!(!p.inside || (from >= edge && to <= extent - edge), "{extent} by {size}: {p:?}");
                        assert!(p.end != Some(End::First) || to <= extent - edge, "{extent} by {size}: {p:?}");
                        assert!(!matches!(p.end, Some(End::Last { .. })) || from >= edge, "{extent} by {size}: {p:?}");
                        (from..to).for_each(|at| seen[at as usize] += 1);
                    }
                }
                assert!(seen.iter().all(|n| (1..=2).contains(n)), "{extent} by {size}: {seen:?}");
            }
        }
    }
}
