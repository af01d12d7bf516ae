//! What becomes of an operator's attributes when a layout transform moves past it.
//!
//! Throughout, a tensor lies in the layout `b`, and the operator saw it transformed to the layout `p`: its attributes speak of
//! the axes of `p`, and are wanted for those of `b`. An axis is *whole* in a layout that does not split it into blocks.

use super::{
    Function, Input, Param,
    layouts::{layout, text},
};
use crate::{ir::AttrValue, tensor::Layout};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "moved-axis",
        params: &[Param::Str, Param::Str, Param::Int],
        gives: Param::Int,
        doc: "(moved-axis b p k): axis k of layout p, where it is in layout b; it must be whole in both.",
        of_extents: false,
        eval: |a| Some((moved(&layout(&a[0])?, &layout(&a[1])?, a[2].int()?)? as i64).into()),
    },
    Function {
        name: "moved-axis-or",
        params: &[Param::Str, Param::Str, Param::Int, Param::Int],
        gives: Param::Int,
        doc: "(moved-axis-or b p k n): as moved-axis; n where the axis is split.",
        of_extents: false,
        eval: |a| {
            let at = moved(&layout(&a[0])?, &layout(&a[1])?, a[2].int()?);
            Some(at.map_or(a[3].int()?, |at| at as i64).into())
        },
    },
    Function {
        name: "moved-outer-axis",
        params: &[Param::Str, Param::Str, Param::Int],
        gives: Param::Int,
        doc: "(moved-outer-axis b p k): axis k of layout p, whole there, where it or the count of its blocks is in layout b.",
        of_extents: false,
        eval: |a| {
            let (b, p) = (layout(&a[0])?, layout(&a[1])?);
            Some((b.position(whole_letter(&p, a[2].int()?)?)? as i64).into())
        },
    },
    Function {
        name: "moved-axes",
        params: &[Param::Str, Param::Str, Param::List],
        gives: Param::List,
        doc: "(moved-axes b p ks): several axes as by moved-axis, in their order.",
        of_extents: false,
        eval: |a| {
            let (b, p) = (layout(&a[0])?, layout(&a[1])?);
            a[2].ints()?.iter().map(|&k| Some(moved(&b, &p, k)? as i64)).collect::<Option<Vec<i64>>>().map(Into::into)
        },
    },
    Function {
        name: "moved-places",
        params: &[Param::Str, Param::Str, Param::List],
        gives: Param::List,
        doc: "(moved-places b p ks): where axes of layout p, whole there, are in layout b; of a split axis both places.",
        of_extents: false,
        eval: |a| {
            let (b, p) = (layout(&a[0])?, layout(&a[1])?);
            let letters = letters(&p, &a[2].ints()?)?;
            let mut places: Vec<i64> = Vec::new();
            for letter in letters {
                places.push(b.position(letter)? as i64);
                places.extend(b.block(letter).map(|(k, _)| k as i64));
            }
            Some(places.into())
        },
    },
    Function {
        name: "moved-list",
        params: &[Param::Str, Param::Str, Param::List, Param::Any],
        gives: Param::List,
        doc: "(moved-list b p list n): a list with an element for each axis of layout p, for the axes of layout b; elements of \
              split axes must be n, which changes nothing.",
        of_extents: false,
        eval: |a| {
            let (b, p, list, neutral) = (layout(&a[0])?, layout(&a[1])?, a[2].list()?, a[3].attr()?);
            (list.len() == p.rank()).then_some(())?;
            let split = |l: &Layout, letter: char| l.block(letter).is_some();
            let kept = |k: usize| list[k] == *neutral || !split(&b, p.axes()[k].primal);
            let of_blocks = |k: usize| list[k] == *neutral || !split(&p, p.axes()[k].primal);
            (0..list.len()).all(|k| kept(k) && of_blocks(k)).then_some(())?;
            let value = |axis: &crate::tensor::LayoutAxis| match split(&b, axis.primal) || split(&p, axis.primal) {
                true => Some(neutral.clone()),
                false => list.get(p.position(axis.primal)?).cloned(),
            };
            b.axes().iter().map(value).collect::<Option<_>>().map(AttrValue::List)
        },
    },
    Function {
        name: "moved-sections",
        params: &[Param::Str, Param::Str, Param::Int, Param::Any, Param::Class],
        gives: Param::Any,
        doc: "(moved-sections b p k s x): the sections s (their number, or where they begin) into which axis k of layout p is \
              cut, for x in layout b; where b splits the axis, only between blocks.",
        of_extents: false,
        eval: |a| {
            let (b, p, sections, x) = (layout(&a[0])?, layout(&a[1])?, a[3].attr()?, a[4].class()?);
            let letter = whole_letter(&p, a[2].int()?)?;
            let Some((_, block)) = b.block(letter) else { return Some(sections.clone()) };
            match sections {
                AttrValue::List(_) => {
                    let begins = sections.as_ints()?;
                    begins
                        .iter()
                        .all(|n| n % block == 0)
                        .then(|| begins.iter().map(|n| n / block).collect::<Vec<_>>().into())
                }
                number => {
                    let n = number.as_int().filter(|&n| n > 0)?;
                    (x.shape()?.get(b.position(letter)?)? % n == 0).then(|| sections.clone())
                }
            }
        },
    },
    Function {
        name: "moved-slices",
        params: &[Param::Str, Param::Str, Param::List, Param::List, Param::List, Param::Str, Param::Any, Param::Class],
        gives: Param::List,
        doc: "(moved-slices b p begin end strides mode axes y): the attributes of a strided_slice of y, in layout p, for a \
              tensor in layout b: a list of begin, end, strides and axes. Split axes must be kept whole.",
        of_extents: false,
        eval: moved_slices,
    },
    Function {
        name: "layout-without",
        params: &[Param::Str, Param::Str, Param::List],
        gives: Param::Str,
        doc: "(layout-without l p ks): layout l without the axes ks of layout p, which are whole there; empty where none is left.",
        of_extents: false,
        eval: |a| {
            let (l, p) = (layout(&a[0])?, layout(&a[1])?);
            let gone = letters(&p, &a[2].ints()?)?;
            let kept = |c: &char| !gone.contains(c);
            Some(show(&l, &|axis| Some(axis.primal).filter(kept).map(|c| (c, axis.block))).as_str().into())
        },
    },
    Function {
        name: "layout-ones",
        params: &[Param::Str, Param::Str, Param::List],
        gives: Param::Str,
        doc: "(layout-ones l p ks): layout l for a tensor whose axes ks of layout p have become 1: their blocks are of 1, too.",
        of_extents: false,
        eval: |a| {
            let (l, p) = (layout(&a[0])?, layout(&a[1])?);
            let ones = letters(&p, &a[2].ints()?)?;
            let block = |c: char, n: i64| if ones.contains(&c) { 1 } else { n };
            let axis =
                |axis: &crate::tensor::LayoutAxis| Some((axis.primal, axis.block.map(|n| block(axis.primal, n))));
            Some(show(&l, &axis).as_str().into())
        },
    },
    Function {
        name: "layout-insert",
        params: &[Param::Str, Param::Int, Param::Int],
        gives: Param::Str,
        doc: "(layout-insert l k n): a layout with n more axes before axis k, of letters that it did not have.",
        of_extents: false,
        eval: |a| {
            let l = layout(&a[0])?;
            let (k, n) = (usize::try_from(a[1].int()?).ok()?, usize::try_from(a[2].int()?).ok()?);
            let new: String = ('A'..='Z').filter(|&c| l.position(c).is_none()).take(n).collect();
            (k <= l.rank() && new.len() == n).then_some(())?;
            let axes = |from: usize, to: usize| -> String {
                (from..to).map(|k| axis_text(l.axes()[k].primal, l.axes()[k].block)).collect()
            };
            Some(format!("{}{new}{}", axes(0, k), axes(k, l.rank())).as_str().into())
        },
    },
    Function {
        name: "layout-permuted",
        params: &[Param::Str, Param::Any],
        gives: Param::Str,
        doc: "(layout-permuted p q): what a transpose by q (in reverse, where that is none) makes of layout p.",
        of_extents: false,
        eval: |a| Some(permuted(&layout(&a[0])?, a[1].attr()?, false)?.as_str().into()),
    },
    Function {
        name: "layout-unpermuted",
        params: &[Param::Str, Param::Any],
        gives: Param::Str,
        doc: "(layout-unpermuted p q): the layout of which a transpose by q (in reverse, where that is none) makes layout p.",
        of_extents: false,
        eval: |a| Some(permuted(&layout(&a[0])?, a[1].attr()?, true)?.as_str().into()),
    },
    Function {
        name: "layout-renamed",
        params: &[Param::Str, Param::Str, Param::Str],
        gives: Param::Str,
        doc: "(layout-renamed l p b): layout b in the letters of l, where p is l in other letters: (layout-renamed \"NHWC\" \
              \"ABCD\" \"ADBC\") is \"NCHW\".",
        of_extents: false,
        eval: |a| {
            let (l, p, b) = (layout(&a[0])?, layout(&a[1])?, layout(&a[2])?);
            (l.rank() == p.rank() && l.axes().iter().zip(p.axes()).all(|(x, y)| x.block == y.block)).then_some(())?;
            let name = |c: char| Some(l.axes()[p.position(c)?].primal);
            // Blocks must belong to the same axes under both names.
            p.axes().iter().all(|axis| same_block(&l, &p, axis.primal)).then_some(())?;
            let renamed: Option<String> = b.axes().iter().map(|x| Some(axis_text(name(x.primal)?, x.block))).collect();
            Some(text(&renamed?.parse().ok()?))
        },
    },
    Function {
        name: "reduced-axes",
        params: &[Param::Any, Param::Any, Param::Int],
        gives: Param::List,
        doc: "(reduced-axes axis exclude rank): the axes that a reduction with these attributes combines, in ascending order.",
        of_extents: false,
        eval: |a| {
            let (exclude, rank) = (a[1].int()? != 0, a[2].int()?);
            let given: Vec<i64> = match a[0].attr()? {
                AttrValue::None => Vec::new(),
                AttrValue::Int(k) => vec![*k],
                list => list.as_ints()?,
            };
            let given: Vec<i64> = given.into_iter().map(|k| if k < 0 { k + rank } else { k }).collect();
            let gone = |k: &i64| given.is_empty() || given.contains(k) != exclude;
            (rank <= 64).then(|| (0..rank).filter(gone).collect::<Vec<i64>>().into())
        },
    },
    Function {
        name: "squeezed-axes",
        params: &[Param::Any, Param::Class],
        gives: Param::List,
        doc: "(squeezed-axes axis x): the axes that a squeeze of x with this attribute takes away.",
        of_extents: false,
        eval: |a| match a[0].attr()? {
            AttrValue::None => {
                let shape = a[1].class()?.shape()?;
                Some((0..shape.len()).filter(|&k| shape[k] == 1).map(|k| k as i64).collect::<Vec<i64>>().into())
            }
            axes => {
                let rank = a[1].class()?.tensor()?.rank() as i64;
                Some(axes.as_ints()?.into_iter().map(|k| if k < 0 { k + rank } else { k }).collect::<Vec<i64>>().into())
            }
        },
    },
];

