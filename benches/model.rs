//! How well the model of a core, by which kernels are scheduled, knows this machine: what it expects of every kernel of some networks
//! beside what the kernel takes, by kind of kernel; and whether it ranks the tilings of each reduction as measurements do.
//!
//! ```sh
//! cargo bench --bench model                                        # six recorded networks
//! cargo bench --bench model -- resnet18 --rounds 40 --tilings 60   # others; so many seconds a network for measuring tilings
//! cargo bench --bench model -- --tilings 60 --drawn 12             # also of a dozen tilings from the best to the worst of all
//! cargo bench --bench model -- --tilings 60 --list                 # every tiling that was measured, too: kernel, rank, cycles, seconds
//! ```
//!
//! Everything runs on one thread. A kernel's time is the median of its runs within the network; its error is the share by which the
//! model's figure differs from that. Tilings are timed alone, as `--tune` does, and compared by Spearman's rank correlation.

mod recorded;

use std::{collections::BTreeMap, time::Duration};

use resat::{
    driver::{self, Options, Profile, Runnable, load_module, load_params, tuned_in},
    infer::infer_types,
    interp,
    pass::{Settings, bind_params},
    target::Target,
    tensor::Tensor,
};

const NETWORKS: [&str; 6] = ["resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "inception_v3", "bert4"];

/// Calls that take less are not counted: the clock and the call itself are a part of what is seen of them.
const SHORTEST: f64 = 5e-6;

/// Tilings whose times differ by less have no order that could be measured.
const SPREAD: f64 = 1.1;

/// Seconds that were measured and expected, of the calls of one kind.
#[derive(Default)]
struct Kind {
    calls: Vec<(f64, f64)>,
}

/// What a kernel is, by the operator that decides its time.
fn kind(kernel: &str) -> &'static str {
    const KINDS: [(&str, &str); 8] = [
        ("depthwise", "depthwise convolution"),
        ("winograd", "Winograd"),
        ("conv2d", "convolution"),
        ("dense", "GEMM"),
        ("matmul", "GEMM"),
        ("attention", "attention"),
        ("pool", "pooling"),
        ("norm", "normalization"),
    ];
    KINDS.iter().find(|(part, _)| kernel.contains(part)).map_or("other", |(_, kind)| kind)
}

