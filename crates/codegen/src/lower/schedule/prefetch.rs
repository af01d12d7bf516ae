//! Weights are prefetched: while the tiles that share one panel of an operand compute, the next panel comes into the second cache.
//!
//! The first tile that meets a panel reads it as fast as it computes, which is faster than memory gives it; all later ones find it
//! near. So each tile asks for its share of what the loop's next turn will read, evenly over its own.

use super::{
    Access, Emitter,
    cache::TileBlocks,
    for_,
    tiling::{Piece, Place},
};
use crate::{
    loops::{AxisId, BinOp, BufferId, LoopKind, Scalar, Stmt, TensorId},
    lower::{
        affine::{Affine, replace_axes},
        normalize::Reduction,
    },
};

/// Turns of a loop for each line: asking for the same one more often costs more than it brings.
const TURNS_PER_LINE: i64 = 4;
/// Where how many tiles share a panel changes, at least so many are reckoned with.
const TILES: i64 = 2;

/// Where how many lines a turn asks for changes, whether there are more than so many is asked each turn.
const FEW_LINES: i64 = 2;

/// An operand whose panels, one for each turn of a loop, are met by several tiles.
#[derive(Clone, Debug)]
pub(super) struct Prefetch {
    buffer: BufferId,
    offset: Affine,
    /// The loops around the panel, that one last.
    around: Vec<AxisId>,
    /// The loops within, each with its number of turns.
    within: Vec<(AxisId, i64)>,
    /// The numbers of turns, and what tiles ask for, where how many turns some of them have changes from size to size.
    changing: Option<Changing>,
    panel: Panel,
    /// Where the last panel of a part of a sum is followed by the first one of the next: how many places there are along the last loop, and how far
    /// from there that one begins.
    next_part: Option<(i64, i64)>,
    /// The axis within whose tiles go in blocks, and the number of the block's first one.
    block: Option<(AxisId, Scalar)>,
    /// Bytes of an element.
    bytes: i64,
    /// Bytes of a cache line.
    line: i64,
}

/// How what a turn of a loop reads lies, in elements.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Panel {
    /// Everything lies together.
    Dense,
    /// Columns of a matrix of so many rows.
    Columns { rows: i64, apart: i64 },
    /// A part of a row for each place of the turn, as where sums are computed in parts.
    Rows { width: i64, apart: i64 },
}

/// What of a prefetch changes from size to size.
#[derive(Clone, Debug)]
struct Changing {
    turns: Vec<Scalar>,
    /// By the step along the last loop around the panel.
    shares: Vec<Share>,
}

/// What a tile asks for.
#[derive(Clone, Debug)]
struct Share {
    step: i64,
    elements: Scalar,
    /// By how many turns of the reduction are written out: what each turn of the loop asks for.
    each: Vec<(i64, Each)>,
}

/// What each turn of the loop asks for: elements, and how many lines that is.
#[derive(Clone, Debug)]
struct Each {
    elements: Scalar,
    /// As many as there may be at any size.
    most: i64,
    /// As many as there are, where that may be more than [`FEW_LINES`].
    lines: Option<Scalar>,
}

/// What one tile asks for.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    buffer: BufferId,
    /// The first element; within the panel where its rows lie apart.
    first: Scalar,
    elements: i64,
    rows: Option<Rows>,
    /// Where how many elements that is changes from size to size: what a turn asks for, by how many turns are written out.
    each: Option<Vec<(i64, Each)>>,
    /// Elements that a processor fetches at once.
    line: i64,
    /// A loop variable for lines.
    var: AxisId,
}

/// Rows of a panel that lie apart.
#[derive(Clone, Debug)]
struct Rows {
    /// The first one's first element.
    start: Scalar,
    /// Elements of each.
    width: i64,
    /// Elements from one to the next.
    apart: i64,
}

fn turns(pieces: &[Piece]) -> i64 {
    pieces.iter().map(|p| p.count).sum()
}

