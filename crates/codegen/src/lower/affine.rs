//! Index expressions as sums of axes times constants: what schedules reason about.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::loops::{AxisId, BinOp, Scalar, ScalarKind, Seen};

/// `base + sum of coefficient * axis`; axes in ascending order, coefficients not zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Affine {
    /// The constant part.
    pub base: i64,
    /// Axes and their coefficients.
    pub terms: Vec<(AxisId, i64)>,
}

impl Affine {
    /// The affine form of an index expression, where it has one.
    pub(crate) fn of(e: &Scalar) -> Option<Affine> {
        let mut sum = Affine::default();
        sum.add(e, 1)?;
        Some(sum.without_zeros())
    }

    /// Adds a multiple of an expression. None where that has no such form: then the sum is of no use any more.
    fn add(&mut self, e: &Scalar, by: i64) -> Option<()> {
        match e.kind() {
            ScalarKind::Int(i) => self.base += by * i,
            ScalarKind::Axis(a) => self.add_term(*a, by),
            ScalarKind::Binary(BinOp::Add, a, b) => {
                self.add(a, by)?;
                self.add(b, by)?;
            }
            ScalarKind::Binary(BinOp::Sub, a, b) => {
                self.add(a, by)?;
                self.add(b, -by)?;
            }
            ScalarKind::Binary(BinOp::Mul, a, b) => match (a.as_int(), b.as_int()) {
                (_, Some(c)) => self.add(a, by * c)?,
                (Some(c), _) => self.add(b, by * c)?,
                _ => {
                    let (a, b) = (Affine::of(a)?, Affine::of(b)?);
                    let (sum, times) = match (a.terms.is_empty(), b.terms.is_empty()) {
                        (true, _) => (b, a.base),
                        (_, true) => (a, b.base),
                        _ => return None,
                    };
                    self.base += by * times * sum.base;
                    sum.terms.iter().for_each(|&(axis, c)| self.add_term(axis, by * times * c));
                }
            },
            _ => return None,
        }
        Some(())
    }

    fn add_term(&mut self, axis: AxisId, by: i64) {
        match self.terms.binary_search_by_key(&axis, |t| t.0) {
            Ok(i) => self.terms[i].1 += by,
            Err(i) => self.terms.insert(i, (axis, by)),
        }
    }

    fn without_zeros(mut self) -> Affine {
        self.terms.retain(|t| t.1 != 0);
        self
    }

    /// The sum of multiples of index expressions, where all have such a form.
    pub(crate) fn of_sum<'a>(terms: impl IntoIterator<Item = (&'a Scalar, i64)>) -> Option<Affine> {
        let mut sum = Affine::default();
        terms.into_iter().try_for_each(|(e, by)| sum.add(e, by))?;
        Some(sum.without_zeros())
    }

    /// The axis' coefficient; 0 where it does not occur.
    #[inline]
    pub(crate) fn coeff(&self, axis: AxisId) -> i64 {
        self.terms.iter().find(|(a, _)| *a == axis).map_or(0, |(_, c)| *c)
    }

    /// As an expression, axes in ascending order.
    pub(crate) fn in_order(&self) -> Scalar {
        let sum = self.terms.iter().map(|&(a, c)| Scalar::axis(a) * c).reduce(|a, b| a + b);
        match sum {
            Some(s) => s + self.base,
            None => Scalar::index(self.base),
        }
    }

    /// As an expression: outer axes (large coefficients) first, so that what changes least is computed first.
    pub(crate) fn to_scalar(&self) -> Scalar {
        let mut terms = self.terms.clone();
        terms.sort_by_key(|t| std::cmp::Reverse(t.1.abs()));
        let sum = terms.into_iter().map(|(a, c)| Scalar::axis(a) * c).reduce(|a, b| a + b);
        match sum {
            Some(s) => s + self.base,
            None => Scalar::index(self.base),
        }
    }
}

/// Terms of a sum: products of one or two variables, each with what it is multiplied by.
type Products = SmallVec<[((AxisId, Option<AxisId>), i64); 8]>;

