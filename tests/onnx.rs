//! Recorded ONNX models of operators beyond ONNX's own: what the interpreter and native code make of them is what ONNX Runtime made of
//! them. `recorded/frontends/onnx.zip` holds a folder for each case (tools/record-onnx.py writes it): the model, inputs and outputs,
//! and how far floats may be off, of the largest value, and integers, in steps. ONNX's own operators have ONNX's own tests
//! (tools/onnx-suite.sh).

use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
    path::Path,
};

use rayon::prelude::*;
use resat::{
    frontend::{LoadOptions, Model, SourceFile, load_from},
    interp,
    ir::{Module, output_names},
    pass::bind_params,
    relay::npz,
    tensor::{Tensor, Value},
};

/// The files of a case, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// All cases, by name.
fn cases() -> BTreeMap<String, Files> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/frontends/onnx.zip");
    let bytes = std::fs::read(path).expect("the archive is there");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).expect("it is an archive");
    let mut cases: BTreeMap<String, Files> = BTreeMap::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).expect("an entry");
        let name = entry.name().to_owned();
        let (case, file) = name.split_once('/').expect("a folder for each case");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("it is whole");
        cases.entry(case.to_owned()).or_default().insert(file.to_owned(), content);
    }
    cases
}

/// A case, ready to run: outputs by name.
struct Case {
    module: Module,
    inputs: Vec<Tensor>,
    names: Vec<String>,
    outputs: BTreeMap<String, Tensor>,
    meta: serde_json::Value,
}

fn load(name: &str, files: &Files) -> Result<Case, String> {
    let file = SourceFile { name, bytes: &files["model.onnx"], folder: None };
    let Model { module, params } = load_from(&file, &LoadOptions::default()).map_err(|e| e.to_string())?;
    let module = bind_params(&module, &params).map_err(|e| e.to_string())?;
    let given = npz::read("inputs", &files["inputs.npz"]).map_err(|e| e.to_string())?;
    let main = module.function("main").ok_or("there is no @main")?;
    let input = |name: &str| {
        given.iter().find(|g| g.0.as_str() == name).map(|g| g.1.clone()).ok_or(format!("there is no input {name}"))
    };
    let inputs = main.params.iter().map(|&p| input(&module.var(p).name)).collect::<Result<_, _>>()?;
    let names = output_names(&module).ok_or("outputs have no names")?;
    let outputs = npz::read("outputs", &files["outputs.npz"]).map_err(|e| e.to_string())?;
    let outputs = outputs.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    let meta = serde_json::from_slice(&files["meta.json"]).map_err(|e| e.to_string())?;
    Ok(Case { module, inputs, names, outputs, meta })
}

/// How a result differs from what was recorded.
fn difference(got: &Tensor, want: &Tensor, meta: &serde_json::Value) -> Option<String> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        return Some(format!("{}{:?} instead of {}{:?}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    if !want.dtype().is_float() {
        let most = (0..want.len()).map(|i| (got.get_i64(i) - want.get_i64(i)).abs()).max().unwrap_or(0);
        return (most > meta["steps"].as_i64().unwrap_or(0)).then(|| format!("{most} steps"));
    }
    let scale = (0..want.len()).map(|i| want.get_f64(i).abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
    let far = |i: &usize| {
        let (g, w) = (got.get_f64(*i), want.get_f64(*i));
        !(g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= meta["tolerance"].as_f64().unwrap_or(0.0) * scale)
    };
    let at = (0..want.len()).find(far)?;
    Some(format!("{} instead of {} at {at}", got.get_f64(at), want.get_f64(at)))
}

fn all(run: impl Fn(&Case) -> Result<Vec<Tensor>, String> + Sync) {
    let cases = cases();
    assert!(cases.len() > 140, "cases are missing");
    let check = |(name, files): (&String, &Files)| -> Option<String> {
        let why = load(name, files).and_then(|case| {
            let got = run(&case)?;
            for (name, want) in &case.outputs {
                let at = case.names.iter().position(|n| n == name).ok_or(format!("no output {name}"))?;
                if let Some(d) = difference(&got[at], want, &case.meta) {
                    return Err(format!("{name}: {d}"));
                }
            }
            Ok(())
        });
        why.err().map(|why| format!("{name}: {why}"))
    };
    let failed: Vec<String> = cases.par_iter().filter_map(check).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
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
