//! A price that no program is cheaper than, by relaxation: what a class costs is shared out among the classes that may use it.
//!
//! Classes may count as one, whichever they are: a program that has any of a group has, of the one that is computed first, a candidate that
//! needs none of the group, since programs have no cycles. Groups lose the prices of what leads from one of their classes to another, and
//! gain that every program is seen to have a class of the group. Strongly connected components are always groups, so that no
//! cycle pays for itself. Values are also grouped with what is made of one value cheaply, such as the same value in another layout, or behind
//! an activation: that a network can't do without a layer is seen only where all forms of the layer are one. How cheaply decides which
//! bound is greater, so several are tried.
//!
//! What every program has pays for itself in full, and nothing above it bears a share of it. For the others:
//!
//! Each class gives each class that may need it a share of its price, shares that add up to 1 at most. A class then costs the least,
//! over its candidates, of the candidate's own price and its shares of what that needs. In a program, a class is charged by its users
//! in all no more than once, whoever they are; so what the root costs is no more than any program does. Which shares give the
//! greatest bound is found step by step: they move to those who take them, starting with those of the program that was chosen.

use super::{Choice, Problem};

/// Bounds above this many candidates are not improved upon: what is found first must do.
const MANY: usize = 200_000;
/// So often shares move.
const STEPS: usize = 24;
/// So often prices are carried upwards, at most; graphs are seldom deeper than that in candidates that are cheapest.
const SWEEPS: usize = 64;

/// Values are grouped with what is made of them for so much, as shares of the chosen program's price; 0 groups strongly connected components alone.
const CHEAP: [f64; 4] = [0.0, 1e-4, 1e-3, 1e-2];

/// A bound of so much of the chosen program's price is near enough.
const NEAR: f64 = 0.999;

/// A lower bound of what the root costs; `None` where it has no program.
pub fn bound(problem: &Problem, choice: &Choice) -> Option<f64> {
    let components = Groups::components(problem);
    let all = choice.cost(problem).unwrap_or(f64::INFINITY);
    let mut best: Option<f64> = None;
    let mut groups = 0;
    for share in CHEAP {
        let grouped = match share > 0.0 && all.is_finite() {
            true => components.with_cheap(problem, share * all),
            false => components.clone(),
        };
        // Groups only grow: as many are the same.
        if std::mem::replace(&mut groups, grouped.count) != grouped.count {
            let (merged, chosen) = grouped.merged(problem, choice);
            let found = bound_of(&merged, &chosen)?;
            best = Some(best.map_or(found, |b| b.max(found)));
        }
        if problem.candidates() > MANY || best.is_some_and(|b| b >= NEAR * all) {
            break;
        }
    }
    best
}

/// The bound of a problem whose groups were merged.
fn bound_of(p: &Problem, chosen: &[Option<u32>]) -> Option<f64> {
    let order = order(p);
    let always = always(p, &order);
    let even = Shares::of(p, &always);
    let mut shares = even.clone();
    let mut best = shares.price(p, &order)?;
    if p.candidates() > MANY {
        return Some(best.0);
    }
    for mix in [0.5, 0.8, 0.95] {
        let mut some = even.clone();
        some.toward(p, chosen, mix);
        if let Some(found) = some.price(p, &order).filter(|f| f.0 > best.0) {
            (best, shares) = (found, some);
        }
    }
    let mut step = 0.5;
    let mut current = best.1.clone();
    for _ in 0..STEPS {
        let mut next = shares.clone();
        next.toward(p, &current, step);
        let Some((value, taken)) = next.price(p, &order) else { break };
        current = taken;
        match value > best.0 {
            true => (best.0, shares) = (value, next),
            false => step *= 0.7,
        }
    }
    Some(best.0)
}

/// The classes that the root needs, in groups that count as one.
#[derive(Clone)]
struct Groups {
    /// By class; `None` where the root does not need it.
    of: Vec<Option<u32>>,
    count: usize,
}

impl Groups {
    /// The strongly connected components, by Tarjan's algorithm: those that others need come first.
    fn components(p: &Problem) -> Groups {
        let needs: Vec<Vec<u32>> =
            (0..p.classes() as u32).map(|c| p.of_class(c).flat_map(|n| p.needs(n).iter().copied()).collect()).collect();
        let (mut of, mut components) = (vec![None; p.classes()], 0);
        let mut found: Vec<Option<u32>> = vec![None; p.classes()];
        let mut low = vec![0u32; p.classes()];
        let (mut count, mut open) = (0u32, Vec::new());
        let mut stack: Vec<(u32, usize)> = vec![(p.root(), 0)];
        while let Some((class, at)) = stack.pop() {
            let c = class as usize;
            if at == 0 {
                if found[c].is_some() {
                    continue;
                }
                (found[c], low[c]) = (Some(count), count);
                count += 1;
                open.push(class);
            } else {
                let below = needs[c][at - 1] as usize;
                if of[below].is_none() {
                    low[c] = low[c].min(low[below]);
                }
            }
            match needs[c].get(at) {
                Some(&next) => {
                    stack.push((class, at + 1));
                    if found[next as usize].is_none() {
                        stack.push((next, 0));
                    }
                }
                None if Some(low[c]) == found[c] => {
                    while let Some(member) = open.pop() {
                        of[member as usize] = Some(components);
                        if member == class {
                            break;
                        }
                    }
                    components += 1;
                }
                None => {}
            }
        }
        Groups { of, count: components as usize }
    }

