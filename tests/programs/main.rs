//! Whole programs, interpreted, compiled and exported.

#[path = "../common/mod.rs"]
mod common;
mod deep;
mod dynamic;
mod export;
mod external;
mod language;
mod onednn;
mod onednn_export;
mod other_sizes;
mod replay;
mod state;
mod vm;
mod vm_random;
