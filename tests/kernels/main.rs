//! Kernels: schedules, loops and the code that they become.

mod bytes;
mod codegen;
#[path = "../common/mod.rs"]
mod common;
mod generators;
mod kernels;
mod numbers;
mod products;
mod routines;
mod rows;
mod tiles;
