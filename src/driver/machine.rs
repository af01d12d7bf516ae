//! Measuring the machine at hand, and keeping what was found: facts of [`machine::Timing`] by name.

use std::{fs, io, path::PathBuf, time::Instant};

use super::{
    backend::generator_of,
    probe::{CHAINS, Probe, ProbeError},
    stopwatch::{folder_of_user, processor},
};
use crate::{
    diag::Refused,
    loops::digest_bytes,
    machine::{FACTS, Fact, Known, Origin, Timing},
    output,
    target::Target,
};

/// A fact by its name, and its value in the unit that [`FACTS`] gives it.
pub type Measured = Vec<(String, f64)>;

/// What was measured can't be kept.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct KeepError {
    /// The file or folder that can't be written.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// So often each loop runs; the fastest run counts.
const RUNS: usize = 40;

/// By so much vectors lower the clock of a core at most.
const LOWERED: f64 = 0.25;

/// Runs of loops through main memory, which take milliseconds.
const LONG_RUNS: usize = 4;

/// Measures this machine, which takes a second or two: clock, arithmetic, loads, stores, bandwidth and latency of caches and memory. Refuses
/// where code for it can't be made.
pub fn measure() -> Result<Measured, ProbeError> {
    let target = Target::host();
    let known = target.timing;
    let vector = target.core().vector_bytes as f64;
    // The clock under vector load: vectors first, so that the processor has settled on the clock that it runs them at.
    let (mut vectors, mut cycles) = (Probe::multiply_adds(&target, CHAINS)?, Probe::cycles(&target)?);
    let mut cycle = f64::INFINITY;
    let mut multiply_add = f64::INFINITY;
    for _ in 0..RUNS {
        multiply_add = multiply_add.min(vectors.fastest(1)?);
        cycle = cycle.min(cycles.fastest(1)?);
    }
    let cycle = under_vectors(cycle, multiply_add);
    let latency = Probe::multiply_adds(&target, 1)?.fastest(RUNS)?;
    let inner = known.l1.bytes / 2;
    // Mostly beyond the second cache, and within the third where there is one.
    let outer = (8 * known.l2.bytes).min((known.l2.bytes + known.l3.bytes) / 2).max(known.l2.bytes * 3 / 2);
    let far = (4 * known.l3.bytes).clamp(64 << 20, 512 << 20);
    let read = |bytes: i64, runs: usize| Ok::<f64, ProbeError>(Probe::reads(&target, bytes)?.fastest(runs)?.recip());
    let follow = |bytes: i64, line: i64| Ok::<f64, ProbeError>(Probe::follows(&target, bytes, line)?.fastest(RUNS)?);
    let l1 = read(inner, RUNS)?;
    let l3 = read(outer, RUNS / 4)?;
    let written = Probe::writes(&target, inner)?.fastest(RUNS)?.recip();
    let dots = match target.core().int16_dot_cycles() {
        Some(_) => Some(("int8 dot throughput", cycle / Probe::dots(&target)?.fastest(RUNS)?)),
        None => None,
    };
    let found = [
        ("clock", cycle.recip()),
        ("FMA throughput", cycle / multiply_add),
        ("FMA latency", latency / cycle),
        ("integer additions", cycle / Probe::additions(&target)?.fastest(RUNS)?),
        ("loads", l1 * cycle / vector),
        ("stores", written * cycle / vector),
        ("L1 bandwidth", l1 * cycle),
        ("L1 latency", follow(inner, known.l1.line)? / cycle),
        ("L2 bandwidth", read(known.l2.bytes / 2, RUNS)? * cycle),
        ("L2 latency", follow(known.l2.bytes / 2, known.l2.line)? / cycle),
        ("L3 bandwidth", l3 * cycle),
        ("L3 latency", follow(outer, known.l3.line)? / cycle),
        ("bandwidth beyond L2", l3),
        ("DRAM bandwidth", read(far, LONG_RUNS)?),
    ];
    Ok(found.into_iter().chain(dots).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Seconds of a cycle while all multipliers work, of those of one while integers are added and of a multiply-add among many. A core begins a whole number
/// of multiply-adds in a cycle: where it seems to begin a little less, it is the clock that is lower then.
fn under_vectors(cycle: f64, multiply_add: f64) -> f64 {
    let whole = (cycle / multiply_add).round().max(1.0);
    let slower = whole * multiply_add;
    if slower > cycle && slower < (1.0 + LOWERED) * cycle { slower } else { cycle }
}

/// The file that keeps what was measured of this machine; none where there is no folder for caches. Another processor, other instruction sets
/// or another number of threads are another machine.
pub fn file() -> Option<PathBuf> {
    let known = Known::here();
    let features: Vec<&str> = known.features.iter().map(String::as_str).collect();
    let machine = format!("{} {} {} {}", processor(), known.family, features.join(","), known.threads);
    Some(folder_of_user("machine")?.join(format!("{}.tsv", digest_bytes(&[machine.as_bytes()]))))
}

/// What was measured of this machine and kept; none where nothing was. Lines that make no sense are passed over.
pub fn kept() -> Option<Measured> {
    let text = fs::read_to_string(file()?).ok()?;
    let fact = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        let value: f64 = value.trim().parse().ok().filter(|v: &f64| v.is_finite() && *v > 0.0)?;
        FACTS.iter().find(|f| f.name == name).map(|f| (f.name.to_owned(), value))
    };
    let found: Measured = text.lines().filter_map(fact).collect();
    (!found.is_empty()).then_some(found)
}

/// Keeps what was measured. The file, and none where there is no folder for it; refuses where it can't be written.
pub fn keep(measured: &Measured) -> Result<Option<PathBuf>, KeepError> {
    let Some(file) = file() else { return Ok(None) };
    let folder = file.parent().unwrap_or(&file);
    fs::create_dir_all(folder).map_err(|error| KeepError { path: folder.to_owned(), error })?;
    output::replace(&file, lines(measured).as_bytes()).map_err(|error| KeepError { path: file.clone(), error })?;
    Ok(Some(file))
}

/// As they are kept: a line for each fact.
fn lines(measured: &Measured) -> String {
    measured.iter().map(|(name, value)| format!("{name}\t{value:e}\n")).collect()
}

/// By so much two measurements of a fact may differ; where they do by more, something else ran, and neither is taken.
const AGREE: f64 = 0.1;

/// Measures this machine before the first build on it, where no row of the table is the processor's own ([`Known::described`]), and keeps what two
/// measurements agree on. What is to be told of that; None where there was nothing to do: the row is its own, it was measured before, or
/// there is no folder to keep it in.
pub fn measure_first() -> Option<String> {
    let (known, file) = (Known::here(), file()?);
    if known.described || file.exists() {
        return None;
    }
    fs::create_dir_all(file.parent()?).ok()?;
    // Two that measure at once would each measure half of the machine.
    let alone = fs::File::create(file.with_extension("lock")).ok()?;
    let start = Instant::now();
    let what = match alone.try_lock() {
        Ok(()) if file.exists() => return None,
        Ok(()) => match measured_twice(measure) {
            Ok((facts, unsure)) => match output::replace(&file, lines(&facts).as_bytes()) {
                Ok(()) => {
                    let unsure = match unsure.len() {
                        0 => String::new(),
                        _ => format!("; {} as in that row, since two measurements differ", unsure.join(", ")),
                    };
                    format!("measured in {:.1} s, kept in {}{unsure}", start.elapsed().as_secs_f64(), file.display())
                }
                Err(e) => format!("what was measured is not kept: {}: {e}", file.display()),
            },
            Err(e) => format!("it can't be measured: {e}"),
        },
        Err(_) => "another process measures it, so that this build is made by that row".to_owned(),
    };
    let vendor = if known.vendor.is_empty() { "a processor of an unknown vendor" } else { &known.vendor };
    Some(format!("no row of the table is this processor's ({vendor}; nearest: {}): {what}", known.family))
}

/// The faster value of each fact by two measurements, and the names of those by which they differ.
fn measured_twice<E>(mut measure: impl FnMut() -> Result<Measured, E>) -> Result<(Measured, Vec<String>), E> {
    let (first, second) = (measure()?, measure()?);
    let (mut facts, mut unsure) = (Vec::new(), Vec::new());
    for (name, a) in first {
        let b = second.iter().find(|(n, _)| *n == name).map_or(f64::NAN, |(_, b)| *b);
        // Of latencies the least, of rates the greatest is what nothing disturbed.
        let (least, most) = (a.min(b), a.max(b));
        match most - least <= AGREE * most {
            true => facts.push((name.clone(), if name.ends_with("latency") { least } else { most })),
            false => unsure.push(name),
        }
    }
    Ok((facts, unsure))
}

/// What is known of a machine, and what was measured: {"family", "vendor", "features", "threads", "threads_per_core", "facts": [{"name",
/// "unit", "value", "from", "measured"}, …]}.
pub fn to_json(known: &Known, measured: &Measured) -> serde_json::Value {
    let of = |name: &str| measured.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    let fact = |(f, origin): (&Fact, &Origin)| serde_json::json!({ "name": f.name, "unit": f.unit, "value": (f.get)(&known.timing), "from": origin.name(), "measured": of(f.name) });
    let facts: Vec<serde_json::Value> = FACTS.iter().zip(&known.origins).map(fact).collect();
    serde_json::json!({ "family": known.family, "vendor": known.vendor, "features": known.features,
        "threads": known.threads, "threads_per_core": known.threads_per_core, "facts": facts })
}

/// Reads a target ([`Target::parse`]) that code is going to be made for. Where it is this machine, schedules follow what was measured of it.
///
/// # Errors
/// Also where there is no code generator of its name.
pub fn target(text: &str) -> Result<Target, Refused> {
    let mut target = Target::parse(text)?;
    generator_of(&target)?;
    if target.is_host() {
        target.timing = timing();
    }
    Ok(target)
}

/// A core of this machine with what was measured and kept.
pub fn timing() -> Timing {
    match kept() {
        Some(measured) => Known::here().corrected(&measured).timing,
        None => Known::here().timing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_lower_the_clock() {
        // Two in a cycle, of a clock that is a tenth lower; one and a half, as a thread has them beside another one.
        assert!((under_vectors(1.0, 0.55) - 1.1).abs() < 1e-12);
        assert_eq!([under_vectors(1.0, 0.49), under_vectors(1.0, 0.68), under_vectors(1.0, 1.0)], [1.0; 3]);
    }

    #[test]
    fn what_two_measurements_disagree_on_is_left_out() {
        let run = |clock: f64, latency: f64, l2: f64| -> Measured {
            vec![("clock".into(), clock), ("L1 latency".into(), latency), ("L2 bandwidth".into(), l2)]
        };
        let mut runs = [run(3.0e9, 5.0, 63.0), run(3.1e9, 5.2, 42.0)].into_iter();
        let (facts, unsure) = measured_twice(|| runs.next().ok_or(())).expect("both are there");
        assert_eq!(facts, [("clock".to_owned(), 3.1e9), ("L1 latency".to_owned(), 5.0)]);
        assert_eq!(unsure, ["L2 bandwidth"]);
        assert!(measured_twice(|| runs.next().ok_or(())).is_err());
    }
}
