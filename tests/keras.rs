//! Keras models that were recorded with their outputs: each is read, and runs to these outputs, by the interpreter and as native
//! code. Beside them a model or two that Keras would not write.
//!
//! `tests/recorded/frontends/keras.tar.xz` has a folder a case: `model.keras`, at times `model.h5`, `inputs.npz` by the names of inputs,
//! `outputs.npz` by number in Keras' order, and `meta.json`, whose `refuse` says why a model must be refused. It was recorded with
//! keras 3.15.0 and tf_keras 2.21.0 on TensorFlow's CPU kernels. `RESAT_KERAS` may name another folder of cases.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use libtest_mimic::{Arguments, Failed, Trial};
use resat::{
    driver::{self, Options},
    frontend::{self, LoadOptions},
    infer::infer_types,
    interp,
    ir::{Module, input_names},
    pass::{Settings, bind_params},
    relay::npz,
    target::Target,
    tensor::{Tensor, Value},
};

/// Cases that fail, by `case/file` and back end, with the reason. One that passes must go.
const FAILING: &[(&str, &str, &str)] = &[];

/// How near results must be: of a value, and of the greatest one (at least 1).
const WITHIN: (f64, f64) = (1e-4, 1e-5);

#[derive(Copy, Clone, PartialEq, Eq)]
enum Backend {
    Interp,
    Llvm,
}

impl Backend {
    const ALL: [(Backend, &'static str); 2] = [(Backend::Interp, "interp"), (Backend::Llvm, "llvm")];
}

fn main() {
    let args = Arguments::from_args();
    let unpacked = Arc::new(tempfile::tempdir().expect("a folder can be made"));
    let folder = match std::env::var_os("RESAT_KERAS") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/frontends/keras.tar.xz");
            let status = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(unpacked.path()).status();
            assert!(status.is_ok_and(|s| s.success()), "{} can't be unpacked", archive.display());
            unpacked.path().join("keras")
        }
    };
    let entries = std::fs::read_dir(&folder).expect("the cases are there");
    let mut cases: Vec<PathBuf> = entries.map(|e| e.expect("the folder can be read").path()).collect();
    cases.sort();
    let mut trials = Vec::new();
    for case in cases {
        let name = case.file_name().expect("a folder").to_string_lossy().into_owned();
        for file in ["model.keras", "model.h5"] {
            if !case.join(file).is_file() {
                continue;
            }
            for (backend, called) in Backend::ALL {
                let (case, kept) = (case.clone(), unpacked.clone());
                let known = FAILING.iter().find(|(c, b, _)| *c == format!("{name}/{file}") && *b == called);
                trials.push(Trial::test(format!("{called}::{name}/{file}"), move || {
                    let _kept = &kept;
                    match (check(&case, file, backend), known) {
                        (Ok(()), Some(_)) => Err("it passes: its row among those that fail must go".into()),
                        (Err(_), Some(_)) => Ok(()),
                        (outcome, None) => outcome,
                    }
                }));
            }
        }
    }
    for name in OPENED {
        for (backend, called) in Backend::ALL {
            let (case, kept) = (folder.join(name), unpacked.clone());
            trials.push(Trial::test(format!("{called}::{name}/opened"), move || {
                let _kept = &kept;
                let opened = tempfile::tempdir().map_err(|e| e.to_string())?;
                open_extents(&case.join("model.keras"), &opened.path().join("model.keras"))?;
                for file in ["inputs.npz", "outputs.npz", "meta.json"] {
                    std::fs::copy(case.join(file), opened.path().join(file)).map_err(|e| e.to_string())?;
                }
                check(opened.path(), "model.keras", backend)
            }));
        }
    }
    libtest_mimic::run(&args, trials).exit();
}

/// Cases that are run once more as models whose inputs have unknown extents, but for channels.
const OPENED: &[&str] = &["averagepooling1d_same", "averagepooling2d_same", "maxpooling1d_same", "maxpooling2d_same"];

