//! Operands of contractions that lie the wrong way for vectors are copied into order first, where that pays.

use super::{Access, Emitter, choose::choose, reduce::form};
use crate::{
    loops::{Axis, Scalar, ScalarKind, TensorDecl, TensorId},
    lower::{
        affine::{Substitution, replace_axes},
        normalize::{Reduction, Step},
    },
};

/// Cycles to move one element where the source is not in order.
const MOVE: f64 = 1.5;
/// A packed copy may be so many times as large as what it is made of: windows must not be unrolled into memory.
const LARGEST: i64 = 1;

impl Emitter {
    /// The steps, with packing steps before those reductions that they speed up.
    pub(super) fn pack_operands(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut all = Vec::new();
        for mut step in steps {
            if let Some(r) = &step.reduction
                && let Some((pack, packed)) = self.pack(&step.axes, r)
            {
                all.push(pack);
                step.reduction = Some(packed);
            }
            all.push(step);
        }
        all
    }

    fn pack(&mut self, axes: &[Axis], r: &Reduction) -> Option<(Step, Reduction)> {
        // Who has an operand in blocks has put it in order.
        let split = self.split_axes(axes, &mut Scalar::index(0), &mut [&mut r.value.clone()]);
        if split.len() > axes.len() {
            return None;
        }
        let accesses = self.accesses(&r.value);
        let form = form(r, self.unit);
        let to = self.packed_access(axes).offset;
        let (mut least, _) = choose(axes, to.as_ref(), &r.axes, &accesses, form, self.unit)?;
        let mut best: Option<(usize, Vec<Axis>)> = None;
        for (i, access) in accesses.iter().enumerate() {
            let Some(offset) = &access.offset else { continue };
            let used = |a: &&Axis| offset.coeff(a.id) != 0;
            for v in axes.iter().filter(used).filter(|v| offset.coeff(v.id) != 1) {
                let mut order: Vec<Axis> = axes.iter().filter(used).filter(|a| a.id != v.id).copied().collect();
                order.extend(r.axes.iter().filter(used));
                order.push(*v);
                let elements: i64 = order.iter().map(|a| a.extent).product();
                if elements > LARGEST * self.group.decl(access.tensor).shape.iter().product::<i64>() {
                    continue;
                }
                let mut changed = accesses.clone();
                changed[i] = self.packed_access(&order);
                let Some((cost, _)) = choose(axes, to.as_ref(), &r.axes, &changed, form, self.unit) else { continue };
                let cost = cost + MOVE * elements as f64;
                if cost < least {
                    least = cost;
                    best = Some((i, order));
                }
            }
        }
        let (i, order) = best?;
        let Access { tensor, index, .. } = &accesses[i];
        let dtype = self.group.decl(*tensor).dtype;
        self.group.tensors.push(TensorDecl { shape: order.iter().map(|a| a.extent).collect(), dtype });
        let packed = TensorId(self.group.tensors.len() as u32 - 1);
        // The copy runs over axes of its own.
        let own: Vec<Axis> = order.iter().map(|a| Axis { id: self.fresh(), extent: a.extent }).collect();
        let with = order.iter().zip(&own).map(|(a, o)| (a.id, Scalar::axis(o.id))).collect();
        let source = Scalar::read(*tensor, index.iter().map(|i| replace_axes(i, &with)).collect(), dtype);
        let place: Vec<Scalar> = order.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = Substitution::new(|s: &Scalar| match s.kind() {
            ScalarKind::Read(t, at) if t == tensor && at == index => Some(Scalar::read(packed, place.clone(), dtype)),
            _ => None,
        })
        .apply(&r.value);
        let step = Step { tensor: packed, axes: own, reduction: None, value: source };
        Some((step, Reduction { value, ..r.clone() }))
    }

    /// What a read of a packed copy with these axes will be.
    fn packed_access(&self, order: &[Axis]) -> Access {
        let mut below = 1;
        let mut terms = Vec::new();
        for a in order.iter().rev() {
            terms.push((a.id, below));
            below *= a.extent;
        }
        terms.sort_unstable();
        Access {
            tensor: TensorId(u32::MAX),
            index: vec![],
            axes: order.iter().map(|a| a.id).collect(),
            offset: Some(crate::lower::affine::Affine { base: 0, terms }),
        }
    }
}
