//! The numbers of a reduction that change from size to size: where pieces begin, how often loops around tiles and within them run. All tiles
//! share them.

use hashbrown::HashMap;

use super::{
    Access, Emitter, for_,
    prefetch::Prefetch,
    tiling::{Cut, Piece, Tiling, WrittenOut},
};
use crate::{
    loops::{Axis, AxisId, LoopKind, Scalar, ScalarKind, Stmt},
    lower::{
        affine::{Substitution, in_order},
        normalize::Reduction,
    },
};

/// How many turns of the innermost loop over a reduced axis may be written out, and of one whose extent changes from size to size.
pub(super) const FACTORS: [i64; 7] = [8, 7, 6, 5, 4, 3, 2];
const CHANGING_FACTORS: [i64; 3] = [4, 2, 1];

/// Multiply-adds written out per turn of the innermost reduction loop, at most.
const BODY: i64 = 96;
/// The same where each is of several numbers together: with fewer turns, tiles go in and out of registers more often.
const BODY_DOT: i64 = 112;
/// The same in tiles of what is left of an extent that changes from size to size, of which there are one or two: to wait for sums that
/// depend on each other takes longer than the turns of a loop, and code for all such tiles takes long to make.
const BODY_REST: i64 = 8;
/// The same of those with at least [`ENOUGH`] accumulators, which small images have all along: four turns of the loop over channels, or two of 24 accumulators.
const BODY_LARGE_REST: i64 = 64;
/// Accumulators of six places by two vectors.
const ENOUGH: i64 = 12;

/// How many multiply-adds are written out in a turn of the innermost loop over reduced axes, at most: of a tile with so many accumulators, each of several
/// numbers together or not, and of whole tiles or of what is left.
pub(super) fn most_written_out(accumulators: i64, is_dot: bool, is_rest: bool) -> i64 {
    match is_rest {
        true if accumulators >= ENOUGH => BODY_LARGE_REST,
        true => BODY_REST,
        false if is_dot => BODY_DOT,
        false => BODY,
    }
}

/// How loops over reduced axes go whose extents change from size to size.
#[derive(Default)]
pub(super) struct Turns {
    /// By axis, how many turns there are.
    pub(super) all: HashMap<AxisId, Scalar>,
    /// The innermost loop, by how many turns are written out.
    pub(super) innermost: Vec<WrittenOut>,
    /// The first element of those that do not fill a vector, and the loop over these.
    pub(super) tail: Option<(Scalar, Vec<WrittenOut>)>,
}

impl Emitter {
    /// The numbers of all pieces of output axes, which one loop goes through `at_once` or not.
    pub(super) fn cuts(
        &mut self,
        pieces: &[(AxisId, Vec<Piece>)],
        prefetch: Option<&Prefetch>,
        at_once: bool,
    ) -> HashMap<AxisId, Vec<Cut>> {
        let counts = at_once || prefetch.is_some_and(Prefetch::changes);
        let mut number = |n: i64, changes: bool| if changes { self.number(n) } else { Scalar::index(n) };
        let mut cut = |p: &Piece| Cut {
            start: number(p.start, p.moves),
            turns: number(p.count, p.changes),
            before: number(p.before, p.changes && counts),
            between: p.ends.map(|ends| number(ends.between, true)),
        };
        pieces.iter().map(|(axis, pieces)| (*axis, pieces.iter().map(&mut cut).collect())).collect()
    }

    /// Whether tiles prefetch, and how many turns loops over reduced axes then have, by how many are written out.
    pub(super) fn turns_combined(&self, r: &Reduction, tiling: &Tiling) -> (bool, Vec<(i64, i64)>) {
        if r.axes.iter().any(|a| self.changes(a.id)) {
            return (false, Vec::new());
        }
        let elements = r.axes.iter().map(|a| a.extent).product::<i64>() / tiling.dot.map_or(1, |d| d.1);
        let last = innermost(r, tiling).map_or(1, |a| a.extent);
        let turns = FACTORS.into_iter().chain([1]).filter(|f| last % f == 0).map(|f| (f, elements / f)).collect();
        (true, turns)
    }

