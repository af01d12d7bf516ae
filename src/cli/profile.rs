//! Where the time of a run goes, kernel by kernel: beside what the machine could do, and what the model of a core expected.

use std::fmt::Write;

use crate::{
    runtime::{Estimate, Executable, RunError, Step},
    target::Target,
    tensor::{DType, Tensor},
};

/// A kernel is said to be bound by what it comes to this share of; one that does not by neither, but by latencies, or overhead.
const BOUND: f64 = 0.4;

/// A call of a kernel, as it was measured.
pub(super) struct Row {
    name: String,
    /// Median of the runs.
    seconds: f64,
    estimate: Estimate,
    /// Of all arguments and results.
    bytes: usize,
}

/// The machine that rows are compared with.
pub(super) struct Machine {
    target: Target,
    threads: usize,
}

impl Machine {
    pub(super) fn new(target: Target, threads: usize) -> Machine {
        Machine { target, threads }
    }

    /// A share of the target's cores is used.
    fn cores(&self) -> f64 {
        self.threads as f64 / self.target.cores as f64
    }

    /// Operations a second.
    fn peak(&self, factors: Option<DType>) -> f64 {
        self.target.peak(factors.unwrap_or(DType::F32)) * self.cores()
    }

    /// Bytes a second, of caches that layers' results live in.
    fn bandwidth(&self) -> f64 {
        self.target.bandwidth() * self.cores()
    }
}

impl Row {
    fn of_peak(&self, machine: &Machine) -> f64 {
        self.estimate.operations / self.seconds / machine.peak(self.estimate.factors)
    }

    fn of_bandwidth(&self, machine: &Machine) -> f64 {
        self.bytes as f64 / self.seconds / machine.bandwidth()
    }

    /// What keeps it from being faster.
    fn bound(&self, machine: &Machine) -> &'static str {
        let (arithmetic, traffic) = (self.of_peak(machine), self.of_bandwidth(machine));
        match arithmetic.max(traffic) >= BOUND {
            true if arithmetic >= traffic => "arithmetic",
            true => "bandwidth",
            false => "latency",
        }
    }

    /// Seconds that the model expects: of its reductions by their cycles, and no less than what its bytes take; none where nothing is known.
    fn expected(&self, machine: &Machine) -> Option<f64> {
        let cycles = self.estimate.cycles / machine.target.timing.clock / machine.threads as f64;
        (self.estimate.operations > 0.0).then(|| cycles.max(self.bytes as f64 / machine.bandwidth()))
    }
}

/// Times each call in so many runs.
pub(super) fn measure(exe: &Executable, inputs: &[Tensor], runs: usize) -> Result<Vec<Row>, RunError> {
    let mut times: Vec<Vec<f64>> = vec![Vec::with_capacity(runs); exe.program().steps().len()];
    for _ in 0..runs {
        for (times, time) in times.iter_mut().zip(exe.profile(inputs)?) {
            times.push(time.as_secs_f64());
        }
    }
    let row = |(mut times, step): (Vec<f64>, &Step)| {
        times.sort_by(f64::total_cmp);
        Row {
            name: exe.program().step_name(step).to_owned(),
            // No clock is so fine that a call takes no time at all.
            seconds: times[times.len() / 2].max(1e-9),
            estimate: exe.program().step_estimate(step),
            bytes: exe.program().step_bytes(step),
        }
    };
    Ok(times.into_iter().zip(exe.program().steps()).map(row).collect())
}

/// The rows as people read them, those that take longest first.
pub(super) fn table(rows: &[Row], machine: &Machine) -> String {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let all: f64 = rows.iter().map(|r| r.seconds).sum();
    let mut text = format!(
        "peak {:.1} Gop/s (float32), bandwidth {:.1} GB/s, {} thread{}\n{:>11} {:>6} {:>9} {:>8} {:>8} {:>10}  {:10}  {:>11}  kernel\n",
        machine.peak(None) / 1e9,
        machine.bandwidth() / 1e9,
        machine.threads,
        if machine.threads == 1 { "" } else { "s" },
        "us",
        "share",
        "Gop/s",
        "of peak",
        "GB/s",
        "of bandw.",
        "bound by",
        "expected us"
    );
    for row in sorted {
        let expected = row.expected(machine).map_or("-".to_owned(), |s| format!("{:.3}", 1e6 * s));
        let arithmetic = match row.estimate.operations > 0.0 {
            true => {
                format!("{:>9.2} {:>7.1}%", row.estimate.operations / row.seconds / 1e9, 100.0 * row.of_peak(machine))
            }
            false => format!("{:>9} {:>8}", "-", "-"),
        };
        let _ = writeln!(
            text,
            "{:>11.3} {:>5.1}% {arithmetic} {:>8.2} {:>9.1}%  {:10}  {expected:>11}  {}",
            1e6 * row.seconds,
            100.0 * row.seconds / all,
            row.bytes as f64 / row.seconds / 1e9,
            100.0 * row.of_bandwidth(machine),
            row.bound(machine),
            row.name,
        );
    }
    text
}

/// The rows as data, in the order of the program.
pub(super) fn json(rows: &[Row], machine: &Machine) -> serde_json::Value {
    let row = |r: &Row| {
        serde_json::json!({
            "kernel": r.name,
            "seconds": r.seconds,
            "operations": r.estimate.operations,
            "bytes": r.bytes,
            "share_of_peak": r.of_peak(machine),
            "share_of_bandwidth": r.of_bandwidth(machine),
            "bound": r.bound(machine),
            "expected_seconds": r.expected(machine),
        })
    };
    rows.iter().map(row).collect()
}
