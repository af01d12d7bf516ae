//! Numbers and strings: text to value and back, without losing a bit.

use half::f16;

use crate::tensor::{DType, Tensor};

/// Splits a literal into sign, body and suffix: `--1.5f64` is `(false, "1.5", Some("f64"))`.
fn split(text: &str) -> (bool, &str, Option<(char, &str)>) {
    let body = text.trim_start_matches('-');
    let negative = (text.len() - body.len()) % 2 == 1;
    if let Some(rest) = body.strip_prefix("inff").or_else(|| body.strip_prefix("nanf")) {
        return (negative, &body[..3], Some(('f', rest)));
    }
    match body.find(['f', 'i']) {
        Some(i) => (negative, &body[..i], Some((body.as_bytes()[i] as char, &body[i + 1..]))),
        None => (negative, body, None),
    }
}

fn width(suffix: Option<(char, &str)>) -> Result<u32, String> {
    match suffix {
        None | Some((_, "")) => Ok(32),
        Some((_, w @ ("16" | "32" | "64"))) => Ok(w.parse().expect("one of three numbers")),
        Some((kind, w)) => Err(format!("there is no literal of type `{kind}{w}`")),
    }
}

/// An integer literal: its value and width in bits. Without a suffix it is 32 bits wide, or 64 where it does not fit.
pub(super) fn int(text: &str) -> Result<(i64, u32), String> {
    let (negative, body, suffix) = split(text);
    let mut width = width(suffix)?;
    let magnitude: i128 = body.parse().map_err(|_| format!("integer `{text}` fits no type"))?;
    let value = if negative { -magnitude } else { magnitude };
    let fits = |w: u32| value >= -(1i128 << (w - 1)) && value < 1i128 << (w - 1);
    if suffix.is_none() && !fits(32) {
        width = 64;
    }
    match fits(width) {
        true => Ok((value as i64, width)),
        false => Err(format!("integer `{text}` does not fit int{width}")),
    }
}

/// A float literal: its value and width in bits; rounding to the width is left to the caller.
pub(super) fn float(text: &str) -> Result<(f64, u32), String> {
    let (negative, body, suffix) = split(text);
    let width = width(suffix)?;
    let value: f64 = body.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let largest = match width {
        16 => f16::MAX.to_f64(),
        32 => f32::MAX as f64,
        _ => f64::MAX,
    };
    if value > largest && (body != "inf") {
        let most = match width {
            16 => "65504",
            32 => "3.4028235e38",
            _ => "1.7976931348623157e308",
        };
        return Err(format!("floating point number `{text}` does not fit float{width}, whose greatest is {most}"));
    }
    Ok((if negative { -value } else { value }, width))
}

/// An integer literal as a scalar.
pub(super) fn int_tensor(text: &str) -> Result<Tensor, String> {
    Ok(match int(text)? {
        (v, 16) => Tensor::scalar(v as i16),
        (v, 32) => Tensor::scalar(v as i32),
        (v, _) => Tensor::scalar(v),
    })
}

/// A float literal as a scalar. As in TVM, the text is rounded to 64 bits first.
pub(super) fn float_tensor(text: &str) -> Result<Tensor, String> {
    Ok(match float(text)? {
        (v, 16) => Tensor::scalar(f16::from_f32(v as f32)),
        (v, 32) => Tensor::scalar(v as f32),
        (v, _) => Tensor::scalar(v),
    })
}

/// The scalar as a literal that reads back as the same bits, where TVM's parser knows one.
pub(super) fn scalar(t: &Tensor) -> Option<String> {
    if !t.shape().is_empty() {
        return None;
    }
    match t.dtype() {
        DType::Bool if t.bytes()[0] <= 1 => Some(if t.bytes()[0] == 1 { "True" } else { "False" }.into()),
        DType::I16 => Some(format!("{}i16", t.get_i64(0))),
        DType::I32 => Some(t.get_i64(0).to_string()),
        // Its magnitude does not fit, and TVM reads the sign apart.
        DType::I64 if t.get_i64(0) == i64::MIN => None,
        DType::I64 => Some(format!("{}i64", t.get_i64(0))),
        DType::F16 => {
            let v = t.as_slice::<f16>()[0];
            v.is_finite().then(|| format!("{}f16", short_f16(v)))
        }
        DType::F32 => {
            let v = t.as_slice::<f32>()[0];
            (!v.is_nan()).then(|| format!("{}f", short_f32(v)))
        }
        DType::F64 => {
            let v = t.as_slice::<f64>()[0];
            (v.is_normal() || v == 0.0).then(|| format!("{}f64", short_f64(v)))
        }
        _ => None,
    }
}

