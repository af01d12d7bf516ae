//! `resat run`.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::ValueEnum;

use super::{
    Failure,
    args::{
        CacheArgs, ExtentArgs, ModelArgs, PassArgs, RegionArgs, StateArgs, TuneArgs, in_order, inputs, tell_tuning, write_file,
    },
    dump::{Dump, DumpArgs},
    kept::{Kept, inputs_of},
    progress::Progress,
};
use crate::{
    diag::{Diagnostic, Refused},
    driver::{self, Allowed, Options, Origin, StatePair, Stateful, difference_within, shortest_float},
    infer::{TypedModule, infer_types},
    interp,
    ir::{Module, Name, Type, VarId, dim_names, disagreeing, input_names, output_names, text_names},
    pass::{Pass, PassContext, Same, Sequential, Settings, blame},
    relay::npz,
    saturate::{Grade, Report},
    tensor::{DType, Tensor, Value},
};

/// Arguments of `resat run`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  resat run model.relay --params model.params --inputs in.npz --outputs out.npz --backend llvm"
)]
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
    dump: DumpArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    extents: ExtentArgs,
    /// An npz archive; keys are parameter names or positions. Random inputs where not given. With `--state` again for further runs
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Where the results go: an npz archive with keys "0", "1", …, tuples flattened depth first; of several runs those of the last, the
    /// state among them
    #[arg(long, value_name = "FILE")]
    outputs: Option<PathBuf>,
    /// What runs the program
    #[arg(long, value_enum, default_value = "llvm")]
    backend: Backend,
    /// Threads; all cores where not given
    #[arg(long, value_name = "N", value_parser = super::args::threads)]
    threads: Option<NonZeroUsize>,
    /// Compare with the program as it was before the passes, run by the interpreter; on a difference, name the rule at fault
    #[arg(long)]
    validate: bool,
    /// Say on stderr how long it took from the program's text to its first result
    #[arg(long)]
    time: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Native code
    Llvm,
    /// The reference interpreter
    Interp,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if args.model.file.extension().is_some_and(|e| e == "so") {
        args.extents.refuse("go with programs that are to be built")?;
        return run_library(&args);
    }
    if args.backend == Backend::Interp {
        args.extents.refuse("go with native code")?;
    }
    if !args.state.state.is_empty() {
        return run_with_state(&args);
    }
    one_archive(&args)?;
    let start = Instant::now();
    let settings = args.passes.settings_for_code()?;
    let native = args.backend == Backend::Llvm && !args.validate;
    // Some models say of their inputs less than the inputs themselves do.
    let given = match args.inputs.first() {
        Some(path) => Some(names_and_ranks(path)?),
        None => None,
    };
    // Of Relay they change nothing: its types say all there is.
    let given = given.filter(|_| !args.model.is_relay());
    let name = given.as_ref().map_or_else(|| "main".to_owned(), |given| format!("main {given:?}"));
    let kept = native.then(|| {
        Kept::new(&args.cache, &args.model, &args.passes, &settings, &name).rebuild(args.tune.asked() || args.dump.asked())
    });
    let kept = kept.map(|k| k.for_builds(args.extents.asked()));
    if let Some(found) = kept.as_ref().and_then(|k| k.find(&settings, args.threads)) {
        let program = found.executable.as_plain().expect("only plain programs are kept");
        let inputs = inputs_of(program, &found.parameters, args.inputs.first().map(PathBuf::as_path))?;
        let outputs = found.executable.run(&inputs)?;
        tell_time(&args, start, ", found in the cache");
        let names: Vec<String> = program.program().outputs().map(|p| p.name.to_string()).collect();
        return write_outputs(args.outputs.as_deref(), &names, &outputs, &[]);
    }
    let passes = args.passes.sequence(&settings)?;
    let typed = args.model.bound_to_run(given, &args.passes)?;
    let own_names = output_names(&typed);
    let texts = text_names(&typed);
    // What is kept does not say which outputs are strings.
    let kept = kept.map(|k| if texts.is_empty() { k } else { k.nothing() });
    let inputs = gather(&typed, args.inputs.first().map(PathBuf::as_path))?;
    let progress = Progress::new();
    let dump = args.dump.start()?;
    let native = |module: Module, passes: Sequential| {
        let mut options = Options::new(settings.clone());
        options.release_memory = true;
        options.passes = Some(Box::new(passes));
        args.regions.apply_to(&mut options);
        args.tune.fill(&args.passes, &mut options)?;
        options.on_phase = Some(Box::new(progress.teller()));
        options.threads = args.threads.map_or(options.threads, NonZeroUsize::get);
        args.extents.fill(&mut options);
        dump.iter().for_each(|d| d.fill(&mut options));
        kept.iter().for_each(|k| k.fill(&mut options));
        let built = driver::build(module, &[], options).map_err(super::build_failure)?;
        kept.iter().for_each(Kept::warn);
        super::warn(built.warnings());
        tell_tuning(&built);
        let flat: Vec<Tensor> = inputs.iter().flat_map(Value::flatten).collect();
        let outputs = built.executable.run(&flat)?;
        super::warn(&built.executable.warnings());
        let allowed = match built.origin {
            Origin::Here(record) if args.validate => allowed(record.module, &record.reports, args.passes.max_error)?,
            _ => Allowed::default(),
        };
        Ok::<_, Failure>((outputs, allowed))
    };
    if kept.is_some() {
        // The program as it was read is let go: its weights take memory.
        // Not as inferred: what the program itself says of its parameters binds whoever runs it.
        let module = typed.module().clone();
        drop(typed);
        let (outputs, _) = native(module, passes)?;
        dump.map_or(Ok(()), Dump::finish)?;
        tell_time(&args, start, "");
        return write_outputs(args.outputs.as_deref(), &names_of_outputs(own_names, outputs.len()), &outputs, &texts);
    }
    let (outputs, allowed) = match args.backend {
        Backend::Llvm => native(typed.module().clone(), passes)?,
        // The interpreter runs the program as it was written, unless passes are asked for.
        Backend::Interp if !args.passes.asked() => {
            (interp::run_flat(typed.module(), "main", inputs.clone())?, Allowed::default())
        }
        Backend::Interp => {
            let mut cx = PassContext { on_start: Some(Box::new(progress.teller())), ..PassContext::default() };
            if let Some((before, after)) = dump.as_ref().map(Dump::hooks) {
                (cx.before_pass, cx.after_pass) = (Some(before), Some(after));
            }
            let module = passes.run(typed.clone().into_module(), &mut cx)?;
            super::warn(&cx.warnings);
            let outputs = interp::run_flat(&module, "main", inputs.clone())?;
            (outputs, if args.validate { allowed(module, &cx.reports, args.passes.max_error)? } else { Allowed::default() })
        }
    };
    drop(progress);
    dump.map_or(Ok(()), Dump::finish)?;
    if args.validate {
        let want = interp::run_flat(typed.module(), "main", inputs.clone())?;
        match difference_within(&want, &outputs, &allowed) {
            Ok(worst) => {
                let error = match allowed.error {
                    0.0 => String::new(),
                    error => format!(", of {error:.1e} that what was asked for may bring in"),
                };
                eprintln!(
                    "validated: largest difference {worst:.1e} of the largest value (rules up to grade {}){error}",
                    settings.grade
                );
            }
            Err(what) => {
                let module = typed.clone().into_module();
                let culprit = culprit(&args.passes, settings, &module, &inputs, allowed)?;
                return Err(Failure::Other(format!("validation: {what}\n{culprit}")));
            }
        }
    }
    write_outputs(args.outputs.as_deref(), &names_of_outputs(own_names, outputs.len()), &outputs, &texts)
}

