//! `resat import`.

use std::path::PathBuf;

use hashbrown::HashMap;

use super::{
    Failure,
    args::{ModelArgs, write_file},
};
use crate::{
    frontend::Model,
    ir::Module,
    pass::bind_params,
    relay::{json, params, text},
    tensor::Tensor,
};

/// Arguments of `resat import`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  resat import model.onnx -o model.relay --params model.params")]
pub(super) struct Args {
    /// A model of any kind that there is a front end for
    file: PathBuf,
    /// Where Relay goes; standard output where not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where the weights go, in Relay's binary format; without it they become constants of the program
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,
    /// Write Relay JSON instead of text
    #[arg(long)]
    json: bool,
    /// The extent of a symbolic dimension of the model, as "batch=4"; may be given several times
    #[arg(long, value_name = "NAME=N")]
    dim: Vec<String>,
    /// The shape of an input, as "x=1x3x224x224", where `?` is an extent that stays unknown; may be given several times
    #[arg(long, value_name = "INPUT=SHAPE")]
    shape: Vec<String>,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let Model { mut module, params: weights } = ModelArgs::of_file(args.file, args.dim, args.shape).read()?;
    if args.params.is_none() {
        module = bind_params(&module, &weights)?;
    }
    let printed = if args.json { json::print_module(&module)? } else { text::print_module(&module) };
    if let Some(path) = &args.params {
        let renamed = if args.json { HashMap::new() } else { renamed(&module, &printed)? };
        let name = |n: &str| renamed.get(n).cloned().unwrap_or_else(|| n.to_owned());
        let named: Vec<(String, &Tensor)> = weights.iter().map(|(n, t)| (name(n), t)).collect();
        write_file(path, &params::write(named.iter().map(|(n, t)| (n.as_str(), *t))))?;
    }
    match &args.output {
        Some(path) => write_file(path, printed.as_bytes()),
        None => super::print(&printed),
    }
}

/// What parameters of `@main` are called in the text, where names that Relay can't spell are written otherwise.
fn renamed(module: &Module, printed: &str) -> Result<HashMap<String, String>, Failure> {
    let read = text::parse_module("the printed program", printed)?;
    let names = |m: &Module| -> Vec<String> {
        let main = m.function("main").map(|f| f.params.clone()).unwrap_or_default();
        main.iter().map(|&v| m.var(v).name.to_string()).collect()
    };
    Ok(names(module).into_iter().zip(names(&read)).collect())
}
