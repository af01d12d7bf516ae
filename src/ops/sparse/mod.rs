//! Operators on sparse tensors: lists of coordinates, and rows of (blocks of) entries.

mod coo;

pub(super) use coo::OPS as COO;
