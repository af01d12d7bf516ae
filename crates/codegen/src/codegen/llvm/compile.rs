//! From kernels to object code: a module a kernel.

use std::{cell::RefCell, sync::Once};

use inkwell::{
    OptimizationLevel,
    context::Context,
    passes::PassBuilderOptions,
    targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple},
};

use super::{
    CodegenError,
    emit::{self, Unit},
    options,
};
use crate::{
    codegen::{Code, CodeGenerator, CodegenTarget, matrix_registers_permitted, objects::STACK},
    loops::{self, Kernel},
};

/// Object code by LLVM.
#[derive(Debug)]
pub struct Llvm;

impl CodeGenerator for Llvm {
    fn name(&self) -> &str {
        "llvm"
    }

    fn version(&self, _: &CodegenTarget) -> String {
        let (major, minor, patch) = inkwell::support::get_llvm_version();
        format!("{major}.{minor}.{patch}")
    }

    fn supports(&self, _: &Kernel, target: &CodegenTarget) -> Result<(), CodegenError> {
        Ok(target.validate()?)
    }

    fn generate(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<Code, CodegenError> {
        thread_local! {
            // Making one takes as long as a small kernel does.
            static LAST: RefCell<Option<(CodegenTarget, TargetMachine)>> = const { RefCell::new(None) };
        }
        LAST.with_borrow_mut(|last| {
            let (_, machine) = match last {
                Some(known) if known.0 == *target => known,
                _ => last.insert((target.clone(), machine(target)?)),
            };
            Ok(Code::Object(object(kernel, target, machine)?))
        })
    }
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

pub(super) fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = InitializationConfig::default();
        Target::initialize_x86(&all);
        Target::initialize_aarch64(&all);
        options::set();
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

fn object(kernel: &Kernel, target: &CodegenTarget, machine: &TargetMachine) -> Result<Vec<u8>, CodegenError> {
    let ctx = Context::create();
    let unit = module(&ctx, &[kernel], target, machine)?;
    let buffer = machine
        .write_to_memory_buffer(&unit.module, FileType::Object)
        .map_err(|e| CodegenError::Llvm(e.to_string()))?;
    Ok(buffer.as_slice().to_vec())
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
