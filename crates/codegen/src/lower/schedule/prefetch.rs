//! Weights are prefetched: while the tiles that share one panel of an operand compute, the next panel comes into the second cache.
//!
//! The first tile that meets a panel reads it as fast as it computes, which is faster than memory gives it; all later ones find it
//! near. So each tile asks for its share of what the loop's next turn will read, evenly over its own.

use super::{
    Access, Emitter, for_,
    tiling::{Piece, Place},
};
use crate::{
    loops::{AxisId, BufferId, LoopKind, Scalar, Stmt, TensorId},
    lower::{
        affine::{Affine, replace_axes},
        normalize::Reduction,
    },
};

/// Turns of a loop for each line: asking for the same one more often costs more than it brings.
const TURNS_PER_LINE: i64 = 4;

/// An operand whose panels, one for each turn of a loop, are met by several tiles.
#[derive(Clone, Debug)]
pub(super) struct Prefetch {
    buffer: BufferId,
    offset: Affine,
    /// The loops around the panel, that one last.
    around: Vec<AxisId>,
    /// The loops within, each with its number of turns.
    within: Vec<(AxisId, i64)>,
    /// Whether how many turns some of them have changes from size to size.
    changes: bool,
    /// Bytes of an element.
    bytes: i64,
    /// Bytes of a cache line.
    line: i64,
}

/// What one tile asks for.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    buffer: BufferId,
    /// The first element.
    first: Scalar,
    elements: i64,
    /// Whether how many elements that is changes from size to size.
    changes: bool,
    /// Elements that a processor fetches at once.
    line: i64,
    /// A loop variable for lines.
    var: AxisId,
}

fn turns(pieces: &[Piece]) -> i64 {
    pieces.iter().map(|p| p.count).sum()
}

impl Emitter {
    /// The operand to prefetch in these loops, outermost first: the largest of which each turn of one loop reads a dense panel that
    /// loops within read again.
    pub(super) fn prefetch(
        &mut self,
        loops: &[(AxisId, Vec<Piece>)],
        accesses: &[Access],
        reduction: &Reduction,
    ) -> Option<Prefetch> {
        let size = |t: TensorId| {
            let decl = self.group.decl(t);
            decl.shape.iter().product::<i64>() * decl.dtype.bytes() as i64
        };
        // A smaller operand stays in the first cache anyhow.
        let least = self.unit.timing.l1.bytes * 2 / 3;
        let candidates = accesses.iter().enumerate();
        let candidates = candidates.filter_map(|(i, a)| Some((i, a, a.tensor.filter(|&t| size(t) >= least)?)));
        let panels = candidates.filter_map(|(i, a, t)| Some((i, a, self.panels(loops, a, t, reduction)?)));
        let found = panels.max_by_key(|&(_, a, _)| a.tensor.map_or(0, size)).map(|(i, _, at)| (i, at));
        let (found, at) = self.decide(|_| found)?;
        let access = accesses.get(found).and_then(|a| Some((a, a.tensor?, a.offset.clone()?)));
        let Some((_, tensor, offset)) = access.filter(|_| at < loops.len()) else {
            self.diverge();
            return None;
        };
        let (around, within) = loops.split_at(at + 1);
        Some(Prefetch {
            buffer: self.buffer_of[&tensor],
            offset,
            around: around.iter().map(|l| l.0).collect(),
            within: within.iter().map(|l| (l.0, turns(&l.1))).collect(),
            changes: within.iter().any(|l| self.changes(l.0)),
            bytes: self.group.decl(tensor).dtype.bytes() as i64,
            line: self.unit.timing.l2.line,
        })
    }

    /// The innermost loop each of whose turns reads a dense panel of the operand, that loops within read several times.
    fn panels(
        &self,
        loops: &[(AxisId, Vec<Piece>)],
        access: &Access,
        tensor: TensorId,
        reduction: &Reduction,
    ) -> Option<usize> {
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
        for (axis, extent) in inner.chain(reduced) {
            let stride = offset.coeff(axis);
            if stride != 0 {
                places *= extent;
                reach += stride.abs() * (extent - 1);
            }
        }
        let bytes = step * stride * self.group.decl(tensor).dtype.bytes() as i64;
        // A panel and the one before it stay in the second cache together.
        let largest = self.unit.timing.l2.bytes * 5 / 8;
        (places == stride && reach == stride && bytes <= largest).then_some(at)
    }
}

