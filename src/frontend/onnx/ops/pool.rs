//! Pooling.

use super::{
    Row,
    conv::{Windows, numbered, windows, windows_over, with_lead},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("AveragePool", average_pool),
    row("GlobalAveragePool", |n| global(n, "mean")),
    row("GlobalLpPool", global_lp_pool),
    row("GlobalMaxPool", |n| global(n, "max")),
    row("LpPool", lp_pool),
    row("MaxPool", max_pool),
    row("MaxUnpool", max_unpool),
];

/// The windows of a pool over a tensor.
struct Pool {
    /// The tensor, padded already where padding depends on extents that are not known.
    x: ExprId,
    at: Windows,
    /// Padding at the end that `ceil_mode` adds so that the last windows fit.
    added: Vec<i64>,
    /// Whether Relay's operator adds it, since extents are not known.
    ceil: bool,
}

impl Pool {
    /// Of a tensor that is padded with `value`.
    fn new(n: &mut Node, x: ExprId, value: impl FnOnce(&mut Node) -> Convert) -> Convert<Pool> {
        let kernel = n.ints("kernel_shape")?.ok_or_else(|| n.refuse("its attribute `kernel_shape` is not given"))?;
        n.ensure(kernel.iter().all(|&k| k > 0), || "its windows are empty".into())?;
        let ceil = n.flag("ceil_mode", false)?;
        let given = x;
        let (x, at) = windows_over(n, x, kernel, value)?;
        let mut pool = Pool { x, added: vec![0; at.kernel.len()], at, ceil: false };
        // What was padded for whole windows has no others.
        if !ceil || x != given {
            return Ok(pool);
        }
        let Pool { at, added, .. } = &mut pool;
        let dims = n.dims(x)?;
        let reach = |k: usize| (at.kernel[k] - 1) * at.dilations[k] + 1;
        let of_spatial = 0..at.kernel.len();
        // Relay's last window may begin in the padding after, ONNX' does not.
        let may_differ = of_spatial.clone().any(|k| at.pads.1[k] + at.strides[k] > reach(k));
        if !may_differ && dims[2..].contains(&None) {
            pool.ceil = true;
            return Ok(pool);
        }
        for k in of_spatial {
            let (extent, step) = (n.extent(x, k + 2)?, at.strides[k]);
            let room = extent + at.pads.0[k] + at.pads.1[k] - reach(k);
            let mut count = (room + step - 1).div_euclid(step) + 1;
            // No window begins in the padding after.
            if (count - 1) * step >= extent + at.pads.0[k] {
                count -= 1;
            }
            added[k] = ((count - 1) * step - room).max(0);
        }
        Ok(pool)
    }

    /// All padding at the end, but for what Relay's operator adds.
    fn after(&self) -> Vec<i64> {
        plus(&self.at.pads.1, &self.added)
    }

    /// Refuses where only Relay's operators know where windows end.
    fn with_known_end(&self, n: &Node) -> Convert<()> {
        match self.ceil {
            true => n.shape(self.x).map(drop),
            false => Ok(()),
        }
    }
}

fn plus(a: &[i64], b: &[i64]) -> Vec<i64> {
    a.iter().zip(b).map(|(x, y)| x + y).collect()
}

/// A pool of Relay's, over the spatial axes of a tensor.
fn pooled(n: &mut Node, name: &str, x: ExprId, pool: &Pool, attrs: &[(&str, bool)]) -> Convert {
    let at = &pool.at;
    let name = numbered(n, name, at.kernel.len())?;
    let mut all = vec![
        ("pool_size", at.kernel.clone().into()),
        ("strides", at.strides.clone().into()),
        ("dilation", at.dilations.clone().into()),
        ("padding", [at.pads.0.clone(), pool.after()].concat().into()),
        ("ceil_mode", pool.ceil.into()),
    ];
    all.extend(attrs.iter().map(|&(k, v)| (k, v.into())));
    n.op(&name, &[x], &all)
}

/// The least value of an element type.
fn least(n: &mut Node, x: ExprId) -> Convert {
    let dtype = n.dtype(x)?;
    Ok(match dtype.int_range() {
        Some((low, _)) => n.constant(Tensor::from_i64_fn(dtype, &[], |_| low as i64)),
        None => n.im.b.scalar(dtype, f64::NEG_INFINITY),
    })
}

fn max_pool(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let pool = Pool::new(n, x, |n| least(n, x))?;
    let (x, at, after) = (pool.x, &pool.at, pool.after());
    let y = if at.kernel.len() > 3 {
        pool.with_known_end(n)?;
        let low = least(n, x)?;
        let padded = n.pad(x, &with_lead(&at.pads.0), &with_lead(&after), low)?;
        let w = windowed(n, padded, at)?;
        let axes: Vec<usize> = (at.kernel.len() + 2..2 * at.kernel.len() + 2).collect();
        n.reduce("max", w, &axes, false)?
    } else {
        pooled(n, "nn.max_pool#d", x, &pool, &[])?
    };
    let mut outputs = vec![n.out(y)?];
    if n.wants(1) {
        let places = places_of_greatest(n, x, at, &after)?;
        outputs.push(n.out(places)?);
    }
    Ok(outputs)
}

