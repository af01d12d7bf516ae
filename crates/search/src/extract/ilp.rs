//! Extraction by integer linear programs, solved by HiGHS.
//!
//! Cycles are cut when they turn up: the integer program forbids a cycle of classes only once a solution has it. No order of classes is
//! imposed beforehand, so nothing acyclic is lost.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use hashbrown::{HashMap, HashSet};
use highs::{Col, HighsModelStatus, Model, RowProblem, Sense};

use super::{Choice, DagGreedy, Extractor, Problem, Solution, tree::Trees};

/// The cheapest program, every class paid once, where time suffices; never worse than DAG-greedy's in any case.
///
/// There is a variable per candidate and one per class: the root is in the program, a class in the program has one candidate
/// chosen, a chosen candidate's classes are in the program. That much allows cycles. They are forbidden one by one: whenever
/// the cheapest solution has some, a constraint is added for each, which says that of the candidates that lead from class to
/// class around it one at least is not chosen, and the program is solved anew; cycles of two classes are forbidden from the
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
            Ok(cost) if cost == 0.0 => return as_it_is(Some(0.0)),
            // Numbers that don't fit a linear program: what can't be had is needed.
            Ok(cost) if !cost.is_finite() => return as_it_is(None),
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
        let mut rows = RowProblem::default();
        let there: Vec<Col> = (0..self.classes.len())
            .map(|at| rows.add_column(0.0, if at == 0 { 1.0..=1.0 } else { 0.0..=1.0 }))
            .collect();
        let chosen: Vec<Vec<Col>> = self
            .candidates
            .iter()
            .map(|of| of.iter().map(|c| rows.add_integer_column(scale * c.cost, 0.0..=1.0)).collect())
            .collect();
        for (at, of) in self.candidates.iter().enumerate() {
            let sum = chosen[at].iter().map(|&x| (x, 1.0)).chain([(there[at], -1.0)]);
            rows.add_row(0.0..=0.0, sum.collect::<Vec<_>>());
            // One candidate is chosen at most: all those that need a class are one row, which says more than a row for each.
            let mut needing: BTreeMap<usize, Vec<(Col, f64)>> = BTreeMap::new();
            for (candidate, &x) in of.iter().zip(&chosen[at]) {
                for &need in &candidate.needs {
                    needing.entry(need).or_insert_with(|| vec![(there[need], 1.0)]).push((x, -1.0));
                }
            }
            for row in needing.into_values() {
                rows.add_row(0.0.., row);
            }
        }
        for cycle in self.pairs() {
            rows.add_row(..=(cycle.len() as f64 - 1.0), self.cut(&cycle, &chosen));
        }
        // Columns are numbered in the order in which they were added.
        let mut column = there.len();
        let numbers: Vec<Vec<usize>> =
            chosen.iter().map(|of| of.iter().map(|_| (column, column += 1).0).collect()).collect();
        let columns = column;
        let mut model: Model = rows.optimise(Sense::Minimise);
        let mut found = Found { choice: None, bound: None, timed_out: false };
        loop {
            let left = time.saturating_sub(start.elapsed()).as_secs_f64();
            if left <= 0.0 {
                found.timed_out = true;
                return found;
            }
            model.make_quiet();
            model.set_threads(NonZeroU32::MIN);
            model.set_option("mip_rel_gap", 0.0);
            model.set_option("mip_abs_gap", 1e-7);
            model.set_option("time_limit", left);
            if let Some(values) = self.values(columns, &numbers) {
                model.set_solution(Some(&values), None, None, None);
            }
            let Ok(solved) = model.try_solve() else { return found };
            let done = match solved.status() {
                HighsModelStatus::Optimal => true,
                HighsModelStatus::ReachedTimeLimit => {
                    found.timed_out = true;
                    false
                }
                _ => return found,
            };
            let bound = solved.double_info_value(c"mip_dual_bound").ok().filter(|b| b.is_finite());
            let bound = bound.or_else(|| done.then(|| solved.objective_value())).map(|b| b / scale);
            found.bound = [found.bound, bound].into_iter().flatten().reduce(f64::max);
            let solution = solved.get_solution();
            let values = solution.columns();
            let picked = |n: &usize| values.get(*n).is_some_and(|v| *v > 0.5);
            let picks: Vec<Option<usize>> = numbers.iter().map(|of| of.iter().position(picked)).collect();
            let cycles = self.cycles(&picks);
            if cycles.is_empty() {
                found.choice = Some(self.choice(&picks)).filter(|c| c.check(p).is_ok());
                return found;
            }
            if !done {
                return found;
            }
            model = solved.into();
            for cycle in cycles {
                model.add_row(..=(cycle.len() as f64 - 1.0), self.cut(&cycle, &chosen));
            }
        }
    }

    /// The columns' values in the choice to start from; `None` where that has a candidate that was left out.
    fn values(&self, columns: usize, numbers: &[Vec<usize>]) -> Option<Vec<f64>> {
        let mut values = vec![0.0; columns];
        let mut stack = vec![0usize];
        while let Some(at) = stack.pop() {
            if std::mem::replace(&mut values[at], 1.0) == 1.0 {
                continue;
            }
            let number = self.start.get(self.classes[at])?;
            let i = self.candidates[at].iter().position(|c| c.number == number)?;
            values[numbers[at][i]] = 1.0;
            stack.extend(&self.candidates[at][i].needs);
        }
        Some(values)
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
    fn cut(&self, cycle: &[usize], chosen: &[Vec<Col>]) -> Vec<(Col, f64)> {
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
