//! Operators between quantized numbers: each takes scales and zero points beside its operands, and gives quantized numbers.

use super::{
    super::{
        Row,
        math::round_even,
        pool::{averaged, global_axes},
        quant::{centred, qlinear_conv, requantized},
    },
    fused::{channels_first, channels_last},
    own,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] = &[
    own("QGemm", gemm),
    own("QLinearAdd", |n| binary(n, "add")),
    own("QLinearAveragePool", average_pool),
    own("QLinearConcat", concat),
    own("QLinearConv", conv),
    own("QLinearGlobalAveragePool", global_average_pool),
    own("QLinearLeakyRelu", |n| {
        let alpha = n.float("alpha", 0.01f32.into())?;
        unary(n, |n, x| n.op("nn.leaky_relu", &[x], &[("alpha", alpha.into())]))
    }),
    own("QLinearMul", |n| binary(n, "multiply")),
    own("QLinearReduceMean", reduce_mean),
    own("QLinearSigmoid", |n| unary(n, |n, x| n.un("sigmoid", x))),
    own("QLinearSoftmax", softmax),
    own("QLinearWhere", choose),
];

/// The numbers that input `i` means by the scale and zero point after it.
fn real(n: &mut Node, i: usize) -> Convert {
    let (x, zero) = (n.x(i)?, n.opt(i + 2)?);
    let scale = scalar(n, i + 1)?;
    real_of(n, x, scale, zero)
}

fn real_of(n: &mut Node, x: ExprId, scale: ExprId, zero: Option<ExprId>) -> Convert {
    let zero = zero.map(|z| n.reshape(z, &[])).transpose()?;
    let x = centred(n, x, zero, false)?;
    let x = n.cast(x, DType::F32)?;
    n.mul(x, scale)
}

/// Input `i` without axes.
fn scalar(n: &mut Node, i: usize) -> Convert {
    let x = n.x(i)?;
    n.reshape(x, &[])
}

/// Numbers as elements of the scale that input `i` is; the zero point comes after it, and where it is left out is that of `dtype`.
fn stepped(n: &mut Node, y: ExprId, i: usize, dtype: DType) -> Convert {
    let scale = scalar(n, i)?;
    let zero = n.opt(i + 1)?.map(|z| n.reshape(z, &[])).transpose()?;
    let scaled = n.div(y, scale)?;
    let mut r = round_even(n, scaled)?;
    if let Some(z) = zero {
        let z = n.cast(z, DType::F32)?;
        r = n.add(r, z)?;
    }
    let (low, high) = dtype.int_range().ok_or_else(|| n.refuse("its result should be integers"))?;
    let y = n.op("clip", &[r], &[("a_min", (low as f64).into()), ("a_max", (high as f64).into())])?;
    let y = n.cast(y, DType::I32)?;
    n.cast(y, dtype)
}

fn unary(n: &mut Node, f: impl FnOnce(&mut Node, ExprId) -> Convert) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let (dtype, x) = (n.dtype(x)?, real(n, 0)?);
    let y = f(n, x)?;
    let y = stepped(n, y, 3, dtype)?;
    n.one(y)
}

fn binary(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let a = n.x(0)?;
    let (dtype, a, b) = (n.dtype(a)?, real(n, 0)?, real(n, 3)?);
    let y = n.bin(name, a, b)?;
    let y = stepped(n, y, 6, dtype)?;
    n.one(y)
}

fn choose(n: &mut Node) -> Convert<Vec<Val>> {
    let (condition, a) = (n.x(0)?, n.x(1)?);
    let (dtype, a, b) = (n.dtype(a)?, real(n, 1)?, real(n, 4)?);
    let y = n.select(condition, a, b)?;
    let y = stepped(n, y, 7, dtype)?;
    n.one(y)
}

fn softmax(n: &mut Node) -> Convert<Vec<Val>> {
    let (axis, version) = (n.int("axis", -1)?, n.int("opset", 13)?);
    unary(n, |n, x| {
        let rank = n.rank(x)?;
        let axis = n.axis_of(axis, rank)?;
        if version >= 13 {
            return n.op("nn.softmax", &[x], &[("axis", (axis as i64).into())]);
        }
        let shape = n.shape_of(x)?;
        let m = n.flattened(x, axis)?;
        let y = n.op("nn.softmax", &[m], &[("axis", 1.into())])?;
        n.reshape_to(y, shape)
    })
}

