//! Images of other sizes, as TensorFlow's kernels make them.
//!
//! Nearest and bilinear sampling are Relay's. For the others each output row (and column) is a sum of a few input rows, whose
//! weights follow from the sizes: a product with a matrix that is made here.

use super::{
    super::{
        call::{Arg, Call},
        layer::ints,
    },
    Class, Masks, class,
    reshape::repeat,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Resizing", Masks::Own, resizing),
    class("CenterCrop", Masks::Own, center_crop),
    class("UpSampling2D", Masks::Own, up_sampling),
    class("Rescaling", Masks::Pass, rescaling),
];

/// Matrices of more elements are refused.
const MOST_WEIGHTS: i64 = 1 << 26;

/// TensorFlow looks cubic weights up in a table of so many steps.
const CUBIC_STEPS: f32 = 1024.0;

fn rescaling(c: &mut Call) -> Convert<Arg> {
    let compute = c.layer.policy()?.compute;
    let x = c.input()?;
    let x = c.cast(x, compute)?;
    let mut y = x;
    for (op, key) in [("multiply", "scale"), ("add", "offset")] {
        let json = c.layer.get(key).cloned();
        y = match json {
            None => y,
            Some(json) if json.is_array() => {
                let values: Option<Vec<f64>> = json.as_array().into_iter().flatten().map(|v| v.as_f64()).collect();
                let values = values.ok_or_else(|| c.refuse(format!("its `{key}` is not numbers")))?;
                let vector = c.constant(Tensor::from_f64_fn(compute, &[values.len()], |i| values[i]));
                c.bin(op, y, vector)?
            }
            Some(_) => {
                let value = c.layer.float(key, 0.0)?;
                if op == "add" && value == 0.0 { y } else { c.with(op, y, value)? }
            }
        };
    }
    Ok(Arg::of(y))
}

fn up_sampling(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let sizes = c.layer.positive_sizes("size", 2, 2)?;
    let how = c.layer.str("interpolation").unwrap_or("nearest").to_owned();
    if how == "nearest" {
        return repeat(c, x, &sizes).map(Arg::of);
    }
    let [h, w] = image_axes(c, x)?;
    let size = [c.extent(x, h)?.saturating_mul(sizes[0]), c.extent(x, w)?.saturating_mul(sizes[1])];
    resized(c, x, size, &how, false).map(Arg::of)
}

/// The axes of height and width, of images with or without a batch.
fn image_axes(c: &Call, x: ExprId) -> Convert<[usize; 2]> {
    match (c.rank(x)?, c.layer.channels_last()) {
        (4, true) => Ok([1, 2]),
        (4, false) => Ok([2, 3]),
        (3, true) => Ok([0, 1]),
        (3, false) => Ok([1, 2]),
        (rank, _) => Err(c.refuse(format!("its input has {rank} axes, and is no image"))),
    }
}

fn target(c: &Call) -> Convert<[i64; 2]> {
    let size = [c.layer.int("height")?, c.layer.int("width")?];
    match size.iter().all(|n| (1..=1 << 20).contains(n)) {
        true => Ok(size),
        false => Err(c.refuse("its size is not positive")),
    }
}

fn resizing(c: &mut Call) -> Convert<Arg> {
    let size = target(c)?;
    fitted(c, size)
}

/// `keras.ops.image.resize`.
pub(super) fn operation(c: &mut Call) -> Convert<Arg> {
    match c.layer.get("size").and_then(ints).as_deref() {
        Some(&[h, w]) if h > 0 && w > 0 => fitted(c, [h, w]),
        _ => Err(c.refuse("its size is not two positive integers")),
    }
}

fn fitted(c: &mut Call, size: [i64; 2]) -> Convert<Arg> {
    let x = c.input()?;
    let x = if c.dtype(x)?.is_float() { x } else { c.cast(x, DType::F32)? };
    let how = c.layer.str("interpolation").unwrap_or("bilinear").to_owned();
    let antialias = c.layer.bool("antialias", false);
    let x = if c.layer.bool("crop_to_aspect_ratio", false) {
        cropped_to_ratio(c, x, size)?
    } else if c.layer.bool("pad_to_aspect_ratio", false) {
        padded_to_ratio(c, x, size)?
    } else {
        x
    };
    resized(c, x, size, &how, antialias).map(Arg::of)
}

/// float32's quotient, cut to an integer, as TensorFlow computes it.
fn quotient(a: i64, b: i64) -> i64 {
    (a as f32 / b as f32) as i64
}

