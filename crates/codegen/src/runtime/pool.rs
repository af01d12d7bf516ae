//! Threads that share the iterations of parallel loops.
//!
//! Waking a sleeping thread costs tens of microseconds, as long as many a kernel runs. So workers spin for a while before they
//! sleep, and do not sleep at all during an inference. Iterations are claimed in chunks, one at a time: a thread that the system
//! puts aside holds up its own chunk only. Each thread begins with the chunks of its own share, the same part of every loop, so that it finds
//! in its cache what it wrote in the loop before; then it takes from the others' shares, from their ends.

use std::{
    any::Any,
    collections::VecDeque,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle},
};

use super::abi::{ParallelBody, ResatCtx};

/// Pauses before a worker sleeps: about a millisecond.
const SPINS_BEFORE_SLEEP: u32 = 20_000;

/// Pauses between offers of the processor to others, for a thread that has waited long.
const SPINS_BETWEEN_YIELDS: u32 = 512;

/// Chunks per thread: enough to even out unequal threads, few enough that claiming them costs nothing.
const CHUNKS_PER_THREAD: i64 = 4;

/// A fixed number of threads, the caller counted.
///
/// Any thread may ask a pool for work at any time. One loop at a time is shared out; another that comes meanwhile runs in its
/// own caller.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What workers and callers look at.
///
/// Where cores share no cache, a line that another core has written takes as long as hundreds of multiplications: so a loop that is shared
/// out takes few. The caller writes one, `current`, from which all workers learn of it. Each thread claims the chunks of its own share in a
/// line that nobody else looks at before having finished a share, and says in another one, once, how many it ran.
#[derive(Debug)]
struct Shared {
    current: Apart<Loop>,
    /// The caller's, then the workers'. That of a thread which has claimed nothing of the current loop, nor had anything claimed, is from an
    /// earlier one: its share of this one is whole.
    shares: Vec<Apart<AtomicU64>>,
    /// The number of the loop and how many of its chunks the worker has run, by worker.
    finished: Vec<Apart<AtomicU64>>,
    /// Whether a caller has a loop shared out.
    taken: Apart<AtomicBool>,
    /// Inferences that run now: workers stay awake.
    active: AtomicUsize,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
    /// What one worker is to do beside the loops, and whether there is something.
    aside: Mutex<Option<Task>>,
    has_aside: Apart<AtomicBool>,
}

