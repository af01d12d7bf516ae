//! From a module to something that runs: one call per phase ([`phases`](super::phases)).
//!
//! Passes give modules, and each infers the types that it needs: that takes 0.4 ms for ResNet-50 and 0.9 ms for BERT of 12 layers, some
//! forty times in a build, 1 to 3 % of it. What comes after the passes takes a [`TypedModule`](crate::infer::TypedModule).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::{
    backend::Backend,
    cache::{Cache, content_key},
    extents::{ExtentBound, Extents, Said},
    external::{Handling, Regions, compile_regions, fallback_warning},
    phases::{Interface, Linked, bind, machine_program, optimize, plain_program, to_kernels},
    runnable::{Runnable, Specialize},
    specialize::Machine,
    state::{StatePair, still_fit},
    state_order::places_first,
    tune::{Tuner, Tuning, tuned_in},
};
use crate::{
    codegen::{CodegenError, ObjectCode},
    diag::{Diagnostic, Refused},
    infer::infer_types,
    ir::{Expr, ExprId, Module, Name},
    loops::Kernel,
    lower::{Tuned, is_plain},
    partition::CompilerError,
    pass::{AfterPass, BeforePass, Pass, PassContext, PassEntry, Settings},
    runtime::{LinkError, MANY, MemoryRelease, Pool, give_back_memory, into_large_pages},
    saturate::Report,
    store::{Key, KeyMaker},
    tensor::{Tensor, within_memory},
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

/// The options of a build.
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
    /// Where kernels and programs are kept on disk; nowhere, if none is given. Of programs that are no plain sequence of calls on known extents, or that
    /// have state, hints or bounds, it is the module as passes left it.
    pub cache: Option<Arc<Cache>>,
    /// What the program is kept under. Where it is read from files, a key of these is cheaper to make than the program is to read
    /// ([`Cache::find`]). Without one, the key is the content of the module, its parameters and the settings; and where something of
    /// one's own has a part whose content is unknown (passes, rulesets, operators, cost models or extractors without a
    /// fingerprint), kernels are kept and the program is not.
    pub key: Option<Key>,
    /// What was measured about this machine's reductions; by the model alone, if none is given.
    pub tuned: Option<Arc<Tuned>>,
    /// How long to measure what is not known yet of the program's reductions; see [`Options::tuned`], without which it is
    /// forgotten after the build.
    pub tune: Option<Duration>,
    /// To see how well the model ranks tilings: so many of all of each reduction that [`Options::tune`] measures are timed besides
    /// ([`TimedReduction::drawn`](super::TimedReduction::drawn)), which changes nothing. 0 by default.
    pub rank: usize,
    /// Which sizes of a program whose extents are unknown get code of their own, made in the background while that for all sizes runs. Results
    /// may then differ in rounding from one run to the next.
    pub specialize: Specialize,
    /// Names of inputs, and of the outputs that they are at the next run: see [`Built::stateful`].
    pub state: Vec<(String, String)>,
    /// Whether state may lie with its axes in another order than the model has them, so that what grows is not copied:
    /// [`StatePair::order`]. Then the program itself takes it and gives it as it lies, and is not exported. Off by default.
    pub reorder_state: bool,
    /// Extents to reckon with where the program's are unknown: for prices, and as the size that decisions are made for; the code for all
    /// sizes is then made with the program. By the name of a dimension, or of an input with one for each axis. Without one, the middle of
    /// what [`Options::bounds`] allows, or a guess.
    pub hints: Vec<Said>,
    /// What unknown extents may be, said like hints: see [`ExtentRange`](super::ExtentRange). Other inputs are refused. Of a program that is a
    /// plain sequence of calls but for its extents, all of these need one: memory is planned for the greatest size when the program is built, and
    /// takes no more at any size. Under the name `?`, one range for all extents that no other bound is for, those among them that are found while
    /// a program with control flow runs. Exports of programs whose extents are unknown need bounds.
    pub bounds: Vec<ExtentBound>,
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
            rank: 0,
            specialize: Specialize::Off,
            state: Vec::new(),
            reorder_state: false,
            hints: Vec::new(),
            bounds: Vec::new(),
            release_memory: false,
        }
    }
}

