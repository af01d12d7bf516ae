//! Indexing, sorting, searching and running sums.

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
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Compress", compress),
    row("CumProd", |n| running(n, "cumprod")),
    row("CumSum", |n| running(n, "cumsum")),
    row("Gather", gather),
    row("GatherElements", gather_elements),
    row("GatherND", gather_nd),
    row("NonZero", non_zero),
    row("OneHot", one_hot),
    row("ReverseSequence", reverse_sequence),
    row("Scatter", scatter_elements),
    row("ScatterElements", scatter_elements),
    row("ScatterND", scatter_nd),
    row("TensorScatter", tensor_scatter),
    row("TopK", top_k),
    row("Unique", unique),
];

/// Indices along an axis counted from its front.
fn from_front(n: &mut Node, indices: ExprId, data: ExprId, axis: usize) -> Convert {
    if let Some(v) = n.value(indices)
        && v.to_i64_vec().iter().all(|&i| i >= 0)
    {
        return Ok(indices);
    }
    let dtype = n.dtype(indices)?;
    let size = n.size(data, axis, dtype)?;
    let counted = n.add(indices, size)?;
    let negative = n.with("less", indices, 0.0)?;
    n.select(negative, counted, indices)
}

fn gather(n: &mut Node) -> Convert<Vec<Val>> {
    let (t, indices) = (n.tens(0)?, n.x(1)?);
    let rank = n.rank(t.e)? - usize::from(t.elem == Elem::Text);
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let indices = from_front(n, indices, t.e, axis)?;
    let e = n.take(t.e, indices, axis)?;
    Ok(vec![Val::Tensor(Tens { e, elem: t.elem })])
}

fn gather_elements(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, indices) = (n.x(0)?, n.x(1)?);
    let rank = n.rank(x)?;
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let indices = from_front(n, indices, x, axis)?;
    // Along other axes the data may be longer: what is beyond is never read.
    let (dx, di) = (n.dims(x)?, n.dims(indices)?);
    let mut x = x;
    for k in (0..rank).filter(|&k| k != axis) {
        if let (Some(long), Some(short)) = (dx[k], di[k])
            && long > short
        {
            x = n.slice(x, k, 0, short)?;
        }
    }
    let y = n.op("gather", &[x, indices], &[("axis", (axis as i64).into())])?;
    n.one(y)
}

/// Index rows (in the last axis) counted from the front, as Relay wants them: the rows' axis first.
fn index_columns(n: &mut Node, data: ExprId, indices: ExprId, skipped: usize) -> Convert {
    let rank = n.rank(indices)?;
    let width = n.extent(indices, rank - 1)? as usize;
    let dtype = n.dtype(indices)?;
    let sizes = (skipped..skipped + width).map(|k| {
        let s = n.size(data, k, dtype)?;
        n.reshape(s, &[1])
    });
    let sizes = sizes.collect::<Convert<Vec<_>>>()?;
    let sizes = n.concat(&sizes, 0)?;
    let counted = n.add(indices, sizes)?;
    let negative = n.with("less", indices, 0.0)?;
    let indices = n.select(negative, counted, indices)?;
    let axes: Vec<usize> = [rank - 1].into_iter().chain(0..rank - 1).collect();
    n.transpose(indices, &axes)
}

fn gather_nd(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, indices) = (n.x(0)?, n.x(1)?);
    let batch = n.int("batch_dims", 0)?;
    let width = n.extent(indices, n.rank(indices)? - 1)?;
    let indices = index_columns(n, x, indices, usize::try_from(batch).unwrap_or(0))?;
    let y = n.op("gather_nd", &[x, indices], &[("batch_dims", batch.into()), ("index_rank", width.into())])?;
    n.one(y)
}

fn reduction(n: &Node) -> Convert<&'static str> {
    Ok(match n.text("reduction", "none")?.as_str() {
        "none" => "update",
        "add" => "add",
        "mul" => "mul",
        "min" => "min",
        "max" => "max",
        other => return Err(n.refuse(format!("there is no reduction `{other}`"))),
    })
}

