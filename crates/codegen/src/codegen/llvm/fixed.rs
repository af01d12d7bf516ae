//! Products with fixed-point factors: `int32((int64(x) * int64(m) + half) >> r)` for each lane of 32 bits.
//!
//! Machines multiply the even lanes of two vectors of 32 bits to 64 bits at once. So even and odd lanes are taken apart in place, which
//! costs a shift, instead of being widened to two vectors and narrowed again.

use inkwell::values::InstructionOpcode as Opcode;

use super::{CodegenError, emit::Emitter, ir::V};
use crate::{
    loops::{BinOp, Scalar, ScalarKind},
    tensor::DType,
};

/// The parts of such an expression: nodes of it, since values are remembered by node.
struct Product<'a> {
    x: &'a Scalar,
    m: &'a Scalar,
    half: &'a Scalar,
    right: &'a Scalar,
}

fn binary(s: &Scalar, wanted: BinOp) -> Option<(&Scalar, &Scalar)> {
    match s.kind() {
        ScalarKind::Binary(op, a, b) if *op == wanted => Some((a, b)),
        _ => None,
    }
}

/// The `int32` that an `int64` is made of, or a constant that is one.
fn narrow(s: &Scalar) -> Option<&Scalar> {
    match s.kind() {
        ScalarKind::Int(i) if i32::try_from(*i).is_ok() => Some(s),
        ScalarKind::Cast(x) if x.dtype() == DType::I32 => Some(x),
        _ => None,
    }
}

fn matched(sum: &Scalar) -> Option<Product<'_>> {
    let (sum, right) = binary(sum, BinOp::Shr)?;
    let (product, half) = binary(sum, BinOp::Add)?;
    let (x, m) = binary(product, BinOp::Mul)?;
    Some(Product { x: narrow(x)?, m: narrow(m)?, half, right })
}

impl<'ctx> Emitter<'_, 'ctx> {
    /// The value of `s` as `int32`, where `s` is such an expression and the machine multiplies so.
    pub(super) fn fixed_product(&mut self, s: &Scalar) -> Option<Result<V<'ctx>, CodegenError>> {
        let lanes = self.lanes?.count;
        let target = &self.unit.target;
        if s.dtype() != DType::I64 || lanes % 2 == 1 || target.arch() != "x86_64" || !target.has("sse4.1") {
            return None;
        }
        let product = matched(s)?;
        Some(self.emit_fixed_product(&product, lanes))
    }

    fn emit_fixed_product(&mut self, p: &Product<'_>, lanes: u32) -> Result<V<'ctx>, CodegenError> {
        let mut words = |s: &Scalar| {
            let v = match s.kind() {
                ScalarKind::Int(i) => self.ir.int(*i, self.ir.value_type(DType::I32)),
                _ => self.value(s)?,
            };
            Ok::<_, CodegenError>(self.ir.splat(v, lanes))
        };
        let (x, m) = (words(p.x)?, words(p.m)?);
        let (half, right) = (self.value(p.half)?, self.value(p.right)?);
        let ir = &self.ir;
        let long = ir.value_type(DType::I64);
        let pairs = ir.wide(long, Some(lanes / 2));
        let parts = [0, 1].map(|odd| {
            let of_words = |v: V<'ctx>| {
                let v = ir.recast(v, pairs);
                let v = if odd == 1 { v } else { ir.shift(Opcode::Shl, v, 32) };
                ir.shift(Opcode::AShr, v, 32)
            };
            let of_longs = |v: V<'ctx>| match v.is_vector_value() {
                true => ir.shuffle(v, v, (0..lanes / 2).map(|i| 2 * i + odd)),
                false => ir.splat(v, lanes / 2),
            };
            let sum = ir.add(ir.mul(of_words(x), of_words(m)), of_longs(half));
            let right = of_longs(right);
            // A shift by 64 or more leaves the sign.
            let last = ir.int(63, right.get_type());
            let fits = ir.icmp(inkwell::IntPredicate::ULT, right, last);
            ir.bin(Opcode::AShr, sum, ir.select(fits, right, last))
        });
        let low = ir.and(parts[0], ir.int(0xffff_ffff, parts[0].get_type()));
        let high = ir.shift(Opcode::Shl, parts[1], 32);
        Ok(ir.recast(ir.or(low, high), ir.wide(ir.value_type(DType::I32), Some(lanes))))
    }
}
