//! Runs passes over modules, each pass over each different module once.
//!
//! Orders are paths in one graph: modules are known by their content, and passes are edges, run once each, so that orders share what they
//! begin with and whatever comes to the same. The state is a list of edges and measurements, from which modules are made again where a
//! resumed run needs them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::Instant,
};

use hashbrown::{HashMap, HashSet};

use super::{
    Options,
    canonical::{Constants, canonical},
    digest_text,
    state::{Code, Outcome, Record, Refusal, Saturated, State, parse_digest},
};
use crate::{
    cancel::Cancel,
    diag::{Diagnostic, Refused},
    driver::{self, Built, Runnable},
    extract::DagGreedy,
    ir::Module,
    loops::Digest,
    pass::{Pass, PassContext, Saturate, Sequential, Settings},
    saturate::Stop,
};

/// A pass on its way, with what it is remembered by.
#[derive(Clone, Copy)]
pub(super) struct Station<'a> {
    pub key: &'a str,
    pub shown: &'a String,
    pub pass: &'a dyn Pass,
}

/// A module that was met: itself, where it is there, and how it comes about.
struct Kept<'a> {
    module: Option<Module>,
    via: Option<(Station<'a>, Digest)>,
}

/// What a lane came to.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub program: Option<Digest>,
    pub refused: Option<Refusal>,
    /// Seconds of all passes.
    pub passes_s: f64,
    /// Passes of the lane.
    pub steps: usize,
    /// The module before each pass that ran.
    pub from: Vec<Digest>,
    /// What its largest saturation did.
    pub saturated: Option<Saturated>,
}

pub(super) struct Engine<'a> {
    root: Digest,
    constants: Constants,
    kept: HashMap<Digest, Kept<'a>>,
    used: HashSet<(String, Digest)>,
    pub state: State,
    /// By which somebody ends the exploration: what was under way then is not believed.
    pub cancel: Cancel,
}

