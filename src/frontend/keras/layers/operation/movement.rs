//! Functions that move elements.

use serde_json::Value as Json;

use super::super::super::{
    call::{Arg, Call},
    layer::{as_int, ints, plain},
};
use super::{Function, common, integer, parameter, plain_json, tensor};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The functions.
pub(super) const OPERATIONS: &[(&str, Function)] = &[
    ("Reshape", |c| {
        let x = tensor(c, 0, "x")?;
        let shape = parameter(c, 1, "newshape").as_ref().and_then(open_ints);
        let shape = shape.ok_or_else(|| c.refuse("its shape is not a list of integers"))?;
        if shape.iter().any(|&n| n < -1) || shape.contains(&0) {
            return Err(c.refuse(format!("the shape {shape:?} is not supported")));
        }
        c.reshape(x, &shape).map(Arg::of)
    }),
    ("Transpose", |c| {
        let x = tensor(c, 0, "x")?;
        let rank = c.rank(x)? as i64;
        let axes = parameter(c, 1, "axes").as_ref().and_then(ints).unwrap_or_else(|| (0..rank).rev().collect());
        c.transpose(x, &axes).map(Arg::of)
    }),
    ("Swapaxes", |c| {
        let x = tensor(c, 0, "x")?;
        let rank = c.rank(x)?;
        let a = c.axis(integer(c, 1, "axis1", 0)?, rank)?;
        let b = c.axis(integer(c, 2, "axis2", 1)?, rank)?;
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.swap(a, b);
        c.transpose(x, &order).map(Arg::of)
    }),
    ("Moveaxis", move_axis),
    ("ExpandDims", |c| {
        let x = tensor(c, 0, "x")?;
        let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_default();
        let [axis] = axes[..] else { return Err(c.refuse("several new axes are not supported")) };
        c.expand(x, axis, 1).map(Arg::of)
    }),
    ("Squeeze", |c| {
        let x = tensor(c, 0, "x")?;
        match parameter(c, 1, "axis").as_ref().and_then(ints) {
            Some(axes) => c.op("squeeze", &[x], &[("axis", axes.into())]).map(Arg::of),
            None => c.un("squeeze", x).map(Arg::of),
        }
    }),
    ("Concatenate", |c| {
        let all = several(c)?;
        let axis = integer(c, 1, "axis", -1)?;
        c.concat(&all, axis).map(Arg::of)
    }),
    ("Stack", |c| {
        let all = several(c)?;
        let axis = integer(c, 1, "axis", 0)?;
        let tuple = c.s.b.tuple(&all);
        c.op("stack", &[tuple], &[("axis", axis.into())]).map(Arg::of)
    }),
    ("Split", split),
    ("Repeat", |c| {
        let x = tensor(c, 0, "x")?;
        let repeats = parameter(c, 1, "repeats").as_ref().and_then(ints).unwrap_or_default();
        let ([repeats], Some(axis)) = (&repeats[..], parameter(c, 2, "axis").as_ref().and_then(as_int)) else {
            return Err(c.refuse("only one number of repeats along an axis is supported"));
        };
        c.op("repeat", &[x], &[("repeats", (*repeats).into()), ("axis", axis.into())]).map(Arg::of)
    }),
    ("Tile", |c| {
        let x = tensor(c, 0, "x")?;
        let reps = parameter(c, 1, "repeats").as_ref().and_then(ints);
        let reps = reps.ok_or_else(|| c.refuse("its repeats are not integers"))?;
        c.op("tile", &[x], &[("reps", reps.into())]).map(Arg::of)
    }),
    ("BroadcastTo", |c| {
        let x = tensor(c, 0, "x")?;
        let shape = parameter(c, 1, "shape").as_ref().and_then(ints);
        let shape = shape.ok_or_else(|| c.refuse("its shape is not a list of integers"))?;
        c.op("broadcast_to", &[x], &[("shape", shape.into())]).map(Arg::of)
    }),
    ("Flip", |c| {
        let x = tensor(c, 0, "x")?;
        let rank = c.rank(x)? as i64;
        let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_else(|| (0..rank).collect());
        axes.iter().try_fold(x, |x, &axis| c.op("reverse", &[x], &[("axis", axis.into())])).map(Arg::of)
    }),
    ("Pad", |c| {
        let x = tensor(c, 0, "x")?;
        let mode = parameter(c, 2, "mode").and_then(|v| v.as_str().map(str::to_owned));
        let widths = parameter(c, 1, "pad_width");
        let pairs = widths.as_ref().map(plain).and_then(Json::as_array).and_then(|rows| {
            rows.iter().map(|r| ints(r).and_then(|p| Some((*p.first()?, *p.get(1)?)))).collect::<Option<Vec<_>>>()
        });
        let pairs = pairs.ok_or_else(|| c.refuse("its widths are not pairs"))?;
        let mirrored = match mode.as_deref() {
            None | Some("constant") => {
                let value = parameter(c, 3, "constant_values").and_then(|v| v.as_f64()).unwrap_or(0.0);
                return c.pad(x, &pairs, value).map(Arg::of);
            }
            Some("reflect") => "REFLECT",
            Some("symmetric") => "SYMMETRIC",
            Some(other) => return Err(c.refuse(format!("padding of mode `{other}` is not supported"))),
        };
        c.mirror(x, &pairs, mirrored).map(Arg::of)
    }),
    ("Take", |c| {
        let x = tensor(c, 0, "x")?;
        let places = match c.arg(1, "indices") {
            Some(Arg::Tensor(t)) => t.id,
            Some(other) => {
                let listed = plain_json(other).as_ref().and_then(ints);
                let listed = listed.ok_or_else(|| c.refuse("its indices are not integers"))?;
                c.s.b.ints(&listed)
            }
            None => return Err(c.refuse("it lacks its indices")),
        };
        let places = if c.dtype(places)?.is_int() { places } else { c.cast(places, DType::I32)? };
        let axis = parameter(c, 2, "axis").as_ref().and_then(as_int);
        let Some(axis) = axis else { return c.op("take", &[x, places], &[]).map(Arg::of) };
        let at = c.axis(axis, c.rank(x)?)?;
        // Negative indices count from the end.
        let n = c.extent(x, at)?;
        let negative = c.with("less", places, 0.0)?;
        let from_end = c.with("add", places, n as f64)?;
        let places = c.select(negative, from_end, places)?;
        c.op("take", &[x, places], &[("axis", (at as i64).into())]).map(Arg::of)
    }),
    ("TakeAlongAxis", |c| {
        let (x, places) = (tensor(c, 0, "x")?, tensor(c, 1, "indices")?);
        let axis = integer(c, 2, "axis", -1)?;
        c.op("gather", &[x, places], &[("axis", axis.into())]).map(Arg::of)
    }),
    ("GetItem", get_item),
    ("Roll", |c| {
        let x = tensor(c, 0, "x")?;
        let shifts = parameter(c, 1, "shift").as_ref().and_then(ints).unwrap_or_default();
        let Some(axes) = parameter(c, 2, "axis").as_ref().and_then(ints) else {
            return Err(c.refuse("only shifts along axes are supported"));
        };
        if shifts.len() != 1 && shifts.len() != axes.len() {
            return Err(c.refuse("it has other numbers of shifts than of axes"));
        }
        let rank = c.rank(x)?;
        let mut y = x;
        for (axis, shift) in axes.iter().zip(shifts.iter().cycle()) {
            let at = c.axis(*axis, rank)?;
            let n = c.extent(y, at)?;
            let by = shift.rem_euclid(n.max(1));
            if by > 0 {
                let (head, tail) = (c.slice(y, at as i64, 0, n - by)?, c.slice(y, at as i64, n - by, n)?);
                y = c.concat(&[tail, head], at as i64)?;
            }
        }
        Ok(Arg::of(y))
    }),
    ("Tril", |c| triangle(c, |row, column, k| column <= row + k)),
    ("Triu", |c| triangle(c, |row, column, k| column >= row + k)),
    ("Unstack", |c| {
        let x = tensor(c, 0, "x")?;
        let axis = c.axis(integer(c, 2, "axis", 0)?, c.rank(x)?)?;
        let n = c.extent(x, axis)?;
        if !(1..=4096).contains(&n) {
            return Err(c.refuse(format!("{n} parts are not supported")));
        }
        let attrs = [("indices_or_sections", n.into()), ("axis", (axis as i64).into())];
        let parts = c.op("split", &[x], &attrs)?;
        let part = |i: usize| {
            let e = c.s.b.field(parts, i);
            c.op("squeeze", &[e], &[("axis", [axis as i64].into())]).map(Arg::of)
        };
        Ok(Arg::List((0..n as usize).map(part).collect::<Convert<_>>()?))
    }),
];

