//! What is fuzzed, and how inputs are changed. `tests/fuzz.rs` of the compiler uses the same files for the short run of
//! `make test`; the programs of this folder are for the long one, which follows coverage.

pub mod mutate;
#[path = "../../tests/common/same.rs"]
pub mod same;
pub mod targets;

/// One call of a target by LLVM's fuzzer.
pub fn run(target: &str, data: &[u8]) {
    (targets::named(target).run)(data);
}

/// One change by LLVM's fuzzer: half are its own, which follow comparisons, and half are ours, which know the format.
pub fn mutate(target: &str, data: &mut [u8], size: usize, most: usize, seed: u32) -> usize {
    let mut random = mutate::Random(seed as u64);
    if random.below(2) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, most);
    }
    let (format, mut bytes) = (targets::named(target).format, data[..size].to_vec());
    mutate::change(format, &mut bytes, &[], &mut random);
    let n = bytes.len().min(most);
    data[..n].copy_from_slice(&bytes[..n]);
    n
}

/// The main program of a target.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::run($name, data));
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
            $crate::mutate($name, data, size, most, seed)
        });
    };
}
