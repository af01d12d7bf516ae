//! Bytes made of lanes of 32 bits, several vectors of them at once.
//!
//! A vector of 32-bit numbers becomes a quarter of a vector of bytes, which is poor to store. Where unrolled loops store such quarters side
//! by side, they wait for one another: four vectors are packed, which clips them to the bytes' range on the way, and stored as one. So are two
//! vectors of what is clipped to that range and stored as numbers of 16 bits.
//! Likewise numbers of 8 and 16 bits that are stored two or four apart wait for those between, and are stored as words of 32 or 64 bits; vectors of
//! 32-bit numbers that are stored two to four apart are interleaved.

use inkwell::{IntPredicate, values::InstructionOpcode as Opcode};

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
    ops::to_memory,
    state::Waiting,
};
use crate::{
    loops::{
        BufferId, Scalar, ScalarKind,
        affine::{self, Atom},
    },
    tensor::DType,
};

impl<'ctx> Emitter<'_, 'ctx> {
    /// Lets a store wait for its neighbours, where it is one of clipped bytes; says whether it does.
    pub(super) fn store_later(
        &mut self,
        buffer: BufferId,
        index: &Scalar,
        value: &Scalar,
    ) -> Result<bool, CodegenError> {
        let Some(lanes) = self.lanes.filter(|_| self.unrolled > 0) else { return Ok(false) };
        let dtype = value.dtype();
        let is_byte = matches!(dtype, DType::I8 | DType::U8);
        let clipped = match (value.kind(), dtype) {
            (ScalarKind::Saturate(x), _) => Some((x, dtype)),
            (ScalarKind::Cast(bytes), DType::I16 | DType::U16) => match bytes.kind() {
                ScalarKind::Saturate(x) if dtype == DType::I16 || bytes.dtype() == DType::U8 => {
                    Some((x, bytes.dtype()))
                }
                _ => None,
            },
            _ => None,
        };
        let is_short = matches!(dtype, DType::F16 | DType::BF16 | DType::I16 | DType::U16);
        let is_long = matches!(dtype, DType::F32 | DType::I32 | DType::U32);
        if !is_byte && !is_short && !is_long {
            return Ok(false);
        }
        let packs = match lanes.count {
            16 => self.unit.target.has("avx512bw"),
            8 => self.unit.target.has("avx2"),
            n => n == 4,
        };
        let packs = packs && self.unit.target.arch() == "x86_64";
        let at = affine::affine(index, &self.env, &mut self.affine_memo);
        let first = at.without(lanes.axis);
        // Expressions may hold variables of unrolled loops, and mean another number in their next turn.
        let plain = first.terms.iter().all(|t| !t.facts.varying && matches!(t.atom, Atom::Axis(_)));
        let step = at.coefficient(lanes.axis);
        let (what, clipped) = match step {
            1 if packs && !is_long => clipped.unzip(),
            4 => (Some(value), None),
            2 if !is_byte => (Some(value), None),
            3 if is_long => (Some(value), None),
            _ => (None, None),
        };
        let Some(x) = what.filter(|_| plain) else { return Ok(false) };
        let v = self.value(x)?;
        let v = self.ir.splat(v, lanes.count);
        let v = if is_short && clipped.is_none() { to_memory(self, v, dtype) } else { v };
        // Whether none of the numbers are the same: those a word apart may lie between one another.
        let apart = |w: &Waiting<'ctx>| {
            let reach = step.max(w.step) * i64::from(lanes.count.max(w.lanes));
            let between = |d: i64| step == w.step && d % step != 0;
            w.at.plus(&first, -1).as_constant().is_some_and(|d| d.abs() >= reach || between(d))
        };
        if !self.waiting.iter().filter(|w| w.buffer == buffer).all(apart) {
            self.store_waiting();
        }
        let to = self.place(buffer, &first)?;
        self.waiting.push(Waiting { buffer, at: first, to, v, lanes: lanes.count, step, dtype, clipped });
        // As many as a word has, or as vectors of 32 bits make one.
        let many = if step == 1 { 4 / dtype.bytes() } else { step as usize };
        if let Some(run) = self.run(many, Some(step)) {
            self.store_packed(run);
        }
        Ok(true)
    }

    /// Takes so many of those that wait, one behind the other, where there are, with that step between lanes where one is given.
    fn run(&mut self, many: usize, step: Option<i64>) -> Option<Vec<Waiting<'ctx>>> {
        let next = |w: &Waiting<'ctx>| {
            self.waiting.iter().position(|o| {
                let apart = o.at.plus(&w.at, -1).as_constant();
                let next = if w.step == 1 { w.lanes as i64 } else { 1 };
                (o.buffer, o.lanes, o.step, o.clipped, apart) == (w.buffer, w.lanes, w.step, w.clipped, Some(next))
            })
        };
        let fits = |first: &usize| step.is_none_or(|step| self.waiting[*first].step == step);
        let mut found = (0..self.waiting.len()).filter(fits).find_map(|first| {
            let mut all = vec![first];
            while all.len() < many {
                all.push(next(&self.waiting[*all.last()?])?);
            }
            Some(all)
        })?;
        let mut waiting: Vec<Option<Waiting<'ctx>>> = std::mem::take(&mut self.waiting).into_iter().map(Some).collect();
        let taken = found.drain(..).filter_map(|i| waiting[i].take()).collect();
        self.waiting = waiting.into_iter().flatten().collect();
        Some(taken)
    }

    /// Stores everything that waits.
    pub(super) fn store_waiting(&mut self) {
        for many in [4, 2, 1] {
            while let Some(run) = self.run(many, None) {
                self.store_packed(run);
            }
        }
    }

    /// Whether something waits to be stored in a buffer.
    pub(super) fn waits(&self, buffer: BufferId) -> bool {
        self.waiting.iter().any(|w| w.buffer == buffer)
    }

    /// Stores vectors whose lanes are a word apart and which begin side by side: as words, where they fill these.
    fn store_words(&self, run: Vec<Waiting<'ctx>>) {
        let ir = &self.ir;
        let (step, bits) = (run[0].step, 8 * run[0].dtype.bytes() as i64);
        if run.len() as i64 == step && bits == 32 {
            let all: Vec<V<'ctx>> = run.iter().map(|w| w.v).collect();
            return ir.store(run[0].to, self.interleaved(&all, run[0].lanes), 1);
        }
        if run.len() as i64 == step {
            let word = ir.value_type(if step * bits == 64 { DType::I64 } else { DType::I32 });
            let widened = run.iter().zip(0..).map(|(w, i)| {
                let v = ir.cast(Opcode::ZExt, w.v, word);
                if i == 0 { v } else { ir.shift(Opcode::Shl, v, bits * i) }
            });
            if let Some(words) = widened.reduce(|a, b| ir.or(a, b)) {
                ir.store(run[0].to, words, 1);
            }
            return;
        }
        for w in run {
            for lane in 0..w.lanes {
                let number = match bits {
                    8 => ir.value_type(DType::I8),
                    16 => ir.value_type(DType::I16),
                    _ => ir.value_type(w.dtype),
                };
                let to = ir.offset(number, w.to, ir.i64(step * i64::from(lane)));
                ir.store(to, ir.extract(w.v, lane), 1);
            }
        }
    }

    /// The first lanes of two to four vectors side by side, then the second ones, and so on.
    fn interleaved(&self, all: &[V<'ctx>], lanes: u32) -> V<'ctx> {
        let ir = &self.ir;
        let pair = |a: V<'ctx>, b: V<'ctx>| ir.shuffle(a, b, (0..2 * lanes).map(|i| i / 2 + i % 2 * lanes));
        match *all {
            [a, b] => pair(a, b),
            [a, b, c] => {
                let (first, last) = (pair(a, b), ir.shuffle(c, c, 0..2 * lanes));
                let lane = |i: u32| if i % 3 == 2 { 2 * lanes + i / 3 } else { i / 3 * 2 + i % 3 };
                ir.shuffle(first, last, (0..3 * lanes).map(lane))
            }
            [a, b, c, d] => {
                let lane = |i: u32| i / 4 * 2 + i % 2 + if i % 4 < 2 { 0 } else { 2 * lanes };
                ir.shuffle(pair(a, b), pair(c, d), (0..4 * lanes).map(lane))
            }
            _ => unreachable!("numbers are two to four apart"),
        }
    }

    /// One or two vectors of 32-bit numbers, clipped to the range of bytes, as numbers of 16 bits.
    fn packed_shorts(&self, v: &[V<'ctx>], lanes: u32, bytes: DType) -> V<'ctx> {
        let ir = &self.ir;
        let &[low, high] = v else { return narrowed(ir, v[0], bytes, DType::I16) };
        let name = match lanes {
            16 => "llvm.x86.avx512.packssdw.512",
            8 => "llvm.x86.avx2.packssdw",
            _ => "llvm.x86.sse2.packssdw.128",
        };
        let packed = clipped(ir, ir.intrinsic(name, &[], &[low, high]), bytes);
        // Each 128 bits hold four numbers of either vector.
        let pairs = ir.recast(packed, ir.wide(ir.value_type(DType::I64), Some(lanes / 2)));
        let parts = lanes / 4;
        ir.shuffle(pairs, pairs, (0..2).flat_map(|of| (0..parts).map(move |part| 2 * part + of)))
    }

    /// Stores one, two or four vectors that lie side by side.
    fn store_packed(&self, run: Vec<Waiting<'ctx>>) {
        let ir = &self.ir;
        let (to, lanes, dtype) = (run[0].to, run[0].lanes, run[0].dtype);
        let Some(bytes) = run[0].clipped.filter(|_| run[0].step == 1) else { return self.store_words(run) };
        let v: Vec<V<'ctx>> = run.into_iter().map(|w| w.v).collect();
        if dtype.bytes() == 2 {
            return v.chunks(2).zip(0..).for_each(|(v, at)| {
                let to = ir.offset(ir.value_type(dtype), to, ir.i64(2 * at * i64::from(lanes)));
                ir.store(to, self.packed_shorts(v, lanes, bytes), 1);
            });
        }
        let bytes = match &v[..] {
            &[one] => narrowed(ir, one, dtype, dtype),
            _ => {
                let names = match (lanes, dtype) {
                    (16, DType::U8) => ["llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packuswb.512"],
                    (16, _) => ["llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packsswb.512"],
                    (8, DType::U8) => ["llvm.x86.avx2.packssdw", "llvm.x86.avx2.packuswb"],
                    (8, _) => ["llvm.x86.avx2.packssdw", "llvm.x86.avx2.packsswb"],
                    (_, DType::U8) => ["llvm.x86.sse2.packssdw.128", "llvm.x86.sse2.packuswb.128"],
                    _ => ["llvm.x86.sse2.packssdw.128", "llvm.x86.sse2.packsswb.128"],
                };
                let low = ir.intrinsic(names[0], &[], &[v[0], v[1]]);
                let high = if v.len() == 4 { ir.intrinsic(names[0], &[], &[v[2], v[3]]) } else { low };
                let packed = ir.intrinsic(names[1], &[], &[low, high]);
                // Each 128 bits hold four bytes of every vector.
                let words = ir.recast(packed, ir.wide(ir.value_type(DType::I32), Some(lanes)));
                let parts = lanes / 4;
                let order = (0..v.len() as u32).flat_map(|of| (0..parts).map(move |part| 4 * part + of));
                ir.shuffle(words, words, order)
            }
        };
        ir.store(to, bytes, 1);
    }
}

/// The numbers clipped to the range of bytes of a type.
fn clipped<'ctx>(ir: &Ir<'_, 'ctx>, v: V<'ctx>, bytes: DType) -> V<'ctx> {
    let (least, most) = bytes.int_range().expect("bytes are integers");
    let bounded = |v: V<'ctx>, bound: i128, p| {
        let b = ir.int(bound as i64, v.get_type());
        ir.select(ir.icmp(p, v, b), v, b)
    };
    bounded(bounded(v, most, IntPredicate::SLT), least, IntPredicate::SGT)
}

/// The same as numbers of a narrow type.
fn narrowed<'ctx>(ir: &Ir<'_, 'ctx>, v: V<'ctx>, bytes: DType, dtype: DType) -> V<'ctx> {
    ir.cast(Opcode::Trunc, clipped(ir, v, bytes), ir.value_type(dtype))
}
