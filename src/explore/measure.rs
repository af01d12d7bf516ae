//! Programs measured fairly: in turns, so that what disturbs the machine for a while disturbs them all.

use std::time::{Duration, Instant};

use crate::{cancel::Cancel, diag::Refused, driver::Runnable, runtime::Pool, tensor::Tensor};

/// Turns of every program: a program's runs are spread over the whole time.
const TURNS: u32 = 8;

/// A program never has fewer measured runs, however slow it is.
const LEAST_RUNS: usize = 3;

/// A program with its inputs, ready to be measured.
pub(super) struct Runner {
    program: Runnable,
    outputs: Vec<Tensor>,
    /// Seconds of each measured run.
    pub latencies: Vec<f64>,
    spent: Duration,
}

impl Runner {
    /// Runs once; `Err` is what running refuses. Programs that run on one pool do not wait in each other's way.
    pub(super) fn new(
        mut program: Runnable,
        inputs: &[Tensor],
        pool: &std::sync::Arc<Pool>,
    ) -> Result<Runner, Refused> {
        if let Runnable::Plain(exe) = &mut program {
            exe.set_pool(pool.clone());
        }
        let outputs = program.run(inputs)?;
        Ok(Runner { program, outputs, latencies: Vec::new(), spent: Duration::ZERO })
    }

    /// What it computed.
    pub(super) fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    fn once(&mut self, inputs: &[Tensor]) -> Result<Duration, Refused> {
        let start = Instant::now();
        match &self.program {
            Runnable::Plain(exe) => {
                exe.run_into(inputs, &mut self.outputs).map_err(|e| crate::diag::Diagnostic::new(e.to_string()))?
            }
            Runnable::Machine(_) => drop(self.program.run(inputs)?),
        }
        Ok(start.elapsed())
    }

    /// One turn: a run that warms caches and threads, then measured ones for a while.
    fn turn(&mut self, inputs: &[Tensor], time: Duration) -> Result<(), Refused> {
        let begin = Instant::now();
        self.once(inputs)?;
        loop {
            let seconds = self.once(inputs)?.as_secs_f64();
            self.latencies.push(seconds);
            if begin.elapsed() >= time {
                self.spent += begin.elapsed();
                return Ok(());
            }
        }
    }
}

/// Measures all of them, each for about so long, unless somebody ends it. `tell` is called before every turn with its number and the number of turns.
pub(super) fn measure(
    runners: &mut [Runner],
    inputs: &[Tensor],
    each: Duration,
    cancel: &Cancel,
    tell: &mut dyn FnMut(usize, usize),
) -> Result<(), Refused> {
    let turns = TURNS as usize * runners.len();
    for turn in 0..TURNS as usize {
        let n = runners.len();
        for i in 0..n {
            cancel.go_on()?;
            tell(turn * n + i, turns);
            // Forwards and backwards in turn: nobody always runs after the same neighbour.
            let runner = &mut runners[if turn % 2 == 0 { i } else { n - 1 - i }];
            if runner.spent < each || runner.latencies.len() < LEAST_RUNS {
                runner.turn(inputs, each / TURNS)?;
            }
        }
    }
    Ok(())
}

/// Median, least and 90 % of some latencies; zeros where there are none.
pub(super) fn spread(latencies: &[f64]) -> (f64, f64, f64) {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at =
        |q: usize| sorted.get((sorted.len() * q / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0);
    (at(50), at(0), at(90))
}

/// The largest difference of two lists of results, as a share of the largest value of each; `None` where their types differ.
pub(super) fn difference(want: &[Tensor], got: &[Tensor]) -> Option<f64> {
    if want.len() != got.len() {
        return None;
    }
    let mut worst: f64 = 0.0;
    for (w, g) in want.iter().zip(got) {
        if w.shape() != g.shape() || w.dtype() != g.dtype() {
            return None;
        }
        let (w, g) = (w.to_f64_vec(), g.to_f64_vec());
        let scale = w.iter().filter(|x| x.is_finite()).fold(1e-30f64, |m, x| m.max(x.abs()));
        for (a, b) in w.iter().zip(&g) {
            let same = a == b || (a.is_nan() && b.is_nan());
            let off = if same { 0.0 } else { (a - b).abs() / scale };
            worst = worst.max(if off.is_nan() { f64::INFINITY } else { off });
        }
    }
    Some(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_differences() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
        let t = |v: &[f32]| Tensor::from_slice(&[v.len()], v);
        assert_eq!(difference(&[t(&[1.0, 4.0])], &[t(&[1.0, 3.0])]), Some(0.25));
        assert_eq!(difference(&[t(&[1.0])], &[t(&[f32::NAN])]), Some(f64::INFINITY));
        assert_eq!(difference(&[t(&[1.0])], &[t(&[1.0, 2.0])]), None);
    }
}
