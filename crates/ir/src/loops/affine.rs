//! Index expressions as sums: what the checker and the back end know about where an access goes.

use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};

use super::{AxisId, BinOp, Scalar, ScalarKind, Seen, UnOp};
use crate::tensor::DType;

/// Least and greatest value, where they are known.
pub type Range = Option<(i64, i64)>;

/// What a sum is made of.
#[derive(Clone, PartialEq, Debug)]
pub enum Atom {
    /// A loop variable or bound scalar.
    Axis(AxisId),
    /// Any other `int64` expression.
    Expr(Scalar),
}

/// One product of a sum.
#[derive(Clone, PartialEq, Debug)]
pub struct Term {
    /// What is multiplied.
    pub atom: Atom,
    /// By what.
    pub coefficient: i64,
    /// What is known of the atom.
    pub facts: Facts,
}

/// What is known of a variable, or follows from that for an expression.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Where its values lie.
    pub range: Range,
    /// How deep the loop stands that changes it: terms are summed outermost first, so that prefixes are invariant.
    pub level: u32,
    /// Whether it differs between the lanes of the vector loop around it.
    pub varying: bool,
}

/// `constant + Σ coefficient · atom`, in wrapping 64-bit arithmetic.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Affine {
    /// The part that is known.
    pub constant: i64,
    /// The rest; no atom occurs twice and no coefficient is 0.
    pub terms: Vec<Term>,
}

/// What a variable stands for.
pub enum Meaning<'a> {
    /// A sum of other variables.
    Sum(&'a Affine),
    /// Itself.
    Atom(Facts),
}

/// Knows the variables in scope.
pub trait Scope {
    /// What a variable stands for.
    fn meaning(&self, axis: AxisId) -> Meaning<'_>;
}

/// Sums that were already worked out, by the expression's [`Scalar::key`]; to be emptied when a variable changes its meaning.
#[derive(Default, Debug)]
pub struct Memo {
    sums: HashMap<usize, Affine>,
    facts: HashMap<usize, Facts>,
    /// The expressions of those addresses: while they are held, no other expression can come to lie there.
    held: Vec<Scalar>,
}

impl Memo {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sums.clear();
        self.facts.clear();
        self.held.clear();
    }
}

impl Affine {
    /// A sum of nothing but a constant.
    pub fn constant(constant: i64) -> Affine {
        Affine { constant, terms: vec![] }
    }

    fn atom(atom: Atom, facts: Facts) -> Affine {
        Affine { constant: 0, terms: vec![Term { atom, coefficient: 1, facts }] }
    }

    /// The value, where it is known.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Whether it is nothing but the given expression.
    pub fn is_just(&self, s: &Scalar) -> bool {
        matches!(&self.terms[..], [Term { atom: Atom::Expr(e), coefficient: 1, .. }] if self.constant == 0 && e.key() == s.key())
    }

    /// The factor of a variable; 0 where it does not occur as a term.
    pub fn coefficient(&self, axis: AxisId) -> i64 {
        self.terms.iter().find(|t| t.atom == Atom::Axis(axis)).map_or(0, |t| t.coefficient)
    }

    /// The sum without a variable's term.
    pub fn without(&self, axis: AxisId) -> Affine {
        let terms = self.terms.iter().filter(|t| t.atom != Atom::Axis(axis)).cloned().collect();
        Affine { constant: self.constant, terms }
    }

    /// This plus `factor` times the other.
    pub fn plus(&self, other: &Affine, factor: i64) -> Affine {
        let mut sum = self.clone();
        sum.constant = sum.constant.wrapping_add(other.constant.wrapping_mul(factor));
        for t in &other.terms {
            let c = t.coefficient.wrapping_mul(factor);
            match sum.terms.iter_mut().find(|s| s.atom == t.atom) {
                Some(s) => s.coefficient = s.coefficient.wrapping_add(c),
                None => sum.terms.push(Term { coefficient: c, ..t.clone() }),
            }
        }
        sum.terms.retain(|t| t.coefficient != 0);
        sum
    }

