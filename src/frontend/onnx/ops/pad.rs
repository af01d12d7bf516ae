//! Padding, and crops to extents.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::{AttrValue, ExprId},
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[row("CenterCropPad", center_crop_pad), row("Pad", pad)];

fn pad(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let mode = n.text("mode", "constant")?;
    let (pads, axes) = match n.version {
        1 => (n.ints("paddings")?, None),
        2..11 => (n.ints("pads")?, None),
        _ => {
            let pads = n.x(1)?;
            let axes = n.opt(3)?;
            if n.value(pads).is_none() || axes.is_some_and(|a| n.value(a).is_none()) {
                return pad_while_running(n, x, pads, &mode);
            }
            (n.known_ints(1)?, n.known_ints(3)?)
        }
    };
    let pads = pads.ok_or_else(|| n.refuse("its pads are not given"))?;
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    let axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
    n.ensure(pads.len() == 2 * axes.len(), || "it has as many pads as twice the axes".into())?;
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (k, &a) in axes.iter().enumerate() {
        (before[a], after[a]) = (pads[k], pads[k + axes.len()]);
    }
    // Where an extent matters and is not known, places are computed while running.
    let dims = n.dims(x)?;
    let matters = |a: usize| (mode != "constant" && (before[a], after[a]) != (0, 0)) || before[a] < 0 || after[a] < 0;
    if (0..rank).any(|a| dims[a].is_none() && matters(a)) {
        let widths = n.im.b.ints(&[before, after].concat());
        return padded_by(n, x, widths, &mode);
    }
    let value = pad_value(n, x)?;
    let y = padded(n, x, &before, &after, &mode, value)?;
    n.one(y)
}

fn pad_value(n: &mut Node, x: ExprId) -> Convert {
    match n.version {
        11.. => match n.opt(2)? {
            Some(v) => n.reshape(v, &[]),
            None => n.c(x, 0.0),
        },
        _ => {
            let value = n.float("value", 0.0)?;
            n.c(x, value)
        }
    }
}

fn pad_while_running(n: &mut Node, x: ExprId, pads: ExprId, mode: &str) -> Convert<Vec<Val>> {
    let rank = n.rank(x)?;
    let mut widths = n.cast(pads, DType::I64)?;
    if let Some(axes) = n.opt(3)? {
        // Laid out over all axes: zeros where none are named.
        let count = n.extent(axes, 0)?;
        let axes = n.counted(axes, rank)?;
        let parts = n.reshape(widths, &[2, count])?;
        let mut columns = Vec::new();
        for axis in 0..rank {
            let hit = n.with("equal", axes, axis as f64)?;
            let zero = n.c(parts, 0.0)?;
            let chosen = n.select(hit, parts, zero)?;
            columns.push(n.reduce("sum", chosen, &[1], true)?);
        }
        widths = n.concat(&columns, 1)?;
    }
    padded_by(n, x, widths, mode)
}

/// Padded by numbers for all axes, those before first.
fn padded_by(n: &mut Node, x: ExprId, widths: ExprId, mode: &str) -> Convert<Vec<Val>> {
    let value = pad_value(n, x)?;
    let rank = n.rank(x)?;
    let rows = n.reshape(widths, &[2, rank as i64])?;
    if mode == "constant" {
        // What is negative is cut off.
        let low = n.with("maximum", rows, 0.0)?;
        let pairs = n.transpose(low, &[1, 0])?;
        let attrs = [("pad_width", AttrValue::ints(&[])), ("pad_mode", mode.into())];
        let padded = n.op("dyn.nn.pad", &[x, pairs, value], &attrs)?;
        let cut = n.un("negative", rows)?;
        let cut = n.with("maximum", cut, 0.0)?;
        let (before, after) = (n.index(cut, 0, 0)?, n.index(cut, 0, 1)?);
        let size = n.shape_of(padded)?;
        let end = n.sub(size, after)?;
        let strides = n.im.b.ints(&vec![1; rank]);
        let y = n.op("dyn.strided_slice", &[padded, before, end, strides], &[])?;
        return n.one(y);
    }
    // Others by places in the data, an axis at a time.
    let mut y = x;
    for axis in 0..rank {
        let at = |n: &mut Node, row: i64| -> Convert {
            let r = n.index(rows, 0, row)?;
            n.index(r, 0, axis as i64)
        };
        let (before, after) = (at(n, 0)?, at(n, 1)?);
        let none = |n: &mut Node, e: ExprId| n.value(e).is_some_and(|v| v.get_i64(0) == 0);
        if none(n, before) && none(n, after) {
            continue;
        }
        let size = n.size(x, axis, DType::I64)?;
        let start = n.un("negative", before)?;
        let end = n.add(size, after)?;
        let one = n.c(size, 1.0)?;
        let places = n.op("arange", &[start, end, one], &[("dtype", DType::I64.into())])?;
        let last = n.with("subtract", size, 1.0)?;
        let places = match mode {
            "edge" => {
                let p = n.with("maximum", places, 0.0)?;
                n.bin("minimum", p, last)?
            }
            "wrap" => n.bin("floor_mod", places, size)?,
            "reflect" => {
                let period = n.with("multiply", last, 2.0)?;
                let period = n.with("maximum", period, 1.0)?;
                let p = n.bin("floor_mod", places, period)?;
                let mirrored = n.sub(period, p)?;
                n.bin("minimum", p, mirrored)?
            }
            _ => return Err(n.refuse(format!("there is no mode `{mode}`"))),
        };
        y = n.take(y, places, axis)?;
    }
    n.one(y)
}

