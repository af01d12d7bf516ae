//! What is too large for memory: said as an error, wherever it turns up.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// Memory for so many bytes at once could not be had.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// What was wanted.
    pub bytes: u128,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KB", "MB", "GB", "TB", "PB", "EB"];
        let (mut n, mut unit) = (self.bytes as f64, 0);
        while n >= 1000.0 && unit + 1 < UNITS.len() {
            (n, unit) = (n / 1000.0, unit + 1);
        }
        write!(f, "out of memory: {n:.1} {} are wanted at once", UNITS[unit])
    }
}

impl std::error::Error for OutOfMemory {}

/// What a function gives, or that memory ran out in it: where tensors are made as programs ask for them, sizes come from outside.
pub fn within_memory<T>(f: impl FnOnce() -> T) -> Result<T, OutOfMemory> {
    // Whoever wants too much leaves by unwinding; what it was making goes with it, and what others share is behind locks.
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| match panic.downcast::<OutOfMemory>() {
        Ok(wanted) => *wanted,
        Err(panic) => resume_unwind(panic),
    })
}

/// Leaves the [`within_memory`] around, or the thread.
pub fn out_of_memory(bytes: u128) -> ! {
    resume_unwind(Box::new(OutOfMemory { bytes }))
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn too_much_is_an_error() {
        let wanted = within_memory(|| Tensor::zeros(DType::F32, &[1_000_000, 1_000_000])).expect_err("4 TB");
        assert_eq!(wanted.to_string(), "out of memory: 4.0 TB are wanted at once");
        assert!(within_memory(|| Tensor::zeros(DType::F32, &[usize::MAX, usize::MAX])).is_err());
        assert_eq!(within_memory(|| Tensor::zeros(DType::F32, &[2]).len()), Ok(2));
    }
}
