//! Arguments that several subcommands share.

use std::{num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;

use super::{Failure, config::ConfigArgs};
use crate::{
    cost,
    diag::{Diagnostic, Refused, nearest, read_text},
    driver::{
        Built, Cache, ExtentBound, ExtentRange, Native, Options, Said, Stopwatch, machine, tuned_in, tuned_of_user,
    },
    extract,
    frontend::{self, LoadOptions, Model},
    infer::{TypedModule, infer_types},
    ir::{Module, Name},
    output,
    pass::{
        BuildConfig, Placement, Sequential, Settings, bind_params, quantized_in_floats, sequence_with, unbound_weights,
    },
    relay::npz,
    rules,
    runtime::{MappedFile, Pool},
    saturate::Grade,
    target::Target,
    tensor::{DType, Tensor},
};

/// A program and its weights.
#[derive(Args, Debug)]
pub(super) struct ModelArgs {
    /// Relay text (with or without its metadata section) or Relay JSON, or a model of another kind that there is a front end for
    pub(super) file: PathBuf,
    /// Parameters that become constants: Relay's binary format, or an npz archive
    #[arg(long, value_name = "FILE")]
    pub(super) params: Option<PathBuf>,
    /// The extent of a symbolic dimension of the model, as "batch=4"; may be given several times
    #[arg(long, value_name = "NAME=N")]
    dim: Vec<String>,
    /// The shape of an input, as "x=1x3x224x224", where `?` is an extent that stays unknown; may be given several times
    #[arg(long, value_name = "INPUT=SHAPE")]
    shape: Vec<String>,
}

/// A number of threads, as an argument.
pub(super) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(n) if n.get() <= Pool::MOST_THREADS => Ok(n),
        _ => Err(format!("should be a number from 1 to {}", Pool::MOST_THREADS)),
    }
}

/// What is kept on disk from one run to the next.
#[derive(Args, Debug)]
pub(super) struct CacheArgs {
    /// Where kernels and built programs are kept; `resat` in the user's folder for caches where not given
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    cache_dir: Option<PathBuf>,
    /// Compile without looking at what is kept, and keep nothing
    #[arg(long)]
    no_cache: bool,
}

impl CacheArgs {
    /// The cache, unless none is wanted or there is no place for one.
    pub(super) fn open(&self) -> Option<Arc<Cache>> {
        match &self.cache_dir {
            _ if self.no_cache => None,
            Some(folder) => Some(Arc::new(Cache::new(folder))),
            None => Cache::of_user().map(Arc::new),
        }
    }
}

/// How the program is transformed.
#[derive(Args, Debug)]
pub(super) struct PassArgs {
    /// Passes by name, as "FoldConstant,Saturate(algebra,qnn)"; `default` and `none` are names, too
    #[arg(long, value_name = "LIST")]
    pub(super) passes: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Rulesets of your own, used beside the shipped ones; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(super) rules: Vec<PathBuf>,
    /// Rules that are not used, as "algebra/some-rule"; may be given several times
    #[arg(long, value_name = "RULE")]
    pub(super) without: Vec<String>,
    /// An external compiler that parts of the program may be given to, by name, or a shared library that is one, by its path; may
    /// be given several times, the preferred ones first
    #[arg(long, value_name = "NAME")]
    pub(super) compiler: Vec<String>,
    /// How parts are given to them: cost (the cheapest program in all; with `--cost measured`, kernels, regions and whole
    /// programs are timed), greedy (each operator to the first that takes it), all:NAME
    #[arg(long, value_name = "HOW", default_value = "cost", requires = "compiler")]
    pub(super) placement: String,
    // Models and extractors are listed by their tables.
    #[arg(long, value_name = "MODEL", default_value = "roofline",
        help = format!("What is cheap: {}, or a sum as \"0.9*roofline+1e-7*nodes\"", listed(cost::names())))]
    pub(super) cost: String,
    #[arg(long, value_name = "NAME", alias = "extract",
        help = format!("Who chooses the program: {}; dag by default, search at -O4", listed(extract::names())))]
    pub(super) extractor: Option<String>,
    /// Seconds that the extractor may take, per region; `search` and `ilp` give the best that they have by then
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    pub(super) extract_time: f64,
    /// The machine, as "llvm,-mcpu=native"
    #[arg(long, value_name = "TARGET", default_value = "llvm,-mcpu=native")]
    pub(super) target: String,
    /// Use nothing that was measured on this machine, neither of its processor nor in which register tiles reductions run fastest, and
    /// measure nothing: for builds that are the same on every machine of the same kind
    #[arg(long)]
    pub(super) no_tune: bool,
    /// The loosest rules that may be used: exact, real (the same infinities and NaN), finite (where all is finite) or approx
    #[arg(long, value_name = "GRADE", default_value = "real")]
    pub(super) grade: String,
    /// Rules may be used that hold only where all values are finite: short for `--grade finite`
    #[arg(long, conflicts_with = "grade")]
    pub(super) fast_math: bool,
    /// Approximate rules may be used as far as the error that they are predicted to bring in adds up to at most this share of the
    /// result's largest magnitude
    #[arg(long, value_name = "E")]
    pub(super) max_error: Option<f64>,
}

