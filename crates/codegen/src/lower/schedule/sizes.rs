//! Schedules of kernels whose extents change: loops of the same form at every size.
//!
//! A schedule for given extents chooses (which axis is the vector, how large tiles are, in which order loops run), and cuts what does
//! not come out even as the extents ask for. Of a kernel that is to serve many sizes, what is chosen at one is noted, and taken at all
//! others; and loops over axes that change keep their form whatever the extents are: so many whole tiles, then smaller ones, and any of
//! these may be none. So kernels for two sizes differ in numbers only, which a [`Family`](crate::loops::Family) makes one of.

use std::{any::Any, sync::Arc};

use hashbrown::HashSet;

use super::{
    Emitter, Loop, bind,
    dry::{Met, Noted},
};
use crate::{
    loops::{AxisId, Kernel, LoopKind, Scalar, Stages, Stmt},
    machine::Core,
};

/// A choice, and the first variable that was free after it was made.
#[derive(Clone)]
struct Decision {
    made: Arc<dyn Any + Send + Sync>,
    next_axis: u32,
}

/// What was chosen for a kernel at one size, to be chosen at others, and what is known of the numbers that are met then.
#[derive(Clone, Default)]
pub struct Decisions {
    made: Arc<Vec<Decision>>,
    pub(super) noted: Option<Arc<Noted>>,
}

impl Decisions {
    /// Whether going through a schedule by them never tells what changes in its kernel.
    pub(crate) fn tell_nothing(&self) -> bool {
        self.noted.as_ref().is_none_or(|noted| noted.is_opaque())
    }
}

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} decisions", self.made.len())
    }
}

/// How a kernel is scheduled whose extents change.
pub(super) struct Sizes {
    /// Axes and loop variables whose extents do.
    changing: HashSet<AxisId>,
    /// What is decided here, or what was at another size.
    decisions: Decisions,
    /// The decision that is taken next; none while they are made.
    next: Option<usize>,
    /// Whether what was chosen at another size can't be chosen here.
    diverged: bool,
    /// Numbers with names, which are bound around the whole kernel.
    pub(super) numbers: Vec<(AxisId, i64)>,
    /// What of expressions and extents was met on the way.
    pub(super) met: Met,
}

/// The axes of stages whose extents differ between groups that are otherwise lowered alike; none where they are not.
pub fn changing(groups: &[&Stages]) -> Option<HashSet<AxisId>> {
    let axes: Vec<Vec<(AxisId, i64)>> = groups.iter().map(|g| all_axes(g)).collect();
    let first = axes.first()?;
    let mut found = HashSet::new();
    for other in &axes[1..] {
        if other.len() != first.len() {
            return None;
        }
        for (a, b) in first.iter().zip(other) {
            if a.0 != b.0 {
                return None;
            }
            if a.1 != b.1 {
                found.insert(a.0);
            }
        }
    }
    Some(found)
}

fn all_axes(group: &Stages) -> Vec<(AxisId, i64)> {
    use crate::loops::{Body, Definition, Stage};
    let of = |s: &Stage| -> Vec<(AxisId, i64)> {
        let reduced = match &s.body {
            Body::Reduce { axes, .. } => &axes[..],
            Body::Map(_) => &[],
        };
        s.axes.iter().chain(reduced).map(|a| (a.id, a.extent)).collect()
    };
    let definition = |d: &Definition| match d {
        Definition::Stage(s) => of(s),
        Definition::Routine(r) => {
            r.starts.iter().flat_map(of).chain(r.indices.iter().map(|a| (a.id, a.extent))).collect()
        }
    };
    group.definitions.iter().flat_map(definition).collect()
}

/// The kernel of a group of which these axes change, by decisions that were made at another size; or with decisions of its own, where none
/// are given. None where those can't be taken here.
pub fn schedule_sized(
    name: &str,
    group: &Stages,
    unit: Core,
    changing: &HashSet<AxisId>,
    decisions: Option<&Decisions>,
) -> Option<(Kernel, Decisions)> {
    let sizes = Sizes::new(changing, decisions, false);
    let (kernel, sizes) = super::scheduled(name, group, unit, &[], Some(sizes));
    let sizes = sizes.filter(|s| !s.diverged)?;
    Some((kernel.kernel, sizes.decisions))
}

