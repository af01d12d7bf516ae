//! Scalar expressions: the one language of element values and of indices into tensors.

use std::{fmt, ops, sync::Arc};

use hashbrown::HashSet;
use smallvec::SmallVec;

use crate::tensor::DType;

/// A loop variable (or, in a nest, a bound scalar), unique within its stages or kernel.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AxisId(pub u32);

/// A tensor of [`Stages`](super::Stages), or the buffer of that number in a [`Kernel`](super::Kernel).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TensorId(pub u32);

/// Binary operations. Both sides have one dtype, which is the result's too, except that comparisons give `bool`.
/// Integers wrap around. Of `bool`, sums and the greater are "or", products and the smaller "and", differences "exclusive or".
/// Compiled code gives 0 for an integer divided by 0, and for its remainder; the interpreters report it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum BinOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; integers truncate towards zero.
    Div,
    /// Remainder with the dividend's sign; C's `%` and `fmod`.
    Rem,
    /// Quotient rounded down.
    FloorDiv,
    /// Remainder with the divisor's sign.
    FloorMod,
    /// The smaller; of floats the second where either is NaN, as `a < b ? a : b`.
    Min,
    /// The greater; of floats the second where either is NaN, as `a > b ? a : b`.
    Max,
    /// Power, floats only.
    Pow,
    /// Arc tangent of a quotient, floats only.
    Atan2,
    /// Bits and.
    And,
    /// Bits or.
    Or,
    /// Bits exclusive or.
    Xor,
    /// Shift left; by the width or more gives 0. Negative amounts have no meaning.
    Shl,
    /// Shift right: arithmetic for signed integers, logical for unsigned ones; by the width or more leaves the sign alone.
    Shr,
    /// Equal.
    Eq,
    /// Not equal (true for NaN).
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl BinOp {
    /// Whether the result is `bool` whatever the operands are.
    pub fn is_comparison(self) -> bool {
        matches!(self, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
    }

    /// Whether it is a quotient or what is left of one.
    pub fn is_division(self) -> bool {
        matches!(self, BinOp::Div | BinOp::Rem | BinOp::FloorDiv | BinOp::FloorMod)
    }
}

/// Unary operations. The result has the operand's dtype, except for the three tests, which give `bool`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum UnOp {
    /// Sign changed.
    Neg,
    /// Magnitude.
    Abs,
    /// Bits inverted; of `bool`, logical not.
    Not,
    /// e to the power.
    Exp,
    /// 2 to the power.
    Exp2,
    /// Natural logarithm.
    Log,
    /// Logarithm to base 2.
    Log2,
    /// Logarithm to base 10.
    Log10,
    /// Square root.
    Sqrt,
    /// Reciprocal of the square root.
    Rsqrt,
    /// Gauss error function.
    Erf,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Inverse sine.
    Asin,
    /// Inverse cosine.
    Acos,
    /// Inverse tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// Rounded down.
    Floor,
    /// Rounded up.
    Ceil,
    /// Rounded towards zero.
    Trunc,
    /// Rounded to nearest, halves away from zero.
    Round,
    /// Rounded to nearest, halves to even.
    RoundEven,
    /// Zero of its sign for what is too small to be a normal number, else the operand. Of `float32` only.
    FlushSubnormal,
    /// Number of bits set, of an integer.
    Popcount,
    /// Whether it is NaN.
    IsNan,
    /// Whether it is an infinity.
    IsInf,
    /// Whether it is neither NaN nor an infinity.
    IsFinite,
}

impl UnOp {
    /// Whether the result is `bool` whatever the operand is.
    pub fn is_test(self) -> bool {
        matches!(self, UnOp::IsNan | UnOp::IsInf | UnOp::IsFinite)
    }
}