/// The middle of the image with the ratio of the target's sides.
fn cropped_to_ratio(c: &mut Call, x: ExprId, [th, tw]: [i64; 2]) -> Convert {
    let [ah, aw] = image_axes(c, x)?;
    let (h, w) = (c.extent(x, ah)?, c.extent(x, aw)?);
    let ch = quotient(w * th, tw).min(h).max(1);
    let cw = quotient(h * tw, th).min(w).max(1);
    let (top, left) = (quotient(h - ch, 2), quotient(w - cw, 2));
    let x = c.slice(x, ah as i64, top, top + ch)?;
    c.slice(x, aw as i64, left, left + cw)
}

/// The image with borders, so that its sides have the target's ratio.
fn padded_to_ratio(c: &mut Call, x: ExprId, [th, tw]: [i64; 2]) -> Convert {
    let [ah, aw] = image_axes(c, x)?;
    let (h, w) = (c.extent(x, ah)?, c.extent(x, aw)?);
    let ph = quotient(w * th, tw).max(h);
    let pw = quotient(h * tw, th).max(w);
    let (top, left) = (quotient(ph - h, 2), quotient(pw - w, 2));
    let mut widths = vec![(0, 0); c.rank(x)?];
    (widths[ah], widths[aw]) = ((top, top), (left, left));
    let value = c.layer.float("fill_value", 0.0)?;
    c.pad(x, &widths, value)
}

fn center_crop(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let x = if c.dtype(x)?.is_float() { x } else { c.cast(x, DType::F32)? };
    let size = target(c)?;
    let [ah, aw] = image_axes(c, x)?;
    let (h, w) = (c.extent(x, ah)?, c.extent(x, aw)?);
    if h < size[0] || w < size[1] {
        let x = cropped_to_ratio(c, x, size)?;
        return resized(c, x, size, "bilinear", false).map(Arg::of);
    }
    let (top, left) = ((h - size[0]) / 2, (w - size[1]) / 2);
    let x = c.slice(x, ah as i64, top, top + size[0])?;
    c.slice(x, aw as i64, left, left + size[1]).map(Arg::of)
}

/// Images of another height and width.
pub(super) fn resized(c: &mut Call, x: ExprId, size: [i64; 2], how: &str, antialias: bool) -> Convert {
    let axes = image_axes(c, x)?;
    let known = [c.extent(x, axes[0])?, c.extent(x, axes[1])?];
    for n in known.into_iter().chain(size) {
        c.count(n)?;
    }
    if known == size {
        return Ok(x);
    }
    if how == "bilinear" && !antialias && c.rank(x)? == 4 {
        let attrs = [
            ("size", size.into()),
            ("layout", if axes[0] == 1 { "NHWC" } else { "NCHW" }.into()),
            ("method", "linear".into()),
            ("coordinate_transformation_mode", "half_pixel".into()),
        ];
        return c.op("image.resize2d", &[x], &attrs);
    }
    let mut y = x;
    for ((axis, n), m) in axes.into_iter().zip(known).zip(size) {
        y = along(c, y, axis, (n, m), how, antialias)?;
    }
    Ok(y)
}

/// One axis resized from `n` to `m` elements.
fn along(c: &mut Call, x: ExprId, axis: usize, (n, m): (i64, i64), how: &str, antialias: bool) -> Convert {
    if n < 1 || n.saturating_mul(m) > MOST_WEIGHTS {
        return Err(c.refuse(format!("resizing {n} rows to {m} is not supported")));
    }
    let (n, m) = (n as usize, m as usize);
    if how == "nearest" {
        let scale = n as f32 / m as f32;
        let places: Vec<i32> = (0..m).map(|i| (((i as f32 + 0.5) * scale) as usize).min(n - 1) as i32).collect();
        let places = c.constant(Tensor::from_slice(&[m], &places));
        return c.op("take", &[x, places], &[("axis", (axis as i64).into())]);
    }
    let rows = match (how, antialias) {
        ("area", _) => area(n, m),
        ("bicubic", false) => cubic(n, m),
        ("bilinear", _) => sampled(n, m, 1.0, antialias, |x| (1.0 - x.abs()).max(0.0)),
        ("bicubic", true) => sampled(n, m, 2.0, antialias, keys),
        ("lanczos3", _) => sampled(n, m, 3.0, antialias, |x| lanczos(x, 3.0)),
        ("lanczos5", _) => sampled(n, m, 5.0, antialias, |x| lanczos(x, 5.0)),
        _ => return Err(c.refuse(format!("its interpolation `{how}` is not supported"))),
    };
    let dtype = c.dtype(x)?;
    let mut flat = vec![0.0f32; n * m];
    for (i, row) in rows.into_iter().enumerate() {
        for (at, weight) in row {
            flat[i * n + at] += weight;
        }
    }
    let matrix = c.constant(Tensor::from_f64_fn(dtype, &[m, n], |i| flat[i] as f64));
    // The axis is brought to the end, and back.
    let rank = c.rank(x)?;
    let order: Vec<i64> = (0..rank).filter(|&a| a != axis).chain([axis]).map(|a| a as i64).collect();
    let mut back = vec![0; rank];
    for (to, &from) in order.iter().enumerate() {
        back[from as usize] = to as i64;
    }
    let y = c.transpose(x, &order)?;
    let y = c.dense(y, matrix)?;
    c.transpose(y, &back)
}