/// Writes a model of channels last with unknown extents before these.
fn open_extents(from: &Path, to: &Path) -> Result<(), Failed> {
    let file = std::fs::File::open(from).map_err(|e| e.to_string())?;
    let mut given = zip::ZipArchive::new(file).map_err(|e| e.to_string())?;
    let mut made = zip::ZipWriter::new(std::fs::File::create(to).map_err(|e| e.to_string())?);
    for i in 0..given.len() {
        let mut entry = given.by_index(i).map_err(|e| e.to_string())?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
        if entry.name() == "config.json" {
            let mut config: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
            let shape = config["config"]["layers"][0]["config"]["batch_shape"].as_array_mut();
            let shape = shape.ok_or("its first layer is no input")?;
            let channels = shape.len() - 1;
            shape[1..channels].fill(serde_json::Value::Null);
            bytes = config.to_string().into_bytes();
        }
        let options = zip::write::SimpleFileOptions::default();
        made.start_file(entry.name(), options).map_err(|e| e.to_string())?;
        made.write_all(&bytes).map_err(|e| e.to_string())?;
    }
    made.finish().map_err(|e| e.to_string())?;
    Ok(())
}

fn arrays(path: &Path) -> Result<Vec<(String, Tensor)>, Failed> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let found = npz::read(&path.display().to_string(), &bytes).map_err(|e| e.to_string())?;
    Ok(found.into_iter().map(|(n, t)| (n.to_string(), t)).collect())
}

fn load(path: &Path) -> Result<Module, String> {
    let model = frontend::load(path, &LoadOptions::default()).map_err(|e| e.to_string())?;
    bind_params(&model.module, &model.params).map_err(|e| e.to_string())
}

fn check(case: &Path, file: &str, backend: Backend) -> Result<(), Failed> {
    let meta = std::fs::read(case.join("meta.json")).map_err(|e| e.to_string())?;
    let meta: serde_json::Value = serde_json::from_slice(&meta).map_err(|e| e.to_string())?;
    let loaded = load(&case.join(file));
    if let Some(why) = meta.get("refuse") {
        return match loaded {
            Err(_) => Ok(()),
            Ok(_) => Err(format!("it must be refused: {why}").into()),
        };
    }
    let module = loaded?;
    let given = arrays(&case.join("inputs.npz"))?;
    let names = input_names(&module).ok_or("the program has no names of inputs")?;
    let input = |name: &String| given.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
    let inputs: Vec<Tensor> = names.iter().map(input).collect::<Option<_>>().ok_or("an input is not recorded")?;
    let got = match backend {
        Backend::Interp => {
            let typed = infer_types(module).map_err(|e| e.to_string())?;
            let inputs = inputs.into_iter().map(Value::Tensor).collect();
            interp::run_flat(typed.module(), "main", inputs).map_err(|e| e.to_string())?
        }
        Backend::Llvm => {
            let built =
                driver::build(module, &[], Options::new(Settings::new(Target::host()))).map_err(|e| format!("{e}"))?;
            built.executable.run(&inputs).map_err(|e| e.to_string())?
        }
    };
    let want = arrays(&case.join("outputs.npz"))?;
    if got.len() != want.len() {
        return Err(format!("{} outputs, not {}", got.len(), want.len()).into());
    }
    for (got, (name, want)) in got.iter().zip(&want) {
        differs(got, want).map_or(Ok(()), |why| Err(format!("output {name}: {why}")))?;
    }
    Ok(())
}

/// In what a result differs from what was recorded.
fn differs(got: &Tensor, want: &Tensor) -> Option<String> {
    if (got.shape(), got.dtype()) != (want.shape(), want.dtype()) {
        return Some(format!("{:?} of {}, not {:?} of {}", got.shape(), got.dtype(), want.shape(), want.dtype()));
    }
    let (a, b) = (got.to_f64_vec(), want.to_f64_vec());
    if !want.dtype().is_float() {
        return (a != b).then(|| "other integers".to_owned());
    }
    let scale = b.iter().filter(|v| v.is_finite()).fold(1.0f64, |m, v| m.max(v.abs()));
    let near =
        |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= WITHIN.0 * b.abs() + WITHIN.1 * scale;
    let worst = a.iter().zip(&b).filter(|(a, b)| !near(**a, **b)).map(|(a, b)| (a - b).abs()).reduce(f64::max);
    worst.map(|w| format!("values differ by up to {w:.3e} (scale {scale:.3e})"))
}
