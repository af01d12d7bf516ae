//! Programs that keep state, planned ahead: the next run's extents are those of this one, but for state, whose extents this one gives it.
//!
//! What is planned for a size is the same whoever does it, and whenever. Where the program leaves cores alone, the next size is planned while this one
//! runs; else once it has, while the caller has the results.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{JoinHandle, available_parallelism, sleep},
    time::Duration,
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

/// Plans sizes that are to come, on a thread of its own.
pub(super) struct Ahead {
    when: When,
    /// How many runs have begun.
    begun: Arc<AtomicU64>,
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
}

/// Who comes back before this has the next size planned by all threads at once, which one beside them would be in the way of.
const GRACE: Duration = Duration::from_micros(50);

impl Ahead {
    /// For a program with so many threads.
    pub(super) fn new(threads: usize) -> Ahead {
        let cores = available_parallelism().map_or(1, usize::from);
        let when = if threads < cores { When::Before } else { When::After };
        Ahead { when, begun: Arc::default(), worker: Mutex::new(None) }
    }

    /// Says that a run begins.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Has a size planned, where this is when to.
    pub(super) fn plan(&self, kernels: &Arc<Primitives>, when: When, shapes: &[Shape]) {
        if when != self.when {
            return;
        }
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let (kernels, begun) = (kernels.clone(), self.begun.clone());
            let (sizes, asked) = channel();
            // Where no thread can be had, nothing is planned ahead.
            let thread = std::thread::Builder::new().spawn(move || serve(&kernels, &asked, &begun, when));
            *worker = thread.ok().map(|thread| Worker { sizes, thread });
        }
        if let Some(worker) = &*worker {
            // Where it has ended, sizes are planned when they are met.
            let begun = self.begun.load(Ordering::Relaxed);
            worker.sizes.send(Asked { shapes: shapes.to_vec(), begun }).ok();
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

fn serve(kernels: &Primitives, asked: &Receiver<Asked>, begun: &AtomicU64, when: When) {
    while let Ok(first) = asked.recv() {
        if when == When::After {
            sleep(GRACE);
        }
        // What was asked for before that has been met.
        let last = asked.try_iter().last().unwrap_or(first);
        if when == When::Before || begun.load(Ordering::Relaxed) == last.begun {
            // What does not fit into memory is told when it is met.
            within_memory(|| kernels.plan_ahead(last.shapes, when == When::Before)).ok();
        }
    }
}

impl Primitives {
    /// Plans the whole program for a size, on this thread where `alone`, where that takes no new code.
    fn plan_ahead(&self, shapes: Vec<Shape>, alone: bool) {
        let Some(whole) = &self.whole else { return };
        let func = self.module.func(whole.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| self.module.var(p).ty.clone()).collect();
        let mut made = whole.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key { shapes: shapes.clone(), values: Vec::new() };
        if made.code.contains_key(&key) || shapes.iter().any(|s| s.contains(&0)) {
            return;
        }
        let Made { sequence: Some(sequence), sizes: Some(sizes), .. } = &mut *made else { return };
        let size = Size { shapes, values: Vec::new() };
        let code = sizes.ahead(&self.machine, sequence, &types, &size, alone);
        let Some(mut code) = code.filter(|_| !sizes.broken) else { return };
        if self.is_within(&mut code) {
            sizes.keep(&code);
            made.keep(key, code);
        }
    }
}
