//! What the default pipeline takes on whole models, pass by pass, and at most of memory: ResNet-50, the encoder of BERT with 12
//! layers, and networks of thousands of operators.
//!
//!     cargo bench --bench scale -- [resnet50 | bert12 | N…] [--rules]
//!
//! A number is a network of so many operators. `--rules` says which rules took the most time.

use resat::{
    pass::{Pass, PassContext, Settings, default_pipeline},
    target::Target,
};

mod networks;

use networks::{Network, bert, layered, resnet50};

fn network(name: &str) -> Network {
    match name {
        "resnet50" => resnet50([3, 4, 6, 3]),
        "bert12" => bert(12),
        number => layered(number.parse().unwrap_or_else(|_| panic!("`{number}` is no network and no number"))),
    }
}

/// The most memory that this process had so far, in MiB; 0 where the system does not tell.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let rules = given.iter().any(|a| a == "--rules");
    let mut names: Vec<&str> = given.iter().map(String::as_str).filter(|a| *a != "--rules").collect();
    if names.is_empty() {
        names = vec!["resnet50", "bert12", "1000", "5000"];
    }
    let mut target = Target::host();
    target.cores = 1;
    for name in names {
        let network = network(name);
        let module = network.bound(&network.weights());
        let before = peak_memory();
        let settings = Settings::new(target.clone());
        let pipeline = default_pipeline(&settings).expect("the default pipeline is well formed");
        let mut cx = PassContext::default();
        pipeline.run(module, &mut cx).expect("passes run");
        let all: f64 = cx.log.iter().map(|p| p.time.as_secs_f64()).sum();
        println!("{name}: {all:.3} s, {} MiB at most ({before} MiB with the weights alone)", peak_memory());
        for pass in &cx.log {
            let (a, b) = pass.expressions;
            println!("  {:>9.3} ms  {} ({a} -> {b} expressions)", 1e3 * pass.time.as_secs_f64(), pass.name);
        }
        for report in &cx.reports {
            println!(
                "  {} after {} rounds, {} e-nodes in {} classes; saturation {:.3} s, extraction {:.3} s",
                report.stop,
                report.iterations,
                report.nodes,
                report.classes,
                report.saturate_time.as_secs_f64(),
                report.extract_time.as_secs_f64()
            );
            let mut slowest: Vec<_> = report.rules.iter().collect();
            slowest.sort_by_key(|r| std::cmp::Reverse(r.time));
            for r in slowest.iter().take(if rules { 20 } else { 0 }) {
                let ms = 1e3 * r.time.as_secs_f64();
                println!("  {ms:>9.3} ms  {}/{}: {} matches, {} unions", r.ruleset, r.rule, r.matches, r.unions);
            }
        }
    }
}