fn scatter_elements(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, indices, updates) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let rank = n.rank(x)?;
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let how = reduction(n)?;
    let y =
        n.op("scatter_elements", &[x, indices, updates], &[("axis", (axis as i64).into()), ("reduction", how.into())])?;
    n.one(y)
}

fn scatter_nd(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, indices, updates) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let how = reduction(n)?;
    let rank = n.rank(indices)?;
    let axes: Vec<usize> = [rank - 1].into_iter().chain(0..rank - 1).collect();
    let indices = n.transpose(indices, &axes)?;
    let y = n.op("scatter_nd", &[x, indices, updates], &[("mode", how.into())])?;
    n.one(y)
}

/// A cache that is written from a place on, for each element of the batch its own.
fn tensor_scatter(n: &mut Node) -> Convert<Vec<Val>> {
    let (past, update, at) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let rank = n.rank(past)?;
    let axis = n.int("axis", -2)?;
    let axis = n.axis_of(axis, rank)?;
    let circular = n.text("mode", "linear")? == "circular";
    let (long, short, batch) = (n.extent(past, axis)?, n.extent(update, axis)?, n.extent(past, 0)?);
    n.ensure(axis > 0 && short <= long, || "it writes more than there is room for, or along the batch".into())?;
    let at = match at {
        Some(a) => n.cast(a, DType::I64)?,
        None => n.constant(Tensor::zeros(DType::I64, &[batch as usize])),
    };
    // For each place of the cache, which element of the update goes there.
    let places = n.places(past, axis, DType::I64)?;
    let at = n.trailing(at, 1)?;
    let mut source = n.sub(places, at)?;
    if circular {
        source = n.with("floor_mod", source, long as f64)?;
    }
    let (low, high) = (n.with("greater_equal", source, 0.0)?, n.with("less", source, short as f64)?);
    let hit = n.bin("logical_and", low, high)?;
    let source = n.op("clip", &[source], &[("a_min", 0.0.into()), ("a_max", ((short - 1) as f64).into())])?;
    let mut shape = vec![1; rank];
    (shape[0], shape[axis]) = (batch, long);
    let (hit, source) = (n.reshape(hit, &shape)?, n.reshape(source, &shape)?);
    let mut full = n.shape(past)?;
    full[axis] = long;
    let source = n.broadcast(source, &full)?;
    let moved = n.op("gather", &[update, source], &[("axis", (axis as i64).into())])?;
    let y = n.select(hit, moved, past)?;
    n.one(y)
}

fn compress(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, condition) = (n.x(0)?, n.x(1)?);
    let rank = n.rank(x)?;
    let places = n.un("argwhere", condition)?;
    let places = n.op("squeeze", &[places], &[("axis", [1].into())])?;
    let y = match n.opt_int("axis")? {
        None => {
            let flat = n.reshape(x, &[-1])?;
            n.take(flat, places, 0)?
        }
        Some(axis) => {
            let axis = n.axis_of(axis, rank)?;
            n.take(x, places, axis)?
        }
    };
    n.one(y)
}

fn non_zero(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rows = n.un("argwhere", x)?;
    let columns = n.transpose(rows, &[1, 0])?;
    let y = n.cast(columns, DType::I64)?;
    n.one(y)
}

