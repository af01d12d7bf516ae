//! Conditions of windows that reach over edges, where extents change from size to size: along pieces of an axis that lie inside they are left
//! out, as long as they hold there at the size at hand; in tiles at the ends of an axis, only what the outermost places see is asked; and what is the same for a whole row
//! is asked once.

use hashbrown::{HashMap, HashSet};

use super::{
    Emitter,
    taps::Taps,
    tiling::{Piece, Place},
};
use crate::{
    loops::{
        Axis, AxisId, BinOp, Scalar, ScalarKind,
        affine::{self, Facts, Meaning, Memo},
    },
    lower::affine::{Affine, for_each_node, replace_axes},
    tensor::DType,
};

/// Wider edges are not treated place by place.
const WIDEST_EDGE: i64 = 3;

/// The intervals of values of variables, for conditions that hold all over a piece of a loop.
struct Known {
    ranges: HashMap<AxisId, (i64, i64)>,
    numbers: HashMap<AxisId, affine::Affine>,
}

impl affine::Scope for Known {
    fn meaning(&self, axis: AxisId) -> Meaning<'_> {
        match self.numbers.get(&axis) {
            Some(n) => Meaning::Sum(n),
            None => Meaning::Atom(Facts { range: self.ranges.get(&axis).copied(), level: 0, varying: false }),
        }
    }
}

/// The parts of a condition that all must hold.
pub(super) fn parts_of<'a>(c: &'a Scalar, out: &mut Vec<&'a Scalar>) {
    match c.kind() {
        ScalarKind::Binary(BinOp::And, a, b) if a.dtype() == DType::Bool => {
            parts_of(a, out);
            parts_of(b, out);
        }
        _ => out.push(c),
    }
}

/// The conditions of choices in a value that read nothing.
fn conditions(value: &Scalar) -> Vec<Scalar> {
    let mut found: Vec<Scalar> = Vec::new();
    for_each_node(value, &mut |n| {
        if let ScalarKind::Select(c, ..) = n.kind()
            && !affine::reads(c)
            && !found.iter().any(|known| known.key() == c.key())
        {
            found.push(c.clone());
        }
    });
    found
}

/// Whether an expression is about an axis.
pub(super) fn is_about(e: &Scalar, axis: AxisId) -> bool {
    affine::any(e, &mut |n| matches!(n.kind(), ScalarKind::Axis(a) if *a == axis))
}

/// Of each condition of a value, of each of its parts: the axis that it is about, where some pieces of that have it in another form, and in which, by
/// piece.
pub(super) type LeftOut = Vec<Vec<Option<(AxisId, Vec<Along>)>>>;

/// What becomes of a condition along a piece.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Along {
    /// It stays.
    Stays,
    /// It holds, and is left out.
    Holds,
    /// It holds at places of a tile before this one, and stays at others.
    HoldsBefore(i64),
    /// It holds where this sum is not negative, the axis counted from where the tile begins: so it does in all tiles of the piece, and is known where
    /// places in a tile and taps are. Elsewhere it stays.
    HoldsWhere(Affine),
}

/// A condition as a sum that is not negative where it holds.
fn bound(part: &Scalar) -> Option<Affine> {
    let ScalarKind::Binary(op, a, b) = part.kind() else { return None };
    if a.dtype() != DType::I64 {
        return None;
    }
    match op {
        BinOp::Lt => Affine::of_sum([(b, 1), (a, -1), (&Scalar::index(1), -1)]),
        BinOp::Ge => Affine::of_sum([(a, 1), (b, -1)]),
        _ => None,
    }
}

impl Emitter {
    /// How many places from either end of an axis windows may reach over an edge, where that is few: those in between are inside at this
    /// size.
    pub(super) fn edge(&self, axis: &Axis, others: &[Axis], value: &Scalar) -> Option<i64> {
        let mut parts = Vec::new();
        let mut conditions = Vec::new();
        for_each_node(value, &mut |n| {
            if let ScalarKind::Select(c, ..) = n.kind()
                && !affine::reads(c)
            {
                conditions.push(c.clone());
            }
        });
        conditions.iter().for_each(|c| parts_of(c, &mut parts));
        let is_about = |p: &&Scalar| affine::any(p, &mut |n| matches!(n.kind(), ScalarKind::Axis(a) if *a == axis.id));
        let about: Vec<&Scalar> = parts.into_iter().filter(is_about).collect();
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        let numbers: HashMap<AxisId, affine::Affine> =
            numbers.map(|&(a, n)| (a, affine::Affine::constant(n))).collect();
        (1..=WIDEST_EDGE).find(|&edge| {
            let last = axis.extent - 1 - edge;
            let mut ranges: HashMap<AxisId, (i64, i64)> =
                others.iter().map(|a| (a.id, (0, (a.extent - 1).max(0)))).collect();
            ranges.insert(axis.id, (edge, last));
            let known = Known { ranges, numbers: numbers.clone() };
            let mut memo = Memo::default();
            edge <= last && about.iter().all(|p| affine::decide(p, &known, &mut memo) == Some(true))
        })
    }

