//! Who does the work of an exploration: threads of this process, or a crew of one's own, which may be other processes and machines.
//!
//! What has to be done is for the [`Engine`] to say, and what came of it for the engine to take; both are the same whoever works.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

use super::{
    Options,
    engine::{Engine, Found, Station, compile, work},
    lanes::Lanes,
    measure::{self, Runner},
    state::{Code, Record},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::Module,
    loops::Digest,
    pass::Settings,
    runtime::Pool,
    tensor::Tensor,
};

/// A pass that is to be run over a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// What the pass is remembered by: [`Worker::run`] knows it.
    pub pass: String,
    /// The module, by the digest of its content.
    pub from: String,
}

/// Those who work on an exploration.
pub trait Crew: Send {
    /// So many tasks may be under way.
    fn room(&self) -> usize;

    /// Begins a task. An error ends the exploration; what was found out by then is kept.
    fn start(&mut self, number: usize, task: &Task, module: &Module) -> Result<(), Refused>;

    /// Waits until a task has an end: its number and what came of it. A task that was lost (its worker is gone) has come to nothing and
    /// is begun again.
    fn next(&mut self) -> Result<(usize, Option<Found>), Refused>;

    /// Compiles programs and measures them together; the first is what their results are compared with, and is measured among them. Gives
    /// what [`Worker::measure`] gives; none where programs are measured in this process.
    fn measure(&mut self, programs: &[(String, Module)], inputs: &[Tensor]) -> Result<Option<Vec<String>>, Refused> {
        let _ = (programs, inputs);
        Ok(None)
    }
}

/// Does tasks of an exploration anywhere, given the same options.
pub struct Worker {
    lanes: Lanes,
    settings: Settings,
    threads: usize,
    measure: Duration,
}

impl Worker {
    /// Refused are the options that [`explore`](super::explore) refuses.
    pub fn new(options: Options) -> Result<Worker, Refused> {
        let lanes = Lanes::new(&options)?;
        Ok(Worker { lanes, settings: options.settings, threads: options.threads, measure: options.measure })
    }

    /// Runs the pass of a task over its module. Nothing else is looked at, nothing is changed.
    ///
    /// Refused is a pass that these options don't have.
    pub fn run(&self, pass: &str, module: Module) -> Result<Found, Refused> {
        match self.lanes.station(pass) {
            Some(station) => Ok(work(station.pass, module)),
            None => Err(Diagnostic::new(format!("the exploration has no pass `{pass}`")).into()),
        }
    }

    /// Compiles and measures programs in turns, on this machine and its threads: records, as lines of the state's file, for all but a first
    /// one that is there to be compared with. See [`Crew::measure`].
    pub fn measure(&self, programs: Vec<(String, Module)>, inputs: &[Tensor]) -> Result<Vec<String>, Refused> {
        let pool = std::sync::Arc::new(Pool::new(self.threads));
        let (mut records, mut runners, mut measured) = (Vec::new(), Vec::new(), Vec::new());
        for (program, module) in programs {
            let (mut code, refused) = match compile(module, &self.settings, self.threads) {
                Ok((code, built)) => match Runner::new(built, inputs, &pool) {
                    Ok(runner) => {
                        runners.push(runner);
                        measured.push(program.clone());
                        (code, None)
                    }
                    Err(e) => (code, Some(format!("running: {e}"))),
                },
                Err(why) => (Code::default(), Some(why)),
            };
            code.refused = refused;
            records.push(Record::Program { program, result: code });
        }
        let want = runners.first().map(|r| r.outputs().to_vec());
        let differences: Vec<Option<f64>> =
            runners.iter().map(|r| want.as_ref().and_then(|w| measure::difference(w, r.outputs()))).collect();
        measure::measure(&mut runners, inputs, self.measure, &mut |_, _| {})?;
        for ((program, runner), difference) in measured.into_iter().zip(runners).zip(differences) {
            records.push(Record::Latency { program, latencies_s: runner.latencies, difference });
        }
        let line = |r: &Record| serde_json::to_string(r).map_err(|e| Diagnostic::new(e.to_string()).into());
        records.iter().map(line).collect()
    }
}

