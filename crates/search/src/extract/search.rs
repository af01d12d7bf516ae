//! Extraction by local search that can be stopped at any time.

use std::time::{Duration, Instant};

use super::{
    Choice, DagGreedy, Extractor, Problem, Solution,
    improve::{Adoption, State, improve},
    tree::Trees,
};
use crate::tensor::SplitMix64;

/// Simulated annealing from DAG-greedy's choice, and never worse than it.
///
/// A move chooses another node for one class of the program, or lets all classes use a class that could serve several of
/// them: the second kind finds merged layers, which pay only once all their users have changed. Prices of moves are exact
/// (what is then no longer needed is subtracted). The numbers that moves are drawn with are always the same, so that a run
/// within its time gives the same choice as every other.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Moves tried per candidate of the classes that cost something.
    pub moves_per_candidate: usize,
    /// Moves tried at most.
    pub most_moves: usize,
    /// Wall time: the best choice by then counts.
    pub time: Duration,
}

impl Default for Search {
    fn default() -> Search {
        Search { moves_per_candidate: 40, most_moves: 300_000, time: Duration::from_secs(10) }
    }
}

/// Time is looked at once in so many moves.
const MOVES_BETWEEN_LOOKS: usize = 64;

/// One move in so many lets several classes share one.
const ADOPTION_EVERY: u64 = 4;

/// Temperatures, from the first to the last move, as shares of the program's average price per class.
const TEMPERATURES: (f64, f64) = (2.0, 0.002);

impl Extractor for Search {
    fn name(&self) -> &str {
        "search"
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn extract(&self, p: &Problem) -> Choice {
        self.solve(p).choice
    }

    fn solve(&self, p: &Problem) -> Solution {
        let start = Instant::now();
        let greedy = DagGreedy::default().extract(p);
        let Some(mut walk) = Walk::new(p, &greedy) else {
            return Solution { choice: greedy, bound: None, timed_out: false };
        };
        let moves = walk.candidates.saturating_mul(self.moves_per_candidate).min(self.most_moves);
        let mut timed_out = false;
        for step in 0..moves {
            if step % MOVES_BETWEEN_LOOKS == 0 && start.elapsed() >= self.time {
                timed_out = true;
                break;
            }
            walk.step(step as f64 / moves as f64);
        }
        let best = improve(p, walk.best);
        let choice = match (best.total(p), greedy.total(p)) {
            (Ok(new), Ok(old)) if new < old => best,
            _ => greedy,
        };
        Solution { choice, bound: None, timed_out }
    }
}

struct Walk<'a> {
    p: &'a Problem,
    state: State<'a>,
    rng: SplitMix64,
    /// By class: whether it can be had for nothing, and there is nothing to choose.
    free: Vec<bool>,
    /// Candidates of the other classes.
    candidates: usize,
    /// Classes of the program with a choice.
    open: Vec<u32>,
    /// Classes that several could share.
    shared: Vec<u32>,
    /// What the program costs more than the first one did.
    above: i128,
    best: Choice,
    best_above: i128,
    /// The average price of a class.
    average: f64,
}

/// A number below another.
fn below(rng: &mut SplitMix64, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

impl<'a> Walk<'a> {
    /// `None` where there is nothing to choose, or the choice is no program.
    fn new(p: &'a Problem, choice: &Choice) -> Option<Walk<'a>> {
        let state = State::new(p, choice)?;
        let total = choice.total(p).ok()?;
        let average = total.units as f64 / state.order().len().max(1) as f64;
        let free: Vec<bool> = Trees::grow(p).totals.iter().map(|t| t.is_some_and(|t| t.is_free())).collect();
        let classes = || (0..p.classes() as u32).filter(|&c| !free[c as usize]);
        let candidates = classes().map(|c| p.of_class(c).len()).sum();
        let shared = classes().filter(|&c| state.could_share(c)).collect();
        let best = choice.clone();
        let (rng, open) = (SplitMix64(0x5eed), Vec::new());
        let mut walk = Walk { p, state, rng, free, candidates, open, shared, above: 0, best, best_above: 0, average };
        walk.note_order();
        (!walk.open.is_empty()).then_some(walk)
    }

    fn note_order(&mut self) {
        self.open.clear();
        let has_choice = |&c: &u32| self.p.of_class(c).len() > 1 && !self.free[c as usize];
        self.open.extend(self.state.order().iter().copied().filter(has_choice));
    }

    /// One move; `progress` goes from 0 to 1.
    fn step(&mut self, progress: f64) {
        if self.open.is_empty() {
            return;
        }
        let (hot, cold) = TEMPERATURES;
        let temperature = self.average * hot * (cold / hot).powf(progress);
        let adoption = !self.shared.is_empty() && self.rng.next_u64().is_multiple_of(ADOPTION_EVERY);
        let moves = if adoption {
            let shared = self.shared[below(&mut self.rng, self.shared.len())];
            let Some(moves) = self.state.sharers(shared) else { return };
            moves
        } else {
            let class = self.open[below(&mut self.rng, self.open.len())];
            let of_class = self.p.of_class(class);
            let candidate = of_class.start + below(&mut self.rng, of_class.len()) as u32;
            if self.state.is_chosen(class, candidate) || self.state.leads_to(candidate, class) {
                return;
            }
            Adoption::of_one(class, candidate)
        };
        let luck = self.rng.unit();
        let accept = |delta: i128| delta <= 0 || luck < (-(delta as f64) / temperature).exp();
        if let Some(delta) = self.state.try_moves(&moves, accept) {
            self.above += delta;
            self.note_order();
            if self.above < self.best_above {
                self.best_above = self.above;
                self.best = self.state.choice().clone();
            }
        }
    }
}
