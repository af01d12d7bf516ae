//! Fourier transforms, windows and mel weights.

use std::f64::consts::PI;

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{elem::Elem, importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("BlackmanWindow", |n| window(n, &[0.42, -0.5, 0.08])),
    row("DFT", dft),
    row("HammingWindow", |n| window(n, &[25.0 / 46.0, -(1.0 - 25.0 / 46.0)])),
    row("HannWindow", |n| window(n, &[0.5, -0.5])),
    row("MelWeightMatrix", mel_weights),
    row("STFT", stft),
];

/// A sum of cosines of multiples of the angle.
fn window(n: &mut Node, factors: &[f64]) -> Convert<Vec<Val>> {
    let size = n.x(0)?;
    let Elem::Plain(to) = n.elem(n.int("output_datatype", 1)?)? else {
        return Err(n.refuse("windows of small types are not supported"));
    };
    let periodic = n.flag("periodic", true)?;
    let size = n.reshape(size, &[])?;
    let size = n.cast(size, DType::I64)?;
    let (zero, one) = (n.c(size, 0.0)?, n.c(size, 1.0)?);
    let i = n.op("arange", &[zero, size, one], &[("dtype", DType::I64.into())])?;
    let i = n.cast(i, DType::F64)?;
    let steps = if periodic { size } else { n.with("subtract", size, 1.0)? };
    let steps = n.cast(steps, DType::F64)?;
    let turn = n.with("multiply", i, 2.0 * PI)?;
    let angle = n.div(turn, steps)?;
    let mut sum = None;
    for (k, &f) in factors.iter().enumerate() {
        let a = n.with("multiply", angle, k as f64)?;
        let c = n.un("cos", a)?;
        let part = n.with("multiply", c, f)?;
        sum = Some(match sum {
            None => part,
            Some(s) => n.add(s, part)?,
        });
    }
    let y = n.cast(sum.unwrap_or(angle), to)?;
    n.one(y)
}

/// Real and imaginary parts, of which the last may be missing, along the last axis of `x` (the axis of parts being taken away).
fn parts(n: &mut Node, x: ExprId) -> Convert<(ExprId, Option<ExprId>)> {
    let rank = n.rank(x)?;
    let real = n.index(x, rank - 1, 0)?;
    let imaginary = if n.extent(x, rank - 1)? == 2 { Some(n.index(x, rank - 1, 1)?) } else { None };
    Ok((real, imaginary))
}

/// The transform along the last axis, of `length` points: sums with cosines and sines, as products of matrices.
fn transformed(
    n: &mut Node,
    (real, imaginary): (ExprId, Option<ExprId>),
    length: i64,
    inverse: bool,
    kept: i64,
) -> Convert<(ExprId, ExprId)> {
    let dtype = n.dtype(real)?;
    let rank = n.rank(real)?;
    n.ensure((1..=8192).contains(&length), || format!("transforms of {length} points are not supported"))?;
    let fit = |n: &mut Node, e: ExprId| -> Convert {
        let have = n.extent(e, rank - 1)?;
        if have >= length {
            return n.slice(e, rank - 1, 0, length);
        }
        let (before, mut after) = (vec![0; rank], vec![0; rank]);
        after[rank - 1] = length - have;
        let zero = n.c(e, 0.0)?;
        n.pad(e, &before, &after, zero)
    };
    let table = |n: &mut Node, f: fn(f64) -> f64| {
        let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
        let t = Tensor::from_f64_fn(dtype, &[kept as usize, length as usize], |i| {
            let (row, column) = (i as i64 / length, i as i64 % length);
            f(2.0 * PI * (row * column % length) as f64 / length as f64) * scale
        });
        n.constant(t)
    };
    let (cos, sin) = (table(n, f64::cos), table(n, f64::sin));
    let product = |n: &mut Node, e: ExprId, w: ExprId| n.op("nn.dense", &[e, w], &[]);
    let real = fit(n, real)?;
    let (rc, rs) = (product(n, real, cos)?, product(n, real, sin)?);
    let minus = |n: &mut Node, e: ExprId| n.un("negative", e);
    match imaginary {
        None => Ok((rc, if inverse { rs } else { minus(n, rs)? })),
        Some(i) => {
            let i = fit(n, i)?;
            let (ic, is) = (product(n, i, cos)?, product(n, i, sin)?);
            if inverse { Ok((n.sub(rc, is)?, n.add(rs, ic)?)) } else { Ok((n.add(rc, is)?, n.sub(ic, rs)?)) }
        }
    }
}

