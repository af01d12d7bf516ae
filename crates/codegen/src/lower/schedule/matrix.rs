//! Reductions in matrix registers: products of narrow numbers, a block of up to 32 rows and 32 columns of sums at a time.
//!
//! One operand's rows are tiles of up to 16 places along an output axis, each with up to 16 words of numbers that lie side by side. The
//! other one's are words along the vector axis, and lie a step of the reduction apart. That is how constants lie that are packed for
//! vectors, and activations in blocks of channels or with channels last. What is left of the reduction after whole tiles goes through
//! tiles of less depth.

use hashbrown::HashMap;

use super::{
    Access, Emitter, bind,
    combine::{factors, narrow_multiplied},
    for_,
    reduce::Job,
    tiling::{Matrix, Place, Tiling, coeff, store_cycles},
};
use crate::{
    loops::{
        Axis, AxisId, Buffer, LoopKind, Scalar, ScalarKind, Space, Stmt, TILE, TILES_ASIDE, TensorId, TileBlock,
        TileOperand, TileStep, cut_evenly, numbers_in_word,
    },
    lower::{
        affine::{Substitution, replace_axes},
        normalize::Reduction,
    },
    machine::Timing,
};

/// The operands of a product: first the one whose rows are places of the output, then the one that has its columns.
struct Operands {
    left: Access,
    right: Access,
    /// The reads of both.
    reads: [Scalar; 2],
}

fn as_long_as_a_tile(n: i64) -> f64 {
    ((n + TILE - 1) / TILE) as f64
}

impl Emitter {
    /// The way to run a reduction in matrix registers, and its cycles; none where its operands don't lie so.
    pub(super) fn in_tiles(&self, axes: &[Axis], r: &Reduction) -> Option<(f64, Tiling)> {
        let (a, b) = narrow_multiplied(r)?;
        let count =
            numbers_in_word(a).filter(|_| self.unit.has_tiles(a) && numbers_in_word(a) == numbers_in_word(b))?;
        let mut best: Option<(f64, Tiling)> = None;
        for &v in axes.iter().filter(|v| v.extent > 1) {
            let Some(operands) = self.operands_by(v.id, &r.value, count) else { continue };
            let Operands { left, right, .. } = &operands;
            let part = r
                .axes
                .iter()
                .find(|p| p.extent == count && coeff(left, p.id) == Some(1) && coeff(right, p.id) == Some(1));
            let words = r.axes.iter().find(|w| {
                w.extent > 1 && coeff(left, w.id) == Some(count) && coeff(right, w.id).is_some_and(|c| c > 0)
            });
            let (Some(part), Some(words)) = (part, words) else { continue };
            let matrix = Matrix { part: part.id, words: words.id, depth: words.extent };
            let steps = r.axes.iter().map(|a| a.extent as f64).product::<f64>() / (count * words.extent) as f64
                * as_long_as_a_tile(words.extent);
            for tiling in tilings(axes, v, &operands, matrix) {
                let cost = cycles(axes, &tiling, steps, &self.unit.timing);
                if best.as_ref().is_none_or(|b| cost < b.0) {
                    best = Some((cost, tiling));
                }
            }
        }
        best
    }

    /// Which of two operands has its columns along an axis, where words of one lie side by side there and the other is the same.
    fn operands_by(&self, columns: AxisId, value: &Scalar, count: i64) -> Option<Operands> {
        let [x, y] = factors(value)?;
        let [Some(a), Some(b)] = [&x, &y].map(|read| self.accesses(read).pop()) else { return None };
        if a.offset.is_none() || b.offset.is_none() {
            return None;
        }
        match (coeff(&a, columns)?, coeff(&b, columns)?) {
            (0, n) if n == count => Some(Operands { left: a, right: b, reads: [x, y] }),
            (n, 0) if n == count => Some(Operands { left: b, right: a, reads: [y, x] }),
            _ => None,
        }
    }

