//! Extraction by integer linear programs, solved by microlp.
//!
//! Cycles are cut when they turn up: the integer program forbids a cycle of classes only once a solution has it. No order of classes is
//! imposed beforehand, so nothing acyclic is lost.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hashbrown::{HashMap, HashSet};
use microlp::{
    ComparisonOp, OptimizationDirection, Problem as Program, SolveOptions, SolveOutcome, TerminationReason, Variable,
};

use super::{Choice, DagGreedy, Extractor, Problem, Solution, tree::Trees};

/// The cheapest program, every class paid once, where time suffices; never worse than DAG-greedy's in any case.
///
/// There is a variable per candidate and one per class: the root is in the program, a class in the program has one candidate
/// chosen, a chosen candidate's classes are in the program. That much allows cycles. They are forbidden one by one: whenever
/// the cheapest solution has some, a constraint is added for each, which says that of the candidates that lead from class to
/// class around it one at least is not chosen, and the program is solved again; cycles of two classes are forbidden from the
/// start. So nothing acyclic is ever excluded, and every solution on the way is a bound for those to come.
///
/// What costs nothing is decided beforehand, and candidates that need no less and cost no less than another are left out.
#[derive(Clone, Copy, Debug)]
pub struct Ilp {
    /// Wall time, over all solutions.
    pub time: Duration,
}

/// What the program that DAG-greedy found costs, in the solver's numbers: its tolerances are absolute.
const SCALE: f64 = 1e4;

impl Extractor for Ilp {
    fn name(&self) -> &str {
        "ilp"
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
        let as_it_is = |bound| Solution { choice: greedy.clone(), bound, timed_out: false };
        match greedy.cost(p) {
            Ok(0.0) => as_it_is(Some(0.0)),
            // Numbers that don't fit a linear program: what can't be had is needed.
            Ok(cost) if !cost.is_finite() => as_it_is(None),
            Ok(cost) => {
                let reduced = Reduced::new(p, &greedy);
                let found = reduced.solve(p, SCALE / cost, self.time, start);
                let choice = match (found.choice.as_ref().map(|c| c.total(p)), greedy.total(p)) {
                    (Some(Ok(new)), Ok(old)) if new < old => found.choice.unwrap_or(greedy),
                    _ => greedy,
                };
                // The solver's tolerance may put the bound a little above what there is.
                let bound = found.bound.map(|b| b.clamp(0.0, choice.cost(p).unwrap_or(f64::INFINITY)));
                Solution { choice, bound, timed_out: found.timed_out }
            }
            Err(_) => as_it_is(None),
        }
    }
}

/// A problem without what is decided beforehand.
struct Reduced {
    /// Classes that cost something and that the root can need, the root first; numbers of the problem.
    classes: Vec<u32>,
    /// By class: its candidates, each with what it costs and the places in `classes` that it needs.
    candidates: Vec<Vec<Candidate>>,
    /// What is chosen for classes that cost nothing, and the choice to start from for the others.
    start: Choice,
}

struct Candidate {
    number: u32,
    cost: f64,
    needs: Vec<usize>,
}

struct Found {
    choice: Option<Choice>,
    bound: Option<f64>,
    timed_out: bool,
}

