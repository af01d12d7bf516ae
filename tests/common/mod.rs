//! What several test files need.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod extractors;
pub(crate) mod onednn;
pub(crate) mod plain;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use resat::{
    ir::{TensorType, Type},
    loops::{Builder, Operand, Stages},
    tensor::{DType, Tensor},
};

/// The compiler in C, compiled.
pub(crate) fn vendor() -> &'static Path {
    static MADE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library = dir.path().join("vendor.so");
        let run = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
            .arg(root.join("include"))
            .arg("-o")
            .args([&library, &root.join("tests/external/compiler.c")])
            .output()
            .expect("the system has a C compiler");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        (dir, library)
    });
    path
}

/// A small generator of pseudo-random numbers (splitmix64): tests must be the same on every run.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Brings things into another order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            things.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }

    /// A number from 0 to before 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What integers the arguments hold.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Data {
    /// 1 to 3: legal as index, divisor and shift.
    Tame,
    /// The whole range of the type. Operators may refuse such values (an index out of range, a division by zero).
    Wild,
}

/// A tensor of the type, unknown extents taken as 2, floats within 2 of zero.
pub(crate) fn random_tensor(t: &TensorType, data: Data, rng: &mut Rng) -> Tensor {
    let shape: Vec<usize> = t.shape.iter().map(|d| d.known().unwrap_or(2) as usize).collect();
    match (t.dtype, data) {
        (d, _) if d.is_float() => Tensor::from_f64_fn(d, &shape, |_| 4.0 * rng.unit() - 2.0),
        (DType::Bool, _) => Tensor::from_i64_fn(DType::Bool, &shape, |_| (rng.next() >> 40 & 1) as i64),
        (d, Data::Tame) => Tensor::from_i64_fn(d, &shape, |_| 1 + ((rng.next() >> 20) % 3) as i64),
        (d, Data::Wild) => Tensor::from_i64_fn(d, &shape, |_| rng.next() as i64),
    }
}

/// Arguments of the given types, where all extents are known.
pub(crate) fn operands(types: &[Type], b: &mut Builder) -> Option<Vec<Operand>> {
    fn one(t: &Type, b: &mut Builder) -> Option<Operand> {
        Some(match t {
            Type::Tensor(t) => Operand::Tensor(b.arg(&t.known_shape()?, t.dtype)),
            Type::Tuple(f) => Operand::Tuple(f.iter().map(|t| one(t, b)).collect::<Option<_>>()?),
            other => panic!("samples take tensors and tuples, not {other}"),
        })
    }
    types.iter().map(|t| one(t, b)).collect()
}

/// The results of stages as the operator gives them: counted ones cut, counts gone.
pub(crate) fn cut_counted(stages: &Stages, mut results: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
    for &(k, count) in &stages.counted {
        let (all, rows) = (&results[k], results[count].to_i64_vec());
        let most = all.shape()[0] as i64;
        let [rows] = rows[..] else { return Err(format!("a count is {:?}", results[count])) };
        if !(0..=most).contains(&rows) {
            return Err(format!("{rows} rows of {most} are counted"));
        }
        let mut shape = all.shape().to_vec();
        shape[0] = rows as usize;
        results[k] = all.pick(&shape, Some);
    }
    let counts = stages.counted.iter().map(|c| c.1).min().unwrap_or(results.len());
    results.truncate(counts);
    Ok(results)
}

/// The first element in which two tensors differ: exactly for integers, by more than rounding for floats.
pub(crate) fn difference(a: &Tensor, b: &Tensor) -> Option<String> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Some(format!("{a:?} against {b:?}"));
    }
    if !a.dtype().is_float() {
        let (x, y) = (a.to_i64_vec(), b.to_i64_vec());
        let i = (0..x.len()).find(|&i| x[i] != y[i])?;
        return Some(format!("element {i} is {} against {}", x[i], y[i]));
    }
    let (x, y) = (a.to_f64_vec(), b.to_f64_vec());
    let largest = x.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
    let tolerance = largest * if a.dtype().bytes() == 2 { 2e-2 } else { 1e-5 };
    let same = |p: f64, q: f64| p == q || (p.is_nan() && q.is_nan()) || (p - q).abs() <= tolerance;
    let i = (0..x.len()).find(|&i| !same(x[i], y[i]))?;
    Some(format!("element {i} is {} against {}", x[i], y[i]))
}
