//! From kernels to object code: a module a kernel, compiled by as many threads as there are processors.

use std::{
    cmp::Reverse,
    collections::HashSet,
    sync::{
        Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
};

use inkwell::{
    OptimizationLevel,
    context::Context,
    passes::PassBuilderOptions,
    targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple},
};

use super::{
    CodegenError,
    emit::{self, Unit},
};
use crate::{
    codegen::{CodegenTarget, matrix_registers_permitted},
    loops::{self, Kernel, LoopKind, ScalarKind, Stmt},
};

/// Relocatable object code of some kernels.
#[derive(Clone, Debug)]
pub struct ObjectCode {
    /// The object file.
    pub bytes: Vec<u8>,
    /// The kernels' names, which are its global symbols.
    pub symbols: Vec<String>,
}

/// The text forms of compiled kernels, for people.
#[derive(Clone, Debug)]
pub struct Listing {
    /// LLVM's intermediate representation, after the passes.
    pub ir: String,
    /// Assembly.
    pub assembly: String,
}

/// What runs on every module.
const PASSES: &str = "function(sroa,early-cse<memssa>,loop-mssa(licm),instsimplify,early-cse<memssa>,simplifycfg,dce)";

/// Stack of a compiling thread in bytes: expressions of fused kernels nest deeply, and so do their walks.
const STACK: usize = 256 << 20;

pub(super) fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = InitializationConfig::default();
        Target::initialize_x86(&all);
        Target::initialize_aarch64(&all);
    });
}

/// The machine that this program runs on, with the features that LLVM detects.
pub fn host_target() -> CodegenTarget {
    let triple = TargetMachine::get_default_triple().as_str().to_string_lossy().into_owned();
    let mut features = TargetMachine::get_host_cpu_features().to_string();
    if features.contains("+amx") && !matrix_registers_permitted() {
        features = features.replace("+amx", "-amx");
    }
    let mut host = CodegenTarget { triple, cpu: String::new(), features };
    host.cpu = host.processor_of().to_owned();
    host
}

fn machine(of: &CodegenTarget) -> Result<TargetMachine, CodegenError> {
    of.validate()?;
    initialize();
    let triple = TargetTriple::create(&of.triple);
    let target = Target::from_triple(&triple).map_err(|e| CodegenError::Llvm(e.to_string()))?;
    let (level, features) = (OptimizationLevel::Default, of.machine_features());
    target
        .create_target_machine(&triple, &of.cpu, &features, level, RelocMode::PIC, CodeModel::Default)
        .ok_or_else(|| CodegenError::Llvm(format!("no code generator for {}", of.triple)))
}

fn module<'ctx>(
    ctx: &'ctx Context,
    kernels: &[&Kernel],
    target: &CodegenTarget,
    machine: &TargetMachine,
) -> Result<Unit<'ctx>, CodegenError> {
    let unit = Unit { ctx, module: ctx.create_module("resat"), target: target.clone() };
    unit.module.set_triple(&machine.get_triple());
    unit.module.set_data_layout(&machine.get_target_data().get_data_layout());
    for k in kernels {
        loops::check(k)?;
        emit::kernel(&unit, k)?;
    }
    if cfg!(debug_assertions) {
        unit.module.verify().map_err(|e| CodegenError::Llvm(e.to_string()))?;
    }
    let options = PassBuilderOptions::create();
    unit.module.run_passes(PASSES, machine, options).map_err(|e| CodegenError::Llvm(e.to_string()))?;
    Ok(unit)
}

fn object(kernel: &Kernel, target: &CodegenTarget, machine: &TargetMachine) -> Result<ObjectCode, CodegenError> {
    let ctx = Context::create();
    let unit = module(&ctx, &[kernel], target, machine)?;
    let buffer = machine
        .write_to_memory_buffer(&unit.module, FileType::Object)
        .map_err(|e| CodegenError::Llvm(e.to_string()))?;
    Ok(ObjectCode { bytes: buffer.as_slice().to_vec(), symbols: vec![kernel.name.clone()] })
}

