//! Recorded TFLite models: what the interpreter and native code make of them is what the reference kernels made of them.
//!
//! `recorded/frontends/tflite.zip` holds a folder for each case: the model, inputs and outputs, and what is known of it:
//! its kind, and whether its integers must be the same bit for bit. `tflite-differs.txt` lists the cases that differ.

use std::collections::{BTreeMap, BTreeSet};

use crate::archive::Files;
use rayon::prelude::*;
use resat::{
    frontend::{LoadOptions, Model, SourceFile, load_from},
    interp,
    ir::Module,
    pass::bind_params,
    relay::npz,
    tensor::{Tensor, Value},
};

/// All cases, by name.
fn cases() -> BTreeMap<String, Files> {
    crate::archive::cases("tflite.zip")
}

/// A case, ready to run.
struct Case {
    module: Module,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    meta: serde_json::Value,
}

fn load(name: &str, files: &Files) -> Result<Case, String> {
    let file = SourceFile { name, bytes: &files["model.tflite"], folder: None };
    let mut given = npz::read("inputs", &files["inputs.npz"]).map_err(|e| e.to_string())?;
    let ranks = given.iter().map(|(n, t)| (n.to_string(), t.shape().len())).collect();
    let options = LoadOptions { given: Some(ranks), ..LoadOptions::default() };
    let Model { module, params } = load_from(&file, &options).map_err(|e| e.to_string())?;
    let module = bind_params(&module, &params).map_err(|e| e.to_string())?;
    let main = module.function("main").ok_or("there is no @main")?;
    let mut inputs = Vec::new();
    for &p in &main.params {
        let name = &module.var(p).name;
        let at = given.iter().position(|g| g.0 == *name).ok_or(format!("there is no input {name}"))?;
        inputs.push(given.remove(at).1);
    }
    let mut outputs = npz::read("outputs", &files["outputs.npz"]).map_err(|e| e.to_string())?;
    outputs.sort_by_key(|o| o.0.parse::<usize>().unwrap_or(usize::MAX));
    let meta = serde_json::from_slice(&files["meta.json"]).map_err(|e| e.to_string())?;
    Ok(Case { module, inputs, outputs: outputs.into_iter().map(|o| o.1).collect(), meta })
}

/// How a result differs from what was recorded.
fn difference(got: &Tensor, want: &Tensor, meta: &serde_json::Value) -> Option<String> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        return Some(format!("{}{:?} instead of {}{:?}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    if !want.dtype().is_float() {
        let exact = meta["exact"].as_bool() == Some(true);
        let steps = if exact { meta["default_kernels_differ_by"].as_i64().unwrap_or(0) } else { 2 };
        let most = (0..want.len()).map(|i| (got.get_i64(i) - want.get_i64(i)).abs()).max().unwrap_or(0);
        return (most > steps).then(|| format!("{most} steps"));
    }
    let exact = meta["exact"].as_bool() == Some(true);
    let finite = (0..want.len()).map(|i| want.get_f64(i).abs()).filter(|v| v.is_finite());
    let scale = finite.fold(1.0, f64::max);
    let (relative, loose) = match meta["kind"].as_str() {
        _ if exact => (0.0, 0.0),
        Some("dynamic") => (0.0, 1e-6),
        Some("int8") => (1e-4, 2e-2),
        Some("int16") => (1e-4, 1e-3),
        _ => (1e-4, 1e-5),
    };
    let far = |i: &usize| {
        let (g, w) = (got.get_f64(*i), want.get_f64(*i));
        !(g == w || g.is_nan() && w.is_nan() || !exact && (g - w).abs() <= relative * w.abs() + loose * scale)
    };
    let at = (0..want.len()).find(far)?;
    Some(format!("{} instead of {} at {at}", got.get_f64(at), want.get_f64(at)))
}

/// Runs all cases, and compares those that differ with the list of them.
fn all(run: impl Fn(&Case) -> Result<Vec<Tensor>, String> + Sync) {
    let differs =
        std::fs::read_to_string(crate::archive::folder().join("tflite-differs.txt")).expect("the list is there");
    let listed: BTreeSet<&str> =
        differs.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(':')).map(|l| l.0).collect();
    let cases = cases();
    assert!(cases.len() > 500, "cases are missing");
    let check = |(name, files): (&String, &Files)| -> Option<(String, String)> {
        let why = load(name, files).and_then(|case| {
            let got = run(&case)?;
            let many = got.len() != case.outputs.len();
            let found = got.iter().zip(&case.outputs).find_map(|(g, w)| difference(g, w, &case.meta));
            found.or(many.then(|| format!("{} outputs", got.len()))).map_or(Ok(()), Err)
        });
        why.err().map(|why| (name.clone(), why))
    };
    let failed: BTreeMap<String, String> = cases.par_iter().filter_map(check).collect();
    let mut complaints: Vec<String> =
        failed.iter().filter(|f| !listed.contains(f.0.as_str())).map(|(name, why)| format!("{name}: {why}")).collect();
    let stale = listed.iter().filter(|l| !failed.contains_key(**l));
    complaints.extend(stale.map(|l| format!("{l} is listed as one that differs, but does not")));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn interpreted() {
    all(|case| {
        let inputs = case.inputs.iter().cloned().map(Value::from).collect();
        interp::run_flat(&case.module, "main", inputs).map_err(|e| e.to_string())
    });
}

#[cfg(feature = "llvm")]
#[test]
fn compiled() {
    use resat::{
        driver::{Options, build},
        pass::Settings,
        target::Target,
    };
    all(|case| {
        let options = Options::new(Settings::new(Target::host()));
        let built = build(case.module.clone(), &[], options).map_err(|e| e.to_string())?;
        built.executable.run(&case.inputs).map_err(|e| e.to_string())
    });
}
