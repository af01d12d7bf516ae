//! A real network from file to result: read, saturated, partitioned, compiled, run, compared with recorded outputs and labels.
//!
//!     cargo run --release --example digits

use std::{error::Error, path::Path, time::Instant};

use resat::{
    driver::{self, Options, load_module, load_params},
    interp,
    pass::{Settings, bind_params, default_pipeline, sequence},
    target::Target,
    tensor::{Tensor, Value},
};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let array =
        |file: &str| -> Result<Tensor, Box<dyn Error>> { Ok(load_params(&folder.join(file))?.swap_remove(0).1) };
    let module = load_module(&folder.join("model.relay"))?;
    let params = load_params(&folder.join("model.params"))?;
    let (images, recorded, labels) = (array("inputs.npz")?, array("outputs.npz")?, array("labels.npz")?);
    println!("a convolutional network for handwritten digits, {} held-out images", labels.len());

    // The default pipeline, and the classifier at the network's end handed to the system's C compiler.
    let settings = Settings::new(Target::host());
    let mut pipeline = default_pipeline(&settings)?;
    let classifier = sequence("Partition(c, nn.dense, nn.contrib_dense_pack, nn.softmax)", &settings)?;
    pipeline.run_before("fuse", "partition", Box::new(classifier))?;
    let mut options = Options::new(settings);
    options.passes = Some(Box::new(pipeline));
    options.name = "digits".into();
    let start = Instant::now();
    let built = driver::build(module.clone(), &params, options)?;
    let compile = start.elapsed();

    let run = Instant::now();
    let outputs = built.executable.run(std::slice::from_ref(&images))?;
    let first = run.elapsed();
    let mut latencies: Vec<f64> = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        built.executable.run(std::slice::from_ref(&images))?;
        latencies.push(start.elapsed().as_secs_f64());
    }
    latencies.sort_by(f64::total_cmp);

    let bound = bind_params(&module, &params)?;
    let oracle = interp::run_flat(&bound, "main", vec![Value::Tensor(images)])?;
    let row = |name: &str, value: String| println!("  {name:34} {value}");
    for r in &built.record().expect("it is built here").reports {
        row("saturation", r.stop.to_string());
        row("e-nodes and classes", format!("{} in {} (from {} e-nodes)", r.nodes, r.classes, r.nodes_before));
        let fired = r.rules.iter().filter(|x| x.unions > 0);
        row("rules fired", format!("{} of {}, {} equalities", fired.count(), r.rules.len(), r.unions()));
        row("cost before and after", format!("{:.1} us -> {:.1} us", 1e6 * r.cost_before, 1e6 * r.cost_after));
    }
    row("kernels", format!("{} in {} calls", built.record().expect("it is built here").kernels.len(), built.calls));
    row("regions for the C compiler", built.record().expect("it is built here").external.len().to_string());
    row("compile time", format!("{:.0} ms", 1e3 * compile.as_secs_f64()));
    row("latency", format!("{:.3} ms a batch (first {:.3} ms)", 1e3 * latencies[25], 1e3 * first.as_secs_f64()));
    row("largest difference, interpreter", format!("{:.1e}", difference(&outputs[0], &oracle[0])));
    row("largest difference, recorded", format!("{:.1e}", difference(&outputs[0], &recorded)));
    let correct = top_1(&outputs[0], &labels);
    row("top-1", format!("{correct} of {} ({:.1} %)", labels.len(), 100.0 * correct as f64 / labels.len() as f64));

    let worst = difference(&outputs[0], &oracle[0]).max(difference(&outputs[0], &recorded));
    if worst > 1e-3 {
        return Err(format!("the outputs are off by {worst:.1e}").into());
    }
    Ok(())
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    a.to_f64_vec().iter().zip(b.to_f64_vec()).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

fn top_1(scores: &Tensor, labels: &Tensor) -> usize {
    let classes = scores.shape()[1];
    let scores = scores.to_f64_vec();
    let best = |row: &[f64]| (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let guesses = scores.chunks(classes).map(best);
    guesses.zip(labels.to_i64_vec()).filter(|(g, l)| *g == Some(*l as usize)).count()
}