    /// One block of sums in matrix registers: all products, then what is stored of each row.
    pub(super) fn tile_of_matrix(&mut self, job: &Job<'_>, matrix: Matrix, places: &[Place]) -> Stmt {
        let (tiling, r) = (job.tiling, job.reduction);
        let operands = narrow_multiplied(r)
            .and_then(|(a, _)| self.operands_by(tiling.vector, &r.value, numbers_in_word(a)?))
            .expect("operands lie as when the tiling was offered");
        let [left, right] = operands.reads.clone();

        // Tiles along each side: how much further along which axis each begins, and how long it is.
        let size_of =
            |axis: AxisId| places.iter().find(|p| p.axis == axis).map_or((1, 1), |p| (p.piece.size, p.piece.lanes));
        let rows_axis = tiling.tiles[0].0;
        let (mut rows, mut columns) = (vec![], vec![]);
        let beside = |access: &Access| {
            tiling.tiles[1..].iter().map(|t| t.0).find(|&a| a != tiling.vector && coeff(access, a) != Some(0))
        };
        match beside(&operands.left).map(|axis| (axis, size_of(axis).0)) {
            Some((axis, n)) if n > 1 => rows.extend((0..n).map(|i| (axis, i, size_of(rows_axis).0))),
            _ => {
                for (start, tiles, size) in cut_evenly(size_of(rows_axis).0, TILE) {
                    rows.extend((0..tiles).map(|i| (rows_axis, start + i * size, size)));
                }
            }
        }
        let (vectors, lanes) = size_of(tiling.vector);
        match beside(&operands.right).map(|axis| (axis, size_of(axis).0)) {
            Some((axis, n)) if n > 1 => columns.extend((0..n).map(|j| (axis, j, lanes))),
            _ => columns.extend((0..vectors).map(|j| (tiling.vector, j * lanes, lanes))),
        }

        let dtype = r.value.dtype();
        let sizes = |tiles: &[(AxisId, i64, i64)]| tiles.iter().map(|t| t.2).collect::<Vec<i64>>();
        let (row_sizes, column_sizes) = (sizes(&rows), sizes(&columns));
        let len = row_sizes.iter().sum::<i64>() * column_sizes.iter().sum::<i64>();
        self.buffers.push(Buffer { dtype, len, space: Space::Local });
        let sums = TensorId(self.buffers.len() as u32 - 1);
        let block = |depth| TileBlock { sums, rows: row_sizes.clone(), columns: column_sizes.clone(), depth };
        let tiles = |depth: i64, step| Stmt::Tiles { block: Box::new(block(depth)), step: Box::new(step) };

        let at_places: HashMap<AxisId, Scalar> = places.iter().map(|p| (p.axis, p.at.clone())).collect();
        let further = |axis: AxisId, by: i64, with: &mut HashMap<AxisId, Scalar>| {
            let at = with.get(&axis).cloned().unwrap_or_else(|| Scalar::index(0));
            with.insert(axis, at + by);
        };
        let row_stride = coeff(&operands.left, rows_axis).unwrap_or(0);
        let word_stride = coeff(&operands.right, matrix.words).unwrap_or(0);
        let full = if matrix.depth < TILE { matrix.depth } else { depth_of(matrix.depth) };
        let rest = matrix.depth % full;
        let mut stmts = vec![tiles(full, TileStep::Clear)];
        for (from, depth, turns) in [(0, full, matrix.depth / full), (matrix.depth - rest, rest, (rest > 0) as i64)] {
            if turns == 0 {
                continue;
            }
            if from > 0 {
                stmts.push(tiles(full, TileStep::Store));
                stmts.push(tiles(depth, TileStep::Load));
            }
            let turn = self.fresh();
            let word = if turns == 1 { Scalar::index(from) } else { Scalar::axis(turn) * depth };
            let operand = |e: &Self, read: &Scalar, begins: &[(AxisId, i64, i64)], stride: i64| {
                let mut buffer = sums;
                let at = begins
                    .iter()
                    .map(|&(axis, by, _)| {
                        let mut with = at_places.clone();
                        further(axis, by, &mut with);
                        with.insert(matrix.part, Scalar::index(0));
                        with.insert(matrix.words, word.clone());
                        let flat = e.flatten(&replace_axes(read, &with));
                        let ScalarKind::Read(b, index) = flat.kind() else {
                            unreachable!("a read stays one when its index changes")
                        };
                        buffer = *b;
                        index[0].clone()
                    })
                    .collect();
                TileOperand { buffer, at, stride }
            };
            let step = TileStep::Add {
                left: operand(self, &left, &rows, row_stride),
                right: operand(self, &right, &columns, word_stride),
            };
            let mut body = tiles(depth, step);
            if turns > 1 {
                body = for_(turn, turns, LoopKind::Serial, body);
            }
            let others = r.axes.iter().filter(|a| a.id != matrix.part && a.id != matrix.words);
            stmts.push(others.rev().fold(body, |body, a| for_(a.id, a.extent, LoopKind::Serial, body)));
        }
        stmts.push(tiles(if rest > 0 { rest } else { full }, TileStep::Store));

        // What is stored: tile by tile, row by row.
        let value = job.flat_value.clone();
        let width: i64 = column_sizes.iter().sum();
        for (k, [r0, c0, m, n]) in block(full).tiles().enumerate() {
            let (row, lane) = (self.fresh(), self.fresh());
            let mut with = at_places.clone();
            let (row_tile, column_tile) = (rows[k / columns.len()], columns[k % columns.len()]);
            further(row_tile.0, row_tile.1, &mut with);
            further(column_tile.0, column_tile.1, &mut with);
            for (axis, by) in [(rows_axis, row), (tiling.vector, lane)] {
                let at = with.get(&axis).cloned().unwrap_or_else(|| Scalar::index(0));
                with.insert(axis, at + Scalar::axis(by));
            }
            let sum_at = (Scalar::axis(row) + r0) * width + c0 + Scalar::axis(lane);
            let sum = Scalar::read(sums, vec![sum_at], dtype);
            let stored = Substitution::new(|s: &Scalar| match s.kind() {
                ScalarKind::Axis(a) if *a == job.sum => Some(sum.clone()),
                ScalarKind::Axis(a) => with.get(a).cloned(),
                _ => None,
            })
            .apply(&value);
            let buffer = self.buffer_of[&job.tensor];
            let store = Stmt::Store { buffer, index: replace_axes(job.to, &with), value: stored };
            let store = match n {
                1 => bind(lane, Scalar::index(0), store),
                n => for_(lane, n, LoopKind::Vector, store),
            };
            stmts.push(for_(row, m, LoopKind::Serial, store));
        }
        Stmt::Block(stmts)
    }
}