    /// Which conditions hold all along pieces of axes whose extents change, because these lie inside. Conditions about places at an edge
    /// stay as they are, so that all sizes have the same ones.
    pub(super) fn left_out(&mut self, value: &Scalar, axes: &[Axis], pieces: &[(AxisId, Vec<Piece>)]) -> LeftOut {
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        let numbers = numbers.map(|&(a, n)| (a, affine::Affine::constant(n))).collect();
        let mut known = Known { ranges: axes.iter().map(|a| (a.id, (0, (a.extent - 1).max(0)))).collect(), numbers };
        let mut holds_in = |part: &Scalar, axis: AxisId, range: (i64, i64)| {
            let all = known.ranges.insert(axis, range);
            let holds = affine::decide(part, &known, &mut Memo::default()) == Some(true);
            known.ranges.extend(all.map(|all| (axis, all)));
            holds
        };
        // Of a piece that there is none of here, other sizes tell.
        let mut along = |part: &Scalar, axis: AxisId, p: &Piece| -> Along {
            let mut held = |range| p.count == 0 || holds_in(part, axis, range);
            let Some(ends) = p.ends.filter(|_| p.size > 1) else {
                let all = (p.start, p.start + p.elements() - 1);
                return if p.inside && held(all) { Along::Holds } else { Along::Stays };
            };
            // Whether it is about places before the first, or after the last.
            let Some(bound) = bound(part) else { return Along::Stays };
            let last = p.size + ends.between;
            match bound.coeff(axis) {
                1.. => Along::HoldsWhere(bound),
                -1 => Along::HoldsWhere(Affine { base: bound.base - last, ..bound }),
                ..-1 if held((0, last + p.size - 1 - ends.places)) => Along::HoldsBefore(p.size - ends.places),
                _ => Along::Stays,
            }
        };
        let mut by_pieces = |part: &Scalar| -> Option<(AxisId, Vec<Along>)> {
            let mut about = pieces.iter().filter(|(a, p)| p.iter().any(|p| p.changes) && is_about(part, *a));
            let (Some((axis, pieces)), None) = (about.next(), about.next()) else { return None };
            Some((*axis, pieces.iter().map(|p| along(part, *axis, p)).collect()))
        };
        let mut by_parts = |c: &Scalar| -> Vec<Option<(AxisId, Vec<Along>)>> {
            let mut parts = Vec::new();
            parts_of(c, &mut parts);
            parts.into_iter().map(&mut by_pieces).collect()
        };
        let here: LeftOut = conditions(value).iter().map(&mut by_parts).collect();
        let decided = self.decide(|_| here.clone());
        // A piece that there is none of may have any form.
        let none = |axis: AxisId| pieces.iter().filter(move |p| p.0 == axis).flat_map(|p| &p.1).map(|p| p.count == 0);
        let alike = |d: &Option<(AxisId, Vec<Along>)>, h: &Option<(AxisId, Vec<Along>)>| match (d, h) {
            (Some((a, d)), Some((b, h))) => {
                let may = |((d, h), none): ((&Along, &Along), bool)| *d == Along::Stays || d == h || none;
                a == b && d.len() == h.len() && d.iter().zip(h).zip(none(*a)).all(may)
            }
            (d, h) => d.is_none() && h.is_none(),
        };
        let all = |d: &[Option<_>], h: &[Option<_>]| d.len() == h.len() && d.iter().zip(h).all(|(d, h)| alike(d, h));
        if decided.len() != here.len() || !decided.iter().zip(&here).all(|(d, h)| all(d, h)) {
            self.diverge();
        }
        decided
    }
}

/// A value by a condition that is the same for all turns of some loops.
pub(super) struct Guarded {
    pub(super) cond: Scalar,
    /// Where it holds.
    pub(super) seen: Scalar,
    /// Where it does not.
    pub(super) unseen: Scalar,
}

