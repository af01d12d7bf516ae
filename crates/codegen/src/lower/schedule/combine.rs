//! How a reduction combines values, and which are dot products of narrow numbers.

use crate::{
    loops::{BinOp, Combine, Scalar, ScalarKind, affine::reads},
    lower::{affine::for_each_node, normalize::Reduction},
    tensor::DType,
};

/// Whether a value is read only where a window does not reach over an edge.
fn guarded(value: &Scalar) -> bool {
    let mut found = false;
    for_each_node(value, &mut |n| found |= matches!(n.kind(), ScalarKind::Select(..)));
    found
}

/// The types of the two bytes, or numbers of 16 bits, whose products a reduction adds up in `int32`, or of `bfloat16` in `float32`, where it does
/// just that.
pub(super) fn narrow_multiplied(r: &Reduction) -> Option<(DType, DType)> {
    multiplied(r).filter(|_| !guarded(&r.value))
}

/// The same where zeros may be read over edges.
pub(super) fn multiplied(r: &Reduction) -> Option<(DType, DType)> {
    let is_read = |s: &Scalar| match s.kind() {
        ScalarKind::Read(..) => true,
        ScalarKind::Select(cond, read, zero) => {
            !reads(cond) && matches!(read.kind(), ScalarKind::Read(..)) && zero.as_int() == Some(0)
        }
        _ => false,
    };
    let narrow = |s: &Scalar| match (s.kind(), s.dtype()) {
        (ScalarKind::Cast(read), sum) if is_read(read) => Some(read.dtype()).filter(|t| match sum {
            DType::I32 => matches!(t, DType::I8 | DType::U8 | DType::I16),
            _ => sum == DType::F32 && *t == DType::BF16,
        }),
        _ => None,
    };
    match r.value.kind() {
        ScalarKind::Binary(BinOp::Mul, a, b) if r.combine == Combine::Sum => Some((narrow(a)?, narrow(b)?)),
        _ => None,
    }
}

/// What an empty reduction gives.
pub(super) fn identity(combine: Combine, dtype: DType) -> Scalar {
    let (least, greatest) = dtype.int_range().unwrap_or((0, 0));
    match combine {
        Combine::Sum => Scalar::int(0, dtype),
        Combine::Prod => Scalar::int(1, dtype),
        Combine::Max if dtype.is_float() => Scalar::float(f64::NEG_INFINITY, dtype),
        Combine::Min if dtype.is_float() => Scalar::float(f64::INFINITY, dtype),
        // The greatest uint64 is all ones, as is the int64 of the same bits.
        Combine::Max => Scalar::int(least as i64, dtype),
        Combine::Min => Scalar::int(greatest as i64, dtype),
        Combine::All => Scalar::bool(true),
        Combine::Any => Scalar::bool(false),
    }
}

pub(super) fn combined(combine: Combine, a: Scalar, b: Scalar) -> Scalar {
    let op = match combine {
        Combine::Sum => BinOp::Add,
        Combine::Prod => BinOp::Mul,
        Combine::Max => BinOp::Max,
        Combine::Min => BinOp::Min,
        Combine::All => BinOp::And,
        Combine::Any => BinOp::Or,
    };
    // A bound keeps its second operand where the other is NaN: so what was found before, and NaN are left out in any order.
    match combine {
        Combine::Max | Combine::Min => Scalar::binary(op, b, a),
        _ => Scalar::binary(op, a, b),
    }
}

/// Both reads of a product of narrow numbers.
pub(super) fn factors(value: &Scalar) -> Option<[Scalar; 2]> {
    let ScalarKind::Binary(_, a, b) = value.kind() else { return None };
    let read = |s: &Scalar| match s.kind() {
        ScalarKind::Cast(read) => Some(read.clone()),
        _ => None,
    };
    Some([read(a)?, read(b)?])
}

/// A value combined with others in order. Where these are products of narrow numbers, several at a time, as a dot product.
pub(super) fn combined_all(combine: Combine, first: Scalar, values: &[Scalar], narrow: bool) -> Scalar {
    let pairs = match narrow {
        true => values.iter().map(factors).collect::<Option<Vec<_>>>(),
        false => None,
    };
    match pairs {
        Some(pairs) => Scalar::dot(first, pairs),
        None => values.iter().fold(first, |sum, value| combined(combine, sum, value.clone())),
    }
}
