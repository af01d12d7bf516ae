//! `resat bench`.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    Failure,
    args::{CacheArgs, ModelArgs, PassArgs, RegionArgs, TuneArgs, tell_tuning},
    kept::{Kept, inputs_of},
    progress::Progress,
    run::gather,
};
use crate::{
    diag::Diagnostic,
    driver::{self, Built, Options, Runnable},
    runtime::{Executable, peak_memory},
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
    /// An npz archive; keys are parameter names or positions. Random inputs where not given. Of several, each is run by the same program,
    /// one after another, and its first run is told apart: of extents that were not met before, it is where code is made
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Threads; all cores where not given
    #[arg(long, value_name = "N", value_parser = super::args::threads)]
    threads: Option<NonZeroUsize>,
    /// Measured runs, after three that are not
    #[arg(long, value_name = "R", default_value = "20")]
    repeat: NonZeroUsize,
    /// Print JSON: latencies_s (each run), median_s, min_s, p90_s, compile_s, cached; of memory, in bytes: arena, the most of it that
    /// is in use at once, weights, and the peak of this process. Of several inputs: runs, each with inputs, first_s and latencies_s; of
    /// programs whose extents are unknown also general_calls (of kernels that serve all extents), special_calls (of kernels that serve
    /// one) and special_kernels (compiled for extents that were met)
    #[arg(long)]
    json: bool,
    /// Also say how long each kernel takes
    #[arg(long)]
    profile: bool,
}

/// Runs that warm up caches and threads.
const WARM_UP: usize = 3;

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if args.model.file.extension().is_some_and(|e| e == "so") {
        let library = super::library::open(&args.model, args.threads)?;
        let all = each(&args.inputs, |path| library.inputs(path))?;
        if args.inputs.len() > 1 {
            let once = |i: usize| library.run(&all[i]).map(drop);
            return several(&args, 0.0, None, once);
        }
        let latencies = measure(args.repeat, || library.run(&all[0]).map(drop))?;
        return report(&args, latencies, 0.0, None);
    }
    let start = Instant::now();
    let settings = args.passes.settings()?;
    let kept = Kept::new(&args.cache, &args.model, &args.passes, &settings, "main").anew(args.tune.asked());
    let (built, compile, all) = match kept.find(&settings, args.threads) {
        Some(found) => {
            let compile = start.elapsed().as_secs_f64();
            let program = found.executable.as_plain().expect("only plain programs are kept");
            let all = each(&args.inputs, |path| inputs_of(program, &found.parameters, path))?;
            (found, compile, all)
        }
        None => {
            let passes = args.passes.sequence(&settings)?;
            let typed = args.model.bound_to_run(None)?;
            let read = Instant::now();
            let gathered = |path: Option<&Path>| Ok(gather(&typed, path)?.iter().flat_map(Value::flatten).collect());
            let all: Vec<Vec<Tensor>> = each(&args.inputs, gathered)?;
            let read = read.elapsed();
            let progress = Progress::new();
            let mut options = Options::new(settings);
            options.passes = Some(Box::new(passes));
            args.regions.tell(&mut options);
            args.tune.fill(&mut options)?;
            options.on_phase = Some(Box::new(progress.teller()));
            options.threads = args.threads.map_or(options.threads, NonZeroUsize::get);
            kept.fill(&mut options);
            let built = driver::build(typed.into_module(), &[], options).map_err(super::build_failure)?;
            (built, (start.elapsed() - read).as_secs_f64(), all)
        }
    };
    kept.tell();
    super::warn(&built.warnings);
    tell_tuning(&built);
    if args.inputs.len() > 1 {
        return several(&args, compile, Some(&built), |i| Ok(built.executable.run(&all[i]).map(drop)?));
    }
    let tensors = &all[0];
    let Runnable::Plain(exe) = &built.executable else {
        let exe = &built.executable;
        if args.profile {
            let d = Diagnostic::new("`--profile` takes programs without control flow, of known extents");
            return Err(Failure::Refused(d.into()));
        }
        let latencies = measure(args.repeat, || Ok(exe.run(tensors).map(drop)?))?;
        return report(&args, latencies, compile, Some(&built));
    };
    let refuse = |e: crate::runtime::RunError| Failure::Refused(Diagnostic::new(e.to_string()).into());
    let mut outputs: Vec<Tensor> = exe.run(tensors).map_err(refuse)?;
    let latencies = measure(args.repeat, || exe.run_into(tensors, &mut outputs).map_err(refuse))?;
    if args.profile {
        let times = exe.profile(tensors).map_err(refuse)?;
        let mut rows: Vec<(f64, String)> = times
            .iter()
            .zip(exe.program().steps())
            .map(|(t, step)| (t.as_secs_f64(), exe.program().step_name(step).to_owned()))
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows.iter().for_each(|(t, name)| eprintln!("{:9.3} us  {name}", 1e6 * t));
    }
    report(&args, latencies, compile, Some(&built))
}

