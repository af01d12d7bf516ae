//! The cheapest program within an error: what approximate rules made has, beside its price, an error; both add up.

use hashbrown::HashSet;

use super::{Choice, DagGreedy, Extractor, Flaw, Problem, Solution};

/// Weights of an error against a price that are tried on the way to the right one. Each halves the range that is left, of
/// [`DECADES`] in all.
const HALVINGS: usize = 16;

/// Between the least weight tried and the greatest lie so many powers of ten.
const DECADES: f64 = 12.0;

/// So many extractions at most improve what the weights have found.
const IMPROVEMENTS: usize = 64;

/// The cheapest program that the extractor finds whose predicted error is at most `limit`.
///
/// A weight turns an error into a price; the extractor then minimizes price + weight * error, and bisection finds the least
/// weight whose program is within the limit. That finds the corners of the trade-off curve alone; local search then looks between
/// them: approximations are allowed one by one, or one instead of another, as long as the program stays within the limit and gets
/// cheaper. What brings in no error is always there, so that a limit of 0 gives an exact program; but see [`Choice::error`] of the result, where rules have made all programs
/// approximate.
///
/// An extractor that takes its time would take it very often: which approximations to use is searched for with [`DagGreedy`], and the
/// extractor then chooses the program that uses no others.
pub fn within(p: &Problem, extractor: &dyn Extractor, limit: f64) -> Solution {
    let free = extractor.solve(p);
    if !p.has_errors() || limit == f64::INFINITY {
        return free;
    }
    let of = |choice: &Choice| Some((choice.cost(p).ok()?, choice.error(p).ok()?));
    // The bound on what is unlimited bounds what is limited, too.
    let (bound, mut timed_out) = (free.bound, free.timed_out);
    let Some((cost, error)) = of(&free.choice) else { return free };
    if error <= limit {
        return free;
    }
    let dag = DagGreedy::default();
    let quick: &dyn Extractor = if extractor.name() == "tree" { extractor } else { &dag };
    let mut best = quick.extract(&allowing(p, &HashSet::new()));
    let Some((mut best_cost, least)) = of(&best) else { return Solution { choice: best, bound, timed_out } };
    if least > limit {
        // Where an approximation is equal to what was there before, every program of the e-graph may have an error. Whoever asked keeps
        // the program as it was.
        best_cost = f64::INFINITY;
    }
    // A weight of this size pays the whole program for the limit's error; the range around it is wide.
    let middle = (cost.max(if best_cost.is_finite() { best_cost } else { 0.0 }) / error.max(f64::MIN_POSITIVE)).log10();
    let (mut low, mut high) = (middle - DECADES / 2.0, middle + DECADES / 2.0);
    for _ in 0..HALVINGS {
        let weight = 10f64.powf((low + high) / 2.0);
        let found = quick.extract(&p.repriced(|_, c| c.cost + weight * c.error));
        match of(&found) {
            Some((cost, error)) if error <= limit => {
                if cost < best_cost {
                    (best, best_cost) = (found, cost);
                }
                high = (low + high) / 2.0;
            }
            _ => low = (low + high) / 2.0,
        }
    }
    let mut left = IMPROVEMENTS;
    while let Some((choice, cost)) = improved(p, quick, limit, &best, best_cost, &mut left) {
        (best, best_cost) = (choice, cost);
    }
    if let Ok(used) = used(p, &best) {
        let last = extractor.solve(&allowing(p, &used));
        timed_out |= last.timed_out;
        if of(&last.choice).is_some_and(|(cost, error)| cost < best_cost && error <= limit) {
            best = last.choice;
        }
    }
    Solution { choice: best, bound, timed_out }
}

/// The classes of a program that bring in errors.
fn used(p: &Problem, choice: &Choice) -> Result<HashSet<u32>, Flaw> {
    let errs = |c: &u32| choice.get(*c).is_some_and(|chosen| p.candidate(chosen).error > 0.0);
    Ok(choice.order(p)?.into_iter().filter(errs).collect())
}

/// The problem in which only these classes may bring in an error.
fn allowing(p: &Problem, allowed: &HashSet<u32>) -> Problem {
    p.repriced(|class, c| if c.error > 0.0 && !allowed.contains(&class) { f64::INFINITY } else { c.cost })
}