/// What a scalar expression is.
#[derive(Clone, PartialEq, Debug)]
pub enum ScalarKind {
    /// An integer or `bool` constant.
    Int(i64),
    /// A floating point constant.
    Float(f64),
    /// A loop variable or a scalar bound by [`Stmt::Let`](super::Stmt::Let).
    Axis(AxisId),
    /// An element: in stages, one index per axis; in a nest, one index, in elements from the buffer's start.
    Read(TensorId, Vec<Scalar>),
    /// A binary operation.
    Binary(BinOp, Scalar, Scalar),
    /// A unary operation.
    Unary(UnOp, Scalar),
    /// The second where the first (a `bool`) holds, else the third. Only the chosen side is read from memory.
    Select(Scalar, Scalar, Scalar),
    /// Conversion to the expression's dtype: to floats rounded to nearest even, to integers truncated towards zero and
    /// wrapped, to `bool` whether it is not zero. What a float gives is unspecified where it is NaN or its integer part does
    /// not fit the machine's conversion: that to the type itself, or to `int32` for narrower types.
    Cast(Scalar),
    /// The same bits read as the expression's dtype, which is of the same width; one of both types is a float.
    Bits(Scalar),
    /// Dot product of short vectors of narrow numbers: the first operand plus the products of the others, which follow in pairs. The
    /// sum is `int32`, of factors that are `int8` or `uint8`, or `int16` all of them, and wraps; or it is `float32`, of factors that are `bfloat16`, and
    /// may be rounded after each product or once.
    Dot(Vec<Scalar>),
    /// Fixed-point multiplication `int32((int64(x) * int64(m) + round) >> shift)`: of `x` and `m`, both `int32`, and of `round` and
    /// `shift`, both `int64`.
    MulShift(Box<[Scalar; 4]>),
    /// Conversion of an `int32` to the expression's dtype, `int8` or `uint8`: to the nearest number that it holds.
    Saturate(Scalar),
}

#[derive(PartialEq, Debug)]
struct Node {
    kind: ScalarKind,
    dtype: DType,
}

/// Nodes that a walk has met and may meet again.
#[derive(Default, Debug)]
pub struct Seen {
    few: SmallVec<[usize; 16]>,
    many: HashSet<usize>,
}

impl Seen {
    /// Whether a node is met for the first time. Of one that stands in one place only nothing is noted: it is not met again.
    pub fn is_new(&mut self, node: &Scalar) -> bool {
        if Arc::strong_count(&node.0) == 1 {
            return true;
        }
        let key = node.key();
        if !self.many.is_empty() {
            return self.many.insert(key);
        }
        if self.few.contains(&key) {
            return false;
        }
        if self.few.len() < self.few.inline_size() {
            self.few.push(key);
        } else {
            self.many.extend(self.few.drain(..).chain([key]));
        }
        true
    }
}

/// A shared scalar expression. Indices have dtype `int64`.
#[derive(Clone, PartialEq)]
pub struct Scalar(Arc<Node>);

impl Scalar {
    #[inline]
    fn make(kind: ScalarKind, dtype: DType) -> Scalar {
        Scalar(Arc::new(Node { kind, dtype }))
    }

    /// What it is.
    #[inline]
    pub fn kind(&self) -> &ScalarKind {
        &self.0.kind
    }

