//! Kernels run plainly, statement by statement: what compiled code must do, and where an access goes astray.

use hashbrown::HashMap;

use super::{
    AxisId, BufferId, Kernel, LoopKind, Scalar, ScalarKind, Space, Stmt, TileBlock, TileStep,
    num::{Num, ZeroDivision, as_dtype, binary, bits, cast, dot, mul_shift, saturate, unary},
};
use crate::tensor::{DType, Tensor};

/// Why a kernel can't be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// An element outside a buffer is read or written.
    #[error("`{statement}`: element {index} of buffer {buffer}, which has {len}")]
    Outside {
        /// The statement, in one line.
        statement: String,
        /// The buffer's number.
        buffer: u32,
        /// The element.
        index: i64,
        /// The buffer's length.
        len: i64,
    },
    /// An argument is missing or is not as the kernel declares it.
    #[error("argument {0} is missing, or has another dtype or number of elements than the kernel declares")]
    Argument(u32),
    /// An integer was divided by zero.
    #[error(transparent)]
    ZeroDivision(#[from] ZeroDivision),
}

struct Machine<'a> {
    kernel: &'a Kernel,
    /// One per buffer.
    memory: Vec<Tensor>,
    /// What variables are bound to: one value, or one per lane.
    env: HashMap<AxisId, Vec<Num>>,
    /// Number of lanes of the vector loop, 1 outside of one.
    lanes: usize,
    /// Values of shared expressions, for the lane and statement at hand.
    values: HashMap<usize, Num>,
}

/// What memory holds before it is written: found out by results that depend on it.
const GARBAGE: u8 = 0xa5;

/// Runs a kernel on the tensors that it takes, in pointer order; outputs are changed in place. Loops of all kinds run in
/// order; within a vector loop every statement is done for all lanes before the next.
pub fn run_kernel(kernel: &Kernel, args: &mut [Tensor]) -> Result<(), RunError> {
    let mut memory = vec![];
    for b in &kernel.buffers {
        memory.push(match b.space {
            Space::Input(i) | Space::Output(i) => {
                let given = args.get(i as usize).filter(|t| t.dtype() == b.dtype && t.len() as i64 == b.len);
                given.ok_or(RunError::Argument(i))?.clone()
            }
            _ => {
                let mut t = Tensor::zeros(b.dtype, &[b.len as usize]);
                t.bytes_mut().fill(GARBAGE);
                t
            }
        });
    }
    let mut m = Machine { kernel, memory, env: HashMap::new(), lanes: 1, values: HashMap::new() };
    m.stmt(&kernel.body)?;
    for (b, t) in kernel.buffers.iter().zip(m.memory) {
        if let Space::Output(i) = b.space {
            args[i as usize] = t;
        }
    }
    Ok(())
}

