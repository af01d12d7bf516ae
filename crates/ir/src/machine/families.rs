//! Processor families, one row each: what an instruction set includes and what a core does in a cycle.
//!
//! Rates, latencies and caches are those of the vendors' optimization manuals (Intel 64 and IA-32 Architectures Optimization
//! Reference Manual; AMD's Software Optimization Guides of families 17h, 19h and 1Ah; Arm's Software Optimization Guides) and of the tables of
//! Agner Fog and uops.info; bandwidths of caches are what loops sustain, some two thirds of the peak. Clocks are nominal, under
//! vector load.

use super::timing::{CacheLevel, Rate, TileRate, Timing};

/// An instruction set architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// 64-bit x86.
    X86,
    /// 64-bit ARM.
    Arm,
}

/// A processor family, or a level of the x86 instruction set.
pub struct Family {
    /// LLVM's name.
    pub name: &'static str,
    /// Its architecture.
    pub arch: Arch,
    /// Who makes it, as CPUID says it; empty where that says nothing.
    pub vendor: &'static str,
    /// How many of [`X86_LEVELS`] it has the extensions of. Of ARM: none.
    pub levels: usize,
    /// The extensions that it has beyond those, by LLVM's names.
    pub extensions: &'static [&'static str],
    /// A core.
    pub timing: Timing,
}

