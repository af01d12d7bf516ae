//! Guards over layouts.

use super::{ClassView, Guard, Input, Param};
use crate::{ir::Dim, rules::functions::fills_nothing, tensor::Layout};

pub(super) const GUARDS: &[Guard] = &[
    Guard {
        name: "fills-nothing",
        params: &[Param::Str, Param::Str, Param::Class],
        doc: "A transform of the tensor from the first layout to the second fills no block up with zeros: undoing it gives \
              the tensor back.",
        of_extents: false,
        eval: |a| fills_nothing(&layout(&a[0])?, &layout(&a[1])?, &extents(&a[2].class()?)?),
    },
    Guard {
        name: "fill-nothing",
        params: &[Param::Str, Param::Str, Param::Classes],
        doc: "As fills-nothing, for all tensors of a sequence.",
        of_extents: false,
        eval: |a| {
            let (from, to) = (layout(&a[0])?, layout(&a[1])?);
            let each = a[2].classes()?.iter().map(|c| fills_nothing(&from, &to, &extents(c)?));
            Some(each.collect::<Option<Vec<bool>>>()?.iter().all(|&b| b))
        },
    },
    Guard {
        name: "splits-only",
        params: &[Param::Str, Param::Str],
        doc: "The layout splits no axes into blocks but those of these letters.",
        of_extents: false,
        eval: |a| {
            let letters = a[1].str()?;
            Some(layout(&a[0])?.axes().iter().all(|axis| axis.block.is_none() || letters.contains(axis.primal)))
        },
    },
    Guard {
        name: "same-order",
        params: &[Param::Str, Param::Str, Param::List],
        doc: "(same-order b p ks): the axes ks of layout p follow one another in the same order in layout b, whole in both.",
        of_extents: false,
        eval: |a| {
            let (b, p) = (layout(&a[0])?, layout(&a[1])?);
            let whole = |l: &Layout, c: char| l.block(c).is_none().then(|| l.position(c)).flatten();
            let mut places = Vec::new();
            for k in a[2].ints()? {
                let letter = p.axes().get(usize::try_from(k).ok()?)?.primal;
                places.push((whole(&p, letter)?, whole(&b, letter)?));
            }
            places.sort_unstable();
            Some(places.is_sorted_by_key(|&(_, at)| at))
        },
    },
    Guard {
        name: "layouts-fit",
        params: &[Param::Str, Param::Str, Param::Class, Param::Class],
        doc: "(layouts-fit b p x y): y has the extents of x, of layout b, transformed to layout p. Unknown extents fit where \
              their axes are not split: along these, both broadcast alike in either layout.",
        of_extents: false,
        eval: |a| {
            let (b, p) = (layout(&a[0])?, layout(&a[1])?);
            let (x, y) = (extents(&a[2].class()?)?, extents(&a[3].class()?)?);
            let wanted = b.convert_shape(&p, &x).ok()?;
            let whole = |k: usize| [&b, &p].iter().all(|l| l.block(p.axes()[k].primal).is_none());
            let fits = |k: usize| wanted[k] == y[k] && (y[k].is_some() || whole(k));
            Some(y.len() == wanted.len() && (0..y.len()).all(fits))
        },
    },
    Guard {
        name: "blocks-broadcast",
        params: &[Param::Str, Param::Class, Param::Class],
        doc: "(blocks-broadcast p c y): beside y, of layout p, c broadcasts along no split axis or along all of it, blocks and \
              within. Missing leading axes count as 1.",
        of_extents: false,
        eval: |a| {
            let p = layout(&a[0])?;
            let (c, y) = (extents(&a[1].class()?)?, extents(&a[2].class()?)?);
            let skip = p.rank().checked_sub(c.len())?;
            (y.len() == p.rank()).then_some(())?;
            let of_c = |k: usize| if k < skip { Some(1) } else { c[k - skip] };
            for axis in p.axes().iter().filter(|axis| axis.block.is_some()) {
                let places = [p.position(axis.primal)?, p.block(axis.primal)?.0];
                let same = places.iter().all(|&k| of_c(k).is_some() && of_c(k) == y[k]);
                if !same && places.iter().any(|&k| of_c(k) != Some(1)) {
                    return Some(false);
                }
            }
            Some(true)
        },
    },
];

fn layout(a: &Input<'_>) -> Option<Layout> {
    a.str()?.parse().ok()
}

fn extents(c: &ClassView<'_>) -> Option<Vec<Option<i64>>> {
    Some(c.tensor()?.shape.iter().copied().map(Dim::known).collect())
}