/// What each file of inputs holds; without any, one that is made up.
fn each<T>(files: &[PathBuf], read: impl Fn(Option<&Path>) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
    match files {
        [] => Ok(vec![read(None)?]),
        files => files.iter().map(|f| read(Some(f))).collect(),
    }
}

/// Several inputs of one program, one after another, and what the first run of each takes.
fn several(
    args: &Args,
    compile: f64,
    built: Option<&Built>,
    once: impl Fn(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut runs = Vec::new();
    for (i, file) in args.inputs.iter().enumerate() {
        let start = Instant::now();
        once(i)?;
        let first = start.elapsed().as_secs_f64();
        let latencies = measure(args.repeat, || once(i))?;
        let mut sorted = latencies.clone();
        sorted.sort_by(f64::total_cmp);
        let (median, least) = (sorted[sorted.len() / 2], sorted[0]);
        if !args.json {
            let line = format!(
                "{}: first {:.3} ms, median {:.3} ms, min {:.3} ms over {} runs\n",
                file.display(),
                1e3 * first,
                1e3 * median,
                1e3 * least,
                latencies.len()
            );
            super::print(&line)?;
        }
        runs.push(serde_json::json!({
            "inputs": file, "first_s": first, "latencies_s": latencies, "median_s": median, "min_s": least,
        }));
    }
    let sized = built.and_then(|b| match &b.executable {
        Runnable::Machine(m) => Some(m.sized_calls()),
        Runnable::Plain(_) => None,
    });
    if args.json {
        let json = serde_json::json!({
            "runs": runs, "compile_s": compile, "general_calls": sized.map(|s| s.0),
            "special_calls": sized.map(|s| s.1), "special_kernels": sized.map(|s| s.2),
            "peak_memory_bytes": peak_memory(),
        });
        return super::print(&format!("{json}\n"));
    }
    let sized = sized.map(|(general, special, kernels)| {
        format!(
            "; {general} calls of kernels that serve all extents, {special} of kernels that serve one, \
             {kernels} kernels compiled for extents that were met"
        )
    });
    super::print(&format!("compiled in {compile:.2} s{}\n", sized.unwrap_or_default()))
}

fn measure(repeat: NonZeroUsize, mut once: impl FnMut() -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
    for _ in 0..WARM_UP {
        once()?;
    }
    (0..repeat.get())
        .map(|_| {
            let start = Instant::now();
            once()?;
            Ok(start.elapsed().as_secs_f64())
        })
        .collect()
}

fn report(args: &Args, latencies: Vec<f64>, compile: f64, built: Option<&Built>) -> Result<(), Failure> {
    let mut sorted = latencies.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |q: usize| sorted[(sorted.len() * q / 100).min(sorted.len() - 1)];
    let (median, min, p90) = (at(50), sorted[0], at(90));
    if args.json {
        let program = built.and_then(|b| b.executable.as_plain());
        let weights = |e: &Executable| e.program().constants().iter().map(|t| t.bytes().len()).sum::<usize>();
        let json = serde_json::json!({
            "latencies_s": latencies, "median_s": median, "min_s": min, "p90_s": p90, "compile_s": compile,
            "cached": built.is_some_and(|b| b.cached),
            "arena_bytes": program.map(|p| p.plan().arena),
            "arena_least_bytes": program.map(|p| p.plan().least),
            "weights_bytes": program.map(weights),
            "peak_memory_bytes": peak_memory(),
        });
        return super::print(&format!("{json}\n"));
    }
    super::print(&format!(
        "median {:.3} ms, min {:.3} ms, p90 {:.3} ms over {} runs (compiled in {:.2} s)\n",
        1e3 * median,
        1e3 * min,
        1e3 * p90,
        latencies.len(),
        compile
    ))
}

