//! Normalization. What Keras computes in float32, whatever the layer's type is, is computed so here.

use super::{
    super::{
        call::{Arg, Call, as_float},
        layer::{ints, numbers},
    },
    Class, Masks, class,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("BatchNormalization", Masks::Pass, batch),
    class("SyncBatchNormalization", Masks::Pass, batch),
    class("LayerNormalization", Masks::Pass, layer),
    class("GroupNormalization", Masks::Pass, group),
    class("RMSNormalization", Masks::Own, rms),
    class("UnitNormalization", Masks::Pass, unit),
    class("SpectralNormalization", Masks::Own, spectral),
    class("Normalization", Masks::Pass, normalization),
];

/// What Keras divides by at least.
const EPSILON: f64 = 1e-7;

/// float32, or float64 where the data is that.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The axes that a field names, ascending.
fn axes_of(c: &Call, rank: usize, key: &str) -> Convert<Vec<usize>> {
    let given = c.layer.get(key).and_then(ints).unwrap_or_else(|| vec![-1]);
    let mut axes = given.iter().map(|&a| c.axis(a, rank)).collect::<Convert<Vec<usize>>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// A vector of the layer, or one of equal numbers.
fn vector(c: &mut Call, index: Option<usize>, name: &str, otherwise: (f64, i64)) -> Convert {
    match index {
        Some(index) => c.wide_weight(index, name),
        None => {
            let dtype = wide(c.layer.policy()?.compute);
            let (value, n) = otherwise;
            let n = c.count(n)?;
            Ok(c.constant(Tensor::from_f64_fn(dtype, &[n], |_| value)))
        }
    }
}

fn batch(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let axes = axes_of(c, rank, "axis")?;
    let [axis] = axes[..] else { return Err(c.refuse("normalization along several axes is not supported")) };
    let n = c.extent(x, axis)?;
    let (scale, center) = (c.layer.bool("scale", true), c.layer.bool("center", true));
    let mut next = 0;
    let mut number = |there: bool| {
        next += there as usize;
        there.then(|| next - 1)
    };
    let (gamma, beta, mean, variance) = (number(scale), number(center), number(true), number(true));
    let gamma = vector(c, gamma, "gamma", (1.0, n))?;
    let beta = vector(c, beta, "beta", (0.0, n))?;
    let mean = vector(c, mean, "moving_mean", (0.0, n))?;
    let variance = vector(c, variance, "moving_variance", (1.0, n))?;
    let dtype = c.dtype(x)?;
    let x = c.cast(x, wide(dtype))?;
    let attrs = [
        ("axis", (axis as i64).into()),
        ("epsilon", c.layer.float("epsilon", 1e-3)?.into()),
        ("center", center.into()),
        ("scale", scale.into()),
    ];
    let y = c.op("nn.batch_norm", &[x, gamma, beta, mean, variance], &attrs)?;
    let y = c.s.b.field(y, 0);
    c.cast(y, dtype).map(Arg::of)
}

/// A weight of the shape of some axes, with extents of 1 for the others.
fn spread(c: &mut Call, w: ExprId, axes: &[usize], rank: usize) -> Convert {
    let known = c.shape(w)?;
    let mut shape = vec![1; rank];
    if known.len() != axes.len() {
        return Err(c.refuse(format!("an array of it has {} axes, not {}", known.len(), axes.len())));
    }
    for (&axis, n) in axes.iter().zip(known) {
        shape[axis] = n.unwrap_or(1);
    }
    // Leading axes come by broadcasting.
    let first = shape.iter().position(|&n| n != 1).unwrap_or(rank.saturating_sub(1));
    c.reshape(w, &shape[first..])
}

fn signed(axes: &[usize]) -> Vec<i64> {
    axes.iter().map(|&a| a as i64).collect()
}

fn layer(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let axes = axes_of(c, rank, "axis")?;
    let dtype = c.dtype(x)?;
    let x = c.cast(x, wide(dtype))?;
    let epsilon = c.layer.float("epsilon", 1e-3)?;
    if c.layer.bool("rms_scaling", false) {
        let gamma = c.wide_weight(0, "gamma")?;
        let gamma = spread(c, gamma, &axes, rank)?;
        let mean = c.reduce("mean", x, &signed(&axes), true)?;
        let variance = c.op("variance", &[x, mean], &[("axis", signed(&axes).into()), ("keepdims", true.into())])?;
        let inverse = inverse_root(c, variance, epsilon)?;
        let y = c.bin("multiply", x, inverse)?;
        let y = c.bin("multiply", y, gamma)?;
        return c.cast(y, dtype).map(Arg::of);
    }
    let (scale, center) = (c.layer.bool("scale", true), c.layer.bool("center", true));
    let gamma = scale.then_some(0);
    let beta = center.then_some(scale as usize);
    let y = if let [axis] = axes[..] {
        let n = c.extent(x, axis)?;
        let gamma = vector(c, gamma, "gamma", (1.0, n))?;
        let beta = vector(c, beta, "beta", (0.0, n))?;
        let attrs = [
            ("axis", (axis as i64).into()),
            ("epsilon", epsilon.into()),
            ("center", center.into()),
            ("scale", scale.into()),
        ];
        c.op("nn.layer_norm", &[x, gamma, beta], &attrs)?
    } else {
        let mut y = standardized(c, x, &signed(&axes), epsilon)?;
        if let Some(gamma) = gamma {
            let gamma = c.wide_weight(gamma, "gamma")?;
            let gamma = spread(c, gamma, &axes, rank)?;
            y = c.bin("multiply", y, gamma)?;
        }
        if let Some(beta) = beta {
            let beta = c.wide_weight(beta, "beta")?;
            let beta = spread(c, beta, &axes, rank)?;
            y = c.bin("add", y, beta)?;
        }
        y
    };
    c.cast(y, dtype).map(Arg::of)
}

/// 1 / sqrt(x + epsilon).
fn inverse_root(c: &mut Call, x: ExprId, epsilon: f64) -> Convert {
    let x = c.with("add", x, epsilon)?;
    c.un("rsqrt", x)
}

/// (x - mean) / sqrt(variance + epsilon) over some axes.
fn standardized(c: &mut Call, x: ExprId, axes: &[i64], epsilon: f64) -> Convert {
    let mean = c.reduce("mean", x, axes, true)?;
    let variance = c.op("variance", &[x, mean], &[("axis", axes.into()), ("keepdims", true.into())])?;
    let inverse = inverse_root(c, variance, epsilon)?;
    let y = c.bin("subtract", x, mean)?;
    c.bin("multiply", y, inverse)
}

fn group(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let [axis] = axes_of(c, rank, "axis")?[..] else { return Err(c.refuse("its axis is not one")) };
    let channels = c.extent(x, axis)?;
    let groups = match c.layer.get("groups") {
        None => 32,
        Some(_) => c.layer.int("groups")?,
    };
    let groups = if groups == -1 { channels } else { groups };
    if groups < 1 || channels % groups != 0 || axis == 0 {
        return Err(c.refuse(format!("{groups} groups do not divide {channels} channels")));
    }
    let dtype = c.dtype(x)?;
    let x = c.cast(x, wide(dtype))?;
    // The axis as groups and what is in each.
    let mut shape = vec![0; axis];
    shape.extend([-4, groups, channels / groups, -2]);
    let y = c.reshape(x, &shape)?;
    let reduced: Vec<i64> = (1..=rank as i64).filter(|&a| a != axis as i64).collect();
    let epsilon = c.layer.float("epsilon", 1e-3)?;
    let y = standardized(c, y, &reduced, epsilon)?;
    let mut shape = vec![0; axis];
    shape.extend([-3, -2]);
    let mut y = c.reshape(y, &shape)?;
    let scale = c.layer.bool("scale", true);
    if scale {
        let gamma = c.wide_weight(0, "gamma")?;
        let gamma = spread(c, gamma, &[axis], rank)?;
        y = c.bin("multiply", y, gamma)?;
    }
    if c.layer.bool("center", true) {
        let beta = c.wide_weight(scale as usize, "beta")?;
        let beta = spread(c, beta, &[axis], rank)?;
        y = c.bin("add", y, beta)?;
    }
    c.cast(y, dtype).map(Arg::of)
}

fn rms(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let axes = axes_of(c, rank, "axis")?;
    let dtype = c.dtype(x)?;
    let x = c.cast(x, wide(dtype))?;
    let epsilon = c.layer.float("epsilon", 1e-6)?;
    let scale = c.wide_weight(0, "scale")?;
    let scale = spread(c, scale, &axes, rank)?;
    let y = root_mean_square(c, x, &signed(&axes), epsilon)?;
    let y = c.bin("multiply", y, scale)?;
    c.cast(y, dtype).map(Arg::of)
}

/// x / sqrt(mean of x^2 + epsilon) over some axes.
pub(super) fn root_mean_square(c: &mut Call, x: ExprId, axes: &[i64], epsilon: f64) -> Convert {
    let squares = c.bin("multiply", x, x)?;
    let mean = c.reduce("mean", squares, axes, true)?;
    let inverse = inverse_root(c, mean, epsilon)?;
    c.bin("multiply", x, inverse)
}

fn unit(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let axes = axes_of(c, rank, "axis")?;
    unit_length(c, x, &signed(&axes), 1e-12).map(Arg::of)
}

/// x / max(its length over some axes, epsilon).
pub(super) fn unit_length(c: &mut Call, x: ExprId, axes: &[i64], epsilon: f64) -> Convert {
    c.op("nn.l2_normalize", &[x], &[("eps", (epsilon * epsilon).into()), ("axis", axes.into())])
}

/// At inference the kernel is as it was left by training.
fn spectral(c: &mut Call) -> Convert<Arg> {
    let mut inner = c.layer.inner("layer")?;
    c.place(&mut inner, &["layer"]);
    let (args, kwargs) = (c.args.clone(), c.kwargs.clone());
    c.call_inner(&inner.shared(), args, kwargs)
}

fn normalization(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let (rank, compute) = (c.rank(x)?, c.layer.policy()?.compute);
    let x = c.cast(x, compute)?;
    let axes = match c.layer.get("axis") {
        None => Vec::new(),
        Some(_) => axes_of(c, rank, "axis")?,
    };
    let mean = statistic(c, "mean", 0, &axes, rank)?;
    let variance = statistic(c, "variance", 1, &axes, rank)?;
    let deviation = Tensor::from_f64_fn(compute, variance.shape(), |i| variance.get_f64(i).sqrt().max(EPSILON));
    let mean = c.constant(as_float(&mean, compute));
    let deviation = c.constant(deviation);
    let y = if c.layer.bool("invert", false) {
        let y = c.bin("multiply", x, deviation)?;
        c.bin("add", y, mean)?
    } else {
        let y = c.bin("subtract", x, mean)?;
        c.bin("divide", y, deviation)?
    };
    Ok(Arg::of(y))
}

/// The mean or variance: from the configuration, or learnt from data.
fn statistic(c: &mut Call, key: &str, index: usize, axes: &[usize], rank: usize) -> Convert<Tensor> {
    let found = match c.layer.get(key).cloned() {
        Some(json) => {
            let given = numbers(&json).ok_or_else(|| c.refuse(format!("its `{key}` is not numbers")))?;
            Tensor::from_f64_fn(DType::F32, given.shape(), |i| given.get_f64(i))
        }
        None => c.array(index, key)?,
    };
    if found.len() == 1 {
        return Ok(found.reshaped(&[]));
    }
    let elements = found.len();
    let shape = found.shape().to_vec();
    let wanted: Vec<usize> = match shape.len() == rank {
        true => shape,
        false => {
            let mut given = shape.into_iter().filter(|&n| n != 1);
            let of = |axis: usize| if axes.contains(&axis) { given.next().unwrap_or(1) } else { 1 };
            (0..rank).map(of).collect()
        }
    };
    match wanted.iter().product::<usize>() == elements {
        true => Ok(found.reshaped(&wanted)),
        false => Err(c.refuse(format!("its `{key}` has {elements} numbers, which do not fit its input"))),
    }
}