fn dft(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let (inverse, onesided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    if n.version >= 20
        && let Some(axis) = n.opt(2)?
        && n.value(axis).is_none()
    {
        // One of the axes that there are.
        let axes = n.counted(axis, rank)?;
        let mut y = dft_along(n, x, rank - 2, inverse, onesided)?;
        for axis in 0..rank - 2 {
            // An axis of one element has no other half.
            if inverse && onesided && n.extent(x, axis)? < 2 {
                continue;
            }
            let (hit, along) = (n.among(axes, axis)?, dft_along(n, x, axis, inverse, onesided)?);
            y = n.either(hit, along, y)?;
        }
        return n.one(y);
    }
    let axis = if n.version >= 20 {
        n.known_ints(2)?.and_then(|a| a.first().copied()).unwrap_or(-2)
    } else {
        n.int("axis", 1)?
    };
    let axis = n.axis_of(axis, rank)?;
    let y = dft_along(n, x, axis, inverse, onesided)?;
    n.one(y)
}

fn dft_along(n: &mut Node, x: ExprId, axis: usize, inverse: bool, onesided: bool) -> Convert {
    let rank = n.rank(x)?;
    n.ensure(axis + 1 < rank, || "it transforms the axis of real and imaginary parts".into())?;
    let extent = n.extent(x, axis)?;
    let back = inverse && onesided;
    let length =
        n.known_ints(1)?.and_then(|l| l.first().copied()).unwrap_or(if back { 2 * (extent - 1) } else { extent });
    let (mut real, mut imaginary) = parts(n, x)?;
    real = n.axis_to_last(real, axis)?;
    if let Some(i) = imaginary {
        imaginary = Some(n.axis_to_last(i, axis)?);
    }
    if back {
        // The other half is the mirrored conjugate of this one.
        let half = length / 2 + 1;
        let last = n.rank(real)? - 1;
        let mirror: Vec<i64> = (half..length).map(|k| length - k).collect();
        let whole = |n: &mut Node, e: ExprId, negated: bool| -> Convert {
            let have = n.extent(e, last)?;
            let e = if have >= half {
                n.slice(e, last, 0, half)?
            } else {
                let (before, mut after) = (vec![0; last + 1], vec![0; last + 1]);
                after[last] = half - have;
                let zero = n.c(e, 0.0)?;
                n.pad(e, &before, &after, zero)?
            };
            if mirror.is_empty() {
                return Ok(e);
            }
            let places = n.im.b.ints(&mirror);
            let other = n.take(e, places, last)?;
            let other = if negated { n.un("negative", other)? } else { other };
            n.concat(&[e, other], last)
        };
        real = whole(n, real, false)?;
        if let Some(i) = imaginary {
            imaginary = Some(whole(n, i, true)?);
        }
    }
    let kept = if onesided && !inverse { length / 2 + 1 } else { length };
    let (a, b) = transformed(n, (real, imaginary), length, inverse, kept)?;
    let a = n.last_to_axis(a, axis)?;
    if back {
        return n.trailing(a, 1);
    }
    let b = n.last_to_axis(b, axis)?;
    n.stack(&[a, b], rank - 1)
}

/// The transform of frames whose length is known only while running: as [`transformed`], with tables that are computed then.
fn transformed_while_running(
    n: &mut Node,
    (real, imaginary): (ExprId, Option<ExprId>),
    length: ExprId,
    onesided: bool,
) -> Convert<(ExprId, ExprId)> {
    let dtype = n.dtype(real)?;
    let (zero, one) = (n.c(length, 0.0)?, n.c(length, 1.0)?);
    let range = |n: &mut Node, end: ExprId| n.op("arange", &[zero, end, one], &[("dtype", DType::I64.into())]);
    let kept = if onesided {
        let half = n.with("floor_divide", length, 2.0)?;
        n.with("add", half, 1.0)?
    } else {
        length
    };
    let (k, t) = (range(n, kept)?, range(n, length)?);
    let k = n.trailing(k, 1)?;
    let turns = n.mul(k, t)?;
    let turns = n.bin("floor_mod", turns, length)?;
    let turns = n.cast(turns, DType::F64)?;
    let whole = n.cast(length, DType::F64)?;
    let angle = n.div(turns, whole)?;
    let angle = n.with("multiply", angle, 2.0 * PI)?;
    let mut tables = Vec::new();
    for name in ["cos", "sin"] {
        let table = n.un(name, angle)?;
        tables.push(n.cast(table, dtype)?);
    }
    let product = |n: &mut Node, e: ExprId, k: usize| n.op("nn.dense", &[e, tables[k]], &[]);
    let (rc, rs) = (product(n, real, 0)?, product(n, real, 1)?);
    match imaginary {
        None => Ok((rc, n.un("negative", rs)?)),
        Some(i) => {
            let (ic, is) = (product(n, i, 0)?, product(n, i, 1)?);
            Ok((n.add(rc, is)?, n.sub(ic, rs)?))
        }
    }
}

fn stft(n: &mut Node) -> Convert<Vec<Val>> {
    let (mut x, step, window) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let onesided = n.flag("onesided", true)?;
    if n.rank(x)? == 2 {
        x = n.trailing(x, 1)?;
    }
    let scalar = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.reshape(e, &[])?;
        n.cast(e, DType::I64)
    };
    let step = scalar(n, step)?;
    let signal = n.size(x, 1, DType::I64)?;
    let length = match (n.opt(3)?, window) {
        (Some(l), _) => scalar(n, l)?,
        (None, Some(w)) => n.size(w, 0, DType::I64)?,
        (None, None) => signal,
    };
    // Places of the frames' elements: constants, where steps and lengths are.
    let room = n.sub(signal, length)?;
    let more = n.bin("floor_divide", room, step)?;
    let frames = n.with("add", more, 1.0)?;
    let range = |n: &mut Node, end: ExprId| -> Convert {
        let (zero, one) = (n.c(end, 0.0)?, n.c(end, 1.0)?);
        n.op("arange", &[zero, end, one], &[("dtype", DType::I64.into())])
    };
    let (f, t) = (range(n, frames)?, range(n, length)?);
    let starts = n.mul(f, step)?;
    let starts = n.trailing(starts, 1)?;
    let places = n.add(starts, t)?;
    let (real, imaginary) = parts(n, x)?;
    let framed = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.take(e, places, 1)?;
        match window {
            Some(w) => n.mul(e, w),
            None => Ok(e),
        }
    };
    let real = framed(n, real)?;
    let imaginary = match imaginary {
        Some(i) => Some(framed(n, i)?),
        None => None,
    };
    let (a, b) = transformed_while_running(n, (real, imaginary), length, onesided)?;
    let y = n.stack(&[a, b], 3)?;
    n.one(y)
}

