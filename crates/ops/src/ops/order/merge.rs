//! Sorting in generated code: a stable merge sort of many lines at once. NaN counts as greater than every number.

use crate::{
    loops::{BinOp, Nest, Scalar, TensorId, UnOp},
    tensor::DType,
};

/// Elements that are ordered by comparing each with each, before runs are merged.
const BLOCK: i64 = 8;

/// What is to be sorted.
pub(in crate::ops) struct Lines {
    /// How many lines there are.
    pub count: i64,
    /// Elements of each.
    pub len: i64,
    /// Of the elements.
    pub dtype: DType,
    /// Whether the least comes first; else the greatest. Equals keep their order in both cases.
    pub ascend: bool,
    /// Whether it is wanted where the elements stood.
    pub places: bool,
}

/// Sorted lines.
#[derive(Copy, Clone)]
pub(in crate::ops) struct Sorted {
    /// The elements, `[count, len]`.
    pub keys: TensorId,
    /// Where in their lines they stood, `[count, len]` of `int32` (`int64` where lines are longer than that reaches).
    pub places: Option<TensorId>,
}

/// Where runs are: elements from `start` to before `end` of a line.
struct Span {
    line: Scalar,
    start: Scalar,
    end: Scalar,
}

impl Lines {
    /// Whether `a` belongs before `b` although it comes after it; neither is NaN.
    fn before(&self, a: &Scalar, b: &Scalar) -> Scalar {
        Scalar::binary(if self.ascend { BinOp::Lt } else { BinOp::Gt }, a.clone(), b.clone())
    }

    pub(super) fn place_dtype(&self) -> DType {
        if self.len > i32::MAX as i64 { DType::I64 } else { DType::I32 }
    }

    fn buffer(&self, r: &mut Nest<'_>, defined: bool) -> Sorted {
        let shape = [self.count, self.len];
        let mut make = |dtype| if defined { r.output(&shape, dtype) } else { r.scratch(&shape, dtype) };
        Sorted { keys: make(self.dtype), places: self.places.then(|| make(self.place_dtype())) }
    }

