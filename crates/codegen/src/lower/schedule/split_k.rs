//! Long sums of products in parts: what all tiles of a row of them read of one operand stays in the second cache over a part, and sums of
//! parts are met once more in memory.

use super::{Access, Emitter, Loop, Threads, for_, tiling::coeff};
use crate::{
    loops::{Axis, BinOp, Combine, LoopKind, Scalar, ScalarKind, Space, Stmt, TensorDecl, TensorId},
    lower::{
        affine::{Substitution, replace_axes},
        normalize::{Reduction, reads},
    },
    tensor::DType,
};

/// Vectors of results side by side in a register tile that reads a panel of an operand.
const VECTORS: i64 = 2;
/// So many panels are worth it to keep what they share in the second cache.
const PANELS: i64 = 8;
/// Operands of which each element is used less often than this gain nothing.
const USES: i64 = 64;

/// So often each element of a matrix is used that comes from beyond the L2 cache, whose rows are pages apart, and that is read a few rows at a time: less
/// often it goes by slices ([`super::slices`]), more often a copy in panels pays.
const USES_OF_FAR_ROWS: std::ops::RangeInclusive<i64> = 9..=128;
/// Rows of it at a time: as many pages as first-level TLBs hold (Intel's optimization manual: 64 to 96 entries; AMD's: 64 to 72).
const FAR_ROWS: std::ops::RangeInclusive<i64> = 32..=64;
/// Bytes from one such row to the next, at least.
const APART: i64 = 2048;

impl Emitter {
    /// Into how many parts a sum is cut of a matrix whose rows lie far apart: register tiles that ran over all of it would go from page to page, and the
    /// next ones again.
    pub(super) fn parts_of_far_rows(&self, axes: &[Axis], r: &Reduction) -> Option<i64> {
        let [summed] = r.axes[..] else { return None };
        let is_product = matches!(r.value.kind(), ScalarKind::Binary(BinOp::Mul, ..)) && r.value.dtype().is_float();
        if !is_product || r.combine != Combine::Sum || axes.iter().chain(&r.axes).any(|a| self.changes(a.id)) {
            return None;
        }
        let l2 = self.unit.timing.l2.bytes;
        let sums: i64 = axes.iter().map(|a| a.extent).product();
        let is_far = self.accesses(&r.value).iter().any(|a| {
            let (Some(tensor), Some(offset)) = (a.tensor, a.offset.as_ref()) else { return false };
            let own = axes.iter().filter(|a| offset.coeff(a.id) != 0).map(|a| a.extent).product::<i64>();
            let bytes = self.group.decl(tensor).dtype.bytes() as i64;
            self.bytes_of(tensor) > 2 * l2
                && offset.coeff(summed.id) * bytes >= APART
                && axes.iter().any(|a| offset.coeff(a.id) == 1)
                && USES_OF_FAR_ROWS.contains(&(sums / own.max(1)))
        });
        if !is_far || sums * r.value.dtype().bytes() as i64 > l2 / 2 {
            return None;
        }
        FAR_ROWS.rev().find(|rows| summed.extent % rows == 0).map(|rows| summed.extent / rows).filter(|n| *n > 1)
    }

    /// Into how many parts a sum is cut of which panels of one operand come from memory, one after the other, while the tiles that share one read all of
    /// the other: a panel, the next one and that stay in the second cache together. (Granite Rapids, 3 x 3 over 512 channels to 7 x 7 in ResNet-50:
    /// 2.0 ms whole, 1.7 in four parts.)
    fn parts_of_panels(&self, axes: &[Axis], r: &Reduction) -> Option<i64> {
        let [outermost, _, ..] = r.axes[..] else { return None };
        if r.combine != Combine::Sum || !r.value.dtype().is_float() || axes.iter().any(|a| self.changes(a.id)) {
            return None;
        }
        let l2 = self.unit.timing.l2.bytes;
        let accesses = self.accesses(&r.value);
        let [a, b] = &accesses[..] else { return None };
        let bytes = |a: &Access| Some(self.bytes_of(a.tensor?));
        let (streamed, stays) = if bytes(a)? > bytes(b)? { (a, b) } else { (b, a) };
        if bytes(streamed)? <= l2 || coeff(stays, outermost.id) == Some(0) || coeff(streamed, outermost.id) == Some(0) {
            return None;
        }
        let panel = r.axes.iter().map(|a| a.extent).product::<i64>()
            * VECTORS
            * self.unit.lanes()
            * self.group.decl(streamed.tensor?).dtype.bytes() as i64;
        let sums = axes.iter().map(|a| a.extent).product::<i64>() * r.value.dtype().bytes() as i64;
        let together = 2 * panel + bytes(stays)?;
        if together <= l2 * 3 / 4 || bytes(streamed)? / panel < PANELS || sums > l2 / 2 {
            return None;
        }
        let least = (together * 8 + 3 * l2 - 1) / (3 * l2);
        (least..2 * least).find(|n| outermost.extent % n == 0)
    }