fn reduce_mean(n: &mut Node) -> Convert<Vec<Val>> {
    let (axes, keep) = (n.ints("axes")?, n.flag("keepdims", true)?);
    unary(n, |n, x| {
        let rank = n.rank(x)?;
        let axes = match axes {
            Some(a) => a.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?,
            None => (0..rank).collect(),
        };
        n.reduce("mean", x, &axes, keep)
    })
}

/// What is done to a tensor with channels before the spatial axes, whose node may have them last.
fn in_layout(n: &mut Node, x: ExprId, f: impl FnOnce(&mut Node, ExprId) -> Convert) -> Convert {
    if !n.flag("channels_last", false)? {
        return f(n, x);
    }
    let x = channels_first(n, x)?;
    let y = f(n, x)?;
    channels_last(n, y)
}

fn global_average_pool(n: &mut Node) -> Convert<Vec<Val>> {
    unary(n, |n, x| {
        in_layout(n, x, |n, x| {
            let axes = global_axes(n, x)?;
            n.reduce("mean", x, &axes, true)
        })
    })
}

fn average_pool(n: &mut Node) -> Convert<Vec<Val>> {
    unary(n, |n, x| in_layout(n, x, averaged))
}

fn concat(n: &mut Node) -> Convert<Vec<Val>> {
    let (axis, count) = (n.int("axis", 0)?, n.inputs.len());
    n.ensure(count >= 5 && (count - 2).is_multiple_of(3), || format!("it has {count} inputs"))?;
    let first = n.x(2)?;
    let (dtype, axis) = (n.dtype(first)?, n.axis_of(axis, n.rank(first)?)?);
    let parts = (2..count).step_by(3).map(|i| real(n, i)).collect::<Convert<Vec<_>>>()?;
    let y = n.concat(&parts, axis)?;
    let y = stepped(n, y, 0, dtype)?;
    n.one(y)
}

fn conv(n: &mut Node) -> Convert<Vec<Val>> {
    let last = n.flag("channels_last", false)?;
    qlinear_conv(
        n,
        |n, x| if last { channels_first(n, x) } else { Ok(x) },
        |n, y| if last { channels_last(n, y) } else { Ok(y) },
    )
}

fn gemm(n: &mut Node) -> Convert<Vec<Val>> {
    let all = [0, 1, 2, 3, 4, 5].map(|i| if i % 3 == 2 { n.opt(i) } else { n.x(i).map(Some) });
    let [Some(a), Some(sa), za, Some(b), Some(sb), zb] = all.into_iter().collect::<Convert<Vec<_>>>()?[..] else {
        return Err(n.refuse("it lacks operands or scales"));
    };
    let (ta, tb) = (n.flag("transA", false)?, n.flag("transB", false)?);
    let alpha = n.float("alpha", 1.0)?;
    let za = za.map(|z| n.reshape(z, &[])).transpose()?;
    let (mut a, mut b) = (centred(n, a, za, false)?, {
        // Zero points of weights are for columns of the product.
        let zb = match zb {
            Some(z) if tb && n.ty(z)?.elements() != Some(1) => Some(n.trailing(z, 1)?),
            z => z,
        };
        centred(n, b, zb, false)?
    });
    if ta {
        a = n.transpose(a, &[1, 0])?;
    }
    if tb {
        b = n.transpose(b, &[1, 0])?;
    }
    let mut sum = n.matmul(a, b, Some(DType::I32))?;
    if let Some(c) = n.opt(6)? {
        sum = n.add(sum, c)?;
    }
    let mut factor = n.mul(sa, sb)?;
    if alpha != 1.0 {
        factor = n.with("multiply", factor, alpha)?;
    }
    let y = match (n.opt(7)?, n.opt(8)?) {
        (Some(sy), Some(zy)) => {
            let factor = n.div(factor, sy)?;
            requantized(n, sum, factor, zy)?
        }
        _ => {
            let sum = n.cast(sum, DType::F32)?;
            n.mul(sum, factor)?
        }
    };
    n.one(y)
}
