//! What the default pipeline takes on whole models, pass by pass, and at most of memory: ResNet-50, the encoder of BERT with 12
//! layers, and networks of thousands of operators.
//!
//!     cargo bench --bench scale -- [resnet50 | bertN | decoderN | N…] [--rules] [--whole]
//!
//! `bert12` is an encoder of 12 layers, `decoder36` a decoder of 36, a number a network of so many operators. `--rules` says which rules took the
//! most time; `--whole` searches equal layers one by one.

use resat::{
    pass::{Pass, PassContext, Settings, default_pipeline},
    target::Target,
};

mod networks;

use networks::{Network, bert, decoder, layered, resnet50};

fn network(name: &str) -> Network {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("`{name}` is no network and no number"));
    match (name.strip_prefix("bert"), name.strip_prefix("decoder")) {
        _ if name == "resnet50" => resnet50([3, 4, 6, 3]),
        (Some(layers), _) => bert(number(layers)),
        (_, Some(layers)) => decoder(number(layers)),
        _ => layered(number(name)),
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
    let [rules, whole] = ["--rules", "--whole"].map(|flag| given.iter().any(|a| a == flag));
    let mut names: Vec<&str> = given.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    if names.is_empty() {
        names = vec!["resnet50", "bert12", "decoder12", "decoder36", "1000", "5000"];
    }
    let mut target = Target::host();
    target.cores = 1;
    for name in names {
        let network = network(name);
        let module = network.bound(&network.weights());
        let before = peak_memory();
        let mut settings = Settings::new(target.clone());
        settings.limits.blocks = !whole;
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
                "  {} after {} rounds, {} e-nodes in {} classes, cost {:.6e}; saturation {:.3} s, extraction {:.3} s",
                report.stop,
                report.iterations,
                report.nodes,
                report.classes,
                report.cost_after,
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
