//! The machine that code is made for: what it can do, in the few numbers that choices depend on.

use std::{collections::BTreeSet, fmt};

use crate::{
    diag::{Diagnostic, Refused},
    machine::{Arch, CodegenTarget, Core, Family, Known, TargetError, Timing, X86_LEVELS, family, names},
    tensor::DType,
};

/// A processor, as cost models and schedules see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The code generator, by name: `llvm`, `c`, or one that the program registers.
    pub generator: String,
    /// The processor by LLVM's name.
    pub cpu: String,
    /// LLVM's target triple; the host's where none is given.
    pub triple: Option<String>,
    /// The instruction set extensions that it has, by LLVM's names.
    pub features: BTreeSet<String>,
    /// Threads to use.
    pub cores: usize,
    /// Rates, latencies and caches of a core: of its family, or of this machine.
    pub timing: Timing,
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

/// The code generator where none is named.
const LLVM: &str = "llvm";

/// How many times as much matrix registers multiply as both units for vectors of the same numbers do.
const MATRIX: f64 = 8.0;

/// What LLVM calls the level of a feature set: the name to give it where the processor's own is not known.
fn x86_level(features: &BTreeSet<String>) -> &'static str {
    let has = |level: &&(&str, &[&str])| level.1.iter().all(|f| features.contains(*f));
    X86_LEVELS.iter().take_while(has).last().map_or("generic", |l| l.0)
}

fn features_of(family: &Family) -> BTreeSet<String> {
    family.features().map(str::to_owned).collect()
}

impl Target {
    /// The machine that this runs on, with all its cores. The name is derived from the instruction sets that it reports:
    /// what virtual machines say of their model is often wrong.
    pub fn host() -> Target {
        let known = Known::here();
        let features = known.features.clone();
        let has_all = |name| family(Arch::X86, name).is_some_and(|f| f.features().all(|x| features.contains(x)));
        let cpu = match std::env::consts::ARCH {
            // The newest processor whose matrix registers codegen knows by name; else the level says enough.
            "x86_64" if has_all("sapphirerapids") => "sapphirerapids",
            "x86_64" => x86_level(&features),
            _ => "generic",
        };
        let timing = known.timing;
        Target {
            generator: LLVM.to_owned(),
            cpu: cpu.to_owned(),
            triple: None,
            features,
            cores: known.threads,
            timing,
            peaks: None,
        }
    }

    /// A core of the machine, for schedules.
    pub fn core(&self) -> Core {
        Core::new(&self.codegen(), self.timing)
    }

    /// Whether it is this machine, as far as names and instruction sets tell.
    pub fn is_host(&self) -> bool {
        let host = Target::host();
        self.triple.is_none() && self.cpu == host.cpu && self.features == host.features
    }

    /// The machine as the back end names it.
    pub fn codegen(&self) -> CodegenTarget {
        let features: Vec<String> = self.features.iter().map(|f| format!("+{f}")).collect();
        let triple = self.triple.clone().unwrap_or_else(|| CodegenTarget::baseline().triple);
        CodegenTarget { triple, cpu: self.cpu.clone(), features: features.join(",") }
    }

    /// Reads a target as TVM writes it, such as `llvm -mcpu=skylake-avx512` (commas may stand for blanks). First comes the name of a
    /// code generator; whether there is one of that name is for those to say who ask it for code. Options:
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
        if !kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(refuse(format!("it begins with `{kind}` and not with the name of a code generator")));
        }
        let mut target = Target { generator: kind.clone(), ..Target::host() };
        // Another architecture has nothing of this machine but its cores.
        let triple = options.iter().rev().find_map(|o| o.trim_start_matches('-').strip_prefix("mtriple="));
        if let Some(triple) = triple {
            target.triple = Some(triple.to_owned());
            if target.arch() != std::env::consts::ARCH {
                target.set_cpu("generic").map_err(&refuse)?;
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
        let arch = if self.is_arm() { Arch::Arm } else { Arch::X86 };
        let family = match family(arch, cpu) {
            Some(family) => family,
            None if self.triple.is_none() && family(Arch::Arm, cpu).is_some() => {
                return Err(format!("`{cpu}` is a processor of 64-bit ARM: say `-mtriple=aarch64-linux-gnu` besides"));
            }
            None => {
                return Err(match crate::diag::nearest(cpu, names(arch).collect::<Vec<_>>()) {
                    Some(near) => format!("there is no processor `{cpu}`; did you mean `{near}`?"),
                    None => format!("there is no processor `{cpu}` (`native` is this one, `generic` any)"),
                });
            }
        };
        self.features = features_of(family);
        self.timing = family.timing;
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
        self.codegen().vector_bytes()
    }

    /// Elements of a type in a vector register.
    pub fn lanes(&self, dtype: DType) -> usize {
        self.vector_bytes() / dtype.bytes()
    }

    /// Multiply-adds per cycle and core on the type of the factors, each counted as two operations.
    fn ops_per_cycle(&self, dtype: DType) -> f64 {
        let lanes = self.lanes(DType::F32) as f64;
        let f32s = 2.0 * self.timing.fma.per_cycle * lanes;
        match dtype {
            DType::I8 | DType::U8 if self.multiplies_tiles_of(dtype) => MATRIX * f32s * 4.0,
            DType::BF16 if self.multiplies_tiles_of(dtype) => MATRIX * f32s * 2.0,
            DType::F32 => f32s,
            DType::F64 => f32s / 2.0,
            // Four products in one lane of a dot-product instruction; else widened to 16 or 32 bits first.
            DType::I8 | DType::U8 if self.has("avx512vnni") || self.has("avxvnni") || self.has("dotprod") => {
                8.0 * self.timing.dot.per_cycle * lanes
            }
            // Two products there; elsewhere two by an instruction, and another one to add them.
            DType::I16 => self.core().int16_dot_cycles().map_or(f32s / 2.0, |cycles| 4.0 * lanes / cycles),
            DType::F16 if self.has("avx512fp16") => f32s * 2.0,
            DType::BF16 if self.has("avx512bf16") => f32s * 2.0,
            DType::F16 | DType::BF16 => f32s / 2.0,
            DType::I64 | DType::U64 => f32s / 8.0,
            _ => f32s / 2.0,
        }
    }

    /// How many times as long products of bytes take where both are signed or both are not: machines with instructions for signed
    /// beside unsigned ones multiply them as numbers of 16 bits.
    pub fn bytes_alike(&self) -> f64 {
        let mixed = self.has("avx512vnni") || self.has("avxvnni");
        if mixed && !self.multiplies_tiles_of(DType::I8) { 4.0 } else { 1.0 }
    }

    /// Operations per second of all cores together on factors of a type, at best.
    pub fn peak(&self, dtype: DType) -> f64 {
        let nominal = |d| self.ops_per_cycle(d) * self.timing.clock;
        let of_core = self
            .peaks
            .as_ref()
            .and_then(|p| p.of(dtype).or_else(|| Some(p.of(DType::F32)? * nominal(dtype) / nominal(DType::F32))));
        of_core.unwrap_or_else(|| nominal(dtype)) * self.cores as f64
    }

    /// Bytes per second of all cores together.
    pub fn bandwidth(&self) -> f64 {
        self.peaks.as_ref().map_or(self.timing.memory, |p| p.bandwidth) * self.cores as f64
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -mcpu={} -num-cores={}", self.generator, self.cpu, self.cores)?;
        match &self.triple {
            Some(triple) => write!(f, " -mtriple={triple}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("-mcpu=haswell", "not with the name of a code generator"),
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
