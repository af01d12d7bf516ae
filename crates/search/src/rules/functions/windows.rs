//! Paddings and slices, as the attributes of operators give them.

use super::{Function, Input, Param};
use crate::{ir::AttrValue, tensor::Layout};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "full-padding",
        params: &[Param::List, Param::Str],
        gives: Param::List,
        doc: "The padding of a convolution or pool in this layout, written out: before each spatial axis, then behind each. One \
              number stands for all, one per axis for both sides.",
        of_extents: false,
        eval: |a| {
            let (p, n) = (a[0].ints()?, spatial(&a[1])?.len());
            Some(
                match p.len() {
                    1 => vec![p[0]; 2 * n],
                    len if len == n => [&p[..], &p[..]].concat(),
                    len if len == 2 * n => p,
                    _ => return None,
                }
                .into(),
            )
        },
    },
    Function {
        name: "spatial-padding",
        params: &[Param::List, Param::Str],
        gives: Param::List,
        doc: "The widths of a pad that pads the spatial axes of this layout alone, as (full-padding …) gives them.",
        of_extents: false,
        eval: |a| {
            let widths: Vec<Vec<i64>> = a[0].list()?.iter().map(AttrValue::as_ints).collect::<Option<_>>()?;
            let (spatial, rank) = (spatial(&a[1])?, a[1].str()?.parse::<Layout>().ok()?.rank());
            let fits = widths.len() == rank && widths.iter().all(|w| w.len() == 2 && w.iter().all(|&n| n >= 0));
            let others = (0..rank).filter(|k| !spatial.contains(k));
            (fits && others.into_iter().all(|k| widths[k] == [0, 0])).then_some(())?;
            let side = |s: usize| spatial.iter().map(|&k| widths[k][s]).collect::<Vec<i64>>();
            Some([side(0), side(1)].concat().into())
        },
    },
    Function {
        name: "add-widths",
        params: &[Param::List, Param::List],
        gives: Param::List,
        doc: "The widths of a pad after another: sums of pairs, none of them negative.",
        of_extents: false,
        eval: |a| {
            let pairs = |i: usize| a[i].list()?.iter().map(AttrValue::as_ints).collect::<Option<Vec<Vec<i64>>>>();
            let (p, q) = (pairs(0)?, pairs(1)?);
            let fits = p.len() == q.len() && p.iter().chain(&q).all(|w| w.len() == 2 && w.iter().all(|&n| n >= 0));
            fits.then(|| AttrValue::List(p.iter().zip(&q).map(|(p, q)| [p[0] + q[0], p[1] + q[1]].into()).collect()))
        },
    },
    Function {
        name: "slice-begins",
        params: &[Param::List, Param::List, Param::List, Param::Str, Param::Any],
        gives: Param::List,
        doc: "(slice-begins shape begin strides slice_mode axes): where a strided_slice with steps of 1 of a tensor of this shape \
              begins, for each of the tensor's axes.",
        of_extents: false,
        eval: |a| {
            let (shape, begin) = (a[0].ints()?, a[1].ints()?);
            (a[3].str()? == "size" || a[2].ints()?.iter().all(|&s| s == 1)).then_some(())?;
            let axes = match a[4].attr()? {
                AttrValue::None => (0..begin.len() as i64).collect(),
                list => list.as_ints()?,
            };
            (axes.len() == begin.len()).then_some(())?;
            let mut begins = vec![0; shape.len()];
            for (&axis, &at) in axes.iter().zip(&begin) {
                let axis = usize::try_from(if axis < 0 { axis + shape.len() as i64 } else { axis }).ok()?;
                let extent = *shape.get(axis)?;
                begins[axis] = (if at < 0 { at.saturating_add(extent) } else { at }).clamp(0, extent);
            }
            Some(begins.into())
        },
    },
    Function {
        name: "piece",
        params: &[Param::List, Param::Int, Param::Int],
        gives: Param::Int,
        doc: "Which of the pieces of these lengths, one behind the other, begins and ends at these places.",
        of_extents: false,
        eval: |a| {
            let (lengths, begin, end) = (a[0].ints()?, a[1].int()?, a[2].int()?);
            let mut at = 0i64;
            for (i, n) in lengths.iter().enumerate() {
                if at == begin && at.checked_add(*n)? == end {
                    return Some((i as i64).into());
                }
                at = at.checked_add(*n)?;
            }
            None
        },
    },
    Function {
        name: "seams",
        params: &[Param::List],
        gives: Param::List,
        doc: "Where pieces of these lengths meet: their sums, the last one left out.",
        of_extents: false,
        eval: |a| {
            let lengths = a[0].ints()?;
            let mut seams = Vec::new();
            let mut at = 0i64;
            for n in lengths.split_last()?.1 {
                at = at.checked_add(*n)?;
                seams.push(at);
            }
            Some(seams.into())
        },
    },
];

/// Where the spatial axes of a layout are, in the order depth, height, width.
fn spatial(layout: &Input<'_>) -> Option<Vec<usize>> {
    let layout: Layout = layout.str()?.parse().ok()?;
    Some(['D', 'H', 'W'].into_iter().filter_map(|c| layout.position(c)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use crate::ir::AttrValue;

    #[test]
    fn paddings() {
        let (nchw, nwc) = (AttrValue::from("NCHW"), AttrValue::from("NWC"));
        assert_eq!(call("full-padding", &[[1].into(), nchw.clone()]), Some([1, 1, 1, 1].into()));
        assert_eq!(call("full-padding", &[[1, 2].into(), nchw.clone()]), Some([1, 2, 1, 2].into()));
        assert_eq!(call("full-padding", &[[1, 2].into(), nwc.clone()]), Some([1, 2].into()));
        assert_eq!(call("full-padding", &[[1, 2, 3].into(), nchw]), None);
        let widths = |w: [[i64; 2]; 3]| AttrValue::List(w.into_iter().map(AttrValue::from).collect());
        assert_eq!(call("spatial-padding", &[widths([[0, 0], [3, 4], [0, 0]]), nwc.clone()]), Some([3, 4].into()));
        assert_eq!(call("spatial-padding", &[widths([[0, 0], [3, 4], [1, 0]]), nwc.clone()]), None);
        assert_eq!(call("spatial-padding", &[widths([[0, 0], [3, -1], [0, 0]]), nwc]), None);
    }

    #[test]
    fn slices() {
        let (end, none) = (AttrValue::from("end"), AttrValue::None);
        let begins = |b: &[i64], s: &[i64], axes: AttrValue| {
            call("slice-begins", &[[4, 5].into(), b.to_vec().into(), s.to_vec().into(), end.clone(), axes])
        };
        assert_eq!(begins(&[-1], &[1], none.clone()), Some([3, 0].into()));
        assert_eq!(begins(&[2], &[1], [1].into()), Some([0, 2].into()));
        assert_eq!(begins(&[2], &[2], none), None);
        assert_eq!(call("piece", &[[2, 3, 1].into(), 2i64.into(), 5i64.into()]), Some(1i64.into()));
        assert_eq!(call("piece", &[[2, 3, 1].into(), 2i64.into(), 6i64.into()]), None);
        assert_eq!(call("seams", &[[2, 3, 1].into()]), Some([2, 5].into()));
    }
}
