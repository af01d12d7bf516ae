//! Our extractors on others' e-graphs: those of TENSAT that extraction-gym carries, or any other in egraph-serialize's JSON.
//!
//!     git clone https://github.com/egraphs-good/extraction-gym
//!     cargo bench --bench extraction_gym -- extraction-gym/data/tensat [--seconds S]
//!
//! Beside ours stand the costs that extraction-gym's own `faster-greedy-dag` (or its like) finds. Without a folder nothing is done.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use resat::extract::{Imported, by_name, names};

/// What greedy extraction by DAG cost finds, by file.
const KNOWN: [(&str, f64); 6] = [
    ("bert", 0.82470),
    ("bert_acyclic", 0.82700),
    ("resnet50", 4.39687),
    ("resnet50_acyclic", 4.42575),
    ("vgg", 4.85076),
    ("vgg_acyclic", 4.86677),
];

fn main() {
    let mut folder = None;
    let mut time = Duration::from_secs(10);
    let mut given = std::env::args().skip(1).filter(|a| a != "--bench");
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--seconds" => {
                let seconds = given.next().and_then(|s| s.parse().ok()).expect("--seconds needs a number");
                time = Duration::from_secs_f64(seconds);
            }
            _ => folder = Some(PathBuf::from(arg)),
        }
    }
    let Some(folder) = folder else {
        eprintln!("skipped: give the folder of extraction-gym's data/tensat");
        return;
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    println!("| e-graph | nodes | classes | extractor | cost | s | extraction-gym's greedy | gap |");
    println!("|---|--:|--:|---|--:|--:|--:|--:|");
    for file in files {
        let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let graph = Imported::parse(&name, &text).unwrap_or_else(|e| panic!("{e}"));
        let known = KNOWN.iter().find(|k| k.0 == name).map_or("?".to_owned(), |k| format!("{:.5}", k.1));
        let p = &graph.problem;
        for extractor in names().filter_map(|n| by_name(n, time).ok()) {
            let start = Instant::now();
            let solution = extractor.solve(p);
            let seconds = start.elapsed().as_secs_f64();
            let cost = solution.choice.cost(p).expect("extractors give programs");
            let gap = solution.gap(p).map_or("?".to_owned(), |g| format!("{:.2} %", 100.0 * g));
            println!(
                "| {name} | {} | {} | {} | {cost:.5} | {seconds:.3} | {known} | {gap} |",
                p.candidates(),
                p.classes(),
                extractor.name()
            );
        }
    }
}
