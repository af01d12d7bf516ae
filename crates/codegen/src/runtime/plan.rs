//! Where buffers live while a program runs: one arena, shared by buffers that are not in use at the same time.

/// What one step takes of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Buffers that it reads.
    pub reads: Vec<usize>,
    /// Buffers that it writes.
    pub writes: Vec<usize>,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
    /// Pairs of a buffer that it reads and one that it writes which may be the same memory.
    pub in_place: Vec<(usize, usize)>,
}

/// Where everything lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Byte offset of each buffer; `None` for buffers that are not planned or not used.
    pub offsets: Vec<Option<usize>>,
    /// Byte offset of each step's workspace.
    pub workspaces: Vec<usize>,
    /// Size of the arena, in bytes.
    pub arena: usize,
    /// The most bytes that are in use at once: no plan takes less.
    pub least: usize,
}

/// Something that takes memory from one step to another, both counted.
struct Tenant {
    bytes: usize,
    first: usize,
    last: usize,
}

/// Plans the memory of steps that run one after another. `sizes` gives each buffer's bytes, `None` for buffers that live
/// elsewhere. Offsets are multiples of `align`.
///
/// Greedy by size: the largest tenant first, each into the smallest gap that holds it, next to those it shares time with. Where that takes
/// more than is in use at once, what came to lie at the very top goes first next time, a bounded number of times, and the best counts.
pub fn plan(sizes: &[Option<usize>], steps: &[Workload], align: usize) -> Plan {
    let (mut tenants, tenant_of) = buffer_tenants(sizes, steps, align);
    let first_workspace = tenants.len();
    tenants.extend(steps.iter().enumerate().map(|(i, s)| Tenant {
        bytes: s.workspace.next_multiple_of(align),
        first: i,
        last: i,
    }));
    let least = most_at_once(&tenants, steps.len());
    let (at, arena) = place_well(&tenants, least);
    Plan {
        offsets: tenant_of.iter().map(|t| t.map(|t| at[t])).collect(),
        workspaces: at[first_workspace..].to_vec(),
        arena,
        least,
    }
}

/// The tenants that buffers are, and which each buffer is; in-place steps make two buffers one tenant.
fn buffer_tenants(sizes: &[Option<usize>], steps: &[Workload], align: usize) -> (Vec<Tenant>, Vec<Option<usize>>) {
    let mut last_use = vec![0; sizes.len()];
    for (i, step) in steps.iter().enumerate() {
        step.reads.iter().chain(&step.writes).for_each(|&b| last_use[b] = i);
    }
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut tenant_of: Vec<Option<usize>> = vec![None; sizes.len()];
    for (i, step) in steps.iter().enumerate() {
        for &b in step.reads.iter().chain(&step.writes) {
            let (Some(bytes), None) = (sizes[b], tenant_of[b]) else { continue };
            let heir = step.in_place.iter().find_map(|&(from, to)| {
                let dies = to == b && step.writes.contains(&b) && sizes[from] == sizes[b] && last_use[from] == i;
                // Two outputs can't take the place of one input.
                let t = tenant_of[from].filter(|&t| dies && tenants[t].last == i)?;
                Some(t)
            });
            let t = heir.unwrap_or_else(|| {
                tenants.push(Tenant { bytes: bytes.next_multiple_of(align), first: i, last: i });
                tenants.len() - 1
            });
            tenants[t].last = tenants[t].last.max(last_use[b]);
            if heir.is_some() && last_use[b] == i {
                // Nobody reads it: it must still not be inherited twice.
                tenants[t].last = i + 1;
            }
            tenant_of[b] = Some(t);
        }
    }
    (tenants, tenant_of)
}

/// So often tenants are placed again...
const TRIES: usize = 64;

/// ...and fewer times where there are many: so many pairs of them are looked at in all.
const PAIRS: usize = 20_000_000;

/// Where tenants lie, and the size of the arena, which is at least `least`.
fn place_well(tenants: &[Tenant], least: usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..tenants.len()).filter(|&t| tenants[t].bytes > 0).collect();
    order.sort_by_key(|&t| (std::cmp::Reverse(tenants[t].bytes), tenants[t].first));
    let beside = beside(tenants);
    let mut best = place(tenants, &beside, &order);
    let mut last = best.clone();
    let tries = (PAIRS / tenants.len().pow(2).max(1)).min(TRIES);
    for _ in 0..tries {
        if best.1 <= least {
            break;
        }
        let (at, arena) = &last;
        let is_top = |t: usize| at[t] + tenants[t].bytes == *arena;
        let top = order.iter().take_while(|&&t| is_top(t)).count();
        if !order[top..].iter().any(|&t| is_top(t)) {
            // They went first already.
            break;
        }
        // Stable: those that are not moved stay in their order.
        order.sort_by_key(|&t| !is_top(t));
        last = place(tenants, &beside, &order);
        if last.1 < best.1 {
            best = last.clone();
        }
    }
    best
}

/// By tenant: those that it shares time with.
fn beside(tenants: &[Tenant]) -> Vec<Vec<usize>> {
    let mut beside = vec![Vec::new(); tenants.len()];
    let mut coming: Vec<usize> = (0..tenants.len()).filter(|&t| tenants[t].bytes > 0).collect();
    coming.sort_by_key(|&t| tenants[t].first);
    let mut here: Vec<usize> = Vec::new();
    for t in coming {
        here.retain(|&o| tenants[o].last >= tenants[t].first);
        for &o in &here {
            beside[o].push(t);
            beside[t].push(o);
        }
        here.push(t);
    }
    beside
}

