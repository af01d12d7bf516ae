//! Relay as files.

pub mod json;
pub mod npz;
pub mod params;
pub mod text;
