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
    matrix_cost::{Blocks, cheapest},
    reduce::Job,
    tiling::{Matrix, Place, Tiling, coeff},
    turns::at_places,
};
use crate::{
    loops::{
        Axis, AxisId, Buffer, LoopKind, Scalar, ScalarKind, Space, Stmt, TILE, TILES_OF_SUMS, TensorId, TileBlock,
        TileOperand, TileStep, cut_evenly, numbers_in_word,
    },
    lower::{
        affine::{Substitution, replace_axes},
        normalize::Reduction,
    },
};

/// Products between two times that tiles are stored, at most. Where a core has not stored a tile for some 2,000 cycles, the next one takes
/// 1,200 cycles more (measured on Granite Rapids: blocks of 18 steps of four products took 1,380 cycles, such of 36 3,750).
const PRODUCTS_APART: i64 = 48;

/// The operands of a product: first the one whose rows are places of the output, then the one that has its columns.
struct Operands {
    left: Access,
    right: Access,
    /// The reads of both.
    reads: [Scalar; 2],
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
            // Few words go on along another axis, as channels do along the rows of a window.
            let goes_on = |w: &&Axis| {
                let on = |a: &Access| Some(coeff(a, w.id)? == coeff(a, words.id)? * words.extent);
                w.id != words.id && on(left) == Some(true) && on(right) == Some(true)
            };
            let beyond = r.axes.iter().filter(|_| words.extent < TILE).find(goes_on);
            let depth = words.extent * beyond.map_or(1, |w| w.extent);
            let matrix = Matrix { part: part.id, words: words.id, beyond: beyond.map(|w| w.id), depth };
            if !self.only_rows_change(axes, r, &operands) {
                continue;
            }
            for tiling in tilings(axes, v, &operands, matrix, &|a| self.changes(a)) {
                let (cost, _) =
                    cheapest(axes, &tiling, &self.read_by_blocks(&operands, r, matrix), None, &self.unit.timing);
                if best.as_ref().is_none_or(|b| cost < b.0) {
                    best = Some((cost, tiling));
                }
            }
        }
        best
    }

    /// Whether nothing but how many rows there are changes from size to size: what lies between rows and words is a part of instructions' operands.
    fn only_rows_change(&self, axes: &[Axis], r: &Reduction, operands: &Operands) -> bool {
        let is_fixed = |a: &Axis| !self.changes(a.id) || coeff(&operands.right, a.id) == Some(0);
        r.axes.iter().all(|a| !self.changes(a.id)) && axes.iter().all(is_fixed)
    }

    /// The output's axes in the order in which blocks of sums meet their operands nearest, of those that begin with an axis, where one is given.
    pub(super) fn order_of_blocks(
        &self,
        axes: &[Axis],
        r: &Reduction,
        tiling: &Tiling,
        matrix: Matrix,
        first: Option<AxisId>,
    ) -> Vec<Axis> {
        let count = narrow_multiplied(r).and_then(|(a, _)| numbers_in_word(a));
        match count.and_then(|count| self.operands_by(tiling.vector, &r.value, count)) {
            Some(operands) => {
                cheapest(axes, tiling, &self.read_by_blocks(&operands, r, matrix), first, &self.unit.timing).1
            }
            None => axes.to_vec(),
        }
    }

    /// What blocks of sums read.
    fn read_by_blocks<'a>(&self, operands: &'a Operands, r: &Reduction, matrix: Matrix) -> Blocks<'a> {
        let bytes = |a: &Access| {
            let of = |t| {
                let decl = self.group.decl(t);
                (decl.shape.iter().product::<i64>() as usize * decl.dtype.bytes()) as f64
            };
            a.tensor.map_or(0.0, of)
        };
        let Operands { left, right, reads } = operands;
        let turns = r.axes.iter().filter(|a| !matrix.is_within(a.id)).map(|a| a.extent as f64).product::<f64>();
        let steps = turns * (matrix.depth as f64 / TILE as f64).ceil();
        let bytes_of_row = |a: AxisId| coeff(left, a).unwrap_or(0) as f64 * reads[0].dtype().bytes() as f64;
        let changing = self.changing().into_iter().flatten().copied().collect();
        Blocks { left, right, bytes: [bytes(left), bytes(right)], steps, row: Box::new(bytes_of_row), changing }
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
        // Over flat buffers, the numbers that change from size to size by name.
        let named = job.combined.as_ref().and_then(factors).map(|[x, y]| {
            let swapped = factors(&r.value).is_some_and(|[first, _]| first.key() != operands.reads[0].key());
            if swapped { [y, x] } else { [x, y] }
        });
        let [left, right] = operands.reads.clone();
        let [left, right] = match named {
            Some([x, y]) => [(left, Some(x)), (right, Some(y))],
            None => [(left, None), (right, None)],
        };

        // Tiles along each side: how much further along which axis each begins, and how long it is.
        let size_of =
            |axis: AxisId| places.iter().find(|p| p.axis == axis).map_or((1, 1), |p| (p.piece.size, p.piece.lanes));
        let beside = |access: &Access| {
            let besides = tiling.tiles[1..].iter().map(|t| t.0);
            let mut along = besides.filter(|&a| a != tiling.vector && coeff(access, a) != Some(0));
            along.next().map_or((None, 1), |a| (Some(a), size_of(a).0))
        };
        let rows_axis = tiling.tiles[0].0;
        let (rows_beside, n) = beside(&operands.left);
        let mut rows = vec![];
        for i in 0..n {
            for (start, tiles, size) in cut_evenly(size_of(rows_axis).0, TILE) {
                rows.extend((0..tiles).map(|k| Begin { along: start + k * size, beside: i, size }));
            }
        }
        let (vectors, lanes) = size_of(tiling.vector);
        let (columns_beside, n) = beside(&operands.right);
        let column = |(i, j): (i64, i64)| Begin { along: j * lanes, beside: i, size: lanes };
        let columns: Vec<Begin> = (0..n).flat_map(|i| (0..vectors).map(move |j| (i, j))).map(column).collect();

        let dtype = r.value.dtype();
        let sizes = |tiles: &[Begin]| tiles.iter().map(|t| t.size).collect::<Vec<i64>>();
        let (row_sizes, column_sizes) = (sizes(&rows), sizes(&columns));
        let len = row_sizes.iter().sum::<i64>() * column_sizes.iter().sum::<i64>();
        self.buffers.push(Buffer { dtype, len, space: Space::Local });
        let sums = TensorId(self.buffers.len() as u32 - 1);
        let block = |depth| TileBlock { sums, rows: row_sizes.clone(), columns: column_sizes.clone(), depth };
        let tiles = |depth: i64, step| Stmt::Tiles { block: Box::new(block(depth)), step: Box::new(step) };

        let begin: HashMap<AxisId, Scalar> = places.iter().map(|p| (p.axis, p.at.clone())).collect();
        // Where a tile begins, along its axis and the one beside.
        let begun = |tile: &Begin, axis: AxisId, beside: Option<AxisId>, with: &mut HashMap<AxisId, Scalar>| {
            for (axis, by) in [Some((axis, tile.along)), beside.map(|a| (a, tile.beside))].into_iter().flatten() {
                let at = with.get(&axis).cloned().unwrap_or_else(|| Scalar::index(0));
                with.insert(axis, at + by);
            }
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
            let operand = |e: &Self,
                           (read, named): &(Scalar, Option<Scalar>),
                           begins: &[Begin],
                           axes: (AxisId, Option<AxisId>),
                           stride: i64| {
                let mut buffer = sums;
                let at = begins
                    .iter()
                    .map(|tile| {
                        let mut with = begin.clone();
                        begun(tile, axes.0, axes.1, &mut with);
                        with.insert(matrix.part, Scalar::index(0));
                        with.insert(matrix.words, word.clone());
                        with.extend(matrix.beyond.map(|w| (w, Scalar::index(0))));
                        let flat = match named {
                            Some(read) => at_places(read, &with),
                            None => e.flatten(&replace_axes(read, &with)),
                        };
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
                left: operand(self, &left, &rows, (rows_axis, rows_beside), row_stride),
                right: operand(self, &right, &columns, (tiling.vector, columns_beside), word_stride),
            };
            let mut body = tiles(depth, step);
            let others: Vec<&Axis> = r.axes.iter().filter(|a| !matrix.is_within(a.id)).collect();
            if let Some(prefetch) = job.prefetch.as_ref().filter(|p| from == 0 && !p.changes()) {
                let line = self.fresh();
                let before = others.iter().fold(Scalar::index(0), |n, a| n * a.extent + Scalar::axis(a.id));
                let at = if turns == 1 { before } else { before * turns + Scalar::axis(turn) };
                let all = others.iter().map(|a| a.extent).product::<i64>() * turns;
                body = prefetch.slice(places, line).before(at, all, 1, body);
            }
            let mut loops: Vec<(AxisId, i64)> = others.iter().map(|a| (a.id, a.extent)).collect();
            loops.extend((turns > 1).then_some((turn, turns)));
            let apart = (PRODUCTS_APART / (rows.len() * columns.len()) as i64).max(1);
            stmts.push(self.in_time(loops, body, apart, &tiles(depth, TileStep::Wake)));
        }
        stmts.push(tiles(if rest > 0 { rest } else { full }, TileStep::Store));

        // What is stored: tile by tile, row by row.
        let value = job.flat_value.clone();
        let width: i64 = column_sizes.iter().sum();
        for (k, [r0, c0, m, n]) in block(full).tiles().enumerate() {
            let (row, lane) = (self.fresh(), self.fresh());
            let mut with = begin.clone();
            begun(&rows[k / columns.len()], rows_axis, rows_beside, &mut with);
            begun(&columns[k % columns.len()], tiling.vector, columns_beside, &mut with);
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

impl Emitter {
    /// Loops, outermost first, in which `wake` comes again after at most so many turns; none where there are no more.
    fn in_time(&mut self, loops: Vec<(AxisId, i64)>, body: Stmt, apart: i64, wake: &Stmt) -> Stmt {
        let (mut body, mut inside, mut is_woken) = (body, 1, false);
        for (var, extent) in loops.into_iter().rev() {
            if is_woken || inside * extent <= apart {
                body = for_(var, extent, LoopKind::Serial, body);
                inside *= extent;
                continue;
            }
            is_woken = true;
            let mut parts = Vec::new();
            for (first, pieces, size) in cut_evenly(extent, (apart / inside).max(1)) {
                let (piece, turn) = (self.fresh(), self.fresh());
                let at = Scalar::axis(piece) * size + Scalar::axis(turn) + first;
                let within = for_(turn, size, LoopKind::Serial, bind(var, at, body.clone()));
                parts.push(for_(piece, pieces, LoopKind::Serial, Stmt::Block(vec![within, wake.clone()])));
            }
            body = Stmt::Block(parts);
        }
        body
    }
}

/// Words of a step, of so many that are at least [`TILE`]: as many as fit, or somewhat less where nothing is left over then.
fn depth_of(words: i64) -> i64 {
    const NEARLY: i64 = 12;
    (NEARLY..=TILE).rev().find(|d| words % d == 0).unwrap_or(TILE)
}

/// Where a tile begins: along its axis, and along the one beside.
struct Begin {
    along: i64,
    beside: i64,
    /// Its rows or columns.
    size: i64,
}

/// The blocks of sums worth a thought: so many tiles a side, along each axis of rows, where there is something for them.
fn tilings(
    axes: &[Axis],
    columns: Axis,
    operands: &Operands,
    matrix: Matrix,
    changes: &dyn Fn(AxisId) -> bool,
) -> Vec<Tiling> {
    let Operands { left, right, .. } = operands;
    let of = |has: &Access, lacks: &Access, a: &&Axis| {
        a.extent > 1 && a.id != columns.id && coeff(has, a.id).is_some_and(|c| c > 0) && coeff(lacks, a.id) == Some(0)
    };
    let lanes = columns.extent.min(TILE);
    let mut all = Vec::new();
    // Where extents change, how far rows are apart is the same at all sizes only along the axis along which they are nearest.
    let nearest = axes.iter().filter(|a| of(left, right, a)).min_by_key(|a| coeff(left, a.id));
    let any_changes = axes.iter().any(|a| changes(a.id));
    for rows in axes.iter().filter(|a| of(left, right, a) && (!any_changes || nearest.is_some_and(|n| n.id == a.id))) {
        let along = (rows.extent + TILE - 1) / TILE;
        let beside_rows = axes.iter().filter(|a| of(left, right, a) && a.id != rows.id).max_by_key(|a| a.extent);
        let beside_columns = axes.iter().filter(|a| of(right, left, a)).max_by_key(|a| a.extent);
        for (m, n) in (1..=TILES_OF_SUMS).flat_map(|m| (1..=TILES_OF_SUMS / m).map(move |n| (m, n))) {
            // As many as there are along the axis itself, and the others beside.
            let (m_along, n_along) = (m.min(along), n.min(columns.extent / lanes));
            let besides = [(m / m_along, m % m_along, beside_rows), (n / n_along, n % n_along, beside_columns)];
            let fits = |&(n, rest, axis): &(i64, i64, Option<&Axis>)| {
                rest == 0 && (n == 1 || axis.is_some_and(|a| a.extent >= n))
            };
            if !besides.iter().all(fits) {
                continue;
            }
            let beside = |i: usize| besides[i].2.filter(|_| besides[i].0 > 1).map(|a| (a.id, besides[i].0));
            let whole = if changes(rows.id) { i64::MAX } else { rows.extent };
            let mut tiles = vec![(rows.id, whole.min(m_along * TILE))];
            tiles.extend(beside(0));
            tiles.push((columns.id, n_along));
            tiles.extend(beside(1));
            all.push(Tiling { vector: columns.id, across: false, lanes, tiles, dot: None, matrix: Some(matrix) });
        }
    }
    all
}
