//! `resat extract`.

use std::{path::PathBuf, time::Duration};

use super::{
    Failure,
    args::{listed, write_file},
};
use crate::{
    diag::{Diagnostic, Refused, read_text},
    extract::{self, Extractor, Imported},
};

/// Arguments of `resat extract`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  resat opt model.relay --dump-egraph graph.json -o out.relay\n  resat extract graph.json --extractor search -o choice.json"
)]
pub(super) struct Args {
    /// An e-graph in egraph-serialize's JSON
    file: PathBuf,
    #[arg(long, value_name = "NAMES", default_value = "dag", value_delimiter = ',',
        help = format!("Who chooses the program: {}; several with commas, to compare them", listed(extract::names())))]
    extractor: Vec<String>,
    /// Seconds that `search` and `ilp` may take
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    extract_time: f64,
    /// Check and price this choice, of another extractor, as well
    #[arg(long, value_name = "FILE")]
    choice: Option<PathBuf>,
    /// Where the cheapest choice goes, as JSON: {"choices": {class: node, …}, "cost": …}
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        Ok::<_, Refused>((name, read_text(path)?))
    };
    let time = Duration::try_from_secs_f64(args.extract_time)
        .map_err(|e| Refused::from(Diagnostic::new(format!("--extract-time {}: {e}", args.extract_time))))?;
    let (name, text) = read(&args.file)?;
    let graph = Imported::parse(&name, &text)?;
    let extractors: Vec<Box<dyn Extractor>> =
        args.extractor.iter().map(|e| extract::by_name(e, time)).collect::<Result<_, _>>()?;
    let p = &graph.problem;
    let mut lines = format!("{} classes, {} nodes\n", p.classes(), p.candidates());
    let mut best = None;
    for extractor in extractors {
        let start = std::time::Instant::now();
        let mut solution = extractor.solve(p);
        let seconds = start.elapsed().as_secs_f64();
        if solution.bound.is_none() {
            solution.bound = extract::bound(p, &solution.choice);
        }
        match (solution.choice.cost(p), solution.gap(p)) {
            (Ok(cost), gap) => {
                let gap = gap.map_or(String::new(), |g| format!(", at most {:.3} % too much", 100.0 * g));
                let late = if solution.timed_out { ", stopped by time" } else { "" };
                lines += &format!("{:>6}: cost {cost:.6e} in {seconds:.3} s{gap}{late}\n", extractor.name());
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, solution.choice));
                }
            }
            (Err(flaw), _) => lines += &format!("{:>6}: no program: {flaw}\n", extractor.name()),
        }
    }
    if let Some(path) = &args.choice {
        let (name, text) = read(path)?;
        let choice = graph.choice_from_json(&name, &text)?;
        match choice.cost(p) {
            Ok(cost) => lines += &format!("{name}: cost {cost:.6e}\n"),
            Err(flaw) => return Err(Refused::from(Diagnostic::new(format!("{name}: no program: {flaw}"))).into()),
        }
    }
    let found = best.is_some();
    if let (Some(path), Some((_, choice))) = (&args.output, best) {
        let json = graph.choice_to_json(&choice).map_err(|flaw| Failure::Other(flaw.to_string()))?;
        write_file(path, format!("{json:#}\n").as_bytes())?;
    }
    super::print(&lines)?;
    match found {
        true => Ok(()),
        false => Err(Failure::Other(format!("{name}: no extractor found a program"))),
    }
}
