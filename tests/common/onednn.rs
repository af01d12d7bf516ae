//! What tests of oneDNN share.

use resat::{
    runtime::onednn::Library,
    tensor::{DType, Tensor},
};

/// Whether there is a library; says so where there is none.
pub(crate) fn installed() -> bool {
    match Library::get() {
        Ok(_) => true,
        Err(e) => {
            eprintln!("skipped: {e}");
            false
        }
    }
}

/// Pseudo-random numbers, the same on every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Numbers between -1 and 1, or of all sizes of an integer type.
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        match dtype {
            DType::U8 => Tensor::from_i64_fn(dtype, shape, |_| self.below(256) as i64),
            DType::I8 => Tensor::from_i64_fn(dtype, shape, |_| self.below(256) as i64 - 128),
            DType::I32 => Tensor::from_i64_fn(dtype, shape, |_| self.below(20000) as i64 - 10000),
            _ => Tensor::from_f64_fn(dtype, shape, |_| self.below(2001) as f64 / 1000.0 - 1.0),
        }
    }
}

/// The same types, and numbers within what the type allows.
pub(crate) fn compare(got: &Tensor, wanted: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (wanted.dtype(), wanted.shape()), "{what}");
    let share = match got.dtype() {
        DType::F32 => 2e-5,
        DType::BF16 => 0.02,
        _ => 0.0,
    };
    let largest = wanted.to_f64_vec().iter().fold(1.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
    for i in 0..got.len() {
        let (g, w) = (got.get_f64(i), wanted.get_f64(i));
        let near = (g - w).abs() <= share * largest || g == w || g.is_nan() && w.is_nan();
        assert!(near, "{what}: element {i} is {g}, should be {w}");
    }
}

/// The float types of the library here.
pub(crate) fn floats() -> Vec<&'static str> {
    match Library::get() {
        Ok(l) if l.has_bf16() => vec!["float32", "bfloat16"],
        _ => vec!["float32"],
    }
}

/// Whether the library multiplies bytes exactly here.
pub(crate) fn bytes() -> bool {
    installed()
        && match Library::get() {
            Ok(l) if l.has_exact_bytes() => true,
            _ => {
                eprintln!("skipped: this machine has no instructions for exact int8 dot products");
                false
            }
        }
}
