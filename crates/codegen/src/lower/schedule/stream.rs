//! Operands that grow from call to call and are read once, as the caches of a decoder are: each step prefetches what is read some steps later.
//!
//! Such an operand comes from memory. Hardware prefetchers run too short a way ahead of tiles that have much to do with each line, and
//! end at each page.

use hashbrown::HashMap;

use super::{
    Access, Emitter, Loop, bind, for_,
    tiling::{Piece, Tiling},
};
use crate::{
    loops::{Axis, AxisId, BufferId, LoopKind, Scalar, ScalarKind, Stmt},
    lower::{affine::for_each_node, normalize::Reduction},
};

/// How far ahead a step prefetches, in bytes that are read until then. (Measured on Emerald Rapids, products of a query with 1,024 keys in pages of 4 KB: 82 us a megabyte
/// without, 75 with 2 KB, 63 with 4 KB.)
const AHEAD: i64 = 4096;
/// A step of more lines has enough of them to wait for.
const MOST_LINES: i64 = 64;

/// An operand that is read once while one loop goes on.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    buffer: BufferId,
    /// The axis of that loop, of results or reduced, and how many of its elements ahead what is prefetched lies.
    pub(super) axis: AxisId,
    ahead: i64,
    /// Axes of the tile that the operand goes along.
    tiled: Vec<AxisId>,
    /// The axis along which it is dense.
    dense: AxisId,
    /// Elements of a line, and lines of each dense part.
    line: i64,
    lines: i64,
}

impl Emitter {
    /// The largest operand of which that holds, in loops over results in this order.
    pub(super) fn stream(
        &self,
        loops: &[(AxisId, Vec<Piece>)],
        reduction: &Reduction,
        tiling: &Tiling,
        accesses: &[Access],
    ) -> Option<Stream> {
        if !self.is_sized() || tiling.matrix.is_some() || tiling.dot.is_some() {
            return None;
        }
        let grows = |a: &&Access| a.axes.iter().any(|x| self.changes(*x));
        let streams = accesses.iter().filter(grows).filter_map(|a| {
            let bytes = self.bytes_of(a.tensor?);
            (bytes > self.unit.timing.l1.bytes).then_some((bytes, self.stream_of(a, loops, reduction, tiling)?))
        });
        streams.max_by_key(|s| s.0).map(|s| s.1)
    }

    fn stream_of(
        &self,
        access: &Access,
        loops: &[(AxisId, Vec<Piece>)],
        reduction: &Reduction,
        tiling: &Tiling,
    ) -> Option<Stream> {
        let (tensor, offset) = (access.tensor?, access.offset.as_ref()?);
        let turns = |pieces: &[Piece]| pieces.iter().map(|p| p.count).sum::<i64>();
        let again = loops.iter().any(|(axis, pieces)| offset.coeff(*axis) == 0 && turns(pieces) > 1);
        if again {
            return None;
        }
        let buffer = *self.buffer_of.get(&tensor)?;
        let bytes = self.group.decl(tensor).dtype.bytes() as i64;
        let line = self.unit.timing.l1.line / bytes;
        let size = |axis: AxisId| {
            let tiles = tiling.tiles.iter().find(|t| t.0 == axis).map_or(1, |t| t.1);
            if axis == tiling.vector && !tiling.across { tiles * tiling.lanes } else { tiles }
        };
        let of_operand = |axis: AxisId| offset.coeff(axis) != 0;
        let grown = |a: &Axis| self.changes(a.id) && of_operand(a.id);
        let tiled = |dense: AxisId| {
            let tiled = tiling.tiles.iter().map(|t| t.0).filter(|a| of_operand(*a) && *a != dense);
            tiled.collect::<Vec<AxisId>>()
        };
        let reduced: Vec<&Axis> = reduction.axes.iter().filter(|a| of_operand(a.id)).collect();
        let (axis, step, within, dense, tiled, length) = match reduced[..] {
            // Each turn of the innermost loop reads a vector or more of each row of the tile.
            [last] if grown(last) && reduction.axes.last().is_some_and(|a| a.id == last.id) && !tiling.across => {
                let dense = tiling.vector;
                let within = loops.iter().filter(|l| of_operand(l.0)).map(|l| size(l.0)).product::<i64>();
                (last.id, 1, within, dense, tiled(dense), size(dense))
            }
            // Each tile reads all of its rows.
            [row] if !self.changes(row.id) => {
                let found = loops.iter().rposition(|(axis, pieces)| {
                    self.changes(*axis) && of_operand(*axis) && turns(pieces) > 1 && *axis != tiling.vector
                })?;
                let axis = loops[found].0;
                let inner = loops[found + 1..].iter().filter(|l| of_operand(l.0));
                let inner = inner.map(|(_, all)| all.iter().map(Piece::elements).sum::<i64>()).product::<i64>();
                (axis, size(axis), size(axis) * inner * row.extent, row.id, tiled(row.id), row.extent)
            }
            _ => return None,
        };
        if offset.coeff(dense) != 1 {
            return None;
        }
        let lines = (length + line - 1) / line;
        let all: i64 = tiled.iter().map(|a| size(*a)).product::<i64>() * lines;
        let turns = (AHEAD + within * bytes - 1) / (within * bytes);
        (all <= MOST_LINES).then_some(Stream { buffer, axis, ahead: turns * step, tiled, dense, line, lines })
    }
}

