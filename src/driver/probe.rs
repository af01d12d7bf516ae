//! Small loops that find out what a core does in a cycle: each does one kind of thing, and nothing else.

use std::{sync::Arc, time::Instant};

use super::backend::Backend;
use crate::{
    cancel::Cancel,
    codegen::CodegenError,
    diag::Refused,
    loops::{AxisId, BinOp, Buffer, Kernel, LoopKind, Scalar, Space, Stmt, TensorId},
    runtime::{Call, Estimate, Executable, LinkError, Pool, Port, Program, RunError, Step},
    target::Target,
    tensor::{DType, Tensor},
};

/// Why this machine can't be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The target can't be taken.
    #[error(transparent)]
    Target(#[from] Refused),
    /// No code can be made for it.
    #[error(transparent)]
    Code(#[from] CodegenError),
    /// A loop was not compiled.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A loop did not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Independent chains of operations: enough to hide their latency, few enough for 16 registers.
pub(super) const CHAINS: i64 = 12;

/// Turns of the loop over the chains.
const ROUNDS: i64 = 20_000;

/// The buffers of a probe: what it reads, what it writes, its registers.
const INPUT: TensorId = TensorId(0);
const OUTPUT: TensorId = TensorId(1);
const REGISTERS: TensorId = TensorId(2);

/// The loop variables of a probe.
const CHAIN: AxisId = AxisId(0);
const LANE: AxisId = AxisId(1);
const ROUND: AxisId = AxisId(2);
const AT: AxisId = AxisId(3);

fn each(var: AxisId, n: i64, kind: LoopKind, body: Stmt) -> Stmt {
    Stmt::For { var, extent: Scalar::index(n), kind, body: Box::new(body) }
}

fn store(buffer: TensorId, index: Scalar, value: Scalar) -> Stmt {
    Stmt::Store { buffer, index, value }
}

fn add(a: Scalar, b: Scalar) -> Scalar {
    Scalar::binary(BinOp::Add, a, b)
}

/// What a probe's loop consists of.
struct Parts {
    /// Of registers and of the output.
    dtype: DType,
    /// Of the input.
    input: DType,
    /// Elements of the input, and of the output.
    sizes: [i64; 2],
    chains: i64,
    lanes: i64,
}

impl Parts {
    /// A kernel that runs `body` between setting all chains to an input's first elements and storing them.
    fn kernel(&self, body: impl FnOnce(&dyn Fn(Stmt) -> Stmt, Scalar) -> Stmt) -> Kernel {
        let Parts { dtype, input, sizes, chains, lanes } = *self;
        let read = |t, i| Scalar::read(t, vec![i], if t == INPUT { input } else { dtype }).cast(dtype);
        let axis = Scalar::axis;
        let register = axis(CHAIN) * lanes + axis(LANE);
        let all = |body| each(CHAIN, chains, LoopKind::Unrolled, each(LANE, lanes, LoopKind::Vector, body));
        let stmts = vec![
            all(store(REGISTERS, register.clone(), read(INPUT, axis(LANE)))),
            body(&all, register.clone()),
            each(LANE, lanes, LoopKind::Vector, store(OUTPUT, axis(LANE), read(INPUT, axis(LANE)))),
            all(store(OUTPUT, axis(LANE), add(read(OUTPUT, axis(LANE)), read(REGISTERS, register)))),
        ];
        let buffer = |len, space| Buffer { dtype, len, space };
        let buffers = vec![
            Buffer { dtype: input, ..buffer(sizes[0], Space::Input(0)) },
            buffer(sizes[1], Space::Output(1)),
            buffer(chains * lanes, Space::Register),
        ];
        Kernel { name: "probe".into(), buffers, body: Stmt::Block(stmts) }
    }
}

/// A loop, ready to run on one thread.
pub(super) struct Probe {
    exe: Executable,
    inputs: [Tensor; 1],
    outputs: Vec<Tensor>,
    /// What one run does, in the unit of the probe: operations, bytes or steps.
    work: f64,
}

impl Probe {
    /// Multiply-adds of `float32` on whole vectors out of registers, in so many independent chains; the work is in instructions.
    pub(super) fn multiply_adds(target: &Target, chains: i64) -> Result<Probe, ProbeError> {
        let lanes = target.core().lanes();
        let parts = Parts { dtype: DType::F32, input: DType::F32, sizes: [2 * lanes, lanes], chains, lanes };
        let read = |t, i| Scalar::read(t, vec![i], DType::F32);
        let kernel = parts.kernel(|all, register| {
            let [a, b] = [0, lanes].map(|first| read(INPUT, Scalar::axis(LANE) + Scalar::index(first)));
            let product = Scalar::binary(BinOp::Mul, read(REGISTERS, register.clone()), b);
            each(ROUND, ROUNDS, LoopKind::Serial, all(store(REGISTERS, register, add(product, a))))
        });
        Probe::new(
            target,
            kernel,
            Tensor::from_f64_fn(DType::F32, &[2 * lanes as usize], |_| 0.5),
            (ROUNDS * chains) as f64,
        )
    }

    /// Additions of integers on whole vectors out of registers; the work is in instructions.
    pub(super) fn additions(target: &Target) -> Result<Probe, ProbeError> {
        let lanes = target.core().lanes();
        let parts = Parts { dtype: DType::I32, input: DType::I32, sizes: [2 * lanes, lanes], chains: CHAINS, lanes };
        let read = |t, i| Scalar::read(t, vec![i], DType::I32);
        let kernel = parts.kernel(|all, register| {
            let by = read(INPUT, Scalar::axis(LANE) + Scalar::index(lanes));
            let sum = add(read(REGISTERS, register.clone()), by);
            each(ROUND, ROUNDS, LoopKind::Serial, all(store(REGISTERS, register, sum)))
        });
        let input = Tensor::from_i64_fn(DType::I32, &[2 * lanes as usize], |i| i as i64);
        Probe::new(target, kernel, input, (ROUNDS * CHAINS) as f64)
    }

    /// Dot products of two numbers of 16 bits in a register tile of 6 rows by 2 vectors, whose operands are in the first cache; the work is in dot
    /// products of whole vectors.
    pub(super) fn dots(target: &Target) -> Result<Probe, ProbeError> {
        const STEPS: i64 = 64;
        const WIDE: i64 = 2;
        let lanes = target.core().lanes();
        let (rows, step) = (CHAINS / WIDE, 2 * WIDE * lanes);
        let len = STEPS * (2 * rows + step);
        let parts = Parts { dtype: DType::I32, input: DType::I16, sizes: [len, lanes], chains: CHAINS, lanes };
        let kernel = parts.kernel(|all, register| {
            let read = |i: Scalar| Scalar::read(INPUT, vec![i], DType::I16);
            let (chain, at) = (Scalar::axis(CHAIN), Scalar::axis(AT));
            let factors = [0, 1].map(|i: i64| {
                let row = at.clone() * 2 * rows + chain.clone().floor_div(WIDE) * 2 + i;
                let vector = chain.clone().floor_mod(WIDE) * 2 * lanes + Scalar::axis(LANE) * 2 + i;
                [read(row), read(at.clone() * step + vector + STEPS * 2 * rows)]
            });
            let sum = Scalar::dot(Scalar::read(REGISTERS, vec![register.clone()], DType::I32), factors);
            let pass = each(AT, STEPS, LoopKind::Serial, all(store(REGISTERS, register, sum)));
            each(ROUND, ROUNDS / STEPS, LoopKind::Serial, pass)
        });
        let input = Tensor::from_i64_fn(DType::I16, &[len as usize], |i| (i % 7) as i64);
        Probe::new(target, kernel, input, (ROUNDS / STEPS * STEPS * CHAINS) as f64)
    }

    /// Dependent additions and exclusive ors of integers; the work is in cycles, of which each takes one.
    pub(super) fn cycles(target: &Target) -> Result<Probe, ProbeError> {
        const STEPS: i64 = 16;
        let parts = Parts { dtype: DType::I32, input: DType::I32, sizes: [2, 1], chains: 1, lanes: 1 };
        let read = |t, i| Scalar::read(t, vec![Scalar::index(i)], DType::I32);
        let kernel = parts.kernel(|all, register| {
            let now = Scalar::read(REGISTERS, vec![register.clone()], DType::I32);
            let step = Scalar::binary(BinOp::Xor, add(now, read(INPUT, 0)), read(INPUT, 1));
            let steps = each(AT, STEPS, LoopKind::Unrolled, all(store(REGISTERS, register, step)));
            each(ROUND, ROUNDS / 4, LoopKind::Serial, steps)
        });
        let input = Tensor::from_i64_fn(DType::I32, &[2], |i| 0x1234_5677 + i as i64);
        Probe::new(target, kernel, input, (2 * STEPS * ROUNDS / 4) as f64)
    }

    /// Sums up an array of so many bytes, over and over; the work is in bytes.
    pub(super) fn reads(target: &Target, bytes: i64) -> Result<Probe, ProbeError> {
        let lanes = target.core().lanes();
        let block = CHAINS * lanes;
        let blocks = (bytes / 4 / block).max(1);
        let rounds = ((64 << 20) / bytes).max(1);
        let parts =
            Parts { dtype: DType::F32, input: DType::F32, sizes: [blocks * block, lanes], chains: CHAINS, lanes };
        let kernel = parts.kernel(|all, register| {
            let read = |t, i| Scalar::read(t, vec![i], DType::F32);
            let at = Scalar::axis(AT) * block + register.clone();
            let sum = add(read(REGISTERS, register.clone()), read(INPUT, at));
            let pass = each(AT, blocks, LoopKind::Serial, all(store(REGISTERS, register, sum)));
            each(ROUND, rounds, LoopKind::Serial, pass)
        });
        let input = Tensor::from_f64_fn(DType::F32, &[(blocks * block) as usize], |i| (i % 5) as f64);
        Probe::new(target, kernel, input, (rounds * blocks * block * 4) as f64)
    }

    /// Writes an array of so many bytes, over and over; the work is in bytes.
    pub(super) fn writes(target: &Target, bytes: i64) -> Result<Probe, ProbeError> {
        let lanes = target.core().lanes();
        let block = CHAINS * lanes;
        let blocks = (bytes / 4 / block).max(1);
        let rounds = ((16 << 20) / bytes).max(1);
        let parts =
            Parts { dtype: DType::F32, input: DType::F32, sizes: [lanes, blocks * block], chains: CHAINS, lanes };
        let kernel = parts.kernel(|all, register| {
            let at = Scalar::axis(AT) * block + register.clone();
            let value = Scalar::read(REGISTERS, vec![register], DType::F32);
            let pass = each(AT, blocks, LoopKind::Serial, all(store(OUTPUT, at, value)));
            each(ROUND, rounds, LoopKind::Serial, pass)
        });
        let input = Tensor::from_f64_fn(DType::F32, &[lanes as usize], |i| i as f64);
        Probe::new(target, kernel, input, (rounds * blocks * block * 4) as f64)
    }

    /// Follows a chain of addresses through all lines of an array of so many bytes, in no order that a prefetcher would guess; the work is
    /// in loads.
    pub(super) fn follows(target: &Target, bytes: i64, line: i64) -> Result<Probe, ProbeError> {
        let per_line = (line / 8).max(1);
        let lines = (bytes / line).max(2) as usize;
        let steps = 1 << 14;
        let parts =
            Parts { dtype: DType::I64, input: DType::I64, sizes: [lines as i64 * per_line, 1], chains: 1, lanes: 1 };
        let kernel = parts.kernel(|all, register| {
            let now = Scalar::read(REGISTERS, vec![register.clone()], DType::I64);
            let next = Scalar::read(INPUT, vec![now], DType::I64);
            each(ROUND, steps, LoopKind::Serial, all(store(REGISTERS, register, next)))
        });
        let next = one_cycle(lines);
        let input = Tensor::from_i64_fn(DType::I64, &[lines * per_line as usize], |i| {
            if i % per_line as usize == 0 { next[i / per_line as usize] as i64 * per_line } else { 0 }
        });
        Probe::new(target, kernel, input, steps as f64)
    }

    fn new(target: &Target, kernel: Kernel, input: Tensor, work: f64) -> Result<Probe, ProbeError> {
        let code = Backend::of(target)?.load(&[&kernel], None, &Cancel::default())?;
        let mut program = Program::new("probe");
        let (from, to) = (&kernel.buffers[0], &kernel.buffers[1]);
        let read = program.input(Port::new("x", from.dtype, &[from.len as usize]));
        let written = program.buffer(to.len as usize * to.dtype.bytes());
        let function = program.function(&kernel.name);
        let args = vec![(read, false), (written, true)];
        program.step(Step::Call(Call {
            function,
            args,
            workspace: 0,
            in_place: vec![],
            estimate: Estimate::default(),
        }));
        program.output(Port::new("y", to.dtype, &[to.len as usize]), written);
        let exe = Executable::link(program, vec![code], Arc::new(Pool::new(1)))?;
        let inputs = [input];
        let outputs = exe.run(&inputs)?;
        Ok(Probe { exe, inputs, outputs, work })
    }

    /// What one run does, in the unit of the probe.
    pub(super) fn work(&self) -> f64 {
        self.work
    }

    /// Runs once.
    pub(super) fn run(&mut self) -> Result<(), RunError> {
        self.exe.run_into(&self.inputs, &mut self.outputs)
    }

    /// Seconds of the fastest of so many runs, by unit of work: what disturbs a machine only makes it slower.
    pub(super) fn fastest(&mut self, runs: usize) -> Result<f64, RunError> {
        let mut fastest = f64::INFINITY;
        for _ in 0..runs {
            let start = Instant::now();
            self.run()?;
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
        Ok(fastest / self.work)
    }
}

/// A permutation of so many places that is one cycle, by Sattolo's algorithm with a fixed seed.
fn one_cycle(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..n).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % i);
    }
    order
}

