//! Operands that are met again and again stay in the second cache: the axis that walks over one that is too large for it is cut
//! into blocks, and the blocks are what the outermost loop goes through.

use hashbrown::HashSet;

use super::{
    Access, Emitter, Loop, bind,
    tiling::{Cut, Piece, Tiling},
    turns::run,
};
use crate::{
    loops::{Axis, AxisId, BinOp, Scalar, Stmt, TensorId},
    machine::Timing,
};

/// A block has at least so many register tiles.
const TILES: i64 = 4;

/// Bytes of an operand that stay in the second cache beside everything else.
pub(super) fn near_bytes(t: &Timing) -> i64 {
    t.l2.bytes * 25 / 64
}

/// Tiles along an axis whose extent changes from size to size, in blocks that the outermost loop goes through: of one block only where what the tiles
/// walk over is small.
#[derive(Clone)]
pub(super) struct TileBlocks {
    /// The axis of the tiles.
    pub(super) axis: AxisId,
    /// The loop over blocks.
    pub(super) turns: Loop,
    /// How many tiles a block has, or one less: threads get about the same number.
    pub(super) tiles: i64,
    /// How many tiles there are in all, and how many blocks.
    all: Scalar,
    count: Scalar,
}

impl TileBlocks {
    /// The number of the block's first tile, along the axis.
    pub(super) fn first(&self) -> Scalar {
        self.first_of(Scalar::axis(self.turns.var))
    }

    fn first_of(&self, block: Scalar) -> Scalar {
        Scalar::binary(BinOp::FloorDiv, block * self.all.clone(), self.count.clone())
    }

    /// The loop over the tiles of a piece that are in the block, where `body` makes one of which turn of the piece it is, given three variables of its own.
    pub(super) fn of_piece(
        &self,
        cut: &Cut,
        [turn, first, at]: [AxisId; 3],
        body: impl FnOnce(Scalar) -> Stmt,
    ) -> Stmt {
        let op = Scalar::binary;
        let before_block = self.first() - cut.before.clone();
        let after_block = self.first_of(Scalar::axis(self.turns.var) + 1) - cut.before.clone();
        let end = op(BinOp::Min, after_block, cut.turns.clone());
        // So that codegen knows it to be in range.
        let place = op(BinOp::Min, Scalar::axis(first) + Scalar::axis(turn), cut.turns.clone() - 1);
        let turns = op(BinOp::Max, end - Scalar::axis(first), Scalar::index(0));
        let body = run(turn, turns, bind(at, place, body(Scalar::axis(at))));
        bind(first, op(BinOp::Max, before_block, Scalar::index(0)), body)
    }
}

/// Tiles have so many places at most along an axis that has one place at the size for which they are chosen.
const ROWS: i64 = 4;
/// Registers for what is not accumulated.
const OPERANDS: i64 = 4;

impl Emitter {
    /// The same tiles, with room for more places along the one axis that changes where that has one place here, as a batch, and where something is the same
    /// for all places: at other sizes, that is not read again for each.
    pub(super) fn with_rows(
        &self,
        mut tiling: Tiling,
        axes: &[Axis],
        accesses: &[Access],
        guarded: &HashSet<AxisId>,
    ) -> Tiling {
        let mut changing = axes.iter().filter(|a| self.changes(a.id));
        let (Some(rows), None) = (changing.next(), changing.next()) else { return tiling };
        let accumulators: i64 = tiling.tiles.iter().map(|t| t.1).product();
        let most = ((self.unit.vector_registers - OPERANDS) / accumulators.max(1)).min(ROWS);
        let plain = tiling.matrix.is_none() && tiling.dot.is_none() && tiling.vector != rows.id;
        let shares = accesses.len() > 1 && accesses.iter().any(|a| !a.axes.contains(&rows.id));
        if plain && shares && most > 1 && rows.extent == 1 && !guarded.contains(&rows.id) {
            tiling.tiles.retain(|t| t.0 != rows.id);
            tiling.tiles.push((rows.id, most));
        }
        tiling
    }

    /// The axis to cut and the extent of its blocks, where the innermost of the loops `order` walks over an operand that is too
    /// large, and that the loop around it meets again each turn.
    pub(super) fn cache_block(&self, order: &[Axis], accesses: &[Access], tiling: &Tiling) -> Option<(usize, i64)> {
        let (at, walked) = self.walked(order, accesses, tiling)?;
        let axis = order[at];
        let tile = tiling.tiles.iter().find(|t| t.0 == axis.id).map_or(1, |t| t.1);
        let budget = near_bytes(&self.unit.timing);
        let blocks = (walked + budget - 1) / budget;
        let block = (blocks..axis.extent).find(|n| axis.extent % n == 0).map(|n| axis.extent / n)?;
        (blocks > 1 && block >= TILES * tile).then_some((at, block))
    }

    /// Which of the loops `order` is the innermost one, and bytes of the largest operand that it walks over and that the loop around it meets again
    /// each turn.
    fn walked(&self, order: &[Axis], accesses: &[Access], tiling: &Tiling) -> Option<(usize, i64)> {
        let at = order.iter().rposition(|a| a.id != tiling.vector)?;
        let axis = order[at];
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
        Some((at, walked))
    }

    /// The same of tiles along an axis whose extent changes, and that is one of the last `inner` of the loops.
    pub(super) fn tile_blocks(
        &mut self,
        pieces: &[(AxisId, Vec<Piece>)],
        inner: usize,
        order: &[Axis],
        accesses: &[Access],
        tiling: &Tiling,
    ) -> Option<TileBlocks> {
        let at = self.decide(|e| {
            let (at, _) = e.walked(order, accesses, tiling)?;
            let (axis, all) = &pieces[at];
            let plain = all.iter().all(|p| p.changes && !p.once && p.ends.is_none());
            let found = e.changes(*axis) && plain && at + inner >= pieces.len() && tiling.matrix.is_none();
            found.then_some(at)
        })?;
        if at >= pieces.len() {
            self.diverge();
            return None;
        }
        // Where nothing is met again at this size, as with a batch of several images of which each is read by itself, one block is enough.
        let walked = self.walked(order, accesses, tiling).filter(|found| found.0 == at).map_or(0, |found| found.1);
        let budget = near_bytes(&self.unit.timing);
        let all: i64 = pieces[at].1.iter().map(|p| p.count).sum();
        let blocks = ((walked + budget - 1) / budget).max(1);
        let blocks = blocks.min(all / TILES).max(1);
        let turns = Loop { var: self.fresh(), extent: blocks };
        self.mark(turns.var);
        let [named, count] = [all, blocks].map(|n| self.number(n));
        Some(TileBlocks { axis: order[at].id, turns, tiles: (all + blocks - 1) / blocks, all: named, count })
    }
}