/// A built program.
pub struct Built {
    /// What runs.
    pub executable: Runnable,
    /// The machine code of kernels, and that of external compilers.
    pub objects: Vec<ObjectCode>,
    /// Calls of kernels.
    pub calls: usize,
    /// How many inputs each parameter of `@main` is: one, or as many as a tuple has tensors.
    pub parameters: Vec<usize>,
    /// What it keeps from one run to the next.
    pub state: Vec<StatePair>,
    /// Where it comes from.
    pub origin: Origin,
    /// Passes, lowering, code generation and linking, all together.
    pub time: Duration,
}

/// Where a built program comes from.
pub enum Origin {
    /// It was found in a cache, all of it or what the passes left: a cache does not keep how a program came about. Programs with warnings are not kept.
    Cache,
    /// It was built here.
    Here(Box<Record>),
}

/// How a program came about.
pub struct Record {
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
    /// Regions that external compilers made, by symbol. What they gave as objects is among [`Built::objects`].
    pub external: Vec<(String, crate::runtime::Compiled)>,
    /// Why regions are not what external compilers made, where there is a fallback.
    pub fallen: Vec<CompilerError>,
}

impl Built {
    /// How it came about; none where it was found in a cache.
    pub fn record(&self) -> Option<&Record> {
        match &self.origin {
            Origin::Here(record) => Some(record),
            Origin::Cache => None,
        }
    }

    /// How it came about, to keep; none where it was found in a cache.
    pub fn into_record(self) -> Option<Record> {
        match self.origin {
            Origin::Here(record) => Some(*record),
            Origin::Cache => None,
        }
    }

    /// Whether it was found in a cache.
    pub fn is_cached(&self) -> bool {
        matches!(self.origin, Origin::Cache)
    }

    /// What users should know, though the program was built.
    pub fn warnings(&self) -> &[String] {
        self.record().map_or(&[], |r| &r.warnings)
    }

