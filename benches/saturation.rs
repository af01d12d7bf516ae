//! How large passes' e-graphs become and how long that takes, on every model of the corpus, its parameters given and not, and on programs of two
//! and three operators.
//!
//!     cargo bench --bench saturation -- [MODEL…]
//!
//! A line for each pass that finds something: e-nodes, those of the program, rounds' end, seconds. Lines that begin with `!` took over a second,
//! met a limit, or grew beyond what tests/search/saturation.rs allows.

#[path = "../tests/common/saturated.rs"]
mod saturated;

use saturated::{Grown, compositions, corpus, grown, legalized, model, rule_passes};

/// A pass should take no longer, in seconds.
const LONG: f64 = 1.0;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let passes = rule_passes();
    let mut programs = Vec::new();
    for dir in corpus() {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        match model(&dir) {
            Ok([parameters, constants]) => {
                programs.push((format!("{name}, parameters"), parameters));
                programs.push((format!("{name}, constants"), constants));
            }
            Err(why) => println!("{name}: skipped: {why}"),
        }
    }
    if wanted.is_empty() {
        programs.push(("small programs, parameters".into(), compositions(false)));
        programs.push(("small programs, constants".into(), compositions(true)));
    }
    for (name, module) in &programs {
        let plain = legalized(module);
        for (pass_name, pass) in &passes {
            let all = match grown(pass.as_ref(), module) {
                Ok(all) => all,
                Err(why) => {
                    println!("! {name}: {pass_name}: {why}");
                    continue;
                }
            };
            let sum = |of: fn(&Grown) -> usize| all.iter().map(of).sum::<usize>();
            let (nodes, before) = (sum(|g| g.nodes), sum(|g| g.before));
            if nodes == before {
                continue;
            }
            let seconds: f64 = all.iter().map(|g| g.seconds).sum();
            let stop = all.iter().map(|g| g.stop).max().unwrap_or_default();
            let fault = all.iter().any(|g| g.fault(plain).is_some()) || seconds > LONG;
            let mark = if fault { "!" } else { " " };
            println!("{mark} {name}: {pass_name}: {nodes} e-nodes of {before}, {stop}, {seconds:.3} s");
        }
    }
}
