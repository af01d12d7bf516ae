//! ONNX's element types, and what holds them in Relay.

use crate::tensor::DType;

/// An element type of ONNX.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Elem {
    /// One that Relay has, too.
    Plain(DType),
    /// One that Relay lacks: its bits are held in a byte each.
    Small(Small),
    /// Text: an innermost axis of Unicode code points (`uint32`), filled up with zeros, as numpy has it.
    Text,
}

/// Element types of at most eight bits that Relay lacks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Small {
    F8E4M3Fn,
    F8E4M3FnUz,
    F8E5M2,
    F8E5M2FnUz,
    F8E8M0,
    F4E2M1,
    U4,
    I4,
    U2,
    I2,
}

/// Element types with ONNX's numbers and names.
const TYPES: &[(i32, &str, Elem)] = &[
    (1, "float", Elem::Plain(DType::F32)),
    (2, "uint8", Elem::Plain(DType::U8)),
    (3, "int8", Elem::Plain(DType::I8)),
    (4, "uint16", Elem::Plain(DType::U16)),
    (5, "int16", Elem::Plain(DType::I16)),
    (6, "int32", Elem::Plain(DType::I32)),
    (7, "int64", Elem::Plain(DType::I64)),
    (8, "string", Elem::Text),
    (9, "bool", Elem::Plain(DType::Bool)),
    (10, "float16", Elem::Plain(DType::F16)),
    (11, "double", Elem::Plain(DType::F64)),
    (12, "uint32", Elem::Plain(DType::U32)),
    (13, "uint64", Elem::Plain(DType::U64)),
    (16, "bfloat16", Elem::Plain(DType::BF16)),
    (17, "float8e4m3fn", Elem::Small(Small::F8E4M3Fn)),
    (18, "float8e4m3fnuz", Elem::Small(Small::F8E4M3FnUz)),
    (19, "float8e5m2", Elem::Small(Small::F8E5M2)),
    (20, "float8e5m2fnuz", Elem::Small(Small::F8E5M2FnUz)),
    (21, "uint4", Elem::Small(Small::U4)),
    (22, "int4", Elem::Small(Small::I4)),
    (23, "float4e2m1", Elem::Small(Small::F4E2M1)),
    (24, "float8e8m0", Elem::Small(Small::F8E8M0)),
    (25, "uint2", Elem::Small(Small::U2)),
    (26, "int2", Elem::Small(Small::I2)),
];

impl Elem {
    /// The type of that number, where it is one that is known.
    pub(super) fn of(code: i32) -> Option<Elem> {
        TYPES.iter().find(|t| t.0 == code).map(|t| t.2)
    }

    /// ONNX's name.
    pub(super) fn name(self) -> &'static str {
        TYPES.iter().find(|t| t.2 == self).map_or("float", |t| t.1)
    }

    /// What holds an element in Relay.
    pub(super) fn storage(self) -> DType {
        match self {
            Elem::Plain(d) => d,
            Elem::Small(_) => DType::U8,
            Elem::Text => DType::U32,
        }
    }

    /// Bits of an element in a tensor's raw data.
    pub(super) fn bits(self) -> usize {
        match self {
            Elem::Plain(d) => 8 * d.bytes(),
            Elem::Small(s) => s.bits(),
            Elem::Text => 32,
        }
    }
}

/// How a small float is made up.
struct Format {
    /// Bits of the fraction.
    fraction: u32,
    /// What is taken from the exponent.
    bias: i32,
    /// The greatest code without its sign that is a finite number.
    greatest: u8,
    /// The code without its sign that is an infinity.
    infinity: Option<u8>,
    /// The code of NaN.
    nan: Option<u8>,
    /// Whether zero has one sign only.
    one_zero: bool,
}

impl Small {
    /// Bits of an element.
    pub(super) fn bits(self) -> usize {
        match self {
            Small::U2 | Small::I2 => 2,
            Small::U4 | Small::I4 | Small::F4E2M1 => 4,
            _ => 8,
        }
    }

    /// Whether it is an integer type, and the least and greatest number where it is.
    pub(super) fn int_range(self) -> Option<(i64, i64)> {
        match self {
            Small::U2 => Some((0, 3)),
            Small::I2 => Some((-2, 1)),
            Small::U4 => Some((0, 15)),
            Small::I4 => Some((-8, 7)),
            _ => None,
        }
    }

