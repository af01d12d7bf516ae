//! One saturation against every order of the same passes.
//!
//! Each order takes the place of the stage `optimize` in the default pipeline. Orders that begin alike share what they begin with, and
//! modules that are equal by content are one: 120 orders of five passes run few passes more often than they have different results.
//! What comes out is compiled and measured once for each different program, in turns. What an order is refused for is a result, too.

mod canonical;
mod crew;
mod engine;
mod lanes;
mod measure;
mod orders;
mod page;
mod result;
mod state;

use std::{path::PathBuf, sync::Arc, time::Duration};

pub use crew::{Compiled, Crew, Done, Program, Task, Worker};
pub use engine::Found;
pub use lanes::{Member, OwnPass};
pub use page::page;
pub use result::{Exploration, Run};
pub use state::{Anytime, Refusal, Saturated};

use self::{engine::Engine, measure::Runner, state::Record};
use crate::{
    diag::{Diagnostic, Refused},
    infer::infer_types,
    ir::Module,
    loops::{Digest, digest_bytes},
    pass::{BuildConfig, Settings},
    runtime::Pool,
    tensor::Tensor,
};

/// What is explored, and how thoroughly.
pub struct Options {
    /// What passes share.
    pub settings: Settings,
    /// Shapes the default pipeline, whose stages surround the orders.
    pub config: BuildConfig,
    /// The passes whose orders are tried; see [`Member::parse`].
    pub members: Vec<Member>,
    /// Passes that members name and the registry has not.
    pub own: Vec<OwnPass>,
    /// The passes that the orders are compared with; where none are given, the default pipeline with all rulesets of the members.
    pub saturation: Option<String>,
    /// Threads that run the programs.
    pub threads: usize,
    /// Where there are more orders, so many are drawn.
    pub max_orders: usize,
    /// Of the draw.
    pub seed: u64,
    /// For how long each different program is measured, about.
    pub measure: Duration,
    /// Whether to find out how good the saturation is after each round.
    pub anytime: bool,
    /// Where what was found out is kept; a run that finds such a file goes on from there.
    pub state: Option<PathBuf>,
    /// What the model is called.
    pub model: String,
    /// What else results depend on, by name: another state is refused where it differs.
    pub about: Vec<(String, String)>,
    /// So many passes run at the same time, in threads, where there is no crew. What one takes depends on the others then.
    pub workers: usize,
    /// Who runs passes and measures programs; threads of this process where nobody is named.
    pub crew: Option<Box<dyn Crew>>,
    /// Called as work goes on.
    pub on_progress: Option<Box<dyn FnMut(Progress) + Send>>,
}

/// How far an exploration is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is being done.
    pub phase: &'static str,
    /// So much of it is done...
    pub done: usize,
    /// ...of so much.
    pub total: usize,
}

/// Programs that are held compiled at the same time, to be measured in turns.
const BATCH: usize = 48;

