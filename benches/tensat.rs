//! TENSAT's seven networks: how long the search takes, what it finds, and how fast that runs, beside what the TENSAT paper
//! reports of its own search and its GPU.
//!
//!     cargo bench --bench tensat -- [NAME…] [--cores N] [--seconds S] [--search-only] [--whole] [--write FOLDER]
//!
//! The networks' weights are constants. What is compared is made code by the same back end for the same threads:
//!
//! - *input*: the network with equal subterms made one and constants folded, and its operators fused, without a rule;
//! - *graph*: all shipped rulesets but `layout`: what rewriting the graph alone gains;
//! - *ours*: the default pipeline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use resat::{
    driver::{self, Options},
    extract,
    infer::{TypedModule, infer_types},
    interp::random_inputs,
    ir::Module,
    pass::{Pass, PassContext, Saturate, Sequential, Settings, default_pipeline, sequence},
    relay::text,
    rules,
    saturate::optimize,
    target::Target,
    tensor::{Tensor, Value},
};

mod networks;

use networks::{Published, TENSAT};

struct Args {
    names: Vec<String>,
    cores: usize,
    /// For each measurement, and for each extractor that can be stopped.
    time: Duration,
    search_only: bool,
    /// Whether equal blocks are searched one by one.
    whole: bool,
    write: Option<String>,
}

fn args() -> Args {
    let mut args = Args {
        names: Vec::new(),
        cores: 1,
        time: Duration::from_secs(5),
        search_only: false,
        whole: false,
        write: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut value = |what: &str| given.next().unwrap_or_else(|| panic!("{what} needs a value"));
        match arg.as_str() {
            // Cargo says so to every bench.
            "--bench" => {}
            "--cores" => args.cores = value("--cores").parse().expect("--cores needs a number"),
            "--seconds" => {
                args.time = Duration::from_secs_f64(value("--seconds").parse().expect("--seconds needs a number"))
            }
            "--search-only" => args.search_only = true,
            "--whole" => args.whole = true,
            "--write" => args.write = Some(value("--write")),
            name => args.names.push(name.to_owned()),
        }
    }
    args
}

fn main() {
    let args = args();
    let chosen = TENSAT.iter().filter(|n| args.names.is_empty() || args.names.iter().any(|name| name == n.name));
    let mut target = Target::host();
    target.cores = args.cores;
    println!("{} of {} cores\n", target.codegen().cpu, args.cores);
    let networks: Vec<(&Published, Module)> = chosen
        .map(|n| {
            let network = (n.make)();
            if let Some(folder) = &args.write {
                std::fs::create_dir_all(folder).expect("the folder can be made");
                let file = format!("{folder}/{}.relay", n.name);
                std::fs::write(&file, text::print_module(&network.module)).expect("the file can be written");
            }
            (n, network.bound(&network.weights()))
        })
        .collect();
    search_table(&networks, &target, args.time, args.whole);
    if !args.search_only {
        run_table(&networks, &target, args.time);
    }
}

/// What the search does, by network, and what every extractor makes of it.
fn search_table(networks: &[(&Published, Module)], target: &Target, time: Duration, whole: bool) {
    println!(
        "| network | rounds | e-nodes | classes | saturation s | cost before | extractor | s | cost | search s | TENSAT s | why it stopped |"
    );
    println!("|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|---|");
    let mut settings = Settings::new(target.clone());
    settings.limits.blocks = !whole;
    for (published, module) in networks {
        let typed = infer_types(simplified(module, &settings)).expect("well typed");
        let mut slowest = None;
        for name in extract::names() {
            let Ok(extractor) = extract::by_name(name, time) else { continue };
            let (model, rules) = (settings.cost.as_ref(), rules::general());
            let report = optimize(&typed, &rules, &settings.limits, model, extractor.as_ref(), target).report;
            let (saturation, seconds) = (report.saturate_time.as_secs_f64(), report.extract_time.as_secs_f64());
            println!(
                "| {} | {} | {} | {} | {saturation:.3} | {:.4e} | {name} | {seconds:.3} | {:.4e} | {:.3} | {} | {} |",
                published.name,
                report.iterations,
                report.nodes,
                report.classes,
                report.cost_before,
                report.cost_after,
                saturation + seconds,
                published.seconds,
                report.stop,
            );
            slowest.get_or_insert(report);
        }
        slowest.iter().for_each(slowest_rules);
    }
    println!();
}

