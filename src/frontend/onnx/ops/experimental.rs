//! Operators that ONNX tried out and took back before version 10: old exporters, such as those of Core ML's models, write them.

use super::{Row, activation, row, shape};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    tensor::Tensor,
};

pub(super) const OPS: &[Row] = &[
    row("Affine", |n| {
        let (x, alpha, beta) = (n.x(0)?, n.float("alpha", 1.0)?, n.float("beta", 0.0)?);
        let y = n.with("multiply", x, alpha)?;
        let y = n.with("add", y, beta)?;
        n.one(y)
    }),
    row("Crop", crop),
    row("DynamicSlice", |n| {
        // What `Slice` became in version 10.
        n.version = 10;
        shape::slice(n)
    }),
    row("ImageScaler", image_scaler),
    row("ParametricSoftplus", |n| {
        let (x, alpha, beta) = (n.x(0)?, n.float("alpha", 1.0)?, n.float("beta", 1.0)?);
        let y = n.with("multiply", x, beta)?;
        let y = activation::softplus(n, y)?;
        let y = n.with("multiply", y, alpha)?;
        n.one(y)
    }),
    row("Scale", |n| {
        let (x, scale) = (n.x(0)?, n.float("scale", 1.0)?);
        let y = n.with("multiply", x, scale)?;
        n.one(y)
    }),
    row("ScaledTanh", |n| {
        let (x, alpha, beta) = (n.x(0)?, n.float("alpha", 1.0)?, n.float("beta", 1.0)?);
        let y = n.with("multiply", x, beta)?;
        let y = n.un("tanh", y)?;
        let y = n.with("multiply", y, alpha)?;
        n.one(y)
    }),
];

/// An image, NCHW, without its border: left, top, right, bottom; or with a size instead of what is cut on the right and at the bottom.
fn crop(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let border = n.ints("border")?.unwrap_or_default();
    let size = n.ints("scale")?.unwrap_or_default();
    n.ensure(n.rank(x)? == 4 && border.len() == 4, || "it should cut four borders of images".into())?;
    n.ensure(size.is_empty() || size.len() == 2, || format!("its size has {} extents", size.len()))?;
    let mut y = x;
    for (axis, before, after) in [(2, border[1], border[3]), (3, border[0], border[2])] {
        let extent = n.extent(x, axis)?;
        let end = size.get(axis - 2).map_or(extent - after, |s| before + s);
        n.ensure(0 <= before && before <= end && end <= extent, || {
            format!("places {before} to {end} are not within {extent}")
        })?;
        y = n.slice(y, axis, before, end)?;
    }
    n.one(y)
}

/// An image, NCHW, times a number, with a bias for each channel.
fn image_scaler(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale) = (n.x(0)?, n.float("scale", 1.0)?);
    let bias = n.floats("bias")?.unwrap_or_default();
    let mut y = n.with("multiply", x, scale)?;
    if !bias.is_empty() {
        let dtype = n.dtype(x)?;
        let b = n.constant(Tensor::from_f64_fn(dtype, &[bias.len(), 1, 1], |i| bias[i]));
        y = n.add(y, b)?;
    }
    n.one(y)
}
