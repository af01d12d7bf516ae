//! Placement by cost against each compiler alone and against greedy regions: whole models, interleaved in one run.
//!
//!     cargo bench --bench placement                       all four models, all compilers that are there
//!     cargo bench --bench placement -- --short            MobileNet-V2 and BERT-4, fewer rounds
//!     cargo bench --bench placement -- resnet50 --rounds 40 --threads 2
//!
//! *by cost* times what it is about to choose, remembers that in the user's cache (`resat/times`), and has whole programs take turns
//! at the end, as `--compiler … --cost measured` does; *by model* measures nothing. All that were built then take turns here, in rounds of a
//! few runs each. A ratio is the median, over rounds, of another's time by that of placement by cost, above 1 where placement by cost
//! is the faster one; what it may be off by is reported beside it. A verdict that this leaves open is looked at in more rounds. The last
//! lines say whether placement was ever slower by more than 5 %.
//!
//! Models are those of the corpus, with random weights where there are none beside them: time does not depend on weights.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use resat::{
    cost::Timer,
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
    let mut args = Args { models: Vec::new(), rounds: 20, threads: 1 };
    let mut given = std::env::args().skip(1);
    let number = |n: Option<String>| n.and_then(|n| n.parse().ok()).expect("a number follows");
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--short" => {
                args.models = vec!["mobilenet_v2".into(), "bert4".into()];
                args.rounds = 10;
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
fn ways(watch: &Arc<dyn Timer>) -> Vec<(String, Placement)> {
    // The library first, then the compiler that takes everything: the other way round, nothing would be left for the library. A
    // compiler whose library is not there takes nothing.
    let mut names = partition::compilers();
    names.sort_by_key(|n| *n == "c");
    let all = Placement::of(&names).expect("their own names");
    let with = |strategy: Strategy, machine: Option<Arc<dyn Timer>>| Placement { strategy, machine, ..all.clone() };
    let mut ways = vec![(RESAT.to_owned(), Placement::default())];
    ways.extend(names.iter().map(|n| (format!("all {n}"), with(Strategy::All((*n).into()), None))));
    ways.push(("greedy".into(), with(Strategy::Greedy, None)));
    ways.push((MODEL.into(), with(Strategy::Cost, None)));
    ways.push((OURS.into(), with(Strategy::Cost, Some(watch.clone()))));
    ways
}

fn build(module: &Module, placement: &Placement, threads: usize) -> Result<Built, String> {
    // Times are those of as many threads as run it.
    let target = Target { cores: threads, ..Target::host() };
    let mut options = Options::new(Settings { placement: placement.clone(), ..Settings::new(target) });
    options.threads = threads;
    driver::build(module.clone(), &[], options).map_err(|e| e.to_string())
}

