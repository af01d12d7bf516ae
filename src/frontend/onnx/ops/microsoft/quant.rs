//! Products of quantized numbers whose results are floats.

use super::{
    super::{
        Row,
        quant::{centred, dequantize, dynamically_quantized, quantize},
    },
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
    own("DequantizeLinear", dequantize),
    own("DynamicQuantizeMatMul", dynamic_matmul),
    own("MatMulInteger16", matmul_of_16),
    own("MatMulIntegerToFloat", matmul_to_float),
    own("QuantizeLinear", quantize),
];

/// The product of integers by the product of their scales, and a bias.
fn scaled(
    n: &mut Node,
    a: (ExprId, ExprId, Option<ExprId>),
    b: (ExprId, ExprId, Option<ExprId>),
    bias: Option<ExprId>,
) -> Convert<Vec<Val>> {
    let (x, y) = (centred(n, a.0, a.2, true)?, centred(n, b.0, b.2, false)?);
    let sum = n.matmul(x, y, Some(DType::I32))?;
    let scale = if n.rank(a.1)? == 1 && n.dims(a.1)?[0] != Some(1) { n.trailing(a.1, 1)? } else { a.1 };
    let factor = n.mul(scale, b.1)?;
    let sum = n.cast(sum, n.dtype(factor)?)?;
    // A scale in a vector of its own adds no axes.
    let factor = if n.ty(factor)?.elements() == Some(1) { n.reshape(factor, &[])? } else { factor };
    let mut y = n.mul(sum, factor)?;
    if let Some(b) = bias {
        y = n.add(y, b)?;
    }
    n.one(y)
}

fn matmul_to_float(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b, sa, sb) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?);
    let (za, zb, bias) = (n.opt(4)?, n.opt(5)?, n.opt(6)?);
    scaled(n, (a, sa, za), (b, sb, zb), bias)
}

fn dynamic_matmul(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, b, sb, zb, bias) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?, n.opt(4)?);
    let [a, sa, za] = dynamically_quantized(n, x)?;
    scaled(n, (a, sa, Some(za)), (b, sb, zb), bias)
}

fn matmul_of_16(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b) = (n.x(0)?, n.x(1)?);
    let (a, b) = (n.cast(a, DType::I32)?, n.cast(b, DType::I32)?);
    let y = n.matmul(a, b, Some(DType::I32))?;
    n.one(y)
}
