//! Products of quantized numbers whose results are floats.

use super::{
    super::{
        Row,
        quant::{dequantize, dynamically_quantized, product_of_quantized, quantize},
        recurrent::dynamically_quantized_lstm,
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
    own("DynamicQuantizeLSTM", dynamically_quantized_lstm),
    own("DynamicQuantizeMatMul", dynamic_matmul),
    own("MatMulInteger16", matmul_of_16),
    own("MatMulIntegerToFloat", matmul_to_float),
    own("QuantizeLinear", quantize),
];

fn matmul_to_float(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b, sa, sb) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?);
    let (za, zb, bias) = (n.opt(4)?, n.opt(5)?, n.opt(6)?);
    let y = product_of_quantized(n, (a, sa, za), (b, sb, zb))?;
    with_bias(n, y, bias)
}

fn with_bias(n: &mut Node, y: ExprId, bias: Option<ExprId>) -> Convert<Vec<Val>> {
    let y = match bias {
        Some(b) => n.add(y, b)?,
        None => y,
    };
    n.one(y)
}

fn dynamic_matmul(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, b, sb, zb, bias) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?, n.opt(4)?);
    let [a, sa, za] = dynamically_quantized(n, x)?;
    let y = product_of_quantized(n, (a, sa, Some(za)), (b, sb, zb))?;
    with_bias(n, y, bias)
}

fn matmul_of_16(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b) = (n.x(0)?, n.x(1)?);
    let (a, b) = (n.cast(a, DType::I32)?, n.cast(b, DType::I32)?);
    let y = n.matmul(a, b, Some(DType::I32))?;
    n.one(y)
}
