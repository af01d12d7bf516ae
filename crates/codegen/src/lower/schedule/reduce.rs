//! Steps that combine values: register tiles of accumulators inside, the rest of the output's axes outside.

use std::cell::OnceCell;

use hashbrown::HashMap;

use super::{
    CANDIDATES, Emitter, Loop, PARALLEL_FROM, Reduced, Threads, bind,
    cache::TileBlocks,
    choose::{Ranked, ranked},
    combine::{combined, combined_all, identity},
    conditions::{Guarded, LeftOut, guarded_axes, without},
    factored::{factored, shares_bytes},
    for_,
    pieces::{AtEnds, counted, edges_apart, pieces},
    prefetch::{Prefetch, Slice},
    shares::{is_even, outer_axes},
    sizes::is_streamed,
    stream::Stream,
    taps::{self, Seen, Taps},
    tiling::{Cut, Form, Piece, Place, Tiling, WrittenOut, form, stored},
    turns::{FACTORS, Turns, at_places, most_written_out, run, window},
};
use crate::{
    loops::{Axis, AxisId, BinOp, Buffer, BufferId, Combine, LoopKind, Scalar, ScalarKind, Space, Stmt, TensorId},
    lower::{
        affine::{Affine, Substitution, for_each_node, replace_axes},
        normalize::{Reduction, expense},
    },
    tensor::DType,
};

/// Epilogues of this expense hold a function that takes many operations.
const FUNCTION: u32 = 16;

/// Longer reduced axes are channels and not places of a window.
const LONGEST_WINDOW: i64 = 7;

/// The parts of one reduction that all its tiles share.
pub(super) struct Job<'a> {
    pub(super) tensor: TensorId,
    /// Stands for the combined value in the epilogue, before its register is known.
    pub(super) sum: AxisId,
    pub(super) to: &'a Scalar,
    pub(super) value: &'a Scalar,
    pub(super) reduction: &'a Reduction,
    pub(super) tiling: &'a Tiling,
    pub(super) prefetch: Option<Prefetch>,
    stream: Option<Stream>,
    /// What a sum starts from, over flat buffers; from 0 where nothing is given.
    start: Option<Scalar>,
    /// What is combined, over flat buffers, where the kernel is for many sizes.
    pub(super) combined: Option<Scalar>,
    /// The conditions of it that hold along pieces.
    left_out: LeftOut,
    /// What is stored, over flat buffers.
    pub(super) flat_value: Scalar,
    /// Pieces of an axis along the ends of others.
    at_ends: Option<AtEnds>,
    /// The numbers of pieces, by axis.
    pub(super) cuts: HashMap<AxisId, Vec<Cut>>,
    /// Those of the loops over reduced axes.
    turns: Turns,
    /// Registers for places of a window that overlap from one accumulator to the next, where there are such.
    window: i64,
    /// Windows some of whose taps see padding.
    taps: Vec<Taps>,
    /// Blocks of tiles that the outermost loop goes through.
    pub(super) blocks: Option<TileBlocks>,
    /// Whether the outermost loops, over rows and others, go through blocks of rows.
    in_blocks: bool,
}

/// How many values all tiles combine.
fn visits(pieces: &[(AxisId, Vec<Piece>)], r: &Reduction) -> i64 {
    let elements = pieces.iter().map(|(_, all)| all.iter().map(Piece::elements).sum::<i64>());
    elements.product::<i64>() * r.axes.iter().map(|a| a.extent).product::<i64>()
}

