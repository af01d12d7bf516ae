//! Conditions of windows that reach over edges, where extents change from size to size: along pieces of an axis that lie inside they are left
//! out, as long as they hold there at the size at hand.

use hashbrown::HashMap;

use super::{Emitter, tiling::Piece};
use crate::{
    loops::{
        Axis, AxisId, BinOp, Scalar, ScalarKind,
        affine::{self, Affine, Facts, Meaning, Memo},
    },
    lower::affine::for_each_node,
    tensor::DType,
};

/// Wider edges are not treated place by place.
const WIDEST_EDGE: i64 = 3;

/// The intervals of values of variables, for conditions that hold all over a piece of a loop.
struct Known {
    ranges: HashMap<AxisId, (i64, i64)>,
    numbers: HashMap<AxisId, Affine>,
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

/// Of each condition of a value, of each of its parts: the axis along some pieces of which it is left out, and whether it is, by piece.
pub(super) type LeftOut = Vec<Vec<Option<(AxisId, Vec<bool>)>>>;

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
        let numbers: HashMap<AxisId, Affine> = numbers.map(|&(a, n)| (a, Affine::constant(n))).collect();
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
    pub(super) fn left_out(&mut self, value: &Scalar, reduced: &[Axis], pieces: &[(AxisId, Vec<Piece>)]) -> LeftOut {
        let numbers = self.sizes.iter().flat_map(|s| &s.numbers);
        let numbers = numbers.map(|&(a, n)| (a, Affine::constant(n))).collect();
        let elements = |p: &[Piece]| p.iter().map(Piece::elements).sum::<i64>();
        let ranges = reduced.iter().map(|a| (a.id, a.extent)).chain(pieces.iter().map(|(a, p)| (*a, elements(p))));
        let mut known = Known { ranges: ranges.map(|(a, n)| (a, (0, (n - 1).max(0)))).collect(), numbers };
        // Of a piece that there is none of here, other sizes tell.
        let mut holds = |part: &Scalar, axis: AxisId, p: &Piece| {
            if !p.inside || p.count == 0 {
                return p.inside;
            }
            let all = known.ranges.insert(axis, (p.start, p.start + p.elements() - 1));
            let holds = affine::decide(part, &known, &mut Memo::default()) == Some(true);
            known.ranges.extend(all.map(|all| (axis, all)));
            holds
        };
        let mut by_pieces = |part: &Scalar| -> Option<(AxisId, Vec<bool>)> {
            let mut about = pieces.iter().filter(|(a, p)| p.iter().any(|p| p.changes) && is_about(part, *a));
            let (Some((axis, pieces)), None) = (about.next(), about.next()) else { return None };
            Some((*axis, pieces.iter().map(|p| holds(part, *axis, p)).collect()))
        };
        let mut by_parts = |c: &Scalar| -> Vec<Option<(AxisId, Vec<bool>)>> {
            let mut parts = Vec::new();
            parts_of(c, &mut parts);
            parts.into_iter().map(&mut by_pieces).collect()
        };
        let here: LeftOut = conditions(value).iter().map(&mut by_parts).collect();
        let decided = self.decide(|_| here.clone());
        // A piece that there is none of may have any form.
        let none = |axis: AxisId| pieces.iter().filter(move |p| p.0 == axis).flat_map(|p| &p.1).map(|p| p.count == 0);
        let alike = |d: &Option<(AxisId, Vec<bool>)>, h: &Option<(AxisId, Vec<bool>)>| match (d, h) {
            (Some((a, d)), Some((b, h))) => {
                a == b && d.len() == h.len() && d.iter().zip(h).zip(none(*a)).all(|((d, h), none)| !d || *h || none)
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

/// A value without the conditions that are left out along these pieces of axes.
pub(super) fn without(value: &Scalar, left_out: &LeftOut, piece: &impl Fn(AxisId) -> Option<usize>) -> Scalar {
    if left_out.is_empty() {
        return value.clone();
    }
    let is_left = |out: &Option<(AxisId, Vec<bool>)>| {
        let along = |(axis, out): &(AxisId, Vec<bool>)| out.get(piece(*axis)?).copied();
        !out.as_ref().and_then(along).unwrap_or(false)
    };
    let left = |c: &Scalar, out: &[Option<(AxisId, Vec<bool>)>]| {
        let mut parts = Vec::new();
        parts_of(c, &mut parts);
        let left = parts.into_iter().zip(out).filter(|(_, out)| is_left(out)).map(|(p, _)| p.clone());
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
