//! Elements under other shapes: nothing is computed.

use serde_json::Value as Json;

use super::{
    super::{
        call::{Arg, Call},
        layer::{as_int, ints, plain},
    },
    Class, Masks, class,
};
use crate::{frontend::Convert, ir::ExprId};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Flatten", Masks::Own, flatten),
    class("Reshape", Masks::Own, reshape),
    class("Permute", Masks::Own, permute),
    class("RepeatVector", Masks::Own, repeat_vector),
    class("Cropping1D", Masks::Own, |c| crop(c, 1)),
    class("Cropping2D", Masks::Own, |c| crop(c, 2)),
    class("Cropping3D", Masks::Own, |c| crop(c, 3)),
    class("ZeroPadding1D", Masks::Own, |c| zero_padding(c, 1)),
    class("ZeroPadding2D", Masks::Own, |c| zero_padding(c, 2)),
    class("ZeroPadding3D", Masks::Own, |c| zero_padding(c, 3)),
    class("UpSampling1D", Masks::Own, |c| repeated(c, 1)),
    class("UpSampling3D", Masks::Own, |c| repeated(c, 3)),
];

fn flatten(c: &mut Call) -> Convert<Arg> {
    let mut x = c.input()?;
    let rank = c.rank(x)? as i64;
    if rank == 0 {
        return Err(c.refuse("its input has no batch"));
    }
    if !c.layer.channels_last() && rank > 2 {
        let axes: Vec<i64> = [0].into_iter().chain(2..rank).chain([1]).collect();
        x = c.transpose(x, &axes)?;
    }
    if rank == 1 {
        return c.expand(x, 1, 1).map(Arg::of);
    }
    c.un("nn.batch_flatten", x).map(Arg::of)
}

fn reshape(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let target =
        c.layer.ints("target_shape").ok_or_else(|| c.refuse("its `target_shape` is not a list of integers"))?;
    if target.iter().any(|&n| n < -1) {
        return Err(c.refuse("its `target_shape` has negative numbers"));
    }
    let shape = c.shape(x)?;
    let mut wanted = target;
    // The one that is left open follows where the rest is known.
    let known: Option<i64> = shape.iter().skip(1).copied().try_fold(1i64, |n, d| n.checked_mul(d?));
    let given = wanted.iter().filter(|&&n| n != -1).try_fold(1i64, |n, &d| n.checked_mul(d));
    if let (Some(known), Some(given @ 1..)) = (known, given)
        && let Some(open) = wanted.iter_mut().find(|n| **n == -1)
        && known % given == 0
    {
        *open = known / given;
    }
    let open = wanted.contains(&-1);
    // The batch stays; where all else is known, it is what is left.
    wanted.insert(0, if open { 0 } else { shape.first().copied().flatten().unwrap_or(-1) });
    c.reshape(x, &wanted).map(Arg::of)
}

fn permute(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let dims = c.layer.ints("dims").ok_or_else(|| c.refuse("its `dims` are not a list of integers"))?;
    let axes: Vec<i64> = [0].into_iter().chain(dims).collect();
    c.transpose(x, &axes).map(Arg::of)
}

fn repeat_vector(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let n = c.layer.int("n")?;
    let x = c.expand(x, 1, 1)?;
    let mut reps = vec![1; c.rank(x)?];
    reps[1] = n;
    c.op("tile", &[x], &[("reps", reps.into())]).map(Arg::of)
}

/// Numbers before and after each spatial axis: one for all, one an axis, or a pair an axis.
fn pairs(c: &Call, key: &str, spatial: usize) -> Convert<Vec<(i64, i64)>> {
    let wrong = || c.refuse(format!("its `{key}` is not a pair of sizes per axis"));
    let json = c.layer.get(key).map(plain).ok_or_else(wrong)?;
    let found: Vec<(i64, i64)> = match json {
        Json::Array(items) if spatial == 1 && items.len() == 2 && items.iter().all(|i| as_int(i).is_some()) => {
            let pair = ints(json).ok_or_else(wrong)?;
            vec![(pair[0], pair[1])]
        }
        Json::Array(items) => {
            let pair = |i: &Json| match ints(i)?[..] {
                [one] => Some((one, one)),
                [a, b] => Some((a, b)),
                _ => None,
            };
            items.iter().map(pair).collect::<Option<_>>().ok_or_else(wrong)?
        }
        one => {
            let n = as_int(one).ok_or_else(wrong)?;
            vec![(n, n); spatial]
        }
    };
    let sensible = found.iter().all(|(a, b)| (0..=1 << 24).contains(a) && (0..=1 << 24).contains(b));
    if found.len() == spatial && sensible { Ok(found) } else { Err(wrong()) }
}

/// Pairs for all axes of the input.
fn widths(c: &Call, x: ExprId, key: &str, spatial: usize) -> Convert<Vec<(i64, i64)>> {
    let pairs = pairs(c, key, spatial)?;
    let rank = c.rank(x)?;
    if rank != spatial + 2 {
        return Err(c.refuse(format!("its input has {rank} axes, not {}", spatial + 2)));
    }
    let first = if c.layer.channels_last() { 1 } else { 2 };
    let mut all = vec![(0, 0); rank];
    all[first..first + spatial].copy_from_slice(&pairs);
    Ok(all)
}

fn zero_padding(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let widths = widths(c, x, "padding", spatial)?;
    c.pad(x, &widths, 0.0).map(Arg::of)
}

fn crop(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let mut x = c.input()?;
    for (axis, (before, after)) in widths(c, x, "cropping", spatial)?.into_iter().enumerate() {
        if (before, after) != (0, 0) {
            let end = if after == 0 { i32::MAX as i64 } else { -after };
            x = c.slice(x, axis as i64, before, end)?;
        }
    }
    Ok(Arg::of(x))
}

/// Every element several times along the spatial axes.
fn repeated(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let sizes = c.layer.positive_sizes("size", spatial, 2)?;
    repeat(c, x, &sizes).map(Arg::of)
}

/// The same, the sizes given.
pub(super) fn repeat(c: &mut Call, x: ExprId, sizes: &[i64]) -> Convert {
    let first = if c.layer.channels_last() { 1 } else { 2 };
    let mut x = x;
    for (i, &n) in sizes.iter().enumerate().filter(|(_, n)| **n != 1) {
        x = c.op("repeat", &[x], &[("repeats", n.into()), ("axis", (first + i as i64).into())])?;
    }
    Ok(x)
}