/// Words of a step, of so many that are at least [`TILE`]: as many as fit, or somewhat less where nothing is left over then.
fn depth_of(words: i64) -> i64 {
    const NEARLY: i64 = 12;
    (NEARLY..=TILE).rev().find(|d| words % d == 0).unwrap_or(TILE)
}

/// The blocks of sums worth a thought, one for each axis of rows: two tiles a side where there is something for them.
fn tilings(axes: &[Axis], columns: Axis, operands: &Operands, matrix: Matrix) -> Vec<Tiling> {
    let Operands { left, right, .. } = operands;
    let of = |has: &Access, lacks: &Access, a: &&Axis| {
        a.extent > 1 && a.id != columns.id && coeff(has, a.id).is_some_and(|c| c > 0) && coeff(lacks, a.id) == Some(0)
    };
    let aside = TILES_ASIDE as i64;
    let lanes = columns.extent.min(TILE);
    let vectors = (columns.extent / lanes).min(aside);
    let mut all = Vec::new();
    for rows in axes.iter().filter(|a| of(left, right, a)) {
        let mut tiles = vec![(rows.id, rows.extent.min(aside * TILE))];
        if rows.extent <= TILE {
            let beside = axes.iter().filter(|a| of(left, right, a) && a.id != rows.id).max_by_key(|a| a.extent);
            tiles.extend(beside.map(|a| (a.id, aside)));
        }
        tiles.push((columns.id, vectors));
        if vectors == 1 {
            let beside = axes.iter().filter(|a| of(right, left, a)).max_by_key(|a| a.extent);
            tiles.extend(beside.map(|a| (a.id, aside)));
        }
        all.push(Tiling { vector: columns.id, across: false, lanes, tiles, dot: None, matrix: Some(matrix) });
    }
    all
}

/// Cycles of all blocks of sums, where each takes so many steps.
fn cycles(axes: &[Axis], tiling: &Tiling, steps: f64, timing: &Timing) -> f64 {
    let (mut blocks, mut products, mut loads) = (1.0, 1.0, 0.0);
    let mut elements = 1.0;
    for a in axes {
        elements *= a.extent as f64;
        let unit = if a.id == tiling.vector { tiling.lanes } else { 1 };
        let extent = (a.extent + unit - 1) / unit;
        let size = tiling.tiles.iter().find(|t| t.0 == a.id).map_or(1, |t| t.1);
        let pieces = ((extent + size - 1) / size) as f64;
        // Tiles along the axis, in all.
        let tiles = match tiling.tiles[0].0 == a.id {
            true => pieces * as_long_as_a_tile((extent as f64 / pieces).ceil() as i64),
            false => extent as f64,
        };
        blocks *= pieces;
        products *= tiles;
        loads += if tiling.tiles.iter().any(|t| t.0 == a.id) { tiles / pieces } else { 0.0 };
    }
    let rate = &timing.tiles;
    let arithmetic = (products * rate.product).max(blocks * loads * rate.load);
    let stored = products * TILE as f64 + elements / TILE as f64 * (store_cycles(timing) + 1.0);
    steps * arithmetic + blocks * rate.block + stored
}