impl Emitter {
    /// The operand to prefetch in these loops, outermost first: the largest of which each turn of one loop reads a dense panel, or columns of a
    /// matrix, that loops within read again. `combined` tells how many turns the loops over reduced axes have, by how many are written out.
    pub(super) fn prefetch(
        &mut self,
        loops: &[(AxisId, Vec<Piece>)],
        reduction: &Reduction,
        combined: &[(i64, i64)],
        blocks: Option<&TileBlocks>,
    ) -> Option<Prefetch> {
        let (found, at, panel) = self.decide(|e| {
            // A smaller operand stays in the first cache anyhow.
            let least = e.unit.timing.l1.bytes * 2 / 3;
            let accesses = e.accesses(&reduction.value);
            let candidates = accesses.iter().enumerate();
            let candidates =
                candidates.filter_map(|(i, a)| Some((i, a, a.tensor.filter(|&t| e.bytes_of(t) >= least)?)));
            let panels = candidates.filter_map(|(i, a, t)| Some((i, a, e.panels(loops, a, t, reduction)?)));
            panels
                .max_by_key(|&(_, a, _)| a.tensor.map_or(0, |t| e.bytes_of(t)))
                .map(|(i, _, (at, panel))| (i, at, panel))
        })?;
        let accesses = self.accesses(&reduction.value);
        let access = accesses.get(found).and_then(|a| Some((a, a.tensor?, a.offset.clone()?)));
        let Some((_, tensor, offset)) = access.filter(|_| at < loops.len()) else {
            self.diverge();
            return None;
        };
        let (around, within) = loops.split_at(at + 1);
        self.same((tensor, at, offset.base, &offset.terms));
        let mut found = Prefetch {
            buffer: self.buffer_of[&tensor],
            offset,
            around: around.iter().map(|l| l.0).collect(),
            within: within
                .iter()
                .map(|l| (l.0, blocks.filter(|b| b.axis == l.0).map_or(turns(&l.1), |b| b.tiles)))
                .collect(),
            block: blocks.map(|b| (b.axis, b.first())),
            changing: None,
            panel,
            next_part: None,
            bytes: self.group.decl(tensor).dtype.bytes() as i64,
            line: self.unit.timing.l2.line,
        };
        let alone = around.iter().rev().skip(1).all(|l| turns(&l.1) == 1);
        if let (true, true, Some(summed), Some((last, pieces))) =
            (reduction.followed, alone, reduction.axes.first(), around.last())
        {
            let places = pieces.iter().map(Piece::elements).sum();
            let next = found.offset.coeff(summed.id) * summed.extent - found.offset.coeff(*last) * places;
            found.next_part = Some((places, next));
        }
        if within.iter().any(|l| self.changes(l.0)) {
            let turns = found
                .within
                .iter()
                .map(|&(axis, n)| if self.changes(axis) { self.number(n) } else { Scalar::index(n) })
                .collect();
            let mut steps: Vec<i64> = around.last().iter().flat_map(|l| &l.1).map(Piece::step).collect();
            steps.dedup();
            let mut share = |step: i64| {
                let elements = found.elements(step);
                let each = |&(factor, turns): &(i64, i64)| {
                    let most = found.most_lines(step, turns);
                    let (elements, line) = (found.each(elements, turns, most), found.line / found.bytes);
                    let lines = (most > FEW_LINES).then(|| self.number((elements + line - 1) / line));
                    (factor, Each { elements: self.number(elements), most, lines })
                };
                Share { step, each: combined.iter().map(each).collect(), elements: self.number(elements) }
            };
            let shares = steps.into_iter().map(&mut share).collect();
            found.changing = Some(Changing { turns, shares });
        }
        Some(found)
    }