impl Emitter {
    pub(super) fn reduce(
        &mut self,
        tensor: TensorId,
        axes: Vec<Axis>,
        mut to: Scalar,
        mut value: Scalar,
        mut reduction: Reduction,
        threads: Threads,
    ) -> Stmt {
        let ragged = self.decide(|e| e.ragged(&axes, &reduction.value)).filter(|(at, _)| *at < axes.len());
        if let Some((at, whole)) = ragged {
            return self.with_rest(tensor, &axes, (at, whole), to, value, reduction, threads);
        }
        let rows = match threads {
            Threads::All => self.decide(|e| e.by_rows(tensor, &axes, &reduction)),
            Threads::One | Threads::Enough(_) => None,
        };
        // The epilogue names the accumulators at the unmerged axes: give it a name without axes instead.
        let sum = self.fresh();
        let whole = |s: &Scalar| match s.kind() {
            ScalarKind::Read(t, _) if *t == reduction.tensor => Some(Scalar::bound(sum, s.dtype())),
            _ => None,
        };
        value = Substitution::new(whole).apply(&value);
        let axes = self.split_axes(&axes, &mut to, &mut [&mut value, &mut reduction.value]);
        let axes = self.merge_axes(&axes, &mut to, &mut [&mut value, &mut reduction.value]);
        reduction.axes = self.split_axes(&reduction.axes, &mut to, &mut [&mut reduction.value]);
        let (single, kept): (Vec<Axis>, Vec<Axis>) =
            reduction.axes.iter().partition(|a| a.extent == 1 && !self.changes(a.id));
        reduction.value = replace_axes(&reduction.value, &single.iter().map(|a| (a.id, Scalar::index(0))).collect());
        reduction.axes = kept;
        self.same((reduction.combine as u32, reduction.value.dtype()));
        for a in axes.iter().chain(&reduction.axes) {
            self.same_axis(a.id, a.extent);
        }
        let accesses = OnceCell::new();
        let chosen = self.decide(|e| {
            let accesses = accesses.get_or_init(|| e.accesses(&reduction.value));
            let (place, form) = (Affine::of(&to), Form { stored: stored(&value), ..form(&reduction, e.unit) });
            let most = CANDIDATES.max(e.asked() + 1);
            let taps = e.taps(&reduction, &axes);
            let (cuts, guarded) = (taps::cuts(&taps, &axes), guarded_axes(&reduction.value, &taps));
            let (place, changing, over) = (place.as_ref(), e.changing(), &reduction.axes);
            let mut ranked = ranked(&axes, place, over, accesses, form, e.unit, changing, &guarded, &cuts, most);
            if let Some(offered) = e.in_tiles(&axes, &reduction) {
                let at = ranked.best.partition_point(|c| c.0 <= offered.0);
                ranked.best.insert(at, offered);
                ranked.best.truncate(most);
                ranked.all += 1;
            }
            let lanes = e.unit.lanes();
            let chosen = e.choice(ranked).map(|t| if e.changes(t.vector) { Tiling { lanes, ..t } } else { t });
            chosen.map(|t| e.with_rows(t, &axes, accesses, &guarded))
        });
        // Without any axis longer than 1 there is one accumulator and nothing to choose.
        let mut tiling = chosen.unwrap_or_else(|| Tiling::single(self.fresh()));
        if tiling.dot.is_some() {
            // The operand with the fewer copies is met in the inner loop, and stays in registers while the other one passes by:
            // instructions for narrow numbers do not read what is the same for all lanes from memory.
            tiling.tiles.sort_by_key(|t| std::cmp::Reverse(t.1));
        }
        let order = self.decide(|e| {
            let ordered = match tiling.matrix {
                Some(matrix) => {
                    let place = Affine::of(&to);
                    let apart = |by: i64| {
                        axes.iter().find(|a| place.as_ref().is_some_and(|p| p.coeff(a.id) == by)).map(|a| a.id)
                    };
                    let first = rows.and_then(|[row, pixel]| apart(row).or(apart(pixel)));
                    e.order_of_blocks(&axes, &reduction, &tiling, matrix, first)
                }
                None => e.order(&axes, accesses.get_or_init(|| e.accesses(&reduction.value)), &tiling),
            };
            ordered.iter().map(|a| a.id).collect::<Vec<AxisId>>()
        });
        let all = axes.len();
        let mut axes: Vec<Axis> = order.iter().filter_map(|id| axes.iter().find(|a| a.id == *id)).copied().collect();
        if axes.len() != all {
            self.diverge();
        }
        let block = self.decide(|e| {
            let found = e.cache_block(&axes, accesses.get_or_init(|| e.accesses(&reduction.value)), &tiling);
            found.filter(|(at, _)| !e.changes(axes[*at].id))
        });
        let block = block.filter(|(at, _)| *at < axes.len());
        if let Some((at, block)) = block {
            let axis = axes.remove(at);
            let [outer, inner] = self.split_axis(axis, block, &mut to, &mut [&mut value, &mut reduction.value]);
            axes.insert(at, inner);
            axes.insert(0, outer);
            tiling.tiles.iter_mut().filter(|t| t.0 == axis.id).for_each(|t| t.0 = inner.id);
        }
        let rows = rows.filter(|_| block.is_none() && tiling.matrix.is_none());
        let at = self.decide(|_| {
            let apart = rows?;
            let place = Affine::of(&to)?;
            let find = |by: i64| axes.iter().position(|a| a.id != tiling.vector && place.coeff(a.id) == by);
            find(apart[0]).map(|at| (at, false)).or(find(apart[1]).map(|at| (at, true)))
        });
        let mut rows_first = false;
        let rows = match at {
            Some((at, _)) if self.is_sized() => {
                rows_first = self.changing_rows_outermost(&mut axes, at, &tiling);
                None
            }
            Some(at) => {
                let exprs = &mut [&mut value, &mut reduction.value];
                self.rows_outermost(&mut axes, at, &mut tiling, &mut to, exprs)
            }
            None => None,
        };
        let in_blocks = self.decide(|e| e.in_blocks_of_rows(&axes, &reduction));
        let start = started(&mut value, sum, &reduction, &tiling);
        let taps = self.taps_of_tiles(&reduction, &axes, &tiling);
        let guarded = guarded_axes(&reduction.value, &taps);
        let seen_alike = taps::cuts(&taps, &axes);
        let volume = reduction.axes.iter().map(|a| a.extent as f64).product::<f64>();
        let lanes_at_once = if tiling.across { tiling.lanes } else { tiling.dot.map_or(1, |d| d.1) };
        let streamed = self.decide(|e| is_streamed(volume / lanes_at_once as f64, e.unit));
        // Where tiles overlap, the same is stored twice, be it by two threads. Those with edges within them are for the axis with the longest ones alone: each
        // other axis would multiply their kinds.
        let longest = tiling.tiles.iter().filter(|t| guarded.contains(&t.0) && self.changes(t.0)).max_by_key(|t| t.1);
        let may_overlap = !reduction.followed && tiling.matrix.is_none();
        let whole_tiles = longest.map(|t| t.0).filter(|_| may_overlap);
        let mut in_tiles = None;
        let pieces: Vec<(AxisId, Vec<Piece>)> = axes
            .iter()
            .map(|a| {
                if self.changes(a.id) {
                    let others: Vec<Axis> = axes.iter().chain(&reduction.axes).copied().collect();
                    let guarded = (guarded.contains(&a.id), whole_tiles == Some(a.id));
                    let along = (streamed, may_overlap);
                    let (all, edge) =
                        self.changing_axis_pieces(a, (&others, &reduction.value), &tiling, guarded, along);
                    in_tiles = in_tiles.or(edge.map(|edge| (*a, edge)));
                    return (a.id, counted(all));
                }
                let all = match seen_alike.get(&a.id).filter(|_| tiling.tiles.iter().any(|t| t.0 == a.id && t.1 > 1)) {
                    Some(cuts) => taps::pieces_alike(a, cuts, &tiling),
                    None => pieces(a, &tiling),
                };
                (a.id, counted(if guarded.contains(&a.id) { edges_apart(all, [true; 2]) } else { all }))
            })
            .collect();
        let stream = self.decide(|e| e.stream(&pieces, &reduction, &tiling, &e.accesses(&reduction.value)));
        let in_groups = tiling.dot.is_some_and(|(axis, _)| self.changes(axis));
        if in_groups {
            self.opaque();
        }
        let window = self.decide(|e| window(&reduction, &tiling, &e.accesses(&reduction.value)));
        let combined = self.is_sized().then(|| self.named(&reduction.value));
        let to = self.named_place(&to);
        // Threads share out the iterations of the outer axes, all of them together. Everything else runs inside of one iteration,
        // tails of tiles too: they meet the same operands while those are at hand.
        let at_once = threads == Threads::All && tiling.matrix.is_none() && !pieces.is_empty();
        let at_once = at_once
            && self.decide(|e| {
                let begins = match e.is_sized() {
                    true => e.begins_evenly(&pieces) || rows_first && e.are_alike(&pieces, &guarded),
                    false => is_even(&pieces),
                };
                begins && visits(&pieces, &reduction) >= PARALLEL_FROM
            });
        let outer = match threads {
            Threads::One => 0,
            Threads::All | Threads::Enough(_) => self.decide(|_| outer_axes(&pieces, at_once, tiling.matrix.is_some())),
        };
        if outer > pieces.len() {
            self.diverge();
        }
        let outer = outer.min(pieces.len());
        // Where one loop goes through the pieces of several axes, they are the same ones everywhere.
        let apart = |axis: &Axis| !at_once || pieces[outer..].iter().any(|p| p.0 == axis.id);
        let at_ends = in_tiles.filter(|(a, _)| apart(a)).and_then(|(a, edge)| AtEnds::of(&pieces, &a, &tiling, edge));
        let all_pieces = AtEnds::and(at_ends.as_ref(), &pieces);
        let left_out = match self.is_sized() {
            true => {
                let all: Vec<Axis> = axes.iter().chain(&reduction.axes).copied().collect();
                self.left_out(&reduction.value, &all, &all_pieces)
            }
            false => LeftOut::new(),
        };
        let blocks = match self.is_sized() && !in_blocks {
            true => {
                let accesses = self.accesses(&reduction.value);
                self.tile_blocks(&pieces, pieces.len() - outer, &axes, &accesses, &tiling)
            }
            false => None,
        };
        let (is_prefetched, each) = self.turns_combined(&reduction, &tiling);
        let prefetch = match is_prefetched {
            true => self.prefetch(&pieces, &reduction, &each, blocks.as_ref()),
            false => None,
        };
        let cuts = self.cuts(&all_pieces, prefetch.as_ref(), at_once || blocks.is_some());
        let job = Job {
            tensor,
            sum,
            to: &to,
            value: &value,
            reduction: &reduction,
            tiling: &tiling,
            prefetch,
            stream,
            start: start.as_ref().map(|start| self.named(start)),
            combined,
            left_out,
            flat_value: self.named(&value),
            at_ends,
            cuts,
            turns: self.turns_of(&reduction, &tiling),
            window,
            taps,
            blocks,
            in_blocks,
        };
        let (outer, inner) = pieces.split_at(outer);
        if at_once {
            return self.tiles_at_once(&job, outer, inner, rows);
        }
        let mut choices: Vec<Vec<(AxisId, Piece)>> = vec![vec![]];
        for (axis, pieces) in outer {
            choices = choices
                .iter()
                .flat_map(|c| {
                    let here = AtEnds::pieces(job.at_ends.as_ref(), *axis, pieces, c.iter().map(|c| c.1));
                    here.iter().map(move |p| c.iter().copied().chain([(*axis, *p)]).collect())
                })
                .collect();
        }
        Stmt::Block(choices.into_iter().map(|c| self.tiles(&job, &c, inner, threads)).collect())
    }

