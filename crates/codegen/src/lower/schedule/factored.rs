//! Sums of numbers of few bits with a scale for each block of them: each block's sum is multiplied with its scale, and not each number.

use crate::{
    loops::{Axis, BinOp, Combine, Scalar, ScalarKind, affine::reads},
    lower::{affine::for_each_node, normalize::Reduction},
};

/// A product of floats that are added up, some factors of which are the same for all of the inner reduced axes.
pub(super) struct Factored {
    /// The other factors.
    pub(super) inner: Scalar,
    /// These.
    pub(super) outer: Scalar,
    /// How many of the reduced axes they depend on, outermost first.
    pub(super) outer_axes: usize,
}

/// A sum over inner axes is worth one more multiplication from so many terms on.
const FACTORED_FROM: i64 = 8;

/// The value that a reduction over these axes adds up, where it is such a product: of numbers with a scale for each block of them, say.
pub(super) fn factored(r: &Reduction, value: &Scalar, axes: &[Axis]) -> Option<Factored> {
    if r.combine != Combine::Sum || !value.dtype().is_float() {
        return None;
    }
    let mut factors = Vec::new();
    let mut open = vec![value.clone()];
    while let Some(s) = open.pop() {
        match s.kind() {
            ScalarKind::Binary(BinOp::Mul, a, b) => open.extend([b.clone(), a.clone()]),
            _ => factors.push(s),
        }
    }
    let depth = |s: &Scalar| {
        let mut depth = 0;
        for_each_node(s, &mut |n| {
            if let ScalarKind::Axis(a) = n.kind() {
                depth = depth.max(axes.iter().position(|x| x.id == *a).map_or(0, |at| at + 1));
            }
        });
        depth
    };
    let outer_axes = factors.iter().map(&depth).filter(|&d| d > 0 && d < axes.len()).max()?;
    let terms: i64 = axes[outer_axes..].iter().map(|a| a.extent).product();
    let (outer, inner): (Vec<Scalar>, Vec<Scalar>) = factors.into_iter().partition(|s| depth(s) <= outer_axes);
    let product = |all: Vec<Scalar>| all.into_iter().reduce(|a, b| a * b);
    let (inner, outer) = (product(inner)?, product(outer)?);
    (terms >= FACTORED_FROM).then_some(Factored { inner, outer, outer_axes })
}

/// Whether the numbers of all turns along an axis are parts of the same bytes: these are taken apart one by one then, while they are at hand.
pub(super) fn shares_bytes(value: &Scalar, last: &Axis) -> bool {
    let depends = |s: &Scalar| {
        let mut found = false;
        for_each_node(s, &mut |n| found |= matches!(n.kind(), ScalarKind::Axis(a) if *a == last.id));
        found
    };
    let mut found = false;
    for_each_node(value, &mut |n| {
        found |= matches!(n.kind(), ScalarKind::Binary(BinOp::Shr, bytes, by) if reads(bytes) && !depends(bytes) && depends(by));
    });
    found
}
