//! Steps without a reduction: one pass over the output, vectorized along the axis where memory is met in order.

use hashbrown::HashMap;

use super::{Access, Emitter, Loop, PARALLEL_PIECES, Threads, bind, cut, for_, sizes::descending};
use crate::{
    loops::{Axis, AxisId, BinOp, Buffer, BufferId, LoopKind, Scalar, ScalarKind, Space, Stmt, TensorId},
    lower::{
        affine::{Affine, Substitution, for_each_node, replace_axes},
        normalize::expense,
    },
    tensor::DType,
};

/// Vectors handled per iteration of a plain elementwise loop: enough to hide latencies.
const UNROLL: i64 = 4;

/// So many vectors are one iteration of a parallel loop over extents that change.
const BLOCK: i64 = 32;
/// Where a single long axis may be shared out or not, a piece of it has so many times as many: what is left of it is done by one thread.
const LEAST_VECTORS: i64 = 8;

/// What does not fill a vector goes through vectors of this share of its lanes, where extents change, and then element by element.
const REST_OF_LANES: i64 = 4;

/// Smaller squares than of so many elements a side are not worth turning.
const LEAST_SQUARE: i64 = 4;
/// So many squares beside one another are written before the rows below them: by rows of whole pages' parts.
const BESIDE: i64 = 4;
/// Values of more operations than this are computed in a loop over a square's rows, not written out for each.
const WRITTEN_OUT: u32 = 8;

/// A way through elements in squares.
struct Square {
    /// The axis along which results lie densest.
    written: Axis,
    /// The axis along which something that is read does.
    read: Axis,
    /// The side of the largest squares.
    largest: i64,
    /// What an element costs, against a vector access as 1.
    cost: f64,
}

/// What is read in squares.
struct Turned {
    read: Scalar,
    /// How far elements beside each other in results lie apart in it.
    stride: Scalar,
}

/// What is stored, and where.
pub(super) struct Place<'a> {
    pub(super) buffer: BufferId,
    pub(super) to: &'a Scalar,
    pub(super) value: &'a Scalar,
}

impl Place<'_> {
    pub(super) fn store(&self, with: &HashMap<AxisId, Scalar>) -> Stmt {
        let (index, value) = (replace_axes(self.to, with), replace_axes(self.value, with));
        Stmt::Store { buffer: self.buffer, index, value }
    }
}

/// An extent in pieces of `largest`, then of smaller powers of two: (first element, pieces, extent of each).
pub(super) fn powers_of_two(extent: i64, largest: i64) -> Vec<(i64, i64, i64)> {
    let mut pieces = Vec::new();
    let (mut done, mut size) = (0, largest);
    while done < extent {
        let count = (extent - done) / size;
        if count > 0 {
            pieces.push((done, count, size));
            done += count * size;
        }
        size /= 2;
    }
    pieces
}

/// Cost of one lane of an access along an axis, against a contiguous vector access as 1 a vector.
fn stride_cost(offset: Option<&Affine>, depends: bool, axis: AxisId, lanes: i64) -> f64 {
    match offset.map(|o| o.coeff(axis)) {
        Some(0) => 0.5,
        Some(1) => 1.0,
        None if !depends => 0.5,
        _ => 2.0 * lanes as f64,
    }
}

/// Of how many values that are read conditions choose one, as in concatenations.
fn choices(value: &Scalar) -> usize {
    fn of(value: &Scalar, known: &mut HashMap<usize, usize>) -> usize {
        if let Some(n) = known.get(&value.key()) {
            return *n;
        }
        let n = match value.kind() {
            ScalarKind::Read(..) => 1,
            ScalarKind::Select(_, a, b) => of(a, known) + of(b, known),
            _ => value.operands().into_iter().map(|o| of(o, known)).max().unwrap_or(0),
        };
        known.insert(value.key(), n);
        n
    }
    of(value, &mut HashMap::new()).max(1)
}

impl Emitter {
    /// How many lanes are stored at once, where all that fill a vector would be lines of one set of the first cache and evict one another, as in
    /// planes of so many bytes as a power of two.
    fn lanes_in_a_set(&self, tensor: TensorId, to: &Scalar, vector: Axis) -> Option<i64> {
        let l1 = &self.unit.timing.l1;
        let apart = Affine::of(to)?.coeff(vector.id) * self.group.decl(tensor).dtype.bytes() as i64;
        let most = 1 << (l1.ways * 2 / 3).checked_ilog2()?;
        let crowded = apart != 0 && apart % l1.set_stride() == 0 && self.unit.lanes() > most;
        (crowded && !self.changes(vector.id) && vector.extent > most && vector.extent % most == 0).then_some(most)
    }

