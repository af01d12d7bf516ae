//! What windowed operators share: the window along a spatial axis, and where a layout puts the axes that have a meaning.

use crate::{
    ir::{Attrs, Dim, TensorType},
    ops::{OpError, op_bail, op_ensure, util::may_equal},
    tensor::{Layout, row_major_strides},
};

/// The extents of a weight along the spatial axes; those that its type leaves open are as `kernel_size` says, where it is given.
pub(super) fn kernel_sizes(attrs: &Attrs, spatial: &str, layout: &Layout, w: &TensorType) -> Result<Vec<Dim>, OpError> {
    let sizes: Vec<Dim> = spatial.chars().map(|s| whole(layout, &w.shape, s)).collect();
    let Some(given) = attrs.opt_ints("kernel_size") else { return Ok(sizes) };
    op_ensure!(
        given.len() == sizes.len() && given.iter().zip(&sizes).all(|(&g, &s)| may_equal(Dim::Known(g), s)),
        "C4: `kernel_size` is {given:?}, but `weight` is {w} ({layout})"
    );
    Ok(given.into_iter().map(Dim::Known).collect())
}

/// How positions of the output look at positions of the input along one spatial axis.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Number of taps.
    pub kernel: i64,
    /// Input positions from one output position to the next.
    pub stride: i64,
    /// Input positions from one tap to the next.
    pub dilation: i64,
    /// Padding before the first input position.
    pub before: i64,
    /// Padding after the last.
    pub after: i64,
}

impl Window {
    /// Input positions from the first tap to the last, both included.
    pub(crate) fn span(&self) -> i64 {
        (self.kernel - 1).saturating_mul(self.dilation).saturating_add(1)
    }

    /// Number of output positions over an input of this extent.
    pub(crate) fn outputs(&self, extent: i64) -> i64 {
        let padded = extent.saturating_add(self.before).saturating_add(self.after);
        padded.saturating_sub(self.span()).div_euclid(self.stride).saturating_add(1)
    }

    /// Whether it looks at one position only: the same as the output's.
    pub(crate) fn is_point(&self) -> bool {
        *self == Window { kernel: 1, stride: 1, before: 0, after: 0, ..*self }
    }

    /// How many taps of so many windows see the input, which has this extent, and not padding.
    pub(crate) fn seeing(&self, extent: i64, outputs: i64) -> i64 {
        let through = |tap: i64| {
            let at = tap.saturating_mul(self.dilation).saturating_sub(self.before);
            let first = at.saturating_neg().saturating_add(self.stride - 1).div_euclid(self.stride).clamp(0, outputs);
            let end = (extent - 1).saturating_sub(at).div_euclid(self.stride).saturating_add(1);
            end.clamp(first, outputs) - first
        };
        (0..self.kernel).map(through).fold(0, i64::saturating_add)
    }

    /// Number of positions that a padded input needs for this many outputs.
    pub(crate) fn needs(&self, outputs: i64) -> i64 {
        (outputs - 1).saturating_mul(self.stride).saturating_add(self.span())
    }
}

/// Padding before and after each of `axes` spatial axes: one number for all, one per axis, or all befores, then all afters.
pub(crate) fn paddings(attrs: &Attrs, axes: usize) -> Result<Vec<(i64, i64)>, OpError> {
    let p = attrs.ints("padding");
    op_ensure!(
        p.iter().all(|&n| n.abs_diff(0) <= i32::MAX as u64),
        "`padding` is {p:?}, which is more than int32 holds"
    );
    Ok(match p.len() {
        1 => vec![(p[0], p[0]); axes],
        n if n == axes => p.iter().map(|&p| (p, p)).collect(),
        n if n == 2 * axes => (0..axes).map(|k| (p[k], p[k + axes])).collect(),
        n => op_bail!("`padding` has {n} numbers, but should have 1, {axes} or {}", 2 * axes),
    })
}

