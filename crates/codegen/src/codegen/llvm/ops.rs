//! One operation on values: arithmetic, comparisons, conversions, between registers and memory.

use inkwell::{FloatPredicate as FP, IntPredicate as IP, values::InstructionOpcode as Opcode};

use super::{CodegenError, emit::Emitter, ir::V, math};
use crate::{
    loops::{BinOp, Scalar, ScalarKind, UnOp},
    tensor::DType,
};

/// The nearest number that a float type holds.
pub(super) fn representable(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_f64(x).to_f64(),
        DType::BF16 => half::bf16::from_f64(x).to_f64(),
        DType::F32 => x as f32 as f64,
        _ => x,
    }
}

/// The value 0.
pub(super) fn zero<'ctx>(e: &Emitter<'_, 'ctx>, dtype: DType) -> V<'ctx> {
    let ty = e.ir.value_type(dtype);
    if dtype.is_float() { e.ir.float(0.0, ty) } else { e.ir.int(0, ty) }
}

fn unsupported(op: impl std::fmt::Debug, dtype: DType) -> CodegenError {
    CodegenError::Invalid(format!("{op:?} of {dtype}"))
}

// Memory and the short floats.

/// A value as it was loaded to a value to compute with.
pub(super) fn from_memory<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>, dtype: DType) -> V<'ctx> {
    match dtype {
        DType::Bool => e.ir.icmp(IP::NE, v, e.ir.int(0, v.get_type())),
        DType::F16 => widen_f16(e, v),
        DType::BF16 => {
            let i32_type = e.ir.value_type(DType::I32);
            let bits = e.ir.shift(Opcode::Shl, e.ir.cast(Opcode::ZExt, v, i32_type), 16);
            e.ir.bitcast(bits, e.ir.value_type(DType::F32))
        }
        _ => v,
    }
}

/// A value to what is stored. A value of a type is one that the type holds, whatever register it is in.
pub(super) fn to_memory<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>, dtype: DType) -> V<'ctx> {
    match dtype {
        DType::Bool => e.ir.cast(Opcode::ZExt, v, e.ir.memory_type(dtype)),
        DType::F16 => narrow_f16(e, v),
        DType::BF16 => {
            let high = e.ir.shift(Opcode::LShr, e.ir.bitcast(v, e.ir.value_type(DType::I32)), 16);
            e.ir.cast(Opcode::Trunc, high, e.ir.value_type(DType::I16))
        }
        _ => v,
    }
}

/// The nearest number that a short float type holds, still as f32; other types as they are.
fn rounded<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>, dtype: DType) -> V<'ctx> {
    match dtype {
        DType::F16 => widen_f16(e, narrow_f16(e, v)),
        DType::BF16 => from_memory(e, narrow_bf16(e, v), dtype),
        _ => v,
    }
}

fn converts_f16(e: &Emitter) -> bool {
    e.unit.target.arch() != "x86_64" || e.unit.target.has("f16c")
}

fn widen_f16<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    let (f32_type, i32_type) = (ir.value_type(DType::F32), ir.value_type(DType::I32));
    if converts_f16(e) {
        return ir.cast(Opcode::FPExt, ir.bitcast(v, ir.ctx.f16_type().into()), f32_type);
    }
    // The exponent moves by a product with 2^112, which also normalizes; infinities and NaN get theirs by hand.
    let bits = ir.cast(Opcode::ZExt, v, i32_type);
    let c = |i: i64| ir.int(i, bits.get_type());
    let sign = ir.shift(Opcode::Shl, ir.and(bits, c(0x8000)), 16);
    let rest = ir.shift(Opcode::Shl, ir.and(bits, c(0x7fff)), 13);
    let number = ir.bitcast(rest, f32_type);
    let scaled = ir.bitcast(ir.fmul(number, ir.float(2f64.powi(112), number.get_type())), i32_type);
    let special = ir.icmp(IP::UGE, rest, c(0x7c00 << 13));
    let magnitude = ir.select(special, ir.or(scaled, c(0x7f80_0000)), scaled);
    ir.bitcast(ir.or(magnitude, sign), f32_type)
}