type Row = Vec<(usize, f32)>;

/// Means of what an output element covers.
fn area(n: usize, m: usize) -> Vec<Row> {
    let scale = n as f32 / m as f32;
    let row = |i: usize| {
        let (from, to) = (i as f32 * scale, (i as f32 + 1.0) * scale);
        let (first, last) = (from.floor() as usize, (to.ceil() as usize).min(n));
        let part = |j: usize| (to.min(j as f32 + 1.0) - from.max(j as f32)) / scale;
        (first..last.max(first + 1)).map(|j| (j.min(n - 1), part(j))).collect()
    };
    (0..m).map(row).collect()
}

/// Keys' cubic function, with weights from a table; neighbours that are not there have none.
fn cubic(n: usize, m: usize) -> Vec<Row> {
    let scale = n as f32 / m as f32;
    let table = |step: f32| {
        let x = step / CUBIC_STEPS;
        let a = -0.5f32;
        let near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let y = x + 1.0;
        let far = ((a * y - 5.0 * a) * y + 8.0 * a) * y - 4.0 * a;
        (near, far)
    };
    let row = |i: usize| {
        let at = (i as f32 + 0.5) * scale - 0.5;
        let first = at.floor();
        let step = ((at - first) * CUBIC_STEPS).round_ties_even();
        let ((near, far), (other_near, other_far)) = (table(step), table(CUBIC_STEPS - step));
        let weights = [(-1, far), (0, near), (1, other_near), (2, other_far)];
        let inside = weights.into_iter().filter_map(|(o, w)| {
            let at = first as i64 + o;
            (at >= 0 && at < n as i64).then_some((at as usize, w))
        });
        let inside: Row = inside.collect();
        let sum: f32 = inside.iter().map(|w| w.1).sum();
        inside.into_iter().map(|(at, w)| (at, if sum.abs() > 1e-30 { w / sum } else { w })).collect()
    };
    (0..m).map(row).collect()
}

/// A kernel of some radius around each place; stretched over all that an output covers, where it shall not alias.
fn sampled(n: usize, m: usize, radius: f32, antialias: bool, kernel: impl Fn(f32) -> f32) -> Vec<Row> {
    let scale = n as f32 / m as f32;
    let stretch = if antialias { scale.max(1.0) } else { 1.0 };
    let row = |i: usize| {
        let at = (i as f32 + 0.5) * scale;
        let first = ((at - radius * stretch - 0.5).ceil() as i64).max(0);
        let last = ((at + radius * stretch - 0.5).floor() as i64).min(n as i64 - 1);
        let weights: Row = (first..=last).map(|j| (j as usize, kernel((j as f32 + 0.5 - at) / stretch))).collect();
        let sum: f32 = weights.iter().map(|w| w.1).sum();
        weights.into_iter().map(|(j, w)| (j, if sum.abs() > 1e-30 { w / sum } else { w })).collect()
    };
    (0..m).map(row).collect()
}

fn keys(x: f32) -> f32 {
    match x.abs() {
        x if x >= 2.0 => 0.0,
        x if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        x => ((1.5 * x - 2.5) * x) * x + 1.0,
    }
}

fn lanczos(x: f32, radius: f32) -> f32 {
    let x = x.abs();
    if x > radius {
        return 0.0;
    }
    if x <= 1e-3 {
        return 1.0;
    }
    let pi = std::f32::consts::PI;
    radius * (pi * x).sin() * (pi * x / radius).sin() / (pi * pi * x * x)
}
