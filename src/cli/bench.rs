//! `resat bench`.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::ValueEnum;

use super::{
    Failure,
    args::{CacheArgs, ExtentArgs, ModelArgs, PassArgs, RegionArgs, StateArgs, TuneArgs, tell_tuning},
    kept::{Kept, inputs_of},
    profile,
    progress::Progress,
    run::{beside_state, gather, names_and_ranks},
};
use crate::{
    diag::Diagnostic,
    driver::{self, Built, NOT_PLAIN, Options, Profile, Runnable, Specialize},
    pass::Settings,
    runtime::{Executable, peak_memory},
    target::Target,
    tensor::{Tensor, Value},
};

/// Arguments of `resat bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  resat bench model.relay --params model.params --threads 1 --repeat 50 --json")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    regions: RegionArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    tune: TuneArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    extents: ExtentArgs,
    /// Which sizes of a program whose extents are unknown get code of their own, made in the background while that for all sizes runs:
    /// those at which it has run for as long as it took to make the code for all, or every one
    #[arg(long, value_enum, value_name = "WHICH", default_value = "off")]
    specialize: Special,
    /// An npz archive; keys are parameter names or positions. Random inputs where not given; where given several times, each is measured,
    /// one after another in this process, and its first call apart from the others
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Threads; all cores where not given
    #[arg(long, value_name = "N", value_parser = super::args::threads)]
    threads: Option<NonZeroUsize>,
    /// Measured runs, after three that are not
    #[arg(long, value_name = "R", default_value = "20")]
    repeat: NonZeroUsize,
    /// Print JSON: latencies_s (each run), first_s (the first call, before those that warm up), median_s, min_s, p90_s, compile_s, cached;
    /// of memory, in bytes: arena, the most of it that is in use at once, weights, and the peak of this process. Where inputs are given,
    /// `runs` has these latencies for each, with `inputs`, the file; of several they are only there. Of programs whose extents are
    /// unknown: compiled_kernels (in each of `runs`: how many were compiled until then), general_calls (of kernels that serve all extents),
    /// special_calls (of kernels that serve one), special_kernels (compiled for extents that were met) and special_sizes (at which the whole
    /// program has code of its own: see --specialize)
    #[arg(long)]
    json: bool,
    /// Also say where the time goes, kernel by kernel: time, operations a second and bytes a second with their shares of what the
    /// machine can do, what bounds it, and what the model of a core expected. With --json, "kernels" has the same. Of several inputs,
    /// with the last, and of state as the runs before have left it
    #[arg(long)]
    profile: bool,
    /// Also say what the processor counts in each kernel, where the system lets programs ask: cycles, instructions, misses of caches, of the
    /// translation of addresses and of branches; and page faults. Of the thread that calls: with --threads 1, of all
    #[arg(long, requires = "profile")]
    counters: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Special {
    /// None
    Off,
    /// Those that are met often
    Hot,
    /// All
    All,
}

impl From<Special> for Specialize {
    fn from(s: Special) -> Specialize {
        match s {
            Special::Off => Specialize::Off,
            Special::Hot => Specialize::Hot,
            Special::All => Specialize::All,
        }
    }
}