fn narrow_f16<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    let (f32_type, i32_type, i16_type) =
        (ir.value_type(DType::F32), ir.value_type(DType::I32), ir.value_type(DType::I16));
    if converts_f16(e) {
        return ir.bitcast(ir.cast(Opcode::FPTrunc, v, ir.ctx.f16_type().into()), i16_type);
    }
    let bits = ir.bitcast(v, i32_type);
    let c = |i: i64| ir.int(i, bits.get_type());
    let magnitude = ir.and(bits, c(0x7fff_ffff));
    let sign = ir.shift(Opcode::LShr, ir.xor(bits, magnitude), 16);
    // Subnormal results: the sum with 2^-1 aligns the last kept bit with the last bit of the mantissa, and rounds.
    let magic = 126i64 << 23;
    let aligned = ir.fadd(ir.bitcast(magnitude, f32_type), ir.bitcast(c(magic), f32_type));
    let small = ir.sub(ir.bitcast(aligned, i32_type), c(magic));
    // Normal results: half of the last kept bit is added, a little less where that bit is even.
    let odd = ir.and(ir.shift(Opcode::LShr, magnitude, 13), c(1));
    let moved = ir.add(ir.add(magnitude, c((-112i64 << 23) + 0xfff)), odd);
    let normal = ir.shift(Opcode::LShr, moved, 13);
    let special = ir.select(ir.icmp(IP::UGT, magnitude, c(0x7f80_0000)), c(0x7e00), c(0x7c00));
    let finite = ir.select(ir.icmp(IP::ULT, magnitude, c(113 << 23)), small, normal);
    let all = ir.select(ir.icmp(IP::UGE, magnitude, c(143 << 23)), special, finite);
    ir.cast(Opcode::Trunc, ir.or(all, sign), i16_type)
}

/// Whether an instruction converts to `bfloat16` as IEEE 754 rounds. That of x86 takes what is too small to be normal for zero.
fn converts_bf16(e: &Emitter) -> bool {
    let target = &e.unit.target;
    target.arch() != "x86_64" && target.has("bf16")
}

/// Whether an instruction rounds `float32` to `bfloat16`, and takes what is too small to be normal for zero.
pub(super) fn flushes_bf16(e: &Emitter) -> bool {
    let target = &e.unit.target;
    target.arch() == "x86_64" && target.has("avx512bf16") && target.has("avx512vl")
}

/// A `float32` rounded by that instruction, which LLVM takes for such conversions.
pub(super) fn flushed_to_bf16<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    let short = ir.bitcast(ir.cast(Opcode::FPTrunc, v, ir.ctx.bf16_type().into()), ir.value_type(DType::I16));
    from_memory(e, short, DType::BF16)
}

fn narrow_bf16<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    if converts_bf16(e) {
        return ir.bitcast(ir.cast(Opcode::FPTrunc, v, ir.ctx.bf16_type().into()), ir.value_type(DType::I16));
    }
    let bits = ir.bitcast(v, ir.value_type(DType::I32));
    let c = |i: i64| ir.int(i, bits.get_type());
    let high = ir.shift(Opcode::LShr, bits, 16);
    let sum = ir.add(ir.add(bits, c(0x7fff)), ir.and(high, c(1)));
    let quiet = ir.or(high, c(0x40));
    let out = ir.select(ir.fcmp(FP::UNO, v, v), quiet, ir.shift(Opcode::LShr, sum, 16));
    ir.cast(Opcode::Trunc, out, ir.value_type(DType::I16))
}

// Conversions.

