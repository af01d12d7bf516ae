//! Operators in which elements' order matters: sorting, scanning, scattering.

mod find;
mod scan;
mod scatter;
mod sort;

pub(super) use find::OPS as FIND;
pub(super) use scan::OPS as SCAN;
pub(super) use scatter::OPS as SCATTER;
pub(super) use sort::OPS as SORT;
