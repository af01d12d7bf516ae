//! Normalizations.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[
    row("BatchNormalization", batch_normalization),
    row("GroupNormalization", group_normalization),
    row("InstanceNormalization", instance_normalization),
    row("LRN", lrn),
    row("LayerNormalization", layer_normalization),
    row("LpNormalization", lp_normalization),
    row("MeanVarianceNormalization", mean_variance),
    row("RMSNormalization", rms_normalization),
];

/// A vector of channels, for tensors of that rank.
fn channels(n: &mut Node, v: ExprId, rank: usize) -> Convert {
    n.trailing(v, rank.saturating_sub(2))
}

/// Mean and variance over axes, which are kept.
pub(super) fn moments(n: &mut Node, x: ExprId, axes: &[usize]) -> Convert<(ExprId, ExprId)> {
    let mean = n.reduce("mean", x, axes, true)?;
    let less = n.sub(x, mean)?;
    let squares = n.mul(less, less)?;
    Ok((mean, n.reduce("mean", squares, axes, true)?))
}

/// (x - mean) / sqrt(variance + epsilon); the square root's reciprocal comes too.
pub(super) fn normalized(
    n: &mut Node,
    x: ExprId,
    mean: ExprId,
    variance: ExprId,
    epsilon: f64,
) -> Convert<(ExprId, ExprId)> {
    let sum = n.with("add", variance, epsilon)?;
    let root = n.un("sqrt", sum)?;
    let less = n.sub(x, mean)?;
    let y = n.div(less, root)?;
    Ok((y, root))
}

fn batch_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale, bias, mean, variance) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?, n.x(4)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let rank = n.rank(x)?;
    let training = if n.version >= 14 {
        n.flag("training_mode", false)?
    } else {
        n.version < 7 && n.version > 1 && !n.flag("is_test", false)? && n.wants(1)
    };
    if !training {
        let dtype = n.dtype(x)?;
        let of_x = |n: &mut Node, v: ExprId| n.cast(v, dtype);
        let all = [of_x(n, scale)?, of_x(n, bias)?, of_x(n, mean)?, of_x(n, variance)?];
        if n.dtype(scale)? == dtype && n.dtype(mean)? == dtype {
            let y = n.op(
                "nn.batch_norm",
                &[x, all[0], all[1], all[2], all[3]],
                &[("axis", (rank.min(2) as i64 - 1).into()), ("epsilon", epsilon.into())],
            )?;
            let y = n.im.b.field(y, 0);
            return n.one(y);
        }
        let wide = n.cast(x, n.dtype(mean)?)?;
        let (m, v) = (channels(n, mean, rank)?, channels(n, variance, rank)?);
        let (y, _) = normalized(n, wide, m, v, epsilon)?;
        let (s, b) = (n.cast(scale, n.dtype(mean)?)?, n.cast(bias, n.dtype(mean)?)?);
        let (s, b) = (channels(n, s, rank)?, channels(n, b, rank)?);
        let y = n.mul(y, s)?;
        let y = n.add(y, b)?;
        let y = n.cast(y, dtype)?;
        return n.one(y);
    }
    let momentum = n.float("momentum", 0.9f32.into())?;
    let axes: Vec<usize> = (0..rank).filter(|&a| a != 1).collect();
    let (m, v) = moments(n, x, &axes)?;
    let (y, _) = normalized(n, x, m, v, epsilon)?;
    let (s, b) = (channels(n, scale, rank)?, channels(n, bias, rank)?);
    let y = n.mul(y, s)?;
    let y = n.add(y, b)?;
    let mut outputs = vec![n.out(y)?];
    for (old, new) in [(mean, m), (variance, v)] {
        let new = n.squeeze(new, &axes)?;
        let new = n.cast(new, n.dtype(old)?)?;
        let kept = n.with("multiply", old, momentum)?;
        let part = n.with("multiply", new, 1.0 - momentum)?;
        let running = n.add(kept, part)?;
        outputs.push(n.out(running)?);
    }
    Ok(outputs)
}

fn instance_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale, bias) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let rank = n.rank(x)?;
    let axes: Vec<usize> = (2..rank).collect();
    let (m, v) = moments(n, x, &axes)?;
    let (y, _) = normalized(n, x, m, v, epsilon)?;
    let (s, b) = (channels(n, scale, rank)?, channels(n, bias, rank)?);
    let y = n.mul(y, s)?;
    let y = n.add(y, b)?;
    n.one(y)
}