impl Sizes {
    /// `dry` where numbers are asked for, and no kernel.
    pub(super) fn new(changing: &HashSet<AxisId>, decisions: Option<&Decisions>, dry: bool) -> Sizes {
        let noted = decisions.and_then(|d| d.noted.clone());
        Sizes {
            changing: changing.clone(),
            decisions: decisions.cloned().unwrap_or_default(),
            next: decisions.map(|_| 0),
            diverged: false,
            numbers: Vec::new(),
            met: Met::new(noted, dry),
        }
    }

    /// What was decided, or taken; none where that could not be.
    pub(super) fn decided(self) -> Option<(Decisions, Met, Vec<i64>)> {
        let numbers = self.numbers.iter().map(|n| n.1).collect();
        (!self.diverged).then_some((self.decisions, self.met, numbers))
    }

    /// How many decisions were taken or made.
    pub(super) fn taken(&self) -> usize {
        self.next.unwrap_or(self.decisions.made.len())
    }
}

impl Emitter {
    /// What is chosen here: what was chosen at another size, where the kernel is for many.
    pub(super) fn decide<T: Any + Clone + Send + Sync>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        let Some(sizes) = &mut self.sizes else { return make(self) };
        let Some(next) = sizes.next else {
            let made = make(self);
            let decision = Decision { made: Arc::new(made.clone()), next_axis: self.next_axis };
            if let Some(sizes) = &mut self.sizes {
                Arc::make_mut(&mut sizes.decisions.made).push(decision);
            }
            return made;
        };
        sizes.next = Some(next + 1);
        let decision = sizes.decisions.made.get(next);
        let made = decision.and_then(|d| Some((d.made.downcast_ref::<T>()?.clone(), d.next_axis)));
        match made {
            Some((made, next_axis)) => {
                // What has more variables here than there keeps them apart.
                self.next_axis = self.next_axis.max(next_axis);
                made
            }
            None => {
                self.diverge();
                make(self)
            }
        }
    }

    /// What was chosen elsewhere is not what can be done here.
    pub(super) fn diverge(&mut self) {
        if let Some(sizes) = &mut self.sizes {
            sizes.diverged = true;
        }
    }

    /// Whether the kernel is for many sizes.
    pub(super) fn is_sized(&self) -> bool {
        self.sizes.is_some()
    }

    /// The axes and loop variables whose extents change, where the kernel is for many sizes.
    pub(super) fn changing(&self) -> Option<&HashSet<AxisId>> {
        self.sizes.as_ref().map(|s| &s.changing)
    }

    /// Whether an axis' extent, or how often a loop runs, changes from size to size.
    pub(super) fn changes(&self, axis: AxisId) -> bool {
        self.sizes.as_ref().is_some_and(|s| s.changing.contains(&axis))
    }

    /// Notes that how often a loop over this variable runs changes from size to size, where the kernel is for many.
    pub(super) fn mark(&mut self, axis: AxisId) {
        if let Some(sizes) = &mut self.sizes {
            sizes.changing.insert(axis);
        }
    }

    /// A number that changes from size to size: an expression that is the same whatever it is.
    pub(super) fn number(&mut self, n: i64) -> Scalar {
        self.name(n).map_or_else(|| Scalar::index(n), Scalar::axis)
    }

    /// The same, where only the name is asked for: there is one where the kernel is for many sizes.
    pub(super) fn name(&mut self, n: i64) -> Option<AxisId> {
        let axis = self.fresh();
        let sizes = self.sizes.as_mut()?;
        sizes.numbers.push((axis, n));
        Some(axis)
    }

    /// How often a loop runs.
    pub(super) fn turns(&mut self, l: &Loop) -> Scalar {
        if self.changes(l.var) { self.number(l.extent) } else { Scalar::index(l.extent) }
    }

    /// One loop; none where it is known to run once.
    pub(super) fn one_loop(&mut self, l: &Loop, kind: LoopKind, body: Stmt) -> Stmt {
        if self.is_dry() {
            if self.changes(l.var) {
                self.name(l.extent);
            }
            return body;
        }
        if self.changes(l.var) {
            let extent = self.number(l.extent);
            return Stmt::For { var: l.var, extent, kind, body: Box::new(body) };
        }
        match l.extent {
            1 => bind(l.var, Scalar::index(0), body),
            n => super::for_(l.var, n, kind, body),
        }
    }

    /// The statement with the named numbers bound around it.
    pub(super) fn with_numbers(&self, body: Stmt) -> Stmt {
        let Some(sizes) = self.sizes.as_ref().filter(|_| !self.is_dry()) else { return body };
        let bound = |body: Stmt, numbers: &[(AxisId, i64)]| {
            numbers.iter().rev().fold(body, |body, &(var, n)| bind(var, Scalar::index(n), body))
        };
        // Numbers of expressions stand apart: those that are equal may be one parameter.
        let body = match &sizes.met.named[..] {
            [] => body,
            named => Stmt::Block(vec![bound(body, named)]),
        };
        bound(body, &sizes.numbers)
    }
}