/// The letter of an axis that its layout does not split; negative axes count from the end.
fn whole_letter(l: &Layout, k: i64) -> Option<char> {
    let k = if k < 0 { k + l.rank() as i64 } else { k };
    let axis = l.axes().get(usize::try_from(k).ok()?)?;
    (axis.block.is_none() && l.block(axis.primal).is_none()).then_some(axis.primal)
}

fn letters(l: &Layout, axes: &[i64]) -> Option<Vec<char>> {
    axes.iter().map(|&k| whole_letter(l, k)).collect()
}

/// Where axis `k` of `p` is in `b`, whole in both.
fn moved(b: &Layout, p: &Layout, k: i64) -> Option<usize> {
    let letter = whole_letter(p, k)?;
    b.block(letter).is_none().then(|| b.position(letter)).flatten()
}

fn axis_text(letter: char, block: Option<i64>) -> String {
    match block {
        None => letter.to_string(),
        Some(n) => format!("{n}{}", letter.to_ascii_lowercase()),
    }
}

/// A layout whose axes are each what a function makes of them.
fn show(l: &Layout, f: &dyn Fn(&crate::tensor::LayoutAxis) -> Option<(char, Option<i64>)>) -> String {
    l.axes().iter().filter_map(|axis| f(axis).map(|(c, n)| axis_text(c, n))).collect()
}

