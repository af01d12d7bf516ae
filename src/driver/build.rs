//! From a module to something that runs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    backend::Backend,
    cache::{Cache, module_key, settings_key},
    external::{Handling, Regions, compile_regions, fallback_warning},
    runnable::{MachineProgram, Parameter, Runnable},
    specialize::{Compiled, Machine, Primitives, compile_code},
    tune::{Tuner, Tuning, Untuned, tuned_in},
};
use crate::{
    codegen::{CodegenError, ObjectCode},
    diag::{Diagnostic, Refused},
    dialect,
    infer::infer_types,
    ir::{ExprId, Module, Name, dim_names},
    loops::Kernel,
    lower::{Assembled, CodeSet, Tuned, assemble, is_plain},
    partition::CompilerError,
    pass::{
        AfterPass, BeforePass, BuildConfig, Pass, PassContext, PassEntry, Settings, annotated_compilers, bind_params,
        default_pass, dissolve_composites, drop_default_annotations, eta_expand, forgotten_annotations, fuse,
        run_logged,
    },
    runtime::{Executable, LinkError, MemoryRelease, Pool, give_back_memory},
    saturate::Report,
    store::{Key, KeyMaker},
    tensor::{Tensor, within_memory},
    vm,
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
    /// Whether a region that its compiler fails on is compiled as everything else is, with a warning. Otherwise it is an error.
    pub fallback: bool,
    /// Whether the code of each region is run once and compared with the interpreter before it is used: in a process of its own,
    /// unless it lives in this one.
    pub check_regions: bool,
    /// Called when a phase starts.
    pub on_phase: Option<Box<dyn FnMut(&str) + Send>>,
    /// Called before each pass, with the module as it is: for those who want to see or count what passes do. A program that is found in a
    /// cache has no passes.
    pub before_pass: Option<BeforePass>,
    /// Called after each pass, with the module as it was and as it is.
    pub after_pass: Option<AfterPass>,
    /// Where kernels and programs are kept on disk; nowhere, if none is given.
    pub cache: Option<Arc<Cache>>,
    /// What the program is kept under. Where it is read from files, a key of these is cheaper to make than the program is to read
    /// ([`Cache::find`]). Without one, the key is the content of the module, its parameters and the settings; and where something of
    /// one's own has a part whose content can't be told (passes, rulesets, operators, cost models or extractors without a
    /// fingerprint), kernels are kept and the program is not.
    pub key: Option<Key>,
    /// What was measured about this machine's reductions; by the model alone, if none is given.
    pub tuned: Option<Arc<Tuned>>,
    /// How long to measure what is not known yet of the program's reductions; see [`Options::tuned`], without which it is
    /// forgotten after the build.
    pub tune: Option<Duration>,
    /// Whether memory that the build frees goes back to the system at once, and code that ran once is dropped from memory, by settings of the
    /// whole process: for programs that do nothing else, such as the command line. Off by default: a library leaves its host's allocator alone.
    pub release_memory: bool,
}

impl Options {
    /// The default pipeline for a machine, with as many threads as it has cores.
    pub fn new(settings: Settings) -> Options {
        let threads = settings.target.cores;
        Options {
            settings,
            passes: None,
            threads,
            name: "main".into(),
            fallback: false,
            check_regions: false,
            on_phase: None,
            before_pass: None,
            after_pass: None,
            cache: None,
            key: None,
            tuned: None,
            tune: None,
            release_memory: false,
        }
    }
}