/// Multiply-adds of `float32` out of registers: what a core computes at best.
pub struct Peak {
    probe: Probe,
    lanes: f64,
}

impl Peak {
    /// For a target, which must be this machine. Refuses what LLVM refuses.
    pub fn new(target: &Target) -> Result<Peak, ProbeError> {
        Ok(Peak { probe: Probe::multiply_adds(target, CHAINS)?, lanes: target.core().lanes() as f64 })
    }

    /// Operations of a run: a multiply-add is two.
    pub fn operations(&self) -> f64 {
        2.0 * self.lanes * self.probe.work()
    }

    /// Runs once, which takes some ten microseconds.
    pub fn run(&mut self) -> Result<(), RunError> {
        self.probe.run()
    }

    /// Operations per second of a core right now: of the fastest of so many runs.
    pub fn rate(&mut self, runs: usize) -> Result<f64, RunError> {
        Ok(2.0 * self.lanes / self.probe.fastest(runs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_one_cycle() {
        for n in [2, 3, 100] {
            let next = one_cycle(n);
            let (mut at, mut steps) = (next[0], 1);
            while at != 0 {
                at = next[at];
                steps += 1;
            }
            assert_eq!(steps, n);
        }
    }

    #[test]
    fn probes_run_and_do_work() {
        let target = Target::host();
        for probe in [
            Probe::multiply_adds(&target, 1),
            Probe::cycles(&target),
            Probe::reads(&target, 1 << 14),
            Probe::writes(&target, 1 << 14),
            Probe::follows(&target, 1 << 14, 64),
        ] {
            let mut probe = probe.expect("this machine's code");
            let seconds = probe.fastest(1).expect("it runs");
            assert!(probe.work() > 0.0 && seconds.is_finite());
        }
    }
}
