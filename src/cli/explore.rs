//! `resat explore`.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Failure,
    args::{ModelArgs, PassArgs, write_file},
    run::gather,
};
use crate::{
    diag::{Diagnostic, Refused, read_text},
    explore::{self, Member, Options},
    infer::infer_types,
    pass::{Pass, PassContext, sequence},
    relay::{json, text},
    tensor::{Tensor, Value},
};

/// Arguments of `resat explore`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  resat explore model.relay --params model.params --passes \"AlterOpLayout, Legalize, FoldConstant, FuseOps\" -o orders.html\n  resat explore model.relay --rulesets algebra,layout,fold-scale-bias --state orders.jsonl --json\n\nEach order takes the place of the stage `optimize` in the default pipeline; stages of it that are among the passes are left out around it."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Rulesets whose orders are tried, each as a saturation of its own; may stand beside passes
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rulesets: Vec<String>,
    /// The passes that orders are compared with; the default pipeline with all their rulesets where not given
    #[arg(long, value_name = "LIST")]
    saturation: Option<String>,
    /// Where there are more orders, so many are drawn
    #[arg(long, value_name = "N", default_value = "720")]
    max_orders: NonZeroUsize,
    /// Seed of the draw
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// Seconds for which each different program is measured
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    measure_seconds: f64,
    /// Threads; all cores where not given
    #[arg(long, value_name = "N", value_parser = super::args::threads)]
    threads: Option<NonZeroUsize>,
    /// So many passes run at the same time; the times that they take are then reported for all of them, not for each alone
    #[arg(long, value_name = "N", default_value = "1")]
    workers: NonZeroUsize,
    /// An npz archive; keys are parameter names or positions. Random inputs where not given
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Also find out how good the saturation is when it is stopped after each round
    #[arg(long)]
    anytime: bool,
    /// Where what was found out is kept, as JSON lines: a run that was interrupted goes on from there
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Where the page goes: one HTML file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where the fastest program goes, after its passes: Relay JSON where the name ends in .json, else Relay text
    #[arg(long, value_name = "FILE")]
    winner: Option<PathBuf>,
    /// Print JSON instead of a summary
    #[arg(long)]
    json: bool,
}

