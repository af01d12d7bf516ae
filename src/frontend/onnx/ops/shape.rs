//! Operators that move elements, and shapes themselves.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Concat", concat),
    row("DepthToSpace", depth_to_space),
    row("Expand", expand),
    row("Flatten", flatten),
    row("Reshape", reshape),
    row("Shape", shape),
    row("Size", size),
    row("Slice", slice),
    row("SpaceToDepth", space_to_depth),
    row("Split", split),
    row("Squeeze", squeeze),
    row("Tile", tile),
    row("Transpose", transpose),
    row("Trilu", trilu),
    row("Unsqueeze", unsqueeze),
];

/// Text has an innermost axis of its own, which operators here know nothing of.
fn text_apart(n: &Node, t: Tens) -> Convert<usize> {
    Ok(n.rank(t.e)? - usize::from(t.elem == Elem::Text))
}

fn moved(t: Tens, e: ExprId) -> Convert<Vec<Val>> {
    Ok(vec![Val::Tensor(Tens { e, elem: t.elem })])
}

/// A tensor that is not text: what it is of does not matter.
fn movable(n: &Node, i: usize) -> Convert<Tens> {
    let t = n.tens(i)?;
    n.ensure(t.elem != Elem::Text, || "strings are not supported here".into())?;
    Ok(t)
}

fn concat(n: &mut Node) -> Convert<Vec<Val>> {
    let count = n.inputs.len();
    let all = (0..count).map(|i| movable(n, i)).collect::<Convert<Vec<_>>>()?;
    let first = *all.first().ok_or_else(|| n.refuse("it has no inputs"))?;
    let rank = n.rank(first.e)?;
    // The first version had a default.
    let axis = n.int("axis", if n.version < 4 { 1 } else { 0 })?;
    let axis = n.axis_of(axis, rank)?;
    let y = n.concat(&all.iter().map(|t| t.e).collect::<Vec<_>>(), axis)?;
    moved(first, y)
}

fn transpose(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    let axes = match n.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(p) => p.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?,
    };
    n.ensure(axes.len() == rank, || format!("it orders {} axes, but its input has {rank}", axes.len()))?;
    let y = n.transpose(t.e, &axes)?;
    moved(t, y)
}

fn reshape(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let allow_zero = n.flag("allowzero", false)?;
    let given = if n.version < 5 { n.ints("shape")? } else { None };
    let shape = match given {
        Some(s) => n.im.b.ints(&s),
        None => n.x(1)?,
    };
    let y = reshaped(n, t.e, shape, allow_zero)?;
    moved(t, y)
}

fn reshaped(n: &mut Node, x: ExprId, shape: ExprId, allow_zero: bool) -> Convert {
    let dims = n.dims(x)?;
    if let Some(v) = n.value(shape) {
        let mut wanted = v.to_i64_vec();
        n.ensure(wanted.iter().all(|&d| d >= -1), || format!("the shape {wanted:?} is none"))?;
        let copied = |i: usize| dims.get(i).copied().flatten();
        if !allow_zero {
            for (i, w) in wanted.iter_mut().enumerate() {
                match (*w, copied(i)) {
                    (0, Some(d)) => *w = d,
                    (0, None) if i >= dims.len() => {
                        return Err(n.refuse("the shape copies an extent that its input lacks"));
                    }
                    _ => {}
                }
            }
        }
        let unknown_copied = !allow_zero && wanted.iter().enumerate().any(|(i, &w)| w == 0 && copied(i).is_none());
        // What is left may be known.
        let total: Option<i64> = dims.iter().copied().product();
        if let (Some(total), Some(at), false) = (total, wanted.iter().position(|&w| w == -1), unknown_copied) {
            let rest: i64 = wanted.iter().filter(|&&w| w != -1).product();
            if rest > 0 && total % rest == 0 {
                wanted[at] = total / rest;
            }
        }
        let attrs = [("newshape", AttrValue::ints(&wanted)), ("allowzero", (!unknown_copied).into())];
        if dims.iter().copied().eq(wanted.iter().map(|&w| Some(w))) {
            return Ok(x);
        }
        return n.op("reshape", &[x], &attrs);
    }
    n.op("dyn.reshape", &[x, shape], &[("allowzero", allow_zero.into())])
}