    /// Sorts the lines whose elements `key(nest, line, k)` gives, each of which is read once or twice. The result is defined by
    /// the routine, so that others may read it. Lines are sorted by different threads, or few ones by all of them.
    pub(in crate::ops) fn sort(&self, r: &mut Nest<'_>, key: impl Fn(&Nest<'_>, &Scalar, &Scalar) -> Scalar) -> Sorted {
        const ENOUGH: i64 = 16;
        let passes = (0..).take_while(|p| BLOCK << p < self.len).count();
        let odd = passes % 2 == 1;
        let (first, second) = (self.buffer(r, odd), self.buffer(r, !odd));
        let body = |r: &mut Nest<'_>, line: Scalar| {
            let span = self.fetch(r, line, &[first, second], &key);
            self.blocks(r, &span, first, second);
            // Pairs of passes, so that what each reads and writes has its place.
            r.for_((passes / 2) as i64, |r, turn| {
                let run = r.let_(Scalar::binary(BinOp::Shl, Scalar::index(BLOCK), turn * 2));
                self.pass(r, &span, run.clone(), second, first);
                self.pass(r, &span, run * 2, first, second);
            });
            if odd {
                self.pass(r, &span, Scalar::index(BLOCK << (passes - 1)), second, first);
            }
        };
        // A parallel loop within another is a plain one: so either lines run in parallel, or the parts of each.
        match self.count < ENOUGH {
            true => r.for_(self.count, body),
            false => r.parallel(self.count, body),
        }
        if odd { first } else { second }
    }

    /// Whether `a` belongs before `b` although it comes after it, where either may be NaN.
    pub(super) fn precedes(&self, a: &Scalar, b: &Scalar) -> Scalar {
        if !self.dtype.is_float() {
            return self.before(a, b);
        }
        let nan = |x: &Scalar| Scalar::unary(UnOp::IsNan, x.clone());
        let (greater, lesser) = if self.ascend { (b, a) } else { (a, b) };
        self.before(a, b).or(nan(greater).and(!nan(lesser)))
    }

    /// Copies a line into the first buffer; NaN goes to the line's end, or to its start, of both.
    fn fetch(
        &self,
        r: &mut Nest<'_>,
        line: Scalar,
        to: &[Sorted; 2],
        key: &impl Fn(&Nest<'_>, &Scalar, &Scalar) -> Scalar,
    ) -> Span {
        let n = self.len;
        let put = |r: &mut Nest<'_>, to: &Sorted, at: &Scalar, value: &Scalar, k: &Scalar| {
            r.store(to.keys, [line.clone(), at.clone()], value.clone());
            if let Some(places) = to.places {
                r.store(places, [line.clone(), at.clone()], k.clone().cast(self.place_dtype()));
            }
        };
        if !self.dtype.is_float() {
            r.parallel(n, |r, k| {
                let value = r.let_(key(r, &line, &k));
                put(r, &to[0], &k, &value, &k);
            });
            return Span { line, start: Scalar::index(0), end: Scalar::index(n) };
        }
        let found = r.var(0);
        r.for_(n, |r, turn| {
            let k = if self.ascend { turn } else { r.let_(Scalar::index(n - 1) - turn) };
            let value = r.let_(key(r, &line, &k));
            let at = r.let_(r.get(found));
            // Overwritten by the next number where it is none.
            let place = if self.ascend { at.clone() } else { r.let_(Scalar::index(n - 1) - at.clone()) };
            put(r, &to[0], &place, &value, &k);
            let nan = Scalar::unary(UnOp::IsNan, value);
            r.set(found, at + Scalar::select(nan, Scalar::index(0), Scalar::index(1)));
        });
        let count = r.let_(r.get(found));
        r.if_(count.clone().lt(Scalar::index(n)), |r| {
            let at = r.var(if self.ascend { count.clone() } else { Scalar::index(0) });
            r.for_(n, |r, k| {
                let value = r.let_(key(r, &line, &k));
                r.if_(Scalar::unary(UnOp::IsNan, value.clone()), |r| {
                    let place = r.let_(r.get(at));
                    to.iter().for_each(|to| put(r, to, &place, &value, &k));
                    r.set(at, place + 1);
                });
            });
        });
        match self.ascend {
            true => Span { line, start: Scalar::index(0), end: count },
            false => {
                let start = r.let_(Scalar::index(n) - count);
                Span { line, start, end: Scalar::index(n) }
            }
        }
    }

    /// Moves an element.
    pub(super) fn take(
        &self,
        r: &mut Nest<'_>,
        line: &Scalar,
        key: Scalar,
        from: (&Sorted, &Scalar),
        to: (&Sorted, &Scalar),
    ) {
        r.store(to.0.keys, [line.clone(), to.1.clone()], key);
        if let (Some(source), Some(places)) = (from.0.places, to.0.places) {
            let place = r.read(source, [line.clone(), from.1.clone()]);
            r.store(places, [line.clone(), to.1.clone()], place);
        }
    }

    /// Orders every [`BLOCK`] elements: each goes where as many precede it as belong before it.
    fn blocks(&self, r: &mut Nest<'_>, span: &Span, from: Sorted, to: Sorted) {
        let line = &span.line;
        let whole = r.let_((span.end.clone() - span.start.clone()).floor_div(BLOCK));
        r.parallel(whole.clone(), |r, block| {
            let base = r.let_(span.start.clone() + block * BLOCK);
            let keys: Vec<Scalar> =
                (0..BLOCK).map(|k| r.let_(r.read(from.keys, [line.clone(), base.clone() + k]))).collect();
            let mut ranks = vec![Scalar::index(0); BLOCK as usize];
            for later in 1..keys.len() {
                for earlier in 0..later {
                    let swap = r.let_(self.before(&keys[later], &keys[earlier]).cast(DType::I64));
                    ranks[earlier] = ranks[earlier].clone() + swap.clone();
                    ranks[later] = ranks[later].clone() + (Scalar::index(1) - swap);
                }
            }
            for (k, (key, rank)) in keys.into_iter().zip(ranks).enumerate() {
                let at = r.let_(base.clone() + rank);
                self.take(r, line, key, (&from, &(base.clone() + k as i64)), (&to, &at));
            }
        });
        let base = r.let_(span.start.clone() + whole * BLOCK);
        r.for_range(base.clone(), span.end.clone(), |r, k| {
            let key = r.let_(r.read(from.keys, [line.clone(), k.clone()]));
            let rank = r.var(base.clone());
            r.for_range(base.clone(), span.end.clone(), |r, other| {
                let key_there = r.let_(r.read(from.keys, [line.clone(), other.clone()]));
                let comes_first = other.clone().lt(k.clone());
                let stays = !self.before(&key, &key_there);
                let goes = self.before(&key_there, &key);
                let precedes = comes_first.clone().and(stays).or((!comes_first).and(goes));
                let more = Scalar::select(precedes, Scalar::index(1), Scalar::index(0));
                r.set(rank, r.get(rank) + more);
            });
            let at = r.let_(r.get(rank));
            self.take(r, line, key, (&from, &k), (&to, &at));
        });
    }

    /// Merges neighbouring runs of a length.
    fn pass(&self, r: &mut Nest<'_>, span: &Span, run: Scalar, from: Sorted, to: Sorted) {
        let pair = r.let_(run.clone() * 2);
        let len = span.end.clone() - span.start.clone();
        let pairs = Scalar::binary(BinOp::Div, len + pair.clone() - 1, pair.clone());
        r.parallel(pairs, |r, number| {
            let low = r.let_(span.start.clone() + number * pair);
            let middle = r.let_((low.clone() + run.clone()).min(span.end.clone()));
            let high = r.let_((middle.clone() + run).min(span.end.clone()));
            self.merge(r, &span.line, [low, middle, high], from, to);
        });
    }

    /// Merges the runs from `low` to before `middle` and from there to before `high`: from both ends at once, as long as
    /// none can run out, since a single chain of comparisons would wait for itself.
    fn merge(&self, r: &mut Nest<'_>, line: &Scalar, [low, middle, high]: [Scalar; 3], from: Sorted, to: Sorted) {
        let key = |r: &Nest<'_>, at: &Scalar| r.read(from.keys, [line.clone(), at.clone()]);
        let one = |c: &Scalar| c.clone().cast(DType::I64);
        let both = r.let_((middle.clone() - low.clone()).min(high.clone() - middle.clone()));
        let (left, right) = (r.var(low.clone()), r.var(middle.clone()));
        let (last_left, last_right) = (r.var(middle.clone() - 1), r.var(high.clone() - 1));
        r.for_(both.clone(), |r, k| {
            let (i, j) = (r.let_(r.get(left)), r.let_(r.get(right)));
            let (a, b) = (r.let_(key(r, &i)), r.let_(key(r, &j)));
            let (p, q) = (r.let_(r.get(last_left)), r.let_(r.get(last_right)));
            let (c, d) = (r.let_(key(r, &p)), r.let_(key(r, &q)));
            let from_right = r.let_(self.before(&b, &a));
            let at = r.let_(low.clone() + k.clone());
            let source = Scalar::select(from_right.clone(), j.clone(), i.clone());
            self.take(r, line, Scalar::select(from_right.clone(), b, a), (&from, &source), (&to, &at));
            r.set(left, i + one(&!from_right.clone()));
            r.set(right, j + one(&from_right));
            let from_left = r.let_(self.before(&d, &c));
            let at = r.let_(high.clone() - 1 - k);
            let source = Scalar::select(from_left.clone(), p.clone(), q.clone());
            self.take(r, line, Scalar::select(from_left.clone(), c, d), (&from, &source), (&to, &at));
            r.set(last_left, p - one(&from_left));
            r.set(last_right, q - one(&!from_left));
        });
        // What is left lies between the cursors.
        let (end_left, end_right) = (r.let_(r.get(last_left) + 1), r.let_(r.get(last_right) + 1));
        r.for_range(low + both.clone(), high - both, |r, at| {
            let (i, j) = (r.let_(r.get(left)), r.let_(r.get(right)));
            let more = (i.clone().lt(end_left.clone()), j.clone().lt(end_right.clone()));
            let ordered = Scalar::select(
                more.0.clone().and(more.1.clone()),
                self.before(&key(r, &j), &key(r, &i)),
                more.1.clone(),
            );
            let from_right = r.let_(ordered);
            let source = r.let_(Scalar::select(from_right.clone(), j.clone(), i.clone()));
            self.take(r, line, key(r, &source), (&from, &source), (&to, &at));
            r.set(left, i + one(&!from_right.clone()));
            r.set(right, j + one(&from_right));
        });
    }
}