/// Runs `f` on a thread with a stack for deep expressions.
fn with_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, CodegenError> {
    let failed = |what: String| CodegenError::Llvm(what);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, f);
        let thread = thread.map_err(|e| failed(format!("no thread to compile on: {e}")))?;
        thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether all names differ.
pub(super) fn distinct(kernels: &[&Kernel]) -> Result<(), CodegenError> {
    let mut names = HashSet::new();
    match kernels.iter().find(|k| !names.insert(&k.name)) {
        Some(k) => Err(CodegenError::Invalid(format!("two kernels are named {}", k.name))),
        None => Ok(()),
    }
}

/// Compiles kernels, whose names must differ, for a machine. The objects' order and content do not depend on the number of
/// threads.
pub fn compile(kernels: &[&Kernel], target: &CodegenTarget) -> Result<Vec<ObjectCode>, CodegenError> {
    distinct(kernels)?;
    each(kernels, target)
}

/// Roughly how much code a kernel is: what its statements hold, as often as they are written out.
fn size(s: &Stmt) -> u64 {
    match s {
        Stmt::For { extent, kind: LoopKind::Unrolled, body, .. } => match extent.kind() {
            ScalarKind::Int(n) => (*n).max(1) as u64 * size(body),
            _ => size(body),
        },
        Stmt::For { body, .. } | Stmt::Let { body, .. } | Stmt::While { body, .. } => 1 + size(body),
        Stmt::Block(all) => all.iter().map(size).sum(),
        Stmt::If { then, otherwise, .. } => 1 + size(then) + otherwise.as_deref().map_or(0, size),
        Stmt::Prefetch { .. } => 2,
        Stmt::Tiles { block, .. } => 4 * (block.rows.len() * block.columns.len()) as u64,
        Stmt::Store { value, .. } => {
            let (mut stack, mut seen) = (vec![value], HashSet::new());
            while let Some(e) = stack.pop() {
                stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key())));
            }
            2 + seen.len() as u64
        }
    }
}

/// Compiles each kernel to an object. The largest come first, so that none keeps one thread at work when the others are done.
pub(super) fn each(kernels: &[&Kernel], target: &CodegenTarget) -> Result<Vec<ObjectCode>, CodegenError> {
    target.validate()?;
    let results: Vec<Mutex<Option<Result<ObjectCode, CodegenError>>>> =
        kernels.iter().map(|_| Mutex::new(None)).collect();
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by_cached_key(|&i| Reverse(size(&kernels[i].body)));
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), CodegenError> {
        let machine = machine(target)?;
        loop {
            let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
            *results[i].lock().expect("no thread panics while it holds a result") =
                Some(object(kernels[i], target, &machine));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(kernels.len());
    std::thread::scope(|scope| {
        let spawned: Vec<_> =
            (0..threads).map(|_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)).collect();
        for thread in spawned {
            let thread = thread.map_err(|e| CodegenError::Llvm(format!("no thread to compile on: {e}")))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, CodegenError>(())
    })?;
    results
        .into_iter()
        .map(|r| r.into_inner().expect("no thread panicked").expect("every kernel was compiled"))
        .collect()
}

/// What kernels compile to, as text.
pub fn listing(kernels: &[&Kernel], target: &CodegenTarget) -> Result<Listing, CodegenError> {
    with_deep_stack(|| {
        let machine = machine(target)?;
        let ctx = Context::create();
        let unit = module(&ctx, kernels, target, &machine)?;
        let ir = unit.module.print_to_string().to_string();
        let text = machine
            .write_to_memory_buffer(&unit.module, FileType::Assembly)
            .map_err(|e| CodegenError::Llvm(e.to_string()))?;
        let assembly = String::from_utf8_lossy(text.as_slice()).into_owned();
        Ok(Listing { ir, assembly })
    })?
}
