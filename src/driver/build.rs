//! From a module to something that runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::assemble::{Assembled, assemble};
use crate::{
    codegen::llvm::{self, CodegenError, JitLibrary, ObjectCode},
    diag::Refused,
    dialect,
    infer::infer_types,
    ir::{Module, Name},
    loops::Kernel,
    lower::VectorUnit,
    pass::{Pass, PassContext, PassEntry, Settings, bind_params, default_pipeline, fuse, run_logged},
    runtime::{Executable, LinkError, Pool},
    saturate::Report,
    tensor::Tensor,
};

/// Why a module was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The module, or what was asked for, can't be taken.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The back end failed.
    #[error("code generation: {0}")]
    Codegen(#[from] CodegenError),
    /// A function was not compiled.
    #[error("{0}")]
    Link(#[from] LinkError),
}

/// What a build may be told.
pub struct Options {
    /// Target, rules, costs, limits.
    pub settings: Settings,
    /// The passes; the default pipeline where none are given.
    pub passes: Option<Box<dyn Pass>>,
    /// Threads that run the program.
    pub threads: usize,
    /// A name for the program: part of exported symbols.
    pub name: String,
    /// Called when a phase starts.
    pub on_phase: Option<Box<dyn FnMut(&str) + Send>>,
}

impl Options {
    /// The default pipeline for a machine, with as many threads as it has cores.
    pub fn new(settings: Settings) -> Options {
        let threads = settings.target.cores;
        Options { settings, passes: None, threads, name: "main".into(), on_phase: None }
    }
}

/// A built program and how it came about.
pub struct Built {
    /// What runs.
    pub executable: Executable,
    /// The module as the passes left it.
    pub module: Module,
    /// One entry per pass.
    pub log: Vec<PassEntry>,
    /// One report per saturation.
    pub reports: Vec<Report>,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// Their machine code, and that of external compilers.
    pub objects: Vec<ObjectCode>,
    /// Calls of kernels.
    pub calls: usize,
    /// Regions that external compilers made, by symbol.
    pub external: Vec<String>,
    /// Passes, lowering, code generation and linking, all together.
    pub time: Duration,
}

/// Builds a module whose parameters are (partly) given: the default pipeline, or the one in the options, then code.
pub fn build(module: Module, params: &[(Name, Tensor)], options: Options) -> Result<Built, BuildError> {
    let start = Instant::now();
    let Options { settings, passes, threads, name, on_phase } = options;
    let mut cx = PassContext { on_start: on_phase, ..PassContext::default() };
    // Errors of types are told of the program as it was written, before passes move things about.
    let module = infer_types(bind_params(&module, params)?)?.into_module();
    let passes = match passes {
        Some(p) => p,
        None => Box::new(default_pipeline(&settings)?),
    };
    let module = passes.run(module, &mut cx)?;
    compile(module, &settings, threads, &name, cx, start)
}

/// Makes code of a module that went through its passes.
pub fn compile(
    module: Module,
    settings: &Settings,
    threads: usize,
    name: &str,
    mut cx: PassContext,
    start: Instant,
) -> Result<Built, BuildError> {
    dialect::refuse_unlegalized(&module)?;
    // Whatever the passes left unfused becomes a kernel an operator.
    let singly = crate::pass::FnPass("Kernels", |m| Ok(fuse(&infer_types(m)?, 1)));
    let module = run_logged(&singly, module, &mut cx)?;
    let typed = infer_types(module)?;
    let target = settings.target.codegen();
    let unit = VectorUnit { bytes: target.vector_bytes() as i64, registers: target.vector_registers() as i64 };
    let Assembled { program, kernels, external, calls } = assemble(&typed, name, unit)?;
    if let Some(f) = &mut cx.on_start {
        f(&format!("compiling {} kernels", kernels.len()));
    }
    let mut objects = llvm::compile(&kernels.iter().collect::<Vec<_>>(), &target)?;
    let regions: Vec<String> = external.iter().map(|(symbol, _)| symbol.clone()).collect();
    objects.extend(external.into_iter().map(|(symbol, c)| ObjectCode { bytes: c.object, symbols: vec![symbol] }));
    let code: Vec<Arc<dyn crate::runtime::CompiledCode>> = vec![Arc::new(JitLibrary::load(&objects)?)];
    let executable = Executable::link(program, code, Arc::new(Pool::new(threads)))?;
    Ok(Built {
        executable,
        module: typed.into_module(),
        log: cx.log,
        reports: cx.reports,
        kernels,
        objects,
        calls,
        external: regions,
        time: start.elapsed(),
    })
}