/// A float attribute as a literal that reads back as the same double.
pub(super) fn float_attr(v: f64) -> String {
    let wide = v.is_finite() && v.abs() > f32::MAX as f64;
    format!("{}{}", short_f64(v), if wide { "f64" } else { "f" })
}

/// The shortest digits that read back as `v` when they are rounded to 64 bits first, as TVM does.
fn short_f32(v: f32) -> String {
    let digits = format!("{v:e}");
    match digits.parse::<f64>() {
        Ok(wide) if wide as f32 == v => layout(&digits),
        _ => short_f64(v as f64),
    }
}

/// The shortest digits that read back as `v`.
fn short_f16(v: f16) -> String {
    let digits = (0..5).map(|n| format!("{:.n$e}", v.to_f32()));
    let exact = |d: &String| d.parse::<f32>().is_ok_and(|w| f16::from_f32(w).to_bits() == v.to_bits());
    digits.into_iter().find(exact).map_or_else(|| short_f32(v.to_f32()), |d| layout(&d))
}

fn short_f64(v: f64) -> String {
    layout(&format!("{v:e}"))
}

/// `1.5e-7` in C's manner (`1.5e-07`), without an exponent where the number stays short.
fn layout(digits: &str) -> String {
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return digits.to_lowercase();
    };
    let Ok(exp) = exponent.parse::<i32>() else { return digits.to_owned() };
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |m| ("-", m));
    if !(-5..16).contains(&exp) {
        let direction = if exp < 0 { '-' } else { '+' };
        let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
        return format!("{sign}{mantissa}e{direction}{:02}", exp.abs());
    }
    let mut all: String = mantissa.chars().filter(|c| *c != '.').collect();
    all.truncate(all.trim_end_matches('0').len().max(1));
    if exp < 0 {
        return format!("{sign}0.{}{all}", "0".repeat((-exp - 1) as usize));
    }
    let whole = exp as usize + 1;
    match all.len() > whole {
        true => format!("{sign}{}.{}", &all[..whole], &all[whole..]),
        false => format!("{sign}{all}{}", "0".repeat(whole - all.len())),
    }
}

/// A string in quotes. Escapes are written only where nothing else reads back.
pub(super) fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What a string literal, quotes included, stands for.
pub(super) fn unquote(text: &str) -> String {
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or("");
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some(c) => out.push(c),
                None => out.push('\\'),
            },
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_every_bit() {
        let mut state = 1u64;
        for i in 0..200_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let t = match i % 3 {
                0 => Tensor::scalar(f32::from_bits((state >> 32) as u32)),
                1 => Tensor::scalar(f64::from_bits(state)),
                _ => Tensor::scalar(f16::from_bits((state >> 48) as u16)),
            };
            if let Some(text) = scalar(&t) {
                let again = float_tensor(&text).unwrap_or_else(|e| panic!("{e}"));
                assert!(again.same_bits(&t), "{t:?} is printed as {text}");
            }
        }
    }

    #[test]
    fn floats_are_written_as_people_write_them() {
        let f32 = |v: f32| scalar(&Tensor::scalar(v)).unwrap_or_default();
        assert_eq!(
            [1.0, 0.1, -2.5, 1e11, 1e-5, 1.5e-7, 1e30].map(f32),
            ["1f", "0.1f", "-2.5f", "100000000000f", "0.00001f", "1.5e-07f", "1e+30f"]
        );
        assert_eq!([f32::INFINITY, -0.0, f32::MAX].map(f32), ["inff", "-0f", "3.4028235e+38f"]);
        assert_eq!(scalar(&Tensor::scalar(f16::from_f32(0.1))).as_deref(), Some("0.1f16"));
        assert_eq!(scalar(&Tensor::scalar(f32::NAN)), None);
        assert_eq!(scalar(&Tensor::scalar(f64::INFINITY)), None);
        assert_eq!(scalar(&Tensor::scalar(5e-324)), None);
        assert_eq!(float_attr(1e-5), "0.00001f");
        assert_eq!(float_attr(1e300), "1e+300f64");
    }

    #[test]
    fn integers_have_ranges() {
        assert_eq!(int("--5"), Ok((5, 32)));
        assert_eq!(int("2147483648"), Ok((2147483648, 64)));
        assert_eq!(int("-32768i16"), Ok((-32768, 16)));
        assert!(int("32768i16").is_err_and(|e| e.contains("int16")));
        assert!(int("9223372036854775808i64").is_err());
        assert!(int("1i8").is_err_and(|e| e.contains("`i8`")));
        assert!(float("65505f16").is_err_and(|e| e.contains("float16")));
    }

    #[test]
    fn strings_survive() {
        for s in ["", "a\"b\\c", "l\nr\t", "ä"] {
            assert_eq!(unquote(&quote(s)), s);
        }
    }
}
