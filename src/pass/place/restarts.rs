//! Extraction again from other starting points.
//!
//! A region pays only once all of it has moved, so extraction starts again from prices that are wrong on purpose. Minimum cuts would be
//! exact for two makers and a fixed program, but know nothing of kernels and layouts.

use std::sync::Arc;

use crate::{
    extract::{Choice, Extractor, Problem, Solution, improved},
    tensor::SplitMix64,
};

/// An extractor that chooses several times, and keeps the cheapest program.
///
/// Where several compilers could make a part, good programs are far from each other: a region pays only once all of it has moved,
/// which no single move shows. So the extractor also chooses under prices that are wrong on purpose, each by a random factor
/// (always the same ones), and under prices that are shared among the users that the best program so far has; each choice is
/// then improved by exact local moves under the true prices. Against all placements of small programs, this finds the cheapest
/// one but for few (`tests/passes/placement.rs`); `--extractor search` goes on from there.
pub(super) struct Restarts(pub(super) Arc<dyn Extractor>);

/// Choices under wrong prices...
const STARTS: u64 = 16;

/// ...which are wrong by up to this factor, either way.
const WRONG: f64 = 3.0;

/// Beyond so many candidates, a choice takes too long for so many starts: there are fewer.
const MANY: usize = 20_000;

impl Extractor for Restarts {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("restarts {}", self.0.fingerprint()?))
    }

    fn extract(&self, p: &Problem) -> Choice {
        self.solve(p).choice
    }

    fn solve(&self, p: &Problem) -> Solution {
        let mut solution = self.0.solve(p);
        let starts = (STARTS as usize * MANY / p.candidates().max(MANY)).max(2) as u64;
        for start in 0..starts {
            let prices = match start % 4 {
                0 => shared(p, &solution.choice),
                _ => wrong(p, start),
            };
            let other = improved(p, self.0.extract(&prices));
            if let (Ok(new), Ok(old)) = (other.total(p), solution.choice.total(p))
                && new < old
            {
                solution = Solution { choice: other, ..solution };
            }
        }
        solution
    }
}

/// Prices that are off by random factors.
fn wrong(p: &Problem, start: u64) -> Problem {
    let mut rng = SplitMix64(start.wrapping_mul(SplitMix64::STEP));
    p.repriced(|_, candidate| candidate.cost * WRONG.powf(2.0 * rng.unit() - 1.0))
}

/// Prices of what a program holds, shared among those that use it there.
fn shared(p: &Problem, choice: &Choice) -> Problem {
    let mut users = vec![0usize; p.classes()];
    for class in choice.order(p).unwrap_or_default() {
        let Some(candidate) = choice.get(class) else { continue };
        let mut needs = p.needs(candidate).to_vec();
        needs.sort_unstable();
        needs.dedup();
        needs.into_iter().for_each(|c| users[c as usize] += 1);
    }
    p.repriced(|class, candidate| {
        let chosen = choice.get(class).is_some_and(|c| std::ptr::eq(p.candidate(c), candidate));
        let users = users[class as usize].max(1);
        if chosen { candidate.cost / users as f64 } else { candidate.cost }
    })
}
