//! Equality saturation over Relay: the e-graph, the rule language and the shipped rules, cost models, extractors, dialects.

pub mod cost;
pub mod dialect;
pub mod egraph;
pub mod extract;
pub mod rules;
pub mod saturate;

pub use resat_ir::{cancel, diag, ir, loops, target, tensor};
pub use resat_ops::{infer, interp, ops, relay};