    /// The classes that are in a group, with its number.
    fn classes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.of.iter().enumerate().filter_map(|(class, group)| Some((class as u32, (*group)?)))
    }

    /// The groups of what a candidate needs.
    fn needs(&self, p: &Problem, candidate: u32) -> impl Iterator<Item = u32> {
        p.needs(candidate).iter().filter_map(|&c| self.of[c as usize])
    }

    /// These groups, each with what is made of it alone, besides what is free, for at most so much.
    fn with_cheap(&self, p: &Problem, most: f64) -> Groups {
        let free = self.free(p);
        let mut parent: Vec<u32> = (0..self.count as u32).collect();
        fn find(parent: &mut [u32], mut group: u32) -> u32 {
            while parent[group as usize] != group {
                parent[group as usize] = parent[parent[group as usize] as usize];
                group = parent[group as usize];
            }
            group
        }
        for (class, group) in self.classes() {
            for candidate in p.of_class(class).filter(|&c| p.candidate(c).cost <= most) {
                let mut needs = self.needs(p, candidate).filter(|&g| !free[g as usize]);
                if let Some(first) = needs.next()
                    && needs.all(|g| g == first)
                {
                    let [a, b] = [first, group].map(|g| find(&mut parent, g));
                    parent[a.max(b) as usize] = a.min(b);
                }
            }
        }
        let mut numbers: Vec<Option<u32>> = vec![None; self.count];
        let mut count = 0;
        let mut number = |group: u32| {
            *numbers[find(&mut parent, group) as usize].get_or_insert_with(|| {
                count += 1;
                count - 1
            })
        };
        let of = self.of.iter().map(|group| group.map(&mut number)).collect();
        Groups { of, count: count as usize }
    }

    /// By group, whether it costs nothing to have.
    fn free(&self, p: &Problem) -> Vec<bool> {
        let mut free = vec![false; self.count];
        loop {
            let mut changed = false;
            for (class, own) in self.classes() {
                let is_free = |candidate: u32| {
                    p.candidate(candidate).cost == 0.0
                        && self.needs(p, candidate).all(|group| group != own && free[group as usize])
                };
                if !free[own as usize] && p.of_class(class).any(is_free) {
                    (free[own as usize], changed) = (true, true);
                }
            }
            if !changed {
                return free;
            }
        }
    }

    /// The problem whose classes are the groups, with the candidates by which they are entered; and which of these the choice takes.
    fn merged(&self, p: &Problem, choice: &Choice) -> (Problem, Vec<Option<u32>>) {
        let mut classes: Vec<Vec<(f64, Vec<u32>)>> = vec![Vec::new(); self.count];
        let mut taken: Vec<Option<usize>> = vec![None; self.count];
        for (class, own) in self.classes() {
            for candidate in p.of_class(class) {
                let mut needs: Vec<u32> = self.needs(p, candidate).collect();
                if needs.contains(&own) {
                    continue;
                }
                needs.sort_unstable();
                needs.dedup();
                let at = own as usize;
                if choice.get(class) == Some(candidate) {
                    taken[at].get_or_insert(classes[at].len());
                }
                classes[at].push((p.candidate(candidate).cost, needs));
            }
        }
        let root = self.of[p.root() as usize].expect("the root is in a group");
        let merged = Problem::from_parts(&classes, root);
        let chosen =
            taken.iter().enumerate().map(|(c, k)| Some(merged.of_class(c as u32).start + (*k)? as u32)).collect();
        (merged, chosen)
    }
}

/// The classes, those that others need before these, as far as there is such an order.
fn order(p: &Problem) -> Vec<u32> {
    let mut order = Vec::with_capacity(p.classes());
    let mut seen = vec![false; p.classes()];
    let mut stack: Vec<(u32, bool)> = vec![(p.root(), false)];
    while let Some((class, done)) = stack.pop() {
        if done {
            order.push(class);
        } else if !std::mem::replace(&mut seen[class as usize], true) {
            stack.push((class, true));
            let needs = p.of_class(class).flat_map(|n| p.needs(n).iter().copied());
            stack.extend(needs.filter(|&c| !seen[c as usize]).map(|c| (c, false)));
        }
    }
    order
}