/// Extensions that x86 processors of a level have, as LLVM names them; each level has those before it too.
pub const X86_LEVELS: [(&str, &[&str]); 4] = [
    ("x86-64", &["sse", "sse2"]),
    ("x86-64-v2", &["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"]),
    ("x86-64-v3", &["avx", "avx2", "bmi", "bmi2", "f16c", "fma"]),
    ("x86-64-v4", &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

const KB: i64 = 1 << 10;
const MB: i64 = 1 << 20;

const fn cache(bytes: i64, ways: i64, bytes_per_cycle: f64, latency: f64) -> CacheLevel {
    CacheLevel { bytes, ways, line: 64, bytes_per_cycle, latency }
}

const fn rate(per_cycle: f64, latency: f64) -> Rate {
    Rate { per_cycle, latency }
}

/// Intel's matrix registers: a product of 16 rows takes 16 cycles; rows are lines, of which two are loaded in a cycle.
const AMX: TileRate = TileRate { product: 16.0, load: 8.0, block: 40.0 };

/// 128-bit vectors; a multiplication and an addition in a cycle.
const NEHALEM: Timing = Timing {
    clock: 3.0e9,
    fma: rate(1.0, 7.0),
    dot: rate(1.0, 5.0),
    adds: 2.0,
    loads: 1.0,
    stores: 1.0,
    l1: cache(32 * KB, 8, 16.0, 4.0),
    l2: cache(256 * KB, 8, 10.0, 10.0),
    l3: cache(2 * MB, 16, 6.0, 40.0),
    prefetch_reach: 2048,
    memory: 20.0e9,
    dram: 12.0e9,
    tiles: AMX,
};

/// 256-bit vectors, still without fused multiply-adds; a 256-bit store takes two cycles.
const SANDY_BRIDGE: Timing = Timing { fma: rate(1.0, 8.0), stores: 0.5, l1: cache(32 * KB, 8, 32.0, 5.0), ..NEHALEM };

const HASWELL: Timing = Timing {
    fma: rate(2.0, 5.0),
    loads: 2.0,
    stores: 1.0,
    l1: cache(32 * KB, 8, 64.0, 5.0),
    l2: cache(256 * KB, 8, 25.0, 12.0),
    l3: cache(2 * MB, 16, 14.0, 40.0),
    ..NEHALEM
};

const SKYLAKE: Timing =
    Timing { fma: rate(2.0, 4.0), dot: rate(1.5, 5.0), adds: 3.0, l2: cache(256 * KB, 4, 32.0, 12.0), ..HASWELL };

/// 512-bit vectors, two units, as servers have them.
const SKYLAKE_SERVER: Timing = Timing {
    clock: 2.6e9,
    dot: rate(1.0, 5.0),
    adds: 2.0,
    l1: cache(32 * KB, 8, 128.0, 5.0),
    l2: cache(MB, 16, 40.0, 14.0),
    l3: cache(1408 * KB, 11, 10.0, 70.0),
    ..SKYLAKE
};

/// The same with dot products of bytes.
const CASCADE_LAKE: Timing = Timing { dot: rate(2.0, 5.0), ..SKYLAKE_SERVER };

const ICE_LAKE_SERVER: Timing = Timing {
    clock: 2.8e9,
    l1: cache(48 * KB, 12, 128.0, 5.0),
    l2: cache(1280 * KB, 20, 42.0, 14.0),
    l3: cache(1536 * KB, 12, 10.0, 70.0),
    ..CASCADE_LAKE
};

/// One 512-bit unit for multiply-adds, as laptops and desktops have it.
const ICE_LAKE_CLIENT: Timing = Timing {
    clock: 3.2e9,
    fma: rate(1.0, 4.0),
    dot: rate(1.0, 5.0),
    l2: cache(512 * KB, 8, 42.0, 13.0),
    l3: cache(2 * MB, 16, 20.0, 42.0),
    ..ICE_LAKE_SERVER
};

const TIGER_LAKE: Timing = Timing { l2: cache(1280 * KB, 20, 42.0, 14.0), ..ICE_LAKE_CLIENT };

/// 256-bit vectors with two units; L2 of the performance cores.
const ALDER_LAKE: Timing = Timing {
    clock: 3.8e9,
    dot: rate(2.0, 5.0),
    l1: cache(48 * KB, 12, 96.0, 5.0),
    l2: cache(1280 * KB, 10, 40.0, 15.0),
    l3: cache(3 * MB, 12, 16.0, 60.0),
    loads: 3.0,
    stores: 2.0,
    ..SKYLAKE
};

const SAPPHIRE_RAPIDS: Timing =
    Timing { clock: 3.0e9, l2: cache(2 * MB, 16, 48.0, 15.0), l3: cache(1920 * KB, 15, 10.0, 70.0), ..ICE_LAKE_SERVER };

/// 128-bit units: a 256-bit instruction takes two of them.
const ZEN1: Timing = Timing {
    fma: rate(1.0, 5.0),
    dot: rate(0.5, 4.0),
    adds: 1.5,
    loads: 1.0,
    stores: 0.5,
    l1: cache(32 * KB, 8, 32.0, 7.0),
    l2: cache(512 * KB, 8, 20.0, 14.0),
    l3: cache(2 * MB, 16, 14.0, 39.0),
    ..NEHALEM
};

const ZEN2: Timing = Timing {
    fma: rate(2.0, 5.0),
    dot: rate(1.0, 3.0),
    adds: 3.0,
    loads: 2.0,
    stores: 1.0,
    l1: cache(32 * KB, 8, 64.0, 7.0),
    l2: cache(512 * KB, 8, 28.0, 12.0),
    l3: cache(4 * MB, 16, 20.0, 39.0),
    ..ZEN1
};

const ZEN3: Timing = Timing {
    fma: rate(2.0, 4.0),
    dot: rate(1.65, 3.0),
    adds: 4.0,
    l3: cache(4 * MB, 16, 24.0, 46.0),
    dram: 18.0e9,
    ..ZEN2
};

/// 512-bit instructions on 256-bit units.
const ZEN4: Timing = Timing {
    clock: 3.5e9,
    fma: rate(1.0, 4.0),
    dot: rate(1.0, 4.0),
    adds: 2.0,
    loads: 1.0,
    stores: 0.5,
    l1: cache(32 * KB, 8, 64.0, 7.0),
    l2: cache(MB, 8, 30.0, 14.0),
    l3: cache(4 * MB, 16, 24.0, 50.0),
    ..ZEN3
};

const ZEN5: Timing = Timing {
    clock: 3.5e9,
    fma: rate(2.0, 4.0),
    dot: rate(2.0, 4.0),
    adds: 4.0,
    loads: 2.0,
    stores: 1.0,
    l1: cache(48 * KB, 12, 128.0, 7.0),
    l2: cache(MB, 16, 32.0, 14.0),
    l3: cache(4 * MB, 16, 42.7, 48.0),
    dram: 40.0e9,
    ..ZEN4
};

/// Two 64-bit units, in order.
const CORTEX_A53: Timing = Timing {
    clock: 1.5e9,
    fma: rate(0.5, 8.0),
    dot: rate(0.5, 4.0),
    adds: 1.0,
    loads: 0.5,
    stores: 0.5,
    l1: cache(32 * KB, 4, 8.0, 3.0),
    l2: cache(128 * KB, 16, 4.0, 15.0),
    l3: cache(128 * KB, 16, 4.0, 15.0),
    prefetch_reach: 2048,
    memory: 3.0e9,
    dram: 2.0e9,
    tiles: AMX,
};

const CORTEX_A72: Timing = Timing {
    clock: 1.8e9,
    fma: rate(1.0, 7.0),
    adds: 2.0,
    loads: 1.0,
    stores: 1.0,
    l1: cache(32 * KB, 2, 16.0, 4.0),
    l2: cache(256 * KB, 16, 10.0, 15.0),
    l3: cache(256 * KB, 16, 10.0, 15.0),
    memory: 5.0e9,
    dram: 4.0e9,
    ..CORTEX_A53
};

const NEOVERSE_N1: Timing = Timing {
    clock: 2.6e9,
    fma: rate(2.0, 4.0),
    dot: rate(2.0, 3.0),
    adds: 2.0,
    loads: 2.0,
    stores: 1.0,
    l1: cache(64 * KB, 4, 32.0, 4.0),
    l2: cache(MB, 8, 20.0, 11.0),
    l3: cache(MB, 16, 8.0, 60.0),
    memory: 16.0e9,
    dram: 12.0e9,
    ..CORTEX_A53
};

const CORTEX_A76: Timing = Timing {
    l2: cache(256 * KB, 8, 20.0, 9.0),
    l3: cache(512 * KB, 16, 10.0, 30.0),
    memory: 10.0e9,
    dram: 8.0e9,
    ..NEOVERSE_N1
};

const NEOVERSE_V1: Timing =
    Timing { fma: rate(4.0, 4.0), dot: rate(4.0, 3.0), adds: 4.0, loads: 3.0, stores: 2.0, ..NEOVERSE_N1 };

const NEOVERSE_N2: Timing = Timing { clock: 2.8e9, loads: 3.0, stores: 2.0, ..NEOVERSE_N1 };

const NEOVERSE_V2: Timing = Timing { clock: 3.0e9, l2: cache(2 * MB, 8, 30.0, 11.0), ..NEOVERSE_V1 };

const APPLE_M1: Timing = Timing {
    clock: 3.2e9,
    l1: cache(128 * KB, 8, 48.0, 4.0),
    l2: cache(3 * MB, 12, 30.0, 16.0),
    l3: cache(2 * MB, 16, 20.0, 60.0),
    memory: 50.0e9,
    dram: 50.0e9,
    ..NEOVERSE_V1
};

const fn x86(name: &'static str, vendor: &'static str, level: usize, extensions: Extensions, timing: Timing) -> Family {
    Family { name, arch: Arch::X86, vendor, levels: level + 1, extensions, timing }
}

const fn arm(name: &'static str, extensions: Extensions, timing: Timing) -> Family {
    Family { name, arch: Arch::Arm, vendor: "", levels: 0, extensions, timing }
}

type Extensions = &'static [&'static str];

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

const VNNI: Extensions = &["avx512vbmi", "avx512vnni"];
const SPR: Extensions =
    &["avx512vbmi", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16"];
const NEOVERSE: Extensions = &["neon", "crc", "dotprod", "fullfp16", "lse"];
const NEOVERSE_2: Extensions = &["neon", "crc", "dotprod", "fullfp16", "lse", "bf16", "i8mm"];

/// All families, levels of the instruction set first; of each vendor older ones before newer ones.
pub const FAMILIES: &[Family] = &[
    Family { levels: 0, ..x86("generic", "", 0, &[], NEHALEM) },
    x86("x86-64", "", 0, &[], NEHALEM),
    x86("x86-64-v2", "", 1, &[], NEHALEM),
    x86("x86-64-v3", "", 2, &[], HASWELL),
    x86("x86-64-v4", "", 3, &[], SKYLAKE_SERVER),
    x86("nehalem", INTEL, 1, &[], NEHALEM),
    x86("sandybridge", INTEL, 1, &["avx"], SANDY_BRIDGE),
    x86("ivybridge", INTEL, 1, &["avx", "f16c"], SANDY_BRIDGE),
    x86("haswell", INTEL, 2, &[], HASWELL),
    x86("core-avx2", INTEL, 2, &[], HASWELL),
    x86("broadwell", INTEL, 2, &[], HASWELL),
    x86("skylake", INTEL, 2, &[], SKYLAKE),
    x86("alderlake", INTEL, 2, &["avxvnni"], ALDER_LAKE),
    x86("skylake-avx512", INTEL, 3, &[], SKYLAKE_SERVER),
    x86("cascadelake", INTEL, 3, &["avx512vnni"], CASCADE_LAKE),
    x86("cooperlake", INTEL, 3, &["avx512vnni", "avx512bf16"], CASCADE_LAKE),
    x86("icelake-client", INTEL, 3, VNNI, ICE_LAKE_CLIENT),
    x86("rocketlake", INTEL, 3, VNNI, ICE_LAKE_CLIENT),
    x86("tigerlake", INTEL, 3, VNNI, TIGER_LAKE),
    x86("icelake-server", INTEL, 3, VNNI, ICE_LAKE_SERVER),
    x86("sapphirerapids", INTEL, 3, SPR, SAPPHIRE_RAPIDS),
    x86(
        "graniterapids",
        INTEL,
        3,
        &[
            "avx512vbmi",
            "avx512vnni",
            "avx512bf16",
            "avx512fp16",
            "avxvnni",
            "amx-tile",
            "amx-int8",
            "amx-bf16",
            "amx-fp16",
        ],
        SAPPHIRE_RAPIDS,
    ),
    x86("znver1", AMD, 2, &[], ZEN1),
    x86("znver2", AMD, 2, &[], ZEN2),
    x86("znver3", AMD, 2, &[], ZEN3),
    x86("znver4", AMD, 3, &["avx512vbmi", "avx512vnni", "avx512bf16"], ZEN4),
    x86("znver5", AMD, 3, &["avx512vbmi", "avx512vnni", "avx512bf16", "avxvnni"], ZEN5),
    arm("generic", &["neon"], CORTEX_A72),
    arm("cortex-a53", &["neon", "crc"], CORTEX_A53),
    arm("cortex-a72", &["neon", "crc"], CORTEX_A72),
    arm("cortex-a76", NEOVERSE, CORTEX_A76),
    arm("neoverse-n1", NEOVERSE, NEOVERSE_N1),
    arm("neoverse-v1", NEOVERSE_2, NEOVERSE_V1),
    arm("neoverse-n2", NEOVERSE_2, NEOVERSE_N2),
    arm("neoverse-v2", NEOVERSE_2, NEOVERSE_V2),
    arm("apple-m1", NEOVERSE, APPLE_M1),
];

impl Family {
    /// All extensions that it has, by LLVM's names.
    pub fn features(&self) -> impl Iterator<Item = &'static str> {
        X86_LEVELS[..self.levels].iter().flat_map(|l| l.1).chain(self.extensions).copied()
    }
}

/// A family by LLVM's name.
pub fn family(arch: Arch, name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|f| f.arch == arch && f.name == name)
}

/// The names of an architecture's families.
pub fn names(arch: Arch) -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().filter(move |f| f.arch == arch).map(|f| f.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_plausible_and_names_are_met_once() {
        for (i, f) in FAMILIES.iter().enumerate() {
            assert!(FAMILIES[..i].iter().all(|g| (g.arch, g.name) != (f.arch, f.name)), "{} twice", f.name);
            let t = &f.timing;
            assert!(t.l1.bytes < t.l2.bytes && t.l1.latency < t.l2.latency, "{}", f.name);
            for cache in [t.l1, t.l2, t.l3] {
                assert_eq!(cache.bytes % (cache.ways * cache.line), 0, "{}: sets are whole", f.name);
            }
        }
    }
}