    /// The innermost loop each of whose turns reads a panel of the operand, that loops within read several times.
    fn panels(
        &self,
        loops: &[(AxisId, Vec<Piece>)],
        access: &Access,
        tensor: TensorId,
        reduction: &Reduction,
    ) -> Option<(usize, Panel)> {
        let offset = access.offset.as_ref()?;
        let again = loops.iter().rposition(|l| offset.coeff(l.0) == 0 && turns(&l.1) > 1)?;
        let at = loops[..again].iter().rposition(|l| offset.coeff(l.0) != 0 && turns(&l.1) > 1)?;
        // Of panels that lie elsewhere at each size there is nothing to say.
        if loops[..=at].iter().any(|l| offset.coeff(l.0) != 0 && self.changes(l.0)) {
            return None;
        }
        let step = loops[at].1.iter().map(Piece::step).max()?;
        let stride = offset.coeff(loops[at].0);
        let inner = loops[at + 1..].iter().map(|l| (l.0, l.1.iter().map(|p| p.count * p.step()).sum::<i64>()));
        let reduced = reduction.axes.iter().map(|a| (a.id, a.extent));
        let mut places = 1;
        let mut reach = 1;
        let mut apart = i64::MAX;
        for (axis, extent) in inner.chain(reduced) {
            let stride = offset.coeff(axis);
            if stride != 0 {
                places *= extent;
                reach += stride.abs() * (extent - 1);
                apart = apart.min(stride.abs());
            }
        }
        let bytes = self.group.decl(tensor).dtype.bytes() as i64;
        // A panel and the one before it stay in the second cache together.
        let fits = |elements: i64| elements * bytes <= self.unit.timing.l2.bytes * 5 / 8;
        if places == stride && reach == stride {
            return fits(step * stride).then_some((at, Panel::Dense));
        }
        let inner = loops[at + 1..].iter().map(|l| l.0).chain(reduction.axes.iter().map(|a| a.id));
        let same = !inner.into_iter().any(|axis| offset.coeff(axis) != 0 && self.changes(axis));
        if places == reach && places < stride && same {
            return fits(step * places).then_some((at, Panel::Rows { width: places, apart: stride }));
        }
        // Columns of a matrix whose rows lie evenly apart: processors find such lines by themselves no better than lines anywhere.
        let lines = step * bytes % self.unit.timing.l2.line == 0;
        let even = stride == 1 && apart > step && apart < i64::MAX && reach == (places - 1) * apart + 1;
        (lines && even && fits(step * places)).then_some((at, Panel::Columns { rows: places, apart }))
    }
}

impl Prefetch {
    /// Whether how many turns loops around tiles have changes from size to size.
    pub(super) fn changes(&self) -> bool {
        self.changing.is_some()
    }

    /// Elements that a tile asks for, where so many places are between panels.
    fn elements(&self, step: i64) -> i64 {
        let tiles = self.within.iter().map(|w| w.1).product::<i64>().max(1);
        let line = self.line / self.bytes;
        (self.panel(step) + tiles * line - 1) / (tiles * line) * line
    }

    /// Elements of a panel, where so many places are.
    fn panel(&self, step: i64) -> i64 {
        match self.panel {
            Panel::Dense => step * self.around.last().map_or(0, |a| self.offset.coeff(*a)),
            Panel::Columns { rows, .. } => rows * step,
            Panel::Rows { width, .. } => width * step,
        }
    }

    /// How many lines each turn of so many asks for at most, where how many tiles there are changes: as many as where two share a panel.
    fn most_lines(&self, step: i64, turns: i64) -> i64 {
        let by_turn = TILES * turns * self.line / self.bytes;
        ((self.panel(step) + by_turn - 1) / by_turn).max(1)
    }

    /// How many elements each turn of so many asks for, of so many lines at most.
    fn each(&self, elements: i64, turns: i64, lines: i64) -> i64 {
        let line = self.line / self.bytes;
        ((elements + turns - 1) / turns).max(line / TURNS_PER_LINE).min(lines * line)
    }

    /// The share of a tile at these places.
    pub(super) fn slice(&self, places: &[Place], var: AxisId) -> Slice {
        let place = |axis: AxisId| places.iter().find(|p| p.axis == axis);
        let step = self.around.last().and_then(|a| place(*a)).map_or(0, |p| p.piece.step());
        let last = self.around.len() - 1;
        let with = self.offset.terms.iter().map(|&(axis, _)| {
            let at = match self.around.iter().position(|a| *a == axis) {
                Some(i) if i == last => place(axis).map(|p| p.at.clone() + step),
                Some(_) => place(axis).map(|p| p.at.clone()),
                None => None,
            };
            (axis, at.unwrap_or(Scalar::index(0)))
        });
        let next = replace_axes(&self.offset.to_scalar(), &with.collect());
        let at_last = || Some(place(*self.around.last()?)?.at.clone() + step);
        let next = match (self.next_part, at_last()) {
            (Some((places, further)), Some(at)) => next + at.floor_div(places) * further,
            _ => next,
        };
        let turns = |i: usize| match &self.changing {
            Some(changing) => changing.turns[i].clone(),
            None => Scalar::index(self.within[i].1),
        };
        let tile = self.within.iter().enumerate().fold(Scalar::index(0), |n, (i, &(axis, _))| match place(axis) {
            Some(p) => {
                let tile = n * turns(i) + p.turn.clone() + p.before.clone();
                match &self.block {
                    Some((of, first)) if *of == axis => tile - first.clone(),
                    _ => tile,
                }
            }
            None => n * turns(i),
        });
        let line = self.line / self.bytes;
        let elements = self.elements(step);
        let share = self.changing.as_ref().and_then(|c| c.shares.iter().find(|s| s.step == step));
        let first = tile * share.map_or(Scalar::index(elements), |s| s.elements.clone());
        let (first, rows) = match self.panel {
            Panel::Dense => (next + first, None),
            Panel::Columns { apart, .. } => (first, Some(Rows { start: next, width: step, apart })),
            Panel::Rows { width, apart } => (first, Some(Rows { start: next, width, apart })),
        };
        Slice { buffer: self.buffer, first, elements, rows, each: share.map(|s| s.each.clone()), line, var }
    }
}

