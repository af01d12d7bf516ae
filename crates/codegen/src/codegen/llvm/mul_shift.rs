//! Fixed-point multiplication of lanes of 32 bits.
//!
//! Machines multiply the even lanes of two vectors of 32 bits to 64 bits at once. So even and odd lanes are taken apart in place, which
//! costs a shift, instead of being widened to two vectors and narrowed again.

use inkwell::values::InstructionOpcode as Opcode;

use super::{CodegenError, emit::Emitter, ir::V};
use crate::{loops::Scalar, tensor::DType};

impl<'ctx> Emitter<'_, 'ctx> {
    /// The value of a [`ScalarKind::MulShift`](crate::loops::ScalarKind::MulShift), where the machine multiplies so.
    pub(super) fn mul_shift(&mut self, operands: &[Scalar; 4]) -> Option<Result<V<'ctx>, CodegenError>> {
        let lanes = self.lanes?.count;
        let target = &self.unit.target;
        if lanes % 2 == 1 || target.arch() != "x86_64" || !target.has("sse4.1") {
            return None;
        }
        Some(self.emit_mul_shift(operands, lanes))
    }

    fn emit_mul_shift(&mut self, [x, m, round, shift]: &[Scalar; 4], lanes: u32) -> Result<V<'ctx>, CodegenError> {
        let (x, m) = (self.value(x)?, self.value(m)?);
        let [x, m] = [x, m].map(|v| self.ir.splat(v, lanes));
        let (half, right) = (self.value(round)?, self.value(shift)?);
        let ir = &self.ir;
        let long = ir.value_type(DType::I64);
        let pairs = ir.wide(long, Some(lanes / 2));
        let by_word = shift.as_int() == Some(32);
        let parts = [0, 1].map(|odd| {
            // Both kinds are brought to the lower words and widened from there: LLVM knows a multiplication of words by that form alone where an
            // operand is the same for all turns of a loop and is computed before it.
            let of_words = |v: V<'ctx>| {
                let lower = if odd == 1 { ir.shuffle(v, v, (0..lanes).map(|i| i | 1)) } else { v };
                ir.shift(Opcode::AShr, ir.shift(Opcode::Shl, ir.recast(lower, pairs), 32), 32)
            };
            let of_longs = |v: V<'ctx>| match v.is_vector_value() {
                true => ir.shuffle(v, v, (0..lanes / 2).map(|i| 2 * i + odd)),
                false => ir.splat(v, lanes / 2),
            };
            let sum = ir.add(ir.mul(of_words(x), of_words(m)), of_longs(half));
            if by_word {
                return sum;
            }
            let right = of_longs(right);
            // A shift by 64 or more leaves the sign.
            let last = ir.int(63, right.get_type());
            let fits = ir.icmp(inkwell::IntPredicate::ULT, right, last);
            ir.bin(Opcode::AShr, sum, ir.select(fits, right, last))
        });
        let words = ir.wide(ir.value_type(DType::I32), Some(lanes));
        if by_word {
            // The upper words, which lie in the odd lanes.
            let [even, odd] = parts.map(|v| ir.recast(v, words));
            return Ok(ir.shuffle(even, odd, (0..lanes).map(|i| if i % 2 == 0 { i + 1 } else { lanes + i })));
        }
        let low = ir.and(parts[0], ir.int(0xffff_ffff, parts[0].get_type()));
        let high = ir.shift(Opcode::Shl, parts[1], 32);
        Ok(ir.recast(ir.or(low, high), words))
    }
}
