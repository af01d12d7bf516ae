//! Copies with padding where extents change from size to size: rows in three parts, so that nothing is asked for each place.

use hashbrown::HashMap;

use super::{
    Emitter, Loop, Threads,
    conditions::{is_about, parts_of},
    map::{Bound, Place},
};
use crate::loops::{Axis, AxisId, LoopKind, Scalar, ScalarKind, Stmt};

/// A tensor with padding along a loop.
struct Padded {
    /// What lies around it.
    fill: Scalar,
    value: Scalar,
    /// The places along the loop that are none of padding: the first, and the one after the last.
    from: i64,
    to: i64,
    /// The conditions about other loops.
    others: Vec<Scalar>,
    /// How many there are about this one.
    bounds: usize,
}

impl Padded {
    /// What a value is along the innermost loop, if it is padded there, and vectors are all of padding or none.
    fn of(value: &Scalar, along: AxisId, vector: AxisId) -> Option<Padded> {
        let ScalarKind::Select(cond, inside, fill) = value.kind() else { return None };
        if !matches!(fill.kind(), ScalarKind::Float(_) | ScalarKind::Int(_)) || is_about(cond, vector) {
            return None;
        }
        let mut parts = Vec::new();
        parts_of(cond, &mut parts);
        let (here, others): (Vec<&Scalar>, Vec<&Scalar>) = parts.into_iter().partition(|p| is_about(p, along));
        let bounds: Vec<Bound> = here.into_iter().map(|p| Bound::of(p, along)).collect::<Option<_>>()?;
        let mut padded = Padded {
            fill: fill.clone(),
            value: inside.clone(),
            from: 0,
            to: i64::MAX,
            others: others.into_iter().cloned().collect(),
            bounds: bounds.len(),
        };
        for bound in &bounds {
            match *bound {
                Bound::From(n) => padded.from = padded.from.max(n),
                Bound::Below(n) => padded.to = padded.to.min(n),
            }
        }
        (padded.bounds > 0).then_some(padded)
    }
}

impl Emitter {
    /// The copy of a tensor with padding, where this is one whose extents change; `loops` are those around its vectors.
    pub(super) fn padded(&mut self, loops: &[Loop], vector: Axis, place: &Place<'_>, threads: Threads) -> Option<Stmt> {
        let (along, around) = loops.split_last()?;
        if !self.changes(along.var) || self.changes(vector.id) {
            return None;
        }
        let found = Padded::of(place.value, along.var, vector.id);
        if !self.decide(|_| found.is_some()) {
            return None;
        }
        let Some(padded) = found else {
            self.diverge();
            return None;
        };
        self.same((padded.bounds, padded.others.len()));
        let others = padded.others.into_iter().reduce(Scalar::and).map(|c| self.named(&c));
        let (value, fill, to) = (self.named(&padded.value), self.named(&padded.fill), self.named_place(place.to));
        let mut part = |from: i64, until: i64, value: &Scalar| {
            let (var, first) = (self.fresh(), self.number(from));
            self.mark(var);
            let at = Scalar::axis(var) + first;
            let store = |with: &HashMap<AxisId, Scalar>| {
                let with = with.iter().map(|(a, at)| (*a, at.clone())).chain([(along.var, at.clone())]).collect();
                Place { buffer: place.buffer, to: &to, value }.store(&with)
            };
            let inner = self.vectors(vector.id, Scalar::index(0), vector.extent, false, &store);
            self.one_loop(&Loop { var, extent: until - from }, LoopKind::Serial, inner)
        };
        let from = padded.from.clamp(0, along.extent);
        let until = padded.to.clamp(from, along.extent);
        let inside =
            Stmt::Block(vec![part(0, from, &fill), part(from, until, &value), part(until, along.extent, &fill)]);
        let body = match others {
            None => inside,
            Some(cond) => {
                let otherwise = Some(Box::new(part(0, along.extent, &fill)));
                Stmt::If { cond, then: Box::new(inside), otherwise }
            }
        };
        Some(self.loops(around, body, threads))
    }
}
