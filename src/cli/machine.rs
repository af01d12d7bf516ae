//! `resat machine`.

use super::{Failure, print};
use crate::{
    driver::{
        machine,
        together::{Placement, Together},
    },
    machine::{FACTS, Known, Origin, differs},
};

/// Arguments of `resat machine`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  resat machine\n  resat machine --measure\n  resat machine --together --json\n\nWhat is measured is kept, and later commands for `-mcpu=native` build with it."
)]
pub(super) struct Args {
    /// Measure what can be measured, keep it, and say what differs
    #[arg(long)]
    measure: bool,
    /// Measure what two threads have of each other at the moment, and nothing else: arithmetic of both at once, a message there and back, reads of what the
    /// other has written. Whether they are two cores that share a cache, two that do not, or one core's two threads; a virtual machine's host may change
    /// it at any time
    #[arg(long, conflicts_with = "measure")]
    together: bool,
    /// As JSON: {"family": …, "facts": [{"name", "unit", "value", "from"}, …]}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if args.together {
        let found = Together::measure().map_err(|e| Failure::Other(e.to_string()))?;
        return match args.json {
            true => print(&format!("{:#}\n", found.to_json())),
            false => print(&beside(&found)),
        };
    }
    let table = Known::here();
    let measured = match args.measure {
        true => Some(machine::measure().map_err(|e| Failure::Other(e.to_string()))?),
        false => machine::kept(),
    };
    let known = measured.as_ref().map_or_else(|| table.clone(), |m| table.corrected(m));
    let of = |name: &str| measured.iter().flatten().find(|(n, _)| n == name).map(|(_, v)| *v);
    if args.json {
        print(&format!("{:#}\n", machine::to_json(&known, &measured.clone().unwrap_or_default())))?;
    } else {
        print(&shown(&known, table, &of))?;
    }
    if args.measure
        && let Some(file) = machine::keep(&measured.unwrap_or_default()).map_err(|e| Failure::Other(e.to_string()))?
    {
        eprintln!("kept in {}", file.display());
    }
    Ok(())
}

/// What two threads have of each other, in a line.
fn beside(found: &Together) -> String {
    let what = match found.placement() {
        Placement::InTurns => "one processor, which runs one after the other",
        Placement::OneCore => "one core's two threads",
        Placement::SharedCache => "two cores that share a cache",
        Placement::Apart => "two cores that share no cache",
    };
    format!(
        "two threads: {what}\n{:.0} GFLOP/s each at once, {:.0} alone; {:.2} us there and back; {:.0} GB/s of what the other has written\n",
        found.both / 1e9,
        found.alone / 1e9,
        found.round_trip * 1e6,
        found.read / 1e9
    )
}

/// The facts as a table, with what was measured beside them.
fn shown(known: &Known, table: &Known, of: &dyn Fn(&str) -> Option<f64>) -> String {
    let features: Vec<&str> = known.features.iter().map(String::as_str).collect();
    let siblings = match known.threads_per_core {
        Some(1) => ", a core each".to_owned(),
        Some(n) => format!(", {n} hardware threads a core"),
        None => String::new(),
    };
    let mut text = format!(
        "family: {} (nearest by instruction sets and caches)\nvendor: {}\ninstruction sets: {}\nthreads: {}{siblings}\n\n",
        known.family,
        known.vendor,
        features.join(" "),
        known.threads
    );
    text += &format!("{:<22}{:>10}  {:<15}{:<10}measured\n", "fact", "value", "unit", "from");
    for (fact, origin) in FACTS.iter().zip(&known.origins) {
        let (value, unit) = scaled((fact.get)(&known.timing), fact.unit);
        let beside = match of(fact.name) {
            Some(v) if differs(fact, &table.timing, v) => {
                let before = scaled((fact.get)(&table.timing), fact.unit).0;
                format!("{}, differs from {before}", scaled(v, fact.unit).0)
            }
            Some(v) => scaled(v, fact.unit).0,
            None => "-".to_owned(),
        };
        let from: &str = Origin::name(*origin);
        text += &format!("{:<22}{value:>10}  {unit:<15}{from:<10}{beside}\n", fact.name);
    }
    text
}

/// A value in a unit that a person reads.
fn scaled(value: f64, unit: &'static str) -> (String, &'static str) {
    match unit {
        "Hz" => (format!("{:.2}", value / 1e9), "GHz"),
        "bytes/s" => (format!("{:.1}", value / 1e9), "GB/s"),
        "bytes" if value >= 1024.0 => (format!("{:.0}", value / 1024.0), "KB"),
        "bytes/core" => (format!("{:.0}", value / 1024.0), "KB/core"),
        _ if value.fract() == 0.0 => (format!("{value:.0}"), unit),
        _ => (format!("{value:.2}"), unit),
    }
}