/// A value converted to another type, as [`ScalarKind::Cast`] says.
pub(super) fn cast<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>, from: DType, to: DType) -> Result<V<'ctx>, CodegenError> {
    let ir = &e.ir;
    let ty = ir.value_type(to);
    Ok(match (from.is_float(), to.is_float()) {
        (false, false) if to == DType::Bool => ir.icmp(IP::NE, v, ir.int(0, v.get_type())),
        (false, false) => match to.bits().cmp(&from.bits()) {
            std::cmp::Ordering::Less => ir.cast(Opcode::Trunc, v, ty),
            std::cmp::Ordering::Equal => v,
            std::cmp::Ordering::Greater => {
                ir.cast(if from.is_signed_int() { Opcode::SExt } else { Opcode::ZExt }, v, ty)
            }
        },
        (false, true) => {
            let op = if from.is_signed_int() { Opcode::SIToFP } else { Opcode::UIToFP };
            rounded(e, ir.cast(op, v, ty), to)
        }
        (true, false) if to == DType::Bool => ir.fcmp(FP::UNE, v, ir.float(0.0, v.get_type())),
        (true, false) => float_to_int(e, v, to),
        (true, true) => {
            let wide = |d: DType| d == DType::F64;
            let v = match (wide(from), wide(to)) {
                (false, true) => ir.cast(Opcode::FPExt, v, ty),
                (true, false) => ir.cast(Opcode::FPTrunc, v, ty),
                _ => v,
            };
            rounded(e, v, to)
        }
    })
}

/// A float as an integer. What the type can't hold is what x86's instructions make of it: its least number.
fn float_to_int<'ctx>(e: &Emitter<'_, 'ctx>, v: V<'ctx>, to: DType) -> V<'ctx> {
    let ir = &e.ir;
    let signed = |v: V<'ctx>, bits: DType| {
        // LLVM leaves open what is out of range; its code for x86 gives what the instruction gives.
        let (int, limit) = (ir.value_type(bits), if bits == DType::I32 { 31 } else { 63 });
        let converted = ir.cast(Opcode::FPToSI, v, int);
        if e.unit.target.arch() == "x86_64" {
            return converted;
        }
        let bound = |x: f64| ir.float(x, v.get_type());
        let end = 2f64.powi(limit);
        let fits = ir.and(ir.fcmp(FP::OGE, v, bound(-end)), ir.fcmp(FP::OLT, v, bound(end)));
        let least = if bits == DType::I32 { i32::MIN as i64 } else { i64::MIN };
        ir.select(fits, converted, ir.int(least, converted.get_type()))
    };
    match to {
        DType::I32 | DType::I64 => signed(v, to),
        DType::U64 => {
            let half = ir.float(2f64.powi(63), v.get_type());
            let large = ir.fcmp(FP::OGE, v, half);
            let low = signed(ir.select(large, ir.fsub(v, half), v), DType::I64);
            let top = ir.int(i64::MIN, low.get_type());
            ir.select(large, ir.xor(low, top), low)
        }
        DType::U32 => ir.cast(Opcode::Trunc, signed(v, DType::I64), ir.value_type(to)),
        // Machines convert to 32 bits; the narrow types wrap around.
        _ => ir.cast(Opcode::Trunc, signed(v, DType::I32), ir.value_type(to)),
    }
}

// Binary operations.

/// `a op b`, both of `dtype`; `right` is the expression of `b`, for what constants allow.
pub(super) fn binary<'ctx>(
    e: &Emitter<'_, 'ctx>,
    op: BinOp,
    dtype: DType,
    a: V<'ctx>,
    b: V<'ctx>,
    right: &Scalar,
) -> Result<V<'ctx>, CodegenError> {
    match dtype {
        d if d.is_float() => float_binary(e, op, d, a, b, right),
        DType::Bool => bool_binary(e, op, a, b),
        d => int_binary(e, op, d, a, b, right),
    }
}