/// Saturations may take so long here, where other limits do not end them before: what a busy machine cut short would be another program
/// in a run that is resumed, and no fair one.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut settings = args.passes.settings()?;
    settings.limits.time = settings.limits.time.max(PATIENCE);
    let mut members = args.passes.passes.as_deref().map_or(Ok(Vec::new()), |text| Member::parse(text, &settings, &[]))?;
    for name in &args.rulesets {
        let mut more = Member::parse(&format!("{0}:Saturate({0})", name.trim()), &settings, &[])?;
        more.iter_mut().for_each(|m| m.slot = members.last().map_or(0, |l| l.slot + 1));
        if members.iter().any(|m| m.label == more[0].label) {
            return Err(Refused::from(Diagnostic::new(format!("`{}` is there twice", more[0].label))).into());
        }
        members.extend(more);
    }
    if members.is_empty() {
        let d = Diagnostic::new("no passes are given whose orders could be tried");
        return Err(Refused::from(d.help("name them by `--passes` or `--rulesets`; `resat passes` lists them")).into());
    }
    let measure = Duration::try_from_secs_f64(args.measure_seconds)
        .map_err(|e| Refused::from(Diagnostic::new(format!("--measure-seconds {}: {e}", args.measure_seconds))))?;
    let module = args.model.bound()?;
    let inputs: Vec<Tensor> =
        gather(&infer_types(module.clone())?, args.inputs.as_deref())?.iter().flat_map(Value::flatten).collect();
    // Models are often called alike, each in a folder of its own.
    let name = |path: &Path| {
        let parts: Vec<_> = path.iter().map(|p| p.to_string_lossy()).collect();
        parts[parts.len().saturating_sub(2)..].join("/")
    };
    let rules = args.passes.rules.iter().map(|p| read_text(p)).collect::<Result<Vec<String>, Refused>>()?;
    let mut about = vec![("rules of the user".to_owned(), rules.join("\n"))];
    about.push(("costs".to_owned(), settings.cost.fingerprint().unwrap_or_else(|| args.passes.cost.clone())));
    about.push(("seconds of extraction".to_owned(), args.passes.extract_time.to_string()));
    about.extend(args.passes.max_error.iter().map(|e| ("largest error".to_owned(), e.to_string())));
    about.extend(args.saturation.iter().map(|s| ("passes of the saturation".to_owned(), s.clone())));
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg:10} {bar:32} {pos}/{len} ({elapsed})") {
        bar.set_style(style);
    }
    let teller = bar.clone();
    let options = Options {
        threads: args.threads.map_or(settings.target.cores, NonZeroUsize::get),
        settings,
        config: args.passes.config(),
        members,
        own: Vec::new(),
        saturation: args.saturation.clone(),
        max_orders: args.max_orders.get(),
        seed: args.seed,
        measure,
        anytime: args.anytime,
        state: args.state.clone(),
        model: name(&args.model.file),
        about,
        workers: args.workers.get(),
        crew: None,
        on_progress: Some(Box::new(move |p| {
            teller.set_message(p.phase);
            teller.set_length(p.total as u64);
            teller.set_position(p.done as u64);
        })),
    };
    let config = options.config.clone();
    let shared = options.settings.clone();
    let found = explore::explore(&module, &inputs, options)?;
    bar.finish_and_clear();
    if let (Some(path), Some(passes)) = (&args.winner, &found.winner) {
        let passes = sequence(passes, &config.settings(&shared)?)?;
        let module = passes.run(infer_types(module)?.into_module(), &mut PassContext::default())?;
        let text = match path.extension().is_some_and(|e| e == "json") {
            true => json::print_module(&module)?,
            false => text::print_module(&module),
        };
        write_file(path, text.as_bytes())?;
    }
    if let Some(path) = &args.output {
        write_file(path, explore::page(&found).as_bytes())?;
    }
    match args.json {
        true => {
            let json = serde_json::to_string_pretty(&found).map_err(|e| Failure::Other(e.to_string()))?;
            super::print(&format!("{json}\n"))
        }
        false => super::print(&(found.summary() + &found.winner.as_deref().map_or(String::new(), command))),
    }
}

/// What of this command line is its own, and not about the model and its passes: whether a value follows.
const OWN: [(&str, bool); 15] = [
    ("--passes", true),
    ("--rulesets", true),
    ("--saturation", true),
    ("--max-orders", true),
    ("--seed", true),
    ("--measure-seconds", true),
    ("--threads", true),
    ("--inputs", true),
    ("--state", true),
    ("--output", true),
    ("-o", true),
    ("--winner", true),
    ("--anytime", false),
    ("--json", false),
    ("explore", false),
];

/// The command line that makes the fastest program: this one's model and settings with its passes.
fn command(passes: &str) -> String {
    let quoted = |arg: &str| match !arg.is_empty() && arg.chars().all(|c| c.is_alphanumeric() || "-_./=:,+%@".contains(c)) {
        true => arg.to_owned(),
        false => format!("'{}'", arg.replace('\'', "'\\''")),
    };
    let (mut words, mut skip) = (vec!["resat build".to_owned()], false);
    for arg in std::env::args().skip(1) {
        if std::mem::take(&mut skip) {
            continue;
        }
        let own = OWN.iter().find(|(flag, _)| arg == *flag || arg.starts_with(&format!("{flag}=")));
        match own {
            Some((flag, takes)) => skip = *takes && arg == *flag,
            None => words.push(quoted(&arg)),
        }
    }
    words.extend(["--passes".to_owned(), quoted(passes), "-o model.so".to_owned()]);
    format!("the fastest is made by\n  {}\n", words.join(" "))
}