    /// The numbers of loops over reduced axes whose extents change.
    pub(super) fn turns_of(&mut self, r: &Reduction, tiling: &Tiling) -> Turns {
        let changing: Vec<Axis> = r.axes.iter().filter(|a| self.changes(a.id)).copied().collect();
        let mut turns = Turns::default();
        for a in changing.iter().filter(|a| !tiling.across || a.id != tiling.vector) {
            turns.all.insert(a.id, self.number(a.extent));
        }
        match changing.iter().find(|a| tiling.across && a.id == tiling.vector) {
            Some(vector) => {
                let whole = vector.extent / tiling.lanes;
                turns.innermost = self.written_out(whole);
                let done = self.number(whole * tiling.lanes);
                turns.tail = Some((done, self.written_out(vector.extent - whole * tiling.lanes)));
            }
            None if !tiling.across => {
                if let Some(last) = innermost(r, tiling).filter(|a| self.changes(a.id)) {
                    turns.innermost = self.written_out(last.extent);
                }
            }
            None => {}
        }
        turns
    }

    /// A loop of so many turns, by how many are written out.
    fn written_out(&mut self, extent: i64) -> Vec<WrittenOut> {
        let mut out = |factor: i64| {
            let whole = extent / factor;
            let mut rest = || (self.number(whole * factor), self.number(extent - whole * factor));
            let rest = (factor > 1).then(&mut rest);
            WrittenOut { factor, whole: self.number(whole), rest }
        };
        CHANGING_FACTORS.map(&mut out).into()
    }

    /// The loop over an axis whose extent changes from size to size: some turns written out, and what is left one by one.
    pub(super) fn changing_loop(
        &mut self,
        axis: &Axis,
        written_out: &WrittenOut,
        body: impl Fn(&HashMap<AxisId, Scalar>) -> Stmt,
    ) -> Stmt {
        let WrittenOut { factor, whole, rest } = written_out;
        let (turn, part, var) = (self.fresh(), self.fresh(), self.fresh());
        let at = Scalar::axis(turn) * *factor + Scalar::axis(part);
        let stmt = for_(part, *factor, LoopKind::Unrolled, body(&HashMap::from_iter([(axis.id, at)])));
        let stmt = run(turn, whole.clone(), stmt);
        let Some((done, turns)) = rest else { return stmt };
        let one = body(&HashMap::from_iter([(axis.id, done.clone() + Scalar::axis(var))]));
        Stmt::Block(vec![stmt, run(var, turns.clone(), one)])
    }
}

/// A loop of so many turns.
pub(super) fn run(var: AxisId, turns: Scalar, body: Stmt) -> Stmt {
    Stmt::For { var, extent: turns, kind: LoopKind::Serial, body: Box::new(body) }
}

/// A value over flat buffers with axes replaced, and its places put in order.
pub(super) fn at_places(value: &Scalar, with: &HashMap<AxisId, Scalar>) -> Scalar {
    let new = |s: &Scalar| match s.kind() {
        ScalarKind::Axis(a) => with.get(a).cloned(),
        ScalarKind::Read(b, place) => in_order(&place[0]).map(|at| Scalar::read(*b, vec![at], s.dtype())),
        _ => None,
    };
    Substitution::new(new).apply(value)
}

/// The innermost loop over a reduced axis, where lanes are of an output's axis and several elements at once are one turn.
fn innermost(r: &Reduction, tiling: &Tiling) -> Option<Axis> {
    let turns = |a: &Axis| match tiling.dot {
        Some((dot, count)) if dot == a.id => Axis { extent: a.extent / count, ..*a },
        _ => *a,
    };
    let is_dot = |a: &Axis| tiling.dot.is_some_and(|d| d.0 == a.id);
    r.axes.iter().map(|a| (turns(a), is_dot(a))).rfind(|(a, dot)| !dot || a.extent > 1).map(|(a, _)| a)
}

/// Registers for places of a window that overlap from one accumulator to the next; 0 where none do.
pub(super) fn window(r: &Reduction, tiling: &Tiling, accesses: &[Access]) -> i64 {
    let is_dot = |a: &Axis| tiling.dot.is_some_and(|d| d.0 == a.id);
    let Some(last) = innermost(r, tiling).filter(|a| !is_dot(a)) else { return 0 };
    accesses.iter().filter_map(|a| places(a, last, &tiling.tiles)).max().unwrap_or(0)
}

/// How many different places a tile reads in all turns over the innermost reduced axis, where some are read by several accumulators.
pub(super) fn places(a: &Access, last: Axis, tiles: &[(AxisId, i64)]) -> Option<i64> {
    let offset = a.offset.as_ref()?;
    let step = offset.coeff(last.id);
    let mut all = 1;
    let mut overlaps = false;
    for &(axis, size) in tiles {
        match offset.coeff(axis) {
            0 => {}
            by if step != 0 && by % step == 0 && (by / step).abs() < last.extent => {
                overlaps |= size > 1;
                all *= (size - 1) * (by / step).abs() + last.extent;
            }
            _ => all *= size,
        }
    }
    overlaps.then_some(all)
}