/// The names of what an archive holds, and numbers of axes.
pub(super) fn names_and_ranks(path: &Path) -> Result<Vec<(String, usize)>, Failure> {
    Ok(inputs(path)?.iter().map(|(n, t)| (n.to_string(), t.shape().len())).collect())
}

fn tell_time(args: &Args, start: Instant, how: &str) {
    if args.time {
        eprintln!("first result after {:.3} s{how}", start.elapsed().as_secs_f64());
    }
}

/// The values of main's parameters, in order, from an archive or at random.
pub(super) fn gather(typed: &TypedModule, path: Option<&Path>) -> Result<Vec<Value>, Failure> {
    let Some(path) = path else { return Ok(interp::random_inputs(typed, SEED)?) };
    let m: &Module = typed.module();
    let wanted = names_of_inputs(typed)?;
    let given = by_own_names(m, &typed.entry("main")?.params, inputs(path)?);
    let tensors = in_order(&wanted, given)?;
    let named = wanted.iter().zip(&tensors).map(|((name, _), t)| (name.as_str(), t.shape()));
    if let Some(message) = disagreeing(&dim_names(m), named) {
        return Err(Refused::from(Diagnostic::new(message)).into());
    }
    let mut tensors = tensors.into_iter();
    Ok(typed.entry("main")?.params.iter().map(|&p| take_value(typed.var_ty(p), &mut tensors)).collect())
}