/// An extent that changes in pieces of `largest`, then of smaller ones: (first element, pieces, extent of each), any of which may be none.
pub(super) fn descending(extent: i64, sizes: &[i64]) -> Vec<(i64, i64, i64)> {
    let mut done = 0;
    sizes
        .iter()
        .map(|&size| {
            let (first, count) = (done, (extent - done) / size);
            done += count * size;
            (first, count, size)
        })
        .collect()
}

/// Smaller tiles than of so many elements take as long as these: what all of a tile's elements read comes no faster.
pub(super) const FEW: i64 = 6;
/// Whole tiles come first, but for so many at the end, which are cut with what is left.
const CUT_ANEW: i64 = 3;

/// How tiles go along an axis whose extent changes.
#[derive(Copy, Clone)]
pub(super) struct TilesAlong {
    /// Whether what a tile reads comes from L2.
    pub(super) streamed: bool,
    /// Whether the last ones may overlap the one before them.
    pub(super) may_overlap: bool,
    /// Whether there are many of the largest, so that of what is left fewer sizes are enough.
    pub(super) many: bool,
}

impl TilesAlong {
    /// Whether there are many tiles of a size in an extent.
    pub(super) fn is_many(extent: i64, size: i64) -> bool {
        extent >= 3 * size
    }
}

/// Tiles along columns are rarely longer: those of 13 and 14 are of pixels of all rows.
const LONGEST_OF_COLUMNS: i64 = 12;

/// The sizes of tiles along an axis whose extent changes, where the largest have this one. Small images have 6 to 8 columns rather than 9 to 11, and what
/// is left of larger extents is cut into those, too. Each size takes time to compile.
fn tile_sizes(size: i64, along: TilesAlong) -> Vec<i64> {
    // Columns of images have shorter ones, and widths of all kinds.
    let few = along.many && along.may_overlap && size > LONGEST_OF_COLUMNS;
    let half = (size + 1) / 2;
    match size {
        ..=8 => {
            let lesser = if half < 4 { tails(half) } else { vec![3, 1] };
            (half..=size).rev().chain(lesser).collect()
        }
        // An odd size is what an extent is cut into evenly, with others that are one less.
        _ if few => vec![size, if size % 2 == 1 { size - 1 } else { size - 3 }, 4, 1],
        9 => vec![9, 7, 6, 4, 3, 1],
        _ => vec![size, 8, 7, 6, 3, 1],
    }
}

/// Whether what all elements of a tile read, so many elements of each vector, comes from the second cache: then smaller tiles take as long as
/// larger ones.
pub(super) fn is_streamed(reduced: f64, unit: Core) -> bool {
    reduced * 2.0 * unit.vector_bytes as f64 > unit.timing.l1.bytes as f64
}

/// An extent that changes in tiles of a size and smaller ones: (first element, tiles, extent of each). Nearly even ones where what they read is streamed, or
/// they may overlap.
pub(super) fn changing_tiles(extent: i64, size: i64, along: TilesAlong) -> Vec<(i64, i64, i64)> {
    match along.streamed || along.may_overlap {
        true => cut_into(extent, &tile_sizes(size, along), along.may_overlap),
        false => descending(extent, &[size].into_iter().chain(tails(size)).collect::<Vec<i64>>()),
    }
}