    pub(super) fn map(
        &mut self,
        tensor: TensorId,
        axes: Vec<Axis>,
        mut to: Scalar,
        mut value: Scalar,
        threads: Threads,
    ) -> Stmt {
        let axes = self.split_axes(&axes, &mut to, &mut [&mut value]);
        let axes = self.merge_axes(&axes, &mut to, &mut [&mut value]);
        let buffer = self.buffer_of[&tensor];
        self.same(tensor);
        for a in &axes {
            self.same_axis(a.id, a.extent);
        }
        if axes.is_empty() {
            let (index, value) = (self.named_place(&to), self.named(&value));
            return Stmt::Store { buffer, index, value };
        }
        let lanes = self.unit.lanes();
        let (best, words, square) = self.decide(|e| {
            let accesses = e.accesses(&value);
            let store = Affine::of(&to);
            let choices = choices(&value) as f64;
            let cost = |axis: &Axis| {
                let reads = accesses
                    .iter()
                    .map(|a| stride_cost(a.offset.as_ref(), a.axes.contains(&axis.id), axis.id, lanes))
                    .sum::<f64>();
                let per_vector = stride_cost(store.as_ref(), true, axis.id, lanes) + reads / choices;
                // A short axis fills vectors badly.
                let vectors = (axis.extent as f64 / lanes as f64).ceil();
                per_vector * vectors / axis.extent as f64
            };
            let by_cost = |&a: &usize, &b: &usize| cost(&axes[a]).total_cmp(&cost(&axes[b]));
            let best = (0..axes.len()).rev().min_by(by_cost).expect("there is an axis");
            let words = e.words(&axes, tensor, store.as_ref(), &accesses).map(|(word, along)| (word.id, along.id));
            let square = e.square(&axes, store.as_ref(), &accesses, &value).filter(|s| s.cost < cost(&axes[best]));
            (best, words, square.map(|s| (s.written.id, s.read.id, s.largest, s.cost)))
        });
        let vector = axes[best.min(axes.len() - 1)];
        // What was decided for other extents may be about axes that are none here.
        let of = |id: AxisId| axes.iter().find(|a| a.id == id).copied();
        let place = Place { buffer, to: &to, value: &value };
        match (words.map(|(word, along)| (of(word), of(along))), square) {
            (Some((Some(word), Some(along))), _) => return self.in_words(&axes, word, along, place, threads),
            (None, Some((written, read, largest, cost))) => match (of(written), of(read)) {
                (Some(written), Some(read)) => {
                    let square = Square { written, read, largest, cost };
                    return self.squares(&axes, &square, place, threads);
                }
                _ => self.diverge(),
            },
            (Some(_), _) => self.diverge(),
            (None, None) => {}
        }
        let (axes, vector) = match self.lanes_in_a_set(tensor, &to, vector) {
            Some(lanes) => {
                let parts = self.split_axis(vector, lanes, &mut to, &mut [&mut value]);
                let all = axes.iter().flat_map(|a| if a.id == vector.id { parts.to_vec() } else { vec![*a] });
                (all.collect(), parts[1])
            }
            None => (axes, vector),
        };
        let mut outer: Vec<Loop> =
            axes.iter().filter(|a| a.id != vector.id).map(|a| Loop { var: a.id, extent: a.extent }).collect();
        if threads == Threads::All && self.rows_first {
            let row = self.decide(|e| {
                let ([_, _, _, columns, block], Some(to)) = (&e.group.decl(tensor).shape[..], Affine::of(&to)) else {
                    return None;
                };
                outer.iter().map(|l| l.var).find(|&var| to.coeff(var) == columns * block)
            });
            outer.sort_by_key(|l| Some(l.var) != row);
        }
        let place = Place { buffer, to: &to, value: &value };
        if let Some(padded) = self.padded(tensor, &outer, vector, &place, threads) {
            return padded;
        }
        let (value, to) = (self.named(&value), self.named_place(&to));
        let place = Place { buffer, to: &to, value: &value };
        let store = |with: &HashMap<AxisId, Scalar>| place.store(with);
        let changes = self.changes(vector.id);
        if threads != Threads::One && !changes && outer.last().is_some_and(|l| self.changes(l.var)) {
            return self.in_blocks(&outer, vector, &place, threads);
        }
        if !outer.is_empty() || threads == Threads::One {
            let inner = self.vectors(vector.id, Scalar::index(0), vector.extent, changes, &store);
            return self.loops(&outer, inner, threads);
        }
        // A single long axis for several threads: cut into blocks first.
        let step = UNROLL * lanes;
        let least = if threads == Threads::All { 1 } else { LEAST_VECTORS };
        let block = self.decide(|_| (vector.extent / PARALLEL_PIECES / step).max(least) * step);
        let mut parts = Vec::new();
        if changes {
            let (var, tiles) = (self.fresh(), vector.extent / block);
            self.mark(var);
            let inner = self.vectors(vector.id, Scalar::axis(var) * block, block, false, &store);
            let threads = self.threads_here(threads, tiles * block);
            parts.push(self.loops(&[Loop { var, extent: tiles }], inner, threads));
            let done = self.number(tiles * block);
            parts.push(self.vectors(vector.id, done, vector.extent - tiles * block, true, &store));
            return Stmt::Block(parts);
        }
        for (at, tiles, size) in cut(vector.extent, block) {
            let var = self.fresh();
            let inner = self.vectors(vector.id, Scalar::axis(var) * size + at, size, false, &store);
            let threads = if tiles > 1 { Threads::All } else { Threads::One };
            parts.push(self.loops(&[Loop { var, extent: tiles }], inner, threads));
        }
        Stmt::Block(parts)
    }