fn float_binary<'ctx>(
    e: &Emitter<'_, 'ctx>,
    op: BinOp,
    dtype: DType,
    a: V<'ctx>,
    b: V<'ctx>,
    right: &Scalar,
) -> Result<V<'ctx>, CodegenError> {
    let ir = &e.ir;
    let v = match op {
        BinOp::Add => ir.fadd(a, b),
        BinOp::Sub => ir.fsub(a, b),
        BinOp::Mul => ir.fmul(a, b),
        BinOp::Div => ir.fdiv(a, b),
        BinOp::Rem => ir.libm("fmod", &[a, b]),
        BinOp::FloorDiv | BinOp::FloorMod => {
            // In double width, so that a quotient just below an integer is not rounded up to it.
            let (from, double) = (ir.value_type(dtype), ir.value_type(DType::F64));
            let widen = |v| if dtype == DType::F64 { v } else { ir.cast(Opcode::FPExt, v, double) };
            let (x, y) = (widen(a), widen(b));
            let q = math::floor(ir, ir.fdiv(x, y));
            let out = match op {
                BinOp::FloorDiv => q,
                _ => ir.bin(Opcode::FSub, x, ir.bin(Opcode::FMul, q, y)),
            };
            if dtype == DType::F64 { out } else { ir.cast(Opcode::FPTrunc, out, from) }
        }
        BinOp::Min => return Ok(ir.select(ir.fcmp(FP::OLT, a, b), a, b)),
        BinOp::Max => return Ok(ir.select(ir.fcmp(FP::OGT, a, b), a, b)),
        BinOp::Pow => match right.kind() {
            ScalarKind::Float(x) => math::power(ir, a, *x).unwrap_or_else(|| ir.libm("pow", &[a, b])),
            _ => ir.libm("pow", &[a, b]),
        },
        BinOp::Atan2 => ir.libm("atan2", &[a, b]),
        BinOp::Eq => return Ok(ir.fcmp(FP::OEQ, a, b)),
        BinOp::Ne => return Ok(ir.fcmp(FP::UNE, a, b)),
        BinOp::Lt => return Ok(ir.fcmp(FP::OLT, a, b)),
        BinOp::Le => return Ok(ir.fcmp(FP::OLE, a, b)),
        BinOp::Gt => return Ok(ir.fcmp(FP::OGT, a, b)),
        BinOp::Ge => return Ok(ir.fcmp(FP::OGE, a, b)),
        BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr => return Err(unsupported(op, dtype)),
    };
    Ok(rounded(e, v, dtype))
}

fn bool_binary<'ctx>(e: &Emitter<'_, 'ctx>, op: BinOp, a: V<'ctx>, b: V<'ctx>) -> Result<V<'ctx>, CodegenError> {
    let ir = &e.ir;
    Ok(match op {
        BinOp::And | BinOp::Mul | BinOp::Min => ir.and(a, b),
        BinOp::Or | BinOp::Add | BinOp::Max => ir.or(a, b),
        BinOp::Xor | BinOp::Sub | BinOp::Ne => ir.xor(a, b),
        BinOp::Eq => ir.not(ir.xor(a, b)),
        BinOp::Lt => ir.and(ir.not(a), b),
        BinOp::Le => ir.or(ir.not(a), b),
        BinOp::Gt => ir.and(a, ir.not(b)),
        BinOp::Ge => ir.or(a, ir.not(b)),
        _ => return Err(unsupported(op, DType::Bool)),
    })
}

