//! Normalization.

use super::{super::node::Node, Results, unary};
use crate::ir::ExprId;

/// L2_NORMALIZATION along the last axis.
pub(in crate::frontend::tflite) fn l2(n: &mut Node) -> Results {
    let quantized = n.quantized()?;
    let x = if quantized { unary::widened(n, 0)? } else { n.x(0)? };
    let square = n.bin("multiply", x, x)?;
    let sum = n.op("sum", &[square], &[("axis", [-1].into()), ("keepdims", true.into())])?;
    let norm = n.un("sqrt", sum)?;
    let norm = n.with("maximum", norm, 1e-6)?;
    let e = n.bin("divide", x, norm)?;
    if !quantized {
        return Ok(vec![e]);
    }
    let ((scale, zero), dtype) = (n.quant_out(0)?, n.out_dtype(0)?);
    Ok(vec![unary::narrowed(n, e, scale, zero, dtype)?])
}

/// LOCAL_RESPONSE_NORMALIZATION along the last axis.
pub(in crate::frontend::tflite) fn local_response(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (radius, bias, alpha, beta) = (n.int(0, 0), n.number(1) as f64, n.number(2) as f64, n.number(3) as f64);
    if !(0..1 << 20).contains(&radius) {
        return n.refuse(format!("a radius of {radius} has no meaning"));
    }
    let size = 2 * radius + 1;
    let attrs = [
        ("size", size.into()),
        ("axis", 3.into()),
        ("bias", bias.into()),
        // Relay divides by the size of the window.
        ("alpha", (alpha * size as f64).into()),
        ("beta", beta.into()),
    ];
    Ok(vec![n.op("nn.lrn", &[x], &attrs)?])
}

/// LOG_SOFTMAX along the last axis.
pub(in crate::frontend::tflite) fn log_softmax(n: &mut Node) -> Results {
    let quantized_ = n.quantized()?;
    let x: ExprId = if quantized_ { unary::widened(n, 0)? } else { n.x(0)? };
    let e = n.op("nn.log_softmax", &[x], &[("axis", (-1).into())])?;
    if !quantized_ {
        return Ok(vec![e]);
    }
    let ((scale, zero), dtype) = (n.quant_out(0)?, n.out_dtype(0)?);

    Ok(vec![unary::narrowed(n, e, scale, zero, dtype)?])
}
