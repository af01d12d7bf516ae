//! How the axes of an output are cut into pieces of one tile each.

use super::{
    cut_evenly,
    sizes::{changing_tiles, descending, tails},
    tiling::{Piece, Tiling},
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
pub(super) fn changing_pieces(axis: &Axis, tiling: &Tiling, guarded: bool, streamed: bool) -> Vec<Piece> {
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
            let tiles = changing_tiles(axis.extent, size, streamed).into_iter();
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