/// A built program and how it came about. Of a program that was found in a cache, it is not known how: there are no module, log, reports
/// and kernels.
pub struct Built {
    /// What runs.
    pub executable: Runnable,
    /// The module as the passes left it.
    pub module: Module,
    /// One entry per pass.
    pub log: Vec<PassEntry>,
    /// One report per saturation.
    pub reports: Vec<Report>,
    /// What was measured, where that was asked for.
    pub tuned: Option<Tuning>,
    /// What users should know, though the program was built.
    pub warnings: Vec<String>,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// Their machine code, and that of external compilers.
    pub objects: Vec<ObjectCode>,
    /// Calls of kernels.
    pub calls: usize,
    /// Regions that external compilers made, by symbol. What they gave as objects is among `objects`.
    pub external: Vec<(String, crate::runtime::Compiled)>,
    /// Why regions are not what external compilers made, where there is a fallback.
    pub fallen: Vec<CompilerError>,
    /// How many inputs each parameter of `@main` is: one, or as many as a tuple has tensors.
    pub parameters: Vec<usize>,
    /// Whether it was found in a cache.
    pub cached: bool,
    /// Passes, lowering, code generation and linking, all together.
    pub time: Duration,
}

/// Builds a module whose parameters are (partly) given: the default pipeline, or the one in the options, then code.
///
/// # Errors
/// What can't be taken is refused, also where its constants would not fit into memory.
pub fn build(module: Module, params: &[(Name, Tensor)], options: Options) -> Result<Built, BuildError> {
    within_memory(|| build_here(module, params, options)).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?
}

fn build_here(module: Module, params: &[(Name, Tensor)], options: Options) -> Result<Built, BuildError> {
    let start = Instant::now();
    let Options {
        settings,
        passes,
        threads,
        name,
        fallback,
        check_regions,
        on_phase,
        before_pass,
        after_pass,
        cache,
        key,
        tuned,
        tune,
        release_memory,
    } = options;
    if threads > Pool::MOST_THREADS {
        let d =
            Diagnostic::new(format!("{threads} threads are asked for, but at most {} are of use", Pool::MOST_THREADS));
        return Err(Refused::from(d).into());
    }
    let key = key.or_else(|| {
        // Passes of the user's own are code, too.
        (cache.is_some() && passes.is_none()).then_some(())?;
        let key = settings_key(KeyMaker::new().part(&name), &settings)?;
        Some(module_key(key, &module, params)?.key())
    });
    if let (Some(cache), Some(key), None) = (&cache, &key, tune)
        && let Some(found) = cache.find(key, threads)
    {
        return Ok(Built { time: start.elapsed(), ..found });
    }
    let release = release_memory.then(MemoryRelease::new);
    let mut cx = PassContext { on_start: on_phase, before_pass, after_pass, ..PassContext::default() };
    // Errors of types are told of the program as it was written, before passes move things about.
    let bound = bind_params(&module, params)?;
    // What passes do away with should go: nobody else may hold on to the weights.
    drop(module);
    let typed = infer_types(bound)?;
    let main = &typed.entry("main")?.params;
    let annotated: Vec<bool> = main.iter().map(|&p| typed.var(p).ty.is_some()).collect();
    let parameters = main.iter().map(|&p| typed.var_ty(p).flatten().map_or(1, |t| t.len())).collect();
    let module = drop_default_annotations(typed.into_module());
    let passes = match passes {
        Some(p) => p,
        None => default_pass(&settings, &BuildConfig::default())?,
    };
    let annotated_for = annotated_compilers(&module);
    let module = passes.run(module, &mut cx)?;
    cx.warnings.extend(forgotten_annotations(&annotated_for, &module, true));
    // What compiles next has threads with memory of their own.
    if release.is_some() {
        give_back_memory();
    }
    let tuned = tuned.or_else(|| tune.map(|_| Arc::new(tuned_in(&settings.target, None))));
    let run =
        Run { threads, name, regions: Handling { fallback, check: check_regions }, cache: cache.clone(), tuned, tune };
    let mut built = compile(module, &annotated, &settings, run, cx)?;
    built.parameters = parameters;
    if let (Some(cache), Some(key), Runnable::Plain(exe)) = (&cache, &key, &built.executable)
        && built.external.is_empty()
        && built.warnings.is_empty()
    {
        cache.keep(key, exe.program(), &built, &settings.target.codegen());
    }
    drop(release);
    built.time = start.elapsed();
    Ok(built)
}

/// What code is made for, besides a machine.
struct Run {
    threads: usize,
    name: String,
    regions: Handling,
    cache: Option<Arc<Cache>>,
    tuned: Option<Arc<Tuned>>,
    tune: Option<Duration>,
}

