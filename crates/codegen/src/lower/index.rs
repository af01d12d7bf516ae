//! Index arithmetic made plain: divisions and remainders that reshapes leave behind vanish where the axes' extents allow it.

use hashbrown::{HashMap, HashSet};

use super::affine::Affine;
use crate::{
    loops::{AxisId, BinOp, Scalar, ScalarKind, affine},
    tensor::DType,
};

/// Simplifies expressions over axes of known extents.
pub(crate) struct Simplifier<'a> {
    extents: &'a HashMap<AxisId, i64>,
    /// Axes whose extents change: conditions on these stay, since they may hold always at one size and not at another.
    changing: Option<&'a HashSet<AxisId>>,
    /// The first axis that is none of what is computed, but was made by a schedule.
    made: u32,
    done: HashMap<usize, (Scalar, Scalar)>,
}

/// A sum of multiples of expressions, and a constant.
struct Sum {
    base: i64,
    terms: Vec<(Scalar, i64)>,
}

impl Sum {
    fn of(e: &Scalar) -> Sum {
        let mut sum = Sum { base: 0, terms: vec![] };
        sum.add(e, 1);
        sum
    }

    fn add(&mut self, e: &Scalar, by: i64) {
        match e.kind() {
            ScalarKind::Int(i) => self.base += by * i,
            ScalarKind::Binary(BinOp::Add, a, b) => {
                self.add(a, by);
                self.add(b, by);
            }
            ScalarKind::Binary(BinOp::Sub, a, b) => {
                self.add(a, by);
                self.add(b, -by);
            }
            ScalarKind::Binary(BinOp::Mul, a, b) => match (a.as_int(), b.as_int()) {
                (Some(c), _) => self.add(b, by * c),
                (_, Some(c)) => self.add(a, by * c),
                _ => self.term(e, by),
            },
            _ => self.term(e, by),
        }
    }

    fn term(&mut self, e: &Scalar, by: i64) {
        match self.terms.iter_mut().find(|t| t.0 == *e) {
            Some(t) => t.1 += by,
            None => self.terms.push((e.clone(), by)),
        }
        self.terms.retain(|t| t.1 != 0);
    }

    fn to_scalar(&self) -> Scalar {
        let sum = self.terms.iter().map(|(e, c)| e.clone() * *c).reduce(|a, b| a + b);
        match sum {
            Some(s) => s + self.base,
            None => Scalar::index(self.base),
        }
    }
}

/// `floor(of / by) mod modulus` (no modulus: just the quotient).
struct Digit {
    of: Scalar,
    by: i64,
    modulus: Option<i64>,
}

impl Digit {
    fn of(e: &Scalar) -> Digit {
        let constant = |s: &Scalar| s.as_int().filter(|&c| c > 0);
        let quotient = |e: &Scalar| match e.kind() {
            ScalarKind::Binary(BinOp::FloorDiv, a, b) if constant(b).is_some() => (a.clone(), constant(b).unwrap_or(1)),
            _ => (e.clone(), 1),
        };
        match e.kind() {
            ScalarKind::Binary(BinOp::FloorMod, a, b) if constant(b).is_some() => {
                let (of, by) = quotient(a);
                Digit { of, by, modulus: constant(b) }
            }
            _ => {
                let (of, by) = quotient(e);
                Digit { of, by, modulus: None }
            }
        }
    }

    fn to_scalar(&self) -> Scalar {
        let q = self.of.clone().floor_div(self.by);
        match self.modulus {
            Some(m) => q.floor_mod(m),
            None => q,
        }
    }
}

