//! Operators that ONNX Runtime's optimizer makes of several.

use super::{
    super::{
        Row,
        activation::gelu,
        conv::{biased, convolved},
        math::scaled_product,
    },
    activated, own,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] = &[
    own("BiasAdd", |n| {
        let (x, bias, skip) = (n.x(0)?, n.x(1)?, n.x(2)?);
        let y = n.add(x, bias)?;
        let y = n.add(y, skip)?;
        n.one(y)
    }),
    own("BiasGelu", |n| gelu_of_sum(n, false)),
    own("BiasSoftmax", bias_softmax),
    own("FastGelu", |n| gelu_of_sum(n, true)),
    own("FusedConv", fused_conv),
    own("FusedGemm", fused_gemm),
    own("FusedMatMul", |n| fused_matmul(n, None)),
    own("FusedMatMulActivation", |n| {
        let numbers = numbers_of_activation(n)?;
        fused_matmul(n, Some(numbers))
    }),
    own("Gelu", |n| gelu_of_sum(n, false)),
    own("MatMulNBits", matmul_of_bits),
    own("NhwcConv", nhwc_conv),
    own("NhwcFusedConv", nhwc_conv),
    own("QuickGelu", |n| {
        let (x, alpha) = (n.x(0)?, n.float("alpha", 1.702f32.into())?);
        let scaled = n.with("multiply", x, alpha)?;
        let gate = n.un("sigmoid", scaled)?;
        let y = n.mul(x, gate)?;
        n.one(y)
    }),
    own("TransposeMatMul", |n| fused_matmul(n, None)),
];

/// The Gaussian error linear unit of the inputs' sum; the second one may be left out.
fn gelu_of_sum(n: &mut Node, tanh: bool) -> Convert<Vec<Val>> {
    let (mut x, bias) = (n.x(0)?, n.opt(1)?);
    if let Some(b) = bias {
        x = n.add(x, b)?;
    }
    let y = gelu(n, x, tanh)?;
    n.one(y)
}

fn bias_softmax(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, bias) = (n.x(0)?, n.x(1)?);
    let rank = n.rank(x)?;
    let axis = n.int("axis", 1)?;
    let axis = n.axis_of(axis, rank)?;
    // Bias lacks axes before the softmax's own, or has extent 1 there, unless it is repeated within a batch.
    n.ensure(n.int("is_inner_broadcast", 0)? == 0 || n.rank(bias)? == rank, || {
        "a bias that is repeated within a batch should have all axes".into()
    })?;
    let sum = n.add(x, bias)?;
    let axes: Vec<usize> = (axis..rank).collect();
    // Axes from there on are one.
    let high = n.reduce("max", sum, &axes, true)?;
    let less = n.sub(sum, high)?;
    let e = n.un("exp", less)?;
    let total = n.reduce("sum", e, &axes, true)?;
    let y = n.div(e, total)?;
    n.one(y)
}

/// The numbers of the activation that `activation_alpha`, `activation_beta` and `activation_gamma` give.
fn numbers_of_activation(n: &Node) -> Convert<Vec<f64>> {
    let all = ["activation_alpha", "activation_beta", "activation_gamma"];
    let all = all.iter().map(|name| n.opt_float(name)).collect::<Convert<Vec<_>>>()?;
    Ok(all.into_iter().map_while(|v| v).collect())
}

fn fused_gemm(n: &mut Node) -> Convert<Vec<Val>> {
    let y = scaled_product(n)?;
    let (name, numbers) = (n.text("activation", "")?, numbers_of_activation(n)?);
    let y = activated(n, y, &name, &numbers)?;
    n.one(y)
}

fn fused_matmul(n: &mut Node, activation: Option<Vec<f64>>) -> Convert<Vec<Val>> {
    let (mut x, mut y) = (n.x(0)?, n.x(1)?);
    for (e, swapped, batched) in [(&mut x, "transA", "transBatchA"), (&mut y, "transB", "transBatchB")] {
        let rank = n.rank(*e)?;
        if n.flag(batched, false)? && rank > 2 {
            // The first axis goes behind those of the batch.
            let axes: Vec<usize> = (1..rank - 1).chain([0, rank - 1]).collect();
            *e = n.transpose(*e, &axes)?;
        }
        if n.flag(swapped, false)? && rank > 1 {
            let axes: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            *e = n.transpose(*e, &axes)?;
        }
    }
    let alpha = n.float("alpha", 1.0)?;
    let mut z = n.matmul(x, y, None)?;
    if alpha != 1.0 {
        z = n.with("multiply", z, alpha)?;
    }
    if let Some(numbers) = activation {
        let name = n.text("activation", "")?;
        z = activated(n, z, &name, &numbers)?;
    }
    n.one(z)
}

