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
    cancel::Cancel,
    diag::{Diagnostic, Refused},
    driver::{Frozen, Runnable},
    ir::Module,
    loops::Digest,
    pass::Settings,
    runtime::Pool,
    tensor::Tensor,
};

/// Something that is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// A pass is to be run over a module: see [`Worker::run`].
    Pass {
        /// What the pass is remembered by.
        pass: String,
        /// The module, by the digest of its content.
        from: String,
    },
    /// A program is to be compiled: see [`Worker::compile`]. What runs stays with the crew until the program is measured.
    Build {
        /// The program, by the digest of its content.
        program: String,
    },
}

/// What came of a task.
#[derive(Debug)]
pub enum Done {
    /// Of a pass.
    Pass(Box<Found>),
    /// Of a program: what [`Compiled::into_parts`] says of it.
    Build(String),
}

/// Those who work on an exploration.
pub trait Crew: Send {
    /// So many tasks may be under way.
    fn room(&self) -> usize;

    /// Begins a task. An error ends the exploration; what was found out by then is kept.
    fn start(&mut self, number: usize, task: &Task, module: &Module) -> Result<(), Refused>;

    /// Waits until a task has an end: its number and what came of it. A task that was lost (its worker is gone) has come to nothing and
    /// is begun again.
    fn next(&mut self) -> Result<(usize, Option<Done>), Refused>;

    /// Whether the crew compiles and measures programs, too. Else this process does.
    fn measures(&self) -> bool {
        false
    }

    /// Measures programs together, which it has compiled; the first is what the others' results are compared with, and is measured among
    /// them. Gives what [`Worker::measure`] gives.
    fn measure(&mut self, programs: &[(String, Module)], inputs: &[Tensor]) -> Result<Vec<String>, Refused> {
        let _ = (programs, inputs);
        Err(Diagnostic::new("this crew does not measure").into())
    }
}

/// A program that went through its passes, and what there is of its code.
pub struct Compiled {
    code: Code,
    frozen: Option<Frozen>,
}

/// What a program is measured from.
pub enum Program {
    /// Its code, made by whatever worker.
    Compiled(Compiled),
    /// Itself: it is compiled where it is measured, as its code lives in one process only.
    Module(Module),
}

impl Compiled {
    /// What there is to say of it, as text, and its code: to be sent to another process. Without code it was refused, as the text says, or
    /// can't leave the process that compiles it ([`Built::freeze`](crate::driver::Built::freeze)).
    pub fn into_parts(self) -> Result<(String, Option<Frozen>), Refused> {
        let text = serde_json::to_string(&self.code).map_err(|e| Diagnostic::new(e.to_string()))?;
        Ok((text, self.frozen))
    }

    /// The same from what another process sent.
    pub fn from_parts(text: &str, frozen: Option<Frozen>) -> Result<Compiled, Refused> {
        Ok(Compiled { code: code_of(text)?, frozen })
    }

    /// What runs, on so many threads; or why nothing does.
    fn thawed(self, threads: usize) -> Result<(Code, Runnable), String> {
        match (self.code.refused.clone(), self.frozen) {
            (Some(why), _) => Err(why),
            (None, None) => Err("its code did not come with it".into()),
            (None, Some(frozen)) => match frozen.thaw(threads) {
                Some(built) => Ok((self.code, built.executable)),
                None => Err("its code is not what a worker of this build of resat makes".into()),
            },
        }
    }
}