impl Prefetch {
    /// The share of a tile at these places. `number` makes an expression of what changes from size to size.
    pub(super) fn slice(&self, places: &[Place], var: AxisId, number: &mut dyn FnMut(i64) -> Scalar) -> Slice {
        let mut number = |n: i64| if self.changes { number(n) } else { Scalar::index(n) };
        let place = |axis: AxisId| places.iter().find(|p| p.axis == axis);
        let step = self.around.last().and_then(|a| place(*a)).map_or(0, |p| p.piece.step());
        let last = self.around.len() - 1;
        let with = self.offset.terms.iter().map(|&(axis, _)| {
            let at = match self.around.iter().position(|a| *a == axis) {
                Some(i) => place(axis).map(|p| if i == last { p.at.clone() + step } else { p.at.clone() }),
                None => None,
            };
            (axis, at.unwrap_or(Scalar::index(0)))
        });
        let next = replace_axes(&self.offset.to_scalar(), &with.collect());
        let tile = self.within.iter().fold(Scalar::index(0), |n, &(axis, turns)| match place(axis) {
            Some(p) => n * number(turns) + p.turn.clone() + number(p.piece.before),
            None => n * number(turns),
        });
        let tiles = self.within.iter().map(|w| w.1).product::<i64>().max(1);
        let line = self.line / self.bytes;
        let panel = step * self.around.last().map_or(0, |a| self.offset.coeff(*a));
        let elements = (panel + tiles * line - 1) / (tiles * line) * line;
        let first = next + tile * number(elements);
        Slice { buffer: self.buffer, first, elements, changes: self.changes, line, var }
    }
}

impl Slice {
    /// The statement of a turn of so many, with what the turn asks for before it.
    pub(super) fn before(self, turn: Scalar, turns: i64, body: Stmt, number: &mut dyn FnMut(i64) -> Scalar) -> Stmt {
        let Slice { buffer, first, elements, changes, line, var } = self;
        let each = ((elements + turns - 1) / turns).max(line / TURNS_PER_LINE);
        // Where it changes how much that is, a line at most: the statement is the same at all sizes.
        let each = if changes { each.min(line) } else { each };
        let lines = (each + line - 1) / line;
        let at = first + turn * if changes { number(each) } else { Scalar::index(each) };
        let fetch = match lines {
            1 => Stmt::Prefetch { buffer, index: at },
            n => {
                let fetch = Stmt::Prefetch { buffer, index: at + Scalar::axis(var) * line };
                for_(var, n, LoopKind::Unrolled, fetch)
            }
        };
        Stmt::Block(vec![fetch, body])
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::{HashMap, HashSet};

    use super::*;

    /// Sixteen tiles meet a panel of 768 rows of 32 floats: together they ask for every line of the panel that comes after.
    #[test]
    fn tiles_share_out_the_next_panel() {
        let [panels, rows, row, line, turn] = [0, 1, 2, 3, 4].map(AxisId);
        let panel = 768 * 32;
        let offset = Affine { base: 0, terms: vec![(panels, panel / 2), (row, 16)] };
        let prefetch = Prefetch {
            buffer: TensorId(1),
            offset,
            around: vec![panels],
            within: vec![(rows, 16)],
            changes: false,
            bytes: 4,
            line: 64,
        };
        let place = |axis, size, before: i64| Place {
            axis,
            at: Scalar::index(before * size),
            turn: Scalar::index(before),
            piece: Piece::of(16, size),
        };
        for turns in [1, 96, 192, 768] {
            let mut asked = HashSet::new();
            for (tile, now) in (0..16).flat_map(|t| (0..turns).map(move |n| (t, n))) {
                let slice = prefetch.slice(&[place(panels, 2, 5), place(rows, 8, tile)], line, &mut Scalar::index);
                let (mut lines, mut fetched) = (1, None);
                let nothing = Stmt::Block(vec![]);
                slice.before(Scalar::axis(turn), turns, nothing, &mut Scalar::index).for_each(&mut |s| match s {
                    Stmt::For { extent, .. } => lines = extent.as_int().expect("a number of lines"),
                    Stmt::Prefetch { index, .. } => fetched = Some(index.clone()),
                    _ => {}
                });
                let index = fetched.expect("every turn asks for something");
                asked.extend((0..lines).map(|l| {
                    let with = HashMap::from_iter([(turn, Scalar::index(now)), (line, Scalar::index(l))]);
                    replace_axes(&index, &with).as_int().expect("nothing else is variable") / 16
                }));
            }
            let next = 6 * panel / 16..7 * panel / 16;
            assert!(next.clone().all(|l| asked.contains(&l)), "{turns} turns");
        }
    }
}