/// Tiles overlap by so many elements at most.
const MOST_OVERLAP: usize = 3;

/// An extent in tiles of these sizes, the greatest first and 1 last, as few and as even as can be: (first element, tiles, extent of each). The tiles
/// of the last size may begin some elements earlier, and overlap the one before.
fn cut_into(extent: i64, sizes: &[i64], may_overlap: bool) -> Vec<(i64, i64, i64)> {
    let whole = (extent / sizes[0] - CUT_ANEW).max(0);
    let left = (extent - whole * sizes[0]) as usize;
    let most = if may_overlap && left > 0 { left + MOST_OVERLAP } else { left };
    // The least that so many elements cost, and the number of the size that is taken first.
    let mut least: Vec<(i64, usize)> = vec![(0, 0)];
    for n in 1..=most {
        let fitting = sizes.iter().enumerate().filter(|(_, size)| **size as usize <= n);
        // Of as many tiles those that are as large as each other.
        let alone = |size: i64| 1000 * (2 * size.max(FEW) + 1) + size * size;
        let cost = |(at, size): (usize, &i64)| (least[n - *size as usize].0 + alone(*size), at);
        least.push(fitting.map(cost).min().unwrap_or((0, 0)));
    }
    let counted = |mut n: usize| {
        let mut counts = vec![0; sizes.len()];
        counts[0] = whole;
        while n > 0 {
            let at = least[n].1;
            counts[at] += 1;
            n -= sizes[at] as usize;
        }
        counts
    };
    // Those of one size alone have nothing before them to overlap; and what is before the last ones must not reach beyond the extent.
    let overlaps = |n: &usize| {
        let counts = counted(*n);
        let mut used = counts.iter().zip(sizes).filter(|(count, _)| **count > 0).map(|(_, size)| *size as usize);
        *n == left || used.next_back().is_some_and(|last| last > *n - left) && used.next().is_some()
    };
    let chosen = (left..=most).filter(overlaps).min_by_key(|n| least[*n].0).unwrap_or(left);
    let counts = counted(chosen);
    let last = counts.iter().rposition(|c| *c > 0);
    let mut done = 0;
    let piece = |(at, (&size, count)): (usize, (&i64, i64))| {
        done += count * size;
        let earlier = if Some(at) == last { (chosen - left) as i64 } else { 0 };
        (done - count * size - earlier, count, size)
    };
    sizes.iter().zip(counts).enumerate().map(piece).collect()
}

