//! The loop that finds out how much a core computes: nothing but multiply-adds of whole vectors, out of registers.

use std::{sync::Arc, time::Instant};

use crate::{
    codegen::llvm::{self, JitLibrary},
    loops::{AxisId, BinOp, Buffer, Kernel, LoopKind, Scalar, Space, Stmt, TensorId},
    runtime::{Call, CompiledCode, Executable, Pool, Port, Program, Step},
    target::Target,
    tensor::{DType, Tensor},
};

/// Independent chains of multiply-adds: enough to hide their latency, few enough for 16 registers.
const CHAINS: i64 = 12;

/// Turns of the loop over the chains.
const ROUNDS: i64 = 20_000;

/// `acc = acc * b + a` in registers, over and over.
fn register_kernel(lanes: i64) -> Kernel {
    let (x, y, acc) = (TensorId(0), TensorId(1), TensorId(2));
    let (chain, lane, round) = (AxisId(0), AxisId(1), AxisId(2));
    let axis = Scalar::axis;
    let read = |t, i| Scalar::read(t, vec![i], DType::F32);
    let a = || read(x, axis(lane));
    let b = || read(x, axis(lane) + Scalar::index(lanes));
    let at = || axis(chain) * Scalar::index(lanes) + axis(lane);
    let add = |p, q| Scalar::binary(BinOp::Add, p, q);
    let each = |var, n, kind, body| Stmt::For { var, extent: Scalar::index(n), kind, body: Box::new(body) };
    let chains = |body| each(chain, CHAINS, LoopKind::Unrolled, each(lane, lanes, LoopKind::Vector, body));
    let store = |buffer, index, value| Stmt::Store { buffer, index, value };
    let step = store(acc, at(), add(Scalar::binary(BinOp::Mul, read(acc, at()), b()), a()));
    let body = Stmt::Block(vec![
        chains(store(acc, at(), add(a(), Scalar::float(0.0, DType::F32)))),
        each(round, ROUNDS, LoopKind::Serial, chains(step)),
        each(lane, lanes, LoopKind::Vector, store(y, axis(lane), a())),
        chains(store(y, axis(lane), add(read(y, axis(lane)), read(acc, at())))),
    ]);
    let buffer = |len, space| Buffer { dtype: DType::F32, len, space };
    let buffers = vec![
        buffer(2 * lanes, Space::Input(0)),
        buffer(lanes, Space::Output(1)),
        buffer(CHAINS * lanes, Space::Register),
    ];
    Kernel { name: "peak".into(), buffers, body }
}

/// Multiply-adds of `float32` out of registers, ready to run on one thread.
pub struct Registers {
    exe: Executable,
    inputs: [Tensor; 1],
    outputs: Vec<Tensor>,
    lanes: i64,
}

impl Registers {
    /// For a target, which must be this machine. Refuses what LLVM refuses.
    pub fn new(target: &Target) -> Result<Registers, String> {
        let target = target.codegen();
        let lanes = (target.vector_bytes() / 4) as i64;
        let kernel = register_kernel(lanes);
        let objects = llvm::compile(&[&kernel], &target).map_err(|e| e.to_string())?;
        let code: Arc<dyn CompiledCode> = Arc::new(JitLibrary::load(&objects).map_err(|e| e.to_string())?);
        let mut program = Program::new("peak");
        let input = program.input(Port::new("x", DType::F32, &[2 * lanes as usize]));
        let output = program.buffer(4 * lanes as usize);
        let function = program.function(&kernel.name);
        let args = vec![(input, false), (output, true)];
        program.step(Step::Call(Call { function, args, workspace: 0, in_place: vec![] }));
        program.output(Port::new("y", DType::F32, &[lanes as usize]), output);
        let exe = Executable::link(program, vec![code], Arc::new(Pool::new(1))).map_err(|e| e.to_string())?;
        let inputs = [Tensor::from_f64_fn(DType::F32, &[2 * lanes as usize], |_| 0.5)];
        let outputs = exe.run(&inputs).map_err(|e| e.to_string())?;
        Ok(Registers { exe, inputs, outputs, lanes })
    }

    /// Operations of a run: a multiply-add is two.
    pub fn operations(&self) -> f64 {
        (2 * ROUNDS * CHAINS * self.lanes) as f64
    }

    /// Runs once, which takes some ten microseconds.
    pub fn run(&mut self) -> Result<(), String> {
        self.exe.run_into(&self.inputs, &mut self.outputs).map_err(|e| e.to_string())
    }

    /// Operations per second of a core right now: of the fastest of so many runs.
    pub fn rate(&mut self, runs: usize) -> Result<f64, String> {
        let mut fastest = f64::INFINITY;
        for _ in 0..runs {
            let start = Instant::now();
            self.run()?;
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
        Ok(self.operations() / fastest)
    }
}
