//! The corpus' models through the e-graph: encoded and decoded unchanged, and optimized by the shipped rules. Models whose
//! operators are not all known yet, and a corpus that is not there, are skipped out loud.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use resat::{
    cost::Roofline,
    egraph::encode,
    extract::DagGreedy,
    infer::{TypedModule, infer_types},
    interp,
    ir::{Module, Name, reachable},
    pass::bind_params,
    relay::{params, text::parse_module},
    saturate::{Extracted, Limits, optimize_observed},
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// Models with fewer parameters are run, too.
const SMALL: usize = 2_000_000;

fn models() -> Vec<PathBuf> {
    let shared = std::env::var_os("RESAT_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let only = std::env::var("RESAT_MODEL").ok();
    let Ok(dir) = std::fs::read_dir(shared.join("corpus")) else {
        eprintln!("skipped: there is no corpus at {}", shared.display());
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = dir
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.join("model.relay").exists())
        .filter(|p| only.as_ref().is_none_or(|only| p.file_name().is_some_and(|n| n == only.as_str())))
        .collect();
    found.sort();
    found
}

/// The model with parameters bound: its own where it has them, else arrays of the right types with distinct contents.
fn model(dir: &std::path::Path) -> Option<(TypedModule, usize)> {
    let name = dir.file_name()?.to_string_lossy().into_owned();
    let text = std::fs::read_to_string(dir.join("model.relay")).ok()?;
    let module = match parse_module(&name, &text) {
        Ok(m) => m,
        Err(e) => {
            eprintln!("{name}: skipped, does not parse yet: {}", e.0[0]);
            return None;
        }
    };
    let values: Vec<(Name, Tensor)> = match std::fs::read(dir.join("model.params")) {
        Ok(bytes) => params::read(&name, &bytes).ok()?,
        Err(_) => {
            let json = std::fs::read_to_string(dir.join("params.json")).ok()?;
            let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).ok()?;
            json.iter()
                .enumerate()
                .map(|(i, (name, v))| Some((name.as_str().into(), made(i, v)?)))
                .collect::<Option<_>>()?
        }
    };
    let elements = values.iter().map(|v| v.1.len()).sum();
    let bound = bind_params(&module, &values).unwrap_or_else(|e| panic!("{name}: {}", e.render()));
    let typed = infer_types(bound).unwrap_or_else(|e| panic!("{name}: {}", e.render()));
    Some((typed, elements))
}

fn made(seed: usize, v: &serde_json::Value) -> Option<Tensor> {
    let shape: Vec<usize> = v[0].as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<_>>()?;
    let dtype: DType = v[1].as_str()?.parse().ok()?;
    let mut t = Tensor::zeros(dtype, &shape);
    if dtype == DType::F32 {
        for (i, x) in t.as_mut_slice::<f32>().iter_mut().enumerate() {
            *x = 0.5 + ((i * 7 + seed * 13) % 101) as f32 / 101.0;
        }
    }
    Some(t)
}

fn calls(m: &Module) -> usize {
    reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter(|&id| m.op_call(id).is_some()).count()
}

#[test]
fn models_come_back_unchanged() {
    for dir in models() {
        let Some((m, elements)) = model(&dir) else { continue };
        let mut encoded = encode(&m);
        for id in encoded.regions().to_vec() {
            let region = encoded.open(id, false);
            let term = region.original();
            encoded.close(region, term, 0.0);
        }
        let back = encoded.finish();
        let again = infer_types(back).unwrap_or_else(|e| panic!("{}: {}", dir.display(), e.render()));
        assert_eq!(m.result_type("main"), again.result_type("main"), "{}", dir.display());
        assert!(calls(&again) <= calls(&m), "{}", dir.display());
        if elements < SMALL {
            assert_eq!(run(&m), run(&again), "{}", dir.display());
        }
    }
}

fn run(m: &TypedModule) -> Vec<Tensor> {
    let inputs: Vec<Value> = interp::random_inputs(m, 1).unwrap_or_else(|e| panic!("{}", e.render()));
    interp::run_flat(m, "main", inputs).unwrap_or_else(|e| panic!("{}", e.render()))
}

#[test]
fn models_are_optimized_within_limits() {
    let rules = resat::rules::shipped();
    let target = Target::parse("llvm -mcpu=x86-64-v4 -num-cores=2").expect("a target");
    for dir in models() {
        let Some((m, elements)) = model(&dir) else { continue };
        let start = Instant::now();
        let mut compared = Duration::ZERO;
        let name = dir.display().to_string();
        let mut compare = |x: Extracted| {
            let begin = Instant::now();
            crate::common::extractors::compare(x.problem, &name);
            compared += begin.elapsed();
        };
        let dag = DagGreedy::default();
        let new = optimize_observed(&m, &rules, &Limits::default(), &Roofline, &dag, &target, &mut compare);
        let seconds = (start.elapsed() - compared).as_secs_f64();
        let r = &new.report;
        eprintln!("{}: {seconds:.2} s, {} calls -> {}\n{r}", dir.display(), calls(&m), calls(&new.module));
        assert!(r.faults.is_empty() && r.refusals.is_empty(), "{}", dir.display());
        assert!(r.cost_after <= r.cost_before, "{}", dir.display());
        let again = infer_types(new.module).unwrap_or_else(|e| panic!("{}: {}", dir.display(), e.render()));
        assert_eq!(m.result_type("main"), again.result_type("main"), "{}", dir.display());
        if elements < SMALL {
            for (a, b) in run(&m).iter().zip(&run(&again)) {
                close(a, b);
            }
        }
    }
}

/// Within 1e-3 of the largest value.
fn close(a: &Tensor, b: &Tensor) {
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    let largest = a.iter().fold(1e-6f64, |m, x| m.max(x.abs()));
    let difference = a.iter().zip(&b).fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
    assert!(difference <= 1e-3 * largest, "{difference} of {largest}");
}