/// Runs that warm up caches and threads.
const WARM_UP: usize = 3;

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let paths: Vec<Option<&Path>> = match args.inputs.as_slice() {
        [] => vec![None],
        all => all.iter().map(|p| Some(p.as_path())).collect(),
    };
    if args.model.file.extension().is_some_and(|e| e == "so") {
        args.extents.refuse("go with programs that are to be built")?;
        super::library::refuse(&[
            ("--profile", args.profile),
            ("--state", !args.state.state.is_empty()),
            ("--passes", args.passes.asked()),
            ("--specialize", args.specialize != Special::Off),
            ("--tune", args.tune.asked()),
        ])?;
        let library = super::library::open(&args.model, args.threads)?;
        let tensors = paths.iter().map(|&p| library.inputs(p, None)).collect::<Result<Vec<_>, _>>()?;
        let runs = measure(&args, &tensors, &|| None, |tensors| library.run(tensors).map(drop))?;
        return report(&args, &runs, 0.0, None, None);
    }
    let start = Instant::now();
    let settings = args.passes.settings_for_code()?;
    let target = settings.target.clone();
    // Some models say of their inputs less than the inputs themselves do.
    let given = match args.inputs.first().filter(|_| !args.model.is_relay()) {
        Some(path) => Some(names_and_ranks(path)?),
        None => None,
    };
    let name = given.as_ref().map_or_else(|| "main".to_owned(), |given| format!("main {given:?}"));
    let kept = Kept::new(&args.cache, &args.model, &args.passes, &settings, &name).rebuild(args.tune.asked());
    let kept = kept.for_builds(args.extents.asked());
    if !args.state.state.is_empty() {
        return run_with_state(&args, settings, &kept, given, &paths);
    }
    let (built, compile, tensors) = match kept.find(&settings, args.threads) {
        Some(found) => {
            let compile = start.elapsed().as_secs_f64();
            let program = found.executable.as_plain().expect("only plain programs are kept");
            let tensors = paths.iter().map(|&p| inputs_of(program, &found.parameters, p));
            let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
            (found, compile, tensors)
        }
        None => {
            let passes = args.passes.sequence(&settings)?;
            let typed = args.model.bound_to_run(given, &args.passes)?;
            let read = Instant::now();
            let flat = |path: &Option<&Path>| -> Result<Vec<Tensor>, Failure> {
                Ok(gather(&typed, *path)?.iter().flat_map(Value::flatten).collect())
            };
            let tensors = paths.iter().map(flat).collect::<Result<Vec<_>, _>>()?;
            let read = read.elapsed();
            let progress = Progress::new();
            let mut options = Options::new(settings);
            options.release_memory = true;
            options.passes = Some(Box::new(passes));
            args.regions.apply_to(&mut options);
            args.tune.fill(&args.passes, &mut options)?;
            options.on_phase = Some(Box::new(progress.teller()));
            options.threads = args.threads.map_or(options.threads, NonZeroUsize::get);
            options.specialize = args.specialize.into();
            args.extents.fill(&mut options);
            kept.fill(&mut options);
            let built = driver::build(typed.into_module(), &[], options).map_err(super::build_failure)?;
            (built, (start.elapsed() - read).as_secs_f64(), tensors)
        }
    };
    kept.warn();
    super::warn(built.warnings());
    tell_tuning(&built);
    let Runnable::Plain(exe) = &built.executable else {
        let exe = &built.executable;
        let runs = measure(&args, &tensors, &|| compiled_kernels(&built), |tensors| {
            exe.run(tensors)?;
            // What is measured is what serves the size from then on.
            if let (Special::All, Runnable::Machine(m)) = (args.specialize, exe) {
                m.finish_special();
            }
            Ok(())
        })?;
        super::warn(&exe.warnings());
        let found = match (args.profile, exe) {
            (true, Runnable::Machine(m)) => {
                let last = tensors.last().unwrap_or(&tensors[0]);
                let found = m.at(last, |exe| profiled(&args, exe, last, target))?;
                let none = || Diagnostic::new(NOT_PLAIN);
                found.ok_or_else(|| Failure::Refused(none().into()))??
            }
            _ => None,
        };
        return report(&args, &runs, compile, Some(&built), found);
    };
    let mut outputs: Option<Vec<Tensor>> = None;
    let runs = measure(&args, &tensors, &|| None, |tensors| match &mut outputs {
        Some(outputs) => exe.run_into(tensors, outputs).map_err(refuse),
        None => {
            outputs = Some(exe.run(tensors).map_err(refuse)?);
            Ok(())
        }
    })?;
    let found = if args.profile { profiled(&args, exe, tensors.last().unwrap_or(&tensors[0]), target)? } else { None };
    report(&args, &runs, compile, Some(&built), found)
}

