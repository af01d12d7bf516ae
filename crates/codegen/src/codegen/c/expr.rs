//! Scalar expressions in C.

use super::{stmt::Printer, value_type};
use crate::{
    loops::{BinOp, Scalar, ScalarKind, UnOp},
    tensor::DType,
};

/// A float constant.
pub(super) fn float(x: f64, d: DType) -> String {
    let double = d == DType::F64;
    match x {
        x if x.is_nan() => if double { "((double)NAN)" } else { "((float)NAN)" }.into(),
        x if x.is_infinite() => {
            format!(
                "({}{})",
                if x < 0.0 { "-" } else { "" },
                if double { "(double)INFINITY" } else { "(float)INFINITY" }
            )
        }
        x if double => format!("({x:e})"),
        x => format!("({:e}f)", x as f32),
    }
}

/// An integer constant.
pub(super) fn int(i: i64, d: DType) -> String {
    match d {
        DType::U64 => format!("UINT64_C({})", i as u64),
        DType::U32 => format!("UINT32_C({})", i as u32),
        DType::I64 if i == i64::MIN => "INT64_MIN".into(),
        DType::I32 if i == i32::MIN as i64 => "INT32_MIN".into(),
        DType::I64 if i < 0 => format!("(-INT64_C({}))", -i),
        DType::I64 => format!("INT64_C({i})"),
        _ if i < 0 => format!("({i})"),
        _ => i.to_string(),
    }
}

/// The letter and width that helper functions have in their names.
fn suffix(d: DType) -> &'static str {
    match d {
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        d => value_type(d),
    }
}

/// The unsigned type that wraps around as the type does: never narrower than `int`, to which C would widen it.
fn wrapping(d: DType) -> &'static str {
    if d.bits() == 64 { "uint64_t" } else { "uint32_t" }
}

/// A value of a float type that was computed in a wider one.
fn rounded(text: String, d: DType) -> String {
    match d {
        DType::F16 => format!("round_f16({text})"),
        DType::BF16 => format!("round_bf16({text})"),
        _ => text,
    }
}

/// The largest float that a short type holds comes out as itself.
fn representable(x: f64, d: DType) -> f64 {
    match d {
        DType::F16 => half::f16::from_f64(x).to_f64(),
        DType::BF16 => half::bf16::from_f64(x).to_f64(),
        _ => x,
    }
}

impl Printer<'_> {
    /// The text of an expression. What several expressions share, and what only one side of a choice may compute, becomes
    /// lines before. `place` says that it is an index, which stays in range all the way.
    pub(super) fn expr(&mut self, e: &Scalar, place: bool) -> String {
        if let Some(known) = self.known(e) {
            return known;
        }
        let text = self.fresh(e, place);
        let leaf = matches!(e.kind(), ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_));
        if leaf || !e.is_shared() { text } else { self.keep(e, text) }
    }

    fn fresh(&mut self, e: &Scalar, place: bool) -> String {
        let d = e.dtype();
        match e.kind() {
            ScalarKind::Int(i) if place && i32::try_from(*i).is_ok() => format!("{i}"),
            ScalarKind::Int(i) => int(*i, d),
            ScalarKind::Float(x) => float(representable(*x, d), d),
            ScalarKind::Axis(a) => self.variable(*a),
            ScalarKind::Read(b, index) => {
                let at = self.expr(&index[0], true);
                let read = format!("b{}[{at}]", b.0);
                match d {
                    DType::F16 => format!("from_f16({read})"),
                    DType::BF16 => format!("from_bf16({read})"),
                    DType::Bool => format!("({read} != 0)"),
                    _ => read,
                }
            }
            ScalarKind::Select(c, a, b) => self.select(c, a, b, place),
            ScalarKind::Dot(_) | ScalarKind::MulShift(_) | ScalarKind::Saturate(_) => {
                let plain = self.expanded(e);
                self.fresh(&plain, place)
            }
            ScalarKind::Cast(a) => {
                let x = self.expr(a, false);
                cast(x, a.dtype(), d)
            }
            ScalarKind::Bits(a) => {
                let x = self.expr(a, false);
                bits(x, a.dtype(), d)
            }
            ScalarKind::Unary(op, a) => {
                let x = self.expr(a, false);
                unary(*op, &x, a.dtype())
            }
            ScalarKind::Binary(op, a, b) => {
                let inner = place && d == DType::I64;
                let (x, y) = (self.expr(a, inner), self.expr(b, inner));
                match inner {
                    true => index(*op, &x, &y, b),
                    false => binary(*op, &x, &y, b),
                }
            }
        }
    }

    fn select(&mut self, c: &Scalar, a: &Scalar, b: &Scalar, place: bool) -> String {
        let c = self.expr(c, false);
        let (before_a, x) = self.aside(|p| p.expr(a, place));
        let (before_b, y) = self.aside(|p| p.expr(b, place));
        if before_a.is_empty() && before_b.is_empty() {
            return format!("({c} ? {x} : {y})");
        }
        let name = self.name();
        self.line(&format!("{} {name};", value_type(a.dtype())));
        self.line(&format!("if ({c}) {{"));
        self.lines(&before_a);
        self.line(&format!("  {name} = {x};"));
        self.line("} else {");
        self.lines(&before_b);
        self.line(&format!("  {name} = {y};"));
        self.line("}");
        name
    }
}