impl Reduced {
    fn new(p: &Problem, greedy: &Choice) -> Reduced {
        let trees = Trees::grow(p);
        let possible = |c: u32| trees.totals[c as usize].is_some();
        let free = |c: u32| trees.totals[c as usize].is_some_and(|t| t.is_free());
        let mut classes = vec![p.root()];
        let mut places: HashMap<u32, usize> = HashMap::from_iter([(p.root(), 0)]);
        let mut candidates = Vec::new();
        let mut at = 0;
        while let Some(&class) = classes.get(at) {
            at += 1;
            let mut of_class: Vec<(u32, f64, Vec<u32>)> = Vec::new();
            for number in p.of_class(class) {
                let cost = p.candidate(number).cost;
                let needs = p.needs(number);
                if !cost.is_finite() || needs.iter().any(|&c| c == class || !possible(c)) {
                    continue;
                }
                let mut needs: Vec<u32> = needs.iter().copied().filter(|&c| !free(c)).collect();
                needs.sort_unstable();
                needs.dedup();
                of_class.push((number, cost.max(0.0), needs));
            }
            let beaten = |i: usize, of_class: &[(u32, f64, Vec<u32>)]| {
                let (_, cost, needs) = &of_class[i];
                of_class.iter().enumerate().any(|(j, (_, c, n))| {
                    let same = c == cost && n == needs;
                    i != j && c <= cost && (!same || j < i) && n.iter().all(|x| needs.binary_search(x).is_ok())
                })
            };
            let kept: Vec<usize> = (0..of_class.len()).filter(|&i| !beaten(i, &of_class)).collect();
            let mut out = Vec::with_capacity(kept.len());
            for i in kept {
                let (number, cost, needs) = &of_class[i];
                let needs = needs.iter().map(|&c| {
                    let next = classes.len();
                    *places.entry(c).or_insert_with(|| {
                        classes.push(c);
                        next
                    })
                });
                out.push(Candidate { number: *number, cost: *cost, needs: needs.collect() });
            }
            candidates.push(out);
        }
        let mut start = trees.choice.clone();
        for &c in &classes {
            if let Some(chosen) = greedy.get(c) {
                start.set(c, chosen);
            }
        }
        Reduced { classes, candidates, start }
    }

