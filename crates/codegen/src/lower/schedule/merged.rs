//! Axes that are reduced over and lie one within the other in memory become one: a mean over rows and columns of an image is one over its pixels,
//! which vectors go through without an end of each row.

use super::{Emitter, Step};
use crate::{
    loops::{Axis, Scalar, ScalarKind},
    lower::{
        affine::{Affine, Substitution, for_each_node, replace_axes},
        normalize::{Reduction, reads},
    },
};

impl Emitter {
    /// The same step with fewer axes to reduce over, where that is possible.
    pub(super) fn with_merged_axes(&mut self, step: &Step) -> Step {
        let mut step = step.clone();
        // At another size places may lie otherwise.
        if self.is_sized() {
            return step;
        }
        self.extents.extend(step.axes.iter().map(|a| (a.id, a.extent)));
        while let Some(r) = step.reduction.as_ref().and_then(|r| self.merged(r)) {
            step.reduction = Some(r);
        }
        step
    }

    /// The reduction of one operand with two neighbouring axes as one: where the place that is read is as affine as before. Of products register tiles
    /// are chosen by their axes.
    fn merged(&mut self, r: &Reduction) -> Option<Reduction> {
        self.extents.extend(r.axes.iter().map(|a| (a.id, a.extent)));
        let places = |e: &Self, value: &Scalar| -> Option<Vec<Affine>> {
            reads(value).into_iter().map(|(t, index)| Affine::of(&e.flat(t, &index))).collect()
        };
        let before = places(self, &r.value).filter(|all| all.len() == 1)?;
        let lies_within = |outer: &Axis, inner: &Axis| {
            before.iter().all(|place| place.coeff(outer.id) == inner.extent * place.coeff(inner.id))
        };
        let at = (1..r.axes.len()).find(|&at| lies_within(&r.axes[at - 1], &r.axes[at]))?;
        let (outer, inner) = (r.axes[at - 1], r.axes[at]);
        let both = Axis { id: self.fresh(), extent: outer.extent * inner.extent };
        self.extents.insert(both.id, both.extent);
        let place = Scalar::axis(both.id);
        let with = [(outer.id, place.clone().floor_div(inner.extent)), (inner.id, place.floor_mod(inner.extent))];
        let value = replace_axes(&r.value, &with.into_iter().collect());
        // What stands outside of reads, as in conditions, may depend on either.
        let mut stands_outside = false;
        for_each_node(&without_reads(&value), &mut |n| {
            stands_outside |= matches!(n.kind(), ScalarKind::Axis(a) if *a == both.id);
        });
        places(self, &value).filter(|_| !stands_outside)?;
        let mut axes = r.axes.clone();
        axes.splice(at - 1..=at, [both]);
        Some(Reduction { axes, value, ..r.clone() })
    }
}

/// The expression without what is read in it.
fn without_reads(e: &Scalar) -> Scalar {
    Substitution::new(|s: &Scalar| match s.kind() {
        ScalarKind::Read(..) => Some(Scalar::int(0, s.dtype())),
        _ => None,
    })
    .apply(e)
}