/// The elements of matrices for which a condition of row, column and diagonal holds, and zeros.
fn triangle(c: &mut Call, kept: impl Fn(i64, i64, i64) -> bool) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let (rank, k) = (c.rank(x)?, integer(c, 1, "k", 0)?);
    if rank < 2 {
        return Err(c.refuse("its input is no matrix"));
    }
    let (rows, columns) = (c.extent(x, rank - 2)?, c.extent(x, rank - 1)?);
    c.count(rows.saturating_mul(columns))?;
    let shape = [c.count(rows)?, c.count(columns)?];
    let mask =
        Tensor::from_f64_fn(DType::Bool, &shape, |i| kept(i as i64 / columns, i as i64 % columns, k) as u8 as f64);
    let (mask, zero) = (c.constant(mask), c.number(x, 0.0)?);
    c.select(mask, x, zero).map(Arg::of)
}

/// A shape in which what is not known is -1.
fn open_ints(v: &Json) -> Option<Vec<i64>> {
    match plain(v) {
        Json::Array(a) => a.iter().map(|n| if n.is_null() { Some(-1) } else { as_int(n) }).collect(),
        one => Some(vec![as_int(one)?]),
    }
}

/// All tensors of the arguments, of one type.
fn several(c: &mut Call) -> Convert<Vec<ExprId>> {
    let all: Vec<ExprId> = c.args.iter().flat_map(Arg::tensors).map(|t| t.id).collect();
    let mut dtype = None;
    for &x in &all {
        let own = c.dtype(x)?;
        dtype = Some(dtype.map_or(own, |d| common(d, own)));
    }
    let dtype = dtype.ok_or_else(|| c.refuse("it has no arguments"))?;
    all.into_iter().map(|x| c.cast(x, dtype)).collect()
}