/// Spearman's rank correlation. None where one of the two has no order.
fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let ranks = |values: Vec<f64>| -> Vec<f64> {
        // Equal values share the mean of their ranks.
        let rank = |v: &f64| {
            let below = values.iter().filter(|w| *w < v).count();
            let equal = values.iter().filter(|w| *w == v).count();
            below as f64 + (equal - 1) as f64 / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (a, b) = (ranks(pairs.iter().map(|p| p.0).collect()), ranks(pairs.iter().map(|p| p.1).collect()));
    let mean = (pairs.len() - 1) as f64 / 2.0;
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    Some(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()).filter(|r| r.is_finite())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let (mut names, mut rounds, mut tilings, mut drawn, mut list) = (Vec::new(), 20usize, 0u64, 0usize, false);
    while let Some(arg) = args.next() {
        let mut number =
            |what: &str| args.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{what} takes a number"));
        match arg.as_str() {
            "--rounds" => rounds = number("--rounds") as usize,
            "--tilings" => tilings = number("--tilings"),
            "--drawn" => drawn = number("--drawn") as usize,
            "--list" => list = true,
            _ => names.push(arg),
        }
    }
    if names.is_empty() {
        names = NETWORKS.map(str::to_owned).to_vec();
    }
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    let (mut correlations, mut across) = (Vec::new(), Vec::new());
    let mut lost = Vec::new();
    for name in &names {
        let (folder, weights) = match recorded::model(name, temporary.path()) {
            Ok(files) => files,
            Err(why) => {
                println!("{name}: skipped, as {why}");
                continue;
            }
        };
        let target = Target { cores: 1, timing: driver::machine::timing(), ..Target::host() };
        let module = load_module(&folder.join("model.relay")).unwrap_or_else(|e| panic!("{e}"));
        let weights = load_params(&weights).unwrap_or_else(|e| panic!("{e}"));
        let module = bind_params(&module, &weights).unwrap_or_else(|e| panic!("{e}"));
        let typed = infer_types(module).unwrap_or_else(|e| panic!("{e}"));
        let inputs = interp::random_inputs(&typed, 7).unwrap_or_else(|e| panic!("{e}"));
        let inputs: Vec<Tensor> = inputs.iter().flat_map(|v| v.flatten()).collect();
        let options = || {
            let mut options = Options::new(Settings::new(target.clone()));
            options.threads = 1;
            options
        };
        let built = driver::build(typed.module().clone(), &[], options()).unwrap_or_else(|e| panic!("{e}"));
        let Runnable::Plain(exe) = &built.executable else {
            println!("{name}: skipped, as it is no plain sequence of calls");
            continue;
        };
        let profile = Profile::measure(exe, &inputs, rounds, target.clone(), false).unwrap_or_else(|e| panic!("{e}"));
        for call in profile.calls.iter().filter(|c| c.seconds >= SHORTEST) {
            if let Some(expected) = profile.expected(call) {
                kinds.entry(kind(&call.kernel)).or_default().calls.push((call.seconds, expected));
            }
        }
        if tilings == 0 {
            continue;
        }
        let mut options = options();
        options.tuned = Some(std::sync::Arc::new(tuned_in(&target, Some(temporary.path().join(name)))));
        options.tune = Some(Duration::from_secs(tilings));
        options.rank = drawn;
        let built = driver::build(typed.into_module(), &[], options).unwrap_or_else(|e| panic!("{e}"));
        let tuning = built.record().and_then(|r| r.tuned.as_ref());
        for timed in tuning.map_or(&[][..], |t| &t.timed) {
            let times = timed.candidates.iter().map(|c| c.1);
            let (best, worst) = (times.clone().fold(f64::INFINITY, f64::min), times.fold(0.0, f64::max));
            lost.push(timed.candidates[0].1 / best - 1.0);
            if list {
                println!("{name}\t{}\t{}", timed.kernel, timed.tilings);
                for (rank, (cycles, seconds)) in timed.candidates.iter().enumerate() {
                    println!("{name}\t{}\t{rank}\t{cycles:.0}\t{seconds:.4e}", timed.kernel);
                }
                for (cycles, seconds) in &timed.drawn {
                    println!("{name}\t{}\tdrawn\t{cycles:.0}\t{seconds:.4e}", timed.kernel);
                }
            }
            if timed.drawn.len() > 2 {
                across.extend(rank_correlation(&timed.drawn));
            }
            if timed.candidates.len() > 2 && worst > SPREAD * best {
                correlations.extend(rank_correlation(&timed.candidates));
            }
        }
    }
    if kinds.is_empty() {
        return;
    }
    println!("| kind | calls | measured ms | expected ms | mean error |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let mut all = Vec::new();
    for (name, Kind { calls }) in &kinds {
        println!("{}", row(name, calls));
        all.extend(calls);
    }
    println!("{}", row("all", &all));
    if !lost.is_empty() {
        println!();
        println!(
            "{} reductions measured: the model's tiling takes {:.1} % longer than the best one (median; mean {:.1} %); rank correlation of {} \
             whose tilings differ: median {:.2}, mean {:.2}",
            lost.len(),
            100.0 * median(lost.clone()),
            100.0 * lost.iter().sum::<f64>() / lost.len() as f64,
            correlations.len(),
            median(correlations.clone()),
            correlations.iter().sum::<f64>() / correlations.len() as f64
        );
    }
    if !across.is_empty() {
        println!(
            "{} reductions, {drawn} tilings of each from the best to the worst of all: rank correlation median {:.2}, mean {:.2}, least {:.2}",
            across.len(),
            median(across.clone()),
            across.iter().sum::<f64>() / across.len() as f64,
            across.iter().copied().fold(f64::INFINITY, f64::min)
        );
    }
}

/// A line of the table; errors are weighted by the time that calls take.
fn row(name: &str, calls: &[(f64, f64)]) -> String {
    let measured: f64 = calls.iter().map(|c| c.0).sum();
    let expected: f64 = calls.iter().map(|c| c.1).sum();
    let error: f64 = calls.iter().map(|(m, e)| (m - e).abs()).sum::<f64>() / measured;
    format!("| {name} | {} | {:.2} | {:.2} | {:.0} % |", calls.len(), 1e3 * measured, 1e3 * expected, 100.0 * error)
}
