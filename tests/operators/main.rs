//! Operators: their types, their values, and what their kernels compute.

#[path = "../common/mod.rs"]
mod common;
mod corpus_types;
mod detection;
mod dtypes;
mod ops;
mod ops_variants;
mod reference;
