//! The orders of a few things: all of them, or a sample.

use hashbrown::HashSet;

/// How many orders `n` things have; `u64::MAX` where that is more than fits.
pub(super) fn count(n: usize) -> u64 {
    (1..=n as u64).try_fold(1u64, u64::checked_mul).unwrap_or(u64::MAX)
}

/// All orders of `0..n` where they are no more than `most`, in lexicographic order; else that many different ones, drawn with a seed
/// and sorted, so that orders that begin alike come together. The order `0..n` itself is always among them.
pub(super) fn orders(n: usize, most: usize, seed: u64) -> Vec<Vec<usize>> {
    if count(n) <= most as u64 {
        let mut all = vec![(0..n).collect::<Vec<_>>()];
        while let Some(next) = all.last().and_then(|o| successor(o)) {
            all.push(next);
        }
        return all;
    }
    let mut state = seed;
    let mut seen: HashSet<Vec<usize>> = HashSet::new();
    seen.insert((0..n).collect());
    while seen.len() < most.max(1) {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, (splitmix(&mut state) % (i as u64 + 1)) as usize);
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

/// The next number of the splitmix64 generator.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_once() {
        assert_eq!(orders(3, 6, 0), [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]);
        assert_eq!(orders(5, 1000, 0).iter().collect::<HashSet<_>>().len(), 120);
        assert_eq!(orders(0, 10, 0), [Vec::<usize>::new()]);
    }

    #[test]
    fn a_sample_is_the_same_for_a_seed() {
        let a = orders(6, 50, 7);
        assert_eq!((a.len(), &a), (50, &orders(6, 50, 7)));
        assert!(a.is_sorted() && a[0] == [0, 1, 2, 3, 4, 5] && a != orders(6, 50, 8));
        assert_eq!(count(30), u64::MAX);
    }
}
