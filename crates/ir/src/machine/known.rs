//! What is known of the machine at hand, and where from.

use std::{collections::BTreeSet, sync::OnceLock};

use super::{
    detect::{self, CacheShape},
    families::{Arch, FAMILIES, Family},
    timing::{CacheLevel, FACTS, Fact, Timing},
};

/// Where a fact comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From the row of the processor's family.
    Table,
    /// From what the system or the processor reports.
    Detected,
    /// From a measurement on this machine.
    Measured,
}

impl Origin {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Table => "table",
            Origin::Detected => "detected",
            Origin::Measured => "measured",
        }
    }
}

/// This machine.
#[derive(Clone, Debug)]
pub struct Known {
    /// The row that is nearest to it. Virtual machines often lie about their model, so instruction sets and caches decide.
    pub family: &'static str,
    /// Its vendor, as CPUID spells it.
    pub vendor: String,
    /// The instruction set extensions that this process may use, by LLVM's names.
    pub features: BTreeSet<String>,
    /// Hardware threads that this process may use.
    pub threads: usize,
    /// Hardware threads of a core, where the system reports it.
    pub threads_per_core: Option<i64>,
    /// The facts of a core.
    pub timing: Timing,
    /// By fact of [`FACTS`], where it comes from.
    pub origins: Vec<Origin>,
    /// Whether the row is this processor's own: of its vendor, with first and second caches of its sizes, and without extensions that only other
    /// rows have. Otherwise the row is a guess, and what is measured is better.
    pub described: bool,
}

/// A measured fact that differs from the table's by less than this share is as the table says: measurements vary, and choices must not.
const DIFFERS: f64 = 0.15;

impl Known {
    /// What the table and the system say of this machine.
    pub fn here() -> &'static Known {
        static HERE: OnceLock<Known> = OnceLock::new();
        HERE.get_or_init(|| Known::of(&detect::vendor(), &detect::features(), detect::caches()))
    }

    fn of(vendor: &str, features: &BTreeSet<String>, caches: [Option<CacheShape>; 3]) -> Known {
        let family = nearest(vendor, features, &caches);
        let mut timing = family.timing;
        let mut origins = vec![Origin::Table; FACTS.len()];
        let levels: [(&str, fn(&mut Timing) -> &mut CacheLevel); 3] =
            [("L1", |t| &mut t.l1), ("L2", |t| &mut t.l2), ("L3", |t| &mut t.l3)];
        for (shape, (level, cache)) in caches.iter().zip(levels) {
            let Some(shape) = shape else { continue };
            let cache = cache(&mut timing);
            // Of what several cores share, each has a part.
            let cores = if level == "L3" { shape.sharers } else { 1 };
            (cache.bytes, cache.ways, cache.line) = (shape.bytes / cores, shape.ways, shape.line);
            for (fact, origin) in FACTS.iter().zip(&mut origins) {
                if ["size", "ways", "line"].iter().any(|f| fact.name == format!("{level} {f}")) {
                    *origin = Origin::Detected;
                }
            }
        }
        Known {
            family: family.name,
            vendor: vendor.to_owned(),
            features: features.clone(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads_per_core: detect::threads_per_core(),
            timing,
            origins,
            described: describes(family, vendor, features, &caches),
        }
    }

    /// The same with what was measured, by name of [`FACTS`], where that differs from what was known.
    pub fn corrected(&self, measured: &[(String, f64)]) -> Known {
        let mut known = self.clone();
        for (i, fact) in FACTS.iter().enumerate() {
            let Some((_, value)) = measured.iter().find(|(name, _)| name == fact.name) else { continue };
            if differs(fact, &self.timing, *value) {
                (fact.set)(&mut known.timing, *value);
                known.origins[i] = Origin::Measured;
            }
        }
        known
    }
}

/// Whether a measured value is another than what is known, beyond what measurements vary by.
pub fn differs(fact: &Fact, known: &Timing, measured: f64) -> bool {
    let known = (fact.get)(known);
    measured.is_finite() && measured > 0.0 && (measured - known).abs() > DIFFERS * known
}

