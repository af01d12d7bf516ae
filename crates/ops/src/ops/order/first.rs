//! The first few of sorted lines in generated code, by insertion: what comes after the last of the best so far, as nearly all elements of a long line do,
//! costs one comparison.

use super::merge::{Lines, Sorted};
use crate::{
    loops::{BinOp, Nest, Scalar, TensorId},
    tensor::DType,
};

/// So many elements are compared with the last of the best so far at once.
const SKIPPED: i64 = 128;
/// In vectors of so many lanes.
const LANES: i64 = 16;
/// Where as many as this are wanted, or more, they make room by vectors.
const MANY: i64 = 32;
/// And no more than this: they lie on a thread's stack meanwhile.
const MOST: i64 = 2048;

/// The best elements so far, in order.
enum Best {
    /// Within the result.
    There(Sorted),
    /// Apart, [`LANES`] places further on, and what they are moved through.
    Apart { keys: [TensorId; 2], places: Option<[TensorId; 2]> },
}

/// An element, and where it stands.
struct Element<'a> {
    value: &'a Scalar,
    place: &'a Scalar,
}

impl Lines {
    /// The first `k` elements of each line in sorted order. Lines are read by different threads; where elements of a line lie side by side, most are
    /// skipped by vectors.
    pub(super) fn first(
        &self,
        r: &mut Nest<'_>,
        k: i64,
        lie_side_by_side: bool,
        key: impl Fn(&Nest<'_>, &Scalar, &Scalar) -> Scalar,
    ) -> Sorted {
        let out = Sorted {
            keys: r.output(&[self.count, k], self.dtype),
            places: self.places.then(|| r.output(&[self.count, k], self.place_dtype())),
        };
        r.parallel(self.count, |r, line| {
            let best = self.best(r, k, &out);
            r.for_(k, |r, j| {
                let value = r.let_(key(r, &line, &j));
                self.insert(r, &best, &line, Element { value: &value, place: &j }, j.clone());
            });
            let last = |r: &Nest<'_>| match &best {
                Best::There(best) => r.read(best.keys, [line.clone(), Scalar::index(k - 1)]),
                Best::Apart { keys, .. } => r.read(keys[0], [LANES + k - 1]),
            };
            let worst = r.var(last(r));
            let one = |r: &mut Nest<'_>, j: Scalar| {
                let value = r.let_(key(r, &line, &j));
                r.if_(self.precedes(&value, &r.get(worst)), |r| {
                    self.insert(r, &best, &line, Element { value: &value, place: &j }, Scalar::index(k - 1));
                    r.set(worst, last(r));
                });
            };
            let blocks = if lie_side_by_side { (self.len - k) / SKIPPED } else { 0 };
            if lie_side_by_side {
                r.for_(blocks, |r, block| {
                    let first = r.let_(block * SKIPPED + k);
                    let now = r.let_(r.get(worst));
                    let found = r.registers(&[LANES], DType::I32);
                    r.vector(LANES, |r, lane| r.store(found, [lane], 0));
                    r.unrolled(SKIPPED / LANES, |r, part| {
                        r.vector(LANES, |r, lane| {
                            let value = r.let_(key(r, &line, &(first.clone() + part * LANES + lane.clone())));
                            let before = r.read(found, [lane.clone()]);
                            let is_one = self.precedes(&value, &now);
                            r.store(found, [lane], Scalar::select(is_one, Scalar::int(1, DType::I32), before));
                        });
                    });
                    let any = summed(r, found);
                    r.if_(any.differs(Scalar::int(0, DType::I32)), |r| {
                        r.for_(SKIPPED, |r, i| {
                            let j = r.let_(first.clone() + i);
                            one(r, j);
                        });
                    });
                });
            }
            r.for_range(k + blocks * SKIPPED, self.len, one);
            let Best::Apart { keys, places } = &best else { return };
            r.for_(k, |r, j| {
                let value = r.read(keys[0], [j.clone() + LANES]);
                r.store(out.keys, [line.clone(), j.clone()], value);
                if let (Some(to), Some(places)) = (out.places, places) {
                    let place = r.read(places[0], [j.clone() + LANES]);
                    r.store(to, [line.clone(), j], place);
                }
            });
        });
        out
    }

    fn best(&self, r: &mut Nest<'_>, k: i64, out: &Sorted) -> Best {
        if !(MANY..=MOST).contains(&k) {
            return Best::There(*out);
        }
        let len = LANES + vectors(k) * LANES;
        let pair = |r: &mut Nest<'_>, dtype| [(); 2].map(|()| r.local(&[len], dtype));
        let keys = pair(r, self.dtype);
        let places = self.places.then(|| pair(r, self.place_dtype()));
        for t in [keys[0]].into_iter().chain(places.map(|p| p[0])) {
            let zero = Scalar::int(0, DType::I64).cast(r.dtype(t));
            r.for_(len / LANES, |r, part| {
                r.vector(LANES, |r, lane| r.store(t, [part * LANES + lane], zero.clone()));
            });
        }
        Best::Apart { keys, places }
    }

    /// Puts an element where it belongs among the best before place `free`; what comes after it moves on by one place.
    fn insert(&self, r: &mut Nest<'_>, best: &Best, line: &Scalar, element: Element<'_>, free: Scalar) {
        match best {
            Best::There(best) => self.insert_there(r, best, line, element, free),
            Best::Apart { keys, places } => self.insert_by_vectors(r, keys, places.as_ref(), element, &free),
        }
    }

    fn insert_there(&self, r: &mut Nest<'_>, best: &Sorted, line: &Scalar, e: Element<'_>, free: Scalar) {
        let at = r.var(free);
        let before = (r.get(at) - 1).max(Scalar::index(0));
        let there = r.read(best.keys, [line.clone(), before]);
        let moves = Scalar::binary(BinOp::Gt, r.get(at), Scalar::index(0)).and(self.precedes(e.value, &there));
        r.while_(moves, |r| {
            let to = r.let_(r.get(at));
            let from = r.let_(to.clone() - 1);
            let moved = r.read(best.keys, [line.clone(), from.clone()]);
            self.take(r, line, moved, (best, &from), (best, &to));
            r.set(at, from);
        });
        let to = r.let_(r.get(at));
        r.store(best.keys, [line.clone(), to.clone()], e.value.clone());
        if let Some(places) = best.places {
            r.store(places, [line.clone(), to], e.place.clone().cast(self.place_dtype()));
        }
    }

    /// The same: how many stay where they are is counted.
    fn insert_by_vectors(
        &self,
        r: &mut Nest<'_>,
        keys: &[TensorId; 2],
        places: Option<&[TensorId; 2]>,
        e: Element<'_>,
        free: &Scalar,
    ) {
        let parts = r.shape(keys[0])[0] / LANES - 1;
        let (zero, one) = (Scalar::int(0, DType::I32), Scalar::int(1, DType::I32));
        let end = r.let_(free.clone().cast(DType::I32));
        let number =
            |part: &Scalar, lane: &Scalar| (part.clone() * LANES).cast(DType::I32) + lane.clone().cast(DType::I32);
        let stay = r.registers(&[LANES], DType::I32);
        r.vector(LANES, |r, lane| r.store(stay, [lane], 0));
        r.for_(parts, |r, part| {
            r.vector(LANES, |r, lane| {
                let there = r.let_(r.read(keys[0], [part.clone() * LANES + lane.clone() + LANES]));
                let stays = number(&part, &lane).lt(end.clone()).and(!self.precedes(e.value, &there));
                let sum = r.read(stay, [lane.clone()]) + Scalar::select(stays, one.clone(), zero.clone());
                r.store(stay, [lane], sum);
            });
        });
        let at = summed(r, stay);
        let at = r.let_(at);
        let place = e.place.clone().cast(self.place_dtype());
        for (&[from, to], new) in [(keys, e.value)].into_iter().chain(places.map(|p| (p, &place))) {
            r.for_(parts, |r, part| {
                r.vector(LANES, |r, lane| {
                    let i = number(&part, &lane);
                    let place = part.clone() * LANES + lane.clone() + LANES;
                    let moved = r.read(from, [place.clone() - 1]);
                    let moved = Scalar::select(i.clone().equals(at.clone()), new.clone(), moved);
                    let value = Scalar::select(i.lt(at.clone()), r.read(from, [place.clone()]), moved);
                    r.store(to, [place], value);
                });
            });
            r.for_(parts, |r, part| {
                r.vector(LANES, |r, lane| {
                    let place = part.clone() * LANES + lane + LANES;
                    let value = r.read(to, [place.clone()]);
                    r.store(from, [place], value);
                });
            });
        }
    }
}

/// Vectors for so many elements.
fn vectors(k: i64) -> i64 {
    (k + LANES - 1) / LANES
}

/// The sum of a vector's lanes.
fn summed(r: &mut Nest<'_>, lanes: TensorId) -> Scalar {
    let all = r.var(Scalar::int(0, DType::I32));
    r.unrolled(LANES, |r, lane| r.set(all, r.get(all) + r.read(lanes, [lane])));
    r.get(all)
}