/// How many kernels were compiled since the program was built, of programs whose extents are unknown.
fn compiled_kernels(built: &Built) -> Option<usize> {
    match &built.executable {
        Runnable::Machine(m) => Some(m.compiled_kernels()),
        Runnable::Plain(_) => None,
    }
}

fn refuse(e: crate::runtime::RunError) -> Failure {
    Failure::Refused(Diagnostic::new(e.to_string()).into())
}

/// Where the time of a run goes: printed, or given as JSON where that is asked for.
fn profiled(
    args: &Args,
    exe: &Executable,
    inputs: &[Tensor],
    target: Target,
) -> Result<Option<serde_json::Value>, Failure> {
    told(args, &Profile::measure(exe, inputs, args.repeat.get(), target, args.counters).map_err(refuse)?)
}

fn told(args: &Args, times: &Profile) -> Result<Option<serde_json::Value>, Failure> {
    if !times.uncounted.is_empty() {
        super::warn(&[format!("this system does not count {}", times.uncounted.join("; "))]);
    }
    if args.json {
        return Ok(Some(profile::json(times)));
    }
    super::print(&profile::table(times))?;
    super::print(&profile::counters(times))?;
    Ok(None)
}

/// The same of a program that keeps state, which goes on from run to run.
fn run_with_state(
    args: &Args,
    settings: Settings,
    kept: &Kept,
    given: Option<Vec<(String, usize)>>,
    paths: &[Option<&Path>],
) -> Result<(), Failure> {
    let start = Instant::now();
    let target = settings.target.clone();
    let passes = args.passes.sequence(&settings)?;
    let typed = args.model.bound_to_run(given, &args.passes)?;
    let progress = Progress::new();
    let mut options = Options::new(settings);
    options.release_memory = true;
    options.passes = Some(Box::new(passes));
    options.state = args.state.state.clone();
    options.reorder_state = true;
    args.regions.apply_to(&mut options);
    args.tune.fill(&args.passes, &mut options)?;
    options.on_phase = Some(Box::new(progress.teller()));
    options.threads = args.threads.map_or(options.threads, NonZeroUsize::get);
    options.specialize = args.specialize.into();
    args.extents.fill(&mut options);
    kept.fill(&mut options);
    let built = driver::build(typed.module().clone(), &[], options).map_err(super::build_failure)?;
    let compile = start.elapsed().as_secs_f64();
    kept.warn();
    super::warn(built.warnings());
    tell_tuning(&built);
    let mut runs = built.stateful();
    let (mut measured, mut found) = (Vec::new(), None);
    for (i, &path) in paths.iter().enumerate() {
        let inputs = [beside_state(&typed, path, &built.state, &mut runs)?];
        let once = |inputs: &[Tensor]| Ok(runs.run(inputs).map(drop)?);
        measured.extend(measure(args, &inputs, &|| compiled_kernels(&built), once)?);
        if args.profile && i + 1 == paths.len() {
            found = told(args, &runs.profile(&inputs[0], args.repeat.get(), target.clone(), args.counters)?)?;
        }
    }
    report(args, &measured, compile, Some(&built), found)
}

/// What was measured with one set of inputs, in seconds.
struct Run {
    first: f64,
    latencies: Vec<f64>,
    /// Kernels that were compiled so far, of a program that compiles any when it runs.
    compiled: Option<usize>,
}

impl Run {
    /// Median, least, and that which nine of ten runs do not exceed.
    fn summary(&self) -> (f64, f64, f64) {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |q: usize| sorted[(sorted.len() * q / 100).min(sorted.len() - 1)];
        (at(50), sorted[0], at(90))
    }

    fn json(&self) -> serde_json::Map<String, serde_json::Value> {
        let (median, min, p90) = self.summary();
        let json = serde_json::json!({
            "latencies_s": self.latencies, "first_s": self.first, "median_s": median, "min_s": min, "p90_s": p90,
        });
        let mut fields = if let serde_json::Value::Object(fields) = json { fields } else { serde_json::Map::new() };
        fields.extend(self.compiled.map(|n| ("compiled_kernels".to_owned(), n.into())));
        fields
    }
}