/// Above this many classes, what every program has is not looked for: it takes a bit for each two of them.
const MANY_CLASSES: usize = 20_000;

/// The classes that every program has. Each has itself and, of each of its candidates, what any of the candidate's needs always has.
fn always(p: &Problem, order: &[u32]) -> Vec<u32> {
    if p.classes() > MANY_CLASSES {
        return vec![p.root()];
    }
    let words = p.classes().div_ceil(64);
    let mut has: Vec<Vec<u64>> = vec![Vec::new(); p.classes()];
    for &class in order {
        let mut all: Option<Vec<u64>> = None;
        for candidate in p.of_class(class).filter(|&c| p.candidate(c).cost.is_finite()) {
            let mut any = vec![0u64; words];
            for &need in p.needs(candidate) {
                any.iter_mut().zip(&has[need as usize]).for_each(|(a, h)| *a |= h);
            }
            match &mut all {
                Some(all) => all.iter_mut().zip(&any).for_each(|(x, y)| *x &= y),
                None => all = Some(any),
            }
        }
        let mut all = all.unwrap_or_else(|| vec![0; words]);
        all[class as usize / 64] |= 1 << (class % 64);
        has[class as usize] = all;
    }
    let root = &has[p.root() as usize];
    order.iter().copied().filter(|&c| root[c as usize / 64] >> (c % 64) & 1 == 1).collect()
}

/// Which share of each class' price each class that may need it bears.
#[derive(Clone)]
struct Shares {
    /// For each candidate and each of its needs, the place of the share in `of`.
    places: Vec<Vec<u32>>,
    /// The shares.
    of: Vec<f64>,
    /// For each class that not every program has, its shares' places.
    given: Vec<Vec<u32>>,
    /// The classes that every program has.
    always: Vec<u32>,
}

impl Shares {
    /// Equal ones; none of what every program has.
    fn of(p: &Problem, always: &[u32]) -> Shares {
        let mut places = vec![Vec::new(); p.candidates()];
        let mut given: Vec<Vec<u32>> = vec![Vec::new(); p.classes()];
        let mut n = 0;
        let mut mine: Vec<(u32, u32)> = Vec::new();
        for class in 0..p.classes() as u32 {
            mine.clear();
            for candidate in p.of_class(class) {
                for &need in p.needs(candidate) {
                    let place = match mine.iter().find(|m| m.0 == need) {
                        Some(m) => m.1,
                        None => {
                            mine.push((need, n));
                            given[need as usize].push(n);
                            n += 1;
                            n - 1
                        }
                    };
                    // One that needs a value twice is charged once.
                    if !places[candidate as usize].contains(&place) {
                        places[candidate as usize].push(place);
                    }
                }
            }
        }
        always.iter().for_each(|&class| given[class as usize].clear());
        let mut of = vec![0.0; n as usize];
        for all in &given {
            all.iter().for_each(|&place| of[place as usize] = 1.0 / all.len() as f64);
        }
        Shares { places, of, given, always: always.to_vec() }
    }

    /// Moves a part of all shares to the classes that take them by these candidates.
    fn toward(&mut self, p: &Problem, taken: &[Option<u32>], part: f64) {
        let mut takes = vec![false; self.of.len()];
        let mut reached = vec![false; p.classes()];
        let mut stack = vec![p.root()];
        while let Some(class) = stack.pop() {
            if std::mem::replace(&mut reached[class as usize], true) {
                continue;
            }
            if let Some(candidate) = taken[class as usize] {
                self.places[candidate as usize].iter().for_each(|&place| takes[place as usize] = true);
                stack.extend(p.needs(candidate));
            }
        }
        for all in &self.given {
            let users = all.iter().filter(|&&place| takes[place as usize]).count();
            if users > 0 {
                for &place in all {
                    let own = if takes[place as usize] { 1.0 / users as f64 } else { 0.0 };
                    self.of[place as usize] = (1.0 - part) * self.of[place as usize] + part * own;
                }
            }
        }
    }

    /// What all that every program has costs by these shares, and the candidates by which classes cost least.
    fn price(&self, p: &Problem, order: &[u32]) -> Option<(f64, Vec<Option<u32>>)> {
        // From 0 upwards: each sweep's prices are bounds.
        let mut price = vec![0.0f64; p.classes()];
        let mut by = vec![None; p.classes()];
        for _ in 0..SWEEPS {
            let mut changed = false;
            for &class in order {
                let mut least = f64::INFINITY;
                for candidate in p.of_class(class) {
                    let needs = distinct(p.needs(candidate));
                    let shared: f64 = needs
                        .zip(&self.places[candidate as usize])
                        .map(|(c, &s)| self.of[s as usize] * price[c as usize])
                        .sum();
                    let cost = p.candidate(candidate).cost + shared;
                    if cost < least {
                        (least, by[class as usize]) = (cost, Some(candidate));
                    }
                }
                if least.is_infinite() {
                    by[class as usize] = None;
                }
                if least > price[class as usize] * (1.0 + 1e-9) {
                    (price[class as usize], changed) = (least, true);
                }
            }
            if !changed {
                break;
            }
        }
        let sum: f64 = self.always.iter().map(|&class| price[class as usize]).sum();
        sum.is_finite().then_some((sum, by))
    }
}