impl<'a> Simplifier<'a> {
    pub(crate) fn new(extents: &'a HashMap<AxisId, i64>) -> Simplifier<'a> {
        Simplifier { extents, changing: None, made: 0, done: HashMap::new() }
    }

    /// The same, where the extents of some axes change from size to size; those from `made` on were made by a schedule.
    pub(crate) fn with_changing(self, changing: Option<&'a HashSet<AxisId>>, made: u32) -> Simplifier<'a> {
        Simplifier { changing, made, ..self }
    }

    /// Whether an expression is an axis that has as many places as that by chance: it has others at other sizes.
    fn is_by_chance(&self, e: &Sum, extent: i64) -> bool {
        let [(e, 1)] = &e.terms[..] else { return false };
        let is_changing = |a: &AxisId| a.0 < self.made && self.changing.is_some_and(|c| c.contains(a));
        matches!(e.kind(), ScalarKind::Axis(a) if is_changing(a) && self.extents.get(a) == Some(&extent))
    }

    fn changes(&self, e: &Scalar) -> bool {
        let Some(changing) = self.changing.filter(|c| !c.is_empty()) else { return false };
        affine::any(e, &mut |e| matches!(e.kind(), ScalarKind::Axis(a) if changing.contains(a)))
    }

    /// An equal expression.
    pub(crate) fn simplify(&mut self, e: &Scalar) -> Scalar {
        // What stands in one place only is met once.
        let shared = e.is_shared();
        if shared && let Some((_, new)) = self.done.get(&e.key()) {
            return new.clone();
        }
        let new = match e.kind() {
            ScalarKind::Binary(op, a, b) if a.dtype() == DType::I64 => {
                let (a, b) = (self.simplify(a), self.simplify(b));
                self.binary(*op, a, b)
            }
            _ => e.map_operands(|o| self.simplify(o)),
        };
        if shared {
            self.done.insert(e.key(), (e.clone(), new.clone()));
        }
        new
    }

    fn binary(&self, op: BinOp, a: Scalar, b: Scalar) -> Scalar {
        match (op, b.as_int()) {
            (BinOp::FloorDiv, Some(c)) if c > 0 => self.divide(&a, c).0,
            (BinOp::FloorMod, Some(c)) if c > 0 => self.divide(&a, c).1,
            (BinOp::Lt | BinOp::Ge | BinOp::Le | BinOp::Gt, _) => {
                let whole = Scalar::binary(op, a.clone(), b.clone());
                if self.changes(&whole) {
                    return whole;
                }
                let Some((low, high)) = self.range(&(a - b)) else { return whole };
                let known = match op {
                    BinOp::Lt => (high < 0, low >= 0),
                    BinOp::Le => (high <= 0, low > 0),
                    BinOp::Gt => (low > 0, high <= 0),
                    _ => (low >= 0, high < 0),
                };
                match known {
                    (true, _) => Scalar::bool(true),
                    (_, true) => Scalar::bool(false),
                    _ => whole,
                }
            }
            (BinOp::Add | BinOp::Sub, _) => recombine(Sum::of(&Scalar::binary(op, a, b))).to_scalar(),
            _ => Scalar::binary(op, a, b),
        }
    }

    /// Quotient and remainder by a positive constant.
    fn divide(&self, e: &Scalar, by: i64) -> (Scalar, Scalar) {
        let plain = |e: Scalar| (e.clone().floor_div(by), e.floor_mod(by));
        // (x / a) / b is x / (a * b).
        if let ScalarKind::Binary(BinOp::FloorDiv, x, a) = e.kind()
            && let Some(a) = a.as_int().filter(|&a| a > 0)
        {
            return (x.clone().floor_div(a * by), e.clone().floor_mod(by));
        }
        let sum = Sum::of(e);
        // Multiples of the divisor leave the remainder alone.
        let (even, odd): (Vec<_>, Vec<_>) = sum.terms.into_iter().partition(|t| t.1 % by == 0);
        let quotient =
            Sum { base: sum.base.div_euclid(by), terms: even.into_iter().map(|(e, c)| (e, c / by)).collect() };
        let rest = Sum { base: sum.base.rem_euclid(by), terms: odd };
        if let Some((low, high)) = self.range(&rest.to_scalar())
            && low >= 0
            && high < by
            && !self.is_by_chance(&rest, by)
        {
            return (quotient.to_scalar(), rest.to_scalar());
        }
        // (g*x + r) / (g*n) is x / n where 0 <= r < g.
        for g in rest.terms.iter().map(|t| gcd(t.1, by)).filter(|&g| g > 1 && g < by) {
            let (high, low): (Vec<_>, Vec<_>) = rest.terms.iter().cloned().partition(|t| t.1 % g == 0);
            let low = Sum { base: rest.base.rem_euclid(g), terms: low }.to_scalar();
            if self.range(&low).is_some_and(|(l, h)| l >= 0 && h < g) {
                let terms = high.into_iter().map(|(e, c)| (e, c / g)).collect();
                let (q, r) = self.divide(&Sum { base: rest.base.div_euclid(g), terms }.to_scalar(), by / g);
                return (quotient.to_scalar() + q, r * g + low);
            }
        }
        let (q, r) = plain(rest.to_scalar());
        (quotient.to_scalar() + q, r)
    }

    /// The least and greatest value, where both are known.
    fn range(&self, e: &Scalar) -> Option<(i64, i64)> {
        let sum = Sum::of(e);
        let (mut low, mut high) = (sum.base, sum.base);
        for (e, c) in &sum.terms {
            let (l, h) = match e.kind() {
                ScalarKind::Axis(a) => (0, self.extents.get(a)? - 1),
                ScalarKind::Binary(BinOp::FloorMod, _, m) => (0, m.as_int().filter(|&m| m > 0)? - 1),
                ScalarKind::Binary(BinOp::FloorDiv, a, d) => {
                    let d = d.as_int().filter(|&d| d > 0)?;
                    let (l, h) = self.range(a)?;
                    (l.div_euclid(d), h.div_euclid(d))
                }
                _ => return None,
            };
            low += if *c > 0 { c * l } else { c * h };
            high += if *c > 0 { c * h } else { c * l };
        }
        Some((low, high))
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// Joins neighbouring digits of one number: `(x / s mod d) * s + (x / (s*d)) * (s*d)` is `(x / s) * s`.
fn recombine(mut sum: Sum) -> Sum {
    'again: loop {
        for i in 0..sum.terms.len() {
            let low = Digit::of(&sum.terms[i].0);
            let Some(d) = low.modulus else { continue };
            for j in 0..sum.terms.len() {
                let high = Digit::of(&sum.terms[j].0);
                let neighbours =
                    i != j && high.of == low.of && high.by == low.by * d && sum.terms[j].1 == sum.terms[i].1 * d;
                if neighbours {
                    let joined = Digit { modulus: high.modulus.map(|m| m * d), ..low };
                    let by = sum.terms[i].1;
                    let (first, second) = (i.min(j), i.max(j));
                    sum.terms.remove(second);
                    sum.terms.remove(first);
                    sum.add(&joined.to_scalar(), by);
                    continue 'again;
                }
            }
        }
        return sum;
    }
}

/// Whether two index expressions are equal as sums of axes.
pub(crate) fn same_affine(a: &Scalar, b: &Scalar) -> bool {
    Affine::of(a).is_some_and(|x| Affine::of(b).is_some_and(|y| x == y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reshape_and_back_is_nothing() {
        let (i, j) = (AxisId(0), AxisId(1));
        let extents = HashMap::from_iter([(i, 6), (j, 8)]);
        let flat = Scalar::axis(i) * 8 + Scalar::axis(j);
        let mut s = Simplifier::new(&extents);
        // As (2, 3, 2, 4), where only the last two digits align with the axes.
        let digits = [
            flat.clone().floor_div(24),
            flat.clone().floor_div(8).floor_mod(3),
            flat.clone().floor_div(4).floor_mod(2),
            flat.clone().floor_mod(4),
        ];
        let [a, b, c, d] = digits;
        let back = a * 24 + b * 8 + c * 4 + d;
        assert!(same_affine(&s.simplify(&back), &flat));
        assert!(same_affine(&s.simplify(&flat.clone().floor_div(8)), &Scalar::axis(i)));
        let inside = flat.clone().lt(Scalar::index(48));
        assert_eq!(s.simplify(&inside).as_int(), Some(1));
    }
}