    /// Has a program that was built here read its constants where a cache keeps them, as it will wherever it is found there: in large pages, where
    /// the system keeps files in such, and shared by all who run it. Constants that others hold as well stay where they are, since they would be there twice.
    fn read_from(&mut self, kept: Vec<Tensor>) {
        let (Runnable::Plain(exe), Origin::Here(record)) = (&mut self.executable, &mut self.origin) else { return };
        let m = &mut record.module;
        let place = |t: &Tensor| (t.bytes().as_ptr(), t.dtype(), t.shape().to_vec());
        let numbers: HashMap<_, usize> = exe.program().constants().iter().map(place).zip(0..).collect();
        let number = |m: &Module, e| match &m[e] {
            Expr::Constant(t) if !t.is_empty() => numbers.get(&place(t)).copied(),
            _ => None,
        };
        // The module's go, so that only others' are left.
        let of_module: Vec<(ExprId, usize)> = m.ids().filter_map(|e| Some((e, number(m, e)?))).collect();
        for &(e, _) in &of_module {
            m.take_constant(e);
        }
        exe.replace_constants(|n, t| if t.is_unshared() { kept[n].clone() } else { t });
        for (e, n) in of_module {
            m.replace_constant(e, exe.program().constants()[n].clone());
        }
    }
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
        rank,
        specialize,
        state,
        reorder_state,
        hints,
        bounds,
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
        content_key(KeyMaker::new().part(&name), &settings, &module, params)
    });
    let kept = cache.clone().zip(key);
    let said = format!("{state:?} {reorder_state} {hints:?} {bounds:?}");
    let whole = kept.clone().filter(|_| state.is_empty() && hints.is_empty() && bounds.is_empty());
    if let (Some((cache, key)), None) = (&whole, tune)
        && let Some(found) = cache.find(key, threads)
    {
        return Ok(Built { time: start.elapsed(), ..found });
    }
    let release = release_memory.then(MemoryRelease::new);
    let mut cx = PassContext { on_start: on_phase, before_pass, after_pass, ..PassContext::default() };
    let (mut typed, mut interface) = bind(module, params, &state)?;
    let mut extents = Extents::of(&typed, &hints, &bounds)?;
    if reorder_state {
        typed = places_first(typed, &mut interface.state, &mut extents)?;
    }
    let kept = kept.map(|(cache, key)| (cache, KeyMaker::new().part("module").part(key.bytes()).part(said).key()));
    let found = kept.as_ref().filter(|_| tune.is_none()).and_then(|(cache, key)| cache.find_module(key));
    let is_found = found.is_some();
    let typed = match found {
        Some(module) => {
            // Its weights go.
            drop(typed);
            infer_types(module)?
        }
        None => {
            let module = optimize(extents.noted_in(typed.into_module()), passes, &settings, &mut cx)?;
            let typed = infer_types(to_kernels(module, &mut cx)?)?;
            // Of what is kept whole, weights are read from the cache's file in the end.
            match whole.is_some() && is_plain(&typed, "main")? {
                true => typed,
                false => {
                    let kept = kept.filter(|_| cx.warnings.is_empty());
                    infer_types(with_mapped_weights(typed.into_module(), cache.as_deref(), kept))?
                }
            }
        }
    };
    // What compiles next has threads with memory of their own.
    if release.is_some() {
        give_back_memory();
    }
    let mut backend = Backend::of(&settings.target)?;
    backend.core.excess_precision = typed.has_excess_precision();
    still_fit(&typed, &interface.state)?;
    let machine = Machine {
        backend,
        pool: Arc::new(Pool::new(threads)),
        arenas: Arc::default(),
        regions: Handling { fallback, check: check_regions },
        cache: cache.clone(),
        tuned: tuned.or_else(|| tune.map(|_| Arc::new(tuned_in(&settings.target, None)))),
        times: specialize != Specialize::Off,
        state: interface.state.iter().map(|p| (p.input, p.output)).collect(),
        said: extents.said(),
        cancel: settings.limits.cancel.clone(),
    };
    let Regions { typed, compiled, fallen } =
        compile_regions(typed, &machine.backend.target, machine.regions, &machine.cancel)?;
    cx.warnings.extend(fallen.iter().map(fallback_warning));
    let mut tuner =
        machine.tuned.clone().zip(tune).map(|(tuned, time)| Tuner::new(tuned, &machine.backend, time, rank));
    let linked = match is_plain(&typed, "main")? {
        true => {
            extents.refuse_general()?;
            plain_program(&typed, &name, compiled, machine, tuner.as_mut(), &mut cx)?
        }
        false => machine_program(&typed, &interface, extents, specialize, compiled, machine, tuner.as_mut(), &mut cx)?,
    };
    let Linked { executable, code, objects, calls } = linked;
    let record = Record {
        module: typed.into_module(),
        log: cx.log,
        reports: cx.reports,
        tuned: tuner.map(Tuner::done),
        warnings: cx.warnings,
        kernels: code.kernels,
        external: code.external,
        fallen,
    };
    let whole = whole.filter(|_| record.external.is_empty() && record.warnings.is_empty());
    let Interface { parameters, state, .. } = interface;
    let origin = if is_found { Origin::Cache } else { Origin::Here(Box::new(record)) };
    let mut built = Built { executable, objects, calls, parameters, state, origin, time: Duration::ZERO };
    if let (Some((cache, key)), Runnable::Plain(exe)) = (&whole, &built.executable) {
        let bytes: usize = exe.program().constants().iter().map(|t| t.bytes().len()).sum();
        let kept = cache.keep(key, exe.program(), &built, &settings.target.codegen());
        if let Some(kept) = kept.filter(|_| bytes >= MANY) {
            built.read_from(kept);
        }
    }
    drop(release);
    built.time = start.elapsed();
    Ok(built)
}

/// The module with its weights in large pages, or mapped from the cache's file where they are many; the cache keeps it under the key, where one is
/// given and no function is for an external compiler.
fn with_mapped_weights(mut module: Module, cache: Option<&Cache>, kept: Option<(Arc<Cache>, Key)>) -> Module {
    let is_external = |e| matches!(&module[e], Expr::Func(f) if f.compiler().is_some());
    let kept = kept.filter(|_| !module.ids().any(is_external));
    let at = kept.and_then(|(cache, key)| cache.keep_module(&key, &module));
    into_large_pages(&mut module, |exprs, weights| match &at {
        Some(at) => exprs.iter().map(|e| at.get(e).cloned()).collect(),
        None => cache?.keep_weights(weights),
    });
    module
}