    /// Which tiling was asked for, for the reduction at hand: the first where nothing is said.
    fn asked(&self) -> usize {
        self.choices.get(self.reductions.len()).copied().unwrap_or(0)
    }

    /// The tiling that was asked for, else the one that the model finds best. Notes what there was to choose from.
    fn choice(&mut self, ranked: Ranked) -> Option<Tiling> {
        let Ranked { best, all } = ranked;
        let chosen = best.get(self.asked()).or(best.first()).map(|c| c.1.clone());
        self.reductions.push(Reduced { ranked: best, all });
        chosen
    }

    /// The loop nest over one piece of each outer axis, and all of the inner ones.
    fn tiles(
        &mut self,
        job: &Job<'_>,
        outer: &[(AxisId, Piece)],
        inner: &[(AxisId, Vec<Piece>)],
        threads: Threads,
    ) -> Stmt {
        let mut places = Vec::new();
        let loops: Vec<Loop> = match self.is_dry() {
            true => outer.iter().map(|&(_, p)| self.turn(p)).collect(),
            false => {
                let mut place = |&(axis, p)| {
                    let (turns, place) = self.place(job, axis, p);
                    places.push(place);
                    turns
                };
                outer.iter().map(&mut place).collect()
            }
        };
        let loops: Vec<Loop> = job.blocks.iter().map(|b| b.turns.clone()).chain(loops).collect();
        let inside = inner.iter().flat_map(|(_, pieces)| pieces.iter().map(Piece::elements).reduce(|a, b| a + b));
        // Of a piece that there is none of at this size there may be one at another.
        let elements = |p: &Piece| if p.changes { p.elements().max(p.step()) } else { p.elements() };
        let visits: i64 = outer.iter().map(|(_, p)| elements(p)).chain(inside).product::<i64>()
            * job.reduction.axes.iter().map(|a| a.extent).product::<i64>();
        let body = self.within(|e| e.nest(job, inner, &mut places));
        let body = Place::with_names(places.into_iter().filter_map(|p| p.named), body);
        let threads = self.threads_for(threads, visits);
        match &loops[..] {
            [_, _, ..] if job.in_blocks && !matches!(threads, Threads::One) => {
                self.blocks_of_rows(&loops, body, threads)
            }
            _ => self.loops(&loops, body, threads),
        }
    }