/// What is left of an extent after tiles of a size goes through tiles of these, one of each at most: powers of two.
pub(super) fn tails(size: i64) -> Vec<i64> {
    (0..63).rev().map(|p| 1 << p).filter(|n| *n < size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        loops::{Builder, Combine},
        machine::{Arch, family},
        tensor::DType,
    };

    /// A convolution of `size` x `size` pixels by a stride, from and to so many blocks of channels, of images of that batch, height and width.
    fn convolution([batch, height, width]: [i64; 3], size: i64, stride: i64, [of, into]: [i64; 2]) -> Stages {
        let (rows, columns, pad) = (height / stride, width / stride, size / 2);
        let mut b = Builder::new();
        let image = b.arg(&[batch, of, height, width, 16], DType::F32);
        let weights = b.arg(&[into, of, size, size, 16, 16], DType::F32);
        let to = [batch, into, rows, columns, 16];
        let sum = b.reduce(&to, &[of, size, size, 16], Combine::Sum, |b, i, r| {
            let at = |place: &Scalar, tap: &Scalar| place.clone() * stride + tap.clone() - pad;
            let (y, x) = (at(&i[2], &r[1]), at(&i[3], &r[2]));
            let inside =
                |at: &Scalar, extent: i64| at.clone().ge(Scalar::index(0)).and(at.clone().lt(Scalar::index(extent)));
            let pixel = b.read(image, [i[0].clone(), r[0].clone(), y.clone(), x.clone(), r[3].clone()]);
            let pixel = match pad {
                0 => pixel,
                _ => Scalar::select(inside(&y, height).and(inside(&x, width)), pixel, Scalar::float(0.0, DType::F32)),
            };
            let [block, from, to] = [&i[1], &r[0], &i[4]].map(Clone::clone);
            pixel * b.read(weights, [block, from, r[1].clone(), r[2].clone(), r[3].clone(), to])
        });
        b.finish(vec![sum])
    }

    /// What is decided for a small image is what all others' kernels are of, and not what some larger one would have: then weights would be read again for each
    /// few pixels of the small one.
    #[test]
    fn decisions_of_one_image_are_taken_at_others() {
        let timing = family(Arch::X86, "sapphirerapids").expect("a family").timing;
        let core = Core { vector_bytes: 64, vector_registers: 32, timing, ..Core::SCALAR };
        // Of the last one, a small image has fewer bytes than the weights, and a large one more.
        let all = [(1, 1, [20, 80]), (3, 1, [20, 80]), (3, 2, [20, 80]), (3, 2, [4, 8])];
        for (size, stride, blocks) in all {
            let at = |extents| convolution(extents, size, stride, blocks);
            let (small, other) = (at([1, 14, 14]), at([5, 38, 42]));
            let changing = changing(&[&small, &other]).expect("they differ in extents");
            let (kernel, decisions) = schedule_sized("conv", &small, core, &changing, None).expect("it is scheduled");
            for extents in [[5, 38, 42], [1, 4, 8], [12, 56, 60], [2, 14, 14], [1, 112, 112]] {
                let same = schedule_sized("conv", &at(extents), core, &changing, Some(&decisions));
                let (same, _) = same.expect("decisions are taken");
                assert_eq!(
                    same.outline().structure,
                    kernel.outline().structure,
                    "{size} by {stride}, {blocks:?} at {extents:?}"
                );
            }
        }
    }

    #[test]
    fn extents_are_cut_into_few_even_tiles() {
        let cut = |extent: i64, size: i64| -> Vec<(i64, i64)> {
            let pieces = cut_into(
                extent,
                &tile_sizes(size, TilesAlong { streamed: true, may_overlap: false, many: false }),
                false,
            );
            let ends: Vec<i64> = pieces.iter().map(|(first, count, size)| first + count * size).collect();
            assert!(pieces[1..].iter().zip(&ends).all(|(p, end)| p.0 == *end), "{pieces:?}");
            assert_eq!((pieces[0].0, ends.last()), (0, Some(&extent)), "{pieces:?}");
            pieces.into_iter().filter(|p| p.1 > 0).map(|p| (p.1, p.2)).collect()
        };
        assert_eq!(cut_into(30, &[14, 11, 9, 4, 3, 1], true)[..3], [(0, 0, 14), (0, 2, 11), (21, 1, 9)]);
        for (size, extent, many) in
            (1..=14).flat_map(|size| (0..400).map(move |extent| (size, extent / 2, extent % 2 == 0)))
        {
            let along = TilesAlong { streamed: true, may_overlap: true, many };
            let mut seen = vec![0; extent as usize];
            for (first, count, size) in cut_into(extent, &tile_sizes(size, along), true) {
                (first..first + count * size).for_each(|at| seen[at as usize] += 1);
            }
            assert!(seen.iter().all(|n| (1..=2).contains(n)), "{extent} by {size}");
        }
        assert_eq!(cut(6, 7), [(1, 6)]);
        assert_eq!(cut(8, 7), [(2, 4)]);
        assert_eq!(cut(37, 12), [(2, 12), (1, 7), (1, 6)]);
        assert_eq!([cut(8, 14), cut(7, 14), cut(20, 12)], [vec![(1, 8)], vec![(1, 7)], vec![(1, 12), (1, 8)]]);
        assert_eq!(cut(3, 1), [(3, 1)]);
        assert_eq!(cut(140, 14), [(10, 14)]);
        for size in 1..=14 {
            for extent in 0..200 {
                let tiles: i64 = cut(extent, size).iter().map(|p| p.0).sum();
                assert!(tiles <= (extent + size - 1) / size + 2, "{extent} by {size}");
            }
        }
    }
}