fn code_of(text: &str) -> Result<Code, Refused> {
    serde_json::from_str(text).map_err(|e| Diagnostic::new(format!("what came of a program: {e}")).into())
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

    /// Compiles a program. What it is refused for is in what it gives.
    pub fn compile(&self, module: Module) -> Compiled {
        match compile(module, &self.settings, self.threads) {
            Ok((code, built)) => Compiled { code, frozen: built.freeze(&self.settings.target.codegen()) },
            Err(why) => Compiled { code: Code { refused: Some(why), ..Code::default() }, frozen: None },
        }
    }

    /// Measures programs in turns, on this machine and its threads: records, as lines of the state's file. See [`Crew::measure`].
    pub fn measure(&self, programs: Vec<(String, Program)>, inputs: &[Tensor]) -> Result<Vec<String>, Refused> {
        let pool = std::sync::Arc::new(Pool::new(self.threads));
        let (mut records, mut runners, mut measured) = (Vec::new(), Vec::new(), Vec::new());
        for (program, source) in programs {
            let runnable = match source {
                Program::Compiled(compiled) => compiled.thawed(self.threads),
                Program::Module(module) => {
                    compile(module, &self.settings, self.threads).map(|(code, built)| (code, built.executable))
                }
            };
            let (code, runner) = ready(runnable, inputs, &pool);
            if let Some(runner) = runner {
                runners.push(runner);
                measured.push(program.clone());
            }
            records.push(Record::Program { program, result: code });
        }
        let want = runners.first().map(|r| r.outputs().to_vec());
        let differences: Vec<Option<f64>> =
            runners.iter().map(|r| want.as_ref().and_then(|w| measure::difference(w, r.outputs()))).collect();
        let cancel = &self.settings.limits.cancel;
        measure::measure(&mut runners, inputs, self.measure, cancel, &mut |_, _| {})?;
        for ((program, runner), difference) in measured.into_iter().zip(runners).zip(differences) {
            records.push(Record::Latency { program, latencies_s: runner.latencies, difference });
        }
        let line = |r: &Record| serde_json::to_string(r).map_err(|e| Diagnostic::new(e.to_string()).into());
        records.iter().map(line).collect()
    }
}

/// A program that is about to be measured, run once; without a runner it is refused, as its record says.
pub(super) fn ready(
    compiled: Result<(Code, Runnable), String>,
    inputs: &[Tensor],
    pool: &std::sync::Arc<Pool>,
) -> (Code, Option<Runner>) {
    match compiled {
        Ok((code, runnable)) => match Runner::new(runnable, inputs, pool) {
            Ok(runner) => (code, Some(runner)),
            Err(e) => (Code { refused: Some(format!("running: {e}")), ..code }, None),
        },
        Err(why) => (Code { refused: Some(why), ..Code::default() }, None),
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

/// Tasks of one kind, as far as they are known.
trait Job {
    type Task: Copy;
    type Result;

    /// What can be begun now, also where it is under way.
    fn ready(&mut self) -> Vec<Self::Task>;

    /// Whether two are the same.
    fn same(a: &Self::Task, b: &Self::Task) -> bool;

    /// What a task is about.
    fn module(&self, task: &Self::Task) -> &Module;

    /// Takes what came of a task.
    fn done(&mut self, task: &Self::Task, result: Self::Result) -> Result<(), Refused>;

    /// What a task is called in messages.
    fn shown(task: &Self::Task) -> String;
}

/// The passes of lanes.
struct Passes<'e, 'a> {
    engine: &'e mut Engine<'a>,
    lanes: &'e [Vec<Station<'a>>],
}

impl<'a> Job for Passes<'_, 'a> {
    type Task = (Station<'a>, Digest);
    type Result = Found;

    fn ready(&mut self) -> Vec<Self::Task> {
        self.engine.ready(self.lanes)
    }

    fn same(a: &Self::Task, b: &Self::Task) -> bool {
        a.0.key == b.0.key && a.1 == b.1
    }

    fn module(&self, task: &Self::Task) -> &Module {
        self.engine.given(task.1).expect("what is ready has its module at hand")
    }

    fn done(&mut self, task: &Self::Task, found: Found) -> Result<(), Refused> {
        self.engine.done(&task.0, task.1, found)
    }

    fn shown(task: &Self::Task) -> String {
        format!("pass `{}`", task.0.shown)
    }
}

/// The code of programs.
struct Builds<'e> {
    programs: &'e [(Digest, Module)],
    made: HashMap<Digest, Code>,
    cancel: Cancel,
}

impl Job for Builds<'_> {
    type Task = usize;
    type Result = String;

    fn ready(&mut self) -> Vec<usize> {
        (0..self.programs.len()).filter(|&i| !self.made.contains_key(&self.programs[i].0)).collect()
    }

    fn same(a: &usize, b: &usize) -> bool {
        a == b
    }

    fn module(&self, task: &usize) -> &Module {
        &self.programs[*task].1
    }

    fn done(&mut self, task: &usize, text: String) -> Result<(), Refused> {
        self.cancel.go_on()?;
        self.made.insert(self.programs[*task].0, code_of(&text)?);
        Ok(())
    }

    fn shown(task: &usize) -> String {
        format!("program number {task}")
    }
}

