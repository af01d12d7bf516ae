//! The corpus' models: their types, and what inlining leaves of them. Skips, saying so, where the corpus is not at hand.

use std::path::PathBuf;

use resat::{
    infer::infer_types,
    ir::{Expr, Module, reachable},
    pass,
    relay::{npz, text::parse_module},
};

/// The folders of the models, beside the repository or where `RESAT_SHARED` says.
fn models() -> Vec<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let shared = std::env::var_os("RESAT_SHARED").map_or(beside, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(shared.join("corpus")) else {
        println!("skipped: no corpus at {}", shared.display());
        return Vec::new();
    };
    let mut dirs: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    dirs.retain(|d| d.join("model.relay").exists());
    dirs.sort();
    dirs
}

fn read(dir: &std::path::Path) -> Module {
    let path = dir.join("model.relay");
    let text = std::fs::read_to_string(&path).expect("the text is readable");
    parse_module(&path.display().to_string(), &text).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn inferred_results_are_the_recorded_ones() {
    for dir in models() {
        let start = std::time::Instant::now();
        let module = read(&dir);
        let parsed = start.elapsed();
        let typed = infer_types(module).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        println!("{}: read in {parsed:?}, typed in {:?}", dir.display(), start.elapsed() - parsed);
        let found = typed.result_type("main").flatten().expect("tensors");
        let path = dir.join("outputs.npz");
        let bytes = std::fs::read(&path).expect("outputs are readable");
        let wanted = npz::read("outputs.npz", &bytes).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(found.len(), wanted.len(), "{}", dir.display());
        for (i, found) in found.iter().enumerate() {
            let (_, wanted) = wanted.iter().find(|(n, _)| **n == *i.to_string()).expect("outputs are numbered");
            assert_eq!(found.dtype, wanted.dtype(), "{}", dir.display());
            let shape: Vec<i64> = wanted.shape().iter().map(|&n| n as i64).collect();
            assert_eq!(found.known_shape(), Some(shape), "{}", dir.display());
        }
    }
}

#[test]
fn inlined_models_are_straight_lines() {
    for dir in models() {
        let m = pass::inline(&read(&dir)).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let body = m.function("main").expect("models have a main function").body;
        for e in reachable(&m, [body]) {
            let straight = match &m[e] {
                Expr::Call { callee, .. } => matches!(m[*callee], Expr::Op(_)),
                Expr::Let { .. } | Expr::Func(_) => false,
                _ => true,
            };
            assert!(straight, "{}: {:?}", dir.display(), m[e]);
        }
        infer_types(m).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    }
}
