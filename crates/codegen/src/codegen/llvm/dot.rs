//! Dot products of narrow numbers, several for each lane of 32 bits: the machine's own instructions for them.
//!
//! There are such for four bytes of each operand, two `int16` or two `bfloat16`, that lie side by side, where those of one operand are the same for
//! all lanes, and those of the other follow one another from lane to lane.

use inkwell::values::InstructionOpcode as Opcode;

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
};
use crate::{
    loops::{
        BufferId, Scalar, ScalarKind,
        affine::{self, Affine},
    },
    tensor::DType,
};

/// Numbers side by side, as one operand reads them.
struct Operand {
    buffer: BufferId,
    /// Where the first one is.
    at: Affine,
    dtype: DType,
}

/// The element that a factor is.
fn element(factor: &Scalar) -> Option<(BufferId, &Scalar)> {
    match factor.kind() {
        ScalarKind::Read(buffer, index) => Some((*buffer, index.first()?)),
        _ => None,
    }
}

/// Signs of bytes: where they are read as the other kind, this bit is.
const SIGN_BITS: i64 = 0x8080_8080;

impl<'ctx> Emitter<'_, 'ctx> {
    /// The value of a [`ScalarKind::Dot`], where there are instructions for where its factors lie.
    pub(super) fn dot(&mut self, dtype: DType, operands: &[Scalar]) -> Option<Result<V<'ctx>, CodegenError>> {
        let lanes = self.lanes?;
        let shorts = operands.get(1).is_some_and(|f| f.dtype() == DType::I16);
        let count = if dtype == DType::I32 && !shorts { 4 } else { 2 };
        let wide_enough = match lanes.count {
            4 => true,
            8 => self.has("avx2"),
            16 if dtype == DType::I32 => self.has("avx512bw"),
            16 => self.has("avx512f"),
            _ => false,
        };
        if !wide_enough {
            return None;
        }
        // Machines of other families widen these.
        if shorts && self.unit.target.arch() != "x86_64" {
            return None;
        }
        let (sum, factors) = operands.split_first()?;
        let pairs: Vec<[&Scalar; 2]> = factors.chunks_exact(2).map(|pair| [&pair[0], &pair[1]]).collect();
        let Some([a, b]) = self.side_by_side(&pairs, count) else { return self.taps(sum, &pairs) };
        let step = |operand: &Operand| operand.at.coefficient(lanes.axis);
        let uniform = |operand: &Operand| !operand.at.without(lanes.axis).varying();
        let (same, wide) = if step(&a) == 0 { (a, b) } else { (b, a) };
        if !uniform(&same) || !uniform(&wide) || (step(&same), step(&wide)) != (0, count as i64) {
            return None;
        }
        Some(self.emit_products(sum, same, wide))
    }

    fn has(&self, feature: &str) -> bool {
        self.unit.target.has(feature)
    }

    /// Both operands by their first numbers, where the numbers of each lie side by side and fill a word.
    fn side_by_side(&mut self, pairs: &[[&Scalar; 2]], count: usize) -> Option<[Operand; 2]> {
        if pairs.len() != count {
            return None;
        }
        let mut operands = [0, 1].map(|_| None);
        for (i, pair) in pairs.iter().enumerate() {
            for (operand, factor) in operands.iter_mut().zip(pair) {
                let (buffer, index) = element(factor)?;
                let dtype = factor.dtype();
                let at = affine::affine(index, &self.env, &mut self.affine_memo);
                if self.is_masked(buffer, &at) {
                    return None;
                }
                let first: &Operand = match operand {
                    Some(first) => first,
                    None => operand.insert(Operand { buffer, at: at.clone(), dtype }),
                };
                let follows = at.plus(&first.at, -1).as_constant() == Some(i as i64);
                if first.buffer != buffer || first.dtype != dtype || !follows {
                    return None;
                }
            }
        }
        let [Some(a), Some(b)] = operands else { return None };
        Some([a, b])
    }

    /// The value where up to four bytes of each operand lie a vector's lanes apart: each operand is read at once, and its bytes are
    /// brought together. What lies over an edge is left out.
    fn taps(&mut self, sum: &Scalar, pairs: &[[&Scalar; 2]]) -> Option<Result<V<'ctx>, CodegenError>> {
        let lanes = self.lanes.filter(|l| l.count == 16 && sum.dtype() == DType::I32)?;
        let strided = self.unit.target.int8_dot_strided() > 0 && (2..=4).contains(&pairs.len());
        if !strided || self.masks.current().is_some() {
            return None;
        }
        let mut firsts = [0, 1].map(|_| None);
        let mut present = 0_u64;
        for (i, pair) in pairs.iter().enumerate() {
            let mut within = true;
            for (first, factor) in firsts.iter_mut().zip(pair) {
                let read = match factor.kind() {
                    ScalarKind::Select(cond, read, zero) if zero.as_int() == Some(0) => {
                        within &= affine::decide(cond, &self.env, &mut self.affine_memo)?;
                        read
                    }
                    _ => factor,
                };
                let ((buffer, index), dtype) = (element(read)?, read.dtype());
                let at = affine::affine(index, &self.env, &mut self.affine_memo);
                let base = at.without(lanes.axis);
                if at.coefficient(lanes.axis) != 1 || base.varying() {
                    return None;
                }
                let first: &Operand = first.get_or_insert(Operand { buffer, at: base.clone(), dtype });
                let apart = base.plus(&first.at, -1).as_constant();
                if first.buffer != buffer || first.dtype != dtype || apart != Some(i as i64 * lanes.count as i64) {
                    return None;
                }
            }
            present |= if within { 0xffff << (16 * i) } else { 0 };
        }
        let [Some(a), Some(b)] = firsts else { return None };
        if a.dtype == b.dtype {
            return None;
        }
        Some(self.emit_taps(sum, [a, b], present))
    }

    fn emit_taps(&mut self, sum: &Scalar, operands: [Operand; 2], present: u64) -> Result<V<'ctx>, CodegenError> {
        let sum = self.value(sum)?;
        let sum = self.ir.splat(sum, 16);
        if present == 0 {
            return Ok(sum);
        }
        let bytes = self.ir.wide(self.ir.value_type(DType::I8), Some(64));
        let mut brought = Vec::with_capacity(2);
        for operand in &operands {
            // What is not there reads as 0, and its memory is not touched.
            let p = self.address(operand.buffer, &operand.at)?;
            let v = self.ir.masked_load(bytes, p, self.ir.bits(present), 1);
            let order = self.ir.bytes((0..64).map(|i| 16 * (i % 4) + i / 4));
            let v = self.ir.intrinsic("llvm.x86.avx512.permvar.qi.512", &[], &[v, order]);
            brought.push((v, operand.dtype == DType::I8));
        }
        Ok(self.four_products(sum, brought[0], brought[1], 16))
    }

    fn emit_products(&mut self, sum: &Scalar, same: Operand, wide: Operand) -> Result<V<'ctx>, CodegenError> {
        let lanes = self.lanes.expect("only vector loops have sums of products");
        let n = lanes.count;
        let sum = self.value(sum)?;
        let sum = self.ir.splat(sum, n);
        let word = self.ir.value_type(DType::I32);
        let align = same.dtype.bytes();
        let p = self.address(same.buffer, &same.at)?;
        let one = self.ir.load(word, p, align);
        let x = self.ir.splat(one, n);
        let p = self.address(wide.buffer, &wide.at.without(lanes.axis))?;
        let y = self.ir.load(self.ir.wide(word, Some(n)), p, align);
        Ok(match same.dtype {
            DType::BF16 => self.pair_of_products(sum, x, y, n),
            DType::I16 => self.two_products(sum, x, y, n),
            _ => {
                let signed = |operand: &Operand| operand.dtype == DType::I8;
                self.four_products(sum, (x, signed(&same)), (y, signed(&wide)), n)
            }
        })
    }

    /// `sum` and two products of `bfloat16` for each lane, rounded as the machine's instruction does it or as two multiply-adds.
    fn pair_of_products(&self, sum: V<'ctx>, x: V<'ctx>, y: V<'ctx>, n: u32) -> V<'ctx> {
        let ir = &self.ir;
        let x86 = self.unit.target.arch() == "x86_64";
        if x86 && self.has("avx512bf16") && (n == 16 || self.has("avx512vl")) {
            let shorts = ir.wide(ir.ctx.bf16_type().into(), Some(2 * n));
            let args = [sum, ir.recast(x, shorts), ir.recast(y, shorts)];
            return ir.intrinsic(&format!("llvm.x86.avx512bf16.dpbf16ps.{}", n * 32), &[], &args);
        }
        let float = ir.value_type(DType::F32);
        let halves = |v: V<'ctx>| {
            let high = ir.and(v, ir.int(0xffff_0000, v.get_type()));
            [ir.shift(Opcode::Shl, v, 16), high].map(|bits| ir.bitcast(bits, float))
        };
        let ([x0, x1], [y0, y1]) = (halves(x), halves(y));
        ir.fadd(ir.fadd(sum, ir.fmul(x0, y0)), ir.fmul(x1, y1))
    }

    /// `sum` and a dot product of two int16 pairs for each lane.
    fn two_products(&self, sum: V<'ctx>, x: V<'ctx>, y: V<'ctx>, n: u32) -> V<'ctx> {
        let ir = &self.ir;
        let shorts = ir.wide(ir.value_type(DType::I16), Some(2 * n));
        let [x, y] = [x, y].map(|v| ir.recast(v, shorts));
        match self.has_byte_products(n) {
            true => ir.intrinsic(&format!("llvm.x86.avx512.vpdpwssd.{}", n * 32), &[], &[sum, x, y]),
            false => ir.add(sum, ir.intrinsic(sums_of_pairs(n), &[], &[x, y])),
        }
    }

    /// `sum` and a dot product of four int8 pairs for each lane; operands come with whether they are signed.
    fn four_products(&self, sum: V<'ctx>, x: (V<'ctx>, bool), y: (V<'ctx>, bool), n: u32) -> V<'ctx> {
        let ir = &self.ir;
        if self.unit.target.arch() != "x86_64" {
            return self.four_products_on_arm(sum, x, y, n);
        }
        if x.1 != y.1 && self.has_byte_products(n) {
            let (unsigned, signed) = if y.1 { (x.0, y.0) } else { (y.0, x.0) };
            let bytes = ir.wide(ir.value_type(DType::I8), Some(n * 4));
            let args = [sum, ir.recast(unsigned, bytes), ir.recast(signed, bytes)];
            return ir.intrinsic(&format!("llvm.x86.avx512.vpdpbusd.{}", n * 32), &[], &args);
        }
        let [x, y] = [x, y].map(|(v, signed)| halves(ir, v, signed, 2 * n));
        let products = [0, 1].map(|i| ir.intrinsic(sums_of_pairs(n), &[], &[x[i], y[i]]));
        ir.add(ir.add(sum, products[0]), products[1])
    }

    /// Whether a dot product of four int8 pairs, or of two int16 pairs, takes one instruction, over so many lanes.
    pub(super) fn has_byte_products(&self, lanes: u32) -> bool {
        self.has("avx512vnni") && (lanes == 16 || self.has("avx512vl")) || self.has("avxvnni") && lanes <= 8
    }

    /// The same on AArch64, over four lanes: its dot products are of bytes of one kind. With another kind beside it, an unsigned byte is
    /// 128 more than the signed one of the same bits but the sign.
    fn four_products_on_arm(&self, sum: V<'ctx>, x: (V<'ctx>, bool), y: (V<'ctx>, bool), n: u32) -> V<'ctx> {
        let ir = &self.ir;
        if !self.has("dotprod") {
            let bytes = |(v, signed): (V<'ctx>, bool)| {
                [0, 8, 16, 24].map(|place| {
                    let top = ir.shift(Opcode::Shl, v, 24 - place);
                    ir.shift(if signed { Opcode::AShr } else { Opcode::LShr }, top, 24)
                })
            };
            let terms = bytes(x).into_iter().zip(bytes(y));
            return terms.fold(sum, |sum, (a, b)| ir.add(sum, ir.mul(a, b)));
        }
        let words = ir.wide(ir.value_type(DType::I32), Some(n));
        let bytes = ir.wide(ir.value_type(DType::I8), Some(n * 4));
        let dot = |name: &str, sum: V<'ctx>, a: V<'ctx>, b: V<'ctx>| {
            let args = [sum, ir.recast(a, bytes), ir.recast(b, bytes)];
            ir.intrinsic(&format!("llvm.aarch64.neon.{name}"), &[words, bytes], &args)
        };
        match (x.1, y.1) {
            (true, true) => dot("sdot", sum, x.0, y.0),
            (false, false) => dot("udot", sum, x.0, y.0),
            _ => {
                let (unsigned, signed) = if y.1 { (x.0, y.0) } else { (y.0, x.0) };
                if self.has("i8mm") {
                    return dot("usdot", sum, unsigned, signed);
                }
                let shifted = ir.xor(unsigned, ir.int(SIGN_BITS, unsigned.get_type()));
                // 128 as 64 and 64, which are signed bytes.
                let half = ir.int(0x4040_4040, signed.get_type());
                let sum = dot("sdot", dot("sdot", sum, signed, half), signed, half);
                dot("sdot", sum, shifted, signed)
            }
        }
    }
}

/// The instruction that multiplies `int16` and adds two products each, in so many lanes of 32 bits.
fn sums_of_pairs(lanes: u32) -> &'static str {
    match lanes {
        4 => "llvm.x86.sse2.pmadd.wd",
        8 => "llvm.x86.avx2.pmadd.wd",
        _ => "llvm.x86.avx512.pmaddw.d.512",
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