fn quantile(times: &[f64], part: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

fn median(times: &[f64]) -> f64 {
    quantile(times, 0.5)
}

/// Who is this much slower than placement by cost leaves after a few rounds: there is nothing to find out.
const FAR: f64 = 1.5;

/// Runs of a turn that are timed, after one that is not.
const RUNS: usize = 3;

/// So often rounds are added where a verdict is open.
const AGAIN: usize = 3;

/// One way and what was measured of it.
struct Entry {
    way: String,
    built: Built,
    /// By round; shorter where it left.
    turns: Vec<f64>,
    least: f64,
}

impl Entry {
    fn turn(&mut self, inputs: &[Tensor]) {
        let once = || {
            let start = Instant::now();
            self.built.executable.run(inputs).expect("runs");
            start.elapsed().as_secs_f64()
        };
        once();
        let times: Vec<f64> = (0..RUNS).map(|_| once()).collect();
        self.turns.push(median(&times));
        self.least = times.into_iter().fold(self.least, f64::min);
    }

    /// How often its time holds that of another way: the median over rounds, and what that may be off by.
    fn ratio(&self, ours: &Entry) -> (f64, f64) {
        let all: Vec<f64> = self.turns.iter().zip(&ours.turns).map(|(t, o)| t / o).collect();
        // Twice the standard error of a median, by the quartiles.
        let spread = quantile(&all, 0.75) - quantile(&all, 0.25);
        (median(&all), 2.0 * 1.25 * spread / 1.35 / (all.len() as f64).sqrt())
    }
}

/// Rounds of turns, each way first as often as the others.
fn rounds(entries: &mut [Entry], number: usize, inputs: &[Tensor]) {
    let done = entries.iter().map(|e| e.turns.len()).max().unwrap_or(0);
    for round in done..done + number {
        let n = entries.len();
        let ours = entries.iter().find(|e| e.way == OURS && round >= 3).map(|e| quantile(&e.turns, 0.25));
        for k in 0..n {
            let entry = &mut entries[(round + k) % n];
            let is_far = ours.is_some_and(|o| quantile(&entry.turns, 0.25) > FAR * o);
            if !is_far || entry.way == OURS {
                entry.turn(inputs);
            }
        }
    }
}

const OURS: &str = "by cost";

/// Measures one model, prints its table, and gives whatever is faster than placement by the noise that is allowed, and more.
fn measure(name: &str, mut entries: Vec<Entry>, number: usize, inputs: &[Tensor]) -> (Vec<String>, Vec<String>) {
    rounds(&mut entries, number, inputs);
    let is_open = |entries: &[Entry]| {
        let Some(ours) = entries.iter().find(|e| e.way == OURS) else { return false };
        entries.iter().filter(|e| e.turns.len() == ours.turns.len()).any(|e| {
            let (ratio, off) = e.ratio(ours);
            (ratio - 1.0 / NOISE).abs() < off
        })
    };
    for _ in 0..AGAIN {
        if is_open(&entries) {
            rounds(&mut entries, number, inputs);
        }
    }
    let Some(ours) = entries.iter().find(|e| e.way == OURS) else {
        return (vec![format!("{name}: by cost was not built")], Vec::new());
    };
    let plain = entries.iter().find(|e| e.way == RESAT);
    println!("  {:<14}{:>12}{:>12}{:>10}{:>10}{:>9}", "", "median ms", "least ms", "ratio", "off by", "rounds");
    let (mut losses, mut by_model) = (Vec::new(), Vec::new());
    for e in &entries {
        let (ratio, off) = e.ratio(ours);
        let m = 1e3 * median(&e.turns);
        let rounds = e.turns.len();
        println!("  {:<14}{m:>12.3}{:>12.3}{ratio:>10.3}{off:>10.3}{rounds:>9}", e.way, 1e3 * e.least);
        if ratio < 1.0 / NOISE && e.way != MODEL {
            losses.push(format!("{name}: {} takes {ratio:.3} of the time of placement by cost", e.way));
        }
        if let (MODEL, Some(plain)) = (e.way.as_str(), plain) {
            let (ratio, _) = plain.ratio(e);
            if ratio < 1.0 / NOISE {
                by_model.push(format!("{name}: resat alone takes {ratio:.3} of the time of placement by models"));
            }
        }
    }
    (losses, by_model)
}

/// Resat without external compilers, and placement by models.
const RESAT: &str = "resat";
const MODEL: &str = "by model";

fn main() {
    let args = args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("RESAT_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let target = Target { cores: args.threads, ..Target::host() };
    let watch: Arc<dyn Timer> = Arc::new(Stopwatch::new(target, Stopwatch::folder_of_user()));
    let (mut losses, mut by_model) = (Vec::new(), Vec::new());
    for name in &args.models {
        let folder = shared.join("corpus").join(name);
        let Some(module) = model(&folder) else {
            println!("{name}: skipped, as {} is not there", folder.display());
            continue;
        };
        println!("{name}, {} threads", args.threads);
        let mut entries: Vec<Entry> = Vec::new();
        for (way, placement) in ways(&watch) {
            let start = Instant::now();
            match build(&module, &placement, args.threads) {
                Ok(built) => {
                    let seconds = start.elapsed().as_secs_f64();
                    let (regions, calls) = (built.record().expect("it is built here").external.len(), built.calls);
                    println!("  {way}: built in {seconds:.1} s; {regions} regions, {calls} kernels");
                    if [OURS, MODEL].contains(&way.as_str()) {
                        built
                            .record()
                            .expect("it is built here")
                            .reports
                            .iter()
                            .flat_map(|r| &r.notes)
                            .for_each(|note| println!("    {note}"));
                    }
                    entries.push(Entry { way, built, turns: Vec::new(), least: f64::INFINITY });
                }
                Err(why) => println!("  {way}: not built: {why}"),
            }
        }
        let typed = infer_types(module).expect("well typed");
        let inputs: Vec<Tensor> =
            random_inputs(&typed, 0).expect("known extents").iter().flat_map(Value::flatten).collect();
        let (slower, modelled) = measure(name, entries, args.rounds, &inputs);
        losses.extend(slower);
        by_model.extend(modelled);
    }
    let percent = 100.0 * (NOISE - 1.0);
    for (what, found) in [("by cost", losses), ("by models", by_model)] {
        match found.is_empty() {
            true => println!("placement {what} was never slower by more than {percent:.0} %"),
            false => println!("placement {what} was slower:\n  {}", found.join("\n  ")),
        }
    }
}