/// An index expression as a sum of products of one or two variables, in the order of these, where it is one: of places and of strides that have
/// names.
pub(crate) fn in_order(e: &Scalar) -> Option<Scalar> {
    fn push(terms: &mut Products, product: (AxisId, Option<AxisId>), by: i64) {
        match terms.binary_search_by_key(&product, |t| t.0) {
            Ok(i) => terms[i].1 += by,
            Err(i) => terms.insert(i, (product, by)),
        }
    }
    fn add(e: &Scalar, by: i64, base: &mut i64, terms: &mut Products) -> Option<()> {
        match e.kind() {
            ScalarKind::Int(i) => *base += by * i,
            ScalarKind::Axis(a) => push(terms, (*a, None), by),
            ScalarKind::Binary(BinOp::Add, a, b) => {
                add(a, by, base, terms)?;
                add(b, by, base, terms)?;
            }
            ScalarKind::Binary(BinOp::Sub, a, b) => {
                add(a, by, base, terms)?;
                add(b, -by, base, terms)?;
            }
            ScalarKind::Binary(BinOp::Mul, a, b) => {
                let (mut x, mut y) = ((0, Products::new()), (0, Products::new()));
                add(a, by, &mut x.0, &mut x.1)?;
                add(b, 1, &mut y.0, &mut y.1)?;
                *base += x.0 * y.0;
                x.1.iter().for_each(|t| push(terms, t.0, t.1 * y.0));
                y.1.iter().for_each(|t| push(terms, t.0, t.1 * x.0));
                for (&((a, first), m), &((b, second), n)) in x.1.iter().flat_map(|x| y.1.iter().map(move |y| (x, y))) {
                    let (None, None) = (first, second) else { return None };
                    push(terms, (a, Some(b)), m * n);
                }
            }
            _ => return None,
        }
        Some(())
    }
    let (mut base, mut terms) = (0, Products::new());
    add(e, 1, &mut base, &mut terms)?;
    terms.retain(|t| t.1 != 0);
    let term = |((a, by), c): ((AxisId, Option<AxisId>), i64)| match by {
        Some(by) => Scalar::axis(a) * Scalar::axis(by) * c,
        None => Scalar::axis(a) * c,
    };
    let sum = terms.into_iter().map(term).reduce(|a, b| a + b);
    Some(sum.map_or_else(|| Scalar::index(base), |s| s + base))
}

/// Replaces axes and reads throughout an expression, each shared node once.
pub(crate) struct Substitution<F> {
    replace: F,
    done: HashMap<usize, (Scalar, Scalar)>,
}

impl<F: FnMut(&Scalar) -> Option<Scalar>> Substitution<F> {
    /// A substitution by a function that gets each axis or read (operands replaced already).
    pub(crate) fn new(replace: F) -> Self {
        Substitution { replace, done: HashMap::new() }
    }

    /// The same, and that very node becomes something else.
    pub(crate) fn and(mut self, old: &Scalar, new: Scalar) -> Self {
        debug_assert!(!old.operands().is_empty(), "axes and constants are replaced by the function");
        self.done.insert(old.key(), (old.clone(), new));
        self
    }

    /// The expression with the replacements made.
    pub(crate) fn apply(&mut self, e: &Scalar) -> Scalar {
        match e.kind() {
            ScalarKind::Axis(_) => return (self.replace)(e).unwrap_or_else(|| e.clone()),
            ScalarKind::Int(_) | ScalarKind::Float(_) => return e.clone(),
            _ => {}
        }
        // The original is kept beside the result so that its address, the key, is not reused.
        // What stands in one place only is met once.
        let shared = e.is_shared();
        if shared && let Some((_, new)) = self.done.get(&e.key()) {
            return new.clone();
        }
        let (mut operands, mut is_same): (SmallVec<[Scalar; 3]>, bool) = (SmallVec::new(), true);
        e.for_each_operand(|old| {
            let new = self.apply(old);
            is_same &= new.key() == old.key();
            operands.push(new);
        });
        let rebuilt = match is_same {
            true => e.clone(),
            false => {
                let mut operands = operands.into_iter();
                e.map_operands(|o| operands.next().unwrap_or_else(|| o.clone()))
            }
        };
        let new = match rebuilt.kind() {
            ScalarKind::Read(..) => (self.replace)(&rebuilt).unwrap_or(rebuilt),
            _ => rebuilt,
        };
        if shared {
            self.done.insert(e.key(), (e.clone(), new.clone()));
        }
        new
    }
}

/// The expression with axes replaced.
pub(crate) fn replace_axes(e: &Scalar, with: &HashMap<AxisId, Scalar>) -> Scalar {
    if with.is_empty() {
        return e.clone();
    }
    Substitution::new(|s: &Scalar| match s.kind() {
        ScalarKind::Axis(a) => with.get(a).cloned(),
        _ => None,
    })
    .apply(e)
}

/// Calls `f` on every distinct node of an expression, operands first.
pub(crate) fn for_each_node(e: &Scalar, f: &mut impl FnMut(&Scalar)) {
    fn walk(e: &Scalar, seen: &mut Seen, f: &mut impl FnMut(&Scalar)) {
        if seen.is_new(e) {
            e.for_each_operand(|o| walk(o, seen, f));
            f(e);
        }
    }
    walk(e, &mut Seen::default(), f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_forms_collect_coefficients() {
        let (i, j) = (AxisId(0), AxisId(1));
        let e = (Scalar::axis(i) * 2 + Scalar::axis(j) - 1) * 3 + Scalar::axis(i);
        let a = Affine::of(&e).unwrap();
        assert_eq!((a.base, a.coeff(i), a.coeff(j)), (-3, 7, 3));
        assert!(Affine::of(&Scalar::axis(i).floor_div(2)).is_none());
        assert_eq!(Affine::of(&a.to_scalar()).unwrap(), a);
    }
}