    /// The loops over all pieces of these axes, and the tiles within.
    pub(super) fn nest(&mut self, job: &Job<'_>, axes: &[(AxisId, Vec<Piece>)], places: &mut Vec<Place>) -> Stmt {
        let Some(((axis, pieces), rest)) = axes.split_first() else { return self.tile(job, places) };
        let mut parts = Vec::with_capacity(pieces.len());
        let outer = places.iter().map(|p| p.piece);
        for &piece in AtEnds::pieces(job.at_ends.as_ref(), *axis, pieces, outer) {
            let (turns, mut place) = self.place(job, *axis, piece);
            if let Some(blocks) = job.blocks.as_ref().filter(|b| b.axis == *axis) {
                let cut = job.cuts[axis][piece.number].clone();
                let within = [turns.var, self.fresh(), self.fresh()];
                parts.push(blocks.of_piece(&cut, within, |turn| {
                    place.at = turn.clone() * piece.step() + place.start.clone();
                    place.turn = turn;
                    places.push(place);
                    let body = self.nest(job, rest, places);
                    places.pop();
                    body
                }));
                continue;
            }
            let named = place.named.clone();
            places.push(place);
            let body = Place::with_names(named.into_iter(), self.nest(job, rest, places));
            places.pop();
            parts.push(match piece.changes {
                true => run(turns.var, job.cuts[axis][piece.number].turns.clone(), body),
                false => self.one_loop(&turns, LoopKind::Serial, body),
            });
        }
        Stmt::Block(parts)
    }