    /// The value's type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Address of the shared node: equal for the same expression used twice.
    #[inline]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Whether walks can meet the node several times: then they should remember what they found, or take as long as the
    /// expression written out is.
    #[inline]
    pub fn is_shared(&self) -> bool {
        let leaf = matches!(self.0.kind, ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_));
        !leaf && Arc::strong_count(&self.0) > 1
    }

    /// An index constant.
    #[inline]
    pub fn index(i: i64) -> Scalar {
        Scalar::make(ScalarKind::Int(i), DType::I64)
    }

    /// A constant of an integer type or `bool`; of a float type it is converted.
    pub fn int(i: i64, dtype: DType) -> Scalar {
        if dtype.is_float() { Scalar::float(i as f64, dtype) } else { Scalar::make(ScalarKind::Int(i), dtype) }
    }

    /// A constant of a float type; of an integer type it is truncated and wraps, of `bool` whether it is not zero.
    pub fn float(f: f64, dtype: DType) -> Scalar {
        match dtype {
            d if d.is_float() => Scalar::make(ScalarKind::Float(f), dtype),
            DType::Bool => Scalar::bool(f != 0.0),
            _ => {
                let wrapped = super::num::as_dtype(super::num::Num::Int(f as i64), dtype);
                Scalar::make(ScalarKind::Int(wrapped.int()), dtype)
            }
        }
    }

    /// A `bool` constant.
    pub fn bool(b: bool) -> Scalar {
        Scalar::int(b as i64, DType::Bool)
    }

    /// A loop variable.
    #[inline]
    pub fn axis(id: AxisId) -> Scalar {
        Scalar::make(ScalarKind::Axis(id), DType::I64)
    }

    /// A scalar of any type bound by [`Stmt::Let`](super::Stmt::Let).
    #[inline]
    pub fn bound(id: AxisId, dtype: DType) -> Scalar {
        Scalar::make(ScalarKind::Axis(id), dtype)
    }

    /// An element of a tensor or buffer.
    pub fn read(tensor: TensorId, index: Vec<Scalar>, dtype: DType) -> Scalar {
        Scalar::make(ScalarKind::Read(tensor, index), dtype)
    }

    /// A binary operation. Integer constants fold, and 0 and 1 vanish from index arithmetic.
    pub fn binary(op: BinOp, a: Scalar, b: Scalar) -> Scalar {
        assert_eq!(a.dtype(), b.dtype(), "{op:?} of two dtypes");
        if a.dtype() == DType::I64
            && let Some(folded) = fold_index(op, &a, &b)
        {
            return folded;
        }
        let dtype = if op.is_comparison() { DType::Bool } else { a.dtype() };
        Scalar::make(ScalarKind::Binary(op, a, b), dtype)
    }

    /// A unary operation.
    pub fn unary(op: UnOp, a: Scalar) -> Scalar {
        let dtype = if op.is_test() { DType::Bool } else { a.dtype() };
        Scalar::make(ScalarKind::Unary(op, a), dtype)
    }

    /// `then` where `cond` holds, else `otherwise`.
    pub fn select(cond: Scalar, then: Scalar, otherwise: Scalar) -> Scalar {
        assert_eq!(cond.dtype(), DType::Bool, "a condition is a bool");
        assert_eq!(then.dtype(), otherwise.dtype(), "select of two dtypes");
        match cond.as_int() {
            Some(0) => otherwise,
            Some(_) => then,
            None => {
                let dtype = then.dtype();
                Scalar::make(ScalarKind::Select(cond, then, otherwise), dtype)
            }
        }
    }

    /// Converted to another type; itself where it has that type. What is clipped to the range of bytes [saturates](ScalarKind::Saturate);
    /// an `int32` of a product of two that were widened is a [fixed-point multiplication](ScalarKind::MulShift).
    pub fn cast(self, dtype: DType) -> Scalar {
        if self.dtype() == dtype {
            return self;
        }
        if let Some(x) = clipped(&self, dtype) {
            return x.saturate(dtype);
        }
        match fixed_point(&self).filter(|_| dtype == DType::I32) {
            Some(operands) => Scalar::make(ScalarKind::MulShift(Box::new(operands)), dtype),
            None => Scalar::make(ScalarKind::Cast(self), dtype),
        }
    }

    /// An `int32` as the nearest number of a type of bytes.
    pub fn saturate(self, dtype: DType) -> Scalar {
        Scalar::make(ScalarKind::Saturate(self), dtype)
    }

    /// The sum plus the products of each two factors: see [`ScalarKind::Dot`].
    pub fn dot(sum: Scalar, factors: impl IntoIterator<Item = [Scalar; 2]>) -> Scalar {
        let dtype = sum.dtype();
        let operands = std::iter::once(sum).chain(factors.into_iter().flatten()).collect();
        Scalar::make(ScalarKind::Dot(operands), dtype)
    }

    /// `int32((x * m + round) >> shift)` of four `int64`: a [fixed-point multiplication](ScalarKind::MulShift) where `x` and `m` are
    /// `int32` that were widened.
    pub fn mul_shift(x: Scalar, m: Scalar, round: Scalar, shift: Scalar) -> Scalar {
        Scalar::binary(BinOp::Shr, x * m + round, shift).cast(DType::I32)
    }

    /// The same value by operations that every machine has, for a dot product, a fixed-point multiplication or a saturating conversion.
    pub fn expanded(&self) -> Option<Scalar> {
        let dtype = self.dtype();
        match self.kind() {
            ScalarKind::Dot(operands) => {
                let (sum, factors) = operands.split_first()?;
                let product = |pair: &[Scalar]| pair[0].clone().cast(dtype) * pair[1].clone().cast(dtype);
                Some(factors.chunks_exact(2).fold(sum.clone(), |sum, pair| sum + product(pair)))
            }
            ScalarKind::MulShift(operands) => {
                let [x, m, round, shift] = &**operands;
                let product = x.clone().cast(DType::I64) * m.clone().cast(DType::I64);
                let shifted = Scalar::binary(BinOp::Shr, product + round.clone(), shift.clone());
                Some(Scalar::make(ScalarKind::Cast(shifted), dtype))
            }
            ScalarKind::Saturate(x) => {
                let (least, most) = dtype.int_range()?;
                let bound = |b: i128| Scalar::int(b as i64, x.dtype());
                let clip = x.clone().min(bound(most)).max(bound(least));
                Some(Scalar::make(ScalarKind::Cast(clip), dtype))
            }
            _ => None,
        }
    }

    /// The same bits as another type of the same width; itself where it has that type.
    pub fn bits(self, dtype: DType) -> Scalar {
        assert_eq!(self.dtype().bits(), dtype.bits(), "bits read as a type of another width");
        match self.dtype().is_float() || dtype.is_float() {
            true if self.dtype() != dtype => Scalar::make(ScalarKind::Bits(self), dtype),
            _ => self.cast(dtype),
        }
    }

    /// The value, where it is an integer or `bool` constant.
    #[inline]
    pub fn as_int(&self) -> Option<i64> {
        match self.kind() {
            ScalarKind::Int(i) => Some(*i),
            _ => None,
        }
    }

    /// Quotient rounded down.
    pub fn floor_div(self, by: i64) -> Scalar {
        Scalar::binary(BinOp::FloorDiv, self, Scalar::index(by))
    }

    /// Remainder with the divisor's sign.
    pub fn floor_mod(self, by: i64) -> Scalar {
        Scalar::binary(BinOp::FloorMod, self, Scalar::index(by))
    }

    /// The smaller.
    pub fn min(self, other: Scalar) -> Scalar {
        Scalar::binary(BinOp::Min, self, other)
    }

    /// The greater.
    pub fn max(self, other: Scalar) -> Scalar {
        Scalar::binary(BinOp::Max, self, other)
    }

    /// Whether it is less.
    pub fn lt(self, other: Scalar) -> Scalar {
        Scalar::binary(BinOp::Lt, self, other)
    }

    /// Whether it is greater or equal.
    pub fn ge(self, other: Scalar) -> Scalar {
        Scalar::binary(BinOp::Ge, self, other)
    }

    /// Whether both hold.
    pub fn and(self, other: Scalar) -> Scalar {
        match (self.as_int(), other.as_int()) {
            (Some(1), _) if self.dtype() == DType::Bool => other,
            (_, Some(1)) if self.dtype() == DType::Bool => self,
            _ => Scalar::binary(BinOp::And, self, other),
        }
    }

    /// The direct operands.
    #[inline]
    pub fn operands(&self) -> SmallVec<[&Scalar; 3]> {
        let mut all = SmallVec::new();
        self.for_each_operand(|o| all.push(o));
        all
    }

    /// Calls `f` on every direct operand, in order.
    #[inline]
    pub fn for_each_operand<'a>(&'a self, mut f: impl FnMut(&'a Scalar)) {
        match self.kind() {
            ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_) => {}
            ScalarKind::Read(_, index) => index.iter().for_each(f),
            ScalarKind::Binary(_, a, b) => {
                f(a);
                f(b);
            }
            ScalarKind::Unary(_, a) | ScalarKind::Cast(a) | ScalarKind::Bits(a) | ScalarKind::Saturate(a) => f(a),
            ScalarKind::Select(c, a, b) => {
                f(c);
                f(a);
                f(b);
            }
            ScalarKind::Dot(operands) => operands.iter().for_each(f),
            ScalarKind::MulShift(operands) => operands.iter().for_each(f),
        }
    }

    /// The same node over other operands, which `f` gives in order. Constants fold as when it is made.
    pub fn map_operands(&self, mut f: impl FnMut(&Scalar) -> Scalar) -> Scalar {
        let dtype = self.dtype();
        match self.kind() {
            ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_) => self.clone(),
            ScalarKind::Read(t, index) => Scalar::read(*t, index.iter().map(f).collect(), dtype),
            ScalarKind::Binary(op, a, b) => {
                let a = f(a);
                Scalar::binary(*op, a, f(b))
            }
            ScalarKind::Unary(op, a) => Scalar::unary(*op, f(a)),
            ScalarKind::Select(c, a, b) => {
                let (c, a) = (f(c), f(a));
                Scalar::select(c, a, f(b))
            }
            ScalarKind::Cast(a) => f(a).cast(dtype),
            ScalarKind::Bits(a) => f(a).bits(dtype),
            ScalarKind::Dot(operands) => Scalar::make(ScalarKind::Dot(operands.iter().map(f).collect()), dtype),
            ScalarKind::MulShift(operands) => {
                Scalar::make(ScalarKind::MulShift(Box::new(operands.each_ref().map(f))), dtype)
            }
            ScalarKind::Saturate(a) => f(a).saturate(dtype),
        }
    }

    /// The same expression with axes and reads replaced where `f` gives something for them (after their operands were).
    pub fn rewrite(&self, f: &mut impl FnMut(&Scalar) -> Option<Scalar>) -> Scalar {
        let new = self.map_operands(|o| o.rewrite(f));
        f(&new).unwrap_or(new)
    }
}