/// Index arithmetic, which never leaves its type.
fn index(op: BinOp, x: &str, y: &str, right: &Scalar) -> String {
    match op {
        BinOp::Add => format!("({x} + {y})"),
        BinOp::Sub => format!("({x} - {y})"),
        BinOp::Mul => format!("({x} * {y})"),
        _ => binary(op, x, y, right),
    }
}

fn binary(op: BinOp, x: &str, y: &str, right: &Scalar) -> String {
    let d = right.dtype();
    match d {
        DType::Bool => bools(op, x, y),
        // Smallest and greatest are one of both.
        d if d.is_float() && (op.is_comparison() || matches!(op, BinOp::Min | BinOp::Max)) => floats(op, x, y, right),
        d if d.is_float() => rounded(floats(op, x, y, right), d),
        _ => ints(op, x, y, right),
    }
}

fn comparison(op: BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Eq => "==",
        BinOp::Ne => "!=",
        BinOp::Lt => "<",
        BinOp::Le => "<=",
        BinOp::Gt => ">",
        BinOp::Ge => ">=",
        _ => return None,
    })
}

fn bools(op: BinOp, x: &str, y: &str) -> String {
    let sign = match op {
        BinOp::And | BinOp::Mul | BinOp::Min => "&",
        BinOp::Or | BinOp::Add | BinOp::Max => "|",
        BinOp::Xor | BinOp::Sub => "^",
        op => comparison(op).expect("the checker passes no other operations of bools"),
    };
    format!("({x} {sign} {y})")
}

fn floats(op: BinOp, x: &str, y: &str, right: &Scalar) -> String {
    let (d, ty) = (right.dtype(), value_type(right.dtype()));
    let f = |name: &str| format!("{name}{}({x}, {y})", if ty == "float" { "f" } else { "" });
    // In double width, so that a quotient just below an integer is not rounded up to it.
    let quotient = format!("floor((double){x} / (double){y})");
    match op {
        BinOp::Add => format!("({x} + {y})"),
        BinOp::Sub => format!("({x} - {y})"),
        BinOp::Mul => format!("({x} * {y})"),
        BinOp::Div => format!("({x} / {y})"),
        BinOp::Rem => f("fmod"),
        BinOp::FloorDiv => format!("(({ty}){quotient})"),
        BinOp::FloorMod => format!("(({ty})((double){x} - {quotient} * (double){y}))"),
        BinOp::Min => format!("least_{}({x}, {y})", suffix(d)),
        BinOp::Max => format!("most_{}({x}, {y})", suffix(d)),
        BinOp::Pow if *right.kind() == ScalarKind::Float(2.0) => format!("square_{ty}({x})"),
        BinOp::Pow => f("pow"),
        BinOp::Atan2 => f("atan2"),
        op => format!("({x} {} {y})", comparison(op).expect("the checker passes no bits of floats")),
    }
}

fn ints(op: BinOp, x: &str, y: &str, right: &Scalar) -> String {
    let d = right.dtype();
    let (ty, s, u) = (value_type(d), suffix(d), wrapping(d));
    let wraps = |sign: &str| format!("(({ty})(({u}){x} {sign} ({u}){y}))");
    let plain = |sign: &str| format!("(({ty})({x} {sign} {y}))");
    let helper = |name: &str| format!("{name}_{s}({x}, {y})");
    // Constants that divide without surprises.
    let safe = right.as_int().is_some_and(|n| n > 0 || (d == DType::U64 && n != 0));
    match op {
        BinOp::Add => wraps("+"),
        BinOp::Sub => wraps("-"),
        BinOp::Mul => wraps("*"),
        BinOp::Div if safe => plain("/"),
        BinOp::Rem if safe => plain("%"),
        BinOp::Div => helper("div"),
        BinOp::Rem => helper("rem"),
        BinOp::FloorDiv => helper("floordiv"),
        BinOp::FloorMod => helper("floormod"),
        BinOp::Min => helper("least"),
        BinOp::Max => helper("most"),
        BinOp::And => plain("&"),
        BinOp::Or => plain("|"),
        BinOp::Xor => plain("^"),
        BinOp::Shl => helper("shl"),
        BinOp::Shr => helper("shr"),
        op => format!("({x} {} {y})", comparison(op).expect("the checker passes no functions of integers")),
    }
}