    /// All vectors in blocks along the innermost loop, whose extent changes from size to size: to find out where in loops around it an iteration
    /// is takes divisions, which known extents do without.
    fn in_blocks(&mut self, loops: &[Loop], vector: Axis, place: &Place<'_>, threads: Threads) -> Stmt {
        let Some((along, around)) = loops.split_last() else { return Stmt::Block(vec![]) };
        let (block, var) = (self.fresh(), self.fresh());
        self.mark(block);
        let first = Scalar::axis(block) * BLOCK;
        let at = first.clone() + Scalar::axis(var);
        let store = |with: &HashMap<AxisId, Scalar>| {
            let along = (along.var, at.clone());
            place.store(&with.iter().map(|(a, at)| (*a, at.clone())).chain([along]).collect())
        };
        let inner = self.vectors(vector.id, Scalar::index(0), vector.extent, false, &store);
        let left = self.number(along.extent) - first;
        let extent = Scalar::binary(BinOp::Min, left.clone(), Scalar::index(BLOCK));
        let inner = Stmt::For { var, extent, kind: LoopKind::Serial, body: Box::new(inner) };
        // No block is empty, which says that all of it is within the extent.
        let inner = Stmt::If { cond: Scalar::index(0).lt(left), then: Box::new(inner), otherwise: None };
        let blocks = Loop { var: block, extent: (along.extent + BLOCK - 1) / BLOCK };
        let loops: Vec<Loop> = around.iter().cloned().chain([blocks]).collect();
        self.loops(&loops, inner, threads)
    }

    /// An axis of four bytes, of two or four numbers of 16 bits, or of two to four of 32, that are stored side by side, and a longer one along which
    /// those of the next word are, and along which what is read lies densest.
    fn words(&self, axes: &[Axis], tensor: TensorId, to: Option<&Affine>, accesses: &[Access]) -> Option<(Axis, Axis)> {
        let to = to.filter(|_| self.unit.lanes() > 1)?;
        let words: &[i64] = match self.group.decl(tensor).dtype.bytes() {
            1 => &[4],
            2 => &[2, 4],
            4 => &[2, 3, 4],
            _ => return None,
        };
        let word = *axes.iter().find(|a| to.coeff(a.id) == 1 && words.contains(&a.extent))?;
        let fits = |a: &&Axis| to.coeff(a.id) == word.extent && a.extent >= self.unit.lanes();
        let along = *axes.iter().find(fits)?;
        // Such as the colours of pixels, of which there are fewer than fill a word.
        let interleaved = |o: &Affine| o.coeff(word.id) == 1 && (2..word.extent).contains(&o.coeff(along.id));
        let dense =
            |a: &Access| a.offset.as_ref().is_some_and(|o| matches!(o.coeff(along.id), 0 | 1) || interleaved(o));
        // Elements of several planes, or one for several of a word.
        let across = |a: &Access| a.offset.as_ref().is_some_and(|o| o.coeff(along.id) == 1 || interleaved(o));
        (accesses.iter().all(dense) && accesses.iter().any(across)).then_some((word, along))
    }