fn int_binary<'ctx>(
    e: &Emitter<'_, 'ctx>,
    op: BinOp,
    dtype: DType,
    a: V<'ctx>,
    b: V<'ctx>,
    right: &Scalar,
) -> Result<V<'ctx>, CodegenError> {
    let ir = &e.ir;
    let signed = dtype.is_signed_int();
    let pick = |s: IP, u: IP| if signed { s } else { u };
    Ok(match op {
        BinOp::Add => ir.add(a, b),
        BinOp::Sub => ir.sub(a, b),
        BinOp::Mul => ir.mul(a, b),
        BinOp::Div | BinOp::Rem | BinOp::FloorDiv | BinOp::FloorMod => divide(e, op, signed, a, b, right.as_int()),
        BinOp::Min => ir.select(ir.icmp(pick(IP::SLT, IP::ULT), a, b), a, b),
        BinOp::Max => ir.select(ir.icmp(pick(IP::SGT, IP::UGT), a, b), a, b),
        BinOp::And => ir.and(a, b),
        BinOp::Or => ir.or(a, b),
        BinOp::Xor => ir.xor(a, b),
        BinOp::Shl | BinOp::Shr => shift(e, op, dtype, a, b),
        BinOp::Eq => ir.icmp(IP::EQ, a, b),
        BinOp::Ne => ir.icmp(IP::NE, a, b),
        BinOp::Lt => ir.icmp(pick(IP::SLT, IP::ULT), a, b),
        BinOp::Le => ir.icmp(pick(IP::SLE, IP::ULE), a, b),
        BinOp::Gt => ir.icmp(pick(IP::SGT, IP::UGT), a, b),
        BinOp::Ge => ir.icmp(pick(IP::SGE, IP::UGE), a, b),
        BinOp::Pow | BinOp::Atan2 => return Err(unsupported(op, dtype)),
    })
}

/// The shifts. All bits leave where the amount is the width or more, which to machines is an amount modulo the width.
fn shift<'ctx>(e: &Emitter<'_, 'ctx>, op: BinOp, dtype: DType, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    let c = |i: i64| ir.int(i, b.get_type());
    if let Some(name) = shift_of_lanes(e, op, dtype, a, b) {
        return ir.intrinsic(name, &[], &[a, b]);
    }
    let fits = ir.icmp(IP::ULT, b, c(dtype.bits() as i64));
    if op == BinOp::Shr && dtype.is_signed_int() {
        return ir.bin(Opcode::AShr, a, ir.select(fits, b, c(dtype.bits() as i64 - 1)));
    }
    let op = if op == BinOp::Shl { Opcode::Shl } else { Opcode::LShr };
    ir.select(fits, ir.bin(op, a, ir.select(fits, b, c(0))), c(0))
}

/// The instruction that shifts each lane by an amount of its own, by which all bits leave where the amount is the width or more.
fn shift_of_lanes(e: &Emitter<'_, '_>, op: BinOp, dtype: DType, a: V<'_>, b: V<'_>) -> Option<&'static str> {
    let has = |feature| e.unit.target.has(feature);
    let varies = matches!(b, V::VectorValue(b) if !b.is_const());
    if e.unit.target.arch() != "x86_64" || dtype.bits() != 32 || !varies || !a.is_vector_value() {
        return None;
    }
    let which = match (op, dtype.is_signed_int()) {
        (BinOp::Shl, _) => 0,
        (_, false) => 1,
        (_, true) => 2,
    };
    let names = match super::ir::Ir::lanes(a)? {
        4 if has("avx2") => ["llvm.x86.avx2.psllv.d", "llvm.x86.avx2.psrlv.d", "llvm.x86.avx2.psrav.d"],
        8 if has("avx2") => ["llvm.x86.avx2.psllv.d.256", "llvm.x86.avx2.psrlv.d.256", "llvm.x86.avx2.psrav.d.256"],
        16 if has("avx512f") => {
            ["llvm.x86.avx512.psllv.d.512", "llvm.x86.avx512.psrlv.d.512", "llvm.x86.avx512.psrav.d.512"]
        }
        _ => return None,
    };
    Some(names[which])
}

/// A division of a number that is not negative by one that is positive: all kinds of division are the same then.
pub(super) fn divide_naturals<'ctx>(e: &Emitter<'_, 'ctx>, op: BinOp, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
    let ir = &e.ir;
    let quotient = ir.bin(Opcode::UDiv, a, b);
    match op {
        BinOp::Div | BinOp::FloorDiv => quotient,
        _ => ir.sub(a, ir.mul(quotient, b)),
    }
}