impl Found {
    /// What is known of the module and its way, as text, and the module: to be sent to another process.
    pub fn into_parts(self) -> Result<(String, Option<Module>), Refused> {
        let text = serde_json::to_string(&self.outcome).map_err(|e| Diagnostic::new(e.to_string()))?;
        Ok((text, self.module))
    }

    /// The same from what another process sent.
    pub fn from_parts(text: &str, module: Option<Module>) -> Result<Found, Refused> {
        let outcome = serde_json::from_str(text).map_err(|e| Diagnostic::new(format!("what came of a pass: {e}")))?;
        Ok(Found { outcome, module })
    }
}

/// Has the passes of all lanes run, by the crew or by threads.
pub(super) fn run_passes<'a>(
    engine: &mut Engine<'a>,
    lanes: &[Vec<Station<'a>>],
    options: &mut Options,
    tell: &mut dyn FnMut(usize),
) -> Result<(), Refused> {
    if let Some(crew) = &mut options.crew {
        let crew = Mutex::new(crew);
        let lock = || crew.lock().unwrap_or_else(PoisonError::into_inner);
        let room = lock().room();
        let mut start = |number: usize, station: &Station<'a>, from: Digest, module: &Module| {
            lock().start(number, &Task { pass: station.key.to_owned(), from: from.to_string() }, module)
        };
        return drive(engine, lanes, room, &mut start, &mut || lock().next(), tell);
    }
    if options.workers < 2 {
        return Ok(());
    }
    let (to_workers, tasks) = mpsc::channel::<(usize, Station<'a>, Module)>();
    let (from_workers, results) = mpsc::channel();
    let tasks = Mutex::new(tasks);
    std::thread::scope(|scope| {
        for _ in 0..options.workers {
            let (tasks, results) = (&tasks, from_workers.clone());
            scope.spawn(move || {
                loop {
                    let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, station, module)) = task else { return };
                    if results.send((number, Some(work(station.pass, module)))).is_err() {
                        return;
                    }
                }
            });
        }
        let gone = || Refused::from(Diagnostic::new("the threads of the exploration are gone"));
        let mut start = |number: usize, station: &Station<'a>, _: Digest, module: &Module| {
            to_workers.send((number, *station, module.clone())).map_err(|_| gone())
        };
        let done = drive(engine, lanes, options.workers, &mut start, &mut || results.recv().map_err(|_| gone()), tell);
        // Without tasks to come, the workers end.
        drop(to_workers);
        done
    })
}

/// A task that is lost so often would be lost again.
const MOST_LOSSES: usize = 4;

type Start<'s, 'a> = dyn FnMut(usize, &Station<'a>, Digest, &Module) -> Result<(), Refused> + 's;

/// Begins what is ready and takes what is done, until nothing is left.
fn drive<'a>(
    engine: &mut Engine<'a>,
    lanes: &[Vec<Station<'a>>],
    room: usize,
    start: &mut Start<'_, 'a>,
    next: &mut dyn FnMut() -> Result<(usize, Option<Found>), Refused>,
    tell: &mut dyn FnMut(usize),
) -> Result<(), Refused> {
    let mut under_way: HashMap<usize, (Station<'a>, Digest)> = HashMap::new();
    let mut lost: HashMap<(String, Digest), usize> = HashMap::new();
    let (mut number, mut done) = (0, 0);
    loop {
        for (station, from) in engine.ready(lanes) {
            let begun = under_way.values().any(|(s, f)| s.key == station.key && *f == from);
            if begun || under_way.len() >= room.max(1) {
                continue;
            }
            let module = engine.given(from).expect("what is ready has its module at hand");
            start(number, &station, from, module)?;
            under_way.insert(number, (station, from));
            number += 1;
        }
        if under_way.is_empty() {
            return Ok(());
        }
        let (ended, found) = next()?;
        let Some((station, from)) = under_way.remove(&ended) else { continue };
        match found {
            Some(found) => {
                engine.done(&station, from, found)?;
                done += 1;
                tell(done);
            }
            None => {
                let times = lost.entry((station.key.to_owned(), from)).or_default();
                *times += 1;
                if *times >= MOST_LOSSES {
                    let message = format!("pass `{}` was lost {times} times with its worker", station.shown);
                    return Err(Diagnostic::new(message).into());
                }
            }
        }
    }
}
