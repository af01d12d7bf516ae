//! Layouts, as strings in TVM's notation.

use super::{Function, Input, Param};
use crate::{
    ir::{AttrValue, Dim},
    tensor::{Layout, LayoutAxis},
};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "layout-split",
        params: &[Param::Str, Param::Str, Param::Int],
        gives: Param::Str,
        doc: "A layout with an axis split into blocks: (layout-split \"NCHW\" \"C\" 8) is \"NCHW8c\".",
        of_extents: false,
        eval: |a| Some(text(&layout(&a[0])?.split(letter(&a[1])?, a[2].int()?)?)),
    },
    Function {
        name: "block",
        params: &[Param::Int, Param::Int],
        gives: Param::Int,
        doc: "The extent of blocks for n channels where c is wanted: (block c n) is c where that divides n, n where n is less.",
        of_extents: false,
        eval: |a| match (a[0].int()?, a[1].int()?) {
            (c, n) if c > 0 && n > 0 && n % c == 0 => Some(c.into()),
            (c, n) if 0 < n && n < c => Some(n.into()),
            _ => None,
        },
    },
    Function {
        name: "channel-blocks",
        params: &[Param::Int],
        gives: Param::List,
        doc: "Extents of blocks for n channels: 8 and 16 where they divide n; n where 16 does not and n is at most 1024.",
        of_extents: false,
        eval: |a| Some(AttrValue::List(channel_blocks(a[0].int()?).into_iter().map(AttrValue::Int).collect())),
    },
    Function {
        name: "operand-blocks",
        params: &[Param::Int, Param::Int],
        gives: Param::List,
        doc: "Extents of blocks for n channels of an operand whose results come in blocks of c: c where it is one of (channel-blocks n), \
              else all of these, and 1 where channels are few: then nothing moves.",
        of_extents: false,
        eval: |a| {
            let (c, n) = (a[0].int()?, a[1].int()?);
            let few = (2..FEW_CHANNELS).contains(&n).then_some(1);
            let all = channel_blocks(n);
            let blocks = if all.contains(&c) { vec![c] } else { all.into_iter().chain(few).collect() };
            Some(AttrValue::List(blocks.into_iter().map(AttrValue::Int).collect()))
        },
    },
    Function {
        name: "layout-plain",
        params: &[Param::Str],
        gives: Param::Str,
        doc: "A layout without its blocks.",
        of_extents: false,
        eval: |a| Some(text(&layout(&a[0])?.plain())),
    },
    Function {
        name: "layout-block",
        params: &[Param::Str, Param::Str],
        gives: Param::Int,
        doc: "The extent of the blocks that an axis is split into: (layout-block \"NCHW8c\" \"C\") is 8.",
        of_extents: false,
        eval: |a| Some(layout(&a[0])?.block(letter(&a[1])?)?.1.into()),
    },
    Function {
        name: "layout-axis",
        params: &[Param::Str, Param::Str],
        gives: Param::Int,
        doc: "Which axis of a layout has this letter.",
        of_extents: false,
        eval: |a| Some((layout(&a[0])?.position(letter(&a[1])?)? as i64).into()),
    },
    Function {
        name: "layout-letter",
        params: &[Param::Str, Param::Int],
        gives: Param::Str,
        doc: "The letter of a layout's axis that is neither split nor a block.",
        of_extents: false,
        eval: |a| {
            let l = layout(&a[0])?;
            let axis = l.axes().get(usize::try_from(a[1].int()?).ok()?)?;
            let whole = axis.block.is_none() && l.block(axis.primal).is_none();
            whole.then(|| axis.primal.to_string().as_str().into())
        },
    },
    Function {
        name: "layout-permutation",
        params: &[Param::Str, Param::Str],
        gives: Param::List,
        doc: "For layouts that differ in the order of axes alone: the transpose that leads from the first to the second.",
        of_extents: false,
        eval: |a| {
            let p = layout(&a[0])?.permutation(&layout(&a[1])?)?;
            Some(p.iter().map(|&k| k as i64).collect::<Vec<i64>>().into())
        },
    },
    Function {
        name: "layout-or",
        params: &[Param::Str, Param::Str],
        gives: Param::Str,
        doc: "The first layout, or the second where the first is empty.",
        of_extents: false,
        eval: |a| Some(if a[0].str()?.is_empty() { a[1].str()? } else { a[0].str()? }.into()),
    },
    Function {
        name: "layout-rank",
        params: &[Param::Str],
        gives: Param::Int,
        doc: "The number of axes of a layout.",
        of_extents: false,
        eval: |a| Some((layout(&a[0])?.rank() as i64).into()),
    },
    Function {
        name: "layout-seen",
        params: &[Param::Str, Param::List],
        gives: Param::Str,
        doc: "The layout of a tensor of this shape that broadcasts beside one of this layout: axes of extent 1 have blocks of 1. \
              Missing leading axes count as 1.",
        of_extents: false,
        eval: |a| {
            let (l, shape) = (layout(&a[0])?, a[1].ints()?);
            let extents = broadcast_extents(&l, &shape)?;
            Some(with_ones(&l, &|c| extents.iter().any(|&(letter, n)| letter == c && n == 1)))
        },
    },
    Function {
        name: "layout-newshape",
        params: &[Param::Str, Param::Str, Param::Class],
        gives: Param::List,
        doc: "(layout-newshape a b y): the shape of y, of layout b, as a reshape of a tensor of layout a says it: 0 for an unknown \
              extent, of an axis that stays where it is in a.",
        of_extents: false,
        eval: |a| {
            let (from, to) = (layout(&a[0])?, layout(&a[1])?);
            let shape = &a[2].class()?.tensor()?.shape;
            let whole = |l: &Layout, k: usize| {
                let axis = l.axes().get(k)?;
                (axis.block.is_none() && l.block(axis.primal).is_none()).then_some(axis.primal)
            };
            let extent = |(k, n): (usize, &Dim)| match n.known() {
                Some(n) => (n != 0).then_some(n),
                None => (whole(&from, k)? == whole(&to, k)?).then_some(0),
            };
            let extents: Option<Vec<i64>> = shape.iter().enumerate().map(extent).collect();
            Some(extents?.into())
        },
    },
    Function {
        name: "layout-keeps",
        params: &[Param::Str, Param::Str, Param::List],
        gives: Param::Str,
        doc: "The target of a transform (second layout, from the first one) for a tensor of this shape that broadcasts: \
              blocks along axes of extent 1 become blocks of 1. Missing leading axes count as 1.",
        of_extents: false,
        eval: |a| {
            let (from, to, shape) = (layout(&a[0])?, layout(&a[1])?, a[2].ints()?);
            let extents = broadcast_extents(&from, &shape)?;
            Some(with_ones(&to, &|c| extents.iter().any(|&(letter, n)| letter == c && n == 1)))
        },
    },
];