/// Tries the orders, and measures what they give on these inputs: the tensors of the parameters, flattened.
///
/// Refused are a module that has no types, members that are the same, a pipeline without a stage `optimize`, and the state of another
/// exploration. What single orders are refused for is in the result.
pub fn explore(module: &Module, inputs: &[Tensor], mut options: Options) -> Result<Exploration, Refused> {
    let start = std::time::Instant::now();
    let module = infer_types(module.clone())?.into_module();
    let lanes = lanes::Lanes::new(&options)?;
    let choices = lanes::choices(&options.members);
    let orders = orders::orders(&choices, options.max_orders, options.seed);
    let mut tell = options.on_progress.take().unwrap_or_else(|| Box::new(|_| {}));
    let about = lanes::about(&options, inputs);
    let mut engine = Engine::new(&module, options.state.as_deref(), &about)?;
    engine.cancel = options.settings.limits.cancel.clone();

    let mut runs = Vec::with_capacity(orders.len());
    let total = orders.len() + 3;
    tell(Progress { phase: "passes", done: 0, total });
    let mut all: Vec<_> = [lanes.saturation(), lanes.default(), lanes.baseline()].into();
    all.extend(orders.iter().map(|order| lanes.order(order)));
    crew::run_passes(&mut engine, &all, &mut options, &mut |done| tell(Progress { phase: "passes", done, total }))?;
    let saturation = engine.run(&lanes.saturation())?;
    let default = engine.run(&lanes.default())?;
    let baseline = engine.run(&lanes.baseline())?;
    engine.forget_used();
    for (i, order) in orders.iter().enumerate() {
        tell(Progress { phase: "passes", done: 3 + i, total });
        runs.push(engine.run(&lanes.order(order))?);
    }
    let passes_run = engine.passes_used();
    let mut programs: Vec<Digest> = Vec::new();
    for program in [&saturation, &default, &baseline].into_iter().chain(&runs).filter_map(|r| r.program) {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    measure_all(&mut engine, &programs, &[&baseline, &saturation], inputs, &mut options, &mut tell)?;
    let anytime = match (options.anytime, lanes.saturating(&engine, &saturation)) {
        (true, Some((from, place))) => anytime(&mut engine, from, place, &options, &mut tell)?,
        _ => Vec::new(),
    };
    let names = |order: &Vec<usize>| order.iter().map(|&i| options.members[i].label.clone()).collect::<Vec<_>>();
    let described = |run: &engine::Ran, name: &str| result::describe(run, name.to_owned(), Vec::new(), &engine.state);
    let mut exploration = Exploration {
        resat: env!("CARGO_PKG_VERSION").into(),
        model: options.model.clone(),
        members: options.members.clone(),
        orders_possible: orders::possible(&choices),
        seed: options.seed,
        saturation: described(&saturation, "saturation"),
        saturation_passes: lanes.saturation().iter().map(|l| l.shown.to_owned()).collect(),
        default: described(&default, "default pipeline"),
        baseline: described(&baseline, "as written"),
        around: lanes.around(),
        orders: runs
            .iter()
            .zip(&orders)
            .map(|(run, order)| result::describe(run, names(order).join(", "), names(order), &engine.state))
            .collect(),
        winner: None,
        best: None,
        median: None,
        worst: None,
        programs: programs.len(),
        passes_written: runs.iter().map(|r| r.steps).sum(),
        passes_run,
        resumed: engine.state.resumed,
        cost_model: options.settings.cost.name().to_owned(),
        anytime,
        machine: result::machine(&options),
        settings: about,
        seconds: 0.0,
    };
    exploration.rank();
    exploration.winner = exploration.fastest().map(|place| match place {
        Some(order) => lanes.order(&orders[order]).iter().map(|l| l.shown.as_str()).collect::<Vec<_>>().join(", "),
        None => exploration.saturation_passes.join(", "),
    });
    exploration.seconds = start.elapsed().as_secs_f64();
    Ok(exploration)
}

/// Compiles and measures what is not measured yet. What `references` give, the first that can be had, is what results are compared with.
fn measure_all(
    engine: &mut Engine,
    programs: &[Digest],
    references: &[&engine::Ran],
    inputs: &[Tensor],
    options: &mut Options,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Refused> {
    let todo: Vec<Digest> = programs.iter().copied().filter(|p| !engine.is_measured(*p)).collect();
    if todo.is_empty() {
        return Ok(());
    }
    if let Some(crew) = options.crew.as_mut().filter(|c| c.measures()) {
        return measure_by(crew.as_mut(), engine, &todo, references, inputs, tell);
    }
    let pool = Arc::new(Pool::new(options.threads));
    let mut want: Option<Vec<Tensor>> = None;
    for program in references.iter().filter_map(|r| r.program) {
        if let (None, Ok((_, built))) = (&want, engine.compile(program, options)?) {
            want = Runner::new(built, inputs, &pool).ok().map(|r| r.outputs().to_vec());
        }
    }
    let mut done = 0;
    for batch in todo.chunks(BATCH) {
        let (mut runners, mut measured) = (Vec::new(), Vec::new());
        for &program in batch {
            tell(Progress { phase: "compiling", done, total: todo.len() });
            engine.go_on()?;
            done += 1;
            let (code, runner) = crew::ready(engine.compile(program, options)?, inputs, &pool);
            if let Some(runner) = runner {
                runners.push(runner);
                measured.push(program);
            }
            engine.state.add(Record::Program { program: program.to_string(), result: code })?;
        }
        let differences: Vec<Option<f64>> =
            runners.iter().map(|r| want.as_ref().and_then(|w| measure::difference(w, r.outputs()))).collect();
        measure::measure(&mut runners, inputs, options.measure, &engine.cancel, &mut |done, total| {
            tell(Progress { phase: "measuring", done, total });
        })?;
        engine.go_on()?;
        for ((program, runner), difference) in measured.into_iter().zip(runners).zip(differences) {
            let latencies_s = runner.latencies;
            engine.state.add(Record::Latency { program: program.to_string(), latencies_s, difference })?;
        }
    }
    Ok(())
}

/// Has a crew compile programs and measure them, in batches, each with a reference in it.
fn measure_by(
    crew: &mut dyn Crew,
    engine: &mut Engine,
    todo: &[Digest],
    references: &[&engine::Ran],
    inputs: &[Tensor],
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Refused> {
    let reference = references.iter().find_map(|r| r.program);
    for (i, batch) in todo.chunks(BATCH).enumerate() {
        let before = i * BATCH;
        tell(Progress { phase: "compiling", done: before, total: todo.len() });
        let mut programs = Vec::new();
        for &digest in reference.iter().chain(batch.iter().filter(|d| Some(**d) != reference)) {
            programs.push((digest, engine.module(digest)?));
        }
        let cancel = engine.cancel.clone();
        let made = crew::build_all(crew, &programs, &cancel, &mut |done| {
            tell(Progress { phase: "compiling", done: (before + done).min(todo.len()), total: todo.len() });
        })?;
        let mut ready = Vec::new();
        for (digest, module) in programs {
            match &made[&digest] {
                code if code.refused.is_none() => ready.push((digest.to_string(), module)),
                code => engine.learn(Record::Program { program: digest.to_string(), result: code.clone() })?,
            }
        }
        tell(Progress { phase: "measuring", done: before, total: todo.len() });
        for line in crew.measure(&ready, inputs)? {
            let record = serde_json::from_str(&line)
                .map_err(|e| Refused::from(Diagnostic::new(format!("what was measured: {e}"))))?;
            engine.learn(record)?;
        }
    }
    Ok(())
}

/// The saturation with 1, 2, 3, … rounds: how good it is when it is stopped then.
fn anytime(
    engine: &mut Engine,
    from: Digest,
    place: usize,
    options: &Options,
    tell: &mut dyn FnMut(Progress),
) -> Result<Vec<Anytime>, Refused> {
    if let Some(known) = engine.state.anytime.get(&from) {
        return Ok(known.clone());
    }
    let most = options.settings.limits.iterations;
    let mut points = Vec::new();
    for rounds in 1..=most {
        tell(Progress { phase: "anytime", done: rounds - 1, total: most });
        let settings = lanes::with_rounds(&options.settings, rounds);
        let lane = lanes::Lanes::new(&Options { settings, ..lanes::copied(options) })?;
        let Some(s) = engine.saturate_only(&lane.saturation()[place], from)? else { break };
        let ended = s.rounds < rounds;
        if !ended {
            points.push(Anytime { rounds, seconds: s.seconds, nodes: s.nodes, cost: s.cost_after });
        }
        if ended || s.saturated {
            break;
        }
    }
    engine.state.add(Record::Anytime { from: from.to_string(), points: points.clone() })?;
    Ok(points)
}

/// A digest of a module's content: the same for modules that differ in the names and numbers of variables and expressions only.
pub fn digest(module: &Module) -> Digest {
    canonical::canonical(module, &mut canonical::Constants::default()).1
}

/// The digest of some text.
fn digest_text(text: &str) -> Digest {
    digest_bytes(&[text.as_bytes()])
}
