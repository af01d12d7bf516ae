//! Where the time of a run goes, kernel by kernel: beside what the machine could do, and what the model of a core expected.

use std::time::{Duration, Instant};

use super::counters::{Count, Counters};
use crate::{
    runtime::{Estimate, Executable, RunError},
    target::Target,
    tensor::{DType, Tensor},
};

/// A kernel is said to be bound by what it comes to this share of; one that comes to no such share, by latencies, or overhead.
const BOUND: f64 = 0.4;

/// The calls of a program as they were timed, in the program's order, and the machine that they are compared with.
#[derive(Debug)]
pub struct Profile {
    /// The calls.
    pub calls: Vec<ProfiledCall>,
    /// The threads that ran them.
    pub threads: usize,
    /// What the system counted in each call, where that was asked for and it does: of the processor, and page faults.
    pub counters: Vec<&'static str>,
    /// What it does not count, and why.
    pub uncounted: Vec<String>,
    target: Target,
}

/// A call of a kernel, as it was timed.
#[derive(Clone, Debug)]
pub struct ProfiledCall {
    /// The kernel's name: its operators and a digest.
    pub kernel: String,
    /// Seconds: the median of the runs.
    pub seconds: f64,
    /// Seconds of the fastest run, which nothing else on the machine disturbed.
    pub least: f64,
    /// What it was expected to take.
    pub estimate: Estimate,
    /// Bytes of weights and inputs that it reads from main memory: those of a run do not fit into the last cache, so that none of them is there from one
    /// run to the next.
    pub from_memory: f64,
    /// What each of [`Profile::counters`] counted in the thread that calls: the median of the runs; NaN where it did not count meanwhile.
    pub counted: Vec<f64>,
}

/// Why there is no profile of some programs.
pub(crate) const NOT_PLAIN: &str =
    "profiles are made of programs that are a plain sequence of calls, which this one is not for these inputs";

/// What each call of a program is expected to take, and bytes of weights and inputs that it reads.
pub(super) fn estimates_of(exe: &Executable) -> Vec<(Estimate, f64)> {
    let program = exe.program();
    // Of a table, only some rows may be read.
    let read = |(estimate, sources): (Estimate, usize)| (estimate, estimate.bytes.min(sources as f64));
    program.step_estimates().zip(program.step_sources()).map(read).collect()
}

/// What is read before and after each call.
pub(super) struct Reading {
    /// When the call before had ended.
    end: Instant,
    counters: Vec<Count>,
    /// When the next one began: reading counters takes a while.
    begin: Instant,
}

/// Reads the time, and counters where these are asked for.
pub(super) struct Reader(Option<Counters>);

impl Reader {
    /// For this thread, on which the program has to run.
    pub(super) fn new(counts: bool) -> Reader {
        Reader(counts.then(Counters::of_this_thread))
    }

    pub(super) fn read(&mut self) -> Reading {
        let end = Instant::now();
        match &mut self.0 {
            Some(counters) => Reading { end, counters: counters.read(), begin: Instant::now() },
            None => Reading { end, counters: Vec::new(), begin: end },
        }
    }
}

/// A run's calls, in order.
pub(super) struct TimedRun {
    kernels: Vec<String>,
    times: Vec<Duration>,
    /// By call.
    counted: Vec<Vec<f64>>,
    threads: usize,
}

impl TimedRun {
    /// Of a program, and what was read before its first step and after each.
    pub(super) fn new(exe: &Executable, readings: &[Reading]) -> TimedRun {
        let program = exe.program();
        let kernels = program.steps().iter().map(|step| program.step_name(step).to_owned()).collect();
        let times = readings.windows(2).map(|w| w[1].end - w[0].begin).collect();
        let counted = |w: &[Reading]| w[1].counters.iter().zip(&w[0].counters).map(|(b, a)| b.since(*a)).collect();
        let counted = readings.windows(2).map(counted).collect();
        TimedRun { kernels, times, counted, threads: exe.pool().threads() }
    }
}

/// What keeps a call from being faster.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The units that multiply.
    Arithmetic,
    /// The way from caches.
    Bandwidth,
    /// The way from main memory.
    Memory,
    /// Neither: latencies, or what a call costs by itself.
    Latency,
}

impl Bound {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Arithmetic => "arithmetic",
            Bound::Bandwidth => "bandwidth",
            Bound::Memory => "memory",
            Bound::Latency => "latency",
        }
    }
}