impl Slice {
    /// The statement of a turn of so many, `factor` of them written out, with what the turn asks for before it.
    pub(super) fn before(self, turn: Scalar, turns: i64, factor: i64, body: Stmt) -> Stmt {
        let Slice { buffer, first, elements, rows, each, line, var } = self;
        let known = ((elements + turns - 1) / turns).max(line / TURNS_PER_LINE);
        let changing = each.map(|e| e.into_iter().find(|e| e.0 == factor).expect("all factors were looked at").1);
        let known = || Each { elements: Scalar::index(known), most: (known + line - 1) / line, lines: None };
        let Each { elements, most, lines } = changing.unwrap_or_else(known);
        let at = first + turn * elements;
        let fetch = |at: Scalar| {
            let index = match &rows {
                None => at,
                Some(r) => r.start.clone() + at.clone().floor_div(r.width) * r.apart + at.floor_mod(r.width),
            };
            Stmt::Prefetch { buffer, index }
        };
        let several = |from: i64, n: i64| match n {
            1 => fetch(at.clone() + from * line),
            n => for_(var, n, LoopKind::Unrolled, fetch(at.clone() + (Scalar::axis(var) + from) * line)),
        };
        let all = match lines {
            None => vec![several(0, most), body],
            // To ask for the same lines again takes buffers from what is read.
            Some(lines) => {
                let cond = Scalar::binary(BinOp::Lt, Scalar::index(FEW_LINES), lines);
                let more = Box::new(several(FEW_LINES, most - FEW_LINES));
                vec![several(0, FEW_LINES), Stmt::If { cond, then: more, otherwise: None }, body]
            }
        };
        Stmt::Block(all)
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::{HashMap, HashSet};

    use super::*;

    /// The elements that a turn of so many asks for, `factor` of them written out.
    fn asked_in(slice: Slice, now: i64, turns: i64, factor: i64) -> Vec<i64> {
        let (turn, line) = (AxisId(9), slice.var);
        let (mut lines, mut fetched) = (1, None);
        slice.before(Scalar::axis(turn), turns, factor, Stmt::Block(vec![])).for_each(&mut |s| match s {
            Stmt::For { extent, .. } => lines = extent.as_int().expect("a number of lines"),
            Stmt::Prefetch { index, .. } => fetched = Some(index.clone()),
            _ => {}
        });
        let index = fetched.expect("every turn asks for something");
        let at = |l: i64| {
            let with = HashMap::from_iter([(turn, Scalar::index(now)), (line, Scalar::index(l))]);
            replace_axes(&index, &with).as_int().expect("nothing else is variable")
        };
        (0..lines).map(at).collect()
    }

    /// A tile of so many places of an axis, at that place and in that turn.
    fn tile_at(axis: AxisId, at: i64, size: i64, turn: i64) -> Place {
        let [at, turn] = [at, turn].map(Scalar::index);
        Place {
            axis,
            at,
            start: Scalar::index(0),
            turn,
            before: Scalar::index(0),
            piece: Piece::of(1, size),
            named: None,
        }
    }

    /// Sixteen tiles meet a panel of 768 rows of 32 floats: together they ask for every line of the panel that comes after.
    #[test]
    fn tiles_share_out_the_next_panel() {
        let [panels, rows, row, line] = [0, 1, 2, 3].map(AxisId);
        let panel = 768 * 32;
        let offset = Affine { base: 0, terms: vec![(panels, panel / 2), (row, 16)] };
        let prefetch = Prefetch {
            buffer: TensorId(1),
            offset,
            around: vec![panels],
            within: vec![(rows, 16)],
            changing: None,
            panel: Panel::Dense,
            next_part: None,
            block: None,
            bytes: 4,
            line: 64,
        };
        let place = |axis, size, before: i64| Place {
            axis,
            at: Scalar::index(before * size),
            start: Scalar::index(0),
            turn: Scalar::index(before),
            before: Scalar::index(0),
            piece: Piece::of(16, size),
            named: None,
        };
        for turns in [1, 96, 192, 768] {
            let mut asked = HashSet::new();
            for (tile, now) in (0..16).flat_map(|t| (0..turns).map(move |n| (t, n))) {
                let slice = prefetch.slice(&[place(panels, 2, 5), place(rows, 8, tile)], line);
                asked.extend(asked_in(slice, now, turns, 1).into_iter().map(|at| at / 16));
            }
            let next = 6 * panel / 16..7 * panel / 16;
            assert!(next.clone().all(|l| asked.contains(&l)), "{turns} turns");
        }
    }

    /// Columns of a matrix of 1000 rows of 440 floats: eight tiles ask for every line of the next 48.
    #[test]
    fn columns_are_asked_for_row_by_row() {
        let [columns, rows, k, line] = [0, 1, 2, 3].map(AxisId);
        let prefetch = Prefetch {
            buffer: TensorId(1),
            offset: Affine { base: 0, terms: vec![(columns, 1), (k, 440)] },
            around: vec![columns],
            within: vec![(rows, 8)],
            changing: None,
            panel: Panel::Columns { rows: 1000, apart: 440 },
            next_part: None,
            block: None,
            bytes: 4,
            line: 64,
        };
        let mut asked = HashSet::new();
        for (tile, now) in (0..8).flat_map(|t| (0..250).map(move |n| (t, n))) {
            let slice = prefetch.slice(&[tile_at(columns, 96, 48, 2), tile_at(rows, tile * 7, 7, tile)], line);
            asked.extend(asked_in(slice, now, 250, 4));
        }
        let wanted = (0..1000).flat_map(|row| (0..3).map(move |l| row * 440 + 144 + l * 16));
        assert!(wanted.clone().all(|at| (0..16).any(|shift| asked.contains(&(at + shift)))));
        assert!(asked.iter().all(|at| (144..192).contains(&(at % 440)) || *at >= 440_000));
    }

    /// A sum over 768 in parts of 96, of 64 rows of which eight tiles read two at a time: after the last two come the first two of the next part.
    #[test]
    fn the_next_part_is_asked_for_after_the_last_rows() {
        let [columns, rows, k, line] = [0, 1, 2, 3].map(AxisId);
        let prefetch = Prefetch {
            buffer: TensorId(1),
            offset: Affine { base: 0, terms: vec![(columns, 768), (k, 1)] },
            around: vec![columns],
            within: vec![(rows, 8)],
            changing: None,
            panel: Panel::Rows { width: 96, apart: 768 },
            next_part: Some((64, 96 - 64 * 768)),
            block: None,
            bytes: 4,
            line: 64,
        };
        for (now, next) in [(0, 2 * 768), (60, 62 * 768), (62, 96)] {
            let mut asked = HashSet::new();
            for (tile, turn) in (0..8).flat_map(|t| (0..24).map(move |n| (t, n))) {
                let slice =
                    prefetch.slice(&[tile_at(columns, now, 2, now / 2), tile_at(rows, tile * 7, 7, tile)], line);
                asked.extend(asked_in(slice, turn, 24, 4));
            }
            let wanted = (0..2).flat_map(|row| (0..6).map(move |l| next + row * 768 + l * 16));
            assert!(wanted.clone().all(|at| (0..16).any(|shift| asked.contains(&(at + shift)))), "after {now}");
        }
    }

    /// As many lines are asked for each turn as it takes to have all of the next panel, where at least two tiles share it.
    #[test]
    fn few_tiles_ask_for_all_of_a_panel() {
        let (panel, rows) = (AxisId(0), AxisId(1));
        let of = |tiles: i64| Prefetch {
            buffer: TensorId(1),
            offset: Affine { base: 0, terms: vec![(panel, 768)] },
            around: vec![panel],
            within: vec![(rows, tiles)],
            changing: None,
            panel: Panel::Dense,
            next_part: None,
            block: None,
            bytes: 4,
            line: 64,
        };
        for (tiles, turns) in [(2, 256), (3, 256), (4, 768), (11, 256), (2, 768)] {
            let prefetch = of(tiles);
            let lines = prefetch.most_lines(32, turns);
            let each = prefetch.each(prefetch.elements(32), turns, lines);
            assert!(each * turns * tiles >= 768 * 32, "{tiles} tiles of {turns} turns");
            assert!(lines <= 3, "{lines} lines a turn");
        }
    }
}