    /// The loop over a piece, and where in it a turn is.
    pub(super) fn place(&mut self, job: &Job<'_>, axis: AxisId, piece: Piece) -> (Loop, Place) {
        let turns = self.turn(piece);
        let var = turns.var;
        let still = if piece.changes { piece.once } else { piece.count == 1 };
        let turn = if still { Scalar::index(0) } else { Scalar::axis(var) };
        // Pieces of known extents need no names for their numbers.
        let (start, before, between) = match piece.changes {
            true => {
                let Cut { start, before, between, .. } = job.cuts[&axis][piece.number].clone();
                (start, before, between)
            }
            false => (Scalar::index(piece.start), Scalar::index(piece.before), None),
        };
        let at = turn.clone() * piece.step() + start.clone();
        let named = piece.ends.zip(between).map(|(ends, between)| {
            let name = self.fresh();
            let at = match ends.first {
                Some(first) => at.clone() + turn.clone().floor_div(first) * between,
                None => Scalar::binary(BinOp::Min, at.clone(), between + piece.size),
            };
            (name, at)
        });
        let at = named.as_ref().map_or(at, |named| Scalar::axis(named.0));
        (turns, Place { axis, at, start, turn, before, piece, named })
    }

    /// The loop over a piece.
    fn turn(&mut self, piece: Piece) -> Loop {
        let var = self.fresh();
        if piece.changes {
            self.mark(var);
        }
        Loop { var, extent: piece.count }
    }