impl<'a> Engine<'a> {
    /// With what the state's file knows of this module under these settings.
    pub(super) fn new(module: &Module, file: Option<&Path>, about: &[(String, String)]) -> Result<Engine<'a>, Refused> {
        let mut constants = Constants::default();
        let (module, root) = canonical(module, &mut constants);
        // What another resat found out may not be what this one would.
        let program = env!("RESAT_SOURCES");
        let mut about = about.to_vec();
        about.push(("program".into(), root.to_string()));
        let key = digest_text(&format!("{program} {about:?}"));
        let state = State::open(file, &key, &about)?;
        let kept = HashMap::from_iter([(root, Kept { module: Some(module), via: None })]);
        Ok(Engine { root, constants, kept, used: HashSet::new(), state, cancel: Cancel::default() })
    }

    /// Refuses to go on where somebody has ended the exploration.
    pub(super) fn go_on(&self) -> Result<(), Refused> {
        match self.cancel.is_cancelled() {
            true => Err(Diagnostic::new("the exploration was cancelled; what it has found out is kept").into()),
            false => Ok(()),
        }
    }

    /// Counts [`Engine::passes_used`] from zero.
    pub(super) fn forget_used(&mut self) {
        self.used.clear();
    }

    /// How many passes were run or known, each over each different module once.
    pub(super) fn passes_used(&self) -> usize {
        self.used.len()
    }

    /// Sends the module down a lane.
    pub(super) fn run(&mut self, lane: &[Station<'a>]) -> Result<Ran, Refused> {
        let mut at = self.root;
        let mut ran =
            Ran { program: None, refused: None, passes_s: 0.0, steps: lane.len(), from: Vec::new(), saturated: None };
        for station in lane {
            ran.from.push(at);
            let step = self.step(station, at)?;
            ran.passes_s += step.seconds;
            if let Some(s) = step.saturated
                && ran.saturated.as_ref().is_none_or(|old| s.nodes > old.nodes)
            {
                ran.saturated = Some(s);
            }
            match (step.to.as_deref().and_then(parse_digest), step.refused) {
                (Some(to), _) => at = to,
                (None, reason) => {
                    let reason = reason.unwrap_or_else(|| "no reason is known".into());
                    ran.refused = Some(Refusal { at: station.shown.clone(), reason });
                    return Ok(ran);
                }
            }
        }
        ran.program = Some(at);
        Ok(ran)
    }

    /// What has to be run next so that these lanes come further, each once, as far as the modules are at hand: passes over modules that
    /// are not known, and those that make a module again that a former run had.
    pub(super) fn ready(&mut self, lanes: &[Vec<Station<'a>>]) -> Vec<(Station<'a>, Digest)> {
        let mut tasks: Vec<(Station<'a>, Digest)> = Vec::new();
        for lane in lanes {
            let mut at = self.root;
            for station in lane {
                let Some(known) = self.state.passes.get(&(station.key.to_owned(), at)) else {
                    let task = self.obtaining(at).unwrap_or((*station, at));
                    if !tasks.iter().any(|(s, from)| s.key == task.0.key && *from == task.1) {
                        tasks.push(task);
                    }
                    break;
                };
                let Some(to) = known.to.as_deref().and_then(parse_digest) else { break };
                self.kept.entry(to).or_insert(Kept { module: None, via: Some((*station, at)) });
                at = to;
            }
        }
        tasks
    }

    /// The pass that has to be run first to have a module again; none where it is there.
    fn obtaining(&self, digest: Digest) -> Option<(Station<'a>, Digest)> {
        let (mut at, mut first) = (digest, None);
        while let Some(Kept { module: None, via: Some((station, from)) }) = self.kept.get(&at) {
            first = Some((*station, *from));
            at = *from;
        }
        first
    }

    /// The module that a task of [`Engine::ready`] is about.
    pub(super) fn given(&self, from: Digest) -> Option<&Module> {
        self.kept.get(&from)?.module.as_ref()
    }

    /// Takes what came of a task.
    ///
    /// Refused is another result than a former run had.
    pub(super) fn done(&mut self, station: &Station<'a>, from: Digest, found: Found) -> Result<(), Refused> {
        self.go_on()?;
        let Found { mut outcome, module } = found;
        if let Some(made) = module {
            let (made, to) = canonical(&made, &mut self.constants);
            outcome.to = Some(to.to_string());
            let kept = self.kept.entry(to).or_insert(Kept { module: None, via: Some((*station, from)) });
            kept.module.get_or_insert(made);
        }
        match self.state.passes.get(&(station.key.to_owned(), from)) {
            Some(known) if known.to != outcome.to => Err(differs(station, outcome.refused)),
            Some(_) => Ok(()),
            None => {
                let (pass, from) = (station.key.to_owned(), from.to_string());
                self.state.add(Record::Pass { pass, from, result: outcome })
            }
        }
    }

    /// Takes what was found out about a program. What is known of it already stays.
    pub(super) fn learn(&mut self, record: Record) -> Result<(), Refused> {
        self.go_on()?;
        let known = match &record {
            Record::Program { program, .. } => {
                parse_digest(program).is_some_and(|d| self.state.programs.contains_key(&d))
            }
            Record::Latency { program, .. } => {
                parse_digest(program).is_some_and(|d| self.state.latencies.contains_key(&d))
            }
            _ => return Err(Diagnostic::new("what was measured is about no program").into()),
        };
        if known { Ok(()) } else { self.state.add(record) }
    }

    /// What a saturation did, where this pass was one.
    pub(super) fn saturated(&self, key: &str, from: Digest) -> Option<&Saturated> {
        self.state.passes.get(&(key.to_owned(), from))?.saturated.as_ref()
    }

    fn step(&mut self, station: &Station<'a>, from: Digest) -> Result<Outcome, Refused> {
        let key = (station.key.to_owned(), from);
        self.used.insert(key.clone());
        if let Some(known) = self.state.passes.get(&key) {
            if let Some(to) = known.to.as_deref().and_then(parse_digest) {
                self.kept.entry(to).or_insert(Kept { module: None, via: Some((*station, from)) });
            }
            return Ok(known.clone());
        }
        let found = work(station.pass, self.module(from)?);
        self.done(station, from, found)?;
        Ok(self.state.passes[&key].clone())
    }

    /// The module of a digest: made again, where only a former run had it.
    pub(super) fn module(&mut self, digest: Digest) -> Result<Module, Refused> {
        let mut way = Vec::new();
        let mut at = digest;
        let mut module = loop {
            let kept = self.kept.get(&at).expect("modules are met before they are asked for");
            match (&kept.module, kept.via) {
                (Some(module), _) => break module.clone(),
                (None, Some((station, from))) => {
                    way.push((station, at));
                    at = from;
                }
                (None, None) => unreachable!("a module is there, or came of another"),
            }
        };
        while let Some((station, wanted)) = way.pop() {
            let (outcome, made) = attempt(station.pass, module);
            let made = made.map(|made| canonical(&made, &mut self.constants));
            match made {
                Some((made, digest)) if digest == wanted => {
                    self.kept.get_mut(&wanted).expect("it was on the way").module = Some(made.clone());
                    module = made;
                }
                _ => return Err(differs(&station, outcome.refused)),
            }
        }
        Ok(module)
    }

    /// Whether nothing is left to find out about a program.
    pub(super) fn is_measured(&self, program: Digest) -> bool {
        let refused = self.state.programs.get(&program).is_some_and(|c| c.refused.is_some());
        refused || self.state.latencies.contains_key(&program) && self.state.programs.contains_key(&program)
    }

    /// The program's code and what there is to say of it; the inner error is why it can't be compiled.
    pub(super) fn compile(
        &mut self,
        program: Digest,
        options: &Options,
    ) -> Result<Result<(Code, Runnable), String>, Refused> {
        let compiled = compile(self.module(program)?, &options.settings, options.threads);
        // One that was ended before its time is not refused.
        self.go_on()?;
        Ok(compiled.map(|(code, built)| (code, built.executable)))
    }

    /// What a saturation does with a module that was met, without remembering it.
    pub(super) fn saturate_only(&mut self, station: &Station<'_>, from: Digest) -> Result<Option<Saturated>, Refused> {
        let module = self.module(from)?;
        Ok(attempt(station.pass, module).0.saturated)
    }
}

/// The code of a module that went through its passes, and what there is to say of it; or why there is none.
pub(super) fn compile(module: Module, settings: &Settings, threads: usize) -> Result<(Code, Built), String> {
    let mut build = driver::Options::new(settings.clone());
    build.passes = Some(Box::new(Sequential::default()));
    build.threads = threads;
    let cost = cost(&module, settings);
    let start = Instant::now();
    let built = guarded(|| driver::build(module, &[], build).map_err(|e| e.to_string()))?;
    let compile_s = start.elapsed().as_secs_f64();
    let code = Code {
        cost,
        refused: None,
        compile_s,
        kernels: built.record().map_or(0, |r| r.kernels.len()),
        calls: built.calls,
    };
    Ok((code, built))
}

/// What came of a pass.
#[derive(Debug)]
pub struct Found {
    pub(super) outcome: Outcome,
    pub(super) module: Option<Module>,
}

/// Runs a pass over a module; nothing else is looked at or changed.
pub(super) fn work(pass: &dyn Pass, module: Module) -> Found {
    let (outcome, module) = attempt(pass, module);
    Found { outcome, module }
}

/// That a pass gives another module than in a former run.
fn differs(station: &Station<'_>, refused: Option<String>) -> Refused {
    let why = refused.unwrap_or_else(|| "it gives something else than in the run that is resumed".into());
    let d = Diagnostic::new(format!("pass `{}`: {why}", station.shown));
    d.help("delete the state's file to start over; a saturation that a time limit ends may differ").into()
}

/// What a program costs by the model, as it stands.
fn cost(module: &Module, settings: &Settings) -> Option<f64> {
    let mut settings = settings.clone();
    settings.extractor = std::sync::Arc::new(DagGreedy::default());
    let mut cx = PassContext::default();
    Saturate::new("Cost", Vec::new(), &settings).run(module.clone(), &mut cx).ok()?;
    cx.reports.first().map(|r| r.cost_before).filter(|c| c.is_finite())
}

/// The result of `f`; a panic in it is the fault of one order, and must not end the others.
fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("internal error: this is a bug in resat: {}", text.unwrap_or("no message")))
    })
}

fn attempt(pass: &dyn Pass, module: Module) -> (Outcome, Option<Module>) {
    let mut cx = PassContext::default();
    let start = Instant::now();
    let made = guarded(|| pass.run(module, &mut cx).map_err(|e| e.to_string()));
    let seconds = start.elapsed().as_secs_f64();
    let saturated = cx.reports.iter().max_by_key(|r| r.nodes).map(|r| Saturated {
        stop: r.stop.to_string(),
        saturated: r.stop <= Stop::GrowthBounded,
        rounds: r.iterations,
        nodes: r.nodes,
        classes: r.classes,
        cost_before: r.cost_before,
        cost_after: r.cost_after,
        seconds: r.saturate_time.as_secs_f64() + r.extract_time.as_secs_f64(),
    });
    let (refused, made) = match made {
        Ok(module) => (None, Some(module)),
        Err(why) => (Some(why), None),
    };
    (Outcome { to: None, refused, seconds, saturated }, made)
}
