//! `resat sensitivity`.

use std::path::PathBuf;

use super::{
    Failure,
    args::{ModelArgs, PassArgs},
};
use crate::{
    diag::{Diagnostic, Refused},
    infer::infer_types,
    pass::{Quantize, QuantizeOptions, bind_params, parse_specs},
};

/// Arguments of `resat sensitivity`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  resat sensitivity model.relay --params model.params --samples samples.npz --quantize \"method=kl,skip=0\"\n\nErrors are shares of the greatest magnitude of the program's result; gains are in the cost model's unit."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// An npz archive: for each input an array of samples, along an axis of their own in front
    #[arg(long, value_name = "FILE")]
    samples: PathBuf,
    /// Arguments of the pass `Quantize`, as "method=kl,per_channel=false,skip=0"
    #[arg(long, value_name = "LIST", default_value = "")]
    quantize: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let settings = args.passes.settings()?;
    let samples = args.samples.display().to_string();
    let quote = if samples.contains('"') { '\'' } else { '"' };
    let list = match args.quantize.trim() {
        "" => String::new(),
        list => format!(", {list}"),
    };
    let specs = parse_specs(&format!("Quantize(calibration={quote}{samples}{quote}{list})"))?;
    let [spec] = specs.as_slice() else {
        return Err(Refused::from(Diagnostic::new("--quantize takes arguments of one pass `Quantize`")).into());
    };
    let quantize = Quantize::new(QuantizeOptions::parse(spec)?, &settings)?;
    let module = infer_types(bind_params(&args.model.module()?, &args.model.params()?)?)?.into_module();
    let study = quantize.study(module)?;
    match args.json {
        true => super::print(&format!("{}\n", study.to_json())),
        false => super::print(&study.to_string()),
    }
}
