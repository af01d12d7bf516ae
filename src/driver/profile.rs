//! Where the time of a run goes, kernel by kernel: beside what the machine could do, and what the model of a core expected.

use std::time::Duration;

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
}

/// Why there is no profile of some programs.
pub(crate) const NOT_PLAIN: &str =
    "profiles are made of programs that are a plain sequence of calls, which this one is not for these inputs";

/// What each call of a program is expected to take.
pub(super) fn estimates_of(exe: &Executable) -> Vec<Estimate> {
    let program = exe.program();
    program.steps().iter().map(|step| program.step_estimate(step)).collect()
}

/// A run's calls, in order.
pub(super) struct TimedRun {
    kernels: Vec<String>,
    times: Vec<Duration>,
    threads: usize,
}

impl TimedRun {
    /// Of a program, and how long each of its steps took.
    pub(super) fn new(exe: &Executable, times: Vec<Duration>) -> TimedRun {
        let program = exe.program();
        let kernels = program.steps().iter().map(|step| program.step_name(step).to_owned()).collect();
        TimedRun { kernels, times, threads: exe.pool().threads() }
    }
}

/// What keeps a call from being faster.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The units that multiply.
    Arithmetic,
    /// The way from memory and caches.
    Bandwidth,
    /// Neither: latencies, or what a call costs by itself.
    Latency,
}

impl Bound {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Arithmetic => "arithmetic",
            Bound::Bandwidth => "bandwidth",
            Bound::Latency => "latency",
        }
    }
}

impl Profile {
    /// Times each call in so many runs, at least one.
    pub fn measure(exe: &Executable, inputs: &[Tensor], runs: usize, target: Target) -> Result<Profile, RunError> {
        let run = |_| Ok(TimedRun::new(exe, exe.profile(inputs)?));
        let runs = (0..runs.max(1)).map(run).collect::<Result<Vec<TimedRun>, RunError>>()?;
        Ok(Profile::of_runs(runs, &estimates_of(exe), target))
    }

    /// What some runs took: those that make the same calls as the last one, which is expected to take that.
    pub(super) fn of_runs(mut runs: Vec<TimedRun>, estimates: &[Estimate], target: Target) -> Profile {
        let Some(last) = runs.pop() else { return Profile { calls: Vec::new(), threads: 1, target } };
        runs.retain(|run| run.kernels == last.kernels);
        let call = |(i, (kernel, estimate)): (usize, (&String, &Estimate))| {
            let mut times: Vec<f64> = runs.iter().chain([&last]).map(|run| run.times[i].as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            ProfiledCall {
                kernel: kernel.clone(),
                // No clock is so fine that a call takes no time at all.
                seconds: times[times.len() / 2].max(1e-9),
                least: times[0].max(1e-9),
                estimate: *estimate,
            }
        };
        let calls = last.kernels.iter().zip(estimates).enumerate().map(call).collect();
        Profile { calls, threads: last.threads, target }
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

    /// A call's share of the bandwidth.
    pub fn of_bandwidth(&self, call: &ProfiledCall) -> f64 {
        call.estimate.bytes / call.seconds / self.bandwidth()
    }

    /// What keeps a call from being faster.
    pub fn bound(&self, call: &ProfiledCall) -> Bound {
        let (arithmetic, traffic) = (self.of_peak(call), self.of_bandwidth(call));
        match arithmetic.max(traffic) >= BOUND {
            true if arithmetic >= traffic => Bound::Arithmetic,
            true => Bound::Bandwidth,
            false => Bound::Latency,
        }
    }

    /// Seconds that the model expects of a call: the cycles of its reductions, but no less than its operations at the peak and its bytes at the
    /// full bandwidth; none where nothing is known.
    pub fn expected(&self, call: &ProfiledCall) -> Option<f64> {
        let Estimate { operations, bytes, factors, cycles } = call.estimate;
        let reductions = cycles / self.target.timing.clock / self.threads as f64;
        let arithmetic = reductions.max(operations / self.peak(factors));
        (operations > 0.0).then(|| arithmetic.max(bytes / self.bandwidth()))
    }
}