fn group_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale, bias) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let groups = n.int("num_groups", 1)?;
    let shape = n.shape_of(x)?;
    let (rank, count) = (n.rank(x)?, n.extent(x, 1)?);
    n.ensure(groups > 0 && count % groups == 0, || format!("{count} channels are not {groups} groups"))?;
    let dims = n.dims(x)?;
    let wide = n.cast(x, DType::F32)?;
    let grouped = match dims.iter().copied().collect::<Option<Vec<_>>>() {
        Some(d) => n.reshape(wide, &[d[0], groups, -1])?,
        None => n.op("reshape", &[wide], &[("newshape", [0, groups, -1].into())])?,
    };
    let (m, v) = moments(n, grouped, &[2])?;
    let (y, _) = normalized(n, grouped, m, v, epsilon)?;
    let y = n.reshape_to(y, shape)?;
    // Before version 21, scale and bias were one for each group.
    let each = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.cast(e, DType::F32)?;
        let e = match n.dims(e)?[0] {
            Some(d) if d == groups && d != count => {
                n.op("repeat", &[e], &[("repeats", (count / groups).into()), ("axis", 0.into())])?
            }
            _ => e,
        };
        channels(n, e, rank)
    };
    let (s, b) = (each(n, scale)?, each(n, bias)?);
    let y = n.mul(y, s)?;
    let y = n.add(y, b)?;
    let y = n.cast(y, n.dtype(x)?)?;
    n.one(y)
}

fn layer_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale, bias) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let (rank, dtype) = (n.rank(x)?, n.dtype(x)?);
    let axis = n.int("axis", -1)?;
    let axes: Vec<usize> = (n.axis_of(axis, rank)?..rank).collect();
    let within = n.elem(n.int("stash_type", 1)?)?.storage();
    let wide = n.cast(x, within)?;
    let (m, v) = moments(n, wide, &axes)?;
    let (y, root) = normalized(n, wide, m, v, epsilon)?;
    let y = n.cast(y, dtype)?;
    let mut y = n.mul(y, scale)?;
    if let Some(b) = bias {
        y = n.add(y, b)?;
    }
    let mut outputs = vec![n.out(y)?];
    if n.wants(1) || n.wants(2) {
        outputs.push(n.out(m)?);
        let inverse = n.from("divide", 1.0, root)?;
        outputs.push(n.out(inverse)?);
    }
    Ok(outputs)
}

fn rms_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale) = (n.x(0)?, n.x(1)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let (rank, dtype) = (n.rank(x)?, n.dtype(x)?);
    let axis = n.int("axis", -1)?;
    let axes: Vec<usize> = (n.axis_of(axis, rank)?..rank).collect();
    let within = n.elem(n.int("stash_type", 1)?)?.storage();
    let wide = n.cast(x, within)?;
    let squares = n.mul(wide, wide)?;
    let mean = n.reduce("mean", squares, &axes, true)?;
    let sum = n.with("add", mean, epsilon)?;
    let root = n.un("sqrt", sum)?;
    let y = n.div(wide, root)?;
    let y = n.cast(y, n.dtype(scale)?)?;
    let y = n.mul(y, scale)?;
    let y = n.cast(y, if n.dtype(scale)? == dtype { dtype } else { n.dtype(scale)? })?;
    n.one(y)
}

fn lp_normalization(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let axis = n.int("axis", -1)?;
    let axis = n.axis_of(axis, rank)?;
    let norm = match n.int("p", 2)? {
        1 => {
            let magnitude = n.un("abs", x)?;
            n.reduce("sum", magnitude, &[axis], true)?
        }
        2 => {
            let squares = n.mul(x, x)?;
            let sum = n.reduce("sum", squares, &[axis], true)?;
            n.un("sqrt", sum)?
        }
        p => return Err(n.refuse(format!("norms of order {p} are not supported"))),
    };
    // What has no length stays zero.
    let none = n.with("equal", norm, 0.0)?;
    let one = n.c(norm, 1.0)?;
    let safe = n.select(none, one, norm)?;
    let y = n.div(x, safe)?;
    n.one(y)
}

fn mean_variance(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let axes = n.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
    let (m, v) = moments(n, x, &axes)?;
    let less = n.sub(x, m)?;
    let root = n.un("sqrt", v)?;
    let below = n.with("add", root, 1e-9)?;
    let y = n.div(less, below)?;
    n.one(y)
}

fn lrn(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let size = n.int("size", 1)?;
    let (alpha, beta, bias) = (n.float("alpha", 1e-4f32.into())?, n.float("beta", 0.75)?, n.float("bias", 1.0)?);
    n.ensure((1..=1024).contains(&size), || format!("its size is {size}"))?;
    let channels = n.extent(x, 1)?;
    let rank = n.rank(x)?;
    let squares = n.mul(x, x)?;
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    (before[1], after[1]) = ((size - 1) / 2, size / 2);
    let zero = n.c(x, 0.0)?;
    let padded = n.pad(squares, &before, &after, zero)?;
    let mut sum = n.slice(padded, 1, 0, channels)?;
    for k in 1..size {
        let part = n.slice(padded, 1, k, k + channels)?;
        sum = n.add(sum, part)?;
    }
    let scaled = n.with("multiply", sum, alpha / size as f64)?;
    let moved = n.with("add", scaled, bias)?;
    let power = n.with("power", moved, beta)?;
    let y = n.div(x, power)?;
    n.one(y)
}
