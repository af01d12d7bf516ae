//! Element types, by TVM's names.

use std::{fmt, str::FromStr};

/// The type of one tensor element.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte that holds 0 or 1; TVM's `bool` and `uint1`.
    Bool,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an IEEE 754 binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

/// A name that is not one of [`DType`]'s.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown or unsupported dtype `{0}`")]
pub struct UnknownDType(pub String);

impl DType {
    /// Every element type.
    pub const ALL: [DType; 13] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// TVM's name, as it stands in Relay text.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// Bytes that one element takes in memory.
    pub fn bytes(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Bits of the value: 1 for `bool`, else 8 times [`DType::bytes`].
    pub fn bits(self) -> u32 {
        if self == DType::Bool { 1 } else { 8 * self.bytes() as u32 }
    }

    /// Whether the type is a floating point one.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether the type is a signed integer.
    pub fn is_signed_int(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Whether the type is an unsigned integer (`bool` is not).
    pub fn is_unsigned_int(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Whether the type is an integer (`bool` is not).
    pub fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }

    /// The least and greatest integer value; `None` for floats.
    pub fn int_range(self) -> Option<(i128, i128)> {
        match self {
            DType::Bool => Some((0, 1)),
            d if d.is_signed_int() => Some((-(1i128 << (d.bits() - 1)), (1i128 << (d.bits() - 1)) - 1)),
            d if d.is_unsigned_int() => Some((0, (1i128 << d.bits()) - 1)),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(s: &str) -> Result<DType, UnknownDType> {
        match s {
            "uint1" => Ok(DType::Bool),
            "int" => Ok(DType::I32),
            "uint" => Ok(DType::U32),
            "float" => Ok(DType::F32),
            _ => DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDType(s.to_owned())),
        }
    }
}