/// What is done about regions of external compilers.
#[derive(Args, Debug)]
pub(super) struct RegionArgs {
    /// Where an external compiler fails on its region, compile that like everything else, with a warning
    #[arg(long)]
    fallback: bool,
    /// Run the code of each region once, in a process of its own, and compare with the interpreter before it is used
    #[arg(long)]
    check_regions: bool,
}

impl RegionArgs {
    pub(super) fn apply_to(&self, options: &mut Options) {
        (options.fallback, options.check_regions) = (self.fallback, self.check_regions);
    }
}

/// What a program keeps from one run to the next.
#[derive(Args, Debug)]
pub(super) struct StateArgs {
    /// An input, and the output that is this input at the next run; again for more of them. It begins as zeros, with extents of 0 where
    /// they are unknown, unless the inputs give it, and is updated where it lies where the program allows it. A library has it in memory of
    /// the caller's
    #[arg(long, value_name = "INPUT=OUTPUT", value_parser = input_and_output)]
    pub state: Vec<(String, String)>,
}

fn input_and_output(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((input, output)) if !input.is_empty() && !output.is_empty() => Ok((input.into(), output.into())),
        _ => Err("should be the name of an input, `=`, and the name of an output".into()),
    }
}

/// What is said of extents that are unknown.
#[derive(Args, Debug)]
pub(super) struct ExtentArgs {
    /// Extents to reckon with where they are unknown, as "batch=1,length=128" by names of dimensions or as "x=1x3x224x224" by input, where `?`
    /// is an axis of which nothing is said. Prices take them, and decisions are made for that size; else both take a guess, or the middle
    /// of what `--max` allows
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = said::<usize>)]
    hint: Vec<Said>,
    /// How great unknown extents may be, said like hints and of all of them: "height=512" for 1 to 512, "height=512/32" for multiples of 32 only,
    /// "height=128..512/32" for those from 128 on, "?=64" for all that are not named. Memory is planned for the greatest and taken beforehand;
    /// other inputs are refused. A library serves these sizes; of a program whose tensors grow while it runs, "?=64" says how far
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = said::<ExtentRange>)]
    max: Vec<ExtentBound>,
}

fn said<T: std::str::FromStr>(text: &str) -> Result<(String, Vec<Option<T>>), String>
where
    T::Err: std::fmt::Display,
{
    let form = || "should be of the form batch=8 or x=8x3x224x224".to_owned();
    // Names of inputs may hold an equals sign: the last one counts.
    let (name, extents) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(form)?;
    let extent =
        |d: &str| if d == "?" { Ok(None) } else { d.parse().map(Some).map_err(|e| format!("{}: {e}", form())) };
    Ok((name.to_owned(), extents.split('x').map(extent).collect::<Result<_, String>>()?))
}

impl ExtentArgs {
    /// Whether something is said.
    pub(super) fn asked(&self) -> bool {
        !self.hint.is_empty() || !self.max.is_empty()
    }

    /// Says it to a build.
    pub(super) fn fill(&self, options: &mut Options) {
        (options.hints, options.bounds) = (self.hint.clone(), self.max.clone());
    }

