//! Copies with padding: rows in three parts, so that nothing is asked for each place.

use hashbrown::HashMap;

use super::{
    Emitter, Loop, Threads, bind,
    conditions::{is_about, parts_of},
    for_,
    map::{Bound, Place, powers_of_two},
};
use crate::{
    loops::{Axis, AxisId, LoopKind, Scalar, ScalarKind, Stmt, TensorId},
    lower::affine::Affine,
};

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
    /// The copy of a tensor with padding, where this is one; `loops` are those around its vectors. In kernels for many sizes, where the extent of a
    /// row changes.
    pub(super) fn padded(
        &mut self,
        tensor: TensorId,
        loops: &[Loop],
        vector: Axis,
        place: &Place<'_>,
        threads: Threads,
    ) -> Option<Stmt> {
        let (along, around) = loops.split_last()?;
        if self.is_sized() != self.changes(along.var) || self.changes(vector.id) {
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
        let bytes = self.group.decl(tensor).dtype.bytes() as i64;
        let is_sized = self.is_sized();
        let mut part = |from: i64, until: i64, value: &Scalar| {
            if !is_sized && is_one_run(value, &to, along, vector) {
                let store = Place { buffer: place.buffer, to: &to, value };
                return self.one_run(&store, (along.var, from), vector.id, (until - from) * vector.extent, bytes);
            }
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

    /// So many elements from a place along a loop on, which lie side by side where they are read and where they are stored: a move takes
    /// whole registers of whatever type.
    fn one_run(
        &mut self,
        place: &Place<'_>,
        (along, from): (AxisId, i64),
        vector: AxisId,
        elements: i64,
        bytes: i64,
    ) -> Stmt {
        let mut parts = Vec::new();
        for (first, turns, lanes) in powers_of_two(elements, self.unit.vector_bytes / bytes) {
            let (turn, lane) = (self.fresh(), self.fresh());
            let at = Scalar::axis(turn) * lanes + Scalar::axis(lane) + first;
            let store = place.store(&HashMap::from_iter([(along, Scalar::index(from)), (vector, at)]));
            let body = match lanes {
                1 => bind(lane, Scalar::index(0), store),
                n => for_(lane, n, LoopKind::Vector, store),
            };
            parts.push(self.one_loop(&Loop { var: turn, extent: turns }, LoopKind::Serial, body));
        }
        Stmt::Block(parts)
    }
}

/// Whether a constant, or a read, and the place where it is stored, go on along a loop where vectors end.
fn is_one_run(value: &Scalar, to: &Scalar, along: &Loop, vector: Axis) -> bool {
    let goes_on = |index: &Scalar| {
        Affine::of(index).is_some_and(|o| o.coeff(vector.id) == 1 && o.coeff(along.var) == vector.extent)
    };
    match value.kind() {
        ScalarKind::Read(_, index) => index.len() == 1 && goes_on(&index[0]) && goes_on(to),
        ScalarKind::Float(_) | ScalarKind::Int(_) => goes_on(to),
        _ => false,
    }
}
