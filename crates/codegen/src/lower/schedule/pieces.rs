//! How the axes of an output are cut into pieces of one tile each.

use super::{
    cut_evenly,
    sizes::{changing_tiles, descending, tails},
    tiling::{End, Piece, Tiling},
};
use crate::loops::Axis;

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
        let between = is_chosen * (extent - 2 * size).max(0);
        // Those between may reach into the last one, but not to the edge.
        let reached = match between % size {
            0 => 0,
            rest => (edge - rest).max(0),
        };
        let piece = |start, count, moves| Piece { changes: true, moves, ..Piece::plain(start, count, size, 1) };
        let end = |start, moves, end| Piece { once: true, end: Some(end), ..piece(start, is_chosen, moves) };
        all.push(end(0, false, End::First));
        all.push(Piece { inside: true, ..piece(size - reached, (between + size - 1) / size, edge > 1) });
        // Before the first place where the extent is too short: there is none then, and conditions are what they are at other extents.
        all.push(end(extent - size, true, End::Last { places: edge }));
    }
    let single = if chosen.is_none() { extent } else { 0 };
    all.push(Piece { changes: true, ..Piece::plain(0, single, 1, 1) });
    Some(all)
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
