//! Programs that keep state, planned ahead: the next run's extents are those of this one, but for state, whose extents this one gives it.
//!
//! What is planned for a size is the same whoever does it, and whenever. Where the program leaves cores alone, the next size is planned on one of these
//! while this one runs. Else it is planned once it has run, while the caller has the results; or, where the caller comes back sooner than that takes, by one
//! of the program's own threads, while the others run the program.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{JoinHandle, available_parallelism, sleep},
    time::{Duration, Instant},
};

use super::{key::Key, made::Made, sizes::Size, specialize::Primitives};
use crate::{
    ir::Type,
    runtime::Executable,
    tensor::{Shape, Tensor, within_memory},
};

/// When the next size of a run is known.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before it begins.
    Before,
    /// After it.
    After,
}

/// Who plans the next size of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// A thread beside the program's, on a core that these leave alone.
    Beside,
    /// One of the program's threads, while the others run it.
    Aside,
    /// All of the program's threads, once it has run.
    All,
}

impl Who {
    fn when(self) -> When {
        match self {
            Who::Beside | Who::Aside => When::Before,
            Who::All => When::After,
        }
    }
}

/// The shapes that the next run has where its inputs but state are like those of this one; none where these are the same.
pub(super) fn next_shapes(inputs: &[Tensor], state: &[(usize, usize)], exe: &Executable) -> Option<Vec<Shape>> {
    let mut shapes: Vec<Shape> = inputs.iter().map(|t| t.shape().into()).collect();
    let mut changes = false;
    for &(input, output) in state {
        let port = exe.program().outputs().nth(output)?;
        changes |= shapes[input][..] != port.shape[..];
        shapes[input] = port.shape.clone();
    }
    changes.then_some(shapes)
}

/// Plans sizes that are to come.
pub(super) struct Ahead {
    /// Whether there are more cores than the program has threads.
    leaves_cores: bool,
    /// How many runs have begun.
    begun: Arc<AtomicU64>,
    /// When the last one ended.
    ended: Mutex<Option<Instant>>,
    /// How many nanoseconds planning a size took last, whoever did it.
    took: Arc<AtomicU64>,
    worker: Mutex<Option<Worker>>,
}

struct Worker {
    sizes: Sender<Asked>,
    thread: JoinHandle<()>,
}

/// A size, and how many runs had begun when it was asked for.
struct Asked {
    shapes: Vec<Shape>,
    begun: u64,
    who: Who,
}

/// Who comes back before this has the next size planned by all threads at once, which one beside them would be in the way of.
const GRACE: Duration = Duration::from_micros(50);

/// Nanoseconds that planning a size takes, until one was planned.
const LIKELY: u64 = 1_000_000;

impl Ahead {
    /// For a program with so many threads.
    pub(super) fn new(threads: usize) -> Ahead {
        let leaves_cores = threads < available_parallelism().map_or(1, usize::from);
        let (ended, worker) = (Mutex::new(None), Mutex::new(None));
        Ahead { leaves_cores, begun: Arc::default(), ended, took: Arc::new(LIKELY.into()), worker }
    }

    /// Says that a run begins, and who is to plan the next one.
    pub(super) fn begin(&self) -> Who {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let comes_back = |ended: Instant| ended.elapsed() < Duration::from_nanos(self.took.load(Ordering::Relaxed));
        match self.leaves_cores {
            true => Who::Beside,
            false if ended.is_some_and(comes_back) => Who::Aside,
            false => Who::All,
        }
    }

    /// Has a size planned, where this is when to.
    pub(super) fn plan(&self, kernels: &Arc<Primitives>, when: When, who: Who, shapes: &[Shape]) {
        if when == When::After {
            *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        if when != who.when() {
            return;
        }
        if who == Who::Aside {
            // The program may have ended until a thread is free.
            let (program, took, shapes) = (Arc::downgrade(kernels), self.took.clone(), shapes.to_vec());
            let plan = move || {
                if let Some(program) = program.upgrade() {
                    plan(&program, shapes, Who::Aside, &took);
                }
            };
            // Where there is none, the size is planned when it is met.
            kernels.machine.pool.aside(plan);
            return;
        }
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let (kernels, begun, took) = (kernels.clone(), self.begun.clone(), self.took.clone());
            let (sizes, asked) = channel();
            // Where no thread can be had, nothing is planned ahead.
            let thread = std::thread::Builder::new().spawn(move || serve(&kernels, &asked, &begun, &took));
            *worker = thread.ok().map(|thread| Worker { sizes, thread });
        }
        if let Some(worker) = &*worker {
            // Where it has ended, sizes are planned when they are met.
            let begun = self.begun.load(Ordering::Relaxed);
            worker.sizes.send(Asked { shapes: shapes.to_vec(), begun, who }).ok();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Worker { sizes, thread }) = worker {
            drop(sizes);
            thread.join().ok();
        }
    }
}

fn serve(kernels: &Primitives, asked: &Receiver<Asked>, begun: &AtomicU64, took: &AtomicU64) {
    while let Ok(first) = asked.recv() {
        if first.who == Who::All {
            sleep(GRACE);
        }
        // What was asked for before that has been met.
        let last = asked.try_iter().last().unwrap_or(first);
        if last.who == Who::Beside || begun.load(Ordering::Relaxed) == last.begun {
            plan(kernels, last.shapes, last.who, took);
        }
    }
}

fn plan(kernels: &Primitives, shapes: Vec<Shape>, who: Who, took: &AtomicU64) {
    let start = Instant::now();
    // A size that does not fit into memory is refused when it is met.
    if within_memory(|| kernels.plan_ahead(shapes, who != Who::All)) == Ok(true) {
        took.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Primitives {
    /// Plans the whole program for a size, on this thread where `alone`, where that takes no new code; false where there was nothing to plan.
    fn plan_ahead(&self, shapes: Vec<Shape>, alone: bool) -> bool {
        let Some(whole) = &self.whole else { return false };
        let func = self.module.func(whole.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| self.module.var(p).ty.clone()).collect();
        let mut made = whole.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key { shapes: shapes.clone(), values: Vec::new() };
        if made.code.contains_key(&key) || shapes.iter().any(|s| s.contains(&0)) {
            return false;
        }
        let Made { sequence: Some(sequence), sizes: Some(sizes), .. } = &mut *made else { return false };
        let size = Size { shapes, values: Vec::new() };
        let code = sizes.ahead(&self.machine, sequence, &types, &size, alone);
        let Some(mut code) = code.filter(|_| !sizes.broken) else { return false };
        if self.is_within(&mut code) {
            sizes.keep(&code);
            made.keep(key, code);
        }
        true
    }
}