/// Makes code of a module that went through its passes. `annotated` says of which parameters of `@main` the program itself gives
/// the type.
fn compile(
    module: Module,
    annotated: &[bool],
    settings: &Settings,
    run: Run,
    mut cx: PassContext,
) -> Result<Built, BuildError> {
    dialect::refuse_unlegalized(&module)?;
    // Operators that are values become functions that call them, and whatever the passes left unfused a kernel an operator.
    let module = dissolve_composites(module);
    let module = run_logged(&crate::pass::FnPass("EtaExpand", |m| eta_expand(&m)), module, &mut cx)?;
    let singly = crate::pass::FnPass("Kernels", |m| Ok(fuse(&infer_types(m)?, 1)));
    let module = run_logged(&singly, module, &mut cx)?;
    let typed = infer_types(module)?;
    let backend = Backend::of(&settings.target)?;
    let pool = Arc::new(Pool::new(run.threads));
    let mut tuner = run.tuned.clone().zip(run.tune).map(|(tuned, budget)| Tuner::new(tuned, &backend, budget));
    let machine = Machine { backend, pool, regions: run.regions, cache: run.cache, tuned: run.tuned };
    let Regions { typed, compiled, fallen } = compile_regions(typed, &machine.backend.target, run.regions)?;
    cx.warnings.extend(fallen.iter().map(fallback_warning));
    let mut tell_phase = |phase: &str| {
        if let Some(f) = &mut cx.on_start {
            f(phase);
        }
    };
    let (executable, code, objects, calls) = match is_plain(&typed, "main")? {
        true => {
            let mut code = machine.code(compiled);
            let mut assembled = assemble(&typed, "main", &run.name, &mut code)?;
            if let Some(tuner) = &mut tuner
                && tuner.tune(&code, &[&assembled.program], &mut tell_phase)?
            {
                let before = Untuned::take(&mut code, assembled.program);
                code = code.anew();
                assembled = assemble(&typed, "main", &run.name, &mut code)?;
                // What external compilers make is linked once.
                if code.external.is_empty() {
                    tell_phase("comparing with what is not tuned");
                    if tuner.check(&before, &assembled.program, &code.kernels, &machine.pool)? {
                        code = code.anew();
                        assembled = assemble(&typed, "main", &run.name, &mut code)?;
                    }
                }
            }
            tell_phase(&compiling(&code));
            let Assembled { program, calls, .. } = assembled;
            let (objects, library) = compile_code(&mut code, &machine.backend, machine.cache.as_deref())?;
            (Runnable::Plain(Box::new(Executable::link(program, library, machine.pool)?)), code, objects, calls)
        }
        false => {
            let program = vm::compile(&typed, "main")?;
            let functions: Vec<ExprId> = program.kernels().iter().map(|k| k.func).collect();
            let Compiled { primitives, code, objects, calls } =
                Primitives::compile(&typed, &functions, compiled, machine, tuner.as_mut(), &mut tell_phase)?;
            let m = typed.module();
            let main = &typed.entry("main")?.params;
            let params = main
                .iter()
                .zip(annotated)
                .map(|(&p, &annotated)| Parameter {
                    name: m.var(p).name.clone(),
                    ty: typed.var_ty(p).clone(),
                    annotated,
                })
                .collect();
            let machine = MachineProgram { program, kernels: primitives, params, dims: dim_names(m) };
            (Runnable::Machine(Box::new(machine)), code, objects, calls)
        }
    };
    Ok(Built {
        executable,
        module: typed.into_module(),
        log: cx.log,
        reports: cx.reports,
        tuned: tuner.map(Tuner::done),
        warnings: cx.warnings,
        objects,
        calls,
        external: code.external,
        fallen,
        kernels: code.kernels,
        parameters: Vec::new(),
        cached: false,
        time: Duration::ZERO,
    })
}

/// What a phase is called in which code is made.
pub(super) fn compiling(code: &CodeSet) -> String {
    format!("compiling {} kernels", code.kernels.len())
}
