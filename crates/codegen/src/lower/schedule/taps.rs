//! Taps of windows that see nothing but padding are left out.
//!
//! Where an operand is read under the condition that an index of it is in range, and counts as 0 elsewhere, the loop over the taps goes through
//! those for which it is: from the first such tap to the last one, at each place of results. Along an axis of which a register tile has several
//! places, tiles are cut where the taps that count change, so that all places of a tile have the same.

use hashbrown::HashMap;

use super::{
    Emitter, bind,
    conditions::parts_of,
    for_,
    pieces::pieces,
    tiling::{Piece, Place, Tiling},
    turns::run,
};
use crate::{
    loops::{Axis, AxisId, BinOp, Combine, LoopKind, Scalar, ScalarKind, Stages, Stmt, TensorId},
    lower::{affine::Affine, normalize::Reduction},
};

/// Loops within the one over taps have at least so many turns where some taps are left out: to tell which takes as long as a few.
const LEAST_WITHIN: i64 = 8;

/// A reduced axis over the taps of a window, some of which see padding.
#[derive(Clone, Debug)]
pub(super) struct Taps {
    /// The axis.
    axis: Axis,
    /// What is read, and which of its axes this is about, with its extent.
    operand: (TensorId, usize, i64),
    /// The index along that axis: a sum of output axes and the reduced one.
    index: Affine,
    /// The conditions that say that it is in range, by address.
    conditions: Vec<usize>,
}

/// The taps that count within a tile.
#[derive(Clone)]
pub(super) struct Seen {
    /// The axis that they are elements of, and its extent.
    axis: Axis,
    /// The first one, and how many there are.
    first: Scalar,
    turns: Scalar,
    /// Where it takes the place of results to tell that the index is in range: its name, what it is but for the tap, how far apart taps lie, and
    /// the operand's extent.
    place: Option<(AxisId, Scalar, i64, i64)>,
}

/// A piece of an axis along which the same taps count, and their share of all.
pub(super) type Cut = (i64, f64);

/// A factor that counts as 0 where a condition does not hold: the condition, and what is read.
fn guarded(factor: &Scalar) -> Option<(&Scalar, &Scalar)> {
    let ScalarKind::Select(cond, read, zero) = factor.kind() else { return None };
    let is_zero = matches!(zero.kind(), ScalarKind::Float(z) if *z == 0.0);
    (is_zero && matches!(read.kind(), ScalarKind::Read(..))).then_some((cond, read))
}

/// What has to be 0 or more for a comparison to hold.
fn difference(cond: &Scalar) -> Option<Affine> {
    let ScalarKind::Binary(op, a, b) = cond.kind() else { return None };
    match op {
        BinOp::Ge => Affine::of_sum([(a, 1), (b, -1)]),
        BinOp::Lt => Affine::of_sum([(b, 1), (a, -1), (&Scalar::index(1), -1)]),
        _ => None,
    }
}

/// The windows of a sum of products over the edges of an operand.
pub(super) fn taps(group: &Stages, r: &Reduction, axes: &[Axis]) -> Vec<Taps> {
    let ScalarKind::Binary(BinOp::Mul, a, b) = r.value.kind() else { return Vec::new() };
    if r.combine != Combine::Sum {
        return Vec::new();
    }
    let mut found: Vec<Taps> = Vec::new();
    for (cond, read) in [a, b].into_iter().filter_map(guarded) {
        let ScalarKind::Read(tensor, index) = read.kind() else { continue };
        let shape = &group.decl(*tensor).shape;
        if index.len() != shape.len() {
            continue;
        }
        let mut parts = Vec::new();
        parts_of(cond, &mut parts);
        for (at, (index, &extent)) in index.iter().zip(shape).enumerate() {
            let Some(index) = Affine::of(index).filter(|i| i.terms.iter().all(|t| t.1 > 0)) else { continue };
            let mut reduced = r.axes.iter().filter(|a| index.coeff(a.id) != 0);
            let (Some(&axis), None) = (reduced.next(), reduced.next()) else { continue };
            let others = index.terms.iter().filter(|t| t.0 != axis.id);
            if others.clone().any(|t| !axes.iter().any(|a| a.id == t.0)) || found.iter().any(|t| t.axis.id == axis.id) {
                continue;
            }
            // Conditions on this index; that it is in range must be all that they say.
            let same = |d: &Affine, sign: i64| {
                d.terms.len() == index.terms.len()
                    && d.terms.iter().zip(&index.terms).all(|(d, i)| *d == (i.0, sign * i.1))
            };
            let about: Vec<(usize, Affine)> = parts
                .iter()
                .filter_map(|p| Some((p.key(), difference(p)?)))
                .filter(|(_, d)| same(d, 1) || same(d, -1))
                .collect();
            let implied = |d: &Affine| match same(d, 1) {
                true => d.base >= index.base,
                false => d.base + index.base >= extent - 1,
            };
            if !about.is_empty() && about.iter().all(|(_, d)| implied(d)) {
                let conditions = about.into_iter().map(|(key, _)| key).collect();
                found.push(Taps { axis, operand: (*tensor, at, extent), index, conditions });
            }
        }
    }
    let all: i64 = r.axes.iter().map(|a| a.extent).product();
    let taps: i64 = found.iter().map(|t| t.axis.extent).product();
    if all / taps.max(1) < LEAST_WITHIN { Vec::new() } else { found }
}

