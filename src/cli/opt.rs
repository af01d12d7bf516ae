//! `resat opt`.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Failure,
    args::{ModelArgs, PassArgs, write_file},
    dump::{Dump, DumpArgs},
    progress::Progress,
};
use crate::{
    extract::to_json,
    infer::infer_types,
    pass::{Pass, PassContext, annotated_compilers, forgotten_annotations},
    relay::{json, text},
    saturate::Extracted,
};

/// Arguments of `resat opt`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  resat opt model.relay --params model.params --passes \"SimplifyInference,FoldScaleAxis,FoldConstant\" -o out.relay"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Where the result goes: Relay JSON where the name ends in .json, else Relay text; standard output where not given (a terminal gets
    /// digests instead of weights)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Say on stderr what each pass and rule did
    #[arg(long)]
    report: bool,
    /// Where the e-graphs go, as egraph-serialize's JSON: one per region and saturation, the second as FILE with `.1` before its
    /// ending
    #[arg(long, value_name = "FILE")]
    dump_egraph: Option<PathBuf>,
    #[command(flatten)]
    dump: DumpArgs,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut settings = args.passes.settings()?;
    settings.limits.bound = args.report;
    let passes = args.passes.sequence(&settings)?;
    let progress = Progress::new();
    let mut cx = PassContext { on_start: Some(Box::new(progress.teller())), ..PassContext::default() };
    let dump = args.dump.start()?;
    if let Some((before, after)) = dump.as_ref().map(Dump::hooks) {
        (cx.before_pass, cx.after_pass) = (Some(before), Some(after));
    }
    let graphs: Arc<Mutex<Vec<String>>> = Arc::default();
    if args.dump_egraph.is_some() {
        let graphs = graphs.clone();
        cx.on_region = Some(Box::new(move |x: Extracted| {
            let json = to_json(x.problem, &x.region.graph).to_string();
            graphs.lock().unwrap_or_else(PoisonError::into_inner).push(json);
        }));
    }
    let module = args.model.bound()?;
    // Type errors are reported against the program as it was written, before passes move things about.
    let module = infer_types(module)?.into_module();
    let annotated = annotated_compilers(&module);
    let module = passes.run(module, &mut cx)?;
    cx.warnings.extend(forgotten_annotations(&annotated, &module, false));
    drop(progress);
    super::warn(&cx.warnings);
    dump.map_or(Ok(()), Dump::finish)?;
    if args.report {
        super::report(&cx.log, &cx.reports);
    }
    if let Some(path) = &args.dump_egraph {
        for (i, json) in graphs.lock().unwrap_or_else(PoisonError::into_inner).iter().enumerate() {
            write_file(&numbered(path, i), json.as_bytes())?;
        }
    }
    match &args.output {
        Some(path) if path.extension().is_some_and(|e| e == "json") => {
            write_file(path, json::print_module(&module)?.as_bytes())
        }
        Some(path) => write_file(path, text::print_module(&module).as_bytes()),
        // Nobody reads megabytes of weights.
        None if std::io::stdout().is_terminal() => super::print(&text::print_brief(&module)),
        None => super::print(&text::print_module(&module)),
    }
}

/// The name of file number `i`: that of the first as it is.
fn numbered(path: &Path, i: usize) -> PathBuf {
    match (i, path.extension()) {
        (0, _) => path.to_owned(),
        (_, Some(e)) => path.with_extension(format!("{i}.{}", e.to_string_lossy())),
        (_, None) => path.with_extension(i.to_string()),
    }
}
