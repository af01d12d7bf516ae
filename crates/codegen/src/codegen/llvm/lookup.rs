//! Dequantization of weights of up to four bits by a table lookup.
//!
//! Mask, subtraction of the zero point and conversion to float take three instructions. AVX-512's `vpermps` selects one of the 16 floats in a register by
//! the lower four bits of each lane, and so does all three.

use inkwell::{types::VectorType, values::InstructionOpcode as Opcode};

use super::{CodegenError, emit::Emitter, ir::V};
use crate::{
    loops::{BinOp, Scalar, ScalarKind},
    tensor::DType,
};

/// Floats in the table, which are as many as a vector has lanes.
const ENTRIES: u32 = 16;

impl<'ctx> Emitter<'_, 'ctx> {
    /// The conversion of an int32 to float32 by a table lookup, where it is masked to four bits or fewer, less a zero point that is the same in all
    /// lanes or none; `None` where it is anything else, or the target has no such instruction.
    pub(super) fn looked_up(&mut self, x: &Scalar) -> Option<Result<V<'ctx>, CodegenError>> {
        let target = &self.unit.target;
        let has_tables = target.arch() == "x86_64" && target.has("avx512f") && target.vector_bytes() == 64;
        if !has_tables || self.lanes?.count != ENTRIES || x.dtype() != DType::I32 {
            return None;
        }
        let (number, zero) = match x.kind() {
            ScalarKind::Binary(BinOp::Sub, number, zero) => (number, Some(zero)),
            _ => (x, None),
        };
        let ScalarKind::Binary(BinOp::And, bits, mask) = number.kind() else { return None };
        let mask = mask.as_int().filter(|m| (1..i64::from(ENTRIES)).contains(m))?;
        // Differences of integers of 16 bits are exact in float32, too.
        let is_short = |z: &Scalar| matches!(z.kind(), ScalarKind::Cast(from) if from.dtype().is_int() && from.dtype().bits() <= 16);
        if zero.is_some_and(|z| !is_short(z)) {
            return None;
        }
        self.look_up(bits, mask, zero).transpose()
    }

    fn look_up(&mut self, bits: &Scalar, mask: i64, zero: Option<&Scalar>) -> Result<Option<V<'ctx>>, CodegenError> {
        let bits = self.value(bits)?;
        let zero = zero.map(|z| self.value(z)).transpose()?;
        if !bits.is_vector_value() || zero.is_some_and(|z| z.is_vector_value()) {
            return Ok(None);
        }
        let ir = &self.ir;
        let float = ir.value_type(DType::F32);
        let entries: Vec<V<'ctx>> = (0..i64::from(ENTRIES)).map(|i| ir.float((i & mask) as f64, float)).collect();
        let entries: Vec<_> = entries.iter().map(|v| v.into_float_value()).collect();
        let numbers: V<'ctx> = VectorType::const_vector(&entries).into();
        let table = match zero {
            Some(z) => ir.fsub(numbers, ir.splat(ir.cast(Opcode::SIToFP, z, float), ENTRIES)),
            None => numbers,
        };
        Ok(ir.call(ir.declared("llvm.x86.avx512.permvar.sf.512"), &[table, bits]))
    }
}