fn unary(op: UnOp, x: &str, d: DType) -> String {
    if !d.is_float() {
        return int_unary(op, x, d);
    }
    let ty = value_type(d);
    let f = |name: &str| format!("{name}{}({x})", if ty == "float" { "f" } else { "" });
    let of_negative = |name: &str| format!("{name}{}(-{x})", if ty == "float" { "f" } else { "" });
    let text = match op {
        UnOp::Neg => return format!("(-{x})"),
        UnOp::Abs => return f("fabs"),
        UnOp::IsNan => return format!("(isnan({x}) != 0)"),
        UnOp::IsInf => return format!("(isinf({x}) != 0)"),
        UnOp::IsFinite => return format!("(isfinite({x}) != 0)"),
        UnOp::Exp => f("exp"),
        UnOp::Exp2 => f("exp2"),
        UnOp::Log => f("log"),
        UnOp::Log2 => f("log2"),
        UnOp::Log10 => f("log10"),
        UnOp::Sqrt => f("sqrt"),
        UnOp::Rsqrt => format!("(1 / {})", f("sqrt")),
        UnOp::Erf => f("erf"),
        UnOp::Sigmoid => format!("(1 / (1 + {}))", of_negative("exp")),
        UnOp::Tanh => f("tanh"),
        UnOp::Sin => f("sin"),
        UnOp::Cos => f("cos"),
        UnOp::Tan => f("tan"),
        UnOp::Asin => f("asin"),
        UnOp::Acos => f("acos"),
        UnOp::Atan => f("atan"),
        UnOp::Sinh => f("sinh"),
        UnOp::Cosh => f("cosh"),
        UnOp::Asinh => f("asinh"),
        UnOp::Acosh => f("acosh"),
        UnOp::Atanh => f("atanh"),
        UnOp::Floor => f("floor"),
        UnOp::Ceil => f("ceil"),
        UnOp::Trunc => f("trunc"),
        UnOp::Round => f("round"),
        UnOp::RoundEven => f("rint"),
        UnOp::FlushSubnormal => return format!("(fabsf({x}) < 1.17549435e-38f ? {x} * 0 : {x})"),
        UnOp::Not | UnOp::Popcount => unreachable!("the checker passes no bits of floats"),
    };
    rounded(text, d)
}

fn int_unary(op: UnOp, x: &str, d: DType) -> String {
    let (ty, u) = (value_type(d), wrapping(d));
    match op {
        // Of `bool`, these change nothing: -1 is still true.
        UnOp::Neg | UnOp::Abs | UnOp::Popcount if d == DType::Bool => x.into(),
        UnOp::Not if d == DType::Bool => format!("(!{x})"),
        UnOp::Neg => format!("(({ty})(0 - ({u}){x}))"),
        UnOp::Abs => format!("abs_{}({x})", suffix(d)),
        UnOp::Not => format!("(({ty})(~({u}){x}))"),
        UnOp::Popcount => {
            let same_width = ["uint8_t", "uint16_t", "uint32_t", "uint64_t"][d.bytes().trailing_zeros() as usize];
            format!("(({ty})popcount_u64(({same_width}){x}))")
        }
        UnOp::IsNan | UnOp::IsInf => "0".into(),
        UnOp::IsFinite => "1".into(),
        // Rounding leaves integers as they are.
        _ => x.into(),
    }
}

fn cast(x: String, from: DType, to: DType) -> String {
    let ty = value_type(to);
    match (from.is_float(), to) {
        (_, DType::Bool) => format!("({x} != 0)"),
        (_, to) if to.is_float() => rounded(format!("(({ty}){x})"), to),
        (false, _) => format!("(({ty}){x})"),
        // As machines convert: to 32 or 64 bits, of which narrower types keep the lower ones.
        (true, to) => {
            let by = match to {
                DType::I64 | DType::U32 => "i64",
                DType::U64 => "u64",
                _ => "i32",
            };
            format!("(({ty}){}_{by}({x}))", value_type(from))
        }
    }
}

/// The same bits as another type, by way of the unsigned integer of the width.
fn bits(x: String, from: DType, to: DType) -> String {
    let raw = match from {
        DType::F16 => format!("to_f16({x})"),
        DType::BF16 => format!("to_bf16({x})"),
        DType::F32 => format!("bits_of_float({x})"),
        DType::F64 => format!("bits_of_double({x})"),
        _ => x,
    };
    match to {
        DType::F16 => format!("from_f16((uint16_t){raw})"),
        DType::BF16 => format!("from_bf16((uint16_t){raw})"),
        DType::F32 => format!("float_of_bits((uint32_t){raw})"),
        DType::F64 => format!("double_of_bits((uint64_t){raw})"),
        _ => format!("(({}){raw})", value_type(to)),
    }
}