/// Whether a row is that of a processor: see [`Known::described`]. What the system doesn't report speaks against none.
fn describes(family: &Family, vendor: &str, features: &BTreeSet<String>, caches: &[Option<CacheShape>; 3]) -> bool {
    let sizes = [family.timing.l1, family.timing.l2];
    let others = FAMILIES.iter().filter(|f| f.arch == family.arch).flat_map(Family::features);
    (family.arch == Arch::Arm || !family.vendor.is_empty() && family.vendor == vendor)
        && sizes.iter().zip(caches).all(|(own, c)| c.is_none_or(|c| c.bytes == own.bytes))
        && others.filter(|x| features.contains(*x)).all(|x| family.features().any(|own| own == x))
}

/// The family that fits best: its extensions are all there, and as many as possible; then its caches; then the newest.
fn nearest(vendor: &str, features: &BTreeSet<String>, caches: &[Option<CacheShape>; 3]) -> &'static Family {
    let arch = if cfg!(target_arch = "aarch64") { Arch::Arm } else { Arch::X86 };
    let fits = |f: &&Family| {
        f.arch == arch && (f.vendor.is_empty() || f.vendor == vendor) && f.features().all(|x| features.contains(x))
    };
    let alike = |f: &Family| {
        let own = [f.timing.l1, f.timing.l2];
        own.iter().zip(caches).filter(|(a, b)| b.is_some_and(|b| a.bytes == b.bytes)).count()
    };
    let all = FAMILIES.iter().enumerate().filter(|(_, f)| fits(f));
    all.max_by_key(|(i, f)| (f.features().count(), alike(f), *i)).map_or(&FAMILIES[0], |(_, f)| f)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::machine::{fact, families::family};

    #[test]
    fn instruction_sets_and_caches_decide_which_family_it_is() {
        let shape = |bytes, ways| Some(CacheShape { bytes, ways, line: 64, sharers: 1 });
        for (vendor, like, caches, want) in [
            ("GenuineIntel", "cascadelake", [None, None, None], "cascadelake"),
            ("GenuineIntel", "icelake-client", [shape(48 << 10, 12), shape(512 << 10, 8), None], "rocketlake"),
            ("GenuineIntel", "icelake-server", [shape(48 << 10, 12), shape(1280 << 10, 20), None], "icelake-server"),
            ("AuthenticAMD", "znver4", [None, None, None], "znver4"),
            ("AuthenticAMD", "x86-64-v3", [None, None, None], "znver3"),
            ("SomebodyElse", "znver5", [None, None, None], "x86-64-v4"),
        ] {
            let features = family(Arch::X86, like).expect("a family").features().map(str::to_owned).collect();
            let known = Known::of(vendor, &features, caches);
            assert_eq!(known.family, want, "{vendor} {like}");
        }
    }

    #[test]
    fn a_row_describes_its_own_processors() {
        let shape = |bytes| Some(CacheShape { bytes, ways: 16, line: 64, sharers: 1 });
        let of = |vendor: &str, like: &str, more: &[&'static str], caches| {
            let own = family(Arch::X86, like).expect("a family").features();
            Known::of(vendor, &own.chain(more.iter().copied()).map(str::to_owned).collect(), caches).described
        };
        let caches = [shape(48 << 10), shape(1 << 20), None];
        assert!(of("AuthenticAMD", "znver5", &[], caches) && of("AuthenticAMD", "znver5", &[], [None; 3]));
        // A second cache of another size, an extension that came later, a vendor of whom no row is.
        assert!(!of("AuthenticAMD", "znver5", &[], [shape(48 << 10), shape(2 << 20), None]));
        assert!(!of("AuthenticAMD", "znver5", &["avx512fp16"], caches));
        assert!(!of("SomebodyElse", "znver5", &[], caches));
    }

    #[test]
    fn what_is_measured_counts_where_it_differs() {
        let known = Known::of("AuthenticAMD", &Default::default(), [None, None, None]);
        let (clock, fma) = (fact("clock").expect("a fact"), fact("FMA latency").expect("a fact"));
        let near = (fact("clock").expect("a fact").get)(&known.timing) * 1.1;
        let now = known.corrected(&[("clock".into(), near), ("FMA latency".into(), 11.0), ("nonsense".into(), 1.0)]);
        assert_eq!(((clock.get)(&now.timing), (fma.get)(&now.timing)), ((clock.get)(&known.timing), 11.0));
        assert!(now.origins.contains(&Origin::Measured) && !now.origins.contains(&Origin::Detected));
        assert!(!differs(fma, &known.timing, f64::NAN) && !differs(fma, &known.timing, 0.0));
    }
}