    /// All elements by words: the vectors that a vector of words is made of are written out (`codegen/llvm/pack.rs`).
    fn in_words(&mut self, axes: &[Axis], word: Axis, along: Axis, place: Place<'_>, threads: Threads) -> Stmt {
        let (value, to) = (self.named(place.value), self.named_place(place.to));
        let place = Place { value: &value, to: &to, ..place };
        let mut outer: Vec<Loop> = (axes.iter().filter(|a| a.id != word.id && a.id != along.id))
            .map(|a| Loop { var: a.id, extent: a.extent })
            .collect();
        let (largest, changes) = (self.unit.lanes(), self.changes(along.id));
        let pieces = match changes {
            true => {
                let mut sizes = vec![largest, largest / REST_OF_LANES, 1];
                sizes.retain(|n| *n > 0);
                sizes.dedup();
                descending(along.extent, &sizes)
            }
            false => powers_of_two(along.extent, largest),
        };
        let mut parts = Vec::new();
        for (first, turns, lanes) in pieces {
            let (turn, byte, lane) = (self.fresh(), self.fresh(), self.fresh());
            let first = if changes && lanes < largest { self.number(first) } else { Scalar::index(first) };
            if changes {
                self.mark(turn);
            }
            let body = self.within(|_| {
                let at = Scalar::axis(turn) * lanes + Scalar::axis(lane) + first.clone();
                let store = place.store(&HashMap::from_iter([(along.id, at), (word.id, Scalar::axis(byte))]));
                let vector = match lanes {
                    1 => bind(lane, Scalar::index(0), store),
                    _ => for_(lane, lanes, LoopKind::Vector, store),
                };
                for_(byte, word.extent, LoopKind::Unrolled, vector)
            });
            outer.push(Loop { var: turn, extent: turns });
            let work = outer.iter().map(|l| l.extent).product::<i64>() * lanes * word.extent;
            let threads = self.threads_for(threads, work);
            parts.push(self.loops(&outer, body, threads));
            outer.pop();
        }
        Stmt::Block(parts)
    }

    /// How to go through elements in squares, where something is read that lies densest along another axis than the results do.
    fn square(&self, axes: &[Axis], to: Option<&Affine>, accesses: &[Access], value: &Scalar) -> Option<Square> {
        let written = *axes.iter().rev().find(|a| to.is_some_and(|t| t.coeff(a.id) == 1))?;
        let across = |a: &&Access, axis: AxisId| {
            a.offset.as_ref().is_some_and(|o| o.coeff(axis) == 1 && !matches!(o.coeff(written.id), 0 | 1))
        };
        let read = *axes.iter().rev().find(|x| accesses.iter().any(|a| across(&a, x.id)))?;
        let others_fit = accesses.iter().filter(|a| !across(a, read.id)).all(|a| match &a.offset {
            Some(o) => matches!(o.coeff(written.id), 0 | 1),
            None => !a.axes.contains(&written.id),
        });
        let turned: Vec<&Access> = accesses.iter().filter(|a| across(a, read.id)).collect();
        let widest = turned.iter().filter_map(|a| a.tensor).map(|t| self.group.decl(t).dtype.bytes() as i64).max()?;
        let fits = self.unit.lanes().min(self.unit.vector_bytes / widest).min(written.extent).min(read.extent);
        let largest = 1 << fits.checked_ilog2()?;
        // What is read under a condition is not transposed, but gathered for each row.
        if !others_fit || largest < LEAST_SQUARE || expense(value) > WRITTEN_OUT && !reads_unconditionally(value) {
            return None;
        }
        // A load, a store and the steps of turning for each vector.
        let steps = 2.0 + largest.ilog2() as f64;
        Some(Square { written, read, largest, cost: steps * turned.len() as f64 / largest as f64 })
    }

