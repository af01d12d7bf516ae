//! Operators in which elements' order matters: sorting, scanning, scattering.

mod find;
mod first;
mod merge;
mod scan;
mod scatter;
mod search;
mod sort;
mod unique;

pub(super) use find::OPS as FIND;
pub(super) use merge::Lines;
pub(super) use scan::OPS as SCAN;
pub(super) use scatter::OPS as SCATTER;
pub(super) use search::OPS as SEARCH;
pub(super) use sort::OPS as SORT;
pub(super) use unique::OPS as UNIQUE;