fn flatten(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    let axis = n.int("axis", 1)?;
    let axis = if axis == rank as i64 { rank } else { n.axis_of(axis, rank)? };
    let y = n.flattened(t.e, axis)?;
    moved(t, y)
}

/// Axes that are an attribute before version 13, and an input from it on.
fn axes(n: &mut Node, rank: usize) -> Convert<Option<Vec<usize>>> {
    let axes = if n.version >= 13 { n.known_ints(1)? } else { n.ints("axes")? };
    let axes = axes.map(|a| a.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()).transpose()?;
    Ok(axes)
}

/// Axes that are given, but known only while running: how many, and the expression.
fn unknown_axes(n: &mut Node) -> Convert<Option<(usize, ExprId)>> {
    if n.version < 13 {
        return Ok(None);
    }
    let Some(axes) = n.opt(1)? else { return Ok(None) };
    if n.value(axes).is_some() {
        return Ok(None);
    }
    Ok(Some((n.extent(axes, 0)? as usize, axes)))
}

/// For each axis whether it is not among those, as a vector.
fn others(n: &mut Node, axes: ExprId, rank: usize) -> Convert {
    let mut kept = Vec::new();
    for axis in 0..rank {
        let hit = n.among(axes, axis)?;
        let hit = n.reshape(hit, &[1])?;
        kept.push(n.un("logical_not", hit)?);
    }
    n.concat(&kept, 0)
}

fn squeeze(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    if let Some((count, axes)) = unknown_axes(n)? {
        n.ensure(count <= rank, || format!("takes {count} axes from {rank}"))?;
        let axes = n.counted(axes, rank)?;
        let kept = others(n, axes, rank)?;
        let shape = n.shape_of(t.e)?;
        let shape = n.masked_extents(shape, kept, rank - count)?;
        let y = n.reshape_to(t.e, shape)?;
        return moved(t, y);
    }
    let axes = match axes(n, rank)? {
        Some(a) => a,
        None => {
            let dims = n.dims(t.e)?;
            let y = n.squeeze(t.e, &(0..rank).filter(|&i| dims[i] == Some(1)).collect::<Vec<_>>())?;
            let y = without_ones(n, y)?;
            return moved(t, y);
        }
    };
    let y = n.squeeze(t.e, &axes)?;
    moved(t, y)
}

/// The tensor, whose open extents must not turn out to be 1: which axes there are then would be known only while running. A program
/// that meets such an extent stops there, in a reshape to another number of elements.
fn without_ones(n: &mut Node, x: ExprId) -> Convert {
    if n.dims(x)?.iter().all(Option::is_some) {
        return Ok(x);
    }
    let shape = n.shape_of(x)?;
    let one = n.with("equal", shape, 1.0)?;
    let two = n.c(shape, 2.0)?;
    let other = n.select(one, two, shape)?;
    n.reshape_to(x, other)
}

fn unsqueeze(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    if let Some((count, axes)) = unknown_axes(n)? {
        // Each axis of the result is new, or the next one of the input.
        let to = rank + count;
        let axes = n.counted(axes, to)?;
        let old = others(n, axes, to)?;
        let numbers = n.cast(old, DType::I64)?;
        let place = n.op("cumsum", &[numbers], &[("axis", 0.into()), ("exclusive", true.into())])?;
        let shape = n.shape_of(t.e)?;
        let one = n.im.b.ints(&[1]);
        let shape = n.concat(&[shape, one], 0)?;
        let extents = n.take(shape, place, 0)?;
        let one = n.c(extents, 1.0)?;
        let shape = n.select(old, extents, one)?;
        let y = n.reshape_to(t.e, shape)?;
        return moved(t, y);
    }
    let count = if n.version >= 13 { n.known_ints(1)? } else { n.ints("axes")? }.unwrap_or_default().len();
    let mut axes = axes(n, rank + count)?.unwrap_or_default();
    axes.sort_unstable();
    let y = axes.iter().try_fold(t.e, |x, &a| n.expand(x, a, 1))?;
    moved(t, y)
}