fn fused_conv(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias, sum) = (n.x(0)?, n.x(1)?, n.opt(2)?, n.opt(3)?);
    let y = convolved(n, x, w, None)?;
    let mut y = biased(n, y, bias)?;
    if let Some(s) = sum {
        y = n.add(y, s)?;
    }
    let (name, numbers) = (n.text("activation", "")?, n.floats("activation_params")?.unwrap_or_default());
    let y = activated(n, y, &name, &numbers)?;
    n.one(y)
}

/// Channels before the spatial axes.
pub(super) fn channels_first(n: &mut Node, x: ExprId) -> Convert {
    let rank = n.rank(x)?;
    n.ensure(rank > 2, || "its input should have a batch, channels and spatial axes".into())?;
    let axes: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    n.transpose(x, &axes)
}

/// Channels behind the spatial axes.
pub(super) fn channels_last(n: &mut Node, x: ExprId) -> Convert {
    n.axis_to_last(x, 1)
}

fn nhwc_conv(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias, sum) = (n.x(0)?, n.x(1)?, n.opt(2)?, n.opt(3)?);
    let x = channels_first(n, x)?;
    let y = convolved(n, x, w, None)?;
    let y = biased(n, y, bias)?;
    let mut y = channels_last(n, y)?;
    if let Some(s) = sum {
        y = n.add(y, s)?;
    }
    let (name, numbers) = (n.text("activation", "")?, n.floats("activation_params")?.unwrap_or_default());
    let y = activated(n, y, &name, &numbers)?;
    n.one(y)
}

/// The numbers of so many bits that bytes hold along the last axis, the lowest bits first, in a type of their own.
fn unpacked(n: &mut Node, bytes: ExprId, bits: i64, to: DType) -> Convert {
    if bits == 8 {
        return n.cast(bytes, to);
    }
    let mask = (1i64 << bits) - 1;
    let bytes = n.cast(bytes, DType::I32)?;
    let mut parts = Vec::new();
    for k in 0..8 / bits {
        let moved = if k == 0 { bytes } else { n.with("right_shift", bytes, (k * bits) as f64)? };
        parts.push(n.with("bitwise_and", moved, mask as f64)?);
    }
    let shape = n.shape(bytes)?;
    let y = n.stack(&parts, shape.len())?;
    let (&last, lead) = shape.split_last().ok_or_else(|| n.refuse("its bytes should have axes"))?;
    let y = n.reshape(y, &[lead, &[last * 8 / bits]].concat())?;
    n.cast(y, to)
}

/// Outputs are in blocks of at most so many: bytes of a cache line.
const OUTPUTS: i64 = 64;
/// There are at least so many outputs in a block, where need be of none.
const LEAST_OUTPUTS: i64 = 16;

/// A matrix of (rows, columns) as (rows / c, columns, c), with more rows where `rows` says so.
fn in_blocks(n: &mut Node, x: ExprId, rows: i64, c: i64) -> Convert {
    let shape = n.shape(x)?;
    let (given, columns) = (shape[0], shape[1]);
    let mut x = x;
    if given < rows {
        let (dtype, empty) = (n.dtype(x)?, [(rows - given) as usize, columns as usize]);
        let more = n.constant(Tensor::zeros(dtype, &empty));
        x = n.concat(&[x, more], 0)?;
    }
    let x = n.reshape(x, &[rows / c, c, columns])?;
    n.transpose(x, &[0, 2, 1])
}