    fn solve(&self, p: &Problem, scale: f64, time: Duration, start: Instant) -> Found {
        let mut program = Program::new(OptimizationDirection::Minimize);
        let there: Vec<Variable> = (0..self.classes.len())
            .map(|at| program.add_var(0.0, if at == 0 { (1.0, 1.0) } else { (0.0, 1.0) }))
            .collect();
        let chosen: Vec<Vec<Variable>> = self
            .candidates
            .iter()
            .map(|of| of.iter().map(|c| program.add_binary_var(scale * c.cost)).collect())
            .collect();
        for (at, of) in self.candidates.iter().enumerate() {
            let sum = chosen[at].iter().map(|&x| (x, 1.0)).chain([(there[at], -1.0)]);
            program.add_constraint(sum, ComparisonOp::Eq, 0.0);
            // One candidate is chosen at most: all those that need a class are one row, which says more than a row for each.
            let mut needing: BTreeMap<usize, Vec<(Variable, f64)>> = BTreeMap::new();
            for (candidate, &x) in of.iter().zip(&chosen[at]) {
                for &need in &candidate.needs {
                    needing.entry(need).or_insert_with(|| vec![(there[need], 1.0)]).push((x, -1.0));
                }
            }
            for row in needing.into_values() {
                program.add_constraint(row, ComparisonOp::Ge, 0.0);
            }
        }
        let cut = |program: &mut Program, cycle: &[usize]| {
            program.add_constraint(self.cut(cycle, &chosen), ComparisonOp::Le, cycle.len() as f64 - 1.0);
        };
        self.pairs().iter().for_each(|cycle| cut(&mut program, cycle));
        let mut found = Found { choice: None, bound: None, timed_out: false };
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                found.timed_out = true;
                return found;
            }
            let mut options = SolveOptions::default();
            options.time_limit = Some(left);
            options.warm_start = self.values(&there, &chosen);
            // What the solver gives up on for numerical reasons has neither a choice nor a bound.
            let Ok(outcome) = program.solve_with(options) else { return found };
            let bound = outcome.stats().best_bound.filter(|b| b.is_finite()).map(|b| b / scale);
            found.bound = [found.bound, bound].into_iter().flatten().reduce(f64::max);
            found.timed_out = outcome.termination_reason() != TerminationReason::ProvenOptimal;
            let SolveOutcome::Solution(solution) = outcome else { return found };
            let picks: Vec<Option<usize>> =
                chosen.iter().map(|of| of.iter().position(|&x| solution.var_value(x) > 0.5)).collect();
            let cycles = self.cycles(&picks);
            if cycles.is_empty() {
                found.choice = Some(self.choice(&picks)).filter(|c| c.check(p).is_ok());
                return found;
            }
            if found.timed_out {
                return found;
            }
            cycles.iter().for_each(|cycle| cut(&mut program, cycle));
        }
    }

    /// The variables' values in the choice to start from; `None` where that has a candidate that was left out.
    fn values(&self, there: &[Variable], chosen: &[Vec<Variable>]) -> Option<Vec<(Variable, f64)>> {
        let mut picks: Vec<Option<usize>> = vec![None; self.classes.len()];
        let mut stack = vec![0usize];
        while let Some(at) = stack.pop() {
            if picks[at].is_some() {
                continue;
            }
            let number = self.start.get(self.classes[at])?;
            let i = self.candidates[at].iter().position(|c| c.number == number)?;
            picks[at] = Some(i);
            stack.extend(&self.candidates[at][i].needs);
        }
        let value = |yes: bool| if yes { 1.0 } else { 0.0 };
        let classes = there.iter().zip(&picks).map(|(&x, pick)| (x, value(pick.is_some())));
        let candidates = chosen
            .iter()
            .zip(&picks)
            .flat_map(|(of, &pick)| of.iter().enumerate().map(move |(i, &x)| (x, value(pick == Some(i)))));
        Some(classes.chain(candidates).collect())
    }

    fn choice(&self, picks: &[Option<usize>]) -> Choice {
        let mut choice = self.start.clone();
        for (at, pick) in picks.iter().enumerate() {
            if let Some(i) = pick {
                choice.set(self.classes[at], self.candidates[at][*i].number);
            }
        }
        choice
    }

    /// Pairs of classes that candidates lead between in both directions.
    fn pairs(&self) -> Vec<Vec<usize>> {
        let edges: HashSet<(usize, usize)> = self
            .candidates
            .iter()
            .enumerate()
            .flat_map(|(at, of)| of.iter().flat_map(move |c| c.needs.iter().map(move |&n| (at, n))))
            .collect();
        let mut pairs: Vec<Vec<usize>> =
            edges.iter().filter(|(a, b)| a < b && edges.contains(&(*b, *a))).map(|&(a, b)| vec![a, b]).collect();
        pairs.sort_unstable();
        pairs
    }

    /// Of the candidates that lead from class to class around a cycle, the sum.
    fn cut(&self, cycle: &[usize], chosen: &[Vec<Variable>]) -> Vec<(Variable, f64)> {
        let mut terms = Vec::new();
        for (i, &at) in cycle.iter().enumerate() {
            let next = cycle[(i + 1) % cycle.len()];
            let of = self.candidates[at].iter().zip(&chosen[at]);
            terms.extend(of.filter(|(c, _)| c.needs.contains(&next)).map(|(_, &x)| (x, 1.0)));
        }
        terms
    }

    /// Cycles among what is picked, as seen from the root: one for every edge that closes one.
    fn cycles(&self, picks: &[Option<usize>]) -> Vec<Vec<usize>> {
        let needs = |at: usize| picks[at].map_or(&[][..], |i| &self.candidates[at][i].needs);
        let mut cycles = Vec::new();
        // By class: its place on the path from the root, or that it is done.
        let mut on_path: Vec<Option<usize>> = vec![None; self.classes.len()];
        let mut done = vec![false; self.classes.len()];
        let mut path: Vec<(usize, usize)> = vec![(0, 0)];
        on_path[0] = Some(0);
        while let Some((at, next)) = path.last_mut() {
            let at = *at;
            match needs(at).get(*next) {
                Some(&need) => {
                    *next += 1;
                    if let Some(from) = on_path[need] {
                        cycles.push(path[from..].iter().map(|s| s.0).collect());
                    } else if !done[need] {
                        on_path[need] = Some(path.len());
                        path.push((need, 0));
                    }
                }
                None => {
                    path.pop();
                    on_path[at] = None;
                    done[at] = true;
                }
            }
        }
        cycles
    }
}
