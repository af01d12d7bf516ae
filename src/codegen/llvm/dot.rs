//! Sums of four products of bytes, for each lane of 32 bits: the machine's own instructions for them.
//!
//! Schedules write `sum + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3`, all of `int32`, where the four bytes of each operand lie side by
//! side, those of one operand are the same for all lanes and those of the other follow one another from lane to lane.

use inkwell::values::InstructionOpcode as Opcode;

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
};
use crate::{
    loops::{
        BinOp, BufferId, Scalar, ScalarKind,
        affine::{self, Affine},
    },
    tensor::DType,
};

/// Products that are added at once.
const FOUR: usize = 4;

/// Four bytes side by side, as one operand reads them.
struct Bytes {
    buffer: BufferId,
    /// Where the first one is.
    at: Affine,
    signed: bool,
}

/// The two bytes whose product a term is.
fn factors(term: &Scalar) -> Option<[(BufferId, &Scalar, DType); 2]> {
    let ScalarKind::Binary(BinOp::Mul, a, b) = term.kind() else { return None };
    Some([byte(a)?, byte(b)?])
}

/// The byte that is read under a conversion.
fn byte(cast: &Scalar) -> Option<(BufferId, &Scalar, DType)> {
    let ScalarKind::Cast(read) = cast.kind() else { return None };
    match (read.kind(), read.dtype()) {
        (ScalarKind::Read(buffer, index), dtype @ (DType::I8 | DType::U8)) => Some((*buffer, index.first()?, dtype)),
        _ => None,
    }
}

impl<'ctx> Emitter<'_, 'ctx> {
    /// The value of such a sum; none where the expression is another, or the machine has no instructions for it.
    pub(super) fn four_products(&mut self, s: &Scalar) -> Option<Result<V<'ctx>, CodegenError>> {
        let lanes = self.lanes?;
        let features = |wanted: &[&str]| wanted.iter().all(|f| self.unit.target.has(f));
        let wide_enough = match lanes.count {
            4 => true,
            8 => features(&["avx2"]),
            16 => features(&["avx512bw"]),
            _ => false,
        };
        if s.dtype() != DType::I32 || self.unit.target.arch() != "x86_64" || !wide_enough {
            return None;
        }
        let (sum, [a, b]) = self.matched(s)?;
        let step = |bytes: &Bytes| bytes.at.coefficient(lanes.axis);
        let uniform = |bytes: &Bytes| !bytes.at.without(lanes.axis).varying();
        let (same, wide) = if step(&a) == 0 { (a, b) } else { (b, a) };
        if !uniform(&same) || !uniform(&wide) || (step(&same), step(&wide)) != (0, FOUR as i64) {
            return None;
        }
        Some(self.emit_products(&sum, same, wide))
    }

    /// The expression's sum and its operands, by their first bytes.
    fn matched(&mut self, s: &Scalar) -> Option<(Scalar, [Bytes; 2])> {
        let mut rest = s.clone();
        let mut terms = Vec::with_capacity(FOUR);
        for _ in 0..FOUR {
            let ScalarKind::Binary(BinOp::Add, more, term) = rest.kind() else { return None };
            factors(term)?;
            terms.push(term.clone());
            rest = more.clone();
        }
        terms.reverse();
        let mut operands = [0, 1].map(|_| None);
        for (i, term) in terms.iter().enumerate() {
            for (operand, (buffer, index, dtype)) in operands.iter_mut().zip(factors(term)?) {
                let at = affine::affine(index, &self.env, &mut self.affine_memo);
                if self.is_masked(buffer, &at) {
                    return None;
                }
                let first: &Bytes = match operand {
                    Some(first) => first,
                    None => operand.insert(Bytes { buffer, at: at.clone(), signed: dtype == DType::I8 }),
                };
                let follows = at.plus(&first.at, -1).as_constant() == Some(i as i64);
                if first.buffer != buffer || first.signed != (dtype == DType::I8) || !follows {
                    return None;
                }
            }
        }
        let [Some(a), Some(b)] = operands else { return None };
        Some((rest, [a, b]))
    }

    fn emit_products(&mut self, sum: &Scalar, same: Bytes, wide: Bytes) -> Result<V<'ctx>, CodegenError> {
        let lanes = self.lanes.expect("only vector loops have sums of products");
        let n = lanes.count;
        let sum = self.value(sum)?;
        let sum = self.ir.splat(sum, n);
        let word = self.ir.value_type(DType::I32);
        let p = self.address(same.buffer, &same.at)?;
        let one = self.ir.load(word, p, 1);
        let x = self.ir.splat(one, n);
        let p = self.address(wide.buffer, &wide.at.without(lanes.axis))?;
        let y = self.ir.load(self.ir.wide(word, Some(n)), p, 1);
        if same.signed != wide.signed && self.has_byte_products(n) {
            let (unsigned, signed) = if wide.signed { (x, y) } else { (y, x) };
            let bytes = self.ir.wide(self.ir.value_type(DType::I8), Some(n * FOUR as u32));
            let args = [sum, self.ir.recast(unsigned, bytes), self.ir.recast(signed, bytes)];
            return Ok(self.ir.intrinsic(&format!("llvm.x86.avx512.vpdpbusd.{}", n * 32), &[], &args));
        }
        let name = match n {
            4 => "llvm.x86.sse2.pmadd.wd",
            8 => "llvm.x86.avx2.pmadd.wd",
            _ => "llvm.x86.avx512.pmaddw.d.512",
        };
        let [x, y] = [(x, same.signed), (y, wide.signed)].map(|(v, signed)| halves(&self.ir, v, signed, 2 * n));
        let products = [0, 1].map(|i| self.ir.intrinsic(name, &[], &[x[i], y[i]]));
        Ok(self.ir.add(self.ir.add(sum, products[0]), products[1]))
    }

    /// Whether four products of bytes take one instruction, over so many lanes.
    fn has_byte_products(&self, lanes: u32) -> bool {
        let has = |feature| self.unit.target.has(feature);
        has("avx512vnni") && (lanes == 16 || has("avx512vl")) || has("avxvnni") && lanes <= 8
    }
}

/// The even and the odd bytes of a vector, each as 16 bits.
fn halves<'ctx>(ir: &Ir<'_, 'ctx>, words: V<'ctx>, signed: bool, count: u32) -> [V<'ctx>; 2] {
    let short = ir.value_type(DType::I16);
    let v = ir.recast(words, ir.wide(short, Some(count)));
    let eight = ir.int(8, v.get_type());
    let shift = |op, v| ir.bin(op, v, eight);
    match signed {
        true => [shift(Opcode::AShr, shift(Opcode::Shl, v)), shift(Opcode::AShr, v)],
        false => [ir.and(v, ir.int(0xff, v.get_type())), shift(Opcode::LShr, v)],
    }
}