    /// All elements in squares: of the densest axis of the results, so many are the lanes of a vector, and as many vectors are
    /// written out along the densest axis of what is read. Its rows are loaded whole and transposed in registers.
    fn squares(&mut self, axes: &[Axis], square: &Square, place: Place<'_>, threads: Threads) -> Stmt {
        // Over flat buffers, indices are sums: what their simplification took away does not count.
        let aside = self.decide(|e| expense(&e.flatten(place.value)) > WRITTEN_OUT);
        let (value, to) = (self.named(place.value), self.named_place(place.to));
        let place = Place { value: &value, to: &to, ..place };
        let turned = if self.is_dry() { Vec::new() } else { turned(&value, square) };
        let space = if aside { Space::Local } else { Space::Register };
        let mut outer: Vec<Loop> = axes
            .iter()
            .filter(|a| a.id != square.written.id && a.id != square.read.id)
            .map(|a| Loop { var: a.id, extent: a.extent })
            .collect();
        let mut parts = Vec::new();
        let (changing, turning) = (self.changes(square.written.id), self.changes(square.read.id));
        let powers = |extent: i64, changes: bool| match changes {
            true => {
                let mut sizes = vec![square.largest, LEAST_SQUARE, 1];
                sizes.dedup();
                descending(extent, &sizes)
            }
            false => powers_of_two(extent, square.largest),
        };
        for (first, tiles, lanes) in powers(square.written.extent, changing) {
            let groups = match changing {
                // Of smaller ones there are few.
                true if lanes == square.largest => descending(tiles, &[BESIDE, 1]),
                true => descending(tiles, &[1]),
                false => cut(tiles, BESIDE),
            };
            for (group, groups, beside) in groups {
                let (var, next) = (self.fresh(), self.fresh());
                let begin = first + group * lanes;
                let begin = match changing && (lanes < square.largest || beside < BESIDE) {
                    true => self.number(begin),
                    false => Scalar::index(begin),
                };
                if changing {
                    self.mark(var);
                }
                let along = Scalar::axis(var) * (beside * lanes) + Scalar::axis(next) * lanes + begin;
                let mut body = Vec::new();
                for (first, turns, rows) in powers(square.read.extent, turning) {
                    let turn = self.fresh();
                    let first = match turning && rows < square.largest {
                        true => self.number(first),
                        false => Scalar::index(first),
                    };
                    if turning {
                        self.mark(turn);
                    }
                    let across = Scalar::axis(turn) * rows + first;
                    let one =
                        self.within(|e| e.one_square(square, [&along, &across], [lanes, rows], &place, &turned, space));
                    let loops = [Loop { var: turn, extent: turns }, Loop { var: next, extent: beside }];
                    body.push(self.loops(&loops, one, Threads::One));
                }
                outer.push(Loop { var, extent: groups });
                let work = outer.iter().map(|l| l.extent).product::<i64>() * beside * lanes * square.read.extent;
                let threads = self.threads_for(threads, work);
                parts.push(self.loops(&outer, Stmt::Block(body), threads));
                outer.pop();
            }
        }
        Stmt::Block(parts)
    }

    /// So many lanes of so many rows, both powers of two, from a place on: squares of the smaller one.
    fn one_square(
        &mut self,
        square: &Square,
        [along, across]: [&Scalar; 2],
        [lanes, rows]: [i64; 2],
        place: &Place<'_>,
        turned: &[Turned],
        space: Space,
    ) -> Stmt {
        let n = lanes.min(rows);
        let width = if n < LEAST_SQUARE { lanes } else { n };
        let (right, down, row, lane) = (self.fresh(), self.fresh(), self.fresh(), self.fresh());
        let to = along.clone() + Scalar::axis(right) * width + Scalar::axis(lane);
        let turn = across.clone() + Scalar::axis(down) * n + Scalar::axis(row);
        let at = HashMap::from_iter([(square.written.id, to), (square.read.id, turn)]);
        let mut store = place.store(&at);
        let mut stmts = match width == n && n > 1 {
            true => self.transposes(&mut store, turned, &at, [row, lane], n, space),
            false => Vec::new(),
        };
        let vector = match width {
            1 => bind(lane, Scalar::index(0), store),
            _ => for_(lane, width, LoopKind::Vector, store),
        };
        let rows_run = if space == Space::Local { LoopKind::Serial } else { LoopKind::Unrolled };
        stmts.push(for_(row, n, rows_run, vector));
        let body = Stmt::Block(stmts);
        self.loops(
            &[Loop { var: right, extent: lanes / width }, Loop { var: down, extent: rows / n }],
            body,
            Threads::One,
        )
    }