/// The whole extents, by letter, of a tensor of this shape beside one of this layout. `None` where it has extent 1 within blocks
/// of which it has several.
fn broadcast_extents(l: &Layout, shape: &[i64]) -> Option<Vec<(char, i64)>> {
    let skip = l.rank().checked_sub(shape.len())?;
    let extent = |k: usize| if k < skip { 1 } else { shape[k - skip] };
    let plain = l.plain();
    let whole = |letter: char| {
        let outer = extent(l.position(letter)?);
        match l.block(letter) {
            None => Some((letter, outer)),
            Some((k, n)) if extent(k) == n => Some((letter, outer * n)),
            Some((k, _)) => (extent(k) == 1 && outer == 1).then_some((letter, 1)),
        }
    };
    plain.axes().iter().map(|axis| whole(axis.primal)).collect()
}

/// A layout with blocks of 1 along some axes.
fn with_ones(l: &Layout, one: &dyn Fn(char) -> bool) -> AttrValue {
    let axis = |axis: &LayoutAxis| match axis.block {
        None => axis.primal.to_string(),
        Some(n) => format!("{}{}", if one(axis.primal) { 1 } else { n }, axis.primal.to_ascii_lowercase()),
    };
    l.axes().iter().map(axis).collect::<String>().as_str().into()
}

pub(super) fn layout(a: &Input<'_>) -> Option<Layout> {
    a.str()?.parse().ok()
}

fn letter(a: &Input<'_>) -> Option<char> {
    let mut chars = a.str()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

pub(super) fn text(l: &Layout) -> AttrValue {
    l.to_string().as_str().into()
}

/// Fewer channels than this, such as an image's colours, fill no vector's part that counts: blocks of them save nothing.
const FEW_CHANNELS: i64 = 8;

/// The widths of 256-bit and 512-bit vectors of float32, and all channels in one block where the wider ones would not come out even.
fn channel_blocks(n: i64) -> Vec<i64> {
    const WIDEST: i64 = 1024;
    let mut blocks: Vec<i64> = [8, 16].into_iter().filter(|b| n > 0 && n % b == 0).collect();
    if n > 0 && n % 16 != 0 && n <= WIDEST && n != 8 {
        blocks.push(n);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use crate::ir::AttrValue;

    #[test]
    fn blocks() {
        let s = |t: &str| AttrValue::from(t);
        assert_eq!(call("layout-split", &[s("NCHW"), s("C"), AttrValue::Int(8)]), Some(s("NCHW8c")));
        assert_eq!(call("layout-split", &[s("NCHW8c"), s("C"), AttrValue::Int(8)]), None);
        assert_eq!(call("layout-split", &[s("nonsense"), s("C"), AttrValue::Int(8)]), None);
        assert_eq!(call("layout-block", &[s("NCHW8c"), s("C")]), Some(AttrValue::Int(8)));
        assert_eq!(call("layout-permutation", &[s("NCHW"), s("NHWC")]), Some([0, 2, 3, 1].into()));
        assert_eq!(call("layout-keeps", &[s("NCHW"), s("NCHW8c"), [16, 1, 1].into()]), Some(s("NCHW8c")));
        assert_eq!(call("layout-keeps", &[s("NCHW"), s("NCHW8c"), [7].into()]), Some(s("NCHW1c")));
        assert_eq!(call("layout-keeps", &[s("NCHW8c"), s("NHWC4c"), [1, 2, 1, 1, 8].into()]), Some(s("NHWC4c")));
        assert_eq!(call("layout-seen", &[s("NCHW8c"), [1, 1, 1].into()]), Some(s("NCHW1c")));
        assert_eq!(call("layout-seen", &[s("NCHW8c"), [2, 1, 1, 1].into()]), None, "one within each of two blocks");
    }
}
