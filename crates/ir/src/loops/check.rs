//! Whether a kernel keeps the rules that the back end builds on.

use std::collections::HashSet;

use super::{
    AxisId, BinOp, BufferId, Kernel, LoopKind, Scalar, ScalarKind, Space, Stmt, TILE, TILES_OF_SUMS, TileBlock,
    TileStep, UnOp,
    affine::{self, Affine, Atom, Facts, Meaning, Memo},
    numbers_in_word, show,
};
use crate::tensor::DType;

/// A rule that a kernel breaks, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("kernel `{kernel}`, at `{statement}`: {problem}")]
pub struct Invalid {
    /// The kernel's name.
    pub kernel: String,
    /// The statement, in one line.
    pub statement: String,
    /// The rule.
    pub problem: String,
}

/// Statements that unrolling may make of a kernel: beyond that, compiling takes too long for what it brings.
pub const UNROLL_LIMIT: i64 = 1 << 14;
/// Bytes of local buffers that a thread's stack bears.
pub const STACK_LIMIT: i64 = 512 << 10;
/// Lanes of a vector loop.
pub const LANE_LIMIT: i64 = 256;

#[derive(Clone)]
enum Kind {
    /// A loop variable or a scalar known only at run time.
    Runtime,
    /// Constant once unrolled.
    Unrolled,
    /// The lane.
    Lane,
}

struct Var {
    axis: AxisId,
    dtype: DType,
    kind: Kind,
    facts: Facts,
    /// What it stands for, where that is a sum of others.
    sum: Option<Affine>,
}

struct Scope(Vec<Var>);

impl Scope {
    fn get(&self, axis: AxisId) -> Option<&Var> {
        self.0.iter().rev().find(|v| v.axis == axis)
    }
}

impl affine::Scope for Scope {
    fn meaning(&self, axis: AxisId) -> Meaning<'_> {
        match self.get(axis) {
            Some(Var { sum: Some(sum), .. }) => Meaning::Sum(sum),
            Some(v) => Meaning::Atom(v.facts),
            None => Meaning::Atom(Facts { range: None, level: 0, varying: false }),
        }
    }
}

struct Checker<'a> {
    kernel: &'a Kernel,
    scope: Scope,
    memo: Memo,
    parallel: bool,
    vector: bool,
    /// How often the statement at hand is written out.
    copies: i64,
    /// Conditions around the expression at hand: within, an index may be out of range for values that don't come by.
    guards: usize,
    /// Shared expressions of this statement that were found good, and whether that was under a condition.
    good: HashSet<(usize, bool)>,
}

/// Checks a kernel; the error names the statement.
pub fn check(kernel: &Kernel) -> Result<(), Invalid> {
    let mut c = Checker {
        kernel,
        scope: Scope(vec![]),
        memo: Memo::default(),
        parallel: false,
        vector: false,
        copies: 1,
        guards: 0,
        good: HashSet::new(),
    };
    c.buffers()?;
    c.stmt(&kernel.body)
}

