//! How the axes of an output are cut into pieces of one tile each.

use super::{
    Emitter, bind, cut_evenly,
    sizes::{TilesAlong, changing_tiles, descending, tails},
    tiling::{Ends, Piece, Place, Tiling},
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
fn changing_pieces(axis: &Axis, tiling: &Tiling, guarded: bool, along: TilesAlong) -> Vec<Piece> {
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
            let tiles = changing_tiles(axis.extent, size, along).into_iter();
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
fn edged_pieces(axis: &Axis, tiling: &Tiling, edge: i64) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1).max(1);
    let between = (axis.extent - 2 * edge).max(0);
    let piece = |start, count, size, moves| Piece { changes: true, moves, ..Piece::plain(start, count, size, 1) };
    let ends = Piece {
        ends: Some(Ends { first: Some(edge), between, places: edge }),
        ..piece(0, axis.extent - between, 1, false)
    };
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
    let half = (size + edge) / 2;
    // Less than half of a short tile is as long place by place.
    let least = [2 * edge].into_iter().filter(move |n| 2 * *n < half);
    [size, half].into_iter().filter(move |n| *n >= 2 * edge).chain(least)
}

/// Which of these sizes an extent has; none where it is too short.
pub(super) fn edged_size(extent: i64, size: i64, edge: i64) -> Option<i64> {
    let cost = |size: &i64| {
        let tiles = (extent + size - 1) / size;
        tiles * (10 * size + PER_TILE) + PER_OVERLAP * (tiles * size - extent)
    };
    edged_sizes(size, edge).filter(|n| extent >= *n).min_by_key(cost)
}

/// The same in whole tiles: those at both ends, which are one piece and may overlap, have the edges within them. They are of few sizes, of which an
/// extent has the one that fits best; those of smaller ones are alike all along. Where it is too short for both, places go one by one. None where tiles
/// are as small as the edges.
fn edged_tiles(axis: &Axis, tiling: &Tiling, edge: i64) -> Option<Vec<Piece>> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
    if size < 2 * edge || size < LEAST_EDGED {
        return None;
    }
    let extent = axis.extent;
    let chosen = edged_size(extent, size, edge);
    let smaller = edged_sizes(size, edge).skip(1).map(|n| alike(extent, n, edge, chosen));
    Some(with_ends(extent, size, edge, chosen).into_iter().chain(smaller).chain([single(extent, chosen)]).collect())
}

/// The same in fewer kinds of tiles: those of each size are alike all along.
fn tiles_at_ends(axis: &Axis, tiling: &Tiling, edge: i64) -> Vec<Piece> {
    let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
    let chosen = edged_sizes(size, edge).find(|n| *n <= axis.extent);
    let of_size = |n: i64| alike(axis.extent, n, edge, chosen);
    edged_sizes(size, edge).map(of_size).chain([single(axis.extent, chosen)]).collect()
}

/// An extent in tiles of one size, where that is chosen: those at both ends, and those between, which may reach into the last one, but not to the edge.
fn with_ends(extent: i64, size: i64, edge: i64, chosen: Option<i64>) -> [Piece; 2] {
    let between = extent - 2 * size;
    let (at_ends, inside) = match chosen == Some(size) {
        true => (if between > -size { 2 } else { 1 }, (between.max(0) + size - 1) / size),
        false => (0, 0),
    };
    let reached = match between.max(0) % size {
        0 => 0,
        rest => (edge - rest).max(0),
    };
    let piece = |start, count| Piece { changes: true, ..Piece::plain(start, count, size, 1) };
    [
        Piece { ends: Some(Ends { first: Some(1), between, places: edge }), ..piece(0, at_ends) },
        Piece { inside: true, moves: edge > 1, ..piece(size - reached, inside) },
    ]
}

/// The same in one piece, whose conditions tell the ends from what is between.
fn alike(extent: i64, size: i64, edge: i64, chosen: Option<i64>) -> Piece {
    let count = if chosen == Some(size) { (extent + size - 1) / size } else { 0 };
    let ends = Ends { first: None, between: extent - 2 * size, places: edge };
    Piece { changes: true, ends: Some(ends), ..Piece::plain(0, count, size, 1) }
}

/// An extent place by place, where no size is chosen.
fn single(extent: i64, chosen: Option<i64>) -> Piece {
    Piece { changes: true, ..Piece::plain(0, if chosen.is_none() { extent } else { 0 }, 1, 1) }
}

impl Emitter {
    /// How an axis is cut whose extent changes, and whether it is in tiles with edges within them, at so many places: where windows reach over its edges, and it
    /// is the one axis that may be. `value` is what is combined over further axes.
    pub(super) fn changing_axis_pieces(
        &mut self,
        axis: &Axis,
        (others, value): (&[Axis], &Scalar),
        tiling: &Tiling,
        (guarded, may_have_edges): (bool, bool),
        (streamed, may_overlap): (bool, bool),
    ) -> (Vec<Piece>, Option<i64>) {
        let edge = self.decide(|e| e.edge(axis, others, value).filter(|_| guarded && axis.id != tiling.vector));
        let Some(edge) = edge else {
            let size = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
            let many = self.decide(|_| TilesAlong::is_many(axis.extent, size));
            let along = TilesAlong { streamed, may_overlap, many };
            return (changing_pieces(axis, tiling, guarded, along), None);
        };
        match may_have_edges.then(|| edged_tiles(axis, tiling, edge)).flatten() {
            Some(tiles) => (tiles, Some(edge)),
            None => (edged_pieces(axis, tiling, edge), None),
        }
    }
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
            for (extent, along_ends) in (1..120).flat_map(|n| [(n, false), (n, true)]) {
                let axis = Axis { id, extent };
                let pieces = match along_ends {
                    true => tiles_at_ends(&axis, &tiling, edge),
                    false => edged_tiles(&axis, &tiling, edge).expect("tiles are long enough"),
                };
                let mut seen = vec![0; extent as usize];
                for p in pieces.iter().filter(|p| p.count > 0) {
                    let from = |turn: i64| match p.ends {
                        Some(Ends { first: Some(first), between, .. }) => turn * p.size + turn / first * between,
                        Some(Ends { first: None, between, .. }) => (turn * p.size).min(p.size + between),
                        None => p.start + turn * p.size,
                    };
                    for from in (0..p.count).map(from) {
                        let to = from + p.size;
                        assert!(from >= 0 && to <= extent, "{extent} by {size}: {p:?}");
                        assert!(!p.inside || (from >= edge && to <= extent - edge), "{extent} by {size}: {p:?}");
                        (from..to).for_each(|at| seen[at as usize] += 1);
                    }
                }
                assert!(seen.iter().all(|n| (1..=2).contains(n)), "{extent} by {size}: {seen:?}");
            }
        }
    }
}