impl Emitter {
    /// The windows of a reduction over the edges of an operand; none where extents change from size to size: how many taps count does, too.
    pub(super) fn taps(&self, r: &Reduction, axes: &[Axis]) -> Vec<Taps> {
        if self.is_sized() { Vec::new() } else { taps(&self.group, r, axes) }
    }

    /// Those of them that the loops around tiles leave out: neither lanes nor the turns that are written out are such taps, and along no
    /// axis of which a tile has several places another one decides, too.
    pub(super) fn taps_of_tiles(&self, r: &Reduction, axes: &[Axis], tiling: &Tiling) -> Vec<Taps> {
        if tiling.dot.is_some() || tiling.matrix.is_some() {
            return Vec::new();
        }
        let innermost = r.axes.iter().rfind(|a| a.id != tiling.vector).map(|a| a.id).filter(|_| !tiling.across);
        let alone = |t: &Taps| {
            let tiled = |a: &&Axis| t.is_along(a.id) && tiling.tiles.iter().any(|s| s.0 == a.id && s.1 > 1);
            !axes.iter().any(|a| tiled(&a)) || axes.iter().filter(|a| t.is_along(a.id)).count() == 1
        };
        let apart = |t: &Taps| !t.is_along(tiling.vector) && t.axis() != tiling.vector && Some(t.axis()) != innermost;
        self.taps(r, axes).into_iter().filter(|t| apart(t) && alone(t)).collect()
    }
}

impl Taps {
    /// The taps that count where the index is so much for the first one: the first of them, and how many there are.
    fn at(&self, index: i64) -> (i64, i64) {
        let (step, n) = (self.index.coeff(self.axis.id), self.axis.extent);
        let first = (-index + step - 1).div_euclid(step).clamp(0, n);
        let end = ((self.operand.2 - 1 - index).div_euclid(step) + 1).clamp(first, n);
        (first, end - first)
    }

    /// The output axes of the index, with how far their elements lie apart.
    fn outputs(&self) -> impl Iterator<Item = (AxisId, i64)> {
        self.index.terms.iter().copied().filter(|t| t.0 != self.axis.id)
    }

    /// The reduced axis.
    pub(super) fn axis(&self) -> AxisId {
        self.axis.id
    }

    /// Whether the index goes along an output axis.
    pub(super) fn is_along(&self, axis: AxisId) -> bool {
        self.outputs().any(|o| o.0 == axis)
    }

    /// Whether a condition is one of those that say that the index is in range.
    pub(super) fn says(&self, condition: &Scalar) -> bool {
        self.conditions.contains(&condition.key())
    }

    /// The pieces of an output axis along which the same taps count; none where other axes decide it, too.
    fn cut(&self, axis: &Axis) -> Option<Vec<Cut>> {
        let mut outputs = self.outputs();
        let (Some((id, by)), None) = (outputs.next(), outputs.next()) else { return None };
        if id != axis.id {
            return None;
        }
        let mut cuts: Vec<(i64, (i64, i64))> = Vec::new();
        for y in 0..axis.extent {
            let seen = self.at(self.index.base + by * y);
            match cuts.last_mut() {
                Some((n, last)) if *last == seen => *n += 1,
                _ => cuts.push((1, seen)),
            }
        }
        let share = |n: i64| n as f64 / self.axis.extent as f64;
        Some(cuts.into_iter().map(|(n, (_, turns))| (n, share(turns))).collect())
    }

