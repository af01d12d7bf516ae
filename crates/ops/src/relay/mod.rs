//! Relay as files.

pub mod json;
mod lexer;
pub mod npz;
pub mod params;
pub mod text;

/// How deep types, patterns and attribute values may nest.
pub const DEEPEST: usize = 1100;