impl Profile {
    /// Times each call in so many runs, at least one, and has the system count in them where that is asked for.
    pub fn measure(
        exe: &Executable,
        inputs: &[Tensor],
        runs: usize,
        target: Target,
        counts: bool,
    ) -> Result<Profile, RunError> {
        let mut reader = Reader::new(counts);
        let run = |_| Ok(TimedRun::new(exe, &exe.profile_by(inputs, || reader.read())?));
        let runs = (0..runs.max(1)).map(run).collect::<Result<Vec<TimedRun>, RunError>>()?;
        Ok(Profile::of_runs(runs, &estimates_of(exe), target, &reader))
    }

    /// What some runs took: those that make the same calls as the last one, which is expected to take that.
    pub(super) fn of_runs(
        mut runs: Vec<TimedRun>,
        estimates: &[(Estimate, f64)],
        target: Target,
        reader: &Reader,
    ) -> Profile {
        let counters = reader.0.as_ref().map_or_else(Vec::new, |c| c.names().to_vec());
        let uncounted = reader.0.as_ref().map_or_else(Vec::new, |c| c.missing().to_vec());
        let Some(last) = runs.pop() else {
            return Profile { calls: Vec::new(), threads: 1, counters, uncounted, target };
        };
        runs.retain(|run| run.kernels == last.kernels);
        let last_cache = (target.timing.l3.bytes * target.cores as i64) as f64;
        let is_beyond = estimates.iter().map(|e| e.1).sum::<f64>() > last_cache;
        let call = |(i, (kernel, (estimate, sources))): (usize, (&String, &(Estimate, f64)))| {
            let sorted = |of: &dyn Fn(&TimedRun) -> f64| {
                let mut all: Vec<f64> = runs.iter().chain([&last]).map(of).collect();
                all.sort_by(f64::total_cmp);
                all
            };
            let times = sorted(&|run| run.times[i].as_secs_f64());
            let counted = |c: usize| sorted(&|run| run.counted[i][c])[times.len() / 2];
            ProfiledCall {
                kernel: kernel.clone(),
                // No clock is so fine that a call takes no time at all.
                seconds: times[times.len() / 2].max(1e-9),
                least: times[0].max(1e-9),
                estimate: *estimate,
                from_memory: if is_beyond { *sources } else { 0.0 },
                counted: (0..counters.len()).map(counted).collect(),
            }
        };
        let calls = last.kernels.iter().zip(estimates).enumerate().map(call).collect();
        Profile { calls, threads: last.threads, counters, uncounted, target }
    }

    /// The threads as a share of the target's cores.
    fn cores(&self) -> f64 {
        self.threads as f64 / self.target.cores as f64
    }

    /// Operations a second that the threads can do on factors of a type, of `float32` where none is given.
    pub fn peak(&self, factors: Option<DType>) -> f64 {
        self.target.peak(factors.unwrap_or(DType::F32)) * self.cores()
    }

    /// Bytes a second between the threads and the caches that layers' results live in.
    pub fn bandwidth(&self) -> f64 {
        self.target.bandwidth() * self.cores()
    }

    /// A call's share of the peak.
    pub fn of_peak(&self, call: &ProfiledCall) -> f64 {
        call.estimate.operations / call.seconds / self.peak(call.estimate.factors)
    }

    /// Bytes a second that the threads read from main memory.
    pub fn memory_bandwidth(&self) -> f64 {
        self.target.timing.dram * self.threads as f64
    }

    /// Seconds that a call's bytes take at the full bandwidth of where they lie.
    fn traffic(&self, call: &ProfiledCall) -> f64 {
        (call.estimate.bytes - call.from_memory) / self.bandwidth() + call.from_memory / self.memory_bandwidth()
    }

    /// A call's share of the bandwidth of where its bytes lie.
    pub fn of_bandwidth(&self, call: &ProfiledCall) -> f64 {
        self.traffic(call) / call.seconds
    }

    /// What keeps a call from being faster.
    pub fn bound(&self, call: &ProfiledCall) -> Bound {
        let (arithmetic, traffic) = (self.of_peak(call), self.of_bandwidth(call));
        match arithmetic.max(traffic) >= BOUND {
            true if arithmetic >= traffic => Bound::Arithmetic,
            true if call.from_memory > call.estimate.bytes / 2.0 => Bound::Memory,
            true => Bound::Bandwidth,
            false => Bound::Latency,
        }
    }

    /// Seconds that the model expects of a call: the cycles of its reductions, but no less than its operations at the peak and its bytes at the
    /// full bandwidth of where they lie; none where nothing is known.
    pub fn expected(&self, call: &ProfiledCall) -> Option<f64> {
        let Estimate { operations, factors, cycles, .. } = call.estimate;
        let reductions = cycles / self.target.timing.clock / self.threads as f64;
        let arithmetic = reductions.max(operations / self.peak(factors));
        (operations > 0.0).then(|| arithmetic.max(self.traffic(call)))
    }
}
