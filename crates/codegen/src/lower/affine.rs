//! Index expressions as sums of axes times constants: what schedules reason about.

use hashbrown::HashMap;

use crate::loops::{AxisId, BinOp, Scalar, ScalarKind};

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
        match e.kind() {
            ScalarKind::Int(i) => Some(Affine { base: *i, terms: vec![] }),
            ScalarKind::Axis(a) => Some(Affine { base: 0, terms: vec![(*a, 1)] }),
            ScalarKind::Binary(BinOp::Add, a, b) => Some(Affine::of(a)?.plus(&Affine::of(b)?, 1)),
            ScalarKind::Binary(BinOp::Sub, a, b) => Some(Affine::of(a)?.plus(&Affine::of(b)?, -1)),
            ScalarKind::Binary(BinOp::Mul, a, b) => {
                let (a, b) = (Affine::of(a)?, Affine::of(b)?);
                match (a.terms.is_empty(), b.terms.is_empty()) {
                    (true, _) => Some(b.times(a.base)),
                    (_, true) => Some(a.times(b.base)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The axis' coefficient; 0 where it does not occur.
    pub(crate) fn coeff(&self, axis: AxisId) -> i64 {
        self.terms.iter().find(|(a, _)| *a == axis).map_or(0, |(_, c)| *c)
    }

    fn plus(&self, other: &Affine, sign: i64) -> Affine {
        let mut terms = self.terms.clone();
        for &(axis, c) in &other.terms {
            match terms.binary_search_by_key(&axis, |t| t.0) {
                Ok(i) => terms[i].1 += sign * c,
                Err(i) => terms.insert(i, (axis, sign * c)),
            }
        }
        terms.retain(|t| t.1 != 0);
        Affine { base: self.base + sign * other.base, terms }
    }

    fn times(&self, by: i64) -> Affine {
        let terms = if by == 0 { vec![] } else { self.terms.iter().map(|&(a, c)| (a, c * by)).collect() };
        Affine { base: self.base * by, terms }
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
        self.done.insert(old.key(), (old.clone(), new));
        self
    }

    /// The expression with the replacements made.
    pub(crate) fn apply(&mut self, e: &Scalar) -> Scalar {
        // The original is kept beside the result so that its address, the key, is not reused.
        if let Some((_, new)) = self.done.get(&e.key()) {
            return new.clone();
        }
        let rebuilt = e.map_operands(|o| self.apply(o));
        let new = match rebuilt.kind() {
            ScalarKind::Axis(_) | ScalarKind::Read(..) => (self.replace)(&rebuilt).unwrap_or(rebuilt),
            _ => rebuilt,
        };
        self.done.insert(e.key(), (e.clone(), new.clone()));
        new
    }
}

/// The expression with axes replaced.
pub(crate) fn replace_axes(e: &Scalar, with: &HashMap<AxisId, Scalar>) -> Scalar {
    Substitution::new(|s: &Scalar| match s.kind() {
        ScalarKind::Axis(a) => with.get(a).cloned(),
        _ => None,
    })
    .apply(e)
}

/// Calls `f` on every distinct node of an expression, operands first.
pub(crate) fn for_each_node(e: &Scalar, f: &mut impl FnMut(&Scalar)) {
    fn walk(e: &Scalar, seen: &mut hashbrown::HashSet<usize>, f: &mut impl FnMut(&Scalar)) {
        if seen.insert(e.key()) {
            for o in e.operands() {
                walk(o, seen, f);
            }
            f(e);
        }
    }
    walk(e, &mut hashbrown::HashSet::new(), f);
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