fn one_hot(n: &mut Node) -> Convert<Vec<Val>> {
    let (indices, depth, values) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let rank = n.rank(indices)?;
    let axis = n.int("axis", -1)?;
    let axis = n.axis_of(axis, rank + 1)?;
    let depth = n.reshape(depth, &[])?;
    let (off, on) = (n.index(values, 0, 0)?, n.index(values, 0, 1)?);
    // Indices beyond the depth hit nothing; those from its end are negative.
    let indices = n.cast(indices, DType::I64)?;
    let wide = n.cast(depth, DType::I64)?;
    let counted = n.add(indices, wide)?;
    let negative = n.with("less", indices, 0.0)?;
    let indices = n.select(negative, counted, indices)?;
    let places = match n.value(wide) {
        Some(v) => {
            let count = usize::try_from(v.get_i64(0)).map_err(|_| n.refuse("its depth is negative"))?;
            n.constant(Tensor::from_i64_fn(DType::I64, &[count], |i| i as i64))
        }
        None => {
            let (zero, one) = (n.im.b.scalar(DType::I64, 0.0), n.im.b.scalar(DType::I64, 1.0));
            n.op("arange", &[zero, wide, one], &[("dtype", DType::I64.into())])?
        }
    };
    let places = n.trailing(places, rank - axis)?;
    let indices = n.expand(indices, axis, 1)?;
    let hit = n.bin("equal", indices, places)?;
    let y = n.select(hit, on, off)?;
    n.one(y)
}

fn running(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let (exclusive, reverse) = (n.flag("exclusive", false)?, n.flag("reverse", false)?);
    let axis = n.x(1)?;
    if n.value(axis).is_none() {
        // One of the axes that there are.
        let axes = n.counted(axis, rank)?;
        let mut y = run(n, name, x, 0, exclusive, reverse)?;
        for axis in 1..rank {
            let (hit, along) = (n.among(axes, axis)?, run(n, name, x, axis, exclusive, reverse)?);
            y = n.either(hit, along, y)?;
        }
        return n.one(y);
    }
    let axis = n.known_ints(1)?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = n.axis_of(axis, rank)?;
    let y = run(n, name, x, axis, exclusive, reverse)?;
    n.one(y)
}

fn run(n: &mut Node, name: &str, x: ExprId, axis: usize, exclusive: bool, reverse: bool) -> Convert {
    let flip = |n: &mut Node, e: ExprId| match reverse {
        true => n.op("reverse", &[e], &[("axis", (axis as i64).into())]),
        false => Ok(e),
    };
    let x = flip(n, x)?;
    let y = n.op(name, &[x], &[("axis", (axis as i64).into()), ("exclusive", exclusive.into())])?;
    flip(n, y)
}

fn reverse_sequence(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, lengths) = (n.x(0)?, n.x(1)?);
    let (batch, time) = (n.int("batch_axis", 1)?, n.int("time_axis", 0)?);
    let y = n.op("reverse_sequence", &[x, lengths], &[("seq_axis", time.into()), ("batch_axis", batch.into())])?;
    n.one(y)
}

fn top_k(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let axis = n.int("axis", -1)?;
    let axis = n.axis_of(axis, rank)? as i64;
    let largest = n.flag("largest", true)?;
    let attrs = |more: Option<i64>| {
        let mut all = vec![("axis", axis.into()), ("is_ascend", (!largest).into()), ("dtype", DType::I64.into())];
        all.extend(more.map(|k| ("k", k.into())));
        all
    };
    let known = if n.version < 10 { n.opt_int("k")? } else { None };
    let both = match known {
        Some(k) => n.op("topk", &[x], &attrs(Some(k)))?,
        None => {
            let k = n.x(1)?;
            match n.value(k).filter(|v| v.len() == 1) {
                Some(v) => n.op("topk", &[x], &attrs(Some(v.get_i64(0))))?,
                None => n.op("dyn.topk", &[x, k], &attrs(None))?,
            }
        }
    };
    let (values, places) = (n.im.b.field(both, 0), n.im.b.field(both, 1));
    Ok(vec![n.out(values)?, n.out(places)?])
}