/// The tensors that a program takes, tuples flattened depth first: names and element types.
fn names_of_inputs(typed: &TypedModule) -> Result<Vec<(String, DType)>, Refused> {
    let mut wanted = Vec::new();
    for &p in &typed.entry("main")?.params {
        name_inputs(typed.module().var(p).name.to_string(), typed.var_ty(p), &mut wanted)?;
    }
    Ok(wanted)
}

/// Tensors that are given by the model's own names of inputs, by the names of the parameters.
fn by_own_names(m: &Module, params: &[VarId], given: Vec<(Name, Tensor)>) -> Vec<(Name, Tensor)> {
    let own = input_names(m).unwrap_or_default();
    let named = |name: &Name| params.iter().any(|&p| m.var(p).name == *name);
    let rename = |(name, t): (Name, Tensor)| match own.iter().position(|o| o.as_str() == name.as_str()) {
        Some(i) if !named(&name) && i < params.len() => (m.var(params[i]).name.clone(), t),
        _ => (name, t),
    };
    given.into_iter().map(rename).collect()
}

/// The tensors that a parameter is made of, depth first: a tuple's fields are called `x.0`, `x.1`, ….
fn name_inputs(name: String, ty: &Type, out: &mut Vec<(String, DType)>) -> Result<(), Refused> {
    match ty {
        Type::Tensor(t) => out.push((name, t.dtype)),
        Type::Tuple(fields) => {
            for (i, f) in fields.iter().enumerate() {
                name_inputs(format!("{name}.{i}"), f, out)?;
            }
        }
        _ => {
            let message = format!("parameter `%{name}` is {ty}: an npz archive holds tensors only");
            return Err(Diagnostic::new(message).into());
        }
    }
    Ok(())
}

/// A value of that type, made of the next tensors.
fn take_value(ty: &Type, tensors: &mut impl Iterator<Item = Tensor>) -> Value {
    match ty {
        Type::Tuple(fields) => Value::Tuple(fields.iter().map(|f| take_value(f, tensors)).collect()),
        _ => Value::Tensor(tensors.next().expect("as many tensors as the types have")),
    }
}

/// Seed of random inputs.
pub(super) const SEED: u64 = 0;

/// A program may be further off than its passes predict by this factor: they add up what each approximation brings in, as if no operator
/// magnified it.
const OF_PREDICTED: f64 = 4.0;

/// How far the results of a program may be from those of the program as it was written: by the error that was asked for, or where none was
/// said by what its passes predict, and of the element types that they gave it.
fn allowed(module: Module, reports: &[Report], max_error: Option<f64>) -> Result<Allowed, Failure> {
    let typed = infer_types(module)?;
    let dtypes = typed.result_type("main").flatten().map(|all| all.iter().map(|t| t.dtype).collect());
    let approximate = reports.iter().any(|r| r.grade == Grade::Approx && r.regions_changed > 0);
    let predicted: f64 = reports.iter().map(|r| r.error).sum();
    let error = max_error.unwrap_or(OF_PREDICTED * predicted);
    // Rounding to integers in another place makes a step of difference.
    Ok(Allowed { error, steps: approximate.into(), dtypes, computed_in: shortest_float(&typed) })
}

/// What is at fault for a difference: the rule, the pass, or the back end.
fn culprit(
    args: &PassArgs,
    mut settings: Settings,
    module: &Module,
    inputs: &[Value],
    allowed: Allowed,
) -> Result<String, Failure> {
    // Runs that are compared must not differ by how far they came in time.
    settings.limits.time = Duration::MAX;
    let passes = args.sequence(&settings)?;
    // Between passes results may have their old types or the new ones.
    let old = Allowed { dtypes: None, ..allowed.clone() };
    let same: Same = Arc::new(move |want, got| {
        difference_within(want, got, &old).is_ok() || difference_within(want, got, &allowed).is_ok()
    });
    Ok(match blame(&passes, module, inputs, &same)? {
        Some(blame) => blame.to_string(),
        None => "the passes are right by the interpreter: the back end is at fault".to_owned(),
    })
}