/// The divisions. Division by 0 gives 0, and the least integer by -1 wraps around, where machines would trap.
fn divide<'ctx>(e: &Emitter<'_, 'ctx>, op: BinOp, signed: bool, a: V<'ctx>, b: V<'ctx>, known: Option<i64>) -> V<'ctx> {
    let ir = &e.ir;
    let c = |i: i64| ir.int(i, b.get_type());
    let quotient = matches!(op, BinOp::Div | BinOp::FloorDiv);
    let floored = signed && matches!(op, BinOp::FloorDiv | BinOp::FloorMod);
    if let Some(n) = known
        && floored
        && n > 0
        && n & (n - 1) == 0
    {
        return if quotient { ir.shift(Opcode::AShr, a, n.trailing_zeros() as i64) } else { ir.and(a, c(n - 1)) };
    }
    let safe = known.is_some_and(|n| n != 0 && n != -1);
    let is_zero = ir.icmp(IP::EQ, b, c(0));
    let is_minus_one = ir.icmp(IP::EQ, b, c(-1));
    let by = match (safe, signed) {
        (true, _) => b,
        (false, true) => ir.select(ir.or(is_zero, is_minus_one), c(1), b),
        (false, false) => ir.select(is_zero, c(1), b),
    };
    let q = ir.bin(if signed { Opcode::SDiv } else { Opcode::UDiv }, a, by);
    let r = ir.sub(a, ir.mul(q, by));
    let mut out = if quotient { q } else { r };
    if floored {
        let differs = ir.icmp(IP::SLT, ir.xor(r, by), c(0));
        let off = ir.and(ir.icmp(IP::NE, r, c(0)), differs);
        let fixed = if quotient { ir.sub(q, c(1)) } else { ir.add(r, by) };
        out = ir.select(off, fixed, out);
    }
    if safe {
        return out;
    }
    if signed {
        let negated = if quotient { ir.sub(c(0), a) } else { c(0) };
        out = ir.select(is_minus_one, negated, out);
    }
    ir.select(is_zero, c(0), out)
}

// Unary operations.

/// `op a`, of `dtype`.
pub(super) fn unary<'ctx>(e: &Emitter<'_, 'ctx>, op: UnOp, dtype: DType, a: V<'ctx>) -> Result<V<'ctx>, CodegenError> {
    let ir = &e.ir;
    if dtype.is_float() {
        return match op {
            UnOp::Not | UnOp::Popcount => Err(unsupported(op, dtype)),
            UnOp::IsNan => Ok(ir.fcmp(FP::UNO, a, a)),
            UnOp::IsInf => Ok(ir.fcmp(FP::OEQ, math::abs(ir, a), ir.float(f64::INFINITY, a.get_type()))),
            UnOp::IsFinite => Ok(ir.fcmp(FP::OLT, math::abs(ir, a), ir.float(f64::INFINITY, a.get_type()))),
            UnOp::Neg => Ok(ir.fneg(a)),
            UnOp::Abs => Ok(math::abs(ir, a)),
            _ => {
                let scales = e.unit.target.arch() == "x86_64" && e.unit.target.has("avx512f");
                Ok(rounded(e, math::unary(ir, op, a, scales), dtype))
            }
        };
    }
    let known = |holds: i64| ir.int(holds, ir.like(ir.value_type(DType::Bool), a));
    Ok(match op {
        UnOp::Not => ir.not(a),
        UnOp::IsNan | UnOp::IsInf => known(0),
        UnOp::IsFinite => known(1),
        // Of `bool`, these change nothing: -1 is still true.
        UnOp::Neg | UnOp::Abs if dtype == DType::Bool => a,
        UnOp::Neg => ir.sub(ir.int(0, a.get_type()), a),
        UnOp::Abs if dtype.is_signed_int() => {
            let zero = ir.int(0, a.get_type());
            ir.select(ir.icmp(IP::SLT, a, zero), ir.sub(zero, a), a)
        }
        UnOp::Abs | UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round | UnOp::RoundEven => a,
        UnOp::Popcount if dtype == DType::Bool => a,
        UnOp::Popcount => ir.intrinsic("llvm.ctpop", &[a.get_type()], &[a]),
        _ => return Err(unsupported(op, dtype)),
    })
}
