//! `resat sensitivity`.

use std::path::PathBuf;

use super::{
    Failure,
    args::{ModelArgs, PassArgs, write_file},
};
use crate::{
    diag::{Diagnostic, Refused},
    infer::infer_types,
    pass::{Quantize, QuantizeOptions, Study, parse_specs},
    report::{Cell, Page, Plot, Point, Series, Table},
};

/// Arguments of `resat sensitivity`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  resat sensitivity model.relay --params model.params --samples samples.npz --quantize \"method=kl,skip=0\" -o curve.html\n\nErrors are shares of the greatest magnitude of the program's result; gains are in the cost model's unit."
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
    /// Where a page with the trade-off curve goes: one HTML file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
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
    let module = infer_types(args.model.bound()?)?.into_module();
    let study = quantize.study(module)?;
    if let Some(path) = &args.output {
        let model = args.model.file.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        write_file(path, page(&study, &model).as_bytes())?;
    }
    match args.json {
        true => super::print(&format!("{}\n", study.to_json())),
        false => super::print(&study.to_string()),
    }
}

/// The study as a page: the trade-off curve, its programs, and the layers.
fn page(study: &Study, model: &str) -> String {
    let named = |quantized: &[usize]| match quantized.len() {
        0 => "none".to_owned(),
        _ => quantized.iter().map(|&n| format!("{n} {}", study.layers[n].name)).collect::<Vec<_>>().join(", "),
    };
    let points = |error: fn(&crate::pass::Point) -> f64| -> Vec<Point> {
        study.points.iter().map(|p| Point::new(error(p), p.cost).label(named(&p.quantized))).collect()
    };
    let curve = Plot::new("error, as a share of the result's greatest magnitude", format!("cost by {}", study.model))
        .from_zero(true, true)
        .steps(Series::new("predicted", points(|p| p.predicted)))
        .scatter(Series::new("measured", points(|p| p.measured)));
    let mut programs = Table::new("programs", &["cost", "predicted error", "measured error", "quantized layers"]);
    for p in &study.points {
        programs.row(vec![
            Cell::scientific(Some(p.cost)),
            Cell::scientific(Some(p.predicted)),
            Cell::scientific(Some(p.measured)),
            Cell::text(named(&p.quantized)),
        ]);
    }
    let mut layers = Table::new("layers", &["layer", "name", "operator", "error alone", "gain alone", "place"]);
    for l in &study.layers {
        layers.row(vec![
            Cell::number(Some(l.number as f64), 0),
            Cell::text(l.name.as_str()),
            Cell::text(l.op.as_str()),
            Cell::scientific(l.error),
            Cell::scientific(l.gain),
            Cell::text(l.place.as_deref().unwrap_or("–")),
        ]);
    }
    let of_floats = format!("{:.3e}", study.cost);
    Page::new(format!("Quantization of {model}"))
        .lead("What quantizing each layer does to the result and to the cost, and the programs between all floats and all integers.")
        .facts(&[
            ("layers", study.layers.len().to_string(), "that may be quantized".into()),
            ("samples", study.samples.to_string(), "that errors are measured on".into()),
            ("cost of the float program", of_floats, format!("by {}", study.model)),
        ])
        .figure("Cost and error", "None of these programs is worse than another in both.", &curve)
        .heading("The programs")
        .paragraph("Predicted errors add up what each layer does alone; measured ones are of the program with its layers quantized.")
        .table(&programs)
        .heading("The layers")
        .paragraph("What the program's error is, and how much less it costs, where a layer alone is quantized.")
        .table(&layers)
        .render()
}
