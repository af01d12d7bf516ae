//! A core as schedules see it: registers, what dot products cost in instructions, and timing.

use super::{CodegenTarget, Known, families::FAMILIES, timing::Timing};
use crate::tensor::DType;

/// What schedules need to know of the machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Core {
    /// Bytes of a vector register.
    pub vector_bytes: i64,
    /// Number of vector registers.
    pub vector_registers: i64,
    /// Instructions that add the dot product of four int8 pairs to each 32-bit lane, of an unsigned and a signed operand; 0 where it is
    /// not worth to treat four at once.
    pub int8_dot: i64,
    /// The same of two products of numbers of 16 bits; 0 where there are none for that.
    pub int16_dot: i64,
    /// Instructions that add two products of `bfloat16` to each 32-bit lane; 0 where it is not worth to treat two at once.
    pub bf16_dot: i64,
    /// The same as `int8_dot` for up to four bytes that lie as many bytes apart as a vector has lanes of 32 bits, such as a window's
    /// neighbours in a depthwise convolution; 0 where they can't be gathered by one permutation.
    pub int8_dot_strided: i64,
    /// Whether there are matrix registers that multiply tiles of bytes.
    pub int8_tiles: bool,
    /// Whether there are matrix registers that multiply tiles of `bfloat16`.
    pub bf16_tiles: bool,
    /// Rates, latencies, caches.
    pub timing: Timing,
    /// Whether what a kernel computes of a sum of `bfloat16` may stay `float32` until it is stored: see [`Module::has_excess_precision`](crate::ir::Module::has_excess_precision).
    pub excess_precision: bool,
}

impl Core {
    /// A machine without vectors.
    pub const SCALAR: Core = Core {
        vector_bytes: 4,
        vector_registers: 16,
        int8_dot: 0,
        int16_dot: 0,
        bf16_dot: 0,
        int8_dot_strided: 0,
        int8_tiles: false,
        bf16_tiles: false,
        timing: FAMILIES[0].timing,
        excess_precision: false,
    };

    /// A core of a target with this timing.
    pub fn new(target: &CodegenTarget, timing: Timing) -> Core {
        Core {
            vector_bytes: target.vector_bytes() as i64,
            vector_registers: target.vector_registers() as i64,
            int8_dot: target.int8_dot() as i64,
            int16_dot: target.int16_dot() as i64,
            bf16_dot: target.bf16_dot() as i64,
            int8_dot_strided: target.int8_dot_strided() as i64,
            int8_tiles: target.multiplies_tiles_of(DType::I8),
            bf16_tiles: target.multiplies_tiles_of(DType::BF16),
            timing,
            excess_precision: false,
        }
    }

    /// A core of this machine, with the instruction sets of a target.
    pub fn here(target: &CodegenTarget) -> Core {
        Core::new(target, Known::here().timing)
    }

    /// Cycles to add two products of numbers of 16 bits to each lane of a vector; none where there are no instructions for that.
    pub fn int16_dot_cycles(self) -> Option<f64> {
        (self.int16_dot > 0).then_some(1.0 / self.timing.dot.per_cycle)
    }

    /// Lanes of 32 bits.
    pub fn lanes(self) -> i64 {
        self.vector_bytes / 4
    }

    /// Whether there are matrix registers for numbers of a type.
    pub fn has_tiles(self, dtype: DType) -> bool {
        match dtype {
            DType::I8 | DType::U8 => self.int8_tiles,
            DType::BF16 => self.bf16_tiles,
            _ => false,
        }
    }
}
