//! The machine that code is made for: what it can do, in the few numbers that choices depend on.

use std::{collections::BTreeSet, fmt};

use crate::{
    diag::{Diagnostic, Refused},
    machine::{CodegenTarget, TargetError, matrix_registers_permitted},
    tensor::DType,
};

/// A processor, as cost models and schedules see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The processor by LLVM's name.
    pub cpu: String,
    /// LLVM's target triple; the host's where none is given.
    pub triple: Option<String>,
    /// The instruction set extensions that it has, by LLVM's names.
    pub features: BTreeSet<String>,
    /// Threads to use.
    pub cores: usize,
    /// Cycles per second. A nominal figure: costs are compared, and must not change with the weather.
    pub clock: f64,
    /// Bytes per second between one core and the caches that layers' results live in.
    pub bandwidth_per_core: f64,
    /// What was measured of this very machine, where it was: counts instead of the nominal figures.
    pub peaks: Option<Peaks>,
}

/// What one core of a machine reaches, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Operations per second on factors of a type, multiply-adds counted as two; types that are not listed are taken to be
    /// as much faster or slower than `float32` as nominally.
    pub arithmetic: Vec<(DType, f64)>,
    /// Bytes per second between a core and its outer caches.
    pub bandwidth: f64,
}

impl Peaks {
    /// The operations per second that were measured for a type.
    pub fn of(&self, dtype: DType) -> Option<f64> {
        self.arithmetic.iter().find(|(d, _)| *d == dtype).map(|(_, ops)| *ops)
    }
}

/// Nominal cycles per second of a server core under vector load.
const NOMINAL_CLOCK: f64 = 3.0e9;

/// How many times as much matrix registers multiply as both units for vectors of the same numbers do.
const MATRIX: f64 = 8.0;

/// Nominal bytes per second between a core and its outer caches.
const NOMINAL_BANDWIDTH: f64 = 20.0e9;

