//! A target as LLVM is given it.

use super::families::{Arch, family, names};
use crate::tensor::DType;

/// A machine: triple, processor and features, all by LLVM's names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CodegenTarget {
    /// Architecture, vendor, system, such as `x86_64-unknown-linux-gnu`.
    pub triple: String,
    /// Processor, such as `haswell`; decides instruction scheduling and implies features.
    pub cpu: String,
    /// All features that code may use, such as `+avx2,+fma`; a leading `-` takes one away that the processor implies.
    pub features: String,
}

/// The extension that multiplies tiles of a type, besides `amx-tile`.
pub fn matrix_extension(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::I8 | DType::U8 => Some("amx-int8"),
        DType::BF16 => Some("amx-bf16"),
        _ => None,
    }
}

/// The feature of targets on which matrix registers are emulated: what would be their instructions become calls, so that code for them can
/// be tried anywhere, within this process and slowly.
pub const EMULATED: &str = "amx-emulated";

/// A target that code can't be made for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    /// LLVM would abort on a processor that it does not know, so names are checked first.
    #[error("unknown processor `{cpu}` for {arch}; known are: {known}")]
    Cpu {
        /// The name.
        cpu: String,
        /// The architecture.
        arch: String,
        /// The names that would do.
        known: String,
    },
    /// Another architecture.
    #[error("no code can be made for `{0}`: x86_64 and aarch64 are supported")]
    Architecture(String),
}

impl CodegenTarget {
    /// The plainest machine of the architecture that this program was built for.
    pub fn baseline() -> CodegenTarget {
        let (arch, cpu) = match cfg!(target_arch = "aarch64") {
            true => ("aarch64", "generic"),
            false => ("x86_64", "x86-64"),
        };
        CodegenTarget { triple: format!("{arch}-unknown-linux-gnu"), cpu: cpu.into(), features: String::new() }
    }

    /// The architecture: what the triple starts with.
    pub fn arch(&self) -> &str {
        self.triple.split('-').next().unwrap_or_default()
    }

    /// Whether code can be made for it.
    pub fn validate(&self) -> Result<(), TargetError> {
        let arch = match self.arch() {
            "x86_64" => Arch::X86,
            "aarch64" | "arm64" => Arch::Arm,
            _ => return Err(TargetError::Architecture(self.triple.clone())),
        };
        if family(arch, &self.cpu).is_some() {
            return Ok(());
        }
        let known: Vec<&str> = names(arch).collect();
        Err(TargetError::Cpu { cpu: self.cpu.clone(), arch: self.arch().into(), known: known.join(", ") })
    }

    /// Whether the features have one, such as `avx2`.
    pub fn has(&self, feature: &str) -> bool {
        let said = self.features.split(',').rev().find(|f| f.get(1..) == Some(feature));
        said.is_some_and(|f| f.starts_with('+'))
    }

    /// What code for this target may use and another machine lacks: the architecture, or features; none where it can run there.
    pub fn lacking_on(&self, other: &CodegenTarget) -> Option<String> {
        if self.arch() != other.arch() {
            return Some(self.arch().to_owned());
        }
        let features = self.machine_features();
        let wanted = features.split(',').filter_map(|f| f.strip_prefix('+'));
        let lacking: Vec<&str> = wanted.filter(|f| self.has(f) && !other.has(f)).collect();
        (!lacking.is_empty()).then(|| lacking.join(", "))
    }

    /// Bytes that one vector register holds.
    pub fn vector_bytes(&self) -> usize {
        match () {
            _ if self.has("avx512f") => 64,
            _ if self.has("avx") || self.has("avx2") => 32,
            _ => 16,
        }
    }

    /// Number of vector registers.
    pub fn vector_registers(&self) -> usize {
        if self.has("avx512f") || self.arch() != "x86_64" { 32 } else { 16 }
    }

    /// Instructions that add four products of an unsigned and a signed byte to each 32-bit lane; 0 where separate multiplications
    /// are as good.
    pub fn int8_dot(&self) -> usize {
        match () {
            _ if self.arch() != "x86_64" && self.has("i8mm") => 1,
            // One for the products, two for the 128 that unsigned bytes are more than signed ones.
            _ if self.arch() != "x86_64" && self.has("dotprod") => 3,
            _ if self.arch() != "x86_64" => 4,
            _ if self.multiplies_bytes() => 1,
            _ if self.has("avx512f") && !self.has("avx512bw") => 0,
            // Two products of 16 bits, twice, and their sums; before that the bytes are widened.
            _ if self.has("avx2") => 4,
            _ => 0,
        }
    }