/// All windows over the spatial axes of a tensor that is padded already: the windows' own axes come last.
fn windowed(n: &mut Node, x: ExprId, at: &Windows) -> Convert {
    let count = at.kernel.len();
    let mut y = x;
    for k in 0..count {
        let extent = n.extent(y, k + 2)?;
        let reach = (at.kernel[k] - 1) * at.dilations[k] + 1;
        let steps = (extent - reach).div_euclid(at.strides[k]) + 1;
        n.ensure(steps > 0, || "the window does not fit its input".into())?;
        let of = |i: i64| (i / at.kernel[k]) * at.strides[k] + (i % at.kernel[k]) * at.dilations[k];
        let places: Vec<i64> = (0..steps * at.kernel[k]).map(of).collect();
        let places = n.constant(Tensor::from_slice(&[steps as usize, at.kernel[k] as usize], &places));
        y = n.take(y, places, k + 2)?;
        // The window's axis goes to the end.
        y = n.axis_to_last(y, k + 3)?;
    }
    Ok(y)
}

/// Where in a channel's data, flattened over all, the greatest of each window lies.
fn places_of_greatest(n: &mut Node, x: ExprId, at: &Windows, after: &[i64]) -> Convert {
    let shape = n.shape(x)?;
    let count = at.kernel.len();
    let column_major = n.int("storage_order", 0)? == 1;
    let space: Vec<i64> = shape[2..].to_vec();
    let (size, total) = (space.iter().product::<i64>(), shape.iter().product::<i64>());
    // The number of each element, as its type is laid out.
    let number = |i: usize| -> i64 {
        if !column_major {
            return i as i64;
        }
        let (outer, mut inner) = (i as i64 / size, i as i64 % size);
        let mut at = vec![0; space.len()];
        for k in (0..space.len()).rev() {
            at[k] = inner % space[k];
            inner /= space[k];
        }
        outer * size + (0..space.len()).rev().fold(0, |acc, k| acc * space[k] + at[k])
    };
    let numbers: Vec<i64> = (0..total as usize).map(number).collect();
    let extents: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
    let numbers = n.constant(Tensor::from_slice(&extents, &numbers));
    let (before, after) = (with_lead(&at.pads.0), with_lead(after));
    let low = least(n, x)?;
    let x = n.pad(x, &before, &after, low)?;
    let none = n.c(numbers, -1.0)?;
    let numbers = n.pad(numbers, &before, &after, none)?;
    let (wx, wn) = (windowed(n, x, at)?, windowed(n, numbers, at)?);
    let lead = n.shape(wx)?[..count + 2].to_vec();
    let flat = [lead.as_slice(), &[-1]].concat();
    let (wx, wn) = (n.reshape(wx, &flat)?, n.reshape(wn, &flat)?);
    let axis = count + 2;
    let best = n.op("argmax", &[wx], &[("axis", [axis as i64].into()), ("keepdims", true.into())])?;
    let picked = n.op("gather", &[wn, best], &[("axis", (axis as i64).into())])?;
    n.squeeze(picked, &[axis])
}

fn average_pool(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let y = averaged(n, x)?;
    n.one(y)
}

/// Averages over the windows that the node's attributes place.
pub(super) fn averaged(n: &mut Node, x: ExprId) -> Convert {
    let padded = n.flag("count_include_pad", false)?;
    let given = x;
    let pool = Pool::new(n, x, |n| n.c(x, 0.0))?;
    let Pool { x, at, added, .. } = &pool;
    let (x, after) = (*x, pool.after());
    let is_plain = at.kernel.len() <= 3 && at.dilations.iter().all(|&d| d == 1);
    if is_plain && x != given && !padded {
        // How much of each window counts is a mean, too: of ones that are padded alike.
        let ones = n.op("ones_like", &[given], &[])?;
        let ones = Pool::new(n, ones, |n| n.c(given, 0.0))?;
        let [sums, counts] = [(x, &pool), (ones.x, &ones)]
            .map(|(x, pool)| pooled(n, "nn.avg_pool#d", x, pool, &[("count_include_pad", true)]));
        return n.div(sums?, counts?);
    }
    if is_plain && (added.iter().all(|&a| a == 0) || !padded) {
        return pooled(n, "nn.avg_pool#d", x, &pool, &[("count_include_pad", padded)]);
    }
    pool.with_known_end(n)?;
    // Sums over windows, divided by how much of each counts.
    let (dtype, shape) = (n.dtype(x)?, n.shape(x)?);
    let extents: Vec<usize> = shape.iter().enumerate().map(|(i, &d)| if i < 2 { 1 } else { d as usize }).collect();
    let mut ones = n.constant(Tensor::from_f64_fn(dtype, &extents, |_| 1.0));
    let zero = n.c(x, 0.0)?;
    let one = n.c(x, 1.0)?;
    let inner = if padded { one } else { zero };
    ones = n.pad(ones, &with_lead(&at.pads.0), &with_lead(&at.pads.1), inner)?;
    let none = vec![0; at.kernel.len()];
    ones = n.pad(ones, &with_lead(&none), &with_lead(added), zero)?;
    let x = n.pad(x, &with_lead(&at.pads.0), &with_lead(&after), zero)?;
    let axes: Vec<usize> = (at.kernel.len() + 2..2 * at.kernel.len() + 2).collect();
    let (wx, wo) = (windowed(n, x, at)?, windowed(n, ones, at)?);
    let sum = n.reduce("sum", wx, &axes, false)?;
    let counts = n.reduce("sum", wo, &axes, false)?;
    n.div(sum, counts)
}