/// The rules that took the most time go to standard error: they are for who makes rules faster.
fn slowest_rules(report: &resat::saturate::Report) {
    let mut rules: Vec<_> = report.rules.iter().collect();
    rules.sort_by_key(|r| std::cmp::Reverse(r.time));
    for r in rules.iter().take(5) {
        eprintln!("  {}/{}: {:.1} ms, {} matches", r.ruleset, r.rule, 1e3 * r.time.as_secs_f64(), r.matches);
    }
}

/// The module as the default pipeline saturates it.
fn simplified(module: &Module, settings: &Settings) -> Module {
    let passes = sequence("Inline,EtaExpand,DynamicToStatic", settings).expect("shipped");
    passes.run(module.clone(), &mut PassContext::default()).expect("the networks are plain")
}

/// How fast the programs run.
fn run_table(networks: &[(&Published, Module)], target: &Target, time: Duration) {
    println!(
        "| network | input ms | graph ms | ours ms | graph gains % | all gains % | search + passes s | TENSAT gains % (GPU) |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let settings = Settings { extractor: Arc::new(extract::Search::default()), ..Settings::new(target.clone()) };
    for (published, module) in networks {
        let typed = infer_types(module.clone()).expect("well typed");
        let (input, _) = latency(module, &typed, &settings, Some(Box::new(as_it_is(&settings))), time);
        let (graph, _) = latency(module, &typed, &settings, Some(Box::new(without_layouts(&settings))), time);
        let ours = default_pipeline(&settings).expect("the default pipeline is well formed");
        let (ours, passes) = latency(module, &typed, &settings, Some(Box::new(ours)), time);
        let gain = |now: f64| 100.0 * (input / now - 1.0);
        println!(
            "| {} | {:.3} | {:.3} | {:.3} | {:.1} | {:.1} | {passes:.2} | {} |",
            published.name,
            1e3 * input,
            1e3 * graph,
            1e3 * ours,
            gain(graph),
            gain(ours),
            published.speedup,
        );
    }
}

/// Equal subterms made one, constants folded, operators fused: no rule.
fn as_it_is(settings: &Settings) -> Sequential {
    with_rules(settings, Saturate::new("CommonSubexpressions", Vec::new(), settings))
}

/// All rules of the default pipeline but those that change layouts.
fn without_layouts(settings: &Settings) -> Sequential {
    let mut rulesets = rules::general();
    rulesets.retain(|r| r.name.as_str() != "layout");
    with_rules(settings, Saturate::new("Graph", rulesets, settings))
}

/// The default pipeline with another saturation.
fn with_rules(settings: &Settings, saturate: Saturate) -> Sequential {
    let named = |text: &str| sequence(text, settings).expect("shipped").0;
    let mut passes = named("Inline,EtaExpand,DynamicToStatic");
    passes.push(Box::new(saturate));
    passes.extend(named("FoldConstant,DeadCodeElimination,FuseOps"));
    Sequential(passes)
}

/// Seconds of the fastest run, and those that the passes took.
fn latency(
    module: &Module,
    typed: &TypedModule,
    settings: &Settings,
    passes: Option<Box<dyn Pass>>,
    time: Duration,
) -> (f64, f64) {
    let mut options = Options::new(settings.clone());
    options.passes = passes;
    options.threads = settings.target.cores;
    let built = driver::build(module.clone(), &[], options).expect("builds");
    let seconds = built.record().expect("it is built here").log.iter().map(|pass| pass.time.as_secs_f64()).sum();
    let inputs: Vec<Tensor> = random_inputs(typed, 0).expect("known extents").iter().flat_map(Value::flatten).collect();
    let exe = built.executable.as_plain().expect("a plain program");
    let mut outputs = exe.run(&inputs).expect("runs");
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < time {
        let begin = Instant::now();
        exe.run_into(&inputs, &mut outputs).expect("runs");
        best = best.min(begin.elapsed().as_secs_f64());
    }
    (best, seconds)
}
