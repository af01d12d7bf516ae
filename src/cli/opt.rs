//! `resat opt`.

use std::path::PathBuf;

use super::{
    Failure,
    args::{ModelArgs, PassArgs, write_file},
    progress::Progress,
};
use crate::{
    infer::infer_types,
    pass::{Pass, PassContext, bind_params},
    relay::{json, text},
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
    /// Where the result goes: Relay JSON where the name ends in .json, else Relay text; standard output where not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Say on stderr what each pass and rule did
    #[arg(long)]
    report: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let settings = args.passes.settings()?;
    let passes = args.passes.sequence(&settings)?;
    let progress = Progress::new();
    let mut cx = PassContext { on_start: Some(Box::new(progress.teller())), ..PassContext::default() };
    let module = bind_params(&args.model.module()?, &args.model.params()?)?;
    // Errors of types are told of the program as it was written, before passes move things about.
    let module = infer_types(module)?.into_module();
    let module = passes.run(module, &mut cx)?;
    drop(progress);
    if args.report {
        super::report(&cx.log, &cx.reports);
    }
    match &args.output {
        Some(path) if path.extension().is_some_and(|e| e == "json") => {
            write_file(path, json::print_module(&module)?.as_bytes())
        }
        Some(path) => write_file(path, text::print_module(&module).as_bytes()),
        None => super::print(&text::print_module(&module)),
    }
}
