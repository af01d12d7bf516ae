//! Conversions between element types.

use super::{Row, math::round_even, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::{Elem, Small},
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("BitCast", bit_cast),
    row("Cast", |n| {
        let (code, saturate) = (n.int("to", 0)?, n.flag("saturate", true)?);
        // The first versions named the type.
        let to = match n.attr("to") {
            Some(a) if a.s.is_some() && a.r#type == 3 => {
                let name = n.text("to", "")?.to_lowercase();
                (0..32)
                    .filter_map(Elem::of)
                    .find(|e| e.name() == name)
                    .ok_or_else(|| n.refuse(format!("there is no element type `{name}`")))?
            }
            _ => n.elem(code)?,
        };
        cast_to(n, to, saturate)
    }),
    row("CastLike", |n| {
        let (to, saturate) = (n.tens(1)?.elem, n.flag("saturate", true)?);
        cast_to(n, to, saturate)
    }),
];

fn cast_to(n: &mut Node, to: Elem, saturate: bool) -> Convert<Vec<Val>> {
    let t = n.tens(0)?;
    if to == Elem::Small(Small::F8E8M0) {
        let wide = widened(n, t, DType::F32)?;
        let mode = n.text("round_mode", "up")?;
        let e = to_powers(n, wide, &mode, saturate)?;
        return Ok(vec![Val::Tensor(Tens { e, elem: to })]);
    }
    Ok(vec![Val::Tensor(converted(n, t, to, saturate)?)])
}

/// A tensor's elements as those of another type.
pub(in crate::frontend::onnx) fn converted(n: &mut Node, t: Tens, to: Elem, saturate: bool) -> Convert<Tens> {
    if t.elem == to {
        return Ok(t);
    }
    let e = match (t.elem, to) {
        (Elem::Text, _) | (_, Elem::Text) => {
            return Err(n.refuse(format!("converts {} to {}, which is not supported", t.elem.name(), to.name())));
        }
        (Elem::Plain(_), Elem::Plain(d)) => n.cast(t.e, d)?,
        (Elem::Small(_), Elem::Plain(d)) => widened(n, t, d)?,
        (_, Elem::Small(s)) => {
            let within = if s.int_range().is_some() { DType::I32 } else { DType::F32 };
            let plain = match t.elem {
                Elem::Small(_) => widened(n, t, DType::F32)?,
                // Beyond what int32 holds, only the lowest bits count.
                Elem::Plain(d) if within == DType::I32 && d.is_float() => n.cast(t.e, DType::I64)?,
                _ => t.e,
            };
            let plain = n.cast(plain, within)?;
            narrowed(n, plain, s, saturate)?
        }
    };
    Ok(Tens { e, elem: to })
}

/// Small elements as numbers: what their bits mean, looked up.
pub(in crate::frontend::onnx) fn widened(n: &mut Node, t: Tens, to: DType) -> Convert {
    let Elem::Small(s) = t.elem else { return n.cast(t.e, to) };
    let within = if s.int_range().is_some() { DType::I32 } else { DType::F32 };
    let table = Tensor::from_f64_fn(within, &[1 << s.bits()], |i| s.decode(i as u8));
    let table = n.constant(table);
    let places = n.cast(t.e, DType::I32)?;
    let numbers = n.take(table, places, 0)?;
    n.cast(numbers, to)
}

