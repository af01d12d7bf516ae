//! Tree-greedy extraction: a shared subterm counts once per use.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Choice, Extractor, Problem, Total};

/// The cheapest tree of every class, by Knuth's generalization of Dijkstra's algorithm. Exact for trees; where results
/// are used many times, sums grow exponentially and (from 2^67 times the dearest program on) no longer tell alternatives
/// apart: [`DagGreedy`](super::DagGreedy) is the one to use for programs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeGreedy;

impl Extractor for TreeGreedy {
    fn name(&self) -> &str {
        "tree"
    }

    fn fingerprint(&self) -> Option<String> {
        Some("tree".into())
    }

    fn extract(&self, p: &Problem) -> Choice {
        Trees::grow(p).choice
    }
}

/// The cheapest trees of all classes.
pub(super) struct Trees {
    pub(super) choice: Choice,
    /// By class: the tree's price; none where no candidate can be completed.
    pub(super) totals: Vec<Option<Total>>,
    /// By class: its number in the order in which trees were found, cheaper and hence inner ones first.
    pub(super) ranks: Vec<u32>,
}

impl Trees {
    pub(super) fn grow(p: &Problem) -> Trees {
        let mut missing: Vec<u32> = vec![0; p.candidates()];
        let mut sums: Vec<Total> = vec![Total::default(); p.candidates()];
        let mut totals: Vec<Option<Total>> = vec![None; p.classes()];
        let mut choice = Choice::new(vec![None; p.classes()]);
        let mut ranks = vec![u32::MAX; p.classes()];
        let users = p.users();
        // Ties are broken by the candidate's number: results do not depend on the heap's insides.
        let mut heap: BinaryHeap<Reverse<(Total, u32, u32)>> = BinaryHeap::new();
        for class in 0..p.classes() as u32 {
            for candidate in p.of_class(class) {
                let mut needs = p.needs(candidate).to_vec();
                needs.sort_unstable();
                needs.dedup();
                missing[candidate as usize] = needs.len() as u32;
                sums[candidate as usize] = p.candidate(candidate).total;
                if needs.is_empty() {
                    heap.push(Reverse((sums[candidate as usize], candidate, class)));
                }
            }
        }
        let mut rank = 0;
        while let Some(Reverse((total, candidate, class))) = heap.pop() {
            if totals[class as usize].is_some() {
                continue;
            }
            totals[class as usize] = Some(total);
            choice.set(class, candidate);
            ranks[class as usize] = rank;
            rank += 1;
            for &(user, of) in &users[class as usize] {
                let uses = p.needs(user).iter().filter(|&&c| c == class).count();
                for _ in 0..uses {
                    sums[user as usize] = sums[user as usize].plus(total);
                }
                missing[user as usize] -= 1;
                if missing[user as usize] == 0 && totals[of as usize].is_none() {
                    heap.push(Reverse((sums[user as usize], user, of)));
                }
            }
        }
        Trees { choice, totals, ranks }
    }
}
