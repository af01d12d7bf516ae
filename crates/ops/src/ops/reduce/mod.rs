//! Operators that combine elements along axes.

mod arg;
mod collapse;
mod fold;
mod variance;

pub(super) use arg::OPS as ARG;
pub(super) use collapse::OPS as COLLAPSE;
pub(super) use fold::OPS as FOLD;
pub(super) use variance::OPS as VARIANCE;

use super::{
    AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, OpError,
    util::{axes_of, field, ints_attr},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::Scalar,
    tensor::row_major_strides,
};

const AXIS: AttrField = field("axis", AttrKind::Ints, AttrDefault::None);
const KEEPDIMS: AttrField = field("keepdims", AttrKind::Bool, AttrDefault::Bool(false));
const EXCLUDE: AttrField = field("exclude", AttrKind::Bool, AttrDefault::Bool(false));

/// Which axes a reduction combines away, and whether they stay with extent 1.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    /// Per axis of the input.
    reduced: Vec<bool>,
    keep: bool,
}

impl Plan {
    /// As TVM reads the attributes `axis`, `keepdims` and `exclude`: no axes given mean all.
    fn new(attrs: &Attrs, rank: usize) -> Result<Plan, OpError> {
        let keep = attrs.bool("keepdims");
        let given = match attrs.get("axis") {
            None | Some(AttrValue::None) => vec![],
            Some(_) => axes_of(&ints_attr(attrs, "axis")?, rank)?,
        };
        let named = |k| given.contains(&k);
        let reduced = (0..rank).map(|k| given.is_empty() || named(k) != attrs.bool("exclude")).collect();
        Ok(Plan { reduced, keep })
    }

    /// The result's shape, of an input of shape `from`; axes that stay have extent `one`.
    fn shape<T: Copy>(&self, from: &[T], one: T) -> Vec<T> {
        let axis = |(&n, &gone): (&T, &bool)| match (gone, self.keep) {
            (false, _) => Some(n),
            (true, keep) => keep.then_some(one),
        };
        from.iter().zip(&self.reduced).filter_map(axis).collect()
    }

    /// The extents that are combined, of an input of shape `from`.
    fn over<T: Copy>(&self, from: &[T]) -> Vec<T> {
        from.iter().zip(&self.reduced).filter(|(_, gone)| **gone).map(|(&n, _)| n).collect()
    }

    fn infer(&self, x: &TensorType, dtype: crate::tensor::DType) -> Type {
        TensorType::of(self.shape(&x.shape, Dim::Known(1)), dtype).into()
    }

    /// For each element of the input (row-major), the element of the result that it goes to.
    fn targets(&self, from: &[usize]) -> Vec<usize> {
        let kept = Plan { keep: true, ..self.clone() }.shape(from, 1);
        let strides = row_major_strides(&kept);
        let mut to = vec![0];
        for ((&n, &gone), &step) in from.iter().zip(&self.reduced).zip(&strides) {
            let step = if gone { 0 } else { step };
            to = to.iter().flat_map(|&base| (0..n).map(move |i| base + i * step)).collect();
        }
        to
    }

    /// The input's index for the result's index `i` and the combined axes' index `r`.
    fn index(&self, i: &[Scalar], r: &[Scalar]) -> Vec<Scalar> {
        let (mut outer, mut inner) = (i.iter(), r.iter());
        let next = |gone: bool| {
            if gone {
                if self.keep {
                    outer.next();
                }
                inner.next()
            } else {
                outer.next()
            }
        };
        self.reduced.iter().copied().map(next).map(|s| s.expect("one index per axis").clone()).collect()
    }

    fn roles(&self) -> Vec<AxisRole> {
        let mut to = 0;
        let role = |&gone: &bool| {
            let role = if gone { AxisRole::Reduced } else { AxisRole::Maps(to) };
            to += (!gone || self.keep) as usize;
            role
        };
        self.reduced.iter().map(role).collect()
    }
}

/// The axis roles of a reduction's first argument.
fn reduced_axes(attrs: &Attrs, arg: &Type) -> AxisMap {
    let rank = arg.as_tensor().map_or(0, TensorType::rank);
    match Plan::new(attrs, rank) {
        Ok(plan) => AxisMap(vec![plan.roles()]),
        Err(_) => AxisMap::opaque([rank]),
    }
}

/// Attributes as a sample gives them.
type GivenAttrs = Vec<(&'static str, AttrValue)>;

/// Attributes for samples: no axes, some, all but some, and with extents kept.
fn attribute_samples() -> Vec<(GivenAttrs, &'static [i64])> {
    vec![
        (vec![], &[2, 3]),
        (vec![("axis", [1].into())], &[2, 3, 2]),
        (vec![("axis", [-1, 0].into())], &[2, 3, 2]),
        (vec![("axis", [1].into()), ("keepdims", true.into())], &[2, 3, 2]),
        (vec![("axis", [1].into()), ("exclude", true.into())], &[2, 3, 2]),
        (vec![("axis", [0].into()), ("keepdims", true.into()), ("exclude", true.into())], &[2, 3]),
        (vec![], &[]),
    ]
}
