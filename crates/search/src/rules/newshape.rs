//! How a `reshape` says extents that are unknown, by what they are made of.

use crate::{
    ir::{AttrValue, Type},
    ops::{make_attrs, op},
    tensor::DType,
};

/// An axis: its extent at each of several sizes.
type Extents = Vec<i64>;

/// The attribute `newshape` by which a tensor of these shapes, one for each of several sizes, takes those others: 0 for an extent that is kept,
/// -3 and -4 for two that become one and one that becomes two, -1 for what is left. `None` where that can't be said.
pub(super) fn newshape(from: &[Vec<i64>], to: &[Vec<i64>]) -> Option<Vec<i64>> {
    let axes = |shapes: &[Vec<i64>]| -> Option<Vec<Extents>> {
        let rank = shapes.first()?.len();
        let axis = |k: usize| shapes.iter().map(|s| s[k]).collect();
        shapes.iter().all(|s| s.len() == rank).then(|| (0..rank).map(axis).collect())
    };
    let codes = codes(&axes(from)?, &axes(to)?)?;
    let reshape = op("reshape");
    let attrs = make_attrs(reshape, &[("newshape".into(), AttrValue::ints(&codes))]).ok()?;
    let gives = |(from, to): (&Vec<i64>, &Vec<i64>)| {
        let found = reshape.op().infer(&attrs, &[Type::tensor(from, DType::F32)]);
        found.is_ok_and(|found| found == Type::tensor(to, DType::F32))
    };
    from.iter().zip(to).all(gives).then_some(codes)
}

fn codes(from: &[Extents], to: &[Extents]) -> Option<Vec<i64>> {
    let varies = |e: &Extents| e.iter().any(|n| *n != e[0]);
    // What stands for an extent that a split or the rest leaves to be found out.
    let code = |e: &Extents| if varies(e) { -1 } else { e[0] };
    let product = |two: &[Extents]| -> Extents { two[0].iter().zip(&two[1]).map(|(a, b)| a * b).collect() };
    let (mut i, mut j, mut codes) = (0, 0, Vec::new());
    while j < to.len() {
        let (left, wanted) = (&from[i.min(from.len())..], &to[j..]);
        let splits = !left.is_empty() && wanted.len() >= 2 && left[0] == product(&wanted[..2]);
        let splits = splits && !(varies(&wanted[0]) && varies(&wanted[1]));
        let merges = left.len() >= 2 && wanted[0] == product(&left[..2]);
        // An extent of 1 at the end has no other to be split from or merged with.
        let last_splits = splits && left.len() == 1 && wanted.len() == 2;
        let last_merges = merges && left.len() == 2 && wanted.len() == 1;
        if !last_splits && !last_merges && left.first() == Some(&wanted[0]) {
            codes.push(0);
            (i, j) = (i + 1, j + 1);
        } else if splits {
            codes.extend([-4, code(&wanted[0]), code(&wanted[1])]);
            (i, j) = (i + 1, j + 2);
        } else if merges {
            codes.push(-3);
            (i, j) = (i + 2, j + 1);
        } else {
            // The rest, of which one extent may be unknown. What is before it must not be 0: nothing would follow for the rest.
            let unknown = wanted.iter().filter(|e| varies(e)).count();
            let before = to[..j].iter().any(varies);
            codes.extend(wanted.iter().map(code));
            return (unknown == 0 || unknown == 1 && !before).then_some(codes);
        }
    }
    Some(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shape becomes, of extents `b` and `s` beside numbers.
    fn of(from: fn(i64, i64) -> Vec<i64>, to: fn(i64, i64) -> Vec<i64>) -> Option<Vec<i64>> {
        let sizes = [(101, 211), (12, 30), (17, 4099)];
        let at = |shape: fn(i64, i64) -> Vec<i64>| sizes.iter().map(|&(b, s)| shape(b, s)).collect::<Vec<_>>();
        newshape(&at(from), &at(to))
    }

    #[test]
    fn extents_are_kept_split_and_merged() {
        assert_eq!(of(|b, s| vec![b, s, 768], |b, s| vec![b, s, 12, 64]), Some(vec![0, 0, -4, 12, 64]));
        assert_eq!(of(|b, s| vec![b * 12, s, 64], |b, s| vec![b, 12, s, 64]), Some(vec![-4, -1, 12, 0, 0]));
        assert_eq!(of(|b, s| vec![b, 12, s, 64], |b, s| vec![b * 12, s, 64]), Some(vec![-3, 0, 0]));
        assert_eq!(of(|b, s| vec![b, s, 7], |b, s| vec![b * s, 7]), Some(vec![-3, 0]));
        assert_eq!(of(|b, s| vec![2, b, s, 3], |b, s| vec![3 * b * s, 2]), Some(vec![-1, 2]));
    }

    #[test]
    fn extents_of_one_come_and_go() {
        assert_eq!(of(|b, s| vec![b, s], |b, s| vec![1, b, s]), Some(vec![-4, 1, -1, 0]));
        assert_eq!(of(|b, s| vec![b, s], |b, s| vec![b, s, 1]), Some(vec![0, -4, -1, 1]));
        assert_eq!(of(|b, s| vec![1, b, s], |b, s| vec![b, s]), Some(vec![-3, 0]));
        assert_eq!(of(|b, s| vec![b, s, 1], |b, s| vec![b, s]), Some(vec![0, -3]));
    }

    #[test]
    fn what_can_not_be_said_is_not() {
        // Two unknown extents of one.
        assert_eq!(of(|b, s| vec![b * s, 7], |b, s| vec![b, s, 7]), None);
        // Of no images, nothing would follow for the rest.
        assert_eq!(of(|b, s| vec![b, 2, 3, s], |b, s| vec![b, 6 * s]), None);
        // Not the same number of elements.
        assert_eq!(of(|b, s| vec![b, s], |b, s| vec![b, s, 2]), None);
    }
}