    /// Where the values lie, if that can be told without overflow.
    pub fn range(&self) -> Range {
        let (mut lo, mut hi) = (self.constant, self.constant);
        for t in &self.terms {
            let (a, b) = t.facts.range?;
            let (x, y) = (a.checked_mul(t.coefficient)?, b.checked_mul(t.coefficient)?);
            lo = lo.checked_add(x.min(y))?;
            hi = hi.checked_add(x.max(y))?;
        }
        Some((lo, hi))
    }

    /// Whether any term differs between lanes.
    pub fn varying(&self) -> bool {
        self.terms.iter().any(|t| t.facts.varying)
    }

    /// Quotient and remainder of the division by a positive constant, both rounded down, where both are sums.
    fn divide(&self, by: i64) -> Option<(Affine, Affine)> {
        let whole = |t: &Term| t.coefficient % by == 0;
        let terms = |keep: bool, scale: i64| {
            let kept = self.terms.iter().filter(|t| whole(t) == keep);
            kept.map(|t| Term { coefficient: t.coefficient / scale, ..t.clone() }).collect()
        };
        let mut quotient = Affine { constant: self.constant.div_euclid(by), terms: terms(true, by) };
        let mut rest = Affine { constant: self.constant.rem_euclid(by), terms: terms(false, 1) };
        // The divisible terms may only be taken out where they can't have wrapped around.
        self.range()?;
        let (lo, hi) = rest.range()?;
        let more = lo.div_euclid(by);
        if more != hi.div_euclid(by) {
            return None;
        }
        quotient.constant = quotient.constant.checked_add(more)?;
        rest.constant = rest.constant.checked_sub(more.checked_mul(by)?)?;
        Some((quotient, rest))
    }
}

/// An `int64` expression as a sum. What is not one becomes an atom.
pub fn affine(s: &Scalar, scope: &impl Scope, memo: &mut Memo) -> Affine {
    if let ScalarKind::Int(i) = s.kind() {
        return Affine::constant(*i);
    }
    if let Some(a) = memo.sums.get(&s.key()) {
        return a.clone();
    }
    let sum = match s.kind() {
        ScalarKind::Axis(id) => match scope.meaning(*id) {
            Meaning::Sum(a) => Some(a.clone()),
            Meaning::Atom(facts) => Some(Affine::atom(Atom::Axis(*id), facts)),
        },
        ScalarKind::Binary(op, a, b) => {
            let (x, y) = (affine(a, scope, memo), affine(b, scope, memo));
            combine(*op, x, y)
        }
        ScalarKind::Select(c, a, b) => match decide(c, scope, memo) {
            Some(true) => Some(affine(a, scope, memo)),
            Some(false) => Some(affine(b, scope, memo)),
            None => None,
        },
        _ => None,
    };
    let sum = match sum {
        Some(sum) => sum,
        None => Affine::atom(Atom::Expr(s.clone()), facts(s, scope, memo)),
    };
    memo.held.push(s.clone());
    memo.sums.insert(s.key(), sum.clone());
    sum
}