    /// One register tile: initialize, combine over all reduced axes, store.
    fn tile(&mut self, job: &Job<'_>, places: &[Place]) -> Stmt {
        if let Some(matrix) = job.tiling.matrix {
            return self.tile_of_matrix(job, matrix, places);
        }
        let r = job.reduction;
        let dtype = r.value.dtype();
        // The longest axis outside: what is the same along it is what there is less of, and stays in registers while the rest
        // streams by.
        let mut tiled: Vec<&Place> = places.iter().filter(|p| p.piece.size > 1).collect();
        tiled.sort_by_key(|p| (-p.piece.size, job.tiling.tiles.iter().position(|t| t.0 == p.axis)));
        let turns: Vec<(AxisId, AxisId, i64)> = tiled.iter().map(|p| (p.axis, self.fresh(), p.piece.size)).collect();
        let accumulators: i64 = turns.iter().map(|t| t.2).product();
        let lane = self.fresh();
        let out_lanes = places.iter().map(|p| p.piece.lanes).max().unwrap_or(1);
        let lanes = if job.tiling.across { job.tiling.lanes } else { out_lanes };
        let slot = turns.iter().fold(Scalar::index(0), |at, t| at * t.2 + Scalar::axis(t.1));
        let mut with: HashMap<AxisId, Scalar> = HashMap::new();
        for Place { axis, at, piece, .. } in places {
            let turn = turns.iter().find(|t| t.0 == *axis).map(|t| Scalar::axis(t.1) * piece.lanes);
            let mut at = turn.map_or(at.clone(), |t| at.clone() + t);
            if piece.lanes > 1 {
                at = at + Scalar::axis(lane);
            }
            with.insert(*axis, at);
        }
        let unrolled_around = |body: Stmt, lanes: i64, part: Option<Loop>| {
            let body = match lanes {
                1 => bind(lane, Scalar::index(0), body),
                n => for_(lane, n, LoopKind::Vector, body),
            };
            let body = match part {
                Some(part) => for_(part.var, part.extent, LoopKind::Unrolled, body),
                None => body,
            };
            turns.iter().rev().fold(body, |b, t| for_(t.1, t.2, LoopKind::Unrolled, b))
        };
        let unrolled = |body: Stmt, lanes: i64| unrolled_around(body, lanes, None);
        let sums = self.register(dtype, accumulators * lanes);
        let sum_at = slot.clone() * lanes + Scalar::axis(lane);
        let sum = Scalar::read(sums, vec![sum_at.clone()], dtype);
        let start = match &job.start {
            Some(start) => replace_axes(start, &with),
            None => identity(r.combine, dtype),
        };
        let mut stmts = vec![unrolled(Stmt::Store { buffer: sums, index: sum_at.clone(), value: start }, lanes)];
        let (seen, counted) = taps::seen(&job.taps, &r.value, places, &mut || self.fresh());
        let combined_at = job.combined.as_ref().map(|combined| without(combined, &job.left_out, places));
        let value = match &combined_at {
            Some(combined) => at_places(combined, &with),
            None => self.flatten(&replace_axes(&counted, &with)),
        };
        let rows: Vec<(AxisId, Loop)> = turns.iter().map(|t| (t.0, Loop { var: t.1, extent: t.2 })).collect();
        let line = self.fresh();
        // What a step prefetches, at further places.
        let ahead = |stream: &Stream, further: &HashMap<AxisId, Scalar>| {
            let places = with.iter().chain(further).map(|(axis, at)| (*axis, at.clone())).collect();
            let combined = combined_at.as_ref().unwrap_or(&value);
            stream.prefetch(|with| at_places(combined, with), &places, &rows, [line, lane])
        };
        // Axes of results are where the tile is; of a reduced one, each turn prefetches.
        let by_turn = job.stream.as_ref().filter(|s| r.axes.iter().any(|a| a.id == s.axis));
        if let Some(stream) = job.stream.as_ref().filter(|_| by_turn.is_none()) {
            stmts.push(ahead(stream, &HashMap::new()));
        }

        let mut inner = r.axes.clone();
        let across = inner.iter().position(|a| job.tiling.across && a.id == job.tiling.vector).map(|i| inner.remove(i));
        // What is combined at one step, in order.
        let mut at_once = vec![value.clone()];
        if let Some((axis, count)) = job.tiling.dot
            && let Some(place) = inner.iter().position(|a| a.id == axis)
        {
            let chunk = Axis { id: self.fresh(), extent: inner[place].extent / count };
            let first = if chunk.extent == 1 { Scalar::index(0) } else { Scalar::axis(chunk.id) * count };
            at_once =
                (0..count).map(|i| replace_axes(&value, &HashMap::from_iter([(axis, first.clone() + i)]))).collect();
            match chunk.extent {
                1 => drop(inner.remove(place)),
                _ => inner[place] = chunk,
            }
        }
        // Places of a window are few enough to be written out.
        let is_long = inner.last().is_some_and(|a| a.extent > LONGEST_WINDOW || self.changes(a.id));
        let is_rest = is_long && places.iter().any(|p| p.piece.is_rest());
        let most = most_written_out(accumulators, job.tiling.dot.is_some(), is_rest);
        // What is the same for all of the inner reduced axes is multiplied with their sum.
        let factored = match (across, job.tiling.dot) {
            (None, None) => factored(r, &value, &inner),
            _ => None,
        };
        let part = factored.as_ref().map(|_| self.register(dtype, accumulators * lanes));
        let to = part.unwrap_or(sums);
        let so_far = Scalar::read(to, vec![sum_at.clone()], dtype);
        let step = |values: &[Scalar], with: &HashMap<AxisId, Scalar>| {
            let values: Vec<Scalar> = values.iter().map(|v| replace_axes(v, with)).collect();
            let value = combined_all(r.combine, so_far.clone(), &values, job.tiling.dot.is_some());
            Stmt::Store { buffer: to, index: sum_at.clone(), value }
        };
        let store = |buffer, value| unrolled(Stmt::Store { buffer, index: sum_at.clone(), value }, lanes);
        let around = factored.as_ref().map(|f| {
            let whole = |inner: Stmt| {
                let product = so_far.clone() * f.outer.clone();
                let zero = store(to, identity(r.combine, dtype));
                Stmt::Block(vec![zero, inner, store(sums, combined(r.combine, sum.clone(), product))])
            };
            (f.outer_axes, whole)
        });
        if let Some(f) = &factored {
            at_once = vec![f.inner.clone()];
        }
        // Whether a row counts is asked once for all that is read of it, and not for each element.
        let is_plain = across.is_none() && job.tiling.dot.is_none() && factored.is_none() && job.taps.is_empty();
        let last = r.axes.last().filter(|a| is_plain && !self.changes(a.id));
        let guarded = combined_at.as_ref().zip(last).and_then(|(combined, last)| {
            let lanes = places.iter().filter(|p| p.piece.lanes > 1).map(|p| p.axis);
            let inner: Vec<AxisId> = turns.iter().map(|t| t.0).chain(lanes).chain([last.id]).collect();
            Some(Guarded::of(combined, &inner)?.map(|e| at_places(e, &with)))
        });
        let result = match across {
            None => {
                let most = if self.window_spills(job, accumulators) { 0 } else { most };
                let line = self.fresh();
                let prefetch = job.prefetch.as_ref().map(|a| a.slice(places, line));
                let written_out = &job.turns.innermost;
                stmts.push(self.combine_loops(
                    job,
                    &inner,
                    &seen,
                    most / accumulators,
                    prefetch,
                    written_out,
                    around.as_ref().map(|(at, whole)| (*at, whole as &dyn Fn(Stmt) -> Stmt)),
                    guarded.as_ref().map(|g| &g.cond),
                    |with, part, is_seen| {
                        let values = match &guarded {
                            Some(g) if is_seen => std::slice::from_ref(&g.seen),
                            Some(g) => std::slice::from_ref(&g.unseen),
                            None => &at_once[..],
                        };
                        let turn = unrolled_around(step(values, with), lanes, part);
                        match by_turn {
                            Some(stream) => Stmt::Block(vec![ahead(stream, with), turn]),
                            None => turn,
                        }
                    },
                ));
                sum.clone()
            }
            Some(axis) => {
                let chunk = Axis { id: self.fresh(), extent: axis.extent / lanes };
                let changes = self.changes(axis.id);
                if changes {
                    self.mark(chunk.id);
                }
                let at = Scalar::axis(chunk.id) * lanes + Scalar::axis(lane);
                let value_at = replace_axes(&value, &HashMap::from_iter([(axis.id, at)]));
                let loops: Vec<Axis> = inner.iter().copied().chain([chunk]).collect();
                let written_out = &job.turns.innermost;
                let body =
                    |with: &_, part, _| unrolled_around(step(std::slice::from_ref(&value_at), with), lanes, part);
                let most_turns = most / accumulators;
                stmts.push(self.combine_loops(job, &loops, &seen, most_turns, None, written_out, None, None, body));
                let (one, rest) = self.combine_lanes(job, &slot, sums, lanes, accumulators);
                stmts.push(unrolled(rest, 1));
                let done = axis.extent / lanes * lanes;
                if changes || done < axis.extent {
                    // What does not fill a vector is combined one by one.
                    let tail = Axis { id: self.fresh(), extent: axis.extent - done };
                    if changes {
                        self.mark(tail.id);
                    }
                    let (first, written_out) = match &job.turns.tail {
                        Some((first, written_out)) => (first.clone(), &written_out[..]),
                        None => (Scalar::index(done), &[][..]),
                    };
                    let at = Scalar::axis(tail.id) + first;
                    let value_at = replace_axes(&value, &HashMap::from_iter([(axis.id, at)]));
                    let loops: Vec<Axis> = inner.iter().copied().chain([tail]).collect();
                    let total = Scalar::read(one, vec![slot.clone()], dtype);
                    stmts.push(self.combine_loops(
                        job,
                        &loops,
                        &seen,
                        most / accumulators,
                        None,
                        written_out,
                        None,
                        None,
                        |with, part, _| {
                            let value = combined(r.combine, total.clone(), replace_axes(&value_at, with));
                            unrolled_around(Stmt::Store { buffer: one, index: slot.clone(), value }, 1, part)
                        },
                    ));
                }
                Scalar::read(one, vec![slot.clone()], dtype)
            }
        };
        // Functions are evaluated in a loop, not written out for each accumulator: these would fill all registers meanwhile.
        let aside = accumulators > 2 && expense(job.value) >= FUNCTION;
        let result = if aside {
            self.buffers.push(Buffer { dtype, len: accumulators * out_lanes, space: Space::Local });
            let local = TensorId(self.buffers.len() as u32 - 1);
            let at = slot.clone() * out_lanes + Scalar::axis(lane);
            stmts.push(unrolled(Stmt::Store { buffer: local, index: at.clone(), value: result }, out_lanes));
            Scalar::read(local, vec![at], dtype)
        } else {
            result
        };
        let stored = Substitution::new(|s: &Scalar| match s.kind() {
            ScalarKind::Axis(a) if *a == job.sum => Some(result.clone()),
            ScalarKind::Axis(a) => with.get(a).cloned(),
            _ => None,
        })
        .apply(&job.flat_value);
        let store =
            Stmt::Store { buffer: self.buffer_of[&job.tensor], index: replace_axes(job.to, &with), value: stored };
        let mut store = unrolled(store, out_lanes);
        if aside {
            store = in_loops(store, turns.len());
        }
        stmts.push(store);
        Stmt::Block(stmts)
    }

