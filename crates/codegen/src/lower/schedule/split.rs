//! Axes that operands have in blocks become two: the block, and the place within it.

use hashbrown::HashMap;

use super::{Emitter, Threads, flat_sum};
use crate::{
    loops::{Axis, AxisId, BinOp, Scalar, ScalarKind, Stmt, TensorId},
    lower::{
        affine::{for_each_node, replace_axes},
        normalize::{Reduction, reads},
    },
};

impl Emitter {
    /// The axes, those split that some read divides by the extent of a block that divides theirs: what is read then lies evenly
    /// along each. `to` and the expressions are rewritten alike.
    pub(super) fn split_axes(&mut self, axes: &[Axis], to: &mut Scalar, exprs: &mut [&mut Scalar]) -> Vec<Axis> {
        let mut axes = axes.to_vec();
        loop {
            let found = self.blocked(&axes, exprs);
            let decided = self.decide(|_| found.map(|f| f.0));
            let (at, block) = match (decided, found) {
                (None, _) => break,
                (Some(at), Some((here, block))) if at == here => (at, block),
                _ => {
                    self.diverge();
                    break;
                }
            };
            let parts = self.split_axis(axes[at], block, to, exprs);
            axes.splice(at..=at, parts);
        }
        axes
    }

    /// An axis as blocks of that extent, which divides its own, and the place within one.
    pub(super) fn split_axis(
        &mut self,
        axis: Axis,
        block: i64,
        to: &mut Scalar,
        exprs: &mut [&mut Scalar],
    ) -> [Axis; 2] {
        let outer = Axis { id: self.fresh(), extent: axis.extent / block };
        let inner = Axis { id: self.fresh(), extent: block };
        self.extents.extend([(outer.id, outer.extent), (inner.id, inner.extent)]);
        if self.changes(axis.id) {
            self.mark(outer.id);
            self.mark(inner.id);
        }
        let with = HashMap::from_iter([(axis.id, Scalar::axis(outer.id) * block + Scalar::axis(inner.id))]);
        for e in exprs.iter_mut().map(|e| &mut **e).chain([to]) {
            *e = replace_axes(e, &with);
        }
        [outer, inner]
    }

    /// An axis that some read divides, and the least extent of such blocks.
    fn blocked(&self, axes: &[Axis], exprs: &[&mut Scalar]) -> Option<(usize, i64)> {
        let blocks = self.blocks(exprs.iter().map(|e| &**e));
        axes.iter().enumerate().find_map(|(at, axis)| {
            let block = *blocks.get(&axis.id)?;
            // Of an axis whose extent changes, and which was not made here, it is chance that there is one block.
            let one = || axis.extent == block && self.changes(axis.id) && axis.id.0 < self.group.axis_count();
            (axis.extent % block == 0 && (block < axis.extent || one())).then_some((at, block))
        })
    }

    /// An axis that some read divides by the extent of blocks the last of which is not full, and how many elements the full ones have.
    pub(super) fn ragged(&self, axes: &[Axis], expr: &Scalar) -> Option<(usize, i64)> {
        let blocks = self.blocks([expr].into_iter());
        axes.iter().enumerate().find_map(|(at, axis)| {
            let block = *blocks.get(&axis.id).filter(|_| !self.changes(axis.id))?;
            (block < axis.extent && axis.extent % block != 0).then_some((at, axis.extent / block * block))
        })
    }

    /// The same where operands have an axis in blocks the last of which is not full: so many elements of full blocks, and then the rest.
    #[expect(clippy::too_many_arguments, reason = "a reduction's parts, as `reduce` has them")]
    pub(super) fn with_rest(
        &mut self,
        tensor: TensorId,
        axes: &[Axis],
        (at, whole): (usize, i64),
        to: Scalar,
        value: Scalar,
        r: Reduction,
        threads: Threads,
    ) -> Stmt {
        let axis = axes[at];
        let rest = Axis { id: self.fresh(), extent: axis.extent - whole };
        self.extents.extend([(axis.id, whole), (rest.id, rest.extent)]);
        let mut parts = [axes.to_vec(), axes.to_vec()];
        parts[0][at].extent = whole;
        parts[1][at] = rest;
        let [full, last] = parts;
        let with = HashMap::from_iter([(axis.id, Scalar::axis(rest.id) + whole)]);
        let of_rest = Reduction { value: replace_axes(&r.value, &with), ..r.clone() };
        let (to_rest, value_of_rest) = (replace_axes(&to, &with), replace_axes(&value, &with));
        let full = self.reduce(tensor, full, to, value, r, threads);
        Stmt::Block(vec![full, self.reduce(tensor, last, to_rest, value_of_rest, of_rest, threads)])
    }

    /// The axes that some read divides, each by what at least.
    fn blocks<'a>(&self, exprs: impl Iterator<Item = &'a Scalar>) -> HashMap<AxisId, i64> {
        let mut blocks: HashMap<AxisId, i64> = HashMap::new();
        for (tensor, index) in exprs.flat_map(reads) {
            // In a sum of axes nothing is divided.
            if flat_sum(&self.group, tensor, &index).is_some() {
                continue;
            }
            for_each_node(&self.flat(tensor, &index), &mut |n| {
                if let ScalarKind::Binary(BinOp::FloorDiv | BinOp::FloorMod, a, b) = n.kind()
                    && let (ScalarKind::Axis(axis), Some(block)) = (a.kind(), b.as_int())
                    && block > 1
                {
                    let least = blocks.entry(*axis).or_insert(block);
                    *least = block.min(*least);
                }
            });
        }
        blocks
    }
}