fn unique(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let sorted = n.flag("sorted", true)?;
    if let Some(axis) = n.opt_int("axis")?
        && n.rank(x)? > 1
    {
        return unique_slices(n, x, axis, sorted);
    }
    let flat = n.reshape(x, &[-1])?;
    let all = n.op("unique", &[flat], &[("sorted", sorted.into()), ("return_counts", true.into())])?;
    let [values, first, inverse, count, counts] = [0, 1, 2, 3, 4].map(|i| n.im.b.field(all, i));
    // Of what Relay gives, as many as there are distinct ones count.
    let cut = |n: &mut Node, e: ExprId| -> Convert {
        let zero = n.im.b.ints(&[0]);
        let one = n.im.b.ints(&[1]);
        let end = n.cast(count, DType::I64)?;
        let end = n.reshape(end, &[1])?;
        n.op("dyn.strided_slice", &[e, zero, end, one], &[])
    };
    let mut outputs = Vec::new();
    for (k, e) in [values, first, inverse, counts].into_iter().enumerate() {
        let e = if k == 2 { e } else { cut(n, e)? };
        let e = if k == 0 { e } else { n.cast(e, DType::I64)? };
        outputs.push(n.out(e)?);
    }
    Ok(outputs)
}

/// The most elements that slices are compared by.
const MOST_COMPARED: i64 = 1 << 26;

/// Distinct slices along an axis, each compared with each, element by element.
fn unique_slices(n: &mut Node, x: ExprId, axis: i64, sorted: bool) -> Convert<Vec<Val>> {
    let (shape, rank) = (n.shape(x)?, n.rank(x)?);
    let axis = n.axis_of(axis, rank)?;
    let count = shape[axis];
    let size = shape.iter().product::<i64>();
    n.ensure(size > 0 && size.saturating_mul(count) <= MOST_COMPARED, || {
        format!("comparing {count} slices of {shape:?} is not supported")
    })?;
    let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&a| a != axis)).collect();
    let rows = n.transpose(x, &order)?;
    let rows = n.reshape(rows, &[count, size / count])?;
    let (a, b) = (n.expand(rows, 1, 1)?, n.expand(rows, 0, 1)?);
    // Slices are in the order of the first elements that differ.
    let differs = n.bin("not_equal", a, b)?;
    let differ = n.reduce("any", differs, &[2], false)?;
    let same = n.un("logical_not", differ)?;
    let differs = n.cast(differs, DType::I32)?;
    let at = n.op("argmax", &[differs], &[("axis", [2].into()), ("keepdims", true.into())])?;
    let less = n.bin("less", a, b)?;
    let less = n.cast(less, DType::I32)?;
    let less = n.op("gather", &[less, at], &[("axis", 2.into())])?;
    let less = n.squeeze(less, &[2])?;
    let same = n.cast(same, DType::I64)?;
    let first = n.op("argmax", &[same], &[("axis", [1].into())])?;
    let first = n.cast(first, DType::I64)?;
    let places = n.places(rows, 0, DType::I64)?;
    let leads = n.bin("equal", first, places)?;
    // How many distinct slices are before each one.
    let before = match sorted {
        true => n.with("not_equal", less, 0.0)?,
        false => {
            let column = n.trailing(places, 1)?;
            n.bin("less", column, places)?
        }
    };
    let of_leads = n.trailing(leads, 1)?;
    let before = n.bin("logical_and", of_leads, before)?;
    let before = n.cast(before, DType::I64)?;
    let number = n.reduce("sum", before, &[0], false)?;
    let inverse = n.take(number, first, 0)?;
    let counts = n.reduce("sum", same, &[1], false)?;
    let found = n.un("argwhere", leads)?;
    let found = n.reshape(found, &[-1])?;
    let found = n.cast(found, DType::I64)?;
    let numbers = n.take(number, found, 0)?;
    let order = n.op("argsort", &[numbers], &[("axis", 0.into()), ("dtype", DType::I64.into())])?;
    let chosen = n.take(found, order, 0)?;
    let (y, counts) = (n.take(x, chosen, axis)?, n.take(counts, chosen, 0)?);
    [y, chosen, inverse, counts].into_iter().map(|e| n.out(e)).collect()
}
