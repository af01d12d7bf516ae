//! The orders of a few things: all of them, or a sample.

use hashbrown::HashSet;

use crate::tensor::SplitMix64;

/// How many orders `n` things have; `u64::MAX` where that is more than fits.
fn count(n: usize) -> u64 {
    (1..=n as u64).try_fold(1u64, u64::checked_mul).unwrap_or(u64::MAX)
}

/// What an order may have in one place: one of these members, or none where that is allowed.
pub(super) type Choice = (Vec<usize>, bool);

/// The sets of members that orders have, in the order of the choices: the first alternative before the others, none last.
fn sets(choices: &[Choice]) -> impl Iterator<Item = Vec<usize>> {
    let ways: Vec<Vec<Option<usize>>> = choices
        .iter()
        .map(|(members, optional)| members.iter().map(|&m| Some(m)).chain(optional.then_some(None)).collect())
        .collect();
    let total = ways.iter().map(Vec::len).try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX);
    (0..total).map(move |mut at| {
        let mut set: Vec<usize> = Vec::new();
        for way in ways.iter().rev() {
            set.extend(way[at % way.len()]);
            at /= way.len();
        }
        set.reverse();
        set
    })
}

/// How many orders there are of all sets that can be chosen; `u64::MAX` where that is more than fits.
pub(super) fn possible(choices: &[Choice]) -> u64 {
    // So many chosen of the first choices can be had in so many ways.
    let mut ways: Vec<u64> = vec![1];
    for (members, optional) in choices {
        let mut next = vec![0u64; ways.len() + 1];
        for (k, &n) in ways.iter().enumerate() {
            next[k + 1] = next[k + 1].saturating_add(n.saturating_mul(members.len() as u64));
            next[k] = next[k].saturating_add(if *optional { n } else { 0 });
        }
        ways = next;
    }
    ways.iter().enumerate().fold(0, |sum: u64, (k, n)| sum.saturating_add(n.saturating_mul(count(k))))
}

/// All orders of all sets that can be chosen where they are no more than `most`, each set's in lexicographic order; else that many
/// different ones, drawn with a seed and sorted, so that orders that begin alike come together. The first set as it is written is
/// always among them.
pub(super) fn orders(choices: &[Choice], most: usize, seed: u64) -> Vec<Vec<usize>> {
    if possible(choices) <= most as u64 {
        let mut all: Vec<Vec<usize>> = Vec::new();
        for set in sets(choices) {
            all.push(set);
            while let Some(next) = all.last().and_then(|o| successor(o)) {
                all.push(next);
            }
        }
        return all;
    }
    let mut rng = SplitMix64(seed);
    let mut seen: HashSet<Vec<usize>> = HashSet::new();
    seen.extend(sets(choices).next());
    while seen.len() < most.max(1) {
        let mut order: Vec<usize> = Vec::new();
        for (members, optional) in choices {
            // A single member that is always there takes no draw.
            let ways = members.len() + *optional as usize;
            let at = if ways > 1 { (rng.next_u64() % ways as u64) as usize } else { 0 };
            order.extend(members.get(at));
        }
        for i in (1..order.len()).rev() {
            order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
        }
        seen.insert(order);
    }
    let mut sample: Vec<Vec<usize>> = seen.into_iter().collect();
    sample.sort_unstable();
    sample
}

/// The next order, by the dictionary.
fn successor(order: &[usize]) -> Option<Vec<usize>> {
    let pivot = order.windows(2).rposition(|w| w[0] < w[1])?;
    let mut next = order.to_vec();
    let swap = next.iter().rposition(|&x| x > next[pivot])?;
    next.swap(pivot, swap);
    next[pivot + 1..].reverse();
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(n: usize) -> Vec<Choice> {
        (0..n).map(|i| (vec![i], false)).collect()
    }

    #[test]
    fn all_orders_once() {
        assert_eq!(orders(&plain(3), 6, 0), [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]);
        assert_eq!(orders(&plain(5), 1000, 0).iter().collect::<HashSet<_>>().len(), 120);
        assert_eq!(orders(&plain(0), 10, 0), [Vec::<usize>::new()]);
    }

    #[test]
    fn alternatives_and_what_may_be_left_out() {
        let choices = [(vec![0, 1], false), (vec![2], true)];
        let all = orders(&choices, 10, 0);
        assert_eq!(all, [vec![0, 2], vec![2, 0], vec![0], vec![1, 2], vec![2, 1], vec![1]]);
        assert_eq!(possible(&choices), 6);
        let few = orders(&choices, 4, 1);
        assert!(few.len() == 4 && few.iter().all(|o| all.contains(o)) && few.contains(&vec![0, 2]), "{few:?}");
    }

    #[test]
    fn a_sample_is_the_same_for_a_seed() {
        let a = orders(&plain(6), 50, 7);
        assert_eq!((a.len(), &a), (50, &orders(&plain(6), 50, 7)));
        assert!(a.is_sorted() && a[0] == [0, 1, 2, 3, 4, 5] && a != orders(&plain(6), 50, 8));
        assert_eq!(possible(&plain(30)), u64::MAX);
    }
}