/// Each set of inputs in turn: the first call, those that warm up, and those that count.
fn measure(
    args: &Args,
    tensors: &[Vec<Tensor>],
    compiled: &dyn Fn() -> Option<usize>,
    mut once: impl FnMut(&[Tensor]) -> Result<(), Failure>,
) -> Result<Vec<Run>, Failure> {
    let mut timed = |tensors: &Vec<Tensor>| {
        let start = Instant::now();
        once(tensors)?;
        Ok::<_, Failure>(start.elapsed().as_secs_f64())
    };
    let mut runs = Vec::new();
    for tensors in tensors {
        let first = timed(tensors)?;
        for _ in 0..WARM_UP {
            timed(tensors)?;
        }
        let latencies = (0..args.repeat.get()).map(|_| timed(tensors)).collect::<Result<Vec<_>, _>>()?;
        runs.push(Run { first, latencies, compiled: compiled() });
    }
    Ok(runs)
}

fn report(
    args: &Args,
    runs: &[Run],
    compile: f64,
    built: Option<&Built>,
    kernels: Option<serde_json::Value>,
) -> Result<(), Failure> {
    let sized = built.and_then(|b| match &b.executable {
        Runnable::Machine(m) => {
            let (general, special, kernels) = m.sized_calls();
            Some((general, special, kernels, m.special_sizes()))
        }
        Runnable::Plain(_) => None,
    });
    let workspace = built.and_then(|b| match &b.executable {
        Runnable::Machine(m) => m.workspace(),
        Runnable::Plain(_) => None,
    });
    if args.json {
        let program = built.and_then(|b| b.executable.as_plain());
        let weights = |e: &Executable| e.program().constants().iter().map(|t| t.bytes().len()).sum::<usize>();
        let mut json = serde_json::Map::new();
        if let [one] = runs {
            json.extend(one.json());
        }
        if !args.inputs.is_empty() {
            let named = runs.iter().zip(&args.inputs).map(|(run, path)| {
                let mut entry = serde_json::Map::new();
                entry.insert("inputs".into(), path.display().to_string().into());
                entry.extend(run.json());
                serde_json::Value::Object(entry)
            });
            json.insert("runs".into(), named.collect());
        }
        let rest = serde_json::json!({
            "compile_s": compile,
            "cached": built.is_some_and(Built::is_cached),
            "arena_bytes": program.map(|p| p.plan().arena).or(workspace),
            "arena_least_bytes": program.map(|p| p.plan().least),
            "weights_bytes": program.map(weights),
            "peak_memory_bytes": peak_memory(),
            "general_calls": sized.map(|s| s.0),
            "special_calls": sized.map(|s| s.1),
            "special_kernels": sized.map(|s| s.2),
            "special_sizes": sized.map(|s| s.3),
        });
        if let serde_json::Value::Object(rest) = rest {
            json.extend(rest);
        }
        json.extend(kernels.map(|k| ("kernels".to_owned(), k)));
        return super::print(&format!("{}\n", serde_json::Value::Object(json)));
    }
    for (i, run) in runs.iter().enumerate() {
        let (median, min, p90) = run.summary();
        let of = match runs {
            [_] => String::new(),
            _ => format!("{}: ", args.inputs[i].display()),
        };
        super::print(&format!(
            "{of}median {:.3} ms, min {:.3} ms, p90 {:.3} ms over {} runs (first {:.3} ms; compiled in {:.2} s)\n",
            1e3 * median,
            1e3 * min,
            1e3 * p90,
            run.latencies.len(),
            1e3 * run.first,
            compile
        ))?;
    }
    if let Some(bytes) = workspace {
        super::print(&format!("{bytes} bytes are worked in at all sizes\n"))?;
    }
    if let Some((general, special, kernels, sizes)) = sized {
        super::print(&format!(
            "{general} calls of kernels that serve all extents, {special} of kernels that serve one; {kernels} kernels were compiled for \
             extents that were met, and whole programs for {sizes} sizes\n"
        ))?;
    }
    Ok(())
}