fn mel_weights(n: &mut Node) -> Convert<Vec<Val>> {
    let Elem::Plain(to) = n.elem(n.int("output_datatype", 1)?)? else {
        return Err(n.refuse("weights of small types are not supported"));
    };
    let scalar = |n: &mut Node, i: usize| -> Convert {
        let e = n.x(i)?;
        let e = n.reshape(e, &[])?;
        n.cast(e, DType::F64)
    };
    let (bins, length, rate) = (scalar(n, 0)?, scalar(n, 1)?, scalar(n, 2)?);
    let (low, high) = (scalar(n, 3)?, scalar(n, 4)?);
    let mel = |n: &mut Node, hertz: ExprId| -> Convert {
        let v = n.with("divide", hertz, 700.0)?;
        let v = n.with("add", v, 1.0)?;
        let v = n.un("log10", v)?;
        n.with("multiply", v, 2595.0)
    };
    let (low, high) = (mel(n, low)?, mel(n, high)?);
    let width = n.sub(high, low)?;
    let edges = n.with("add", bins, 2.0)?;
    let step = n.div(width, edges)?;
    let one = n.c(bins, 1.0)?;
    let zero = n.c(bins, 0.0)?;
    let numbers = n.op("arange", &[zero, bins, one], &[("dtype", DType::F64.into())])?;
    let longer = n.with("add", length, 1.0)?;
    // The spectrum's place of an edge of each triangle: the left one, the middle, the right one.
    let edge = |n: &mut Node, offset: f64| -> Convert {
        let at = n.with("add", numbers, offset)?;
        let at = n.mul(at, step)?;
        let at = n.add(at, low)?;
        let at = n.with("divide", at, 2595.0)?;
        let at = n.from("power", 10.0, at)?;
        let at = n.with("subtract", at, 1.0)?;
        let at = n.with("multiply", at, 700.0)?;
        let at = n.mul(at, longer)?;
        let at = n.div(at, rate)?;
        n.un("floor", at)
    };
    let (left, middle, right) = (edge(n, 0.0)?, edge(n, 1.0)?, edge(n, 2.0)?);
    let count = n.with("multiply", length, 0.5)?;
    let count = n.un("floor", count)?;
    let count = n.with("add", count, 1.0)?;
    let rows = n.op("arange", &[zero, count, one], &[("dtype", DType::F64.into())])?;
    let rows = n.trailing(rows, 1)?;
    let ramp = |n: &mut Node, from: ExprId, to: ExprId, above: ExprId| -> Convert {
        let d = n.sub(to, from)?;
        let none = n.with("equal", d, 0.0)?;
        let one = n.c(d, 1.0)?;
        let d = n.select(none, one, d)?;
        n.div(above, d)
    };
    let up = n.sub(rows, left)?;
    let up = ramp(n, left, middle, up)?;
    let down = n.sub(right, rows)?;
    let down = ramp(n, middle, right, down)?;
    let (after_left, to_middle) = (n.bin("greater_equal", rows, left)?, n.bin("less_equal", rows, middle)?);
    let rising = n.bin("logical_and", after_left, to_middle)?;
    let (from_middle, before_right) = (n.bin("greater_equal", rows, middle)?, n.bin("less", rows, right)?);
    let falling = n.bin("logical_and", from_middle, before_right)?;
    // A rise of no width is one at its place.
    let (same, here) = (n.bin("equal", left, middle)?, n.bin("equal", rows, middle)?);
    let peak = n.bin("logical_and", same, here)?;
    let (zero, one) = (n.c(up, 0.0)?, n.c(up, 1.0)?);
    let y = n.select(rising, up, zero)?;
    let y = n.select(peak, one, y)?;
    let y = n.select(falling, down, y)?;
    let y = n.cast(y, to)?;
    n.one(y)
}
