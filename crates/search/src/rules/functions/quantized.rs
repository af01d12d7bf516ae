//! Integers that stand for scales: fixed-point multipliers of quantized operators.

use super::{Function, Param};
use crate::{
    ir::AttrValue,
    tensor::{DType, Tensor},
};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "fixed-point",
        params: &[Param::Number],
        gives: Param::List,
        doc: "A positive number as [m s]: m * 2^(s - 31), m of 31 bits, rounded half away from zero; 0 is [0 0].",
        of_extents: false,
        eval: |a| {
            let (m, s) = fixed_point(a[0].float()?)?;
            Some([m, s].into())
        },
    },
    Function {
        name: "fixed-point-multipliers",
        params: &[Param::Tensor],
        gives: Param::Tensor,
        doc: "The m of (fixed-point x) for each element x, as int32.",
        of_extents: false,
        eval: |a| each(a[0].tensor()?, |x| Some(fixed_point(x)?.0)),
    },
    Function {
        name: "fixed-point-shifts",
        params: &[Param::Tensor],
        gives: Param::Tensor,
        doc: "The -s of (fixed-point x) for each element x, as int32; all must be from 1 to 31, as they are for x below one half.",
        of_extents: false,
        eval: |a| {
            let shift = |s: i64| (1..=31).contains(&s).then_some(s);
            each(a[0].tensor()?, |x| shift(-fixed_point(x)?.1))
        },
    },
    Function {
        name: "fixed-point-left-shifts",
        params: &[Param::Tensor],
        gives: Param::Tensor,
        doc: "The s of (fixed-point x) for each element x where positive, else 0, as int32.",
        of_extents: false,
        eval: |a| each(a[0].tensor()?, |x| Some(fixed_point(x)?.1.max(0))),
    },
    Function {
        name: "fixed-point-right-shifts",
        params: &[Param::Tensor],
        gives: Param::Tensor,
        doc: "The -s of (fixed-point x) for each element x where s is negative, else 0, as int32.",
        of_extents: false,
        eval: |a| each(a[0].tensor()?, |x| Some((-fixed_point(x)?.1).max(0))),
    },
    Function {
        name: "quotients",
        params: &[Param::Tensor, Param::Number],
        gives: Param::Tensor,
        doc: "The elements of a tensor divided by a number, as float64.",
        of_extents: false,
        eval: |a| {
            let (t, d) = (a[0].tensor()?, a[1].float()?);
            Some(Tensor::from_f64_fn(DType::F64, t.shape(), |i| t.get_f64(i) / d).into())
        },
    },
    Function {
        name: "shifted-one",
        params: &[Param::Int],
        gives: Param::Int,
        doc: "The power of two with this exponent, from 0 to 62.",
        of_extents: false,
        eval: |a| a[0].int().filter(|n| (0..=62).contains(n)).map(|n| (1i64 << n).into()),
    },
    Function {
        name: "dtype-min",
        params: &[Param::Any],
        gives: Param::Int,
        doc: "The least value of an integer type of up to 64 bits.",
        of_extents: false,
        eval: |a| limits(a[0].attr()?).map(|(min, _)| min.into()),
    },
    Function {
        name: "dtype-max",
        params: &[Param::Any],
        gives: Param::Int,
        doc: "The greatest value of an integer type, where 63 bits hold it.",
        of_extents: false,
        eval: |a| limits(a[0].attr()?).map(|(_, max)| max.into()),
    },
    Function {
        name: "largest",
        params: &[Param::Tensor],
        gives: Param::Number,
        doc: "The largest magnitude of a tensor's elements.",
        of_extents: false,
        eval: |a| Some(a[0].tensor()?.to_f64_vec().iter().fold(0.0, |m: f64, x| m.max(x.abs())).into()),
    },
    Function {
        name: "largest-sum",
        params: &[Param::Tensor],
        gives: Param::Number,
        doc: "Of a tensor of int8, along its first axis: the largest sum of magnitudes of the elements at one place.",
        of_extents: false,
        eval: |a| {
            let t = a[0].tensor().filter(|t| t.dtype() == DType::I8)?;
            let each = (t.len() / t.shape().first()?.max(&1)).max(1);
            let sum = |c: &[u8]| c.iter().map(|&b| u64::from(b.cast_signed().unsigned_abs())).sum::<u64>();
            Some((t.bytes().chunks(each).map(sum).max().unwrap_or(0) as f64).into())
        },
    },
    Function {
        name: "reach",
        params: &[Param::Tensor, Param::Any],
        gives: Param::Int,
        doc: "How far integers of a type can be from these zero points: the largest |q - z|.",
        of_extents: false,
        eval: |a| {
            let (min, max) = limits(a[1].attr()?)?;
            let far = |z: i64| Some(max.checked_sub(z)?.max(z.checked_sub(min)?));
            a[0].tensor()?.to_i64_vec().into_iter().map(far).try_fold(0, |m, z| Some(m.max(z?))).map(AttrValue::Int)
        },
    },
    Function {
        name: "end-in-range",
        params: &[Param::Number, Param::Number, Param::Number, Param::Any],
        gives: Param::Int,
        doc: "The end x of an interval as quantized, (end-in-range x scale zero dtype): x / scale + zero, rounded towards zero and \
              clipped to the integer type's range.",
        of_extents: false,
        eval: |a| {
            let (x, scale, zero) = (a[0].float()?, a[1].float()?, a[2].float()?);
            let (min, max) = limits(a[3].attr()?)?;
            let end = x / scale + zero;
            (!end.is_nan()).then(|| (end.trunc().clamp(min as f64, max as f64) as i64).into())
        },
    },
];

