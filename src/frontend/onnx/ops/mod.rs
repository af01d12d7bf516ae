//! The operators: a table of rows, a file for each family.

mod activation;
mod attention;
mod control;
mod conv;
mod convert;
mod data;
mod image;
mod logic;
mod loss;
mod math;
mod norm;
mod order;
mod pool;
mod quant;
mod recurrent;
mod reduce;
mod sequence;
mod shape;
mod signal;
mod training;

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
    image::OPS,
    logic::OPS,
    loss::OPS,
    math::OPS,
    norm::OPS,
    order::OPS,
    pool::OPS,
    quant::OPS,
    recurrent::OPS,
    reduce::OPS,
    sequence::OPS,
    shape::OPS,
    signal::OPS,
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
