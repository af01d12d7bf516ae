//! Kernels: schedules, loops and the code that they become.

mod codegen;
#[path = "../common/mod.rs"]
mod common;
mod convolutions;
mod gemm;
mod generators;
mod kernels;
mod narrow_types;
mod numbers;
mod routines;
mod rows;
mod slices;
mod tiles;