/// Extensions that processors of a level have, as LLVM names them; each level has those before it too.
const X86_LEVELS: [(&str, &[&str]); 4] = [
    ("x86-64", &["sse", "sse2"]),
    ("x86-64-v2", &["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"]),
    ("x86-64-v3", &["avx", "avx2", "bmi", "bmi2", "f16c", "fma"]),
    ("x86-64-v4", &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

/// Processors by name: their level of [`X86_LEVELS`] and what they have beyond it.
const X86_CPUS: &[(&str, usize, &[&str])] = &[
    ("nehalem", 1, &[]),
    ("sandybridge", 1, &["avx"]),
    ("haswell", 2, &[]),
    ("core-avx2", 2, &[]),
    ("broadwell", 2, &[]),
    ("skylake", 2, &[]),
    ("znver1", 2, &[]),
    ("znver2", 2, &[]),
    ("znver3", 2, &[]),
    ("skylake-avx512", 3, &[]),
    ("cascadelake", 3, &["avx512vnni"]),
    ("cooperlake", 3, &["avx512vnni", "avx512bf16"]),
    ("icelake-client", 3, &["avx512vbmi", "avx512vnni"]),
    ("icelake-server", 3, &["avx512vbmi", "avx512vnni"]),
    ("rocketlake", 3, &["avx512vbmi", "avx512vnni"]),
    ("tigerlake", 3, &["avx512vbmi", "avx512vnni"]),
    ("znver4", 3, &["avx512vbmi", "avx512vnni", "avx512bf16"]),
    ("znver5", 3, &["avx512vbmi", "avx512vnni", "avx512bf16", "avxvnni"]),
    (
        "sapphirerapids",
        3,
        &["avx512vbmi", "avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "amx-tile", "amx-int8", "amx-bf16"],
    ),
    (
        "graniterapids",
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
    ),
];

/// Processors of 64-bit ARM by name, with what they have.
const ARM_CPUS: &[(&str, &[&str])] = &[
    ("generic", &["neon"]),
    ("cortex-a53", &["neon", "crc"]),
    ("cortex-a72", &["neon", "crc"]),
    ("cortex-a76", &["neon", "crc", "dotprod", "fullfp16", "lse"]),
    ("neoverse-n1", &["neon", "crc", "dotprod", "fullfp16", "lse"]),
    ("neoverse-v1", &["neon", "crc", "dotprod", "fullfp16", "lse", "bf16", "i8mm"]),
    ("neoverse-n2", &["neon", "crc", "dotprod", "fullfp16", "lse", "bf16", "i8mm"]),
    ("neoverse-v2", &["neon", "crc", "dotprod", "fullfp16", "lse", "bf16", "i8mm"]),
    ("apple-m1", &["neon", "crc", "dotprod", "fullfp16", "lse"]),
];

/// What LLVM calls the level of a feature set: the name to give it where the processor's own is not known.
fn x86_level(features: &BTreeSet<String>) -> usize {
    let has = |level: &&(&str, &[&str])| level.1.iter().all(|f| features.contains(*f));
    X86_LEVELS.iter().take_while(has).count().saturating_sub(1)
}

fn level_features(level: usize) -> impl Iterator<Item = String> {
    X86_LEVELS[..=level].iter().flat_map(|(_, fs)| fs.iter().map(|f| f.to_string()))
}

/// The extensions of a processor of 64-bit ARM.
fn arm_features_of(cpu: &str) -> Option<BTreeSet<String>> {
    let found = ARM_CPUS.iter().find(|c| c.0 == cpu)?;
    Some(found.1.iter().map(|f| f.to_string()).collect())
}

/// The extensions of a processor or level, or of `generic`, which has none; `None` where the name is not known.
fn features_of(cpu: &str) -> Option<BTreeSet<String>> {
    if cpu == "generic" {
        return Some(BTreeSet::new());
    }
    let level = X86_LEVELS.iter().position(|l| l.0 == cpu).map(|level| (level, &[] as &[&str]));
    let (level, extra) = level.or_else(|| X86_CPUS.iter().find(|c| c.0 == cpu).map(|c| (c.1, c.2)))?;
    Some(level_features(level).chain(extra.iter().map(|e| e.to_string())).collect())
}

impl Target {
    /// The machine that this runs on, with all its cores. The name is derived from the instruction sets that it reports:
    /// what virtual machines say of their model is often wrong.
    pub fn host() -> Target {
        let features = host_features();
        let cpu = match std::env::consts::ARCH {
            // The newest processor whose matrix registers codegen knows by name; else the level says enough.
            "x86_64" if features_of("sapphirerapids").is_some_and(|f| f.is_subset(&features)) => "sapphirerapids",
            "x86_64" => X86_LEVELS[x86_level(&features)].0,
            _ => "generic",
        };
        Target {
            cpu: cpu.to_owned(),
            triple: None,
            features,
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            clock: NOMINAL_CLOCK,
            bandwidth_per_core: NOMINAL_BANDWIDTH,
            peaks: None,
        }
    }

    /// The machine as the back end names it.
    pub fn codegen(&self) -> CodegenTarget {
        let features: Vec<String> = self.features.iter().map(|f| format!("+{f}")).collect();
        let triple = self.triple.clone().unwrap_or_else(|| CodegenTarget::baseline().triple);
        CodegenTarget { triple, cpu: self.cpu.clone(), features: features.join(",") }
    }

    /// Reads a target as TVM writes it, such as `llvm -mcpu=skylake-avx512` (commas may stand for blanks). Options:
    /// `-mcpu` (a processor, or `native`), `-mattr` (`+feature,-feature…`), `-mtriple`, `-num-cores`.
    pub fn parse(text: &str) -> Result<Target, Refused> {
        let refuse = |message: String| -> Refused {
            Diagnostic::new(format!("target `{text}`: {message}"))
                .help("a target reads like `llvm -mcpu=native -num-cores=2`")
                .into()
        };
        // In `-mattr=+a,-b` a comma is followed by a sign and a name without `=`; elsewhere it stands for a blank.
        let mut words: Vec<String> = Vec::new();
        for part in text.split_whitespace() {
            for piece in part.split(',').filter(|p| !p.is_empty()) {
                let feature = (piece.starts_with('+') || piece.starts_with('-')) && !piece.contains('=');
                match words.last_mut() {
                    Some(last) if feature && last.starts_with("-mattr=") => {
                        last.push(',');
                        last.push_str(piece);
                    }
                    _ => words.push(piece.to_owned()),
                }
            }
        }
        let Some((kind, options)) = words.split_first() else { return Err(refuse("it is empty".into())) };
        if kind != "llvm" {
            return Err(refuse(format!("`{kind}` is not supported, only `llvm` is")));
        }
        let mut target = Target::host();
        // Another architecture has nothing of this machine but its cores.
        let triple = options.iter().rev().find_map(|o| o.trim_start_matches('-').strip_prefix("mtriple="));
        if let Some(triple) = triple {
            target.triple = Some(triple.to_owned());
            if target.arch() != std::env::consts::ARCH {
                target.cpu = "generic".to_owned();
                target.features = target.known("generic").unwrap_or_default();
            }
        }
        let mut attributes = Vec::new();
        for option in options {
            let Some((name, value)) = option.split_once('=') else {
                return Err(refuse(format!("`{option}` is not of the form -name=value")));
            };
            match name.trim_start_matches('-') {
                "mcpu" => target.set_cpu(value).map_err(&refuse)?,
                "mattr" => attributes.extend(value.split(',').map(str::to_owned)),
                "mtriple" => {}
                "num-cores" => match value.parse() {
                    Ok(n) if n > 0 => target.cores = n,
                    _ => return Err(refuse(format!("`{value}` is no number of cores"))),
                },
                other => {
                    let known = ["mcpu", "mattr", "mtriple", "num-cores"];
                    return Err(refuse(format!("there is no option `-{other}`, only -{}", known.join(", -"))));
                }
            }
        }
        for attribute in attributes {
            match (attribute.strip_prefix('+'), attribute.strip_prefix('-')) {
                (Some(on), _) => drop(target.features.insert(on.to_owned())),
                (_, Some(off)) => drop(target.features.remove(off)),
                _ => return Err(refuse(format!("`{attribute}` of -mattr begins with neither `+` nor `-`"))),
            }
        }
        match target.codegen().validate() {
            Err(e @ TargetError::Architecture(_)) => Err(refuse(e.to_string())),
            // Which processors there are is for the kind of code to say.
            _ => Ok(target),
        }
    }

    fn set_cpu(&mut self, cpu: &str) -> Result<(), String> {
        let here = self.arch() == std::env::consts::ARCH;
        match cpu {
            "native" if here => return Ok(()),
            "native" => return Err(format!("`native` is this machine, which is no {}", self.arch())),
            _ => {}
        }
        self.features = match self.known(cpu) {
            Some(features) => features,
            None if self.triple.is_none() && arm_features_of(cpu).is_some() => {
                return Err(format!("`{cpu}` is a processor of 64-bit ARM: say `-mtriple=aarch64-linux-gnu` besides"));
            }
            None => {
                let x86 = X86_LEVELS.iter().map(|l| l.0).chain(X86_CPUS.iter().map(|c| c.0));
                let names: Vec<&str> =
                    if self.is_arm() { ARM_CPUS.iter().map(|c| c.0).collect() } else { x86.collect() };
                return Err(match crate::diag::nearest(cpu, names) {
                    Some(near) => format!("there is no processor `{cpu}`; did you mean `{near}`?"),
                    None => format!("there is no processor `{cpu}` (`native` is this one, `generic` any)"),
                });
            }
        };
        self.cpu = cpu.to_owned();
        Ok(())
    }

    /// The architecture: what the triple starts with.
    fn arch(&self) -> &str {
        self.triple.as_deref().map_or(std::env::consts::ARCH, |t| t.split('-').next().unwrap_or_default())
    }

    fn is_arm(&self) -> bool {
        matches!(self.arch(), "aarch64" | "arm64")
    }

    /// The extensions of a processor of its architecture.
    fn known(&self, cpu: &str) -> Option<BTreeSet<String>> {
        if self.is_arm() { arm_features_of(cpu) } else { features_of(cpu) }
    }

    /// Whether it has an instruction set extension, by LLVM's name.
    pub fn has(&self, feature: &str) -> bool {
        self.features.contains(feature)
    }

    /// Whether it has matrix registers for any type.
    pub fn has_matrix_registers(&self) -> bool {
        [DType::I8, DType::BF16].into_iter().any(|d| self.multiplies_tiles_of(d))
    }

    /// Whether it has matrix registers for products of tiles of a type.
    pub fn multiplies_tiles_of(&self, dtype: DType) -> bool {
        crate::machine::matrix_extension(dtype).is_some_and(|e| self.has("amx-tile") && self.has(e))
    }

    /// Bytes in a vector register.
    pub fn vector_bytes(&self) -> usize {
        match () {
            _ if self.has("avx512f") => 64,
            _ if self.has("avx") => 32,
            _ => 16,
        }
    }

    /// Elements of a type in a vector register.
    pub fn lanes(&self, dtype: DType) -> usize {
        self.vector_bytes() / dtype.bytes()
    }

    /// Multiply-adds per cycle and core on the type of the factors, each counted as two operations.
    fn ops_per_cycle(&self, dtype: DType) -> f64 {
        // Two vector pipes; without fused multiply-add, one multiplies while the other adds.
        let pipes = if self.has("fma") || self.is_arm() { 4.0 } else { 2.0 };
        let f32s = pipes * self.lanes(DType::F32) as f64;
        match dtype {
            DType::I8 | DType::U8 if self.multiplies_tiles_of(dtype) => MATRIX * f32s * 4.0,
            DType::BF16 if self.multiplies_tiles_of(dtype) => MATRIX * f32s * 2.0,
            DType::F32 => f32s,
            DType::F64 => f32s / 2.0,
            // Four products in one lane of a dot-product instruction; else widened to 16 or 32 bits first.
            DType::I8 | DType::U8 if self.has("avx512vnni") || self.has("avxvnni") || self.has("dotprod") => f32s * 4.0,
            DType::F16 if self.has("avx512fp16") => f32s * 2.0,
            DType::BF16 if self.has("avx512bf16") => f32s * 2.0,
            DType::F16 | DType::BF16 => f32s / 2.0,
            DType::I64 | DType::U64 => f32s / 8.0,
            _ => f32s / 2.0,
        }
    }

    /// Operations per second of all cores together on factors of a type, at best.
    pub fn peak(&self, dtype: DType) -> f64 {
        let nominal = |d| self.ops_per_cycle(d) * self.clock;
        let of_core = self
            .peaks
            .as_ref()
            .and_then(|p| p.of(dtype).or_else(|| Some(p.of(DType::F32)? * nominal(dtype) / nominal(DType::F32))));
        of_core.unwrap_or_else(|| nominal(dtype)) * self.cores as f64
    }

    /// Bytes per second of all cores together.
    pub fn bandwidth(&self) -> f64 {
        self.peaks.as_ref().map_or(self.bandwidth_per_core, |p| p.bandwidth) * self.cores as f64
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "llvm -mcpu={} -num-cores={}", self.cpu, self.cores)?;
        match &self.triple {
            Some(triple) => write!(f, " -mtriple={triple}"),
            None => Ok(()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn host_features() -> BTreeSet<String> {
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

#[cfg(not(target_arch = "x86_64"))]
fn host_features() -> BTreeSet<String> {
    BTreeSet::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_end_knows_all_processors() {
        let baseline = CodegenTarget { triple: "x86_64-unknown-linux-gnu".into(), ..CodegenTarget::baseline() };
        for name in X86_LEVELS.iter().map(|l| l.0).chain(X86_CPUS.iter().map(|c| c.0)).chain(["generic"]) {
            CodegenTarget { cpu: name.into(), ..baseline.clone() }.validate().expect("a processor's name");
        }
        for (name, _) in ARM_CPUS {
            let triple = "aarch64-linux-gnu".into();
            CodegenTarget { cpu: (*name).into(), triple, ..baseline.clone() }.validate().expect("a processor's name");
        }
    }

    #[test]
    fn targets_read_as_tvm_writes_them() {
        let t = Target::parse("llvm -mcpu=skylake-avx512 -num-cores=3").expect("legal");
        assert_eq!((t.cpu.as_str(), t.cores, t.vector_bytes()), ("skylake-avx512", 3, 64));
        let t = Target::parse("llvm,-mcpu=haswell,-mattr=+avx512f,-fma,-num-cores=1").expect("legal");
        assert_eq!((t.vector_bytes(), t.has("fma"), t.cores), (64, false, 1));
        let t = Target::parse("llvm -mcpu=neoverse-n1 -mtriple=aarch64-linux-gnu").expect("legal");
        assert_eq!((t.vector_bytes(), t.has("dotprod"), t.codegen().arch()), (16, true, "aarch64"));
        let t = Target::parse("llvm,-mtriple=aarch64-linux-gnu").expect("legal");
        assert_eq!((t.cpu.as_str(), t.has("avx2")), ("generic", false));
        assert_eq!(Target::parse("llvm").expect("legal"), Target::host());
        assert_eq!(Target::parse("llvm,-mcpu=native").expect("legal"), Target::host());
    }

    #[test]
    fn wrong_targets_are_refused_with_advice() {
        for (text, part) in [
            ("", "empty"),
            ("cuda", "`cuda` is not supported"),
            ("llvm -mcpu=skylake-avx51", "did you mean `skylake-avx512`"),
            ("llvm -opt=3", "no option `-opt`"),
            ("llvm -num-cores=0", "no number of cores"),
            ("llvm mcpu", "not of the form"),
        ] {
            let said = Target::parse(text).expect_err("refused").to_string();
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn narrow_factors_are_faster_where_the_machine_has_the_instructions() {
        let t = Target::parse("llvm -mcpu=cascadelake").expect("legal");
        assert!(t.peak(DType::I8) > t.peak(DType::F32));
        let t = Target::parse("llvm -mcpu=haswell").expect("legal");
        assert!(t.peak(DType::I8) < t.peak(DType::F32));
    }
}