/// The `int32` that is clipped to the range of a type of bytes; where it is clipped to less than that, what is clipped already.
fn clipped(clip: &Scalar, dtype: DType) -> Option<Scalar> {
    if clip.dtype() != DType::I32 || !matches!(dtype, DType::I8 | DType::U8) {
        return None;
    }
    let (least, most) = dtype.int_range()?;
    let bound = |s: &Scalar, wanted: BinOp| match s.kind() {
        ScalarKind::Binary(op, x, b) if *op == wanted => Some((x.clone(), i128::from(b.as_int()?))),
        _ => None,
    };
    let ends = |outer, inner| {
        let (x, a) = bound(clip, outer)?;
        let (x, b) = bound(&x, inner)?;
        let (low, high) = if outer == BinOp::Max { (a, b) } else { (b, a) };
        Some((x, low, high))
    };
    let (x, low, high) = ends(BinOp::Max, BinOp::Min).or_else(|| ends(BinOp::Min, BinOp::Max))?;
    if low < least || high > most || low > high {
        return None;
    }
    Some(if (low, high) == (least, most) { x } else { clip.clone() })
}

/// The operands of a fixed-point multiplication whose result is this, before it is converted to `int32`.
fn fixed_point(shifted: &Scalar) -> Option<[Scalar; 4]> {
    let binary = |s: &Scalar, wanted: BinOp| match s.kind() {
        ScalarKind::Binary(op, a, b) if *op == wanted && s.dtype() == DType::I64 => Some((a.clone(), b.clone())),
        _ => None,
    };
    let (sum, shift) = binary(shifted, BinOp::Shr)?;
    let (product, round) = binary(&sum, BinOp::Add).unwrap_or_else(|| (sum, Scalar::int(0, DType::I64)));
    let (x, m) = binary(&product, BinOp::Mul)?;
    Some([unwidened(&x)?, unwidened(&m)?, round, shift])
}

