//! Functions on f64 that the standard library lacks.

use super::DType;

/// A float as an integer of `dtype`: truncated towards zero. Beyond the type it is what x86 makes of it, as TVM's code does:
/// 8 and 16 bits keep the low bits of the conversion to `int32`, 32 unsigned ones those of the conversion to `int64`, and
/// what these can't hold, NaN too, is their least number. `uint64` wraps below zero.
pub fn float_to_int(v: f64, dtype: DType) -> i64 {
    let long = |v: f64| if (-TWO_63..TWO_63).contains(&v) { v as i64 } else { i64::MIN };
    const TWO_31: f64 = 2147483648.0;
    const TWO_63: f64 = 9223372036854775808.0;
    match dtype {
        DType::U64 if v >= TWO_63 => long(v - TWO_63) ^ i64::MIN,
        DType::I64 | DType::U64 | DType::U32 => long(v),
        _ if v > -TWO_31 - 1.0 && v < TWO_31 => v as i32 as i64,
        _ => i32::MIN as i64,
    }
}

/// Beyond this, the square of a number plus 1 is its square.
const LARGE: f64 = 268_435_456.0;

/// The inverse hyperbolic sine: unlike the standard library's also right where the square of `x` overflows.
pub fn asinh(x: f64) -> f64 {
    let a = x.abs();
    let value = match a {
        _ if a.is_nan() => return x,
        _ if a > LARGE => a.ln() + std::f64::consts::LN_2,
        _ => (a + a * a / (1.0 + (a * a + 1.0).sqrt())).ln_1p(),
    };
    value.copysign(x)
}

/// The inverse hyperbolic cosine: unlike the standard library's also right near 1 and where the square of `x` overflows.
pub fn acosh(x: f64) -> f64 {
    match x {
        _ if x < 1.0 => f64::NAN,
        _ if x > LARGE => x.ln() + std::f64::consts::LN_2,
        _ if x > 2.0 => (2.0 * x - 1.0 / (x + (x * x - 1.0).sqrt())).ln(),
        _ => {
            let t = x - 1.0;
            (t + (2.0 * t + t * t).sqrt()).ln_1p()
        }
    }
}

/// The Gauss error function, to about 1e-15.
///
/// Near zero its Taylor series; further out the continued fraction of the complement, which converges fast there.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / n as f64;
            let part = term / (2 * n + 1) as f64;
            sum += part;
            if part.abs() < 1e-18 {
                break;
            }
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a < 6.0 {
        // erfc(a) = exp(-a^2) / sqrt(pi) / (a + (1/2) / (a + (2/2) / (a + (3/2) / …))).
        let tail = (1..=60).rev().fold(a, |tail, k| a + k as f64 / 2.0 / tail);
        1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / tail
    } else {
        1.0
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_at_known_points() {
        let known = [
            (0.0, 0.0),
            (0.1, 0.1124629160182849),
            (0.5, 0.5204998778130465),
            (1.0, 0.8427007929497149),
            (2.0, 0.9953222650189527),
            (2.4, 0.9993114861033549),
            (2.6, 0.9997639655834707),
            (3.0, 0.9999779095030014),
            (4.0, 0.9999999845827421),
            (7.0, 1.0),
        ];
        for (x, y) in known {
            assert!((erf(x) - y).abs() < 2e-15, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!(erf(f64::NAN).is_nan());
    }
}
