//! The operators: a table of rows, a file for each family.

mod activation;
mod attention;
mod control;
mod conv;
mod convert;
mod data;
mod experimental;
mod gradient;
mod image;
mod lists;
mod logic;
mod loss;
mod math;
mod microsoft;
mod ml;
mod norm;
mod order;
mod pad;
mod pool;
mod quant;
mod random;
mod recurrent;
mod reduce;
mod repeat;
mod resize;
mod sequence;
mod shape;
mod signal;
mod split;
mod text;
mod training;
mod twister;

use super::{importer::Val, node::Node};
use crate::frontend::Convert;

/// What converts the nodes of an operator, in any version. Gives the node's outputs, in order; those at the end that no node
/// wants may be left out.
type Converter = fn(&mut Node) -> Convert<Vec<Val>>;

/// An operator.
pub(super) struct Row {
    /// Its domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Its name.
    pub op: &'static str,
    /// What converts its nodes.
    pub convert: Converter,
}

/// An operator of ONNX's own.
const fn row(op: &'static str, convert: Converter) -> Row {
    Row { domain: "", op, convert }
}

/// An operator of another domain.
const fn row_of(domain: &'static str, op: &'static str, convert: Converter) -> Row {
    Row { domain, op, convert }
}

/// Every family.
const FAMILIES: &[&[Row]] = &[
    activation::OPS,
    attention::OPS,
    control::OPS,
    conv::OPS,
    convert::OPS,
    data::OPS,
    experimental::OPS,
    gradient::OPS,
    image::OPS,
    logic::OPS,
    loss::OPS,
    math::OPS,
    microsoft::attention::OPS,
    microsoft::fused::OPS,
    microsoft::grouped::OPS,
    microsoft::norm::OPS,
    microsoft::qlinear::OPS,
    microsoft::quant::OPS,
    ml::encode::OPS,
    ml::features::OPS,
    ml::linear::OPS,
    ml::support::OPS,
    ml::trees::OPS,
    norm::OPS,
    order::OPS,
    pad::OPS,
    pool::OPS,
    quant::OPS,
    random::OPS,
    recurrent::OPS,
    reduce::OPS,
    resize::OPS,
    sequence::OPS,
    shape::OPS,
    signal::OPS,
    split::OPS,
    text::OPS,
    training::OPS,
];

/// All rows.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().copied().flatten()
}

/// The row of an operator.
pub(super) fn find(domain: &str, op: &str) -> Option<&'static Row> {
    all().find(|r| r.domain == domain && r.op == op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::onnx::history;

    /// ONNX's operators without a row: what is refused, and why, docs/onnx.md says.
    const MISSING: &[&str] = &["ai.onnx.ml.CastMap", "ai.onnx.ml.DictVectorizer"];

    #[test]
    fn every_operator_of_onnx_has_a_row_or_is_known_to_lack_one() {
        let full = |domain: &str, op: &str| if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") };
        let lacking: Vec<String> =
            history::HISTORY.iter().filter(|h| find(h.0, h.1).is_none()).map(|h| full(h.0, h.1)).collect();
        assert_eq!(lacking, MISSING);
        let all: Vec<&Row> = all().collect();
        for (i, row) in all.iter().enumerate() {
            let others = row.domain == microsoft::DOMAIN || row.op == "SimplifiedLayerNormalization";
            assert!(others || history::since(row.domain, row.op).is_some(), "{} is none of ONNX's", row.op);
            assert!(all[..i].iter().all(|r| (r.domain, r.op) != (row.domain, row.op)), "{} has two rows", row.op);
        }
    }
}
