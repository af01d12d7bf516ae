//! What this processor says of itself: its instruction sets, its vendor, its caches, its cores.

use std::{collections::BTreeSet, fs, path::Path};

use super::permission::matrix_registers_permitted;

/// The shape of a cache, as the system reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Bytes.
    pub bytes: i64,
    /// Lines of a set.
    pub ways: i64,
    /// Bytes of a line.
    pub line: i64,
    /// Hardware threads that share it.
    pub sharers: i64,
}

/// The shapes of the data caches of levels 1 to 3, where the system reports them.
pub(super) fn caches() -> [Option<CacheShape>; 3] {
    let mut found = [None; 3];
    for index in 0..8 {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let folder = Path::new(&folder);
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|s| s.trim().to_owned());
        let number = |name: &str| read(name).and_then(|s| s.parse::<i64>().ok()).filter(|&n| n > 0);
        let (Some(kind), Some(level)) = (read("type"), number("level")) else { break };
        if kind == "Instruction" || !(1..=3).contains(&level) {
            continue;
        }
        let bytes = read("size").and_then(|s| size(&s));
        let sharers = read("shared_cpu_list").and_then(|s| cpus(&s));
        let shape = (bytes, number("ways_of_associativity"), number("coherency_line_size"), sharers);
        if let (Some(bytes), Some(ways), Some(line), Some(sharers)) = shape {
            found[level as usize - 1] = Some(CacheShape { bytes, ways, line, sharers });
        }
    }
    found
}

/// Hardware threads of a core: two where they are hyperthreads.
pub(super) fn threads_per_core() -> Option<i64> {
    cpus(fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").ok()?.trim())
}

/// A size such as `48K`.
fn size(text: &str) -> Option<i64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<i64>().ok().filter(|&n| n > 0)?.checked_mul(unit)
}

/// How many processors a list such as `0-3,8` names.
fn cpus(list: &str) -> Option<i64> {
    let count = |part: &str| match part.split_once('-') {
        Some((a, b)) => Some(b.parse::<i64>().ok()? - a.parse::<i64>().ok()? + 1),
        None => part.parse::<i64>().ok().map(|_| 1),
    };
    list.split(',').map(count).sum::<Option<i64>>().filter(|&n| n > 0)
}

/// The vendor, as CPUID spells it; empty on other architectures.
#[cfg(target_arch = "x86_64")]
pub(super) fn vendor() -> String {
    let leaf = std::arch::x86_64::__cpuid(0);
    let bytes: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|r| r.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn vendor() -> String {
    String::new()
}

/// The instruction set extensions that this process may use, by LLVM's names.
#[cfg(target_arch = "x86_64")]
pub(super) fn features() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    macro_rules! detect {
        ($($name:tt as $llvm:literal),* $(,)?) => {
            $(if std::arch::is_x86_feature_detected!($name) { found.insert($llvm.to_owned()); })*
        };
    }
    detect!(
        "sse" as "sse", "sse2" as "sse2", "sse3" as "sse3", "ssse3" as "ssse3", "sse4.1" as "sse4.1",
        "sse4.2" as "sse4.2", "popcnt" as "popcnt", "avx" as "avx", "avx2" as "avx2", "bmi1" as "bmi", "bmi2" as "bmi2",
        "f16c" as "f16c", "fma" as "fma", "avx512f" as "avx512f", "avx512bw" as "avx512bw", "avx512cd" as "avx512cd",
        "avx512dq" as "avx512dq", "avx512vbmi" as "avx512vbmi", "avx512vl" as "avx512vl", "avx512vnni" as "avx512vnni",
        "avx512bf16" as "avx512bf16", "avx512fp16" as "avx512fp16", "avxvnni" as "avxvnni",
    );
    // The standard library does not detect matrix registers on stable yet: CPUID leaf 7, EDX bits 22, 24, 25. The system may refuse them.
    if let Some(edx) = cpuid_7_edx()
        && edx & 1 << 24 != 0
        && matrix_registers_permitted()
    {
        for (bit, name) in [(22, "amx-bf16"), (24, "amx-tile"), (25, "amx-int8")] {
            if edx & (1 << bit) != 0 {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
fn cpuid_7_edx() -> Option<u32> {
    (std::arch::x86_64::__get_cpuid_max(0).0 >= 7).then(|| std::arch::x86_64::__cpuid_count(7, 0).edx)
}

/// The extensions of 64-bit ARM that codegen makes use of.
#[cfg(target_arch = "aarch64")]
pub(super) fn features() -> BTreeSet<String> {
    let mut found = BTreeSet::from(["neon".to_owned()]);
    macro_rules! detect {
        ($($name:tt as $llvm:literal),* $(,)?) => {
            $(if std::arch::is_aarch64_feature_detected!($name) { found.insert($llvm.to_owned()); })*
        };
    }
    detect!(
        "crc" as "crc", "dotprod" as "dotprod", "fp16" as "fullfp16", "lse" as "lse", "bf16" as "bf16", "i8mm" as "i8mm",
    );
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn features() -> BTreeSet<String> {
    BTreeSet::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_lists_and_sizes() {
        assert_eq!(
            (size("48K"), size("2M"), size("64"), size(""), size("K")),
            (Some(49152), Some(2 << 20), Some(64), None, None)
        );
        assert_eq!((cpus("0"), cpus("0-3,8"), cpus("x"), cpus("3-1")), (Some(1), Some(5), None, None));
    }
}