/// Each class once, in the order of their first places.
fn distinct(needs: &[u32]) -> impl Iterator<Item = u32> + '_ {
    needs.iter().enumerate().filter(|(i, c)| !needs[..*i].contains(c)).map(|(_, &c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::{DagGreedy, Extractor};

    /// The cheapest program, by trying all.
    fn cheapest(p: &Problem) -> f64 {
        fn go(p: &Problem, class: usize, chosen: &mut Vec<Option<u32>>, least: &mut f64) {
            if class == p.classes() {
                let cost = Choice::new(chosen.clone()).cost(p);
                *least = least.min(cost.unwrap_or(f64::INFINITY));
                return;
            }
            for candidate in p.of_class(class as u32) {
                chosen.push(Some(candidate));
                go(p, class + 1, chosen, least);
                chosen.pop();
            }
        }
        let mut least = f64::INFINITY;
        go(p, 0, &mut Vec::new(), &mut least);
        least
    }

    #[test]
    fn no_program_is_cheaper() {
        let mut state = 1u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut tight = 0;
        for _ in 0..400 {
            // Class k needs classes before it, and now and then one behind it; the last one is the root.
            let n = 3 + next(5);
            let classes: Vec<Vec<(f64, Vec<u32>)>> = (0..n)
                .map(|k| {
                    let candidate = |next: &mut dyn FnMut(usize) -> usize| {
                        let behind = |next: &mut dyn FnMut(usize) -> usize| next(8) == 0;
                        let needs = (0..if k == 0 { 0 } else { next(3) })
                            .map(|_| if behind(next) { next(n) as u32 } else { next(k) as u32 })
                            .collect();
                        ([0.0, 0.002, 0.01, 0.1, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0][next(10)], needs)
                    };
                    (0..1 + next(3)).map(|_| candidate(&mut next)).collect()
                })
                .collect();
            let p = Problem::from_parts(&classes, n as u32 - 1);
            let choice = DagGreedy::default().extract(&p);
            let least = cheapest(&p);
            let Some(bound) = bound(&p, &choice) else {
                assert!(least.is_infinite(), "{least}: {classes:?}");
                continue;
            };
            assert!(bound <= least + 1e-9, "{bound} is above {least}: {classes:?}");
            tight += (bound > 0.95 * least - 1e-9) as usize;
        }
        assert!(tight > 200, "{tight} of 400 bounds are near");
    }

    /// Layers in two layouts, of which the first may come out in the other, with activations and sums of two: any way through takes as many
    /// layers, but no form of a value is in every program.
    #[test]
    fn forms_of_a_value_are_one() {
        let layers = 12;
        let (layer, transform, activation) = (1.0, 0.0004, 0.0003);
        // By layer: the sum, the same in blocks, its activation, the same in blocks. The first class is the input.
        let mut classes: Vec<Vec<(f64, Vec<u32>)>> = vec![vec![(0.0, vec![])], vec![(transform, vec![0])]];
        let (mut plain, mut blocked, mut skip) = (0, 1, [0, 1]);
        for _ in 0..layers {
            let n = classes.len() as u32;
            classes.push(vec![(1.3 * layer, vec![plain, skip[0]]), (transform, vec![n + 1])]);
            classes.push(vec![(layer, vec![blocked, skip[1]])]);
            classes.push(vec![(activation, vec![n]), (transform, vec![n + 3])]);
            classes.push(vec![(activation, vec![n + 1])]);
            skip = [plain, blocked];
            (plain, blocked) = (n + 2, n + 3);
        }
        let p = Problem::from_parts(&classes, plain);
        let choice = DagGreedy::default().extract(&p);
        let (cost, bound) = (choice.cost(&p).expect("a program"), bound(&p, &choice).expect("a bound"));
        assert!(bound <= cost && bound > 0.98 * cost, "{bound} of {cost}");
        assert!(bound_of_components(&p, &choice) < 0.5 * cost, "groups are not what makes it so");
    }

    fn bound_of_components(p: &Problem, choice: &Choice) -> f64 {
        let (merged, chosen) = Groups::components(p).merged(p, choice);
        bound_of(&merged, &chosen).expect("a bound")
    }
}