/// The names of outputs: the model's own, where it has a name for each, else their numbers.
fn names_of_outputs(own: Option<Vec<String>>, count: usize) -> Vec<String> {
    own.filter(|names| names.len() == count).unwrap_or_else(|| (0..count).map(|i| i.to_string()).collect())
}

/// Writes or prints outputs; those named in `texts` are strings.
fn write_outputs(path: Option<&Path>, names: &[String], outputs: &[Tensor], texts: &[String]) -> Result<(), Failure> {
    let (names, outputs) = taken_apart(names, outputs);
    let (names, outputs) = (names.as_slice(), outputs.as_slice());
    match path {
        Some(path) => {
            let bytes = npz::write_with_texts(names.iter().map(String::as_str).zip(outputs), texts)?;
            write_file(path, &bytes)
        }
        None => {
            let lines: String = outputs.iter().zip(names).map(|(t, name)| format!("{name}: {t:?}\n")).collect();
            super::print(&lines)
        }
    }
}

/// Sequences whose length was found while running (`s#data`, `s#shapes`) as archives have them (`s#0`, `s#1`, …), and values that turned
/// out to be absent left out (`s#there` before them).
fn taken_apart(names: &[String], outputs: &[Tensor]) -> (Vec<String>, Vec<Tensor>) {
    let (mut all, mut tensors) = (Vec::new(), Vec::new());
    let mut left: Option<&str> = None;
    for (k, (name, t)) in names.iter().zip(outputs).enumerate() {
        if let Some(own) = name.strip_suffix("#there") {
            left = Some(own).filter(|_| t.get_i64(0) == 0);
            continue;
        }
        if left.is_some_and(|own| name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))) {
            continue;
        }
        let own = name.strip_suffix("#data");
        let shapes = own.and_then(|own| names.get(k + 1).filter(|n| **n == format!("{own}#shapes")));
        if let (Some(own), Some(_)) = (own, shapes) {
            let (mut begin, shapes) = (0, &outputs[k + 1]);
            let (rows, rank, extents) = (shapes.shape()[0], shapes.shape()[1], shapes.to_i64_vec());
            for i in 0..rows {
                let shape: Vec<usize> = extents[i * rank..][..rank].iter().map(|&d| d as usize).collect();
                let first = begin;
                begin += shape.iter().product::<usize>();
                all.push(format!("{own}#{i}"));
                tensors.push(t.pick(&shape, |at| Some(first + at)));
            }
            if rows == 0 {
                all.push(format!("{own}#"));
                tensors.push(Tensor::zeros(DType::F32, &[0]));
            }
        } else if !name.strip_suffix("#shapes").is_some_and(|own| k > 0 && names[k - 1] == format!("{own}#data")) {
            all.push(name.clone());
            tensors.push(t.clone());
        }
    }
    (all, tensors)
}

fn refused(message: &str) -> Failure {
    Failure::Refused(Diagnostic::new(message).into())
}

/// Refuses several archives.
fn one_archive(args: &Args) -> Result<(), Failure> {
    match args.inputs.len() {
        0 | 1 => Ok(()),
        _ => Err(refused("`--inputs` is taken several times where runs follow each other: with `--state`")),
    }
}

