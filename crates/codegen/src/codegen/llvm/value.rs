//! Expressions to values: reads, choices, sums. What depends on the lane is a vector, everything else stays scalar.

use inkwell::values::{IntValue, PointerValue};

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ty, V},
    ops,
    state::{Binding, Cost, Lanes, Mask},
};
use crate::{
    loops::{
        BinOp, BufferId, MOST_RUNS, Scalar, ScalarKind, Space, UnOp,
        affine::{self, Affine, Atom},
    },
    tensor::DType,
};

/// A choice whose sides take more operations than this, and whose condition is the same for all lanes, becomes a branch.
const BRANCH_ABOVE: u32 = 24;

impl<'ctx> Emitter<'_, 'ctx> {
    fn cost(&mut self, s: &Scalar) -> Cost {
        if let Some(c) = self.costs.get(&s.key()) {
            return *c;
        }
        let own = match s.kind() {
            ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_) => 0,
            ScalarKind::Read(..) => 4,
            ScalarKind::Unary(op, _) => match op {
                UnOp::Neg | UnOp::Abs | UnOp::Not | UnOp::IsNan | UnOp::IsInf | UnOp::IsFinite => 1,
                UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round | UnOp::RoundEven | UnOp::Popcount => 2,
                UnOp::FlushSubnormal => 3,
                UnOp::Sqrt => 8,
                _ => 20,
            },
            _ => 1,
        };
        let mut cost = Cost { work: own, reads: matches!(s.kind(), ScalarKind::Read(..)) };
        for operand in s.operands() {
            let c = self.cost(operand);
            cost.work = cost.work.saturating_add(c.work);
            cost.reads |= c.reads;
        }
        self.costs.insert(s.key(), cost);
        cost
    }

    /// The value of an expression: a vector where it depends on the lane.
    pub(super) fn value(&mut self, s: &Scalar) -> Result<V<'ctx>, CodegenError> {
        for mask in self.masks.in_force() {
            if let Some(v) = self.values.get(&(s.key(), mask)) {
                return Ok(*v);
            }
        }
        let v = self.evaluate(s)?;
        let reads = self.cost(s).reads;
        let mask = if reads { self.masks.in_force().next().unwrap_or(0) } else { 0 };
        self.values.insert((s.key(), mask), v);
        self.value_log.push((s.key(), mask));
        Ok(v)
    }

    fn evaluate(&mut self, s: &Scalar) -> Result<V<'ctx>, CodegenError> {
        let dtype = s.dtype();
        match s.kind() {
            ScalarKind::Int(i) => Ok(self.ir.int(*i, self.ir.value_type(dtype))),
            ScalarKind::Float(x) => Ok(self.ir.float(ops::representable(*x, dtype), self.ir.value_type(dtype))),
            ScalarKind::Axis(id) => match self.env.get(*id).clone() {
                Binding::Value { v, .. } => Ok(v),
                Binding::Sum(a) => self.sum(&a),
                Binding::Lane { .. } => Ok(self.ir.iota(1, self.lane_count())),
            },
            ScalarKind::Read(buffer, index) => {
                let at = affine::affine(&index[0], &self.env, &mut self.affine_memo);
                self.read(*buffer, &at)
            }
            ScalarKind::Binary(op, a, b) => {
                if dtype == DType::I64 {
                    let sum = affine::affine(s, &self.env, &mut self.affine_memo);
                    if !sum.is_just(s) {
                        return self.sum(&sum);
                    }
                }
                if dtype == DType::Bool
                    && let Some(known) = affine::decide(s, &self.env, &mut self.affine_memo)
                {
                    return Ok(self.ir.int(known as i64, self.ir.value_type(DType::Bool)));
                }
                let is_natural = dtype == DType::I64 && op.is_division() && b.as_int().is_some_and(|n| n > 0) && {
                    let dividend = affine::affine(a, &self.env, &mut self.affine_memo);
                    dividend.range().is_some_and(|(least, _)| least >= 0)
                };
                let (x, y) = (self.value(a)?, self.value(b)?);
                let (x, y) = self.same_width(x, y);
                match is_natural {
                    true => Ok(ops::divide_naturals(self, *op, x, y)),
                    false => ops::binary(self, *op, a.dtype(), x, y, b),
                }
            }
            ScalarKind::Unary(op, a) => {
                let x = self.value(a)?;
                ops::unary(self, *op, a.dtype(), x)
            }
            ScalarKind::Bits(a) => {
                let x = self.value(a)?;
                let raw = ops::to_memory(self, x, a.dtype());
                let bits = self.ir.bitcast(raw, self.ir.memory_type(dtype));
                Ok(ops::from_memory(self, bits, dtype))
            }
            ScalarKind::Cast(a) => {
                if dtype == DType::BF16
                    && let ScalarKind::Unary(UnOp::FlushSubnormal, x) = a.kind()
                    && x.dtype() == DType::F32
                    && ops::flushes_bf16(self)
                {
                    let x = self.value(x)?;
                    return Ok(ops::flushed_to_bf16(self, x));
                }
                if dtype == DType::F32
                    && let Some(found) = self.looked_up(a)
                {
                    return found;
                }
                let x = self.value(a)?;
                ops::cast(self, x, a.dtype(), dtype)
            }
            ScalarKind::Dot(operands) => match self.dot(dtype, operands) {
                Some(sum) => sum,
                None => self.expansion(s),
            },
            ScalarKind::MulShift(operands) => match self.mul_shift(operands) {
                Some(product) => product,
                None => self.expansion(s),
            },
            ScalarKind::Saturate(_) => self.expansion(s),
            ScalarKind::Select(c, a, b) => self.choose(c, a, b),
        }
    }

    /// The value of an operation that the machine has no instruction for, by others.
    fn expansion(&mut self, s: &Scalar) -> Result<V<'ctx>, CodegenError> {
        let plain = self.expanded.entry(s.key());
        let plain = plain.or_insert_with(|| s.expanded().expect("only such operations are expanded")).clone();
        self.value(&plain)
    }

    fn lane_count(&self) -> u32 {
        self.lanes.expect("only vector loops bind a lane").count
    }

    /// Both as vectors where one of them is.
    fn same_width(&self, a: V<'ctx>, b: V<'ctx>) -> (V<'ctx>, V<'ctx>) {
        if a.is_vector_value() == b.is_vector_value() {
            return (a, b);
        }
        let n = self.lane_count();
        (self.ir.splat(a, n), self.ir.splat(b, n))
    }

    fn choose(&mut self, c: &Scalar, a: &Scalar, b: &Scalar) -> Result<V<'ctx>, CodegenError> {
        match affine::decide(c, &self.env, &mut self.affine_memo) {
            Some(true) => return self.value(a),
            Some(false) => return self.value(b),
            None => {}
        }
        let cond = self.value(c)?;
        let (x, y) = (self.cost(a), self.cost(b));
        if !cond.is_vector_value() && x.work.max(y.work) > BRANCH_ABOVE {
            return self.branched(cond, a, b);
        }
        // Reads of the side that is not chosen are diverted, so that both sides can be computed.
        let v = if x.reads { self.masked(cond, |e| e.value(a))? } else { self.value(a)? };
        let w = match y.reads {
            true => {
                let not = self.ir.not(cond);
                self.masked(not, |e| e.value(b))?
            }
            false => self.value(b)?,
        };
        let (v, w) = match cond.is_vector_value() {
            true => (self.ir.splat(v, self.lane_count()), self.ir.splat(w, self.lane_count())),
            false => self.same_width(v, w),
        };
        Ok(self.ir.select(cond, v, w))
    }

    fn branched(&mut self, cond: V<'ctx>, a: &Scalar, b: &Scalar) -> Result<V<'ctx>, CodegenError> {
        let (yes, no, done) = (self.new_block(), self.new_block(), self.new_block());
        self.ir.branch(cond, yes, no);
        let mut side = |block, s: &Scalar| {
            self.ir.go_to(block);
            let known = self.value_log.len();
            let v = self.value(s)?;
            // What was computed in here does not exist where control did not come by.
            for key in self.value_log.split_off(known) {
                self.values.remove(&key);
            }
            Ok::<_, CodegenError>((v, self.ir.here()))
        };
        let (v, from_yes) = side(yes, a)?;
        let (w, from_no) = side(no, b)?;
        let wide = v.is_vector_value() || w.is_vector_value();
        let end = |v, block| {
            self.ir.go_to(block);
            let v = if wide { self.ir.splat(v, self.lanes.map_or(0, |l| l.count)) } else { v };
            self.ir.jump(done);
            v
        };
        let (v, w) = (end(v, from_yes), end(w, from_no));
        self.ir.go_to(done);
        Ok(self.ir.phi(&[(v, from_yes), (w, from_no)]))
    }

    // Indices.

    /// The value of a sum.
    pub(super) fn sum(&mut self, a: &Affine) -> Result<V<'ctx>, CodegenError> {
        let mut total = None;
        for part in self.parts(a)? {
            total = Some(match total {
                None => part,
                Some(t) => {
                    let (t, part) = self.same_width(t, part);
                    self.ir.add(t, part)
                }
            });
        }
        let constant = self.ir.i64(a.constant).into();
        Ok(match total {
            None => constant,
            Some(t) if a.constant == 0 => t,
            Some(t) => {
                let (t, c) = self.same_width(t, constant);
                self.ir.add(t, c)
            }
        })
    }

    /// The products of a sum, those of outer loops first.
    fn parts(&mut self, a: &Affine) -> Result<Vec<V<'ctx>>, CodegenError> {
        let mut terms: Vec<&affine::Term> = a.terms.iter().collect();
        terms.sort_by_key(|t| t.facts.level);
        let mut parts = vec![];
        for t in terms {
            let v = match &t.atom {
                Atom::Axis(id) => match self.env.get(*id) {
                    Binding::Value { v, .. } => *v,
                    Binding::Lane { .. } => {
                        parts.push(self.ir.iota(t.coefficient, self.lane_count()));
                        continue;
                    }
                    Binding::Sum(_) => unreachable!("sums are made of what is no sum"),
                },
                Atom::Expr(e) => self.value(e)?,
            };
            parts.push(match t.coefficient {
                1 => v,
                c => self.ir.mul(v, self.ir.int(c, v.get_type())),
            });
        }
        Ok(parts)
    }

    /// The address of an element whose index is the same for all lanes. Parts of outer loops are added first, so that what
    /// an inner loop does not change can move out of it; the constant comes last, where the machine adds it for nothing.
    pub(super) fn address(&mut self, buffer: BufferId, at: &Affine) -> Result<PointerValue<'ctx>, CodegenError> {
        if self.waits(buffer) {
            self.store_waiting();
        }
        self.place(buffer, at)
    }

    /// The same, whatever waits to be stored there.
    pub(super) fn place(&mut self, buffer: BufferId, at: &Affine) -> Result<PointerValue<'ctx>, CodegenError> {
        let element = self.ir.memory_type(self.kernel.buffers[buffer.0 as usize].dtype);
        match self.moved(buffer, at)? {
            Some((p, rest)) => self.offset_by(element, p, &rest),
            None => {
                let p = self.buffer(buffer);
                self.offset_by(element, p, at)
            }
        }
    }

    /// The address of so many elements further.
    pub(super) fn offset_by(
        &mut self,
        element: Ty<'ctx>,
        mut p: PointerValue<'ctx>,
        by: &Affine,
    ) -> Result<PointerValue<'ctx>, CodegenError> {
        for part in self.parts(by)? {
            // What a half decides is computed in vectors, of lanes that are equal here.
            let part = if part.is_vector_value() { self.ir.extract(part, 0) } else { part };
            p = self.ir.offset(element, p, part.into_int_value());
        }
        if by.constant != 0 {
            p = self.ir.offset(element, p, self.ir.i64(by.constant));
        }
        Ok(p)
    }

    // Reads and writes.

    /// The mask that a read must obey: none where its index is in range whatever the lanes and loops are.
    fn mask_of(&self, buffer: BufferId, at: &Affine) -> Option<Mask<'ctx>> {
        let len = self.kernel.buffers[buffer.0 as usize].len;
        match at.range() {
            Some((lo, hi)) if lo >= 0 && hi < len => None,
            _ => self.masks.current(),
        }
    }

    /// Whether a read must obey a mask.
    pub(super) fn is_masked(&self, buffer: BufferId, at: &Affine) -> bool {
        self.mask_of(buffer, at).is_some()
    }

    fn read(&mut self, buffer: BufferId, at: &Affine) -> Result<V<'ctx>, CodegenError> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let (dtype, len) = (decl.dtype, decl.len);
        if len == 0 {
            // Nothing can be read, so nothing is: this code runs with no lane that counts.
            return Ok(ops::zero(self, dtype));
        }
        let raw = match self.lanes {
            Some(lanes) if at.varying() => {
                let rest = at.without(lanes.axis);
                match at.coefficient(lanes.axis) {
                    _ if rest.varying() => self.gather(buffer, at)?,
                    1 => self.read_run(buffer, at, &rest, lanes)?,
                    step => self.read_steps(buffer, at, rest, step, lanes)?,
                }
            }
            _ => {
                let base = self.buffer(buffer);
                let mut p = self.address(buffer, at)?;
                if let Some(mask) = self.mask_of(buffer, at) {
                    let any = self.any(mask);
                    p = self.ir.select(any, p.into(), base.into()).into_pointer_value();
                }
                let one = self.ir.load(self.ir.memory_type(dtype), p, dtype.bytes());
                match self.lanes {
                    // Converted alone, it would be put in a register beside what was there, and wait for that.
                    Some(lanes) if dtype == DType::F16 => self.ir.splat(one, lanes.count),
                    _ => one,
                }
            }
        };
        Ok(ops::from_memory(self, raw, dtype))
    }

    /// Whether any lane counts.
    fn any(&self, mask: Mask<'ctx>) -> V<'ctx> {
        match mask.v.is_vector_value() {
            true => self.ir.intrinsic("llvm.vector.reduce.or", &[mask.v.get_type()], &[mask.v]),
            false => mask.v,
        }
    }

    /// Consecutive elements.
    fn read_run(
        &mut self,
        buffer: BufferId,
        at: &Affine,
        first: &Affine,
        lanes: Lanes,
    ) -> Result<V<'ctx>, CodegenError> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let (len, bytes) = (decl.len, decl.dtype.bytes());
        let ty = self.ir.wide(self.ir.memory_type(decl.dtype), Some(lanes.count));
        let p = self.address(buffer, first)?;
        match self.mask_of(buffer, at) {
            None => Ok(self.ir.load(ty, p, bytes)),
            Some(mask) if !mask.v.is_vector_value() && len >= lanes.count as i64 => {
                let base = self.buffer(buffer);
                let p = self.ir.select(mask.v, p.into(), base.into()).into_pointer_value();
                Ok(self.ir.load(ty, p, bytes))
            }
            Some(mask) => {
                let mask = self.ir.splat(mask.v, lanes.count);
                Ok(self.ir.masked_load(ty, p, mask, bytes))
            }
        }
    }

    /// Elements at a constant distance.
    fn read_steps(
        &mut self,
        buffer: BufferId,
        at: &Affine,
        mut first: Affine,
        step: i64,
        lanes: Lanes,
    ) -> Result<V<'ctx>, CodegenError> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let (bytes, len, n) = (decl.dtype.bytes(), decl.len, lanes.count);
        let element = self.ir.memory_type(decl.dtype);
        let mask = self.mask_of(buffer, at);
        let run = self.ir.wide(element, Some(n));
        if mask.is_none() && step == -1 {
            first.constant -= n as i64 - 1;
            let p = self.address(buffer, &first)?;
            let v = self.ir.load(run, p, bytes);
            return Ok(self.ir.shuffle(v, v, (0..n).rev()));
        }
        let uniform = mask.is_none_or(|m| !m.v.is_vector_value());
        if (2..=MOST_RUNS).contains(&step) && uniform && len > step * (n as i64 - 1) {
            let mut p = self.address(buffer, &first)?;
            if let Some(mask) = mask {
                let base = self.buffer(buffer);
                p = self.ir.select(mask.v, p.into(), base.into()).into_pointer_value();
            }
            return Ok(self.read_runs(p, decl.dtype, step, n));
        }
        let p = self.address(buffer, &first)?;
        let pointers = (0..n).map(|i| self.ir.offset(element, p, self.ir.i64(step.wrapping_mul(i as i64)))).collect();
        self.read_each(buffer, pointers, mask)
    }

    /// Elements `step` apart, out of runs of consecutive ones. The last run ends with the last element wanted, so that nothing is read
    /// beyond it.
    fn read_runs(&self, p: PointerValue<'ctx>, dtype: DType, step: i64, n: u32) -> V<'ctx> {
        let (element, steps) = (self.ir.memory_type(dtype), step as u32);
        let run = |start: u32| {
            let p = self.ir.offset(element, p, self.ir.i64(start.into()));
            self.ir.load(self.ir.wide(element, Some(n)), p, dtype.bytes())
        };
        let mut v = run(0);
        for j in 1..steps {
            let start = if j + 1 == steps { j * (n - 1) } else { j * n };
            // Where lane i's element is: where it was already, in this run, or in a later one.
            let lane = |i: u32| match i * steps {
                at if at < j * n => {
                    if j == 1 {
                        at
                    } else {
                        i
                    }
                }
                at if at - start < n => n + at - start,
                _ => 0,
            };
            v = self.ir.shuffle(v, run(start), (0..n).map(lane));
        }
        v
    }

    /// Elements anywhere.
    fn gather(&mut self, buffer: BufferId, at: &Affine) -> Result<V<'ctx>, CodegenError> {
        let (varying, uniform): (Vec<_>, Vec<_>) = at.terms.iter().cloned().partition(|t| t.facts.varying);
        let p = self.address(buffer, &Affine { constant: at.constant, terms: uniform })?;
        let index = self.sum(&Affine { constant: 0, terms: varying })?;
        let dtype = self.kernel.buffers[buffer.0 as usize].dtype;
        let (element, n) = (self.ir.memory_type(dtype), self.lane_count());
        let mask = self.mask_of(buffer, at);
        let gathers = self.unit.target.arch() == "x86_64" && self.unit.target.has("avx2");
        if let (V::VectorValue(index), true) = (index, gathers && dtype.bytes() >= 4 && n.is_power_of_two()) {
            let pointers = self.ir.offsets(element, p, index);
            let mask = mask.map(|m| self.ir.splat(m.v, n));
            return Ok(self.ir.masked_gather(self.ir.wide(element, Some(n)), pointers, mask, dtype.bytes()));
        }
        let pointers = (0..n).map(|i| self.ir.offset(element, p, self.ir.extract(index, i).into_int_value())).collect();
        self.read_each(buffer, pointers, mask)
    }

    fn read_each(
        &mut self,
        buffer: BufferId,
        pointers: Vec<PointerValue<'ctx>>,
        mask: Option<Mask<'ctx>>,
    ) -> Result<V<'ctx>, CodegenError> {
        let dtype = self.kernel.buffers[buffer.0 as usize].dtype;
        let element = self.ir.memory_type(dtype);
        let base = self.buffer(buffer);
        let mut out = self.ir.poison(element, pointers.len() as u32);
        for (lane, mut p) in (0..).zip(pointers) {
            if let Some(mask) = mask {
                let on = if mask.v.is_vector_value() { self.ir.extract(mask.v, lane) } else { mask.v };
                p = self.ir.select(on, p.into(), base.into()).into_pointer_value();
            }
            let x = self.ir.load(element, p, dtype.bytes());
            out = self.ir.insert(out, x, lane);
        }
        Ok(out)
    }

    /// Writes one element, or one per lane.
    pub(super) fn store(&mut self, buffer: BufferId, index: &Scalar, value: &Scalar) -> Result<(), CodegenError> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let (dtype, bytes) = (decl.dtype, decl.dtype.bytes());
        let v = self.value(value)?;
        let v = ops::to_memory(self, v, dtype);
        let at = affine::affine(index, &self.env, &mut self.affine_memo);
        let Some(lanes) = self.lanes else {
            let p = self.address(buffer, &at)?;
            self.ir.store(p, v, bytes);
            return Ok(());
        };
        if !at.varying() {
            let last = if v.is_vector_value() { self.ir.extract(v, lanes.count - 1) } else { v };
            let p = self.address(buffer, &at)?;
            self.ir.store(p, last, bytes);
            return Ok(());
        }
        let v = self.ir.splat(v, lanes.count);
        let rest = at.without(lanes.axis);
        let element = self.ir.memory_type(dtype);
        match at.coefficient(lanes.axis) {
            1 if !rest.varying() => {
                let p = self.address(buffer, &rest)?;
                let v = if self.is_summed(buffer, value) { self.ir.opaque(v) } else { v };
                self.ir.store(p, v, bytes);
            }
            step if !rest.varying() => {
                let p = self.address(buffer, &rest)?;
                for lane in 0..lanes.count {
                    let q = self.ir.offset(element, p, self.ir.i64(step.wrapping_mul(lane as i64)));
                    self.ir.store(q, self.ir.extract(v, lane), bytes);
                }
            }
            _ => {
                let index = self.sum(&at)?;
                let base = self.buffer(buffer);
                for lane in 0..lanes.count {
                    let i: IntValue = self.ir.extract(index, lane).into_int_value();
                    self.ir.store(self.ir.offset(element, base, i), self.ir.extract(v, lane), bytes);
                }
            }
        }
        Ok(())
    }

    /// Whether a vector of integers is added to in registers, step after step. Of several steps LLVM's machine combiner would add up the addends
    /// first, more of them than there are registers.
    fn is_summed(&self, buffer: BufferId, value: &Scalar) -> bool {
        let reads = |s: &Scalar| matches!(s.kind(), ScalarKind::Read(from, _) if *from == buffer);
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let registers = self.unit.target.vector_bytes() as u32 / 4;
        let is_vector = self.lanes.is_some_and(|l| (4..=registers).contains(&l.count) && l.count.is_power_of_two());
        if decl.space != Space::Register || decl.dtype != DType::I32 || !is_vector || self.unrolled == 0 {
            return false;
        }
        self.unit.target.arch() == "x86_64"
            && match value.kind() {
                ScalarKind::Binary(BinOp::Add, a, b) => reads(a) || reads(b),
                ScalarKind::Dot(operands) => {
                    let lanes = self.lanes.map_or(0, |l| l.count);
                    operands.first().is_some_and(reads) && !self.has_byte_products(lanes)
                }
                _ => false,
            }
    }
}
