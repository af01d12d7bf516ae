//! The linear mixture of an image's elements around a place that is not whole.

use crate::{
    loops::{Scalar, UnOp},
    ops::real::Real,
};

/// The mixture at `place` (a coordinate per axis) of the elements that `read` gives for whole places; those outside of the
/// extents count as 0.
pub(in crate::ops) fn mixed<T: Real>(place: &[T], extents: &[usize], read: impl Fn(&[usize]) -> T) -> T {
    let mut sum = T::of(0.0);
    'corners: for corner in 0..1usize << place.len() {
        let (mut index, mut weight) = (Vec::with_capacity(place.len()), T::of(1.0));
        for (k, &x) in place.iter().enumerate() {
            let upper = corner >> (place.len() - 1 - k) & 1;
            let part = x - x.floor();
            let at = x.floor().int().saturating_add(upper as i64);
            if at < 0 || at >= extents[k] as i64 {
                continue 'corners;
            }
            weight = weight * if upper == 1 { part } else { T::of(1.0) - part };
            index.push(at as usize);
        }
        sum = sum + read(&index) * weight;
    }
    sum
}

/// The mixture as an expression: coordinates and elements are of one float type.
pub(in crate::ops) fn mixed_scalar(place: &[Scalar], extents: &[i64], read: impl Fn(&[Scalar]) -> Scalar) -> Scalar {
    use crate::tensor::DType;
    let dtype = place[0].dtype();
    let (one, zero) = (Scalar::float(1.0, dtype), Scalar::float(0.0, dtype));
    // Per axis, the two neighbours: index, weight, and whether the index is inside.
    let sides: Vec<[(Scalar, Scalar, Scalar); 2]> = place
        .iter()
        .zip(extents)
        .map(|(x, &n)| {
            let floor = Scalar::unary(UnOp::Floor, x.clone());
            let (first, part) = (floor.clone().cast(DType::I64), x.clone() - floor);
            [(first.clone(), one.clone() - part.clone()), (first + 1, part)].map(|(at, weight)| {
                let inside = at.clone().ge(Scalar::index(0)).and(at.clone().lt(Scalar::index(n)));
                (at, weight, inside)
            })
        })
        .collect();
    let mut sum: Option<Scalar> = None;
    for corner in 0..1usize << place.len() {
        let chosen: Vec<&(Scalar, Scalar, Scalar)> =
            sides.iter().enumerate().map(|(k, s)| &s[corner >> (place.len() - 1 - k) & 1]).collect();
        let inside = chosen.iter().fold(Scalar::bool(true), |all, c| all.and(c.2.clone()));
        let index: Vec<Scalar> = chosen.iter().map(|c| c.0.clone()).collect();
        let weight = chosen.iter().map(|c| c.1.clone()).reduce(|a, b| a * b).expect("at least one axis");
        let term = Scalar::select(inside, read(&index), zero.clone()) * weight;
        sum = Some(match sum {
            Some(sum) => sum + term,
            None => term,
        });
    }
    sum.expect("at least one corner")
}