/// Numbers (`float32`, or `int32` for integers) as small elements.
pub(in crate::frontend::onnx) fn narrowed(n: &mut Node, x: ExprId, s: Small, saturate: bool) -> Convert {
    if s.int_range().is_some() {
        let mask = ((1u32 << s.bits()) - 1).into();
        let bits = n.with("bitwise_and", x, mask)?;
        return n.cast(bits, DType::U8);
    }
    let Some(r) = s.rounding(saturate) else { return to_powers(n, x, "up", saturate) };
    let rank = n.rank(x)?;
    // Places in the ascending bounds are codes.
    let x1 = if rank == 0 { n.reshape(x, &[1])? } else { x };
    let magnitude = n.un("abs", x1)?;
    let bounds = n.constant(Tensor::from_slice(&[r.bounds.len()], &r.bounds));
    let places = n.op("searchsorted", &[bounds, magnitude], &[("right", true.into()), ("dtype", DType::I32.into())])?;
    let codes = n.constant(Tensor::from_f64_fn(DType::I32, &[r.codes.len()], |i| r.codes[i].into()));
    let mut code = n.take(codes, places, 0)?;
    let nan = n.un("isnan", x1)?;
    let bits = n.op("reinterpret", &[x1], &[("dtype", DType::I32.into())])?;
    let negative = n.with("less", bits, 0.0)?;
    let signed = n.with("add", code, r.sign.into())?;
    let mut takes_sign = negative;
    if r.one_zero {
        // Zero has no sign, and the code of NaN is that sign.
        let some = n.with("greater", code, 0.0)?;
        let number = n.with("not_equal", code, r.sign.into())?;
        takes_sign = n.bin("logical_and", takes_sign, some)?;
        takes_sign = n.bin("logical_and", takes_sign, number)?;
    }
    code = n.select(takes_sign, signed, code)?;
    if let Some(c) = r.nan {
        let c = n.c(code, c.into())?;
        code = n.select(nan, c, code)?;
    }
    let code = n.cast(code, DType::U8)?;
    if rank == 0 { n.reshape(code, &[]) } else { Ok(code) }
}

/// Positive numbers as exponents of 2, rounded as the mode says.
fn to_powers(n: &mut Node, x: ExprId, mode: &str, saturate: bool) -> Convert {
    let bits = n.op("reinterpret", &[x], &[("dtype", DType::I32.into())])?;
    let twenty_three = n.c(bits, 23.0)?;
    let shifted = n.bin("right_shift", bits, twenty_three)?;
    let exponent = n.with("bitwise_and", shifted, 255.0)?;
    let fraction = n.with("bitwise_and", bits, f64::from((1 << 23) - 1))?;
    // Subnormal numbers have their highest bit elsewhere: those below half of the least code become it.
    let up = match mode {
        "down" => {
            let no = n.with("less", fraction, 0.0)?;
            n.cast(no, DType::I32)?
        }
        "nearest" => {
            let half = n.with("greater_equal", fraction, f64::from(1 << 22))?;
            n.cast(half, DType::I32)?
        }
        _ => {
            let any = n.with("greater", fraction, 0.0)?;
            n.cast(any, DType::I32)?
        }
    };
    let next = n.add(exponent, up)?;
    let most = if saturate { 254.0 } else { 255.0 };
    let code = n.with("minimum", next, most)?;
    let finite = n.un("isfinite", x)?;
    let nan = n.un("isnan", x)?;
    let not_a_number = n.c(code, 255.0)?;
    let top = n.c(code, most)?;
    let infinite = n.select(nan, not_a_number, top)?;
    let code = n.select(finite, code, infinite)?;
    n.cast(code, DType::U8)
}

fn bit_cast(n: &mut Node) -> Convert<Vec<Val>> {
    let t = n.tens(0)?;
    let to = n.elem(n.int("to", 0)?)?;
    n.ensure(t.elem.bits() == to.bits() && t.elem != Elem::Text && to != Elem::Text, || {
        format!("{} and {} have different widths", t.elem.name(), to.name())
    })?;
    // Truth values are bytes.
    let e = match (t.elem.storage(), to.storage()) {
        (a, b) if a == b => t.e,
        (DType::Bool, b) => {
            let bytes = n.cast(t.e, DType::U8)?;
            n.op("reinterpret", &[bytes], &[("dtype", b.into())])?
        }
        (_, DType::Bool) => n.with("not_equal", t.e, 0.0)?,
        (_, b) => n.op("reinterpret", &[t.e], &[("dtype", b.into())])?,
    };
    Ok(vec![Val::Tensor(Tens { e, elem: to })])
}

/// Rounded halves to even, held to a range.
pub(in crate::frontend::onnx) fn rounded_within(n: &mut Node, x: ExprId, low: f64, high: f64) -> Convert {
    let r = round_even(n, x)?;
    n.op("clip", &[r], &[("a_min", low.into()), ("a_max", high.into())])
}