/// Padded; negative numbers cut off.
fn padded(n: &mut Node, x: ExprId, before: &[i64], after: &[i64], mode: &str, value: ExprId) -> Convert {
    let mut x = x;
    for axis in 0..before.len() {
        let (b, a) = (before[axis], after[axis]);
        if b < 0 || a < 0 {
            let extent = n.extent(x, axis)?;
            x = n.slice(x, axis, (-b).max(0), extent + a.min(0))?;
        }
    }
    let positive = |l: &[i64]| l.iter().map(|&v| v.max(0)).collect::<Vec<i64>>();
    let (before, after) = (positive(before), positive(after));
    if mode == "constant" {
        return n.pad(x, &before, &after, value);
    }
    // One axis at a time: places in the data.
    for axis in 0..before.len() {
        let (b, a) = (before[axis], after[axis]);
        if b == 0 && a == 0 {
            continue;
        }
        let extent = n.extent(x, axis)?;
        n.ensure(extent > 0, || "it pads an empty axis with its elements".into())?;
        let place = |i: i64| match mode {
            "edge" => Some(i.clamp(0, extent - 1)),
            "wrap" => Some(i.rem_euclid(extent)),
            "reflect" if extent == 1 => Some(0),
            "reflect" => {
                let i = i.rem_euclid(2 * (extent - 1));
                Some(i.min(2 * (extent - 1) - i))
            }
            _ => None,
        };
        let places: Option<Vec<i64>> = (-b..extent + a).map(place).collect();
        let places = places.ok_or_else(|| n.refuse(format!("there is no mode `{mode}`")))?;
        let places = n.im.b.ints(&places);
        x = n.take(x, places, axis)?;
    }
    Ok(x)
}

fn center_crop_pad(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let axes = n.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
    let axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
    let extents = n.x(1)?;
    if n.value(extents).is_none() {
        let y = centred_while_running(n, x, extents, &axes)?;
        return n.one(y);
    }
    let wanted = n.known_ints(1)?.unwrap_or_default();
    n.ensure(wanted.len() == axes.len(), || "it has as many extents as axes".into())?;
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (&axis, &to) in axes.iter().zip(&wanted) {
        let missing = to - n.extent(x, axis)?;
        // Both cut and pad the smaller half first.
        let first = if missing < 0 { -(-missing / 2) } else { missing / 2 };
        (before[axis], after[axis]) = (first, missing - first);
    }
    let zero = n.c(x, 0.0)?;
    let y = padded(n, x, &before, &after, "constant", zero)?;
    n.one(y)
}

/// The same to extents that are known only while running.
fn centred_while_running(n: &mut Node, x: ExprId, extents: ExprId, axes: &[usize]) -> Convert {
    let extents = n.cast(extents, DType::I64)?;
    let mut y = x;
    for (k, &axis) in axes.iter().enumerate() {
        let size = n.size(x, axis, DType::I64)?;
        let to = n.index(extents, 0, k as i64)?;
        let missing = n.sub(to, size)?;
        // Places in the data of the result's; what lies outside is zero.
        let back = n.sub(size, to)?;
        let half = n.with("floor_divide", missing, 2.0)?;
        let cut = n.with("floor_divide", back, 2.0)?;
        let shorter = n.with("less", missing, 0.0)?;
        let down = n.un("negative", half)?;
        let start = n.select(shorter, cut, down)?;
        let end = n.add(start, to)?;
        let one = n.c(size, 1.0)?;
        let places = n.op("arange", &[start, end, one], &[("dtype", DType::I64.into())])?;
        let (low, high) = (n.with("greater_equal", places, 0.0)?, n.bin("less", places, size)?);
        let inside = n.bin("logical_and", low, high)?;
        let last = n.with("subtract", size, 1.0)?;
        let held = n.with("maximum", places, 0.0)?;
        let held = n.bin("minimum", held, last)?;
        y = n.take(y, held, axis)?;
        let rank = n.rank(y)?;
        let inside = n.trailing(inside, rank - 1 - axis)?;
        let zero = n.c(y, 0.0)?;
        y = n.select(inside, y, zero)?;
    }
    Ok(y)
}
