//! Layers that `quantize("int8")` has changed: their kernels are bytes, and inputs are quantized while the model runs.

use serde_json::Value as Json;

use super::{super::call::Call, operation::rounded};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// How inputs become bytes.
struct Quantizer {
    least: f64,
    most: f64,
    /// What is added to the greatest size, so that it is not 0.
    epsilon: f64,
}

/// The quantizer that the layer's configuration says; `None` where inputs stay floats. Files of before Keras 3.13 say nothing of it.
fn quantizer(c: &Call) -> Convert<Option<Quantizer>> {
    let usual = Quantizer { least: -127.0, most: 127.0, epsilon: 1e-7 };
    let Some(config) = c.layer.get("quantization_config").filter(|v| !v.is_null()) else { return Ok(Some(usual)) };
    let Some(given) = config.get("config").and_then(|c| c.get("activation_quantizer")) else {
        return Err(c.refuse("its quantization does not say how inputs are quantized"));
    };
    if given.is_null() {
        return Ok(None);
    }
    let own = given.get("config");
    let number = |v: Option<&Json>| v.and_then(Json::as_f64);
    let range = own.and_then(|c| c.get("value_range")).map(super::super::layer::plain);
    let (least, most) = (number(range.and_then(|r| r.get(0))), number(range.and_then(|r| r.get(1))));
    let class = given.get("class_name").and_then(Json::as_str).unwrap_or_default();
    match (class, least, most, number(own.and_then(|c| c.get("epsilon")))) {
        ("AbsMaxQuantizer", Some(least), Some(most), Some(epsilon)) if -128.0 <= least && most <= 127.0 => {
            Ok(Some(Quantizer { least, most, epsilon }))
        }
        _ => Err(c.refuse(format!("its quantizer of inputs `{class}` is not supported"))),
    }
}

/// The product of the last axis with a turned kernel (outputs, inputs) of bytes; `scale` is what each output's column was multiplied by.
pub(super) fn product(c: &mut Call, x: ExprId, kernel: ExprId, scale: ExprId) -> Convert {
    let Some(Quantizer { least, most, epsilon }) = quantizer(c)? else {
        let kernel = c.cast(kernel, DType::F32)?;
        let y = c.dense(x, kernel)?;
        return c.bin("divide", y, scale);
    };
    let size = c.un("abs", x)?;
    let size = c.op("max", &[size], &[("axis", [-1].into()), ("keepdims", true.into())])?;
    let size = c.with("add", size, epsilon)?;
    let most_of_bytes = c.number(size, most)?;
    let factor = c.bin("divide", most_of_bytes, size)?;
    let q = c.bin("multiply", x, factor)?;
    let q = rounded(c, q)?;
    let q = c.op("clip", &[q], &[("a_min", least.into()), ("a_max", most.into())])?;
    let q = c.cast(q, DType::I8)?;
    let (zero, one) = (c.s.b.scalar(DType::I32, 0.0), c.s.b.scalar(DType::F32, 1.0));
    let sums = c.op("qnn.dense", &[q, kernel, zero, zero, one, one], &[("out_dtype", DType::I32.into())])?;
    let y = c.cast(sums, DType::F32)?;
    let both = c.bin("multiply", scale, factor)?;
    c.bin("divide", y, both)
}