/// (m, s) so that x is m * 2^(s - 31) with 2^30 <= m < 2^31; (0, 0) for 0; `None` for negatives, infinities and NaN.
fn fixed_point(x: f64) -> Option<(i64, i64)> {
    if x == 0.0 {
        return Some((0, 0));
    }
    (x.is_normal() && x > 0.0).then_some(())?;
    // A normal double is 1.f * 2^(e - 1023): the significand in [0.5, 1) comes with exponent e - 1022.
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1022;
    let significand = f64::from_bits(bits & !(0x7ff << 52) | (1022 << 52));
    match (significand * (1i64 << 31) as f64).round() as i64 {
        m if m == 1 << 31 => Some((m / 2, exponent + 1)),
        m => Some((m, exponent)),
    }
}

/// An int32 tensor of a function of each element.
fn each(t: &Tensor, f: impl Fn(f64) -> Option<i64>) -> Option<AttrValue> {
    let values = t.to_f64_vec().into_iter().map(f).collect::<Option<Vec<i64>>>()?;
    Some(Tensor::from_i64_fn(DType::I32, t.shape(), |i| values[i]).into())
}

fn limits(v: &AttrValue) -> Option<(i64, i64)> {
    match v {
        AttrValue::DType(d) => {
            let (min, max) = d.int_range()?;
            Some((i64::try_from(min).ok()?, i64::try_from(max).ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::fixed_point;

    #[test]
    fn fixed_points_are_the_numbers() {
        for x in [1.0, 0.5, 0.75, 3.0, 0.0123456789, 1e-9, 12345.678, 0.999_999_999_999] {
            let (m, s) = fixed_point(x).expect("positive");
            assert!((1 << 30..1i64 << 31).contains(&m), "{x}");
            assert!((m as f64 * 2f64.powi(s as i32 - 31) / x - 1.0).abs() < 1e-9, "{x}");
        }
        assert_eq!(fixed_point(0.0), Some((0, 0)));
        assert_eq!(fixed_point(-1.0), None);
        assert_eq!(fixed_point(f64::NAN), None);
    }
}