    /// Whether a tile with several turns of the innermost reduced axis written out would spill: places of a window that overlap from one
    /// accumulator to the next are loaded once for all of them, and stay in registers beside the accumulators. Without that, each is a
    /// memory operand of its multiply-add.
    fn window_spills(&self, job: &Job<'_>, accumulators: i64) -> bool {
        job.window > 0 && accumulators + job.window > self.unit.vector_registers
    }

    /// Adds up the lanes of each accumulator into one scalar each: halves of vectors as long as there are, then single lanes.
    fn combine_lanes(&mut self, job: &Job<'_>, slot: &Scalar, sums: BufferId, lanes: i64, n: i64) -> (BufferId, Stmt) {
        let dtype = job.reduction.value.dtype();
        let combine = job.reduction.combine;
        let (mut from, mut width) = (sums, lanes);
        let mut stmts = Vec::new();
        while width % 2 == 0 && width > 2 {
            let half = width / 2;
            let (to, lane) = (self.register(dtype, n * half), self.fresh());
            let part = |first: i64| Scalar::read(from, vec![slot.clone() * width + Scalar::axis(lane) + first], dtype);
            let value = combined(combine, part(0), part(half));
            let store = Stmt::Store { buffer: to, index: slot.clone() * half + Scalar::axis(lane), value };
            stmts.push(for_(lane, half, LoopKind::Vector, store));
            (from, width) = (to, half);
        }
        let one = self.register(dtype, n);
        let parts = (0..width).map(|l| Scalar::read(from, vec![slot.clone() * width + l], dtype));
        let value = parts.reduce(|a, b| combined(combine, a, b)).expect("there is a lane");
        stmts.push(Stmt::Store { buffer: one, index: slot.clone(), value });
        (one, Stmt::Block(stmts))
    }