    /// The taps that count in the tile at these places.
    fn seen(&self, places: &[Place], fresh: &mut impl FnMut() -> AxisId) -> Seen {
        let place = |id: AxisId| places.iter().find(|p| p.axis == id);
        let mut least = Scalar::index(self.index.base);
        let mut first = Some(self.index.base);
        let mut beyond = 0;
        for (id, by) in self.outputs() {
            let Some(p) = place(id) else { continue };
            least = least + p.at.clone() * by;
            // All places of a piece with several in a tile have the same taps.
            let still = p.piece.size > 1 || p.piece.count == 1;
            first = first.filter(|_| still).map(|f| f + by * p.piece.start);
            beyond += by * (p.piece.step() - 1);
        }
        let step = self.index.coeff(self.axis.id);
        if let Some(index) = first.or(least.as_int()) {
            let (first, turns) = self.at(index);
            return Seen { axis: self.axis, first: Scalar::index(first), turns: Scalar::index(turns), place: None };
        }
        let (n, extent) = (self.axis.extent, self.operand.2);
        debug_assert_eq!(beyond, 0, "tiles with several places are cut where taps change");
        let within = |s: Scalar| s.max(Scalar::index(0)).min(Scalar::index(n));
        let first = within((Scalar::index(step - 1) - least.clone()).floor_div(step));
        let end = within((Scalar::index(extent - 1 + step) - least.clone()).floor_div(step));
        let turns = (end - first.clone()).max(Scalar::index(0));
        Seen { axis: self.axis, first, turns, place: Some((fresh(), least, step, extent)) }
    }
}

/// The pieces of an axis along which the same taps count, where they do not all along it.
pub(super) fn cuts(taps: &[Taps], axes: &[Axis]) -> HashMap<AxisId, Vec<Cut>> {
    let cut = |a: &Axis| Some((a.id, taps.iter().find_map(|t| t.cut(a)).filter(|c| c.len() > 1)?));
    axes.iter().filter_map(cut).collect()
}

/// How an output axis is cut along pieces of which the same taps count.
pub(super) fn pieces_alike(axis: &Axis, cuts: &[Cut], tiling: &Tiling) -> Vec<Piece> {
    let mut all = Vec::new();
    let mut start = 0;
    for &(extent, _) in cuts {
        all.extend(
            pieces(&Axis { extent, ..*axis }, tiling).into_iter().map(|p| Piece { start: p.start + start, ..p }),
        );
        start += extent;
    }
    all
}

/// The taps that count in the tile at these places, and what is combined of them: in range, nothing asks whether it is.
pub(super) fn seen(
    taps: &[Taps],
    value: &Scalar,
    places: &[Place],
    fresh: &mut impl FnMut() -> AxisId,
) -> (Vec<Seen>, Scalar) {
    let all: Vec<Seen> = taps.iter().map(|t| t.seen(places, fresh)).collect();
    let (ScalarKind::Binary(op, a, b), false) = (value.kind(), taps.is_empty()) else { return (all, value.clone()) };
    let factor = |f: &Scalar| {
        let Some((cond, read)) = guarded(f) else { return f.clone() };
        let (ScalarKind::Read(tensor, index), ScalarKind::Select(_, _, zero)) = (read.kind(), f.kind()) else {
            return f.clone();
        };
        let mut parts = Vec::new();
        parts_of(cond, &mut parts);
        let left = parts.into_iter().filter(|p| !taps.iter().any(|t| t.says(p))).cloned();
        let left = left.reduce(Scalar::and).unwrap_or_else(|| Scalar::bool(true));
        let mut index = index.clone();
        for (t, s) in taps.iter().zip(&all).filter(|(t, _)| t.operand.0 == *tensor) {
            if let Some((place, ..)) = &s.place {
                index[t.operand.1] = Scalar::axis(*place);
            }
        }
        Scalar::select(left, Scalar::read(*tensor, index, read.dtype()), zero.clone())
    };
    let value = Scalar::binary(*op, factor(a), factor(b));
    (all, value)
}

impl Seen {
    /// The axis whose elements it is about.
    pub(super) fn axis(&self) -> AxisId {
        self.axis.id
    }

    /// The loop over them, where `var` is new. Each is known to be an element of the axis, as is the index that it stands for.
    pub(super) fn loop_over(&self, var: AxisId, body: Stmt) -> Stmt {
        let body = match &self.place {
            Some((place, least, step, extent)) => {
                let at = least.clone() + Scalar::axis(self.axis.id) * *step;
                bind(*place, at.max(Scalar::index(0)).min(Scalar::index(extent - 1)), body)
            }
            None => body,
        };
        let tap = self.first.clone() + Scalar::axis(var);
        let tap = match &self.place {
            Some(_) => tap.min(Scalar::index(self.axis.extent - 1)),
            None => tap,
        };
        let body = bind(self.axis.id, tap, body);
        match self.turns.as_int() {
            Some(1) => bind(var, Scalar::index(0), body),
            Some(n) => for_(var, n, LoopKind::Serial, body),
            None => run(var, self.turns.clone(), body),
        }
    }
}