impl Guarded {
    /// Of the first choice in a value those conditions that are not about these axes.
    pub(super) fn of(value: &Scalar, axes: &[AxisId]) -> Option<Guarded> {
        let choice = conditions(value).into_iter().next()?;
        let mut parts = Vec::new();
        parts_of(&choice, &mut parts);
        let (inner, outer): (Vec<&Scalar>, Vec<&Scalar>) =
            parts.into_iter().partition(|p| axes.iter().any(|&a| is_about(p, a)));
        let cond = outer.into_iter().cloned().reduce(Scalar::and).filter(|c| c.as_int().is_none())?;
        let inner = inner.into_iter().cloned().reduce(Scalar::and).unwrap_or_else(|| Scalar::bool(true));
        let with = |c: Scalar| rebuilt(value, &HashMap::from_iter([(choice.key(), c)]), &mut HashMap::new());
        Some(Guarded { cond, seen: with(inner), unseen: with(Scalar::bool(false)) })
    }

    /// The same with other expressions.
    pub(super) fn map(self, f: impl Fn(&Scalar) -> Scalar) -> Guarded {
        Guarded { cond: f(&self.cond), seen: f(&self.seen), unseen: f(&self.unseen) }
    }
}

/// A value with the conditions that are left along the pieces of these places.
pub(super) fn without(value: &Scalar, left_out: &LeftOut, places: &[Place]) -> Scalar {
    if left_out.is_empty() {
        return value.clone();
    }
    let left = |part: &Scalar, out: &Option<(AxisId, Vec<Along>)>| -> Option<Scalar> {
        let found = out.as_ref().and_then(|(axis, out)| {
            let place = places.iter().find(|p| p.axis == *axis)?;
            Some((Scalar::axis(*axis) - place.at.clone(), out.get(place.piece.number)?))
        });
        match found {
            None | Some((_, Along::Stays)) => Some(part.clone()),
            Some((_, Along::Holds)) => None,
            Some((here, Along::HoldsBefore(n))) => Some(here.lt(Scalar::index(*n)).or(part.clone())),
            Some((here, Along::HoldsWhere(sum))) => {
                let (axis, _) = out.as_ref()?;
                let with = HashMap::from_iter([(*axis, here)]);
                Some(replace_axes(&sum.in_order(), &with).ge(Scalar::index(0)).or(part.clone()))
            }
        }
    };
    let left = |c: &Scalar, out: &[Option<_>]| {
        let mut parts = Vec::new();
        parts_of(c, &mut parts);
        let left = parts.into_iter().zip(out).filter_map(|(part, out)| left(part, out));
        left.reduce(Scalar::and).unwrap_or_else(|| Scalar::bool(true))
    };
    let conditions = conditions(value);
    let with = conditions.iter().zip(left_out).map(|(c, out)| (c.key(), left(c, out))).collect();
    rebuilt(value, &with, &mut HashMap::new())
}

/// The value with other conditions, by the address of those that it has.
fn rebuilt(e: &Scalar, with: &HashMap<usize, Scalar>, done: &mut HashMap<usize, Scalar>) -> Scalar {
    if let Some(new) = done.get(&e.key()) {
        return new.clone();
    }
    let new = match e.kind() {
        ScalarKind::Read(..) => e.clone(),
        ScalarKind::Select(c, a, b) => {
            let a = rebuilt(a, with, done);
            let b = rebuilt(b, with, done);
            Scalar::select(with.get(&c.key()).unwrap_or(c).clone(), a, b)
        }
        _ => e.map_operands(|o| rebuilt(o, with, done)),
    };
    done.insert(e.key(), new.clone());
    new
}

/// The axes that decide whether something is read, where it is not left to the loops over taps.
pub(super) fn guarded_axes(value: &Scalar, taps: &[Taps]) -> HashSet<AxisId> {
    let mut found = HashSet::new();
    for_each_node(value, &mut |n| {
        if let ScalarKind::Select(cond, ..) = n.kind()
            && !affine::reads(cond)
        {
            let mut parts = Vec::new();
            parts_of(cond, &mut parts);
            for part in parts.into_iter().filter(|p| !taps.iter().any(|t| t.says(p))) {
                for_each_node(part, &mut |c| {
                    if let ScalarKind::Axis(a) = c.kind() {
                        found.insert(*a);
                    }
                });
            }
        }
    });
    found
}