    /// Refuses to say anything of what is built already, or runs without being built.
    pub(super) fn refuse(&self, why: &str) -> Result<(), Refused> {
        match self.asked() {
            true => Err(Diagnostic::new(format!("`--hint` and `--max` {why}")).into()),
            false => Ok(()),
        }
    }
}

/// How reductions are run where the machine was measured.
#[derive(Args, Debug)]
pub(super) struct TuneArgs {
    /// Measure on this machine in which register tiles the program's convolutions, products and other reductions run fastest, for at
    /// most so many seconds (60 where none are given), and remember it: later builds use what is known
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60",
        conflicts_with = "no_tune"
    )]
    tune: Option<f64>,
}

impl TuneArgs {
    /// Whether something is to be measured.
    pub(super) fn asked(&self) -> bool {
        self.tune.is_some()
    }

    /// Has a build use what was measured, unless passes are to do without, and measure what was not where that is asked for.
    pub(super) fn fill(&self, passes: &PassArgs, options: &mut Options) -> Result<(), Refused> {
        if passes.no_tune {
            return Ok(());
        }
        options.tuned = Some(Arc::new(tuned_in(&options.settings.target, tuned_of_user())));
        let budget = self.tune.map(|s| {
            Duration::try_from_secs_f64(s).map_err(|e| Refused::from(Diagnostic::new(format!("--tune={s}: {e}"))))
        });
        options.tune = budget.transpose()?;
        Ok(())
    }
}

/// What came of tuning, on stderr, where it was asked for.
pub(super) fn tell_tuning(built: &Built) {
    if let Some(tuning) = built.record().and_then(|r| r.tuned.as_ref()) {
        eprintln!("tuned: {tuning}");
    }
}

impl ModelArgs {
    /// A model file by itself, with what is said of its sizes.
    pub(super) fn of_file(file: PathBuf, dim: Vec<String>, shape: Vec<String>) -> ModelArgs {
        ModelArgs { file, params: None, dim, shape }
    }

    /// The program, and what its parameters are: those of the parameter file, and those of the model itself that the file does not
    /// give.
    pub(super) fn read(&self) -> Result<Model, Refused> {
        self.read_for(None)
    }

    /// The same, for inputs that are known already: their names and numbers of axes.
    fn read_for(&self, inputs: Option<Vec<(String, usize)>>) -> Result<Model, Refused> {
        let given = self.params.as_ref().map_or(Ok(Vec::new()), |p| crate::driver::load_params(p))?;
        let mut model = frontend::load(&self.file, &LoadOptions { given: inputs, ..self.options()? })?;
        model.params.retain(|(name, _)| !given.iter().any(|(g, _)| g == name));
        model.params.extend(given);
        Ok(model)
    }

    /// The program with its parameters bound.
    pub(super) fn bound(&self) -> Result<Module, Refused> {
        let Model { module, params } = self.read()?;
        bind_params(&module, &params)
    }

    /// The same with its types, of a program that is about to run. Of inputs that are known already these are the names and numbers of
    /// axes.
    pub(super) fn bound_to_run(
        &self,
        inputs: Option<Vec<(String, usize)>>,
        passes: &PassArgs,
    ) -> Result<TypedModule, Refused> {
        let Model { module, params } = self.read_for(inputs)?;
        let typed = infer_types(bind_params(&module, &params)?)?;
        self.note_weights(&typed, !params.is_empty());
        passes.note_quantized(&typed);
        Ok(typed)
    }

    /// Says on stderr where parameters seem to be forgotten: weights that would be inputs. Whether the model brought parameters of its own
    /// is for the caller to say.
    pub(super) fn note_weights(&self, typed: &TypedModule, has_params: bool) {
        let weights = unbound_weights(typed);
        let Some(first) = weights.first().filter(|_| !has_params && self.params.is_none()) else { return };
        let inputs = typed.function("main").map_or(0, |f| f.params.len());
        eprintln!(
            "note: {} of the program's {inputs} inputs are used as weights, `{first}` among them: `--params FILE` makes constants of them",
            weights.len()
        );
    }

    /// Whether the file is one of Relay's own. One that can't be read is refused by whoever reads it next.
    pub(super) fn is_relay(&self) -> bool {
        MappedFile::open(&self.file).is_ok_and(|file| frontend::is_relay(file.as_ref()))
    }