fn shape(n: &mut Node) -> Convert<Vec<Val>> {
    let t = n.tens(0)?;
    let rank = text_apart(n, t)?;
    let mut s = n.shape_of(t.e)?;
    let clamp = |a: i64| (if a < 0 { a + rank as i64 } else { a }).clamp(0, rank as i64);
    let (start, end) = (clamp(n.int("start", 0)?), clamp(n.int("end", rank as i64)?));
    if (start, end) != (0, n.rank(t.e)? as i64) {
        s = match n.value(s) {
            Some(v) => n.im.b.ints(&v.to_i64_vec()[start as usize..end.max(start) as usize]),
            None if end <= start => n.im.b.ints(&[]),
            None => n.slice(s, 0, start, end)?,
        };
    }
    n.one(s)
}

fn size(n: &mut Node) -> Convert<Vec<Val>> {
    let t = n.tens(0)?;
    let rank = text_apart(n, t)? as i64;
    let s = n.shape_of(t.e)?;
    let s = if rank as usize == n.rank(t.e)? { s } else { n.slice(s, 0, 0, rank)? };
    let y = n.reduce("prod", s, &[0], false)?;
    n.one(y)
}

fn expand(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let shape = n.x(1)?;
    let dims = n.dims(t.e)?;
    if let (Some(v), Some(dims)) = (n.value(shape), dims.iter().copied().collect::<Option<Vec<i64>>>()) {
        let wanted = v.to_i64_vec();
        let rank = wanted.len().max(dims.len());
        let at = |l: &[i64], i: usize| (i + l.len()).checked_sub(rank).map_or(1, |k| l[k]);
        let full: Vec<i64> =
            (0..rank).map(|i| if at(&wanted, i) == 1 { at(&dims, i) } else { at(&wanted, i) }).collect();
        let y = n.broadcast(t.e, &full)?;
        return moved(t, y);
    }
    // Both broadcast: the greater extents count.
    let length = n.extent(shape, 0)? as usize;
    let x = n.expand(t.e, 0, length.saturating_sub(dims.len()))?;
    let rank = n.rank(x)?;
    let own = n.shape_of(x)?;
    let ones = n.im.b.ints(&vec![1; rank - length]);
    let shape = n.cast(shape, DType::I64)?;
    let shape = if rank > length { n.concat(&[ones, shape], 0)? } else { shape };
    let both = n.bin("maximum", own, shape)?;
    let y = n.broadcast_to(x, both)?;
    // Extents other than 1 stay. Where all but one are such, a reshape can say so.
    let kept: Vec<i64> = n.dims(x)?.iter().map(|d| d.filter(|&d| d > 1).unwrap_or(-1)).collect();
    let open = n.dims(y)?.iter().filter(|d| d.is_none()).count();
    let y = if open > 1 && kept.iter().filter(|&&d| d == -1).count() == 1 { n.reshape(y, &kept)? } else { y };
    moved(t, y)
}

fn tile(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let repeats = n.x(1)?;
    let y = if n.version < 6 {
        // A number of tiles along one axis.
        let (tiles, axis) = (n.known_ints(1)?.unwrap_or_default(), n.known_ints(2)?.unwrap_or_default());
        let rank = n.rank(t.e)?;
        let mut reps = vec![1; rank];
        let axis = n.axis_of(axis.first().copied().unwrap_or(0), rank)?;
        reps[axis] = tiles.first().copied().unwrap_or(1);
        n.op("tile", &[t.e], &[("reps", reps.into())])?
    } else {
        match n.value(repeats) {
            Some(v) if v.to_i64_vec().contains(&0) => {
                let shape = n.shape(t.e)?;
                let shape: Vec<usize> =
                    shape.iter().zip(v.to_i64_vec()).map(|(a, b)| (a * b.max(0)) as usize).collect();
                let none = Tensor::zeros(n.dtype(t.e)?, &shape);
                n.constant(none)
            }
            Some(v) => n.op("tile", &[t.e], &[("reps", v.to_i64_vec().into())])?,
            None => n.op("dyn.tile", &[t.e, repeats], &[])?,
        }
    };
    moved(t, y)
}