/// A product with weights of a few bits, of which blocks along the summed axis have scales of their own.
fn matmul_of_bits(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, b, scales, zeros) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?);
    let bias = n.opt(5)?;
    let (rows, width) = (n.int("N", 0)?, n.int("K", 0)?);
    let (bits, block) = (n.int("bits", 4)?, n.int("block_size", 0)?);
    n.ensure(matches!(bits, 2 | 4 | 8), || format!("weights of {bits} bits are not supported"))?;
    n.ensure(rows > 0 && width > 0 && block > 0 && block * bits % 8 == 0, || {
        format!("its weights are {rows} by {width}, in blocks of {block}")
    })?;
    let blocks = (width + block - 1) / block;
    let elements = n.ty(b)?.elements();
    n.ensure(elements == Some(rows * blocks * (block * bits / 8)), || "its weights are of another size".into())?;
    let given = n.ty(x)?.shape.last().and_then(|d| d.known());
    n.ensure(given.is_none_or(|k| k == width), || format!("its input should have rows of {width}"))?;
    if let Some(groups) = n.opt(4)? {
        return matmul_of_groups(n, [rows, width, bits, blocks, block], groups);
    }
    let all = (rows + LEAST_OUTPUTS - 1) / LEAST_OUTPUTS * LEAST_OUTPUTS;
    let c = OUTPUTS.min(1 << all.trailing_zeros());
    let b = n.reshape(b, &[rows, blocks * (block * bits / 8)])?;
    let b = in_blocks(n, b, all, c)?;
    let scales = n.reshape(scales, &[rows, blocks])?;
    let (mut offset, dtype) = (None, n.dtype(scales)?);
    let zeros = match zeros {
        None => None,
        Some(z) if n.dtype(z)? == DType::U8 => {
            let z = n.reshape(z, &[rows, (blocks * bits + 7) / 8])?;
            let z = unpacked(n, z, bits, DType::U8)?;
            Some(n.slice(z, 1, 0, blocks)?)
        }
        // Zero points that are no integers: (q - z) * s is (q - 0) * s, and z * s less for all of a block.
        Some(z) => {
            let z = n.cast(z, dtype)?;
            let z = n.reshape(z, &[rows, blocks])?;
            offset = Some(n.mul(z, scales)?);
            let none = Tensor::zeros(DType::U8, &[rows as usize, blocks as usize]);
            Some(n.constant(none))
        }
    };
    let zeros = match zeros {
        None => n.constant(Tensor::from_slice(&[1, 1, 1], &[1u8 << (bits - 1)])),
        Some(z) => in_blocks(n, z, all, c)?,
    };
    let by_block = in_blocks(n, scales, all, c)?;
    // Blocks are whole: what the last one has beyond the width is multiplied by nothing.
    let beyond = blocks * block - width;
    let rank = n.rank(x)?;
    let after: Vec<i64> = (0..rank).map(|i| if i + 1 == rank { beyond } else { 0 }).collect();
    let nothing = n.c(x, 0.0)?;
    let padded = n.pad(x, &vec![0; rank], &after, nothing)?;
    let mut y = n.op("nn.dense_nbits", &[padded, b, by_block, zeros], &[("bits", bits.into())])?;
    if all > rows {
        y = n.slice(y, rank - 1, 0, rows)?;
    }
    if let Some(offset) = offset {
        let sums = sums_of_blocks(n, padded, blocks, block)?;
        let (dtype, offset) = (n.dtype(sums)?, n.transpose(offset, &[1, 0])?);
        let offset = n.cast(offset, dtype)?;
        let less = n.matmul(sums, offset, None)?;
        y = n.sub(y, less)?;
    }
    if let Some(b) = bias {
        y = n.add(y, b)?;
    }
    n.one(y)
}

/// The same, where each column says which scale and zero point it has: weights are widened.
fn matmul_of_groups(n: &mut Node, [rows, width, bits, blocks, block]: [i64; 5], groups: ExprId) -> Convert<Vec<Val>> {
    let (x, b, scales, zeros, bias) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?, n.opt(5)?);
    let dtype = n.dtype(scales)?;
    let groups = n.slice(groups, 0, 0, width)?;
    let b = n.reshape(b, &[rows, blocks * (block * bits / 8)])?;
    let b = unpacked(n, b, bits, dtype)?;
    let b = n.slice(b, 1, 0, width)?;
    let middle = 2f64.powi(bits as i32 - 1);
    let b = match zeros {
        None => n.with("subtract", b, middle)?,
        Some(z) => {
            let z = match n.dtype(z)? {
                DType::U8 => {
                    let z = n.reshape(z, &[rows, (blocks * bits + 7) / 8])?;
                    unpacked(n, z, bits, dtype)?
                }
                _ => {
                    let z = n.reshape(z, &[rows, blocks])?;
                    n.cast(z, dtype)?
                }
            };
            let z = n.take(z, groups, 1)?;
            n.sub(b, z)?
        }
    };
    let scales = n.reshape(scales, &[rows, blocks])?;
    let scales = n.take(scales, groups, 1)?;
    let w = n.mul(b, scales)?;
    let w = n.transpose(w, &[1, 0])?;
    let mut y = n.matmul(x, w, None)?;
    if let Some(b) = bias {
        y = n.add(y, b)?;
    }
    n.one(y)
}

/// The sums of the blocks of each row.
fn sums_of_blocks(n: &mut Node, x: ExprId, blocks: i64, block: i64) -> Convert {
    let rank = n.rank(x)?;
    let shape: Vec<i64> = (0..rank - 1).map(|_| 0).chain([blocks, block]).collect();
    let by_block = n.op("reshape", &[x], &[("newshape", shape.into())])?;
    n.reduce("sum", by_block, &[rank], false)
}