/// Has programs compiled by a crew. Gives what there is to say of each.
pub(super) fn build_all(
    crew: &mut dyn Crew,
    programs: &[(Digest, Module)],
    cancel: &Cancel,
    tell: &mut dyn FnMut(usize),
) -> Result<HashMap<Digest, Code>, Refused> {
    let mut builds = Builds { programs, made: HashMap::new(), cancel: cancel.clone() };
    let room = crew.room();
    let crew = Mutex::new(crew);
    let lock = || crew.lock().unwrap_or_else(PoisonError::into_inner);
    let mut start = |number: usize, &task: &usize, module: &Module| {
        lock().start(number, &Task::Build { program: programs[task].0.to_string() }, module)
    };
    let mut next = || {
        Ok(match lock().next()? {
            (number, Some(Done::Build(text))) => (number, Some(text)),
            (number, None) => (number, None),
            (_, Some(Done::Pass(_))) => return Err(other()),
        })
    };
    drive(&mut builds, room, &mut start, &mut next, tell)?;
    Ok(builds.made)
}

fn other() -> Refused {
    Diagnostic::new("the crew gave something else than it was asked for").into()
}

/// Has the passes of all lanes run, by the crew or by threads.
pub(super) fn run_passes<'a>(
    engine: &mut Engine<'a>,
    lanes: &[Vec<Station<'a>>],
    options: &mut Options,
    tell: &mut dyn FnMut(usize),
) -> Result<(), Refused> {
    let mut passes = Passes { engine, lanes };
    if let Some(crew) = &mut options.crew {
        let crew = Mutex::new(crew);
        let lock = || crew.lock().unwrap_or_else(PoisonError::into_inner);
        let room = lock().room();
        let mut start = |number: usize, (station, from): &(Station<'a>, Digest), module: &Module| {
            lock().start(number, &Task::Pass { pass: station.key.to_owned(), from: from.to_string() }, module)
        };
        let mut next = || {
            Ok(match lock().next()? {
                (number, Some(Done::Pass(found))) => (number, Some(*found)),
                (number, None) => (number, None),
                (_, Some(Done::Build(_))) => return Err(other()),
            })
        };
        return drive(&mut passes, room, &mut start, &mut next, tell);
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
        let mut start = |number: usize, task: &(Station<'a>, Digest), module: &Module| {
            to_workers.send((number, task.0, module.clone())).map_err(|_| gone())
        };
        let done = drive(&mut passes, options.workers, &mut start, &mut || results.recv().map_err(|_| gone()), tell);
        // Without tasks to come, the workers end.
        drop(to_workers);
        done
    })
}

/// A task that is lost so often would be lost again.
const MOST_LOSSES: usize = 4;

type Start<'s, T> = dyn FnMut(usize, &T, &Module) -> Result<(), Refused> + 's;

/// Begins what is ready and takes what is done, until nothing is left.
fn drive<J: Job>(
    job: &mut J,
    room: usize,
    start: &mut Start<'_, J::Task>,
    next: &mut dyn FnMut() -> Result<(usize, Option<J::Result>), Refused>,
    tell: &mut dyn FnMut(usize),
) -> Result<(), Refused> {
    let mut under_way: HashMap<usize, J::Task> = HashMap::new();
    let mut lost: Vec<(J::Task, usize)> = Vec::new();
    let (mut number, mut done) = (0, 0);
    loop {
        for task in job.ready() {
            if under_way.len() >= room.max(1) || under_way.values().any(|t| J::same(t, &task)) {
                continue;
            }
            start(number, &task, job.module(&task))?;
            under_way.insert(number, task);
            number += 1;
        }
        if under_way.is_empty() {
            return Ok(());
        }
        let (ended, result) = next()?;
        let Some(task) = under_way.remove(&ended) else { continue };
        match result {
            Some(result) => {
                job.done(&task, result)?;
                done += 1;
                tell(done);
            }
            None => {
                let times = match lost.iter_mut().find(|(t, _)| J::same(t, &task)) {
                    Some((_, times)) => {
                        *times += 1;
                        *times
                    }
                    None => {
                        lost.push((task, 1));
                        1
                    }
                };
                if times >= MOST_LOSSES {
                    let message = format!("{} was lost {times} times with its worker", J::shown(&task));
                    return Err(Diagnostic::new(message).into());
                }
            }
        }
    }
}
