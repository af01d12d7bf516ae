//! DAG-greedy extraction: a shared subterm counts once.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Choice, Extractor, Problem, Total, improve, tree::Trees};

/// The default extractor.
///
/// Bottom up, every class keeps its best program so far as the *set* of classes in it; the sets of a node's arguments are
/// united, so that what they share is paid once, and a node whose arguments need its own class is no candidate. When a
/// class gets better, its users are looked at again. The result is then improved by exact local moves, and is never
/// worse than the cheapest tree. (The idea of sets per class is that of extraction-gym's greedy DAG extractors; sets are
/// bit sets over the classes that cost anything, so that constants and attribute records take no room.)
#[derive(Clone, Copy, Debug)]
pub struct DagGreedy {
    /// Room for the sets; without it the cheapest trees are improved instead.
    pub set_bytes: usize,
}

impl Default for DagGreedy {
    fn default() -> DagGreedy {
        DagGreedy { set_bytes: 512 << 20 }
    }
}

/// A class is looked at so many times on average before the search is called off.
const LOOKS_PER_CLASS: usize = 64;

impl Extractor for DagGreedy {
    fn name(&self) -> &str {
        "dag"
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn extract(&self, p: &Problem) -> Choice {
        let trees = Trees::grow(p);
        let mut best = trees.choice.clone();
        if let Some(shared) = Sets::new(p, &trees, self.set_bytes).map(Sets::grow) {
            // Sets may be out of date when a class below has changed its mind: only a choice that checks counts.
            if let (Ok(new), old) = (shared.total(p), best.total(p))
                && old.map_or(true, |old| new < old)
            {
                best = shared;
            }
        }
        improve::improve(p, best)
    }
}

struct Sets<'a> {
    p: &'a Problem,
    users: Vec<Vec<(u32, u32)>>,
    choice: Choice,
    /// By class: its bit; none where it costs nothing, or can't be had. Bits are in bottom-up order, so that sets end early.
    bit: Vec<Option<u32>>,
    /// By bit.
    class: Vec<u32>,
    /// By bit: the classes of the best program, itself included; empty before there is one.
    sets: Vec<Vec<u64>>,
    /// By bit: the best program's price.
    totals: Vec<Total>,
    /// By bit: the price of the chosen node alone.
    own: Vec<Total>,
    /// By class: whether it can be had at all.
    possible: Vec<bool>,
}

impl<'a> Sets<'a> {
    /// `None` where the sets might take more than the room given.
    fn new(p: &'a Problem, trees: &Trees, room: usize) -> Option<Sets<'a>> {
        let mut class: Vec<u32> =
            (0..p.classes() as u32).filter(|&c| trees.totals[c as usize].is_some_and(|t| !t.is_free())).collect();
        class.sort_unstable_by_key(|&c| trees.ranks[c as usize]);
        let n = class.len();
        if n.checked_mul(n.div_ceil(8)).is_none_or(|bytes| bytes > room) {
            return None;
        }
        let mut bit = vec![None; p.classes()];
        class.iter().enumerate().for_each(|(b, &c)| bit[c as usize] = Some(b as u32));
        Some(Sets {
            p,
            users: p.users(),
            choice: trees.choice.clone(),
            bit,
            class,
            sets: vec![Vec::new(); n],
            totals: vec![Total::default(); n],
            own: vec![Total::default(); n],
            possible: trees.totals.iter().map(Option::is_some).collect(),
        })
    }

    fn grow(mut self) -> Choice {
        let n = self.class.len();
        let mut queue: BinaryHeap<Reverse<u32>> = (0..n as u32).map(Reverse).collect();
        let mut queued = vec![true; n];
        let mut looks = n.saturating_mul(LOOKS_PER_CLASS);
        let mut scratch = Vec::new();
        while let Some(Reverse(b)) = queue.pop() {
            queued[b as usize] = false;
            if looks == 0 {
                break;
            }
            looks -= 1;
            if !self.look(b, &mut scratch) {
                continue;
            }
            for &(_, user) in &self.users[self.class[b as usize] as usize] {
                if let Some(u) = self.bit[user as usize]
                    && !std::mem::replace(&mut queued[u as usize], true)
                {
                    queue.push(Reverse(u));
                }
            }
        }
        self.choice
    }

    /// Looks at a class's candidates again. Gives whether it got better.
    fn look(&mut self, b: u32, scratch: &mut Vec<u64>) -> bool {
        let class = self.class[b as usize];
        let mut better = false;
        for candidate in self.p.of_class(class) {
            let Some(total) = self.united(b, candidate, scratch) else { continue };
            if self.sets[b as usize].is_empty() || total < self.totals[b as usize] {
                std::mem::swap(&mut self.sets[b as usize], scratch);
                self.totals[b as usize] = total;
                self.own[b as usize] = self.p.candidate(candidate).total;
                self.choice.set(class, candidate);
                better = true;
            }
        }
        better
    }

    /// The set and price of a candidate's program; `None` where it can't be had, needs its own class, or is no better
    /// than what the class has.
    fn united(&self, b: u32, candidate: u32, set: &mut Vec<u64>) -> Option<Total> {
        let own = self.p.candidate(candidate).total;
        let current = (!self.sets[b as usize].is_empty()).then(|| self.totals[b as usize]);
        let needs = self.p.needs(candidate);
        if needs.iter().any(|&c| !self.possible[c as usize]) {
            return None;
        }
        let bits = || needs.iter().filter_map(|&c| self.bit[c as usize]);
        let (word, mask) = (b as usize / 64, 1u64 << (b % 64));
        let mut largest: Option<u32> = None;
        for bit in bits() {
            let child = &self.sets[bit as usize];
            if child.is_empty() || child.get(word).is_some_and(|w| w & mask != 0) {
                return None;
            }
            if current.is_some_and(|t| self.totals[bit as usize].plus(own) >= t) {
                return None;
            }
            if largest.is_none_or(|l| self.totals[bit as usize] > self.totals[l as usize]) {
                largest = Some(bit);
            }
        }
        set.clear();
        let mut total = own;
        if let Some(largest) = largest {
            set.extend_from_slice(&self.sets[largest as usize]);
            total = total.plus(self.totals[largest as usize]);
        }
        for bit in bits().filter(|&bit| Some(bit) != largest) {
            let child = &self.sets[bit as usize];
            if set.len() < child.len() {
                set.resize(child.len(), 0);
            }
            for (at, (have, add)) in set.iter_mut().zip(child).enumerate() {
                let mut new = add & !*have;
                *have |= add;
                while new != 0 {
                    total = total.plus(self.own[at * 64 + new.trailing_zeros() as usize]);
                    new &= new - 1;
                }
            }
        }
        if set.len() <= word {
            set.resize(word + 1, 0);
        }
        set[word] |= mask;
        Some(total)
    }
}
