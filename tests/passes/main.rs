//! Passes: what they make of programs.

#[path = "../common/mod.rs"]
mod common;
mod convert_layout;
mod dialect;
mod fake_quantization;
mod fast_math;
mod fusion;
mod kinds;
mod mixed_precision;
#[path = "../../benches/networks/mod.rs"]
mod networks;
mod placement;
mod programs;
#[cfg(feature = "llvm")]
mod quantize;
mod recurrent;
mod regions;