/// Places tenants in an order, each into the smallest gap that holds it.
fn place(tenants: &[Tenant], beside: &[Vec<usize>], order: &[usize]) -> (Vec<usize>, usize) {
    let mut at = vec![0; tenants.len()];
    let mut is_placed = vec![false; tenants.len()];
    let mut arena = 0;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for &t in order {
        let bytes = tenants[t].bytes;
        taken.clear();
        taken.extend(beside[t].iter().filter(|&&o| is_placed[o]).map(|&o| (at[o], at[o] + tenants[o].bytes)));
        taken.sort_unstable();
        let (mut free, mut best) = (0, None);
        for &(begin, end) in &taken {
            if begin >= free + bytes && best.is_none_or(|(gap, _)| begin - free < gap) {
                best = Some((begin - free, free));
            }
            free = free.max(end);
        }
        at[t] = best.map_or(free, |(_, offset)| offset);
        arena = arena.max(at[t] + bytes);
        is_placed[t] = true;
    }
    (at, arena)
}

fn most_at_once(tenants: &[Tenant], steps: usize) -> usize {
    let mut change = vec![0isize; steps + 2];
    for t in tenants {
        change[t.first] += t.bytes as isize;
        change[t.last.min(steps) + 1] -= t.bytes as isize;
    }
    let now = change.iter().scan(0, |now, c| {
        *now += c;
        Some(*now)
    });
    now.max().unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(reads: &[usize], writes: &[usize]) -> Workload {
        Workload { reads: reads.into(), writes: writes.into(), ..Workload::default() }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let steps = [step(&[], &[0]), step(&[0], &[1]), step(&[1], &[2]), step(&[2], &[3])];
        let p = plan(&[Some(100); 4], &steps, 64);
        assert_eq!((p.arena, p.least), (256, 256));
    }

    #[test]
    fn in_place_steps_need_one() {
        let mut steps = [step(&[], &[0]), step(&[0], &[1]), step(&[1], &[2])];
        steps[1].in_place = vec![(0, 1)];
        steps[2].in_place = vec![(1, 2)];
        let p = plan(&[Some(64); 3], &steps, 64);
        assert_eq!((p.arena, p.least), (64, 64));
        let both = Workload { in_place: vec![(0, 1), (0, 2)], ..step(&[0], &[1, 2]) };
        let p = plan(&[Some(64); 3], &[step(&[], &[0]), both], 64);
        assert_ne!(p.offsets[1], p.offsets[2]);
    }

    #[test]
    fn what_lies_at_the_top_goes_first() {
        // Largest first, the two of 640 bytes lie at the bottom: in the last step the first one's place is too small for either of two.
        let sizes = [640, 576, 640, 448, 512].map(Some);
        let steps = [step(&[], &[0]), step(&[], &[1]), step(&[1], &[]), step(&[0], &[2]), step(&[2], &[3, 4])];
        let p = plan(&sizes, &steps, 64);
        assert_eq!((p.arena, p.least), (1600, 1600));
    }

    fn workloads() -> impl Strategy<Value = (Vec<Option<usize>>, Vec<Workload>)> {
        let buffer = || 0..12usize;
        let size = prop_oneof![Just(None), (0..500usize).prop_map(Some), Just(Some(128))];
        let step = (prop::collection::vec(buffer(), 0..4), buffer(), 0..300usize, any::<bool>());
        (prop::collection::vec(size, 12), prop::collection::vec(step, 1..20)).prop_map(|(sizes, steps)| {
            let steps = steps.into_iter().map(|(reads, write, workspace, in_place)| {
                let reads: Vec<usize> = reads.into_iter().filter(|&r| r != write).collect();
                let in_place = reads.iter().filter(|_| in_place).map(|&r| (r, write)).collect();
                Workload { reads, writes: vec![write], workspace, in_place }
            });
            (sizes, steps.collect())
        })
    }

    proptest! {
        #[test]
        fn nothing_in_use_is_overwritten((sizes, steps) in workloads()) {
            let p = plan(&sizes, &steps, 64);
            prop_assert!(p.arena >= p.least);
            let uses = |b: usize| {
                let at = |s: &Workload| s.reads.contains(&b) || s.writes.contains(&b);
                Some((steps.iter().position(at)?, steps.iter().rposition(at)?))
            };
            for (i, s) in steps.iter().enumerate() {
                let mut live: Vec<(usize, usize, usize)> = Vec::new();
                for (b, size) in sizes.iter().enumerate() {
                    let (Some(offset), Some(bytes), Some((first, last))) = (p.offsets[b], *size, uses(b)) else { continue };
                    prop_assert!(offset % 64 == 0 && offset + bytes <= p.arena);
                    if first <= i && i <= last {
                        live.push((b, offset, bytes));
                    }
                }
                live.push((usize::MAX, p.workspaces[i], s.workspace));
                for (j, &(a, at_a, len_a)) in live.iter().enumerate() {
                    for &(b, at_b, len_b) in &live[..j] {
                        let may = s.in_place.contains(&(a, b)) || s.in_place.contains(&(b, a));
                        let apart = at_a + len_a <= at_b || at_b + len_b <= at_a || len_a == 0 || len_b == 0;
                        prop_assert!(apart || may, "step {i}: buffers {a} and {b} overlap");
                    }
                }
            }
        }
    }
}