    /// Lets a store read `space`, where it reads memory that lies densest along the rows: gives what brings squares of that there. `at` has
    /// stands for the axes of the square.
    fn transposes(
        &mut self,
        store: &mut Stmt,
        turned: &[Turned],
        at: &HashMap<AxisId, Scalar>,
        [row, lane]: [AxisId; 2],
        n: i64,
        space: Space,
    ) -> Vec<Stmt> {
        let Stmt::Store { value, .. } = store else { return Vec::new() };
        let first = HashMap::from_iter([(row, Scalar::index(0)), (lane, Scalar::index(0))]);
        let mut stmts = Vec::new();
        for Turned { read, stride } in turned {
            let read = replace_axes(read, at);
            let ScalarKind::Read(from, index) = read.kind() else { continue };
            self.buffers.push(Buffer { dtype: read.dtype(), len: n * n, space });
            let to = TensorId(self.buffers.len() as u32 - 1);
            let (at, stride) = (replace_axes(&index[0], &first), stride.clone());
            stmts.push(Stmt::Transpose { from: *from, at, stride, to, extent: n });
            let column = Scalar::read(to, vec![Scalar::axis(row) * n + Scalar::axis(lane)], read.dtype());
            *value = Substitution::new(|e: &Scalar| (*e == read).then(|| column.clone())).apply(value);
        }
        stmts
    }

    /// All of `extent` elements along an axis, from `start`: several vectors a turn, then single ones, then a short one.
    pub(super) fn vectors(
        &mut self,
        axis: AxisId,
        start: Scalar,
        extent: i64,
        changes: bool,
        body: &impl Fn(&HashMap<AxisId, Scalar>) -> Stmt,
    ) -> Stmt {
        let lanes = self.unit.lanes();
        let mut parts = Vec::new();
        let mut done = 0;
        if changes {
            let mut sizes = vec![UNROLL * lanes, lanes, lanes / REST_OF_LANES, 1];
            sizes.dedup();
            sizes.retain(|n| *n > 0);
            for (i, (first, tiles, size)) in descending(extent, &sizes).into_iter().enumerate() {
                let first = if i == 0 { Scalar::index(0) } else { self.number(first) };
                parts.push(self.vector_loop(axis, start.clone() + first, tiles, size, true, body));
            }
            return Stmt::Block(parts);
        }
        for size in [UNROLL * lanes, lanes] {
            let tiles = (extent - done) / size;
            if tiles > 0 {
                parts.push(self.vector_loop(axis, start.clone() + done, tiles, size, false, body));
                done += tiles * size;
            }
        }
        if done < extent {
            parts.push(self.vector_loop(axis, start + done, 1, extent - done, false, body));
        }
        Stmt::Block(parts)
    }

    /// `tiles` times `size` lanes along an axis, from `start`: the body gets what stands for the axis.
    fn vector_loop(
        &mut self,
        axis: AxisId,
        start: Scalar,
        tiles: i64,
        size: i64,
        changes: bool,
        body: &impl Fn(&HashMap<AxisId, Scalar>) -> Stmt,
    ) -> Stmt {
        let (tile, unroll, lane) = (self.fresh(), self.fresh(), self.fresh());
        let native = self.unit.lanes();
        let (vectors, lanes) = if size > native { (size / native, native) } else { (1, size) };
        if changes {
            self.mark(tile);
        }
        let stmt = self.within(|_| {
            let at = if tiles == 1 && !changes { start } else { Scalar::axis(tile) * size + start };
            let at = if vectors == 1 { at } else { at + Scalar::axis(unroll) * lanes };
            let stmt = match lanes {
                1 => body(&HashMap::from_iter([(axis, at)])),
                _ => {
                    let with = HashMap::from_iter([(axis, at + Scalar::axis(lane))]);
                    for_(lane, lanes, LoopKind::Vector, body(&with))
                }
            };
            if vectors > 1 { for_(unroll, vectors, LoopKind::Unrolled, stmt) } else { stmt }
        });
        match (changes, tiles) {
            (true, _) => self.one_loop(&Loop { var: tile, extent: tiles }, LoopKind::Serial, stmt),
            (false, 1) => stmt,
            (false, _) => for_(tile, tiles, LoopKind::Serial, stmt),
        }
    }

