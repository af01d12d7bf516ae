//! The machine that code is made for.

mod permission;
mod target;

pub use permission::matrix_registers_permitted;
pub use target::{CodegenTarget, EMULATED, TargetError, matrix_extension};
