//! A region's code run once, before it is used, against the interpreter.

use std::{sync::Arc, time::Duration};

use super::difference::difference;
use crate::{
    codegen::link_c,
    infer::infer_types,
    interp,
    ir::TensorType,
    output::WorkFolder,
    partition::{CompilerError, Region},
    runtime::{Call, Callable, Callables, Code, Compiled, Estimate, Executable, Pool, Port, Program, Step, try_code},
    tensor::{Tensor, Value},
};

/// Seed of the inputs.
const SEED: u64 = 0;

/// How long a region may run.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a region's code on inputs made up and compares with the interpreter: in a process of its own, unless the code is of this
/// one. What it says is wrong: a crash, no end, writes where there must be none, bytes not written, other results.
pub(super) fn try_region(region: &Region<'_>, compiled: &Compiled) -> Result<(), CompilerError> {
    let typed = infer_types(region.alone()).map_err(|e| region.refuse(e.to_string()))?;
    let inputs = interp::random_inputs(&typed, SEED).map_err(|e| region.refuse(e.to_string()))?;
    let want = interp::run_flat(typed.module(), "main", inputs.clone()).map_err(|e| region.refuse(e.to_string()))?;
    let given: Vec<Tensor> = inputs.iter().flat_map(Value::flatten).collect();
    let failed = |e: String| region.refuse(format!("its code was tried: {e}"));
    let got = run(region, compiled, &given).map_err(failed)?;
    difference(&want, &got).map(drop).map_err(|e| failed(e.to_string()))
}

fn run(region: &Region<'_>, compiled: &Compiled, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let outputs = region.outputs();
    let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
    let sizes: Vec<usize> = outputs.iter().map(|t| t.bytes().map_or(0, |n| n as usize)).collect();
    let results = match &compiled.code {
        Code::Callable(f) => match f.trial(&bytes, &sizes, compiled.workspace) {
            Some(results) => results.map_err(|e| e.to_string())?,
            None => return here(f.clone(), compiled.workspace, inputs, &outputs),
        },
        Code::Object(object) => {
            let dir = WorkFolder::temporary().map_err(|e| format!("no folder for its files: {e}"))?;
            let library = dir.path().join("region.so");
            link_c(object, &compiled.libraries, region.target(), &library).map_err(|e| e.to_string())?;
            try_code(&library, region.symbol(), compiled.workspace, &bytes, &sizes, LIMIT).map_err(|e| e.to_string())?
        }
        Code::Source(_) => unreachable!("sources were compiled when the region was checked"),
    };
    let tensor =
        |(t, bytes): (&TensorType, Vec<u8>)| Tensor::from_bytes(t.dtype, &shape(t), &bytes).map_err(|e| e.to_string());
    outputs.iter().zip(results).map(tensor).collect()
}

fn shape(t: &TensorType) -> Vec<usize> {
    t.shape.iter().map(|d| d.known().unwrap_or(0) as usize).collect()
}

/// Runs a function that lives in this process only.
fn here(
    f: Arc<dyn Callable>,
    workspace: usize,
    inputs: &[Tensor],
    outputs: &[TensorType],
) -> Result<Vec<Tensor>, String> {
    let mut program = Program::new("trial");
    let mut args = Vec::new();
    for (i, t) in inputs.iter().enumerate() {
        args.push((program.input(Port::new(i.to_string(), t.dtype(), t.shape())), false));
    }
    let ports: Vec<Port> =
        outputs.iter().enumerate().map(|(i, t)| Port::new(i.to_string(), t.dtype, &shape(t))).collect();
    let buffers: Vec<_> = ports.iter().map(|p| program.buffer(p.bytes())).collect();
    args.extend(buffers.iter().map(|&b| (b, true)));
    let function = program.function("trial");
    program.step(Step::Call(Call { function, args, workspace, in_place: vec![], estimate: Estimate::default() }));
    ports.into_iter().zip(buffers).for_each(|(p, b)| program.output(p, b));
    let mut callables = Callables::default();
    callables.insert("trial", f);
    let exe =
        Executable::link(program, vec![Arc::new(callables)], Arc::new(Pool::new(1))).map_err(|e| e.to_string())?;
    exe.run(inputs).map_err(|e| e.to_string())
}
