//! What the scalar operations mean, on one value at a time: shared by the evaluators of tensor expressions and of nests.

use super::{BinOp, UnOp};
use crate::tensor::DType;

/// An integer was divided by zero; compiled code gives 0 instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an integer was divided by zero")]
pub struct ZeroDivision;

/// One element's value: which of the two it is follows from its dtype.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Num {
    /// An integer or `bool`; `uint64` in the bits.
    Int(i64),
    /// A float, representable in its dtype.
    Float(f64),
}

impl Num {
    pub(super) fn int(self) -> i64 {
        match self {
            Num::Int(i) => i,
            Num::Float(_) => unreachable!("an integer's value is an integer"),
        }
    }

    pub(super) fn float(self) -> f64 {
        match self {
            Num::Float(f) => f,
            Num::Int(_) => unreachable!("a float's value is a float"),
        }
    }
}

/// The value as an element of `dtype` holds it: floats rounded to the width, integers wrapped to it.
pub(super) fn as_dtype(v: Num, dtype: DType) -> Num {
    match v {
        Num::Float(f) => Num::Float(match dtype {
            DType::F32 => f as f32 as f64,
            DType::F16 => half::f16::from_f64(f).to_f64(),
            DType::BF16 => half::bf16::from_f64(f).to_f64(),
            _ => f,
        }),
        Num::Int(i) => Num::Int(match dtype {
            DType::Bool => (i != 0) as i64,
            DType::I8 => i as i8 as i64,
            DType::I16 => i as i16 as i64,
            DType::I32 => i as i32 as i64,
            DType::U8 => i as u8 as i64,
            DType::U16 => i as u16 as i64,
            DType::U32 => i as u32 as i64,
            _ => i,
        }),
    }
}

/// The integer's mathematical value: `uint64` is kept in the bits of an `i64`.
pub(super) fn wide(v: i64, dtype: DType) -> i128 {
    if dtype == DType::U64 { v as u64 as i128 } else { v as i128 }
}

/// `dtype` is the operands'.
pub(super) fn binary(op: BinOp, a: Num, b: Num, dtype: DType) -> Result<Num, ZeroDivision> {
    use BinOp::*;
    let value = match (a, b) {
        (Num::Float(a), Num::Float(b)) => Num::Float(match op {
            Add => a + b,
            Sub => a - b,
            Mul => a * b,
            Div => a / b,
            Rem => a % b,
            FloorDiv => (a / b).floor(),
            FloorMod => a - (a / b).floor() * b,
            Min => {
                if a < b {
                    a
                } else {
                    b
                }
            }
            Max => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            Pow => a.powf(b),
            Atan2 => a.atan2(b),
            And | Or | Xor | Shl | Shr => unreachable!("operations on bits take integers"),
            Eq => return Ok(Num::Int((a == b) as i64)),
            Ne => return Ok(Num::Int((a != b) as i64)),
            Lt => return Ok(Num::Int((a < b) as i64)),
            Le => return Ok(Num::Int((a <= b) as i64)),
            Gt => return Ok(Num::Int((a > b) as i64)),
            Ge => return Ok(Num::Int((a >= b) as i64)),
        }),
        (Num::Int(a), Num::Int(b)) => {
            if b == 0 && matches!(op, Div | Rem | FloorDiv | FloorMod) {
                return Err(ZeroDivision);
            }
            let (x, y) = (wide(a, dtype), wide(b, dtype));
            let floor_div = |x: i128, y: i128| x / y - ((x % y != 0 && (x < 0) != (y < 0)) as i128);
            let v: i128 = match op {
                Add => x + y,
                Sub => x - y,
                Mul => x.wrapping_mul(y),
                Div => x / y,
                Rem => x % y,
                FloorDiv => floor_div(x, y),
                FloorMod => x - floor_div(x, y) * y,
                Min => x.min(y),
                Max => x.max(y),
                Pow | Atan2 => unreachable!("floats only"),
                And => x & y,
                Or => x | y,
                Xor => x ^ y,
                Shl => x.checked_shl(y as u32).unwrap_or(0),
                // All bits leave by what is less than 0, too, which machines take for very much.
                Shr => x >> if y < 0 { 127 } else { y.min(127) },
                Eq => return Ok(Num::Int((x == y) as i64)),
                Ne => return Ok(Num::Int((x != y) as i64)),
                Lt => return Ok(Num::Int((x < y) as i64)),
                Le => return Ok(Num::Int((x <= y) as i64)),
                Gt => return Ok(Num::Int((x > y) as i64)),
                Ge => return Ok(Num::Int((x >= y) as i64)),
            };
            Num::Int(v as i64)
        }
        _ => unreachable!("both sides have one dtype"),
    };
    Ok(as_dtype(value, dtype))
}