    /// The output's axes with extents of 1 gone and neighbours merged where every access steps evenly along both. `to` and the
    /// expressions are rewritten alike. An axis that stands outside of reads in one of them stays as it is, but for conditions of padding before
    /// an axis that is shorter than a vector, such as channels behind the columns of an image.
    pub(super) fn merge_axes(&mut self, axes: &[Axis], to: &mut Scalar, exprs: &mut [&mut Scalar]) -> Vec<Axis> {
        let (mut axes, single): (Vec<Axis>, Vec<Axis>) = axes.iter().partition(|a| a.extent != 1 || self.changes(a.id));
        let stand_still = |axes: &[Axis], to: &mut Scalar, exprs: &mut [&mut Scalar]| {
            let with = axes.iter().map(|a| (a.id, Scalar::index(0))).collect();
            for e in exprs.iter_mut().map(|e| &mut **e).chain([to]) {
                *e = replace_axes(e, &with);
            }
            exprs.iter().map(|e| (**e).clone()).collect::<Vec<Scalar>>()
        };
        let mut now = stand_still(&single, to, exprs);
        loop {
            let found = self.decide(|e| {
                let even = e.even_along(&axes, to, &now);
                (0..axes.len().saturating_sub(1)).find(|&i| even(i))
            });
            let Some(i) = found else { break };
            if i + 1 >= axes.len() || !self.even_along(&axes, to, &now)(i) {
                self.diverge();
                break;
            }
            // Every offset goes on along the inner axis as it steps along the outer one.
            let outer = axes.remove(i);
            let is_free = now.iter().any(|e| axes_outside_of_reads(e, None).contains(&outer.id));
            for e in exprs.iter_mut().filter(|_| is_free) {
                **e = bounds_along(e, outer.id, axes[i], &mut HashMap::new());
            }
            if self.changes(outer.id) {
                self.mark(axes[i].id);
            }
            axes[i].extent *= outer.extent;
            // What is simplified from now on must know how far the axis goes.
            self.extents.insert(axes[i].id, axes[i].extent);
            now = stand_still(&[outer], to, exprs);
        }
        axes
    }
}

impl Emitter {
    /// Whether each access of some expressions, and where they are stored, steps evenly along an axis of that number and the next.
    fn even_along<'a>(&self, axes: &'a [Axis], to: &Scalar, exprs: &'a [Scalar]) -> impl Fn(usize) -> bool + use<'a> {
        let lanes = self.unit.lanes();
        let free: Vec<AxisId> = exprs.iter().flat_map(|e| axes_outside_of_reads(e, None)).collect();
        let accesses = exprs.iter().flat_map(|e| self.accesses(e)).map(|a| a.offset);
        let offsets = accesses.chain([Affine::of(to)]).collect::<Option<Vec<Affine>>>();
        move |i: usize| {
            let (outer, inner) = (axes[i], axes[i + 1]);
            let step = |o: &Affine| o.coeff(outer.id) == o.coeff(inner.id) * inner.extent;
            let bounded = || {
                inner.extent < lanes
                    && exprs.iter().all(|e| !axes_outside_of_reads(e, Some(outer.id)).contains(&outer.id))
            };
            !free.contains(&inner.id)
                && (!free.contains(&outer.id) || bounded())
                && offsets.as_ref().is_some_and(|all| all.iter().all(step))
        }
    }
}

/// Calls `f` on each read of memory that happens whatever conditions give, with its index.
fn unconditional_reads(value: &Scalar, f: &mut impl FnMut(&Scalar, &Scalar)) {
    let (mut seen, mut stack) = (hashbrown::HashSet::new(), vec![value]);
    while let Some(e) = stack.pop() {
        match e.kind() {
            ScalarKind::Read(_, index) => index.iter().for_each(|i| f(e, i)),
            ScalarKind::Select(cond, ..) => stack.push(cond),
            _ => stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key()))),
        }
    }
}

/// What a value reads, whatever conditions say, that lies densest along the axis of a square that results do not.
fn turned(value: &Scalar, square: &Square) -> Vec<Turned> {
    let mut found: Vec<Turned> = Vec::new();
    unconditional_reads(value, &mut |read, index| {
        let by = |axis: &Axis| factor(index, axis.id);
        let (Some(across), Some(stride)) = (by(&square.read), by(&square.written)) else { return };
        if across.as_int() == Some(1) && stride.as_int() != Some(1) && found.iter().all(|f| f.read != *read) {
            found.push(Turned { read: read.clone(), stride });
        }
    });
    found
}

