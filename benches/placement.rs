//! Placement by cost against each compiler alone and against greedy regions: whole models, interleaved in one run.
//!
//!     cargo bench --bench placement                       all four models, all compilers that are there
//!     cargo bench --bench placement -- --short            MobileNet-V2 and BERT-4, fewer rounds
//!     cargo bench --bench placement -- resnet50 --rounds 200 --threads 2
//!
//! Placement by cost times what it is about to choose, remembers that in the user's cache (`resat/times`), and compares whole
//! programs at the end, as `--compiler … --cost measured` does; `by model` does none of this. Ratios are of medians, above 1 where
//! placement by cost is the faster one. The last line says whether it was ever slower by more than 5 %.
//!
//! Models are those of the corpus, with random weights where there are none beside them: time does not depend on weights.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use resat::{
    cost::Machine,
    driver::{self, Built, Options, Stopwatch, load_module, load_params},
    infer::infer_types,
    interp::random_inputs,
    ir::{Module, Name},
    partition,
    pass::{Placement, Settings, Strategy, bind_params},
    target::Target,
    tensor::{Tensor, Value},
};

const MODELS: [&str; 4] = ["resnet50", "mobilenet_v2", "bert4", "inception_v3"];

/// Slower than another by more than this is a loss: less is noise.
const NOISE: f64 = 1.05;

struct Args {
    models: Vec<String>,
    rounds: usize,
    threads: usize,
}

fn args() -> Args {
    let mut args = Args { models: Vec::new(), rounds: 60, threads: 1 };
    let mut given = std::env::args().skip(1);
    let number = |n: Option<String>| n.and_then(|n| n.parse().ok()).expect("a number follows");
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--short" => {
                args.models = vec!["mobilenet_v2".into(), "bert4".into()];
                args.rounds = 20;
            }
            "--rounds" => args.rounds = number(given.next()),
            "--threads" => args.threads = number(given.next()),
            // What cargo adds.
            "--bench" => {}
            model => args.models.push(model.to_owned()),
        }
    }
    if args.models.is_empty() {
        args.models = MODELS.map(str::to_owned).to_vec();
    }
    args
}

/// A model with its weights; none where it is not there.
fn model(folder: &Path) -> Option<Module> {
    let module = load_module(&folder.join("model.relay")).ok()?;
    let file = folder.join("model.params");
    if file.exists() {
        return Some(bind_params(&module, &load_params(&file).expect("well formed")).expect("its own parameters"));
    }
    let named: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("params.json")).expect("names of the weights"))
            .expect("JSON");
    let typed = infer_types(module.clone()).expect("recorded models are well typed");
    let params = typed.entry("main").expect("models have a main").params.clone();
    let values = random_inputs(&typed, 1).expect("recorded models have known extents");
    // Small weights keep activations finite.
    let weights: Vec<(Name, Tensor)> = params
        .into_iter()
        .zip(values)
        .map(|(p, v)| (module.var(p).name.clone(), v))
        .filter(|(name, _)| named.get(name.as_str()).is_some())
        .map(|(name, v)| {
            let t = v.tensor();
            let small = match t.dtype().is_float() {
                true => Tensor::from_f64_fn(t.dtype(), t.shape(), |i| 0.05 + 0.01 * t.get_f64(i)),
                false => t.clone(),
            };
            (name, small)
        })
        .collect();
    Some(bind_params(&module, &weights).expect("its own parameters"))
}

/// Who may make what, by the name that the table has for it.
fn ways(watch: &Arc<dyn Machine>) -> Vec<(String, Placement)> {
    // A compiler whose library is not there takes nothing.
    let names = partition::compilers();
    let all = Placement::of(&names).expect("their own names");
    let with = |strategy: Strategy, machine: Option<Arc<dyn Machine>>| Placement { strategy, machine, ..all.clone() };
    let mut ways = vec![("resat".to_owned(), Placement::default())];
    ways.extend(names.iter().map(|n| (format!("all {n}"), with(Strategy::All((*n).into()), None))));
    ways.push(("greedy".into(), with(Strategy::Greedy, None)));
    ways.push(("by model".into(), with(Strategy::Cost, None)));
    ways.push(("by cost".into(), with(Strategy::Cost, Some(watch.clone()))));
    ways
}

fn build(module: &Module, placement: &Placement, threads: usize) -> Result<Built, String> {
    // Times are those of as many threads as run it.
    let target = Target { cores: threads, ..Target::host() };
    let mut options = Options::new(Settings { placement: placement.clone(), ..Settings::new(target) });
    options.threads = threads;
    driver::build(module.clone(), &[], options).map_err(|e| e.to_string())
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() {
    let args = args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("RESAT_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let target = Target { cores: args.threads, ..Target::host() };
    let watch: Arc<dyn Machine> = Arc::new(Stopwatch::new(target, Stopwatch::folder_of_user()));
    let mut losses = Vec::new();
    for name in &args.models {
        let folder = shared.join("corpus").join(name);
        let Some(module) = model(&folder) else {
            println!("{name}: skipped, as {} is not there", folder.display());
            continue;
        };
        println!("{name}, {} threads, {} rounds", args.threads, args.rounds);
        let mut built: Vec<(String, Built, Vec<f64>)> = Vec::new();
        for (way, placement) in ways(&watch) {
            let start = Instant::now();
            match build(&module, &placement, args.threads) {
                Ok(b) => {
                    let (regions, calls) = (b.external.len(), b.calls);
                    println!(
                        "  {way}: built in {:.1} s; {regions} regions, {calls} kernels",
                        start.elapsed().as_secs_f64()
                    );
                    if way == "by cost" {
                        b.reports.iter().flat_map(|r| &r.notes).for_each(|note| println!("    {note}"));
                    }
                    built.push((way, b, Vec::new()));
                }
                Err(why) => println!("  {way}: not built: {why}"),
            }
        }
        let typed = infer_types(module).expect("well typed");
        let inputs: Vec<Tensor> =
            random_inputs(&typed, 0).expect("known extents").iter().flat_map(Value::flatten).collect();
        let once = |b: &Built| {
            let start = Instant::now();
            b.executable.run(&inputs).expect("runs");
            start.elapsed().as_secs_f64()
        };
        for (_, b, _) in &built {
            (0..3).for_each(|_| _ = once(b));
        }
        for round in 0..args.rounds {
            // Each is first as often as the others.
            let n = built.len();
            for k in 0..n {
                let (_, b, times) = &mut built[(round + k) % n];
                times.push(once(b));
            }
        }
        let Some(ours) = built.iter().find(|b| b.0 == "by cost").map(|b| median(&b.2)) else { continue };
        println!("  {:<14}{:>12}{:>12}{:>10}", "", "median ms", "least ms", "ratio");
        for (way, _, times) in &built {
            let (m, least) = (median(times), times.iter().copied().fold(f64::INFINITY, f64::min));
            println!("  {way:<14}{:>12.3}{:>12.3}{:>10.3}", 1e3 * m, 1e3 * least, m / ours);
            if ours > m * NOISE && way != "by model" {
                losses.push(format!("{name}: by cost {:.3} ms, {way} {:.3} ms", 1e3 * ours, 1e3 * m));
            }
        }
    }
    match losses.is_empty() {
        true => println!("placement by cost was never slower by more than {:.0} %", 100.0 * (NOISE - 1.0)),
        false => println!("placement by cost was slower:\n  {}", losses.join("\n  ")),
    }
}