fn trilu(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let upper = n.flag("upper", true)?;
    let k = match n.opt(1)? {
        Some(k) => n.reshape(k, &[])?,
        None => n.im.b.scalar(DType::I64, 0.0),
    };
    let y = n.op("trilu", &[t.e, k], &[("upper", upper.into())])?;
    moved(t, y)
}

fn split(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    if n.version >= 13
        && let Some(sizes) = n.opt(1)?
        && n.value(sizes).is_none()
    {
        let parts = split_while_running(n, t.e, sizes, axis)?;
        return Ok(parts.into_iter().map(|e| Val::Tensor(Tens { e, elem: t.elem })).collect());
    }
    let given = if n.version >= 13 || n.version < 2 { n.known_ints(1)? } else { n.ints("split")? };
    let given = if given.is_none() && n.version < 2 { n.ints("split")? } else { given };
    let count = n.proto.output.len() as i64;
    if given.is_none() && n.dims(t.e)?[axis].is_none() {
        // Equal parts, of which the last one may be smaller.
        let parts = n.int("num_outputs", count)?.max(1);
        let size = n.size(t.e, axis, DType::I64)?;
        let more = n.with("add", size, (parts - 1) as f64)?;
        let chunk = n.with("floor_divide", more, parts as f64)?;
        let mut outputs = Vec::new();
        for k in 0..parts {
            let (b, e) = (n.with("multiply", chunk, k as f64)?, n.with("multiply", chunk, (k + 1) as f64)?);
            let (b, e) = (n.reshape(b, &[1])?, n.reshape(e, &[1])?);
            let y = sliced_while_running(n, t.e, b, e, &[axis], &[1])?;
            outputs.push(Val::Tensor(Tens { e: y, elem: t.elem }));
        }
        return Ok(outputs);
    }
    let sizes = match given {
        Some(s) => s,
        None => {
            let (total, parts) = (n.extent(t.e, axis)?, n.int("num_outputs", count)?.max(1));
            let chunk = (total + parts - 1) / parts;
            (0..parts).map(|i| chunk.min(total - i * chunk).max(0)).collect()
        }
    };
    let mut begin = 0;
    let mut outputs = Vec::new();
    for size in sizes {
        let y = n.slice(t.e, axis, begin, begin + size)?;
        outputs.push(Val::Tensor(Tens { e: y, elem: t.elem }));
        begin += size;
    }
    Ok(outputs)
}

/// Parts of an axis whose sizes are known only while running.
pub(super) fn split_while_running(n: &mut Node, x: ExprId, sizes: ExprId, axis: usize) -> Convert<Vec<ExprId>> {
    let count = n.extent(sizes, 0)?;
    let sizes = n.cast(sizes, DType::I64)?;
    let ends = n.op("cumsum", &[sizes], &[("axis", 0.into())])?;
    let starts = n.sub(ends, sizes)?;
    (0..count)
        .map(|k| {
            let (b, e) = (n.slice(starts, 0, k, k + 1)?, n.slice(ends, 0, k, k + 1)?);
            sliced_while_running(n, x, b, e, &[axis], &[1])
        })
        .collect()
}