impl Machine<'_> {
    fn stmt(&mut self, s: &Stmt) -> Result<(), RunError> {
        match s {
            Stmt::Block(all) => all.iter().try_for_each(|s| self.stmt(s)),
            Stmt::For { var, extent, kind, body } => {
                let n = self.scalar(extent, 0, s)?.int();
                if *kind == LoopKind::Vector {
                    self.env.insert(*var, (0..n).map(Num::Int).collect());
                    self.lanes = n.max(0) as usize;
                    let done = if n > 0 { self.stmt(body) } else { Ok(()) };
                    self.lanes = 1;
                    return done;
                }
                for i in 0..n {
                    if *kind == LoopKind::Parallel {
                        self.forget();
                    }
                    self.env.insert(*var, vec![Num::Int(i)]);
                    self.stmt(body)?;
                }
                Ok(())
            }
            Stmt::Store { buffer, index, value } => {
                let mut writes = vec![];
                for lane in 0..self.lanes {
                    let at = self.scalar(index, lane, s)?.int();
                    let at = self.element(*buffer, at, s)?;
                    writes.push((at, self.scalar(value, lane, s)?));
                }
                let t = &mut self.memory[buffer.0 as usize];
                for (at, v) in writes {
                    match v {
                        Num::Int(i) => t.set_i64(at, i),
                        Num::Float(f) => t.set_f64(at, f),
                    }
                }
                Ok(())
            }
            Stmt::Prefetch { .. } => Ok(()),
            Stmt::Transpose { from, at, stride, to, extent } => {
                let (at, stride) = (self.scalar(at, 0, s)?.int(), self.scalar(stride, 0, s)?.int());
                for (r, c) in (0..*extent).flat_map(|r| (0..*extent).map(move |c| (r, c))) {
                    let read = self.element(*from, at + r * stride + c, s)?;
                    let written = self.element(*to, c * extent + r, s)?;
                    let source = &self.memory[from.0 as usize];
                    match source.dtype().is_float() {
                        true => {
                            let x = source.get_f64(read);
                            self.memory[to.0 as usize].set_f64(written, x);
                        }
                        false => {
                            let x = source.get_i64(read);
                            self.memory[to.0 as usize].set_i64(written, x);
                        }
                    }
                }
                Ok(())
            }
            Stmt::Let { var, value, body } => {
                let values = (0..self.lanes).map(|lane| self.scalar(value, lane, s)).collect::<Result<_, _>>()?;
                self.env.insert(*var, values);
                self.stmt(body)
            }
            Stmt::If { cond, then, otherwise } => match (self.scalar(cond, 0, s)?.int() != 0, otherwise) {
                (true, _) => self.stmt(then),
                (false, Some(s)) => self.stmt(s),
                (false, None) => Ok(()),
            },
            Stmt::While { cond, body } => {
                while self.scalar(cond, 0, s)?.int() != 0 {
                    self.stmt(body)?;
                }
                Ok(())
            }
            Stmt::Tiles { block, step } => self.tiles(block, step, s),
        }
    }

    /// Sums are kept in memory all the time: nothing reads them there while they are in registers.
    fn tiles(&mut self, block: &TileBlock, step: &TileStep, s: &Stmt) -> Result<(), RunError> {
        let (sums, width) = (block.sums, block.width());
        let at = |row: i64, column: i64| row * width + column;
        match step {
            TileStep::Load | TileStep::Store | TileStep::Wake => return Ok(()),
            TileStep::Clear => {
                for i in 0..block.height() * width {
                    let i = self.element(sums, i, s)?;
                    self.memory[sums.0 as usize].set_i64(i, 0);
                }
                return Ok(());
            }
            TileStep::Add { .. } => {}
        }
        let mut tiles = Vec::new();
        for (operand, sizes) in step.operands(block) {
            let float = self.kernel.buffers[operand.buffer.0 as usize].dtype.is_float();
            let count = if float { 2 } else { 4 };
            let mut of_operand = Vec::new();
            for (first, [rows, words]) in operand.at.iter().zip(sizes) {
                let first = self.scalar(first, 0, s)?.int();
                let mut values = Vec::new();
                for (row, i) in (0..rows).flat_map(|r| (0..words * count).map(move |i| (r, i))) {
                    let i = self.element(operand.buffer, first + row * operand.stride + i, s)?;
                    values.push(self.memory[operand.buffer.0 as usize].get_f64(i));
                }
                of_operand.push(values);
            }
            tiles.push((count, of_operand));
        }
        let [(count, left), (_, right)] = &tiles[..] else { return Ok(()) };
        let (count, depth) = (*count as usize, block.depth as usize);
        for (k, [r, c, rows, columns]) in block.tiles().enumerate() {
            let (a, b) = (&left[k / block.columns.len()], &right[k % block.columns.len()]);
            for (m, n) in (0..rows).flat_map(|m| (0..columns).map(move |n| (m, n))) {
                let i = self.element(sums, at(r + m, c + n), s)?;
                let terms = (0..depth * count).map(|k| {
                    let (word, part) = (k / count, k % count);
                    a[m as usize * depth * count + k] * b[(word * columns as usize + n as usize) * count + part]
                });
                let memory = &mut self.memory[sums.0 as usize];
                match memory.dtype() {
                    DType::F32 => {
                        let sum = terms.fold(memory.get_f64(i) as f32, |sum, t| sum + t as f32);
                        memory.set_f64(i, sum as f64);
                    }
                    // Products of bytes and sums of so few of them are exact; what is beyond 32 bits is cut off.
                    _ => {
                        let sum = memory.get_i64(i) + terms.sum::<f64>() as i64;
                        memory.set_i64(i, sum as i32 as i64);
                    }
                }
            }
        }
        Ok(())
    }

    /// What a thread has of its own is nobody's after an iteration.
    fn forget(&mut self) {
        for (b, t) in self.kernel.buffers.iter().zip(&mut self.memory) {
            if matches!(b.space, Space::Local | Space::Register) {
                t.bytes_mut().fill(GARBAGE);
            }
        }
    }

    fn element(&self, buffer: BufferId, index: i64, s: &Stmt) -> Result<usize, RunError> {
        let len = self.kernel.buffers[buffer.0 as usize].len;
        match (0..len).contains(&index) {
            true => Ok(index as usize),
            false => Err(RunError::Outside { statement: super::show::line(s), buffer: buffer.0, index, len }),
        }
    }

    /// What an expression of a statement is in a lane.
    fn scalar(&mut self, e: &Scalar, lane: usize, s: &Stmt) -> Result<Num, RunError> {
        self.values.clear();
        self.node(e, lane, s)
    }

    fn node(&mut self, e: &Scalar, lane: usize, s: &Stmt) -> Result<Num, RunError> {
        if !e.is_shared() {
            return self.compute(e, lane, s);
        }
        if let Some(v) = self.values.get(&e.key()) {
            return Ok(*v);
        }
        let v = self.compute(e, lane, s)?;
        self.values.insert(e.key(), v);
        Ok(v)
    }

    fn compute(&mut self, e: &Scalar, lane: usize, s: &Stmt) -> Result<Num, RunError> {
        let dtype = e.dtype();
        Ok(match e.kind() {
            ScalarKind::Int(i) => as_dtype(Num::Int(*i), dtype),
            ScalarKind::Float(f) => as_dtype(Num::Float(*f), dtype),
            ScalarKind::Axis(a) => {
                let values = &self.env[a];
                values[lane.min(values.len() - 1)]
            }
            ScalarKind::Read(b, index) => {
                let at = self.node(&index[0], lane, s)?.int();
                let at = self.element(*b, at, s)?;
                let t = &self.memory[b.0 as usize];
                match t.dtype().is_float() {
                    true => Num::Float(t.get_f64(at)),
                    false => as_dtype(Num::Int(t.get_i64(at)), dtype),
                }
            }
            ScalarKind::Binary(op, a, b) => {
                let (x, y) = (self.node(a, lane, s)?, self.node(b, lane, s)?);
                binary(*op, x, y, a.dtype())?
            }
            ScalarKind::Unary(op, a) => as_dtype(unary(*op, self.node(a, lane, s)?, a.dtype()), dtype),
            ScalarKind::Select(c, a, b) => {
                let side = if self.node(c, lane, s)?.int() != 0 { a } else { b };
                self.node(side, lane, s)?
            }
            ScalarKind::Bits(a) => bits(self.node(a, lane, s)?, a.dtype(), dtype),
            ScalarKind::Cast(a) => cast(self.node(a, lane, s)?, a.dtype(), dtype),
            ScalarKind::Dot(operands) => {
                let values = operands.iter().map(|o| self.node(o, lane, s)).collect::<Result<Vec<Num>, _>>()?;
                dot(&values)
            }
            ScalarKind::MulShift(operands) => {
                let [x, m, round, shift] = &**operands;
                let mut int = |o: &Scalar| Ok::<_, RunError>(self.node(o, lane, s)?.int());
                mul_shift(int(x)?, int(m)?, int(round)?, int(shift)?)
            }
            ScalarKind::Saturate(a) => saturate(self.node(a, lane, s)?, dtype),
        })
    }
}