impl Checker<'_> {
    fn fail<T>(&self, s: &Stmt, problem: impl Into<String>) -> Result<T, Invalid> {
        Err(Invalid { kernel: self.kernel.name.clone(), statement: show::line(s), problem: problem.into() })
    }

    fn buffers(&self) -> Result<(), Invalid> {
        let fail =
            |statement: String, problem: String| Err(Invalid { kernel: self.kernel.name.clone(), statement, problem });
        let mut pointers = vec![];
        let mut stack = 0i64;
        for b in &self.kernel.buffers {
            let bytes = b.len.checked_mul(b.dtype.bytes() as i64).filter(|_| b.len >= 0);
            let Some(bytes) = bytes else { return fail(b.to_string(), "the length is no length".into()) };
            match b.space {
                Space::Input(i) | Space::Output(i) => pointers.push(i),
                Space::Local | Space::Register => stack = stack.saturating_add(bytes),
                Space::Shared => {}
            }
        }
        if stack > STACK_LIMIT {
            let problem = format!("local buffers and registers take {stack} bytes, more than {STACK_LIMIT}");
            return fail("buffers".into(), problem);
        }
        pointers.sort_unstable();
        if !pointers.iter().enumerate().all(|(i, &p)| i as u32 == p) {
            return fail(
                "buffers".into(),
                format!("pointers should be numbered from 0, each once, but are {pointers:?}"),
            );
        }
        Ok(())
    }

    fn with(&mut self, var: Var, body: impl FnOnce(&mut Self) -> Result<(), Invalid>) -> Result<(), Invalid> {
        self.memo.clear();
        self.scope.0.push(var);
        let done = body(self);
        self.scope.0.pop();
        self.memo.clear();
        done
    }

    fn affine(&mut self, e: &Scalar) -> Affine {
        affine::affine(e, &self.scope, &mut self.memo)
    }

    fn stmt(&mut self, s: &Stmt) -> Result<(), Invalid> {
        self.good.clear();
        match s {
            Stmt::Block(all) => all.iter().try_for_each(|s| self.stmt(s)),
            Stmt::For { var, extent, kind, body } => self.for_loop(s, *var, extent, *kind, body),
            Stmt::Store { buffer, index, value } => {
                self.typed(s, index, DType::I64)?;
                self.scalar(s, value)?;
                let Some(b) = self.kernel.buffers.get(buffer.0 as usize) else {
                    return self.fail(s, format!("there is no buffer {}", buffer.0));
                };
                if matches!(b.space, Space::Input(_)) {
                    return self.fail(s, "an input is written");
                }
                if value.dtype() != b.dtype {
                    return self.fail(s, format!("a {} is stored in a buffer of {}", value.dtype(), b.dtype));
                }
                self.access(s, *buffer, index)
            }
            Stmt::Prefetch { buffer, index } => {
                if self.vector {
                    return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
                }
                self.typed(s, index, DType::I64)?;
                match self.kernel.buffers.get(buffer.0 as usize) {
                    None => self.fail(s, format!("there is no buffer {}", buffer.0)),
                    Some(b) if b.space == Space::Register => self.fail(s, "a register has no cache line"),
                    Some(_) => Ok(()),
                }
            }
            Stmt::Let { var, value, body } => {
                self.scalar(s, value)?;
                let sum = if value.dtype() == DType::I64 { Some(self.affine(value)) } else { None };
                let varying = self.depends(value, &|k| matches!(k, Kind::Lane));
                let kind = match self.depends(value, &|k| matches!(k, Kind::Runtime)) || affine::reads(value) {
                    true => Kind::Runtime,
                    false if varying => Kind::Lane,
                    false => Kind::Unrolled,
                };
                let facts = Facts { range: sum.as_ref().and_then(Affine::range), level: 0, varying };
                let sum = sum.filter(|sum| sum.terms.iter().all(|t| matches!(t.atom, Atom::Axis(_))));
                let var = Var { axis: *var, dtype: value.dtype(), kind, facts, sum };
                self.with(var, |c| c.stmt(body))
            }
            Stmt::While { cond, body } => {
                if self.vector {
                    return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
                }
                self.typed(s, cond, DType::Bool)?;
                self.guards += 1;
                self.stmt(body)?;
                self.guards -= 1;
                Ok(())
            }
            Stmt::If { cond, then, otherwise } => {
                if self.vector {
                    return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
                }
                self.typed(s, cond, DType::Bool)?;
                self.guards += 1;
                self.stmt(then)?;
                otherwise.as_ref().map_or(Ok(()), |o| self.stmt(o))?;
                self.guards -= 1;
                Ok(())
            }
            Stmt::Transpose { from, at, stride, to, extent } => self.transpose(s, [*from, *to], [at, stride], *extent),
            Stmt::Tiles { block, step } => self.tiles(s, block, step),
        }
    }

    fn transpose(
        &mut self,
        s: &Stmt,
        [from, to]: [BufferId; 2],
        [at, stride]: [&Scalar; 2],
        extent: i64,
    ) -> Result<(), Invalid> {
        if self.vector {
            return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
        }
        let buffer = |b: BufferId| self.kernel.buffers.get(b.0 as usize);
        let (Some(read), Some(written)) = (buffer(from), buffer(to)) else {
            return self.fail(s, "there is no such buffer");
        };
        if !matches!(written.space, Space::Local | Space::Register) || read.space == Space::Register {
            return self.fail(s, "a square is read from memory into a local buffer or registers");
        }
        if read.dtype != written.dtype || !(1..=LANE_LIMIT).contains(&extent) || written.len < extent * extent {
            return self.fail(s, format!("{extent} x {extent} elements of {} are written", read.dtype));
        }
        self.typed(s, at, DType::I64)?;
        self.typed(s, stride, DType::I64)?;
        self.access(s, from, at)?;
        let last = at.clone() + stride.clone() * (extent - 1) + (extent - 1);
        self.access(s, from, &last)
    }

    fn tiles(&mut self, s: &Stmt, block: &TileBlock, step: &TileStep) -> Result<(), Invalid> {
        if self.vector {
            return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
        }
        let sizes = || block.rows.iter().chain(&block.columns).chain([&block.depth]);
        let tiles = (block.rows.len() * block.columns.len()) as i64;
        if !(1..=TILES_OF_SUMS).contains(&tiles) || !sizes().all(|n| (1..=TILE).contains(n)) {
            let most = format!("a block has up to {TILES_OF_SUMS} tiles of up to {TILE} rows and words");
            return self.fail(s, most);
        }
        let buffer = |b: BufferId| self.kernel.buffers.get(b.0 as usize);
        let Some(sums) = buffer(block.sums) else { return self.fail(s, "there is no buffer of sums") };
        if sums.space != Space::Local || sums.len < block.height() * block.width() {
            return self.fail(s, "sums of tiles want a local buffer that holds all of them");
        }
        let sums = sums.dtype;
        let mut bits = vec![];
        for (o, sizes) in step.operands(block) {
            let Some(b) = buffer(o.buffer) else { return self.fail(s, format!("there is no buffer {}", o.buffer.0)) };
            let wanted = if b.dtype.is_float() { DType::F32 } else { DType::I32 };
            let Some(count) = numbers_in_word(b.dtype).filter(|_| sums == wanted && o.at.len() == sizes.len()) else {
                return self.fail(s, format!("tiles of {} are multiplied into sums of {sums}", b.dtype));
            };
            bits.push(b.dtype.bits());
            for (at, [rows, words]) in o.at.iter().zip(sizes) {
                self.typed(s, at, DType::I64)?;
                self.access(s, o.buffer, at)?;
                self.access(s, o.buffer, &(at.clone() + ((rows - 1) * o.stride + words * count - 1)))?;
            }
        }
        match bits[..] {
            [a, b] if a != b => self.fail(s, "tiles of bytes and of floats are multiplied"),
            _ => Ok(()),
        }
    }

    fn for_loop(&mut self, s: &Stmt, var: AxisId, extent: &Scalar, kind: LoopKind, body: &Stmt) -> Result<(), Invalid> {
        self.typed(s, extent, DType::I64)?;
        let extent = self.affine(extent);
        if self.vector && kind != LoopKind::Unrolled {
            return self.fail(s, "a vector loop holds only stores, lets and unrolled loops");
        }
        let constant = extent.as_constant();
        let unrolled = extent.terms.iter().all(|t| match &t.atom {
            Atom::Axis(a) => self.scope.get(*a).is_some_and(|v| matches!(v.kind, Kind::Unrolled)),
            Atom::Expr(e) => !affine::reads(e) && !self.depends(e, &|k| !matches!(k, Kind::Unrolled)),
        });
        if matches!(kind, LoopKind::Unrolled | LoopKind::Vector) && !unrolled {
            return self.fail(s, "the extent of an unrolled or vector loop should be constant");
        }
        let most = extent.range().map(|(_, hi)| hi);
        let (outer_parallel, outer_vector, outer_copies) = (self.parallel, self.vector, self.copies);
        match kind {
            LoopKind::Serial => {}
            LoopKind::Parallel if self.parallel => return self.fail(s, "a parallel loop stands within another one"),
            LoopKind::Parallel => self.parallel = true,
            LoopKind::Unrolled => {
                self.copies = self.copies.saturating_mul(most.unwrap_or(i64::MAX).max(1));
                if self.copies > UNROLL_LIMIT {
                    return self.fail(s, format!("unrolled, this is more than {UNROLL_LIMIT} copies"));
                }
            }
            LoopKind::Vector => {
                let n = constant.unwrap_or(LANE_LIMIT + 1);
                if n > LANE_LIMIT {
                    return self.fail(s, format!("a vector has at most {LANE_LIMIT} lanes"));
                }
                self.vector = true;
            }
        }
        if constant.is_none_or(|n| n > 0) {
            let facts = Facts {
                range: most.map(|hi| (0, (hi - 1).max(0))),
                level: self.scope.0.len() as u32,
                varying: kind == LoopKind::Vector,
            };
            let kind = match kind {
                LoopKind::Unrolled => Kind::Unrolled,
                LoopKind::Vector => Kind::Lane,
                _ => Kind::Runtime,
            };
            self.with(Var { axis: var, dtype: DType::I64, kind, facts, sum: None }, |c| c.stmt(body))?;
        }
        (self.parallel, self.vector, self.copies) = (outer_parallel, outer_vector, outer_copies);
        Ok(())
    }

    /// Whether an expression holds a variable of some kind.
    fn depends(&self, e: &Scalar, kind: &impl Fn(&Kind) -> bool) -> bool {
        affine::any(e, &mut |e| match e.kind() {
            ScalarKind::Axis(a) => self.scope.get(*a).is_some_and(|v| kind(&v.kind)),
            _ => false,
        })
    }

    fn typed(&mut self, s: &Stmt, e: &Scalar, dtype: DType) -> Result<(), Invalid> {
        if e.dtype() != dtype {
            return self.fail(s, format!("{e:?} is {}, where {dtype} is wanted", e.dtype()));
        }
        self.scalar(s, e)
    }

    fn scalar(&mut self, s: &Stmt, e: &Scalar) -> Result<(), Invalid> {
        let known = (e.key(), self.guards > 0);
        if self.good.contains(&known) {
            return Ok(());
        }
        self.node(s, e)?;
        if e.is_shared() {
            self.good.insert(known);
        }
        Ok(())
    }

    fn node(&mut self, s: &Stmt, e: &Scalar) -> Result<(), Invalid> {
        let dtype = e.dtype();
        match e.kind() {
            ScalarKind::Int(i) => match dtype.int_range() {
                Some((lo, hi)) if dtype == DType::U64 || (lo..=hi).contains(&(*i as i128)) => Ok(()),
                _ => self.fail(s, format!("{i} is no {dtype}")),
            },
            ScalarKind::Float(x) if !dtype.is_float() => self.fail(s, format!("{x:?} is no {dtype}")),
            ScalarKind::Float(_) => Ok(()),
            ScalarKind::Axis(a) => match self.scope.get(*a) {
                None => self.fail(s, format!("i{} is not bound here", a.0)),
                Some(v) if v.dtype != dtype => {
                    self.fail(s, format!("i{} is bound to {} and used as {dtype}", a.0, v.dtype))
                }
                Some(_) => Ok(()),
            },
            ScalarKind::Read(b, index) => {
                let [index] = &index[..] else { return self.fail(s, "a read in a nest has one index") };
                self.typed(s, index, DType::I64)?;
                match self.kernel.buffers.get(b.0 as usize) {
                    None => self.fail(s, format!("there is no buffer {}", b.0)),
                    Some(decl) if decl.dtype != dtype => {
                        self.fail(s, format!("buffer {} of {} is read as {dtype}", b.0, decl.dtype))
                    }
                    Some(_) => self.access(s, *b, index),
                }
            }
            ScalarKind::Binary(op, a, b) => {
                let bits = matches!(op, BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr);
                let floats = matches!(op, BinOp::Pow | BinOp::Atan2);
                let divides = matches!(op, BinOp::Div | BinOp::Rem | BinOp::FloorDiv | BinOp::FloorMod);
                let shifts = matches!(op, BinOp::Shl | BinOp::Shr);
                let of = a.dtype();
                if (bits && of.is_float()) || (floats && !of.is_float()) || ((divides || shifts) && of == DType::Bool) {
                    return self.fail(s, format!("{op:?} of {of}"));
                }
                self.scalar(s, a)?;
                self.scalar(s, b)
            }
            ScalarKind::Unary(op, a) => {
                let of = a.dtype();
                let any = matches!(
                    op,
                    UnOp::Neg
                        | UnOp::Abs
                        | UnOp::Floor
                        | UnOp::Ceil
                        | UnOp::Trunc
                        | UnOp::Round
                        | UnOp::RoundEven
                        | UnOp::IsNan
                        | UnOp::IsInf
                        | UnOp::IsFinite
                );
                let bits = matches!(op, UnOp::Not | UnOp::Popcount);
                if !any && bits == of.is_float() || *op == UnOp::FlushSubnormal && of != DType::F32 {
                    return self.fail(s, format!("{op:?} of {of}"));
                }
                self.scalar(s, a)
            }
            ScalarKind::Select(c, a, b) => {
                self.typed(s, c, DType::Bool)?;
                self.guards += 1;
                self.scalar(s, a)?;
                self.scalar(s, b)?;
                self.guards -= 1;
                Ok(())
            }
            ScalarKind::Cast(a) => self.scalar(s, a),
            ScalarKind::Bits(a) => {
                if a.dtype().bits() != dtype.bits() || a.dtype().is_float() == dtype.is_float() && a.dtype().is_int() {
                    return self.fail(s, format!("bits of {} are read as {dtype}", a.dtype()));
                }
                self.scalar(s, a)
            }
            ScalarKind::Dot(operands) => {
                let Some((sum, factors)) = operands.split_first() else {
                    return self.fail(s, "a dot product has a sum");
                };
                let shorts = factors.first().is_some_and(|f| f.dtype() == DType::I16);
                let narrow = |d| match dtype {
                    DType::I32 if shorts => d == DType::I16,
                    DType::I32 => matches!(d, DType::I8 | DType::U8),
                    DType::F32 => d == DType::BF16,
                    _ => false,
                };
                if factors.is_empty() || factors.len() % 2 == 1 || !factors.iter().all(|f| narrow(f.dtype())) {
                    return self.fail(s, format!("a dot product in {dtype} is of pairs of narrow factors"));
                }
                self.typed(s, sum, dtype)?;
                factors.iter().try_for_each(|f| self.scalar(s, f))
            }
            ScalarKind::MulShift(operands) => {
                let [x, m, round, shift] = &**operands;
                for (operand, dtype) in [(x, DType::I32), (m, DType::I32), (round, DType::I64), (shift, DType::I64)] {
                    self.typed(s, operand, dtype)?;
                }
                match dtype {
                    DType::I32 => Ok(()),
                    _ => self.fail(s, format!("a fixed-point multiplication gives {dtype}")),
                }
            }
            ScalarKind::Saturate(a) if matches!(dtype, DType::I8 | DType::U8) => self.typed(s, a, DType::I32),
            ScalarKind::Saturate(_) => self.fail(s, format!("a saturating conversion gives {dtype}")),
        }
    }

    /// An access must be able to stay within its buffer, and to registers its place must be known once unrolled.
    fn access(&mut self, s: &Stmt, buffer: BufferId, index: &Scalar) -> Result<(), Invalid> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let at = self.affine(index);
        if decl.space == Space::Register {
            let loose = at.terms.iter().any(|t| match &t.atom {
                Atom::Axis(a) => self.scope.get(*a).is_none_or(|v| matches!(v.kind, Kind::Runtime)),
                Atom::Expr(e) => affine::reads(e) || self.depends(e, &|k| !matches!(k, Kind::Unrolled)),
            });
            if loose {
                return self.fail(s, format!("the index of register {} is not constant once unrolled", buffer.0));
            }
        }
        match at.range() {
            Some((lo, hi)) if self.guards == 0 && (lo < 0 || hi >= decl.len) => {
                let len = decl.len;
                self.fail(s, format!("elements {lo}..={hi} of buffer {}, which has {len}, are accessed", buffer.0))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::{Buffer, TensorId};

    fn kernel(body: Stmt) -> Kernel {
        let buffer = |dtype, len, space| Buffer { dtype, len, space };
        let buffers = vec![
            buffer(DType::F32, 8, Space::Input(0)),
            buffer(DType::F32, 8, Space::Output(1)),
            buffer(DType::F32, 8, Space::Register),
        ];
        Kernel { name: "k".into(), buffers, body }
    }

    fn for_(kind: LoopKind, extent: i64, body: Stmt) -> Stmt {
        Stmt::For { var: AxisId(0), extent: Scalar::index(extent), kind, body: Box::new(body) }
    }

    fn copy(to: u32, at: Scalar) -> Stmt {
        let value = Scalar::read(TensorId(0), vec![at.clone()], DType::F32);
        Stmt::Store { buffer: TensorId(to), index: at, value }
    }

    fn i() -> Scalar {
        Scalar::axis(AxisId(0))
    }

    #[test]
    fn good_ones_pass() {
        for kind in [LoopKind::Serial, LoopKind::Parallel, LoopKind::Unrolled, LoopKind::Vector] {
            check(&kernel(for_(kind, 8, copy(1, i())))).expect("a plain copy");
        }
        check(&kernel(for_(LoopKind::Vector, 8, copy(2, i())))).expect("a copy to registers");
    }

    #[test]
    fn errors_name_the_statement() {
        let cases = [
            (for_(LoopKind::Serial, 9, copy(1, i())), "elements 0..=8"),
            (for_(LoopKind::Serial, 8, copy(0, i())), "an input is written"),
            (for_(LoopKind::Serial, 8, copy(2, i())), "is not constant once unrolled"),
            (copy(1, i()), "i0 is not bound here"),
            (for_(LoopKind::Parallel, 2, for_(LoopKind::Parallel, 2, copy(1, i()))), "within another one"),
            (for_(LoopKind::Vector, 2, for_(LoopKind::Serial, 2, copy(1, i()))), "holds only stores"),
            (for_(LoopKind::Unrolled, 1 << 20, copy(1, Scalar::index(0))), "more than 16384 copies"),
        ];
        for (body, want) in cases {
            let error = check(&kernel(body)).expect_err("a broken rule").to_string();
            assert!(error.contains(want) && error.contains("kernel `k`, at `"), "{error}");
        }
    }
}