pub(super) fn slice(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let rank = n.rank(t.e)?;
    let (starts, ends) = if n.version < 10 {
        let lists = [n.ints("starts")?, n.ints("ends")?].map(Option::unwrap_or_default);
        let [s, e] = lists.map(|l| n.im.b.ints(&l));
        (s, e)
    } else {
        (n.x(1)?, n.x(2)?)
    };
    let count = n.extent(starts, 0)?;
    if n.version >= 10
        && let unknown = [n.opt(3)?, n.opt(4)?]
        && unknown.into_iter().flatten().any(|e| n.value(e).is_none())
    {
        let y = sliced_anyhow(n, t.e, [Some(starts), Some(ends), unknown[0], unknown[1]], count)?;
        return moved(t, y);
    }
    let axes = if n.version < 10 { n.ints("axes")? } else { n.known_ints(3)? };
    let axes = axes.unwrap_or_else(|| (0..count).collect());
    let axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
    n.ensure(axes.len() as i64 == count, || "it has as many starts as axes".into())?;
    let steps = if n.version < 10 { None } else { n.opt(4)? };
    let steps = match steps {
        None => vec![1; axes.len()],
        Some(e) => match n.value(e) {
            Some(v) => v.to_i64_vec(),
            None => return Err(n.refuse("its steps are known only while running, which is not supported")),
        },
    };
    n.ensure(steps.len() == axes.len() && !steps.contains(&0), || "its steps are none or 0".into())?;
    let dims = n.dims(t.e)?;
    if let (Some(s), Some(e)) = (n.value(starts), n.value(ends)) {
        let (s, e) = (s.to_i64_vec(), e.to_i64_vec());
        n.ensure(s.len() == axes.len() && e.len() == axes.len(), || "it has as many starts and ends as axes".into())?;
        let mut y = t.e;
        for (k, &axis) in axes.iter().enumerate() {
            y = match dims[axis] {
                Some(d) => sliced(n, y, axis, (s[k], e[k], steps[k]), d)?,
                None if steps[k] > 0 => {
                    // Places beyond an end are the end.
                    let far = i64::from(i32::MAX);
                    let (s, e) = (s[k].clamp(-far, far), e[k].clamp(-far, far));
                    let lists = [("begin", s), ("end", e), ("strides", steps[k]), ("axes", axis as i64)];
                    n.op("strided_slice", &[y], &lists.map(|(name, v)| (name, [v].into())))?
                }
                None => {
                    let whole = s[k] == -1 && e[k] <= -i64::from(i32::MAX);
                    n.ensure(whole && steps[k] == -1, || "slices an axis of unknown extent backwards".into())?;
                    n.op("reverse", &[y], &[("axis", (axis as i64).into())])?
                }
            };
        }
        return moved(t, y);
    }
    n.ensure(steps.iter().all(|&s| s > 0), || "slices backwards at places that are known only while running".into())?;
    let y = sliced_while_running(n, t.e, starts, ends, &axes, &steps)?;
    moved(t, y)
}

/// A slice of one axis of known extent, at known places.
fn sliced(n: &mut Node, x: ExprId, axis: usize, (start, end, step): (i64, i64, i64), extent: i64) -> Convert {
    let counted = |v: i64| if v < 0 { v.saturating_add(extent) } else { v };
    if step > 0 {
        let (b, e) = (counted(start).clamp(0, extent), counted(end).clamp(0, extent));
        if (b, e, step) == (0, extent, 1) {
            return Ok(x);
        }
        let lists = [("begin", b), ("end", e.max(b)), ("strides", step), ("axes", axis as i64)];
        return n.op("strided_slice", &[x], &lists.map(|(name, v)| (name, [v].into())));
    }
    let (b, e) = (counted(start).clamp(-1, extent - 1), counted(end).clamp(-1, extent - 1));
    let back = step.unsigned_abs();
    let places: Vec<i64> = (0..)
        .map(|i| b - (i as u64).saturating_mul(back).min(i64::MAX as u64 / 2) as i64)
        .take_while(|&p| p > e)
        .collect();
    let places = n.im.b.ints(&places);
    n.take(x, places, axis)
}