    /// Into how many parts a sum is cut; none where it is to stay whole.
    fn parts(&self, axes: &[Axis], r: &Reduction) -> Option<i64> {
        let ScalarKind::Binary(BinOp::Mul, ..) = r.value.kind() else { return None };
        if let Some(parts) = self.parts_of_panels(axes, r) {
            return Some(parts);
        }
        let [summed] = r.axes[..] else { return None };
        if let Some(parts) = self.parts_of_far_rows(axes, r) {
            return Some(parts);
        }
        let operands = reads(&r.value);
        let visits: i64 = axes.iter().map(|a| a.extent).product::<i64>() * summed.extent;
        let often = |(t, _): &(TensorId, Vec<Scalar>)| {
            visits / self.group.decl(*t).shape.iter().product::<i64>().max(1) >= USES
        };
        let widest = operands.iter().map(|(t, _)| self.group.decl(*t).dtype.bytes() as i64).max()?;
        // Bytes of a row of an operand in one part, at most: a panel of as many rows as a register tile is wide fills the second cache.
        let row = self.unit.timing.l2.bytes * 5 / 256;
        let least = (summed.extent * widest + row - 1) / row;
        let fits = r.combine == Combine::Sum && operands.len() == 2 && operands.iter().all(often);
        (least..2 * least).find(|n| summed.extent % n == 0).filter(|n| fits && *n > 1)
    }

    /// A tensor in memory for partial sums, of these extents.
    pub(super) fn partial_sums(&mut self, shape: Vec<i64>, dtype: DType) -> TensorId {
        self.group.tensors.push(TensorDecl { shape, dtype });
        let sums = TensorId(self.group.tensors.len() as u32 - 1);
        self.declare(sums, Space::Shared);
        sums
    }

    /// The part of a reduction along its outermost axis that begins at `first` and has that extent.
    pub(super) fn part_of(&mut self, r: &Reduction, first: Scalar, extent: i64) -> Reduction {
        let axis = Axis { id: self.fresh(), extent };
        self.extents.insert(axis.id, extent);
        let with = [(r.axes[0].id, first + Scalar::axis(axis.id))].into_iter().collect();
        let axes = std::iter::once(axis).chain(r.axes[1..].iter().copied()).collect();
        Reduction { axes, value: replace_axes(&r.value, &with), ..r.clone() }
    }

    /// A sum of products, in parts where that is better. Only where nothing else runs at the same time: sums are in memory in between.
    pub(super) fn sum_in_parts(
        &mut self,
        tensor: TensorId,
        axes: &[Axis],
        to: &Scalar,
        value: &Scalar,
        r: &Reduction,
    ) -> Option<Stmt> {
        let changes = r.axes.iter().any(|a| self.changes(a.id));
        let parts = self.decide(|e| if changes { None } else { e.parts(axes, r) })?;
        let (dtype, summed) = (r.value.dtype(), r.axes[0]);
        let extent = summed.extent / parts;
        let sums = self.partial_sums(axes.iter().map(|a| a.extent).collect(), dtype);
        let place: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let at = self.flat(sums, &place);
        let this = Scalar::read(r.tensor, place.clone(), dtype);
        let so_far = Scalar::read(sums, place, dtype);
        let first = Reduction { followed: true, ..self.part_of(r, Scalar::index(0), extent) };
        let mut all = vec![self.reduce(sums, axes.to_vec(), at.clone(), this.clone(), first, Threads::All)];
        if parts > 2 {
            let turn = Loop { var: self.fresh(), extent: parts - 2 };
            self.extents.insert(turn.var, turn.extent);
            let next = self.part_of(r, Scalar::axis(turn.var) * extent + extent, extent);
            let next = Reduction { followed: true, ..next };
            let body = self.reduce(sums, axes.to_vec(), at, so_far.clone() + this, next, Threads::All);
            all.push(for_(turn.var, turn.extent, LoopKind::Serial, body));
        }
        let last = self.part_of(r, Scalar::index((parts - 1) * extent), extent);
        let value = Substitution::new(|s: &Scalar| match s.kind() {
            ScalarKind::Read(t, _) if *t == r.tensor => Some(so_far.clone() + s.clone()),
            _ => None,
        })
        .apply(value);
        all.push(self.reduce(tensor, axes.to_vec(), to.clone(), value, last, Threads::All));
        Some(Stmt::Block(all))
    }
}