fn combine(op: BinOp, x: Affine, y: Affine) -> Option<Affine> {
    match op {
        BinOp::Add => Some(x.plus(&y, 1)),
        BinOp::Sub => Some(x.plus(&y, -1)),
        BinOp::Mul => match (x.as_constant(), y.as_constant()) {
            (Some(c), _) => Some(Affine::default().plus(&y, c)),
            (_, Some(c)) => Some(Affine::default().plus(&x, c)),
            _ => product(&x, &y).or_else(|| product(&y, &x)),
        },
        BinOp::FloorDiv | BinOp::FloorMod | BinOp::Div | BinOp::Rem => {
            let by = y.as_constant().filter(|&c| c > 0)?;
            if matches!(op, BinOp::Div | BinOp::Rem) && x.range()?.0 < 0 {
                return None;
            }
            let (quotient, rest) = x.divide(by)?;
            Some(if matches!(op, BinOp::FloorDiv | BinOp::Div) { quotient } else { rest })
        }
        BinOp::Min | BinOp::Max => {
            let (lo, hi) = x.plus(&y, -1).range()?;
            match (op == BinOp::Min, lo >= 0, hi <= 0) {
                (true, _, true) | (false, true, _) => Some(x),
                (true, true, _) | (false, _, true) => Some(y),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Sums of more terms than this are not multiplied out.
const MULTIPLIED_OUT: usize = 8;

/// The product with a variable that no loop changes, such as a row's length that is a parameter of the kernel: term by term, so
/// that what changes in the innermost loop is not multiplied there.
fn product(x: &Affine, by: &Affine) -> Option<Affine> {
    let [Term { atom: Atom::Axis(factor), coefficient, facts }] = &by.terms[..] else { return None };
    let alone = x.constant == 0 && *coefficient == 1 && matches!(&x.terms[..], [Term { coefficient: 1, .. }]);
    if by.constant != 0 || facts.level != 0 || facts.varying || alone || x.terms.len() > MULTIPLIED_OUT {
        return None;
    }
    let term = |t: &Term| {
        let atom = match &t.atom {
            Atom::Axis(a) => Scalar::axis(*a),
            Atom::Expr(e) => e.clone(),
        };
        Term {
            atom: Atom::Expr(Scalar::binary(BinOp::Mul, atom, Scalar::axis(*factor))),
            coefficient: t.coefficient.wrapping_mul(*coefficient),
            facts: Facts { range: None, ..t.facts },
        }
    };
    let mut terms: Vec<Term> = x.terms.iter().map(term).collect();
    if x.constant != 0 {
        let coefficient = x.constant.wrapping_mul(*coefficient);
        terms.push(Term { atom: Atom::Axis(*factor), coefficient, facts: *facts });
    }
    terms.retain(|t| t.coefficient != 0);
    Some(Affine { constant: 0, terms })
}

/// Whether a condition holds, where the variables' ranges tell.
pub fn decide(s: &Scalar, scope: &impl Scope, memo: &mut Memo) -> Option<bool> {
    match s.kind() {
        ScalarKind::Int(i) => Some(*i != 0),
        ScalarKind::Unary(UnOp::Not, a) if a.dtype() == DType::Bool => decide(a, scope, memo).map(|b| !b),
        ScalarKind::Binary(op, a, b) if a.dtype() == DType::Bool => {
            let (x, y) = (decide(a, scope, memo), decide(b, scope, memo));
            match (op, x, y) {
                (BinOp::And, Some(false), _) | (BinOp::And, _, Some(false)) => Some(false),
                (BinOp::Or, Some(true), _) | (BinOp::Or, _, Some(true)) => Some(true),
                (BinOp::And, Some(true), Some(true)) => Some(true),
                (BinOp::Or, Some(false), Some(false)) => Some(false),
                _ => None,
            }
        }
        ScalarKind::Binary(op, a, b) if a.dtype() == DType::I64 && op.is_comparison() => {
            let (x, y) = (affine(a, scope, memo), affine(b, scope, memo));
            // Only sums that can't wrap around may be subtracted from each other.
            x.range().and(y.range())?;
            let (lo, hi) = x.plus(&y, -1).range()?;
            let (never, always) = match op {
                BinOp::Lt => (lo >= 0, hi < 0),
                BinOp::Le => (lo > 0, hi <= 0),
                BinOp::Gt => (hi <= 0, lo > 0),
                BinOp::Ge => (hi < 0, lo >= 0),
                BinOp::Eq => (lo > 0 || hi < 0, lo == 0 && hi == 0),
                _ => (lo == 0 && hi == 0, lo > 0 || hi < 0),
            };
            if always { Some(true) } else { never.then_some(false) }
        }
        _ => None,
    }
}

/// What is known of an expression that is no sum.
fn facts(s: &Scalar, scope: &impl Scope, memo: &mut Memo) -> Facts {
    if let Some(f) = memo.facts.get(&s.key()) {
        return *f;
    }
    let mut found = Facts { range: None, level: 0, varying: false };
    let mut include = |f: Facts| {
        found.level = found.level.max(f.level);
        found.varying |= f.varying;
    };
    if let ScalarKind::Axis(id) = s.kind() {
        match scope.meaning(*id) {
            Meaning::Atom(f) => include(f),
            Meaning::Sum(a) => a.terms.iter().for_each(|t| include(t.facts)),
        }
    }
    for operand in s.operands() {
        include(facts(operand, scope, memo));
    }
    if let ScalarKind::Binary(op, a, b) = s.kind()
        && s.dtype() == DType::I64
    {
        let (x, y) = (affine(a, scope, memo), affine(b, scope, memo));
        found.range = match (op, x.range(), y.as_constant()) {
            (BinOp::FloorMod, _, Some(by)) if by > 0 => Some((0, by - 1)),
            (BinOp::FloorDiv, Some((lo, hi)), Some(by)) if by > 0 => Some((lo.div_euclid(by), hi.div_euclid(by))),
            (BinOp::Min, Some((lo, hi)), _) => y.range().map(|(l, h)| (lo.min(l), hi.min(h))),
            (BinOp::Max, Some((lo, hi)), _) => y.range().map(|(l, h)| (lo.max(l), hi.max(h))),
            _ => None,
        };
    }
    memo.held.push(s.clone());
    memo.facts.insert(s.key(), found);
    found
}

/// Whether any part of an expression is as asked.
pub fn any(s: &Scalar, found: &mut impl FnMut(&Scalar) -> bool) -> bool {
    any_new(s, &mut Seen::default(), found)
}

/// The same, without what was seen before.
pub(super) fn any_new(s: &Scalar, seen: &mut Seen, found: &mut impl FnMut(&Scalar) -> bool) -> bool {
    let mut open: SmallVec<[&Scalar; 16]> = smallvec![s];
    while let Some(e) = open.pop() {
        if found(e) {
            return true;
        }
        // To look at a constant or a variable again is no more than to note it.
        open.extend(e.operands().into_iter().filter(|o| !o.is_shared() || seen.is_new(o)));
    }
    false
}

/// Whether an expression reads memory.
pub fn reads(s: &Scalar) -> bool {
    any(s, &mut |e| matches!(e.kind(), ScalarKind::Read(..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Loops(Vec<i64>);

    impl Scope for Loops {
        fn meaning(&self, axis: AxisId) -> Meaning<'_> {
            let n = self.0[axis.0 as usize];
            Meaning::Atom(Facts { range: Some((0, n - 1)), level: axis.0, varying: false })
        }
    }

    fn axis(i: u32) -> Scalar {
        Scalar::axis(AxisId(i))
    }

    #[test]
    fn splits_divide_out() {
        let scope = Loops(vec![4, 8]);
        let mut memo = Memo::default();
        let fused = axis(0) * 8 + axis(1);
        let q = affine(&fused.clone().floor_div(8), &scope, &mut memo);
        assert_eq!((q.coefficient(AxisId(0)), q.coefficient(AxisId(1)), q.constant), (1, 0, 0));
        let r = affine(&(fused.clone() + 16).floor_mod(8), &scope, &mut memo);
        assert_eq!((r.coefficient(AxisId(0)), r.coefficient(AxisId(1)), r.constant), (0, 1, 0));
        let opaque = affine(&fused.floor_div(3), &scope, &mut memo);
        assert_eq!(opaque.range(), Some((0, 10)));
    }

    #[test]
    fn conditions_follow_from_ranges() {
        let scope = Loops(vec![4, 8]);
        let mut memo = Memo::default();
        assert_eq!(decide(&axis(0).lt(Scalar::index(4)), &scope, &mut memo), Some(true));
        assert_eq!(decide(&axis(0).ge(Scalar::index(4)), &scope, &mut memo), Some(false));
        assert_eq!(decide(&axis(0).lt(axis(1)), &scope, &mut memo), None);
    }
}
