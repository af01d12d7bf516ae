//! Operators on sparse tensors: lists of coordinates, and rows of (blocks of) entries.

mod coo;
mod fill_rows;
mod rows;

pub(super) use coo::OPS as COO;
pub(super) use fill_rows::OPS as FILL_ROWS;
pub(super) use rows::OPS as ROWS;