/// One positive number per spatial axis.
pub(crate) fn per_axis(attrs: &Attrs, name: &str, axes: usize) -> Result<Vec<i64>, OpError> {
    let mut v = attrs.ints(name);
    if v.len() == 1 {
        v = vec![v[0]; axes];
    }
    op_ensure!(v.len() == axes, "`{name}` has {} numbers, but should have {axes}", v.len());
    // Products of such numbers with extents are far from what arithmetic can hold.
    op_ensure!(v.iter().all(|&n| 0 < n && n <= i32::MAX.into()), "`{name}` is {v:?}, but should be positive (int32)");
    Ok(v)
}

/// A layout attribute that must name exactly these axes, none but `split` of them in blocks.
pub(crate) fn layout_of(text: &str, name: &str, letters: &str, split: &str) -> Result<Layout, OpError> {
    let layout: Layout = text.parse().map_err(|e| OpError(format!("`{name}`: {e}")))?;
    let named = layout.axes().iter().filter(|a| a.block.is_none()).count();
    op_ensure!(
        named == letters.len() && letters.chars().all(|c| layout.position(c).is_some()),
        "`{name}` is {layout}, but should name the axes of {letters}"
    );
    op_ensure!(
        layout.axes().iter().all(|a| a.block.is_none() || split.contains(a.primal)),
        "`{name}` is {layout}, but only {split} can be split into blocks here"
    );
    Ok(layout)
}

/// The extent of a layout's axis, blocks and what is within them together.
pub(crate) fn whole(layout: &Layout, shape: &[Dim], primal: char) -> Dim {
    let outer = layout.position(primal).map_or(Dim::Known(1), |k| shape[k]);
    outer.known().map_or(outer, |n| Dim::Known(n * layout.block(primal).map_or(1, |(_, b)| b)))
}

/// Whether a shape has the layout's rank and blocks.
pub(crate) fn check_shape(layout: &Layout, shape: &[Dim], name: &str) -> Result<(), OpError> {
    op_ensure!(
        shape.len() == layout.rank(),
        "`{name}` has {} axes, but its layout {layout} has {}",
        shape.len(),
        layout.rank()
    );
    for (axis, extent) in layout.axes().iter().zip(shape) {
        if let (Some(block), Some(n)) = (axis.block, extent.known()) {
            op_ensure!(block == n, "`{name}` has an extent of {n} where its layout {layout} has blocks of {block}");
        }
    }
    Ok(())
}

/// The shape of a layout whose axes have these whole extents.
pub(crate) fn shape_of(layout: &Layout, name: &str, extent: impl Fn(char) -> Dim) -> Result<Vec<Dim>, OpError> {
    layout
        .axes()
        .iter()
        .map(|axis| match (axis.block, layout.block(axis.primal), extent(axis.primal)) {
            (Some(block), _, _) => Ok(Dim::Known(block)),
            (None, Some((_, block)), Dim::Known(n)) => {
                op_ensure!(n % block == 0, "blocks of {block} in `{name}` {layout} do not divide an extent of {n}");
                Ok(Dim::Known(n / block))
            }
            (None, _, d) => Ok(d),
        })
        .collect()
}

/// How far into a row-major array of this layout each index along an axis reaches.
pub(crate) fn offsets(layout: &Layout, shape: &[usize], primal: char) -> Vec<usize> {
    let strides = row_major_strides(shape);
    let Some(outer) = layout.position(primal) else { return vec![0] };
    match layout.block(primal) {
        None => (0..shape[outer]).map(|i| i * strides[outer]).collect(),
        Some((inner, block)) => {
            let block = block as usize;
            (0..shape[outer] * block).map(|i| i / block * strides[outer] + i % block * strides[inner]).collect()
        }
    }
}

/// All sums of one offset of each table, the last table running fastest.
pub(crate) fn all_offsets(tables: &[Vec<usize>]) -> Vec<usize> {
    tables.iter().fold(vec![0], |all, table| all.iter().flat_map(|a| table.iter().map(move |t| a + t)).collect())
}