struct Task(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// A loop that is shared out. Its fields change only while no chunk is unclaimed or unfinished; so whoever reads its name, then the fields, and
/// then claims a chunk of that same loop has read the fields of that loop.
#[derive(Default, Debug)]
struct Loop {
    /// Its number, from 1, in the upper half, and how many chunks it has.
    name: AtomicU64,
    body: AtomicUsize,
    env: AtomicPtr<u8>,
    n: AtomicI64,
}

const LOW: u64 = u32::MAX as u64;

/// Unclaimed chunks of a loop: from `begin` to before `end`.
#[derive(Copy, Clone)]
struct Share {
    /// The loop's, in the upper half.
    number: u64,
    begin: u64,
    end: u64,
}

impl Share {
    const BITS: u32 = 16;

    fn of(word: u64) -> Share {
        Share { number: word & !LOW, begin: (word & LOW) >> Share::BITS, end: word & u64::from(u16::MAX) }
    }

    fn word(self) -> u64 {
        self.number | self.begin << Share::BITS | self.end
    }
}

const _: () =
    assert!(Pool::MOST_THREADS as i64 * CHUNKS_PER_THREAD <= u16::MAX as i64, "a share counts chunks by 16 bits");

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Default, Debug)]
#[repr(align(128))]
struct Apart<T>(T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Pool {
    /// More threads than this gain nothing on any machine there is, and far more end the process: each takes memory mappings, of which a
    /// system gives some ten thousands.
    pub const MOST_THREADS: usize = 1024;

    /// A pool of that many threads, the caller counted; 0 counts as 1, and more than [`Pool::MOST_THREADS`] as these. One thread needs no
    /// pool, and starts none.
    pub fn new(threads: usize) -> Pool {
        let others = threads.clamp(1, Pool::MOST_THREADS) - 1;
        let shared = Arc::new(Shared {
            current: Apart::default(),
            shares: (0..=others).map(|_| Apart::default()).collect(),
            finished: (0..others).map(|_| Apart::default()).collect(),
            taken: Apart::default(),
            active: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            asleep: (0..others).map(|_| AtomicBool::new(false)).collect(),
            aside: Mutex::new(None),
            has_aside: Apart::default(),
        });
        // A system that gives fewer threads than asked for leaves a smaller pool, which computes the same.
        let start = |i| {
            let shared = shared.clone();
            thread::Builder::new().name(format!("resat-{i}")).spawn(move || shared.work(i)).ok()
        };
        let workers = (0..others).map_while(start).collect();
        Pool { shared, workers }
    }

    /// The number of threads, the caller counted.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` with the context that kernels take; workers stay awake meanwhile.
    pub fn enter<R>(&self, f: impl FnOnce(&ResatCtx) -> R) -> R {
        if self.workers.is_empty() {
            return f(&ResatCtx::single());
        }
        struct Active<'a>(&'a Shared);
        impl Drop for Active<'_> {
            fn drop(&mut self) {
                self.0.active.fetch_sub(1, SeqCst);
            }
        }
        self.shared.active.fetch_add(1, SeqCst);
        let _active = Active(&self.shared);
        self.wake();
        let pool = std::ptr::from_ref(self).cast::<c_void>();
        f(&ResatCtx { parallel_for: shared_out, pool, threads: self.threads() as i64 })
    }

    /// Calls `f` with every number below `n` once, on all threads of the pool: whoever is free takes the next. Where one of them panics, those
    /// that were not begun are left out, and the panic goes on in the caller.
    pub fn for_each<F: Fn(usize) + Sync>(&self, n: usize, f: F) {
        let all = Numbers { next: AtomicUsize::new(0), n, f, panic: Mutex::new(None) };
        let env = std::ptr::from_ref(&all).cast_mut().cast::<u8>();
        // SAFETY: `numbers` takes a `Numbers` of this function, from any thread, and this one outlives the loop.
        self.enter(|_| unsafe { self.run(numbers::<F>, env, self.threads().min(n) as i64) });
        if let Some(panic) = all.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Calls `make` once, which gives items away, and `take` with each of these, on all threads of the pool: while `make` goes on, or after it.
    pub fn as_made<T: Send, R: Send>(
        &self,
        make: impl FnOnce(&mut dyn FnMut(T)) -> R + Send,
        take: impl Fn(T) + Sync,
    ) -> R {
        struct Ended<'a>(&'a AtomicBool);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.store(true, Release);
            }
        }
        let (make, result) = (Mutex::new(Some(make)), Mutex::new(None));
        let (items, waiting, ended) = (Mutex::new(VecDeque::new()), AtomicUsize::new(0), AtomicBool::new(false));
        let next = || {
            let item = (waiting.load(Relaxed) > 0).then(|| locked(&items).pop_front()).flatten()?;
            waiting.fetch_sub(1, Relaxed);
            Some(item)
        };
        self.for_each(self.threads(), |_| {
            let make = locked(&make).take();
            if let Some(make) = make {
                // Where it panics, too: others would wait for ever.
                let _ended = Ended(&ended);
                let made = make(&mut |item| {
                    locked(&items).push_back(item);
                    waiting.fetch_add(1, Release);
                });
                *locked(&result) = Some(made);
            }
            loop {
                // Whoever sees the end sees all items.
                let is_last = ended.load(Acquire);
                match next() {
                    Some(item) => take(item),
                    None if is_last => break,
                    None => std::hint::spin_loop(),
                }
            }
        });
        let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.expect("one thread has made it, or its panic went on above")
    }

    /// Has one worker call `f` as soon as it is awake and between two loops. Meanwhile others run its share of these. What was asked for before and
    /// has not begun is left out; a panic in `f` ends `f` alone. False where there is no worker.
    pub fn aside(&self, f: impl FnOnce() + Send + 'static) -> bool {
        if self.workers.is_empty() {
            return false;
        }
        let before = locked(&self.shared.aside).replace(Task(Box::new(f)));
        self.shared.has_aside.store(true, Release);
        // What it holds may be the last of something that takes long to let go: not under the lock.
        drop(before);
        true
    }

    fn wake(&self) {
        for (asleep, worker) in self.shared.asleep.iter().zip(&self.workers) {
            if asleep.swap(false, SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Runs `body(env, begin, end)` on ranges that make up `0..n`. Within [`Pool::enter`], which has woken the workers.
    ///
    /// # Safety
    /// `body` must be callable with `env` for any part of `0..n`, from any thread, several at once.
    unsafe fn run(&self, body: ParallelBody, env: *mut u8, n: i64) {
        if n <= 0 {
            return;
        }
        let s = &*self.shared;
        let alone = n == 1 || self.workers.is_empty();
        if alone || s.taken.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            // SAFETY: as the caller promises.
            return unsafe { body(env, 0, n) };
        }
        let chunks = n.min(self.threads() as i64 * CHUNKS_PER_THREAD) as u64;
        let mut number = (s.current.name.load(Relaxed) & !LOW).wrapping_add(1 << 32);
        if number == 0 {
            // What was left by the loop that had a number before can't be told from what belongs to this one.
            s.shares.iter().chain(&s.finished).for_each(|word| word.store(0, Relaxed));
            number = 1 << 32;
        }
        s.current.body.store(body as usize, Relaxed);
        s.current.env.store(env, Relaxed);
        s.current.n.store(n, Relaxed);
        let name = number | chunks;
        s.current.name.store(name, Release);
        let mut own = s.own(name, 0);
        if !s.is_finished(name, own) {
            s.steal(name, 0, own, |done| own = done);
        }
        let mut wait = Waiting::default();
        while !s.is_finished(name, own) {
            wait.pause();
        }
        s.taken.store(false, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.wake();
        for worker in self.workers.drain(..) {
            if worker.thread().id() == thread::current().id() {
                // What it did aside had the pool to the last. It ends by itself.
                continue;
            }
            worker.thread().unpark();
            // A worker can't panic: compiled code aborts, and panics of other work go to its caller.
            let _ = worker.join();
        }
    }
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that threads take one by one.
struct Numbers<F> {
    next: AtomicUsize,
    n: usize,
    f: F,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

unsafe extern "C" fn numbers<F: Fn(usize) + Sync>(env: *mut u8, _: i64, _: i64) {
    // SAFETY: `Pool::for_each` passes a `Numbers` of this function that outlives the loop.
    let all = unsafe { &*env.cast::<Numbers<F>>() };
    let next = || Some(all.next.fetch_add(1, Relaxed)).filter(|&i| i < all.n);
    while let Some(i) = next() {
        // What is left half done is the panic's: the caller hears of it.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (all.f)(i))) {
            all.next.store(all.n, Relaxed);
            locked(&all.panic).get_or_insert(panic);
        }
    }
}

unsafe extern "C" fn shared_out(ctx: *const ResatCtx, body: ParallelBody, env: *mut u8, n: i64) {
    // SAFETY: `ctx` is what `Pool::enter` made, and its pool outlives the call; the rest is the kernel's promise.
    unsafe {
        let pool = &*(*ctx).pool.cast::<Pool>();
        pool.run(body, env, n)
    }
}

impl Shared {
    /// Claims and runs the chunks of one's own share of a loop; says how many.
    fn own(&self, name: u64, me: usize) -> u64 {
        let mut done = 0;
        while self.claim(name, me, true) {
            done += 1;
        }
        done
    }

    /// Claims and runs chunks of the others' shares until none is left, and tells each time how many that makes, with those before.
    fn steal(&self, name: u64, me: usize, mut done: u64, mut tell: impl FnMut(u64)) {
        for i in 1..self.shares.len() {
            while self.claim(name, (me + i) % self.shares.len(), false) {
                done += 1;
                tell(done);
            }
        }
    }

    /// Whether all chunks of a loop are finished, so many of them by the caller.
    fn is_finished(&self, name: u64, own: u64) -> bool {
        let of = |word: u64| if word & !LOW == name & !LOW { word & LOW } else { 0 };
        own + self.finished.iter().map(|f| of(f.load(Acquire))).sum::<u64>() == name & LOW
    }

    /// Claims and runs a chunk of the share of that number, from its beginning or its end; false where none is left.
    fn claim(&self, name: u64, share: usize, first: bool) -> bool {
        let (number, chunks) = (name & !LOW, name & LOW);
        let start = |share: usize| chunks * share as u64 / self.shares.len() as u64;
        let mut word = self.shares[share].load(Acquire);
        loop {
            let left = match Share::of(word) {
                left if left.number == number => left,
                // Of an earlier loop, or of a later one.
                _ if self.current.name.load(Acquire) == name => {
                    Share { number, begin: start(share), end: start(share + 1) }
                }
                _ => return false,
            };
            if left.begin == left.end {
                return false;
            }
            let Loop { body, env, n, .. } = &*self.current;
            let (body, env, n) = (body.load(Relaxed), env.load(Relaxed), n.load(Relaxed));
            let (chunk, rest) = match first {
                true => (left.begin, Share { begin: left.begin + 1, ..left }),
                false => (left.end - 1, Share { end: left.end - 1, ..left }),
            };
            match self.shares[share].compare_exchange_weak(word, rest.word(), AcqRel, Acquire) {
                Err(now) => word = now,
                Ok(_) => {
                    let at = |chunk: u64| (n as i128 * i128::from(chunk) / i128::from(chunks)) as i64;
                    // SAFETY: the loop was not finished when the chunk was claimed, so the fields were its own: `body` is the
                    // function that `run` was given, with the `env` that belongs to it.
                    unsafe {
                        let body = std::mem::transmute::<usize, ParallelBody>(body);
                        body(env, at(chunk), at(chunk + 1));
                    }
                    return true;
                }
            }
        }
    }

    fn work(&self, me: usize) {
        let mut last = 0;
        let mut wait = Waiting::default();
        while !self.stop.load(Relaxed) {
            if self.has_aside.load(Relaxed) && self.has_aside.swap(false, Acquire) {
                let task = locked(&self.aside).take();
                // The panic hook has printed a panic of the task; the worker goes on.
                let _ = catch_unwind(AssertUnwindSafe(|| task.map(|Task(f)| f())));
                wait = Waiting::default();
            }
            let name = self.current.name.load(Acquire);
            if name != last {
                let own = self.own(name, me + 1);
                let tell = |done: u64| self.finished[me].store(name & !LOW | done, Release);
                if own > 0 {
                    tell(own);
                }
                self.steal(name, me + 1, own, tell);
                last = name;
                wait = Waiting::default();
            } else if wait.spins < SPINS_BEFORE_SLEEP || self.active.load(Relaxed) > 0 {
                wait.pause();
            } else {
                self.asleep[me].store(true, SeqCst);
                // An inference that began between the last look and the flag would not have woken this thread.
                if self.active.load(SeqCst) > 0 || self.stop.load(SeqCst) {
                    self.asleep[me].store(false, SeqCst);
                } else {
                    while self.asleep[me].load(SeqCst) && !self.stop.load(SeqCst) {
                        thread::park();
                    }
                }
                wait = Waiting::default();
            }
        }
    }
}

#[derive(Default)]
struct Waiting {
    spins: u32,
}

impl Waiting {
    fn pause(&mut self) {
        self.spins = self.spins.saturating_add(1);
        if self.spins > SPINS_BEFORE_SLEEP && self.spins.is_multiple_of(SPINS_BETWEEN_YIELDS) {
            thread::yield_now();
            self.spins = SPINS_BEFORE_SLEEP + 1;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Marks(Vec<AtomicI64>);

    unsafe extern "C" fn mark(env: *mut u8, begin: i64, end: i64) {
        // SAFETY: the tests below pass a `Marks` that outlives the loop.
        let marks = unsafe { &*env.cast::<Marks>() };
        for i in begin..end {
            marks.0[i as usize].fetch_add(1, Relaxed);
        }
    }

    fn every_iteration_runs_once(ctx: &ResatCtx, n: usize) {
        let mut marks = Marks((0..n).map(|_| AtomicI64::new(0)).collect());
        // SAFETY: `mark` takes a `Marks`.
        unsafe { (ctx.parallel_for)(ctx, mark, std::ptr::from_mut(&mut marks).cast(), n as i64) };
        assert!(marks.0.iter().all(|m| m.load(Relaxed) == 1));
    }

    #[test]
    fn iterations_run_once() {
        for threads in 1..5 {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            pool.enter(|ctx| (0..500).for_each(|n| every_iteration_runs_once(ctx, n)));
        }
    }

    #[test]
    fn sleepers_wake() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            thread::sleep(std::time::Duration::from_millis(20));
            pool.enter(|ctx| every_iteration_runs_once(ctx, 1000));
        }
    }

    #[test]
    fn numbers_of_loops_begin_again() {
        let pool = Pool::new(3);
        pool.shared.current.name.store((LOW - 3) << 32, SeqCst);
        pool.enter(|ctx| (0..50).for_each(|n| every_iteration_runs_once(ctx, n % 4)));
    }

    struct Stalled {
        caller: thread::ThreadId,
        n: i64,
        stalled: AtomicBool,
        done: AtomicI64,
        /// How many iterations others had done when the stalled one went on; negative where none was stalled.
        others: AtomicI64,
    }

    /// The first iteration that a worker gets takes as long as all others together, or a few seconds at most.
    unsafe extern "C" fn stall(env: *mut u8, begin: i64, end: i64) {
        // SAFETY: the test below passes a `Stalled` that outlives the loop.
        let s = unsafe { &*env.cast::<Stalled>() };
        let caller = thread::current().id() == s.caller;
        if !caller && !s.stalled.swap(true, SeqCst) {
            let start = std::time::Instant::now();
            while s.done.load(SeqCst) < s.n - (end - begin) && start.elapsed() < std::time::Duration::from_secs(5) {
                thread::yield_now();
            }
            s.others.store(s.done.load(SeqCst), SeqCst);
        } else if caller && !s.stalled.load(SeqCst) {
            // A worker is to come by first.
            thread::sleep(std::time::Duration::from_millis(1));
        }
        s.done.fetch_add(end - begin, SeqCst);
    }

    #[test]
    fn a_stalled_worker_does_not_stall_the_rest() {
        let pool = Pool::new(3);
        let n = 3 * CHUNKS_PER_THREAD;
        let mut met = 0;
        for _ in 0..20 {
            let mut env = Stalled {
                caller: thread::current().id(),
                n,
                stalled: AtomicBool::new(false),
                done: AtomicI64::new(0),
                others: AtomicI64::new(-1),
            };
            // SAFETY: `stall` takes a `Stalled`.
            pool.enter(|ctx| unsafe { (ctx.parallel_for)(ctx, stall, std::ptr::from_mut(&mut env).cast(), n) });
            assert_eq!(env.done.load(SeqCst), n);
            match env.others.load(SeqCst) {
                others if others >= 0 => {
                    assert_eq!(others, n - 1, "all but the stalled iteration were done meanwhile");
                    met += 1;
                }
                // No worker came by: nothing was to be seen.
                _ => {}
            }
        }
        assert!(met > 0, "no worker took part in any loop");
    }

    #[test]
    fn numbers_are_taken_once_each() {
        for threads in 1..4 {
            let pool = Pool::new(threads);
            for n in [0, 1, 2, 100] {
                let marks: Vec<AtomicI64> = (0..n).map(|_| AtomicI64::new(0)).collect();
                pool.for_each(n, |i| _ = marks[i].fetch_add(1, Relaxed));
                assert!(marks.iter().all(|m| m.load(Relaxed) == 1), "{n} numbers, {threads} threads");
            }
            let met = catch_unwind(AssertUnwindSafe(|| pool.for_each(100, |i| assert!(i != 7, "met"))));
            assert!(met.is_err(), "a panic goes on in the caller");
            pool.for_each(100, |_| ());
        }
    }

    #[test]
    fn items_are_taken_as_they_are_made() {
        for threads in 1..4 {
            let pool = Pool::new(threads);
            let sum = AtomicI64::new(0);
            let take = |n: i64| _ = sum.fetch_add(n, Relaxed);
            let make = |give: &mut dyn FnMut(i64)| {
                (1..=100).for_each(give);
                7
            };
            let made = pool.as_made(make, take);
            assert_eq!((made, sum.load(Relaxed)), (7, 5050), "{threads} threads");
            let make = |give: &mut dyn FnMut(i64)| {
                give(1);
                assert!(threads > 3, "met");
            };
            assert!(catch_unwind(AssertUnwindSafe(|| pool.as_made(make, take))).is_err());
            let take = |n: i64| assert!(n < 50, "met");
            assert!(catch_unwind(AssertUnwindSafe(|| pool.as_made(|give| (1..=100).for_each(give), take))).is_err());
        }
    }

    #[test]
    fn tasks_are_done_aside() {
        assert!(!Pool::new(1).aside(|| ()), "nobody is there to do it");
        let pool = Arc::new(Pool::new(3));
        let (begun, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begins, may_end) = (begun.clone(), end.clone());
        let asked = pool.aside(move || {
            begins.store(true, SeqCst);
            while !may_end.load(SeqCst) {
                thread::yield_now();
            }
            panic!("met");
        });
        assert!(asked);
        // Loops go on while a worker does something else, and after that.
        pool.enter(|ctx| {
            while !begun.load(SeqCst) {
                every_iteration_runs_once(ctx, 100);
            }
            (0..100).for_each(|n| every_iteration_runs_once(ctx, n));
            end.store(true, SeqCst);
            (0..100).for_each(|n| every_iteration_runs_once(ctx, n));
        });
        // What holds the pool to the last may be what is done.
        let (held, met) = (pool.clone(), Arc::new(AtomicBool::new(false)));
        let meets = met.clone();
        pool.aside(move || {
            while Arc::strong_count(&held) > 1 {
                thread::yield_now();
            }
            drop(held);
            meets.store(true, SeqCst);
        });
        pool.enter(|_| ());
        drop(pool);
        while !met.load(SeqCst) {
            thread::yield_now();
        }
    }

    #[test]
    fn callers_do_not_disturb_each_other() {
        let pool = Pool::new(3);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..300).for_each(|n| pool.enter(|ctx| every_iteration_runs_once(ctx, n))));
            }
        });
    }
}