/// Whether the axis of `p` with this letter is split in `l` at the same place as in `p`.
fn same_block(l: &Layout, p: &Layout, letter: char) -> bool {
    let name = p.position(letter).map(|k| l.axes()[k].primal);
    name.is_some_and(|name| l.block(name) == p.block(letter))
}

fn permuted(l: &Layout, axes: &AttrValue, back: bool) -> Option<String> {
    let rank = l.rank() as i64;
    let axes: Vec<i64> = match axes {
        AttrValue::None => (0..rank).rev().collect(),
        given => given.as_ints()?.into_iter().map(|k| if k < 0 { k + rank } else { k }).collect(),
    };
    let mut out = vec![String::new(); l.rank()];
    (axes.len() == l.rank()).then_some(())?;
    for (k, &from) in axes.iter().enumerate() {
        let from = usize::try_from(from).ok().filter(|&f| f < l.rank())?;
        let (to, from) = if back { (from, k) } else { (k, from) };
        out[to] = axis_text(l.axes()[from].primal, l.axes()[from].block);
    }
    let text = out.concat();
    text.parse::<Layout>().ok().filter(|new| new.rank() == l.rank()).map(|_| text)
}

fn moved_slices(a: &[Input<'_>]) -> Option<AttrValue> {
    let (b, p, y) = (layout(&a[0])?, layout(&a[1])?, a[7].class()?);
    let (begin, end, strides) = (a[2].ints()?, a[3].ints()?, a[4].ints()?);
    let by_size = a[5].str()? == "size";
    let named = match a[6].attr()? {
        AttrValue::None => None,
        axes => Some(axes.as_ints()?),
    };
    let count = named.as_ref().map_or(begin.len().max(end.len()).max(strides.len()), Vec::len);
    let mut out: [Vec<i64>; 4] = Default::default();
    for i in 0..count {
        let k = named.as_ref().map_or(i as i64, |axes| axes[i]);
        let extent = y.tensor()?.shape.get(usize::try_from(if k < 0 { k + p.rank() as i64 } else { k }).ok()?)?.known();
        let step = if by_size { 1 } else { strides.get(i).copied().unwrap_or(1) };
        let from = begin.get(i).copied().or((step > 0).then_some(0))?;
        let to = match end.get(i) {
            Some(&to) => to,
            None if by_size => -1,
            None => extent.filter(|_| step > 0)?,
        };
        let all = from == 0 && step == 1 && (extent.is_some_and(|n| to >= n) || (by_size && to < 0));
        match moved(&b, &p, k) {
            _ if all => {}
            None => return None,
            Some(at) => [from, to, step, at as i64].into_iter().zip(&mut out).for_each(|(v, list)| list.push(v)),
        }
    }
    Some(AttrValue::List(out.into_iter().map(AttrValue::from).collect()))
}

/// Whether a transform from layout `from` to layout `to` fills no block up, of a tensor of these extents.
pub(in crate::rules) fn fills_nothing(from: &Layout, to: &Layout, shape: &[Option<i64>]) -> Option<bool> {
    (from.rank() == shape.len()).then_some(())?;
    for axis in to.axes() {
        let Some(block) = axis.block else { continue };
        let mine = from.block(axis.primal).map(|(_, n)| n);
        if mine == Some(block) {
            continue;
        }
        let extent = shape[from.position(axis.primal)?]? * mine.unwrap_or(1);
        if extent % block != 0 {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use crate::ir::AttrValue;

    fn s(t: &str) -> AttrValue {
        t.into()
    }

    #[test]
    fn axes_move() {
        let n = AttrValue::Int;
        assert_eq!(call("moved-axis", &[s("NCHW"), s("NHWC"), n(-1)]), Some(n(1)));
        assert_eq!(call("moved-axis", &[s("NCHW8c"), s("NCHW"), n(1)]), None, "split");
        assert_eq!(call("moved-axis-or", &[s("NCHW8c"), s("NCHW"), n(1), n(-1)]), Some(n(-1)));
        assert_eq!(call("moved-outer-axis", &[s("NHWC8c"), s("NCHW"), n(1)]), Some(n(3)));
        assert_eq!(call("moved-places", &[s("NCHW8c"), s("NCHW"), [1, 3].into()]), Some([1, 4, 3].into()));
        assert_eq!(call("moved-list", &[s("NHWC"), s("NCHW"), [1, 2, 3, 4].into(), n(0)]), Some([1, 3, 4, 2].into()));
        assert_eq!(
            call("moved-list", &[s("NCHW8c"), s("NCHW"), [0, 0, 3, 4].into(), n(0)]),
            Some([0, 0, 3, 4, 0].into())
        );
        assert_eq!(call("moved-list", &[s("NCHW8c"), s("NCHW"), [0, 1, 3, 4].into(), n(0)]), None);
        assert_eq!(call("reduced-axes", &[[-1].into(), true.into(), n(3)]), Some([0, 1].into()));
        assert_eq!(call("reduced-axes", &[AttrValue::None, false.into(), n(2)]), Some([0, 1].into()));
    }

    #[test]
    fn layouts_change() {
        assert_eq!(call("layout-without", &[s("NCHW8c"), s("NCHW"), [1].into()]), Some(s("NHW")));
        assert_eq!(call("layout-without", &[s("NC"), s("NC"), [0, 1].into()]), Some(s("")));
        assert_eq!(call("layout-ones", &[s("NCHW8c"), s("NCHW"), [1].into()]), Some(s("NCHW1c")));
        assert_eq!(call("layout-insert", &[s("NCHW"), AttrValue::Int(1), AttrValue::Int(2)]), Some(s("NABCHW")));
        let q: AttrValue = [0, 3, 1, 2].into();
        assert_eq!(call("layout-permuted", &[s("NHWC"), q.clone()]), Some(s("NCHW")));
        assert_eq!(call("layout-unpermuted", &[s("NCHW"), q]), Some(s("NHWC")));
        assert_eq!(call("layout-permuted", &[s("NHWC"), AttrValue::None]), Some(s("CWHN")));
        assert_eq!(call("layout-renamed", &[s("NHWC"), s("ABCD"), s("ADBC")]), Some(s("NCHW")));
        assert_eq!(call("layout-renamed", &[s("NCHW4c"), s("NCDHW"), s("NHWCD")]), None, "blocks are no axes");
    }
}