/// Runs that follow each other, one for each archive.
fn run_with_state(args: &Args) -> Result<(), Failure> {
    if args.validate || args.backend == Backend::Interp {
        return Err(refused("`--state` goes with native code, and without `--validate`"));
    }
    let start = Instant::now();
    let settings = args.passes.settings_for_code()?;
    let given = args.inputs.first().filter(|_| !args.model.is_relay()).map(|path| names_and_ranks(path)).transpose()?;
    let passes = args.passes.sequence(&settings)?;
    let name = given.as_ref().map_or_else(|| "main".to_owned(), |given| format!("main {given:?}"));
    let kept = Kept::new(&args.cache, &args.model, &args.passes, &settings, &name)
        .rebuild(args.tune.asked() || args.dump.asked());
    let typed = args.model.bound_to_run(given, &args.passes)?;
    let (own_names, texts) = (output_names(&typed), text_names(&typed));
    let progress = Progress::new();
    let dump = args.dump.start()?;
    let mut options = Options::new(settings);
    options.release_memory = true;
    options.passes = Some(Box::new(passes));
    options.state = args.state.state.clone();
    options.reorder_state = true;
    args.regions.apply_to(&mut options);
    args.tune.fill(&args.passes, &mut options)?;
    options.on_phase = Some(Box::new(progress.teller()));
    options.threads = args.threads.map_or(options.threads, NonZeroUsize::get);
    args.extents.fill(&mut options);
    dump.iter().for_each(|d| d.fill(&mut options));
    kept.fill(&mut options);
    let built = driver::build(typed.module().clone(), &[], options).map_err(super::build_failure)?;
    kept.warn();
    super::warn(built.warnings());
    tell_tuning(&built);
    let mut runs = built.stateful();
    let mut outputs = Vec::new();
    let paths: Vec<Option<&Path>> = match args.inputs.as_slice() {
        [] => vec![None],
        all => all.iter().map(|p| Some(p.as_path())).collect(),
    };
    for (i, path) in paths.into_iter().enumerate() {
        let inputs = beside_state(&typed, path, &built.state, &mut runs)?;
        outputs = runs.run(&inputs)?;
        if i == 0 {
            tell_time(args, start, "");
        }
    }
    // Where they stand among all results.
    let mut by_place: Vec<&StatePair> = built.state.iter().collect();
    by_place.sort_by_key(|p| p.output);
    for pair in by_place {
        outputs.insert(pair.output, runs.get(&pair.name).expect("it is kept").into_owned());
    }
    drop(progress);
    dump.map_or(Ok(()), Dump::finish)?;
    write_outputs(args.outputs.as_deref(), &names_of_outputs(own_names, outputs.len()), &outputs, &texts)
}

/// The inputs that are not state, from an archive or at random. State that an archive gives is that of the next run.
pub(super) fn beside_state(
    typed: &TypedModule,
    path: Option<&Path>,
    pairs: &[StatePair],
    runs: &mut Stateful<'_>,
) -> Result<Vec<Tensor>, Failure> {
    let is_state = |n: usize| pairs.iter().find(|p| p.input == n);
    let Some(path) = path else {
        let all = interp::random_inputs(typed, SEED)?;
        let all = all.iter().flat_map(Value::flatten).enumerate();
        return Ok(all.filter(|(n, _)| is_state(*n).is_none()).map(|(_, t)| t).collect());
    };
    let names = names_of_inputs(typed)?;
    let mut given = by_own_names(typed.module(), &typed.entry("main")?.params, inputs(path)?);
    let mut wanted = Vec::new();
    for (n, (name, dtype)) in names.into_iter().enumerate() {
        let Some(pair) = is_state(n) else {
            wanted.push((name, dtype));
            continue;
        };
        if let Some(at) = given.iter().position(|(own, _)| own.as_str() == name) {
            runs.set(&pair.name, npz::as_element(given.remove(at).1, dtype))?;
        }
    }
    Ok(in_order(&wanted, given)?)
}

fn run_library(args: &Args) -> Result<(), Failure> {
    super::library::refuse(&[
        ("--state", !args.state.state.is_empty()),
        ("--passes", args.passes.asked()),
        ("--backend", args.backend == Backend::Interp),
        ("--validate", args.validate),
        ("--tune", args.tune.asked()),
        ("--dump", args.dump.asked()),
    ])?;
    let library = super::library::open(&args.model, args.threads)?;
    let first = args.inputs.first().map(PathBuf::as_path);
    let Some(mut runs) = library.stateful() else {
        one_archive(args)?;
        let outputs = library.run(&library.inputs(first, None)?)?;
        return write_outputs(args.outputs.as_deref(), &library.output_names(outputs.len()), &outputs, &[]);
    };
    let mut outputs = Vec::new();
    let further = args.inputs.iter().skip(1).map(|p| Some(p.as_path()));
    for path in [first].into_iter().chain(further) {
        let inputs = library.inputs(path, Some(&mut runs))?;
        outputs = runs.run(&inputs).map_err(super::library::refused)?;
    }
    let mut names = library.output_names(outputs.len());
    for (name, state) in library.state(&runs) {
        names.push(name);
        outputs.push(state);
    }
    write_outputs(args.outputs.as_deref(), &names, &outputs, &[])
}