    /// Instructions that add two products of numbers of 16 bits to each 32-bit lane; 0 where there are none for that.
    pub fn int16_dot(&self) -> usize {
        match () {
            _ if self.arch() != "x86_64" => 0,
            _ if self.multiplies_bytes() => 1,
            _ if self.vector_bytes() == 64 && !self.has("avx512bw") => 0,
            _ if self.vector_bytes() == 32 && !self.has("avx2") => 0,
            _ => 2,
        }
    }

    /// Whether one instruction adds four products of bytes, or two of numbers of 16 bits, to each lane of a whole vector.
    fn multiplies_bytes(&self) -> bool {
        self.has("avx512vnni") && self.has("avx512vl") || self.has("avxvnni") && !self.has("avx512f")
    }

    /// Whether it multiplies bytes no faster than the same numbers in 16 bits, as which they need not be widened first.
    pub fn widens_bytes(&self) -> bool {
        self.int16_dot() == 2
    }

    /// Instructions that do the same as for [`int8_dot`](CodegenTarget::int8_dot) with bytes that lie as many bytes apart as a vector has lanes; 0 where no permutation gathers
    /// them.
    pub fn int8_dot_strided(&self) -> usize {
        usize::from(self.arch() == "x86_64" && self.has("avx512vnni") && self.has("avx512vbmi") && self.has("avx512bw"))
    }

    /// Instructions that add two products of `bfloat16` to each lane of 32 bits.
    pub fn bf16_dot(&self) -> usize {
        match self.arch() == "x86_64" && self.has("avx512bf16") && self.has("avx512vl") {
            true => 1,
            // Multiply-adds of what is widened in place.
            false => 3,
        }
    }

    /// Whether it has matrix registers for products of tiles of a type.
    pub fn multiplies_tiles_of(&self, dtype: DType) -> bool {
        let extension = matrix_extension(dtype).is_some_and(|e| self.has(e));
        extension && self.arch() == "x86_64" && self.has("amx-tile")
    }

    /// Whether instructions on tiles are calls of functions that do the same, for machines without: see [`EMULATED`].
    pub fn emulates_tiles(&self) -> bool {
        self.has(EMULATED)
    }

    /// The features of the processor that code runs on: without what is emulated.
    pub fn machine_features(&self) -> String {
        let emulated = self.emulates_tiles();
        let kept = self.features.split(',').filter(|f| !emulated || !f.get(1..).is_some_and(|f| f.starts_with("amx-")));
        kept.collect::<Vec<&str>>().join(",")
    }

    /// The processor to schedule for, given all features. The model's name says little: virtual machines make it up.
    pub fn processor_of(&self) -> &'static str {
        let all = |features: &[&str]| features.iter().all(|f| self.has(f));
        match () {
            _ if self.arch() != "x86_64" => "generic",
            _ if all(&["amx-int8", "amx-bf16", "avx512fp16"]) => "sapphirerapids",
            _ if all(&["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]) => "x86-64-v4",
            _ if all(&["avx2", "bmi", "bmi2", "f16c", "fma"]) => "x86-64-v3",
            _ => "x86-64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_and_names() {
        let mut t = CodegenTarget { features: "+avx,+avx2,-avx512f".into(), ..CodegenTarget::baseline() };
        t.triple = "x86_64-unknown-linux-gnu".into();
        assert!(t.has("avx2") && !t.has("avx512f") && !t.has("avx5"));
        assert_eq!((t.vector_bytes(), t.vector_registers()), (32, 16));
        t.features = "+avx512f,-avx2".into();
        assert!(!t.has("avx2"));
        assert_eq!((t.vector_bytes(), t.vector_registers()), (64, 32));
        let other = CodegenTarget { features: "+avx,+avx512f".into(), ..t.clone() };
        assert_eq!((t.lacking_on(&other), other.lacking_on(&t)), (None, Some("avx".into())));
        assert_eq!(
            t.lacking_on(&CodegenTarget { triple: "aarch64-unknown-linux-gnu".into(), ..t.clone() }),
            Some("x86_64".into())
        );
        t.cpu = "i999".into();
        assert!(t.validate().unwrap_err().to_string().contains("znver3"));
        t.triple = "sparc-sun-solaris".into();
        assert!(matches!(t.validate(), Err(TargetError::Architecture(_))));
    }
}