/// A slice of which all is known only while running, steps and axes as well: an axis at a time, by places.
fn sliced_anyhow(n: &mut Node, x: ExprId, lists: [Option<ExprId>; 4], count: i64) -> Convert {
    let rank = n.rank(x)?;
    let axes = match lists[2] {
        Some(a) => n.counted(a, rank)?,
        None => n.im.b.ints(&(0..count).collect::<Vec<_>>()),
    };
    let mut lists = [lists[0], lists[1], lists[3]]
        .into_iter()
        .map(|l| match l {
            Some(e) => n.cast(e, DType::I64),
            None => Ok(n.im.b.ints(&vec![1; count as usize])),
        })
        .collect::<Convert<Vec<_>>>()?;
    let steps = lists.pop().ok_or_else(|| n.refuse("it has no steps"))?;
    let shape = n.shape_of(x)?;
    let mut y = x;
    for axis in 0..rank {
        let hit = n.with("equal", axes, axis as f64)?;
        let given = n.reduce("any", hit, &[0], false)?;
        if n.value(given).is_some_and(|v| v.get_i64(0) == 0) {
            continue;
        }
        let zero = n.c(axes, 0.0)?;
        let pick = |n: &mut Node, list: ExprId| -> Convert {
            let chosen = n.select(hit, list, zero)?;
            n.reduce("sum", chosen, &[0], false)
        };
        let (start, end, step) = (pick(n, lists[0])?, pick(n, lists[1])?, pick(n, steps)?);
        let size = n.index(shape, 0, axis as i64)?;
        let last = n.with("subtract", size, 1.0)?;
        let minus = n.c(size, -1.0)?;
        let back = n.with("less", step, 0.0)?;
        let zero = n.c(size, 0.0)?;
        let (low, high) = (n.select(back, minus, zero)?, n.select(back, last, size)?);
        let mut bounds = Vec::new();
        for v in [start, end] {
            let up = n.add(v, size)?;
            let negative = n.with("less", v, 0.0)?;
            let v = n.select(negative, up, v)?;
            let v = n.bin("minimum", v, high)?;
            bounds.push(n.bin("maximum", v, low)?);
        }
        // Axes that are not named are taken whole.
        let one = n.c(size, 1.0)?;
        let (start, end) = (n.select(given, bounds[0], zero)?, n.select(given, bounds[1], size)?);
        let step = n.select(given, step, one)?;
        let places = n.op("arange", &[start, end, step], &[("dtype", DType::I64.into())])?;
        y = n.take(y, places, axis)?;
    }
    Ok(y)
}

fn sliced_while_running(
    n: &mut Node,
    x: ExprId,
    starts: ExprId,
    ends: ExprId,
    axes: &[usize],
    steps: &[i64],
) -> Convert {
    let rank = n.rank(x)?;
    let (starts, ends) = (n.cast(starts, DType::I64)?, n.cast(ends, DType::I64)?);
    let shape = n.shape_of(x)?;
    // What is taken of each axis: all, where nothing is said.
    let (mut begin, mut end) = (Vec::new(), Vec::new());
    for axis in 0..rank {
        let size = n.slice(shape, 0, axis as i64, axis as i64 + 1)?;
        match axes.iter().position(|&a| a == axis) {
            None => {
                begin.push(n.im.b.ints(&[0]));
                end.push(size);
            }
            Some(k) => {
                for (list, into) in [(starts, &mut begin), (ends, &mut end)] {
                    let v = n.slice(list, 0, k as i64, k as i64 + 1)?;
                    let counted = n.add(v, size)?;
                    let negative = n.with("less", v, 0.0)?;
                    let v = n.select(negative, counted, v)?;
                    let v = n.bin("minimum", v, size)?;
                    into.push(n.with("maximum", v, 0.0)?);
                }
            }
        }
    }
    let mut strides = vec![1; rank];
    axes.iter().zip(steps).for_each(|(&a, &s)| strides[a] = s);
    let (begin, end, strides) = (n.concat(&begin, 0)?, n.concat(&end, 0)?, n.im.b.ints(&strides));
    n.op("dyn.strided_slice", &[x, begin, end, strides], &[])
}

fn depth_to_space(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let (block, mode) = (n.int("blocksize", 1)?, n.text("mode", "DCR")?);
    let y = n.op("nn.depth_to_space", &[t.e], &[("block_size", block.into()), ("mode", mode.as_str().into())])?;
    moved(t, y)
}

fn space_to_depth(n: &mut Node) -> Convert<Vec<Val>> {
    let t = movable(n, 0)?;
    let (block, mode) = (n.int("blocksize", 1)?, n.text("mode", "DCR")?);
    n.ensure(mode == "DCR" && n.rank(t.e)? == 4, || format!("mode `{mode}` is not supported"))?;
    let y = n.op("nn.space_to_depth", &[t.e], &[("block_size", block.into())])?;
    moved(t, y)
}
