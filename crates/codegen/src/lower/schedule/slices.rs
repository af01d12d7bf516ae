//! Split-K for GEMV: a vector times a matrix that is read once, from beyond the L2 cache, and whose rows are wider than a register tile. So is what
//! attention of one token takes of values.
//!
//! A register tile that runs over the whole of K reads a few cache lines of each row, and the next tile comes back for the next ones, which hardware
//! prefetchers do not follow. So a few rows at a time are read over their whole width, with partial sums in the L1 cache. K is cut into slices with partial
//! sums of their own, which threads take in parallel; a last loop adds these up.

use super::{Emitter, Loop, Threads, for_};
use crate::{
    loops::{Axis, BinOp, Combine, LoopKind, Scalar, ScalarKind, Stmt, TensorId},
    lower::normalize::Reduction,
};

/// A matrix each element of which is used more often is bound by arithmetic.
const USES: i64 = 8;
/// Bytes of the rows of a block, about, between two passes over partial sums, and the least and most rows of one.
const BLOCK: i64 = 48 * 1024;
const BLOCK_ROWS: [i64; 2] = [8, 64];
/// So many slices where K is known and large enough; so many blocks in each where K is unknown.
const SLICES: i64 = 16;
const SLICE_BLOCKS: i64 = 2;
/// Partial sums of a slice take this part of the L2 cache at most: 1 / SUMS.
const SUMS: i64 = 16;

/// How K is cut.
#[derive(Copy, Clone)]
pub(super) struct Slices {
    /// Rows of each slice.
    slice: i64,
    /// Rows of each block, of which slices have a whole number.
    block: i64,
}

impl Emitter {
    /// How K is cut where a reduction is such a GEMV.
    pub(super) fn slices(&self, axes: &[Axis], r: &Reduction) -> Option<Slices> {
        let [summed] = r.axes[..] else { return None };
        let is_product = matches!(r.value.kind(), ScalarKind::Binary(BinOp::Mul, ..)) && r.value.dtype().is_float();
        if !is_product || r.combine != Combine::Sum || axes.iter().any(|a| self.changes(a.id)) {
            return None;
        }
        let changes = self.changes(summed.id);
        let (l2, vector) = (self.unit.timing.l2.bytes, self.unit.vector_bytes);
        let sums: i64 = axes.iter().map(|a| a.extent).product();
        if sums * r.value.dtype().bytes() as i64 > l2 / SUMS {
            return None;
        }
        self.accesses(&r.value).iter().find_map(|a| {
            let (decl, offset) = (self.group.decl(a.tensor?), a.offset.as_ref()?);
            let bytes = decl.dtype.bytes() as i64;
            let row = offset.coeff(summed.id) * bytes;
            let own = |a: &&Axis| offset.coeff(a.id) != 0;
            let uses = sums / axes.iter().filter(own).map(|a| a.extent).product::<i64>().max(1);
            // Bytes of a row that a register tile covers, where its accumulators fill half of the registers.
            let tile = self.unit.vector_registers / 2 / uses.max(1) * vector;
            let is_wide = uses <= USES && row > tile && axes.iter().any(|a| offset.coeff(a.id) == 1);
            if !is_wide || !(changes || row * summed.extent > l2 / 2) {
                return None;
            }
            let block = (BLOCK / row).clamp(BLOCK_ROWS[0], BLOCK_ROWS[1]);
            let blocks = if changes { SLICE_BLOCKS } else { summed.extent / block / SLICES };
            Some(Slices { slice: block * blocks.max(1), block })
        })
    }

    /// A GEMV by slices of K, where that is better.
    pub(super) fn sum_by_slices(
        &mut self,
        tensor: TensorId,
        axes: &[Axis],
        to: &Scalar,
        value: &Scalar,
        r: &Reduction,
        threads: Threads,
    ) -> Option<Stmt> {
        let Slices { slice, block } = self.decide(|e| e.slices(axes, r))?;
        let (dtype, summed) = (r.value.dtype(), r.axes[0]);
        let changes = self.changes(summed.id);
        let whole = Loop { var: self.fresh(), extent: summed.extent / slice };
        let rest = summed.extent - whole.extent * slice;
        let has_rest = changes || rest > 0;
        let shape = [whole.extent + has_rest as i64].into_iter().chain(axes.iter().map(|a| a.extent)).collect();
        let sums = self.partial_sums(shape, dtype);
        let place = |s: Scalar| [s].into_iter().chain(axes.iter().map(|a| Scalar::axis(a.id))).collect::<Vec<Scalar>>();
        let this = Scalar::read(r.tensor, axes.iter().map(|a| Scalar::axis(a.id)).collect(), dtype);

        self.extents.insert(whole.var, whole.extent);
        if changes {
            self.mark(whole.var);
        }
        let first = Scalar::axis(whole.var) * slice;
        let mine = place(Scalar::axis(whole.var));
        let (so_far, at) = (Scalar::read(sums, mine.clone(), dtype), self.flat(sums, &mine));
        let head = self.part_of(r, first.clone(), block);
        let mut all = vec![self.reduce(sums, axes.to_vec(), at.clone(), this.clone(), head, Threads::One)];
        if slice > block {
            let turn = Loop { var: self.fresh(), extent: slice / block - 1 };
            self.extents.insert(turn.var, turn.extent);
            let next = self.part_of(r, first + Scalar::axis(turn.var) * block + block, block);
            let body = self.reduce(sums, axes.to_vec(), at, so_far + this.clone(), next, Threads::One);
            all.push(for_(turn.var, turn.extent, LoopKind::Serial, body));
        }
        let mut all = vec![self.loops(std::slice::from_ref(&whole), Stmt::Block(all), threads)];
        if has_rest {
            let last = self.part_of(r, Scalar::index(whole.extent * slice), rest);
            if changes {
                self.mark(last.axes[0].id);
            }
            let at = self.flat(sums, &place(Scalar::index(whole.extent)));
            all.push(self.reduce(sums, axes.to_vec(), at, this, last, Threads::One));
        }

        let number = Axis { id: self.fresh(), extent: whole.extent + has_rest as i64 };
        self.extents.insert(number.id, number.extent);
        if changes {
            self.mark(number.id);
        }
        let value_of_sums = Scalar::read(sums, place(Scalar::axis(number.id)), dtype);
        let total = Reduction { axes: vec![number], value: value_of_sums, ..r.clone() };
        all.push(self.reduce(tensor, axes.to_vec(), to.clone(), value.clone(), total, Threads::One));
        Some(Stmt::Block(all))
    }
}