    fn format(self) -> Option<Format> {
        let format = |fraction, bias, greatest, infinity, nan, one_zero| {
            Some(Format { fraction, bias, greatest, infinity, nan, one_zero })
        };
        match self {
            Small::F8E4M3Fn => format(3, 7, 0x7e, None, Some(0x7f), false),
            Small::F8E4M3FnUz => format(3, 8, 0x7f, None, Some(0x80), true),
            Small::F8E5M2 => format(2, 15, 0x7b, Some(0x7c), Some(0x7e), false),
            Small::F8E5M2FnUz => format(2, 16, 0x7f, None, Some(0x80), true),
            Small::F4E2M1 => format(1, 1, 7, None, None, false),
            _ => None,
        }
    }

    /// The number that a code means.
    pub(super) fn decode(self, code: u8) -> f64 {
        if let Some((low, _)) = self.int_range() {
            let bits = self.bits() as u32;
            let code = (code & ((1u16 << bits) - 1) as u8) as i64;
            return if low < 0 && code >> (bits - 1) == 1 { code - (1 << bits) } else { code } as f64;
        }
        let Some(f) = self.format() else {
            return if code == 255 { f64::NAN } else { 2f64.powi(code as i32 - 127) };
        };
        let sign_bit = 1u8 << (self.bits() - 1);
        let (sign, magnitude) = (if code & sign_bit != 0 { -1.0 } else { 1.0 }, code & (sign_bit - 1));
        match magnitude {
            _ if f.one_zero && code == sign_bit => f64::NAN,
            m if f.infinity == Some(m) => sign * f64::INFINITY,
            m if m > f.greatest => f64::NAN,
            m => {
                let (exponent, fraction) = ((m >> f.fraction) as i32, (m & ((1 << f.fraction) - 1)) as f64);
                let one = 2f64.powi(f.fraction as i32);
                match exponent {
                    0 => sign * fraction / one * 2f64.powi(1 - f.bias),
                    e => sign * (1.0 + fraction / one) * 2f64.powi(e - f.bias),
                }
            }
        }
    }

    /// For a float type: the bounds between which magnitudes are rounded to the same code, ascending, so that a magnitude's code is
    /// the number of bounds that are not greater; ties go to even codes. Where `saturate` is not set, what is beyond the greatest
    /// number becomes infinite or NaN, by the next code.
    pub(super) fn rounding(self, saturate: bool) -> Option<Rounding> {
        let f = self.format()?;
        let up = |x: f32| f32::from_bits(x.to_bits() + 1);
        let mut bounds: Vec<f32> = (0..f.greatest)
            .map(|low| {
                let middle = ((self.decode(low) + self.decode(low + 1)) / 2.0) as f32;
                if low % 2 == 0 { up(middle) } else { middle }
            })
            .collect();
        let mut codes: Vec<u8> = (0..=f.greatest).collect();
        let sign = 1u8 << (self.bits() - 1);
        // Types without an infinity have NaN in its place.
        let beyond = f.infinity.or(f.nan);
        if let (false, Some(code)) = (saturate, beyond) {
            let step = self.decode(f.greatest) - self.decode(f.greatest - 1);
            let middle = (self.decode(f.greatest) + step / 2.0) as f32;
            bounds.push(if f.greatest % 2 == 0 { up(middle) } else { middle });
            codes.push(code);
        }
        Some(Rounding { bounds, codes, sign, nan: f.nan, one_zero: f.one_zero })
    }
}

/// What conversion to a small float is composed of.
pub(super) struct Rounding {
    /// Ascending bounds of magnitudes.
    pub bounds: Vec<f32>,
    /// The code of what has so many bounds below it.
    pub codes: Vec<u8>,
    /// The bit of the sign.
    pub sign: u8,
    /// The code of NaN, where there is one.
    pub nan: Option<u8>,
    /// Whether zero has one sign only.
    pub one_zero: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive() {
        for small in [Small::F8E4M3Fn, Small::F8E4M3FnUz, Small::F8E5M2, Small::F8E5M2FnUz, Small::F4E2M1] {
            let r = small.rounding(true).expect("a float type");
            for code in 0..r.sign {
                let value = small.decode(code);
                if value.is_finite() {
                    let found = r.bounds.iter().filter(|&&b| b <= value as f32).count();
                    assert_eq!(r.codes[found], code, "{small:?}");
                }
            }
        }
        assert_eq!(Small::F8E4M3Fn.decode(0x7e), 448.0);
        assert_eq!(Small::F8E5M2.decode(0x7b), 57344.0);
        assert_eq!(Small::F4E2M1.decode(7), 6.0);
        assert_eq!(Small::I4.decode(15), -1.0);
    }
}