/// The `int32` that an `int64` was widened from, or a constant that is one.
fn unwidened(s: &Scalar) -> Option<Scalar> {
    match s.kind() {
        ScalarKind::Int(i) if i32::try_from(*i).is_ok() => Some(Scalar::int(*i, DType::I32)),
        ScalarKind::Cast(x) if x.dtype() == DType::I32 => Some(x.clone()),
        _ => None,
    }
}

fn fold_index(op: BinOp, a: &Scalar, b: &Scalar) -> Option<Scalar> {
    let folded = match (op, a.as_int(), b.as_int()) {
        (BinOp::Add, Some(x), Some(y)) => x.wrapping_add(y),
        (BinOp::Sub, Some(x), Some(y)) => x.wrapping_sub(y),
        (BinOp::Mul, Some(x), Some(y)) => x.wrapping_mul(y),
        (BinOp::FloorDiv, Some(x), Some(y)) if y > 0 => x.div_euclid(y),
        (BinOp::FloorMod, Some(x), Some(y)) if y > 0 => x.rem_euclid(y),
        (BinOp::Min, Some(x), Some(y)) => x.min(y),
        (BinOp::Max, Some(x), Some(y)) => x.max(y),
        (BinOp::Lt, Some(x), Some(y)) => return Some(Scalar::bool(x < y)),
        (BinOp::Ge, Some(x), Some(y)) => return Some(Scalar::bool(x >= y)),
        (BinOp::Eq, Some(x), Some(y)) => return Some(Scalar::bool(x == y)),
        (BinOp::Add | BinOp::Sub, _, Some(0)) | (BinOp::Mul | BinOp::FloorDiv, _, Some(1)) => return Some(a.clone()),
        (BinOp::Add, Some(0), _) | (BinOp::Mul, Some(1), _) => return Some(b.clone()),
        (BinOp::Mul, Some(0), _) | (BinOp::Mul, _, Some(0)) | (BinOp::FloorMod, _, Some(1)) => 0,
        _ => return None,
    };
    Some(Scalar::index(folded))
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl ops::$trait for Scalar {
            type Output = Scalar;
            fn $method(self, other: Scalar) -> Scalar { Scalar::binary(BinOp::$op, self, other) }
        }
        impl ops::$trait<i64> for Scalar {
            type Output = Scalar;
            fn $method(self, other: i64) -> Scalar {
                let dtype = self.dtype();
                // What folds to itself needs no constant.
                match (BinOp::$op, other) {
                    (BinOp::Add | BinOp::Sub, 0) | (BinOp::Mul, 1) if dtype == DType::I64 => self,
                    _ => Scalar::binary(BinOp::$op, self, Scalar::int(other, dtype)),
                }
            }
        }
    )* };
}
arithmetic!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl ops::Neg for Scalar {
    type Output = Scalar;
    fn neg(self) -> Scalar {
        Scalar::unary(UnOp::Neg, self)
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ScalarKind::Int(i) => write!(f, "{i}"),
            ScalarKind::Float(x) => write!(f, "{x:?}"),
            ScalarKind::Axis(a) => write!(f, "i{}", a.0),
            ScalarKind::Read(t, index) => write!(f, "t{}{index:?}", t.0),
            ScalarKind::Binary(op, a, b) => write!(f, "{op:?}({a:?}, {b:?})"),
            ScalarKind::Unary(op, a) => write!(f, "{op:?}({a:?})"),
            ScalarKind::Select(c, a, b) => write!(f, "Select({c:?}, {a:?}, {b:?})"),
            ScalarKind::Cast(a) => write!(f, "{}({a:?})", self.dtype()),
            ScalarKind::Bits(a) => write!(f, "Bits {}({a:?})", self.dtype()),
            ScalarKind::Dot(operands) => write!(f, "Dot{operands:?}"),
            ScalarKind::MulShift(operands) => write!(f, "MulShift{operands:?}"),
            ScalarKind::Saturate(a) => write!(f, "Saturate {}({a:?})", self.dtype()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_nodes_are_new_once() {
        let shared: Vec<Scalar> = (0..40).map(|i| Scalar::axis(AxisId(i)) + 1).collect();
        let again = shared.clone();
        let mut seen = Seen::default();
        assert!(shared.iter().all(|s| seen.is_new(s)));
        assert!(!again.iter().any(|s| seen.is_new(s)));
        // Nothing else can lead to a node that stands in one place only.
        let alone = Scalar::axis(AxisId(0)) + 2;
        assert!(seen.is_new(&alone) && seen.is_new(&alone));
    }
}