    /// What the user says of sizes.
    pub(super) fn sizes(&self) -> (&[String], &[String]) {
        (&self.dim, &self.shape)
    }

    fn options(&self) -> Result<LoadOptions, Refused> {
        let refuse = |what: &str, text: &str, form: &str| {
            Refused::from(Diagnostic::new(format!("{what} {text}: it should be of the form {form}")))
        };
        let extent = |text: &str| text.parse().ok().filter(|n: &i64| *n >= 0);
        let dim = |text: &String| {
            let (name, n) = text.split_once('=')?;
            Some((name.to_owned(), extent(n)?))
        };
        // Names of inputs may hold an equals sign: the last one counts.
        let shape = |text: &String| {
            let (name, shape) = text.rsplit_once('=')?;
            let extents = shape.split('x').filter(|s| !s.is_empty());
            let extents = extents.map(|d| if d == "?" { Some(None) } else { Some(Some(extent(d)?)) });
            Some((name.to_owned(), extents.collect::<Option<_>>()?))
        };
        let dims = self.dim.iter().map(|t| dim(t).ok_or_else(|| refuse("--dim", t, "batch=4")));
        let shapes = self.shape.iter().map(|t| shape(t).ok_or_else(|| refuse("--shape", t, "x=1x3x224x224")));
        Ok(LoadOptions {
            dims: dims.collect::<Result<_, _>>()?,
            shapes: shapes.collect::<Result<_, _>>()?,
            given: None,
        })
    }
}

/// The thing of that name, or a refusal that names those there are.
fn by_name<T>(what: &str, name: &str, found: Option<T>, names: &[&str]) -> Result<T, Refused> {
    found.ok_or_else(|| {
        let mut d = Diagnostic::new(format!("there is no {what} `{name}`; there are {}", names.join(", ")));
        if let Some(near) = nearest(name, names.iter().copied()) {
            d = d.help(format!("did you mean `{near}`?"));
        }
        d.into()
    })
}

impl PassArgs {
    /// The settings of a command that makes code: where no row of the table is this processor's own, it is measured first, once.
    pub(super) fn settings_for_code(&self) -> Result<Settings, Refused> {
        if !self.no_tune
            && Target::parse(&self.target)?.is_host()
            && let Some(told) = machine::measure_first()
        {
            eprintln!("{told}");
        }
        self.settings()
    }