/// The classes whose candidates bring in errors, with the least of each, from small to large.
fn sources(p: &Problem) -> Vec<(u32, f64)> {
    let least = |class: u32| p.of_class(class).map(|c| p.candidate(c).error).filter(|&e| e > 0.0).reduce(f64::min);
    let mut found: Vec<(u32, f64)> =
        (0..p.classes() as u32).filter_map(|class| least(class).map(|e| (class, e))).collect();
    found.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    found
}

/// A cheaper program within the limit that uses one more approximation, or one instead of one or two others.
fn improved(
    p: &Problem,
    extractor: &dyn Extractor,
    limit: f64,
    best: &Choice,
    cost: f64,
    left: &mut usize,
) -> Option<(Choice, f64)> {
    let used = used(p, best).ok()?;
    let sources = sources(p);
    let error = best.error(p).ok()?;
    let mut attempt = |allowed: &HashSet<u32>| {
        *left = left.checked_sub(1)?;
        let found = extractor.solve(&allowing(p, allowed)).choice;
        let better = found.cost(p).ok()? < cost * (1.0 - 1e-12) && found.error(p).ok()? <= limit;
        better.then(|| found.cost(p).ok().map(|cost| (found, cost))).flatten()
    };
    let unused = || sources.iter().filter(|(class, _)| !used.contains(class));
    for &(class, _) in unused().filter(|(_, e)| error + e <= limit) {
        let mut allowed = used.clone();
        allowed.insert(class);
        if let Some(found) = attempt(&allowed) {
            return Some(found);
        }
    }
    for &(class, e) in unused() {
        for &(other, gone) in sources.iter().filter(|(class, _)| used.contains(class)) {
            if error - gone + e > limit {
                continue;
            }
            let mut allowed = used.clone();
            allowed.remove(&other);
            allowed.insert(class);
            if let Some(found) = attempt(&allowed) {
                return Some(found);
            }
        }
    }
    let used_sources: Vec<(u32, f64)> = sources.iter().filter(|(class, _)| used.contains(class)).copied().collect();
    for &(class, e) in unused() {
        for (i, &(first, a)) in used_sources.iter().enumerate() {
            for &(second, b) in &used_sources[..i] {
                let fits_with_one = error - a.max(b) + e <= limit;
                if fits_with_one || error - a - b + e > limit {
                    continue;
                }
                let mut allowed = used.clone();
                allowed.remove(&first);
                allowed.remove(&second);
                allowed.insert(class);
                if let Some(found) = attempt(&allowed) {
                    return Some(found);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::DagGreedy;

    /// Layers one after another, each exact for 10 or approximate for `10 - gain` with an error.
    fn layers(of: &[(f64, f64)]) -> Problem {
        let parts: Vec<Vec<(f64, Vec<u32>)>> = (0..of.len() as u32)
            .map(|k| {
                let below: Vec<u32> = if (k as usize) + 1 < of.len() { vec![k + 1] } else { vec![] };
                vec![(10.0, below.clone()), (10.0 - of[k as usize].0, below)]
            })
            .collect();
        let mut p = Problem::from_parts(&parts, 0);
        p.set_test_errors(&of.iter().flat_map(|l| [0.0, l.1]).collect::<Vec<f64>>());
        p
    }

    #[test]
    fn programs_within_an_error_are_the_cheapest_of_all_subsets() {
        let of = [(5.0, 0.3), (4.0, 0.2), (3.0, 0.1), (2.5, 0.25), (1.0, 0.01), (6.0, 0.6)];
        let p = layers(&of);
        for limit in [0.0, 0.005, 0.05, 0.15, 0.25, 0.31, 0.45, 0.6, 0.7, 1.0, 2.0] {
            let best = (0..1u32 << of.len())
                .map(|set| {
                    let used = of.iter().enumerate().filter(|(k, _)| set >> k & 1 == 1);
                    used.fold((60.0, 0.0), |(cost, error), (_, l)| (cost - l.0, error + l.1))
                })
                .filter(|(_, error)| *error <= limit + 1e-12)
                .map(|(cost, _)| cost)
                .fold(f64::INFINITY, f64::min);
            let found = within(&p, &DagGreedy::default(), limit + 1e-12).choice;
            assert!(found.error(&p).expect("a program") <= limit + 1e-9);
            let cost = found.cost(&p).expect("a program");
            assert!((cost - best).abs() < 1e-9, "{cost} instead of {best} within {limit}");
        }
    }
}
