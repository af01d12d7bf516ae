//! Operators on quantized tensors: an integer q stands for the number `scale * (q - zero_point)`.

mod concat;
mod contract;
mod elementwise;
mod fixed;
mod fixed_high;
mod params;
mod quantize;
mod rescale;
mod simulated;
mod site;
mod unary;

pub use fixed::{fixed_point, tflite_scaled};

pub(super) use fixed::OPS as FIXED;
pub(super) use rescale::OPS as RESCALED;
pub(super) use simulated::ANNOTATED;
pub(super) use site::dialect as sites;

use super::Dialect;

/// The dialect of quantized operators.
pub(super) fn dialect() -> Dialect {
    Dialect::new("qnn")
        .family(quantize::OPS)
        .family(contract::OPS)
        .family(elementwise::OPS)
        .family(concat::OPS)
        .family(unary::OPS)
        .family(simulated::OPS)
        .rules("rules/qnn.rules", include_str!("../../../../../rules/qnn.rules"))
        .rules("rules/qnn-simplify.rules", include_str!("../../../../../rules/qnn-simplify.rules"))
}