    pub(super) fn settings(&self) -> Result<Settings, Refused> {
        let mut target = machine::target(&self.target)?;
        if self.no_tune {
            target.timing = Target::parse(&self.target)?.timing;
        }
        let mut settings = Settings::new(target);
        let watch: Arc<dyn cost::Timer> =
            Arc::new(Stopwatch::new(settings.target.clone(), Stopwatch::folder_of_user()));
        if !self.compiler.is_empty() {
            settings.placement = Placement::of(&self.compiler)?;
            settings.placement.strategy =
                self.placement.parse().map_err(|why: String| Refused::from(Diagnostic::new(why)))?;
        }
        // Where regions are weighed, what is about to be chosen is timed, and not everything that could be.
        if settings.placement.is_by_cost() && self.cost == "measured" {
            settings.placement.machine = Some(watch.clone());
        } else {
            settings.cost = cost::parse(&self.cost, Some(&watch))?;
        }
        let time = Duration::try_from_secs_f64(self.extract_time)
            .map_err(|e| Refused::from(Diagnostic::new(format!("--extract-time {}: {e}", self.extract_time))))?;
        let of_level = self.config.config().extractor();
        settings.extractor = Arc::from(extract::by_name(self.extractor.as_deref().unwrap_or(of_level), time)?);
        settings.grade = by_name("grade", &self.grade, self.grade.parse().ok(), &Grade::ALL.map(Grade::name))?;
        if self.fast_math {
            settings.grade = Grade::Finite;
        }
        if let Some(error) = self.max_error {
            if error.is_nan() || error < 0.0 {
                let d = Diagnostic::new(format!("--max-error is {error}, but should be a share such as 0.01"));
                return Err(d.into());
            }
            settings.limits.error = error;
            settings.grade = Grade::Approx;
        }
        settings.backend = Arc::new(Native { target: settings.target.clone() });
        let mut complaints = Vec::new();
        for path in &self.rules {
            match read_text(path).and_then(|text| rules::load(&path.display().to_string(), &text)) {
                Ok(sets) => settings.rulesets.extend(sets),
                Err(Refused(d)) => complaints.extend(d),
            }
        }
        if !self.without.is_empty() {
            let shipped =
                rules::shipped_definitions().iter().flat_map(|set| set.rules.iter().map(|r| r.name().to_string()));
            let mine = settings.rulesets.iter().flat_map(|set| &set.rules).map(|r| format!("{}/{}", r.ruleset, r.name));
            let known: Vec<String> = shipped.chain(mine).collect();
            for name in &self.without {
                if known.contains(name) {
                    settings.without.push(name.as_str().into());
                    continue;
                }
                let d = Diagnostic::new(format!("there is no rule `{name}`"));
                complaints.push(match nearest(name, known.iter().map(String::as_str)) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d.help("`resat rules list` lists them"),
                });
            }
        }
        if complaints.is_empty() { Ok(settings) } else { Err(Refused(complaints)) }
    }

    /// The passes that were asked for, or the default pipeline.
    pub(super) fn sequence(&self, settings: &Settings) -> Result<Sequential, Refused> {
        let config = self.config.config();
        super::warn(&config.without_effect(settings)?);
        sequence_with(self.passes.as_deref().unwrap_or("default"), settings, &config)
    }

    /// What shapes the default pipeline.
    pub(super) fn config(&self) -> BuildConfig {
        self.config.config()
    }

    /// Says on stderr where a quantized model computes in floats, which is what it says and not what it is for.
    pub(super) fn note_quantized(&self, typed: &TypedModule) {
        let count = quantized_in_floats(typed);
        if count > 0 && !self.asked() {
            eprintln!(
                "note: convolutions and products of quantized operands compute in floats, as the model says ({count} do): `--passes \
                 FakeQuantizationToInteger,default` makes integers of them, within steps of their scales"
            );
        }
    }

    /// Whether passes were asked for, be it by changing the default pipeline.
    pub(super) fn asked(&self) -> bool {
        self.passes.is_some() || self.config.config() != BuildConfig::default()
    }
}

/// The inputs of a program from an npz archive: by parameter name or position.
pub(super) fn inputs(path: &std::path::Path) -> Result<Vec<(Name, Tensor)>, Failure> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Refused::from(Diagnostic::new(format!("{name}: {e}"))))?;
    Ok(npz::read(&name, &bytes)?)
}

/// Puts named or numbered tensors in the order of a program's inputs, of which names and element types are given.
pub(super) fn in_order(wanted: &[(String, DType)], given: Vec<(Name, Tensor)>) -> Result<Vec<Tensor>, Refused> {
    let mut slots: Vec<Option<Tensor>> = vec![None; wanted.len()];
    let mut complaints = Vec::new();
    for (name, tensor) in given {
        let at = wanted
            .iter()
            .position(|w| w.0 == name.as_str())
            .or_else(|| name.parse().ok().filter(|&i: &usize| i < wanted.len()));
        match at {
            Some(i) if slots[i].is_none() => slots[i] = Some(npz::as_element(tensor, wanted[i].1)),
            Some(i) => complaints.push(Diagnostic::new(format!("input `{}` is given twice", wanted[i].0))),
            None => {
                let known: Vec<&str> = wanted.iter().map(|w| w.0.as_str()).collect();
                let d = Diagnostic::new(format!("the program has no input `{name}`; it has {}", known.join(", ")));
                complaints.push(match nearest(&name, known) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                });
            }
        }
    }
    for (slot, (name, _)) in slots.iter().zip(wanted) {
        if slot.is_none() {
            complaints.push(Diagnostic::new(format!("input `{name}` is not given")));
        }
    }
    if complaints.is_empty() { Ok(slots.into_iter().flatten().collect()) } else { Err(Refused(complaints)) }
}

/// Names, for a help text.
pub(super) fn listed(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Writes a file whole: under another name first, so that nothing half-written is left under this one. Links are followed;
/// what is there and is no regular file, such as a pipe, is written to. `-` is standard output.
pub(super) fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return super::print_bytes(bytes);
    }
    output::replace(path, bytes).map_err(|e| Failure::Other(format!("can't write {}: {e}", path.display())))
}