    /// The loops over reduced axes, of the taps of windows over those that count; of the innermost, at most so many turns are written out.
    /// `around` is what becomes of all loops within so many outer ones. The innermost one is there twice where it is `guarded`: with the condition, and
    /// without. The body takes a loop whose turns are to be written out within it, where it is better there, and whether the condition holds.
    #[expect(clippy::too_many_arguments, reason = "all that decides how loops go")]
    fn combine_loops(
        &mut self,
        job: &Job<'_>,
        axes: &[Axis],
        seen: &[Seen],
        most: i64,
        prefetch: Option<Slice>,
        written_out: &[WrittenOut],
        around: Option<(usize, &dyn Fn(Stmt) -> Stmt)>,
        guarded: Option<&Scalar>,
        body: impl Fn(&HashMap<AxisId, Scalar>, Option<Loop>, bool) -> Stmt,
    ) -> Stmt {
        let Some((last, outer)) = axes.split_last() else { return body(&HashMap::new(), None, true) };
        let names: Vec<AxisId> = seen.iter().map(|_| self.fresh()).collect();
        let outer_loop = |body: Stmt, a: &Axis| {
            if let Some((s, name)) = seen.iter().zip(&names).find(|(s, _)| s.axis() == a.id) {
                return s.loop_over(*name, body);
            }
            let extent = job.turns.all.get(&a.id).cloned().unwrap_or(Scalar::index(a.extent));
            run(a.id, extent, body)
        };
        let all_outer = |stmt: Stmt| {
            let (first, within) = outer.split_at(around.as_ref().map_or(0, |a| a.0));
            let stmt = within.iter().rev().fold(stmt, outer_loop);
            let stmt = match &around {
                Some((_, whole)) => whole(stmt),
                None => stmt,
            };
            first.iter().rev().fold(stmt, outer_loop)
        };
        if self.changes(last.id) {
            let fits = |w: &&WrittenOut| w.factor <= most;
            let found = written_out.iter().find(fits).or(written_out.last()).expect("loops have their numbers");
            let stmt = self.changing_loop(last, found, |with| body(with, None, true));
            return all_outer(stmt);
        }
        let fits = |f: &i64| last.extent % f == 0 && *f <= most;
        let factor = FACTORS.into_iter().find(fits).unwrap_or(1);
        let mut innermost = |is_seen: bool, prefetch: Option<Slice>| {
            let (turn, part) = (self.fresh(), self.fresh());
            let at = Scalar::axis(turn) * factor + Scalar::axis(part);
            let with = HashMap::from_iter([(last.id, at)]);
            let mut stmt = match factor == last.extent && shares_bytes(&job.reduction.value, last) {
                true => body(&with, Some(Loop { var: part, extent: factor }), is_seen),
                false => for_(part, factor, LoopKind::Unrolled, body(&with, None, is_seen)),
            };
            if let Some(prefetch) = prefetch {
                let turns = outer.iter().map(|a| a.extent).product::<i64>() * (last.extent / factor);
                let before = outer.iter().fold(Scalar::index(0), |n, a| n * a.extent + Scalar::axis(a.id));
                let turn = before * (last.extent / factor) + Scalar::axis(turn);
                stmt = prefetch.before(turn, turns, factor, stmt);
            }
            match last.extent / factor {
                1 => bind(turn, Scalar::index(0), stmt),
                n => for_(turn, n, LoopKind::Serial, stmt),
            }
        };
        let inside = innermost(true, prefetch);
        all_outer(match guarded {
            None => inside,
            Some(cond) => {
                let otherwise = Some(Box::new(innermost(false, None)));
                Stmt::If { cond: cond.clone(), then: Box::new(inside), otherwise }
            }
        })
    }
}

/// The same statement with so many of its outermost unrolled loops run instead of written out.
fn in_loops(s: Stmt, levels: usize) -> Stmt {
    match s {
        Stmt::For { var, extent, body, .. } if levels > 0 => {
            Stmt::For { var, extent, kind: LoopKind::Serial, body: Box::new(in_loops(*body, levels - 1)) }
        }
        s => s,
    }
}

/// What an epilogue adds to a sum of `int32` before anything else: the sum starts from it, and the epilogue goes without. Of integers, that is
/// the same sum.
fn started(value: &mut Scalar, sum: AxisId, r: &Reduction, tiling: &Tiling) -> Option<Scalar> {
    if r.combine != Combine::Sum || r.value.dtype() != DType::I32 || tiling.across || tiling.matrix.is_some() {
        return None;
    }
    let is_sum = |s: &Scalar| matches!(s.kind(), ScalarKind::Axis(a) if *a == sum);
    let (mut uses, mut found) = (0, None);
    for_each_node(value, &mut |n| {
        let ScalarKind::Binary(op, a, b) = n.kind() else {
            uses += n.operands().iter().filter(|o| is_sum(o)).count();
            return;
        };
        uses += usize::from(is_sum(a)) + usize::from(is_sum(b));
        let other = if is_sum(a) { b } else { a };
        if *op == BinOp::Add && (is_sum(a) || is_sum(b)) && matches!(other.kind(), ScalarKind::Read(..)) {
            found = Some((n.clone(), other.clone()));
        }
    });
    let (started, start) = found.filter(|_| uses == 1)?;
    *value = Substitution::new(|_| None).and(&started, Scalar::bound(sum, DType::I32)).apply(value);
    Some(start)
}
