//! ONNX Runtime's own operators, the domain `com.microsoft`, as exporters, its optimizer and its quantizer write them.

pub(super) mod attention;
pub(super) mod fused;
pub(super) mod grouped;
pub(super) mod norm;
pub(super) mod qlinear;
pub(super) mod quant;

use super::{Converter, Row, row_of};
use crate::{
    frontend::{Convert, onnx::node::Node},
    ir::ExprId,
};

/// The domain's name.
pub(super) const DOMAIN: &str = "com.microsoft";

/// An operator of the domain.
const fn own(op: &'static str, convert: Converter) -> Row {
    row_of(DOMAIN, op, convert)
}

/// An activation that another operator ends with, by its name and numbers.
fn activated(n: &mut Node, y: ExprId, name: &str, numbers: &[f64]) -> Convert {
    let number = |i: usize, default: f64| numbers.get(i).copied().unwrap_or(default);
    match name {
        "" => Ok(y),
        "Relu" => n.un("nn.relu", y),
        "Tanh" => n.un("tanh", y),
        "Sigmoid" => n.un("sigmoid", y),
        "LeakyRelu" => n.op("nn.leaky_relu", &[y], &[("alpha", number(0, 0.01f32.into()).into())]),
        "Clip" => {
            let (low, high) = (number(0, f32::MIN.into()), number(1, f32::MAX.into()));
            n.op("clip", &[y], &[("a_min", low.into()), ("a_max", high.into())])
        }
        "HardSigmoid" => {
            let scaled = n.with("multiply", y, number(0, 0.2f32.into()))?;
            let moved = n.with("add", scaled, number(1, 0.5))?;
            n.op("clip", &[moved], &[("a_min", 0.0.into()), ("a_max", 1.0.into())])
        }
        other => Err(n.refuse(format!("the activation `{other}` is not supported"))),
    }
}

/// Refuses attributes that are set, of which the converter knows nothing.
fn refuse_set(n: &Node, attributes: &[&str]) -> Convert<()> {
    for name in attributes {
        n.ensure(n.int(name, 0)? == 0, || format!("its attribute `{name}` is not supported"))?;
    }
    Ok(())
}
