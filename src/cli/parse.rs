//! `resat parse`.

use std::path::PathBuf;

use super::{Failure, args::write_file};
use crate::{
    diag::{Diagnostic, Refused, utf8},
    frontend::{self, LoadOptions, SourceFile},
    relay::{json, text},
};

/// Arguments of `resat parse`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  resat parse model.relay -o canonical.relay")]
pub(super) struct Args {
    /// Relay text (a module or one expression) or Relay JSON, or a model of another kind that there is a front end for
    file: PathBuf,
    /// Where the canonical text goes; standard output where not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print Relay JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    // Once: it may be a pipe.
    let bytes = std::fs::read(&args.file).map_err(|e| Refused::from(Diagnostic::new(format!("{name}: {e}"))))?;
    if !frontend::is_relay(&bytes) {
        let file = SourceFile { name: &name, bytes: &bytes, folder: Some(&frontend::folder_of(&args.file)) };
        let module = frontend::load_from(&file, &LoadOptions::default())?.module;
        let printed = if args.json { json::print_module(&module)? } else { text::print_module(&module) };
        return match &args.output {
            Some(path) => write_file(path, printed.as_bytes()),
            None => super::print(&printed),
        };
    }
    let text = utf8(&name, &bytes)?;
    let printed = if text.trim_start().starts_with('{') {
        let module = json::parse_module(&name, text)?;
        if args.json { json::print_module(&module)? } else { text::print_module(&module) }
    } else {
        let parsed = text::parse(&name, text)?;
        if args.json { json::print_module(&parsed.into_module())? } else { parsed.print() }
    };
    match &args.output {
        Some(path) => write_file(path, printed.as_bytes()),
        None => super::print(&printed),
    }
}
