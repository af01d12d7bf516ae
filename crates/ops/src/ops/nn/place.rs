//! Positions along blocked axes, and padding, as index expressions.

use super::geometry::Window;
use crate::{
    loops::{Builder, Scalar, TensorId},
    tensor::Layout,
};

/// A position along an axis, as block and place within the block (blocks of 1: the place is 0).
#[derive(Clone)]
pub(in crate::ops) struct Place {
    pub(in crate::ops) outer: Scalar,
    pub(in crate::ops) inner: Scalar,
    pub(in crate::ops) block: i64,
}

impl Place {
    /// A position of an axis without blocks.
    pub(in crate::ops) fn flat(i: Scalar) -> Place {
        Place { outer: i, inner: Scalar::index(0), block: 1 }
    }

    /// The position as one number.
    pub(in crate::ops) fn index(&self) -> Scalar {
        self.outer.clone() * self.block + self.inner.clone()
    }

    /// The same position in blocks of another extent.
    fn in_blocks(&self, block: i64) -> (Scalar, Scalar) {
        match block {
            b if b == self.block => (self.outer.clone(), self.inner.clone()),
            1 => (self.index(), Scalar::index(0)),
            _ => (self.index().floor_div(block), self.index().floor_mod(block)),
        }
    }
}

/// Indices into a tensor of this layout, one per axis, given the position along each meaning.
pub(in crate::ops) fn indices(layout: &Layout, place: impl Fn(char) -> Place) -> Vec<Scalar> {
    layout
        .axes()
        .iter()
        .map(|axis| {
            let (outer, inner) = place(axis.primal).in_blocks(layout.block(axis.primal).map_or(1, |(_, b)| b));
            if axis.block.is_some() { inner } else { outer }
        })
        .collect()
}

/// The position along an axis, out of the indices of a tensor of this layout.
pub(in crate::ops) fn place_in(layout: &Layout, primal: char, index: &[Scalar]) -> Place {
    let outer = layout.position(primal).map_or(Scalar::index(0), |k| index[k].clone());
    match layout.block(primal) {
        Some((k, block)) => Place { outer, inner: index[k].clone(), block },
        None => Place::flat(outer),
    }
}

/// The extent of an axis, blocks and what is within them together.
pub(in crate::ops) fn extent(layout: &Layout, shape: &[i64], primal: char) -> i64 {
    layout.position(primal).map_or(1, |k| shape[k]) * layout.block(primal).map_or(1, |(_, b)| b)
}

/// The shape of a layout whose axes have these whole extents.
pub(in crate::ops) fn shape_in(layout: &Layout, extent: impl Fn(char) -> i64) -> Vec<i64> {
    let block = |p| layout.block(p).map_or(1, |(_, b)| b);
    layout.axes().iter().map(|a| a.block.unwrap_or_else(|| extent(a.primal) / block(a.primal))).collect()
}

/// Padding along an axis.
#[derive(Copy, Clone)]
pub(in crate::ops) struct Pad {
    pub(in crate::ops) axis: usize,
    pub(in crate::ops) before: i64,
    /// The extent with padding.
    pub(in crate::ops) to: i64,
    /// Whether there is padding after the last position at some extents of the axis, be it none at this one.
    pub(in crate::ops) may_end_beyond: bool,
}

impl Pad {
    /// What a window needs for so many outputs.
    pub(in crate::ops) fn of(axis: usize, w: &Window, outputs: i64) -> Pad {
        Pad { axis, before: w.before, to: w.needs(outputs), may_end_beyond: w.after > 0 }
    }
}

/// `x` with `fill` around it. `x` itself where nothing changes.
pub(in crate::ops) fn pad(x: TensorId, pads: &[Pad], fill: Scalar, b: &mut Builder) -> TensorId {
    let from = b.shape(x).to_vec();
    let mut shape = from.clone();
    pads.iter().for_each(|p| shape[p.axis] = p.to);
    // Whether the last window reaches beyond the end differs from size to size.
    let all_sizes = b.is_for_all_sizes();
    let ends_beyond = |p: &Pad| p.to > p.before + from[p.axis] || all_sizes && p.may_end_beyond;
    if pads.iter().all(|p| p.before == 0 && !ends_beyond(p)) {
        return x;
    }
    b.map(&shape, |b, i| {
        let (mut index, mut inside) = (i.to_vec(), Scalar::bool(true));
        for p in pads {
            let (axis, before) = (p.axis, p.before);
            if before > 0 {
                inside = inside.and(i[axis].clone().ge(Scalar::index(before)));
                index[axis] = i[axis].clone() - before;
            }
            if ends_beyond(p) {
                inside = inside.and(i[axis].clone().lt(Scalar::index(before + from[axis])));
            }
        }
        Scalar::select(inside, b.read(x, index), fill)
    })
}