impl Stream {
    /// What a step at these places prefetches. `value` is what is combined at places given by axis, `rows` are the loops over the tile's elements
    /// by the axis each goes along, and `line` and `lane` the variables of lines and of a vector's lanes.
    pub(super) fn prefetch(
        &self,
        value: impl Fn(&HashMap<AxisId, Scalar>) -> Scalar,
        places: &HashMap<AxisId, Scalar>,
        rows: &[(AxisId, Loop)],
        [line, lane]: [AxisId; 2],
    ) -> Stmt {
        let mut with = places.clone();
        let at = |axis, start: Scalar| places.get(&axis).cloned().unwrap_or(start);
        with.insert(self.axis, at(self.axis, Scalar::axis(self.axis)) + self.ahead);
        with.insert(self.dense, at(self.dense, Scalar::index(0)) + Scalar::axis(line) * self.line);
        let Some(index) = place_in(&value(&with), self.buffer) else { return Stmt::Block(vec![]) };
        let fetch = Stmt::Prefetch { buffer: self.buffer, index };
        let fetch = bind(lane, Scalar::index(0), for_(line, self.lines, LoopKind::Unrolled, fetch));
        rows.iter().rev().fold(fetch, |body, (axis, l)| match self.tiled.contains(axis) {
            true => for_(l.var, l.extent, LoopKind::Unrolled, body),
            false => bind(l.var, Scalar::index(0), body),
        })
    }
}

/// Where a value reads from a buffer.
fn place_in(value: &Scalar, buffer: BufferId) -> Option<Scalar> {
    let mut found = None;
    for_each_node(value, &mut |n| {
        if let ScalarKind::Read(from, place) = n.kind()
            && *from == buffer
        {
            found = Some(place[0].clone());
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        loops::{Builder, Combine, Kernel, Stages},
        lower::{changing, schedule_sized},
        machine::{Arch, Core, family},
        tensor::DType,
    };

    const CORE: Core = Core { vector_bytes: 64, vector_registers: 32, ..Core::SCALAR };

    /// Scores of a query of three heads a group, in four groups, with so many keys, by key and group.
    fn scores(keys: i64) -> Stages {
        let mut b = Builder::new();
        let query = b.arg(&[4, 3, 64], DType::F32);
        let cache = b.arg(&[keys, 4, 64], DType::F32);
        let sum = b.reduce(&[4, 3, keys], &[64], Combine::Sum, |b, i, r| {
            b.read(query, [i[0].clone(), i[1].clone(), r[0].clone()])
                * b.read(cache, [i[2].clone(), i[0].clone(), r[0].clone()])
        });
        b.finish(vec![sum])
    }

    /// What they weigh of as many values.
    fn weighed(keys: i64) -> Stages {
        let mut b = Builder::new();
        let weights = b.arg(&[4, 3, keys], DType::F32);
        let cache = b.arg(&[keys, 4, 64], DType::F32);
        let sum = b.reduce(&[4, 3, 64], &[keys], Combine::Sum, |b, i, r| {
            b.read(weights, [i[0].clone(), i[1].clone(), r[0].clone()])
                * b.read(cache, [r[0].clone(), i[0].clone(), i[2].clone()])
        });
        b.finish(vec![sum])
    }

    fn kernel(of: fn(i64) -> Stages, keys: i64) -> Kernel {
        let timing = family(Arch::X86, "sapphirerapids").expect("a family").timing;
        let (first, other) = (of(keys), of(2 * keys + 1));
        let changing = changing(&[&first, &other]).expect("they differ in extents");
        schedule_sized("cache", &first, Core { timing, ..CORE }, &changing, None).expect("it is scheduled").0
    }

    /// At how many places of its code a kernel prefetches its second argument.
    fn prefetches(kernel: &Kernel) -> usize {
        let mut found = 0;
        kernel
            .body
            .for_each(&mut |s| found += usize::from(matches!(s, Stmt::Prefetch { buffer, .. } if buffer.0 == 1)));
        found
    }

    #[test]
    fn caches_that_grow_are_prefetched() {
        assert!(prefetches(&kernel(scores, 256)) > 0);
        assert!(prefetches(&kernel(weighed, 256)) > 0);
        // A cache that stays in L1 is not.
        assert_eq!(prefetches(&kernel(scores, 16)), 0);
        assert_eq!(prefetches(&kernel(weighed, 16)), 0);
    }

    /// Keys lie one behind the other, each with those of all groups beside each other: the loop over groups is within that over keys, as
    /// otherwise each would read a quarter of every page.
    #[test]
    fn caches_are_read_in_order() {
        fn deepest(s: &Stmt, loops: usize) -> usize {
            match s {
                Stmt::Block(all) => all.iter().map(|s| deepest(s, loops)).max().unwrap_or(0),
                Stmt::For { extent, kind: LoopKind::Serial, body, .. } => {
                    deepest(body, loops + usize::from(extent.as_int() == Some(4)))
                }
                Stmt::For { kind: LoopKind::Parallel, body, .. } => deepest(body, 0),
                Stmt::For { body, .. } | Stmt::Let { body, .. } | Stmt::While { body, .. } => deepest(body, loops),
                Stmt::If { then, otherwise, .. } => {
                    deepest(then, loops).max(otherwise.as_ref().map_or(0, |s| deepest(s, loops)))
                }
                Stmt::Prefetch { .. } => loops,
                Stmt::Store { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. } => 0,
            }
        }
        let kernel = kernel(scores, 256);
        assert_eq!(deepest(&kernel.body, 0), 1, "{kernel}");
    }
}