pub(super) fn unary(op: UnOp, a: Num, dtype: DType) -> Num {
    let f = match a {
        Num::Int(i) => {
            return Num::Int(match op {
                UnOp::Neg => i.wrapping_neg(),
                UnOp::Abs if dtype.is_signed_int() => i.wrapping_abs(),
                UnOp::Abs | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round | UnOp::RoundEven => i,
                UnOp::Not if dtype == DType::Bool => (i == 0) as i64,
                UnOp::Not => !i,
                UnOp::Popcount => (i as u64 & (u64::MAX >> (64 - dtype.bits()))).count_ones() as i64,
                UnOp::IsNan | UnOp::IsInf => 0,
                UnOp::IsFinite => 1,
                _ => unreachable!("{op:?} takes floats"),
            });
        }
        Num::Float(f) => f,
    };
    Num::Float(match op {
        UnOp::Neg => -f,
        UnOp::Abs => f.abs(),
        UnOp::Exp => f.exp(),
        UnOp::Exp2 => f.exp2(),
        UnOp::Log => f.ln(),
        UnOp::Log2 => f.log2(),
        UnOp::Log10 => f.log10(),
        UnOp::Sqrt => f.sqrt(),
        UnOp::Rsqrt => 1.0 / f.sqrt(),
        UnOp::Erf => crate::tensor::erf(f),
        UnOp::Sigmoid => 1.0 / (1.0 + (-f).exp()),
        UnOp::Tanh => f.tanh(),
        UnOp::Sin => f.sin(),
        UnOp::Cos => f.cos(),
        UnOp::Tan => f.tan(),
        UnOp::Asin => f.asin(),
        UnOp::Acos => f.acos(),
        UnOp::Atan => f.atan(),
        UnOp::Sinh => f.sinh(),
        UnOp::Cosh => f.cosh(),
        UnOp::Asinh => crate::tensor::asinh(f),
        UnOp::Acosh => crate::tensor::acosh(f),
        UnOp::Atanh => f.atanh(),
        UnOp::Floor => f.floor(),
        UnOp::Ceil => f.ceil(),
        UnOp::Trunc => f.trunc(),
        UnOp::Round => f.round(),
        UnOp::RoundEven => f.round_ties_even(),
        UnOp::FlushSubnormal if f.abs() < f32::MIN_POSITIVE as f64 => 0f64.copysign(f),
        UnOp::FlushSubnormal => f,
        UnOp::IsNan => return Num::Int(f.is_nan() as i64),
        UnOp::IsInf => return Num::Int(f.is_infinite() as i64),
        UnOp::IsFinite => return Num::Int(f.is_finite() as i64),
        UnOp::Not | UnOp::Popcount => unreachable!("{op:?} takes integers"),
    })
}

/// The same bits as another type of the same width.
pub(super) fn bits(v: Num, from: DType, to: DType) -> Num {
    let raw = match v {
        Num::Int(i) => i as u64,
        Num::Float(f) => match from {
            DType::F16 => half::f16::from_f64(f).to_bits() as u64,
            DType::BF16 => half::bf16::from_f64(f).to_bits() as u64,
            DType::F32 => (f as f32).to_bits() as u64,
            _ => f.to_bits(),
        },
    };
    let v = match to {
        DType::F16 => Num::Float(half::f16::from_bits(raw as u16).to_f64()),
        DType::BF16 => Num::Float(half::bf16::from_bits(raw as u16).to_f64()),
        DType::F32 => Num::Float(f32::from_bits(raw as u32) as f64),
        DType::F64 => Num::Float(f64::from_bits(raw)),
        _ => Num::Int(raw as i64),
    };
    as_dtype(v, to)
}

pub(super) fn cast(v: Num, from: DType, to: DType) -> Num {
    let v = match (v, to.is_float()) {
        // Straight to f32: by way of f64, large integers would round twice.
        (Num::Int(i), true) if to == DType::F32 => Num::Float(wide(i, from) as f32 as f64),
        (Num::Int(i), true) => Num::Float(wide(i, from) as f64),
        (Num::Float(f), false) if to == DType::Bool => Num::Int((f != 0.0) as i64),
        (Num::Float(f), false) => Num::Int(crate::tensor::float_to_int(f, to)),
        (v, _) => v,
    };
    as_dtype(v, to)
}

/// [`ScalarKind::Dot`](super::ScalarKind::Dot): a sum, then factors in pairs. Integers wrap at 32 bits; floats are rounded after each
/// product, of which none of two `bfloat16` has to be.
pub(super) fn dot(operands: &[Num]) -> Num {
    let (sum, factors) = operands.split_first().expect("a dot product has a sum");
    factors.chunks_exact(2).fold(*sum, |sum, pair| match (sum, pair) {
        (Num::Int(sum), [Num::Int(a), Num::Int(b)]) => Num::Int(i64::from((sum + a * b) as i32)),
        (Num::Float(sum), [Num::Float(a), Num::Float(b)]) => Num::Float(f64::from(sum as f32 + (a * b) as f32)),
        _ => unreachable!("the checker passes factors of the sum's kind"),
    })
}

/// [`ScalarKind::MulShift`](super::ScalarKind::MulShift). Shifts by more than the width leave the sign.
pub(super) fn mul_shift(x: i64, m: i64, round: i64, shift: i64) -> Num {
    let sum = (x * m).wrapping_add(round);
    Num::Int(i64::from((sum >> shift.clamp(0, 63)) as i32))
}

/// [`ScalarKind::Saturate`](super::ScalarKind::Saturate).
pub(super) fn saturate(v: Num, dtype: DType) -> Num {
    let (least, most) = dtype.int_range().expect("bytes are integers");
    Num::Int(v.int().clamp(least as i64, most as i64))
}
