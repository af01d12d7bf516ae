//! Operands that are met again and again stay in the second cache: the axis that walks over one that is too large for it is cut
//! into blocks, and the blocks are what the outermost loop goes through.

use super::{Access, Emitter, tiling::Tiling};
use crate::{
    loops::{Axis, TensorId},
    machine::Timing,
};

/// A block has at least so many register tiles.
const TILES: i64 = 4;

/// Bytes of an operand that stay in the second cache beside everything else.
pub(super) fn near_bytes(t: &Timing) -> i64 {
    t.l2.bytes * 25 / 64
}

impl Emitter {
    /// The axis to cut and the extent of its blocks, where the innermost of the loops `order` walks over an operand that is too
    /// large, and that the loop around it meets again each turn.
    pub(super) fn cache_block(&self, order: &[Axis], accesses: &[Access], tiling: &Tiling) -> Option<(usize, i64)> {
        let at = order.iter().rposition(|a| a.id != tiling.vector)?;
        let axis = order[at];
        let tile = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
        let again: Vec<&Axis> = order[..at].iter().filter(|a| a.id != tiling.vector && a.extent > 1).collect();
        let outer = again.last()?;
        let bytes = |(a, tensor): (&Access, TensorId)| {
            let decl = self.group.decl(tensor);
            let elements: i64 = decl.shape.iter().product();
            let others: i64 =
                order.iter().filter(|x| x.id != axis.id && a.axes.contains(&x.id)).map(|x| x.extent).product();
            elements * decl.dtype.bytes() as i64 / others.max(1)
        };
        let walked = accesses
            .iter()
            .filter(|a| a.axes.contains(&axis.id) && !a.axes.contains(&outer.id))
            .filter_map(|a| Some((a, a.tensor?)))
            .map(bytes)
            .max()?;
        let budget = near_bytes(&self.unit.timing);
        let blocks = (walked + budget - 1) / budget;
        let block = (blocks..axis.extent).find(|n| axis.extent % n == 0).map(|n| axis.extent / n)?;
        (blocks > 1 && block >= TILES * tile).then_some((at, block))
    }
}