/// What an axis is multiplied by in a sum, be it a number with a name; none where the axis is not there, or not by itself.
fn factor(sum: &Scalar, axis: AxisId) -> Option<Scalar> {
    let is_axis = |e: &Scalar| matches!(e.kind(), ScalarKind::Axis(a) if *a == axis);
    let (mut found, mut stack) = (None, vec![sum]);
    while let Some(e) = stack.pop() {
        let by = match e.kind() {
            ScalarKind::Binary(BinOp::Add, a, b) => {
                stack.extend([a, b]);
                continue;
            }
            ScalarKind::Axis(_) if is_axis(e) => Scalar::index(1),
            ScalarKind::Binary(BinOp::Mul, a, by) if is_axis(a) => by.clone(),
            _ => {
                let mut within = false;
                for_each_node(e, &mut |n| within |= is_axis(n));
                if within {
                    return None;
                }
                continue;
            }
        };
        if found.replace(by).is_some() {
            return None;
        }
    }
    found
}

/// Whether no condition decides about what is read.
fn reads_unconditionally(value: &Scalar) -> bool {
    let (mut free, mut all) = (hashbrown::HashSet::new(), true);
    unconditional_reads(value, &mut |read, _| {
        free.insert(read.key());
    });
    for_each_node(value, &mut |n| all &= !matches!(n.kind(), ScalarKind::Read(..)) || free.contains(&n.key()));
    all
}

/// What a comparison of an axis with a number says of it.
pub(super) enum Bound {
    /// It is less.
    Below(i64),
    /// It is as great or greater.
    From(i64),
}

impl Bound {
    /// The bound that an expression is, where it is one.
    pub(super) fn of(e: &Scalar, axis: AxisId) -> Option<Bound> {
        let (a, b, or_equal) = match e.kind() {
            ScalarKind::Binary(BinOp::Lt, a, b) => (a, b, 0),
            ScalarKind::Binary(BinOp::Le, a, b) => (a, b, 1),
            ScalarKind::Binary(BinOp::Gt, a, b) => (b, a, 0),
            ScalarKind::Binary(BinOp::Ge, a, b) => (b, a, 1),
            _ => return None,
        };
        let difference = Affine::of_sum([(a, 1), (b, -1)]).filter(|_| a.dtype() == DType::I64)?;
        match difference.terms[..] {
            [(of, 1)] if of == axis => Some(Bound::Below(or_equal - difference.base)),
            [(of, -1)] if of == axis => Some(Bound::From(difference.base + 1 - or_equal)),
            _ => None,
        }
    }
}

/// The expression with conditions on an outer axis put as such on the inner one that goes on along both. `done` has what shared parts became.
fn bounds_along(e: &Scalar, outer: AxisId, inner: Axis, done: &mut HashMap<usize, Scalar>) -> Scalar {
    if let Some(new) = done.get(&e.key()) {
        return new.clone();
    }
    let along = || Scalar::axis(inner.id);
    let new = match Bound::of(e, outer) {
        Some(Bound::Below(n)) => along().lt(Scalar::index(n * inner.extent)),
        Some(Bound::From(n)) => along().ge(Scalar::index(n * inner.extent)),
        None if matches!(e.kind(), ScalarKind::Read(..)) => e.clone(),
        None => e.map_operands(|o| bounds_along(o, outer, inner, done)),
    };
    done.insert(e.key(), new.clone());
    new
}

/// The axes whose values matter beside where an expression reads, and beside what bounds that one.
fn axes_outside_of_reads(e: &Scalar, but_bounds: Option<AxisId>) -> Vec<AxisId> {
    let mut found = Vec::new();
    let mut seen = hashbrown::HashSet::new();
    let mut stack = vec![e];
    while let Some(e) = stack.pop() {
        match e.kind() {
            ScalarKind::Read(..) => {}
            ScalarKind::Axis(a) => found.push(*a),
            _ if but_bounds.is_some_and(|axis| Bound::of(e, axis).is_some()) => {}
            _ => stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key()))),
        }
    }
    found
}