fn move_axis(c: &mut Call) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let rank = c.rank(x)?;
    let list = |c: &Call, at: usize, name: &str| -> Convert<Vec<usize>> {
        let given = parameter(c, at, name).as_ref().and_then(ints).unwrap_or_default();
        given.into_iter().map(|a| c.axis(a, rank)).collect()
    };
    let (from, to) = (list(c, 1, "source")?, list(c, 2, "destination")?);
    if from.len() != to.len() {
        return Err(c.refuse("as many axes must be moved as there are places for them"));
    }
    let mut order: Vec<usize> = (0..rank).filter(|a| !from.contains(a)).collect();
    let mut moves: Vec<(usize, usize)> = to.into_iter().zip(from).collect();
    moves.sort_unstable();
    for (to, from) in moves {
        order.insert(to.min(order.len()), from);
    }
    let order: Vec<i64> = order.into_iter().map(|a| a as i64).collect();
    c.transpose(x, &order).map(Arg::of)
}

fn split(c: &mut Call) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let axis = c.axis(integer(c, 2, "axis", 0)?, c.rank(x)?)?;
    let how = parameter(c, 1, "indices_or_sections");
    let how = how.ok_or_else(|| c.refuse("it does not say where to split"))?;
    let (count, attr) = match (as_int(&how), ints(&how)) {
        (Some(n), _) => (n, n.into()),
        (None, Some(places)) => (places.len() as i64 + 1, places.into()),
        _ => return Err(c.refuse("it does not say where to split")),
    };
    if !(1..=4096).contains(&count) {
        return Err(c.refuse(format!("splits into {count} parts are not supported")));
    }
    let parts = c.op("split", &[x], &[("indices_or_sections", attr), ("axis", (axis as i64).into())])?;
    Ok(Arg::List((0..count as usize).map(|i| Arg::of(c.s.b.field(parts, i))).collect()))
}

