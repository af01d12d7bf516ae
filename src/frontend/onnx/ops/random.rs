//! Random numbers.
//!
//! ONNX leaves the generator open. A number here is a function of the node's seed, or of the name of its output where it has none, and of
//! its place in the tensor: a program gives the same numbers whenever it runs, for tensors of any size. Relay's own generator takes sizes
//! that are known only.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Bernoulli", bernoulli),
    row("Multinomial", multinomial),
    row("RandomNormal", |n| of_shape(n, normal)),
    row("RandomNormalLike", |n| like(n, normal)),
    row("RandomUniform", |n| of_shape(n, uniform)),
    row("RandomUniformLike", |n| like(n, uniform)),
];

/// The node's seed: FNV-1a of its bits, or of the output's name.
fn seed(n: &Node) -> Convert<u32> {
    let of = |bytes: &[u8]| bytes.iter().fold(0x811c_9dc5, |h: u32, &b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    Ok(match n.opt_float("seed")? {
        Some(seed) => of(&seed.to_bits().to_le_bytes()),
        None => of(n.proto.output.first().map_or(&[], |o| o.as_bytes())),
    })
}

/// Numbers from 0 to below 1, of 24 bits, for each place of a shape: the finalizer of MurmurHash3, twice.
fn unit(n: &mut Node, shape: ExprId, stream: u32) -> Convert {
    let seed = seed(n)?.wrapping_add(stream.wrapping_mul(0x9e37_79b9));
    let count = n.reduce("prod", shape, &[0], false)?;
    let (start, step) = (n.im.b.scalar(DType::I64, 0.0), n.im.b.scalar(DType::I64, 1.0));
    let places = n.op("arange", &[start, count, step], &[("dtype", DType::I64.into())])?;
    let mut h = n.cast(places, DType::U32)?;
    for key in [seed, seed.rotate_left(16) ^ 0x5bd1_e995] {
        h = n.with("bitwise_xor", h, key.into())?;
        for (shift, factor) in [(16, 0x85eb_ca6bu32), (13, 0xc2b2_ae35)] {
            h = folded(n, h, shift)?;
            h = n.with("multiply", h, factor.into())?;
        }
        h = folded(n, h, 16)?;
    }
    let h = n.with("right_shift", h, 8.0)?;
    let h = n.cast(h, DType::F32)?;
    let u = n.with("multiply", h, (0.5f64).powi(24))?;
    n.reshape_to(u, shape)
}

/// A number's bits, with higher ones laid over lower ones.
fn folded(n: &mut Node, h: ExprId, shift: u32) -> Convert {
    let high = n.with("right_shift", h, shift.into())?;
    n.bin("bitwise_xor", h, high)
}

fn uniform(n: &mut Node, shape: ExprId) -> Convert {
    let (low, high) = (n.float("low", 0.0)?, n.float("high", 1.0)?);
    let u = unit(n, shape, 0)?;
    let y = n.with("multiply", u, high - low)?;
    n.with("add", y, low)
}

/// By Box's and Muller's transform.
fn normal(n: &mut Node, shape: ExprId) -> Convert {
    let (mean, scale) = (n.float("mean", 0.0)?, n.float("scale", 1.0)?);
    let (u, v) = (unit(n, shape, 1)?, unit(n, shape, 2)?);
    let u = n.from("subtract", 1.0, u)?;
    let log = n.un("log", u)?;
    let square = n.with("multiply", log, -2.0)?;
    let radius = n.un("sqrt", square)?;
    let angle = n.with("multiply", v, std::f64::consts::TAU)?;
    let side = n.un("cos", angle)?;
    let y = n.mul(radius, side)?;
    let y = n.with("multiply", y, scale)?;
    n.with("add", y, mean)
}

type Draw = fn(&mut Node, ExprId) -> Convert;

fn of_shape(n: &mut Node, draw: Draw) -> Convert<Vec<Val>> {
    let shape = n.ints("shape")?.ok_or_else(|| n.refuse("it has no shape"))?;
    n.ensure(shape.iter().all(|&d| d >= 0), || format!("its shape is {shape:?}"))?;
    let dtype = n.dtype_attr("dtype", DType::F32)?;
    let shape = n.im.b.ints(&shape);
    let y = draw(n, shape)?;
    let y = n.cast(y, dtype)?;
    n.one(y)
}

fn like(n: &mut Node, draw: Draw) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let own = n.dtype(x)?;
    let dtype = n.dtype_attr("dtype", if own.is_float() { own } else { DType::F32 })?;
    let shape = n.shape_of(x)?;
    let y = draw(n, shape)?;
    let y = n.cast(y, dtype)?;
    n.one(y)
}

fn bernoulli(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let own = n.dtype(x)?;
    let dtype = n.dtype_attr("dtype", own)?;
    let shape = n.shape_of(x)?;
    let u = unit(n, shape, 0)?;
    let u = n.cast(u, own)?;
    let hit = n.bin("less", u, x)?;
    let y = n.cast(hit, dtype)?;
    n.one(y)
}

/// Classes drawn by Gumbel's trick: the greatest of log probabilities to which noise is added.
fn multinomial(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    n.ensure(n.rank(x)? == 2, || "its input should be rows of log probabilities".into())?;
    let samples = n.int("sample_size", 1)?;
    let dtype = n.dtype_attr("dtype", DType::I32)?;
    let x = n.cast(x, DType::F32)?;
    let shape = n.shape_of(x)?;
    let (rows, classes) = (n.slice(shape, 0, 0, 1)?, n.slice(shape, 0, 1, 2)?);
    let samples = n.constant(Tensor::from_slice(&[1], &[samples]));
    let shape = n.concat(&[rows, samples, classes], 0)?;
    let u = unit(n, shape, 0)?;
    // Away from 0, whose logarithm is none.
    let u = n.with("add", u, (0.5f64).powi(26))?;
    let e = n.un("log", u)?;
    let e = n.un("negative", e)?;
    let e = n.un("log", e)?;
    let x = n.expand(x, 1, 1)?;
    let noisy = n.sub(x, e)?;
    let y = n.op("argmax", &[noisy], &[("axis", [2].into())])?;
    let y = n.cast(y, dtype)?;
    n.one(y)
}