fn root(n: &mut Node, x: ExprId, p: f64) -> Convert {
    match p {
        1.0 => Ok(x),
        2.0 => n.un("sqrt", x),
        p => n.with("power", x, 1.0 / p),
    }
}

fn raised(n: &mut Node, x: ExprId, p: f64) -> Convert {
    let magnitude = n.un("abs", x)?;
    match p {
        1.0 => Ok(magnitude),
        2.0 => n.mul(x, x),
        p => n.with("power", magnitude, p),
    }
}

fn exponent(n: &Node) -> Convert<f64> {
    match n.version {
        1 => n.float("p", 2.0),
        _ => Ok(n.int("p", 2)? as f64),
    }
}

fn lp_pool(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let pool = Pool::new(n, x, |n| n.c(x, 0.0))?;
    // What is padded with is 0 in every power.
    let (x, at) = (pool.x, &pool.at);
    pool.with_known_end(n)?;
    let p = exponent(n)?;
    let powers = raised(n, x, p)?;
    if at.kernel.len() <= 3 {
        // Sums are means over as many elements as windows have, of whatever extent the axes are.
        let mean = pooled(n, "nn.avg_pool#d", powers, &pool, &[("count_include_pad", true)])?;
        let sum = n.with("multiply", mean, at.kernel.iter().product::<i64>() as f64)?;
        let y = root(n, sum, p)?;
        return n.one(y);
    }
    let zero = n.c(x, 0.0)?;
    let powers = n.pad(powers, &with_lead(&at.pads.0), &with_lead(&pool.after()), zero)?;
    let w = windowed(n, powers, at)?;
    let axes: Vec<usize> = (at.kernel.len() + 2..2 * at.kernel.len() + 2).collect();
    let sum = n.reduce("sum", w, &axes, false)?;
    let y = root(n, sum, p)?;
    n.one(y)
}

fn global_lp_pool(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let p = exponent(n)?;
    let powers = raised(n, x, p)?;
    let axes: Vec<usize> = (2..n.rank(x)?).collect();
    let sum = n.reduce("sum", powers, &axes, true)?;
    let y = root(n, sum, p)?;
    n.one(y)
}

fn global(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let axes = global_axes(n, x)?;
    let y = n.reduce(name, x, &axes, true)?;
    n.one(y)
}

/// The spatial axes.
pub(super) fn global_axes(n: &Node, x: ExprId) -> Convert<Vec<usize>> {
    Ok((2..n.rank(x)?).collect())
}

fn max_unpool(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, places) = (n.x(0)?, n.x(1)?);
    let given = n.opt(2)?;
    let shape = n.shape(x)?;
    let kernel = n.ints("kernel_shape")?.ok_or_else(|| n.refuse("its attribute `kernel_shape` is not given"))?;
    let at = windows(n, x, kernel)?;
    let inferred: Vec<i64> = (0..at.kernel.len())
        .map(|k| (shape[k + 2] - 1) * at.strides[k] + at.kernel[k] - at.pads.0[k] - at.pads.1[k])
        .collect();
    let own = [&shape[..2], &inferred].concat();
    // Places count within the extents that the windows give, also where the result is larger: the rest of it is zeros.
    let total: i64 = own.iter().product();
    let empty = n.constant(Tensor::zeros(n.dtype(x)?, &[total.max(0) as usize]));
    let (flat, places) = (n.reshape(x, &[-1])?, n.reshape(places, &[-1])?);
    let places = n.cast(places, DType::I64)?;
    let y = n.op("scatter_elements", &[empty, places, flat], &[("axis", 0.into())])?;
    let mut y = n.reshape(y, &own)?;
    if let Some(e) = given {
        let to = n.cast(e, DType::I64)?;
        let own = n.im.b.ints(&own);
        let missing = n.sub(to, own)?;
        let none = n.c(missing, 0.0)?;
        let none = n.mul(missing, none)?;
        let widths = n.stack(&[none, missing], 1)?;
        let zero = n.c(y, 0.0)?;
        y = n.op("dyn.nn.pad", &[y, widths, zero], &[("pad_width", AttrValue::ints(&[]))])?;
    }
    n.one(y)
}