/// One place of an index.
enum Part {
    At(i64),
    Slice(Option<i64>, Option<i64>, i64),
    NewAxis,
    Rest,
}

fn part(v: &Json) -> Option<Part> {
    if v.is_null() {
        return Some(Part::NewAxis);
    }
    if let Some(n) = as_int(v) {
        return Some(Part::At(n));
    }
    // Keras 2 writes slices without a class around them.
    let bare = v.get("start").is_some() && v.get("stop").is_some();
    let config = if bare { Some(v) } else { v.get("config") };
    let class = if bare { "__slice__" } else { v.get("class_name")?.as_str()? };
    match class {
        "__ellipsis__" => Some(Part::Rest),
        "__slice__" => {
            let of = |key: &str| config.and_then(|c| c.get(key)).filter(|v| !v.is_null()).map(as_int);
            let step = of("step").flatten().unwrap_or(1);
            Some(Part::Slice(of("start").flatten(), of("stop").flatten(), step))
        }
        _ => None,
    }
}

/// `x[1:, ..., None]`.
fn get_item(c: &mut Call) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    let rank = c.rank(x)?;
    let key = c.arg(1, "key").and_then(plain_json).or_else(|| c.args.get(1).and_then(plain_json));
    let key = key.ok_or_else(|| c.refuse("indices that are tensors are not supported"))?;
    let listed: Vec<&Json> = match plain(&key) {
        Json::Array(items) => items.iter().collect(),
        one => vec![one],
    };
    let parts: Option<Vec<Part>> = listed.into_iter().map(part).collect();
    let parts = parts.ok_or_else(|| c.refuse("its index is not supported"))?;
    let named = parts.iter().filter(|p| matches!(p, Part::At(_) | Part::Slice(..))).count();
    if named > rank {
        return Err(c.refuse("it has more indices than axes"));
    }
    let (mut begin, mut end, mut strides) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dropped, mut added, mut axis, mut out_axis) = (Vec::new(), Vec::new(), 0i64, 0i64);
    let whole = |begin: &mut Vec<i64>, end: &mut Vec<i64>, strides: &mut Vec<i64>| {
        begin.push(0);
        end.push(i32::MAX as i64);
        strides.push(1);
    };
    for p in parts {
        match p {
            Part::NewAxis => {
                added.push(out_axis);
                out_axis += 1;
            }
            Part::Rest => {
                for _ in named..rank {
                    whole(&mut begin, &mut end, &mut strides);
                    axis += 1;
                    out_axis += 1;
                }
            }
            Part::At(n) => {
                begin.push(n);
                end.push(if n == -1 { i32::MAX as i64 } else { n + 1 });
                strides.push(1);
                dropped.push(axis);
                axis += 1;
            }
            Part::Slice(from, to, step) => {
                begin.push(from.unwrap_or(if step < 0 { -1 } else { 0 }));
                end.push(to.unwrap_or(if step < 0 { i32::MIN as i64 } else { i32::MAX as i64 }));
                strides.push(step);
                axis += 1;
                out_axis += 1;
            }
        }
    }
    let mut y = x;
    if !begin.is_empty() {
        let attrs = [("begin", begin.into()), ("end", end.into()), ("strides", strides.into())];
        y = c.op("strided_slice", &[y], &attrs)?;
    }
    if !dropped.is_empty() {
        y = c.op("squeeze", &[y], &[("axis", dropped.into())])?;
    }
    for axis in added {
        y = c.expand(y, axis, 1)?;
    }
    Ok(Arg::of(y))
}
