//! Compiles the small program that foreign compilers run in, which resat carries along as bytes; and tells resat what it was made of:
//! what one build keeps on disk is of no use to another one.

use std::{
    collections::hash_map::DefaultHasher,
    env, fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    worker();
    sources();
}

/// The digest of all sources, as `RESAT_SOURCES`.
fn sources() {
    let mut files = Vec::new();
    for part in ["src", "rules", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={part}");
        gather(Path::new(part), &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    println!("cargo::rustc-env=RESAT_SOURCES={:016x}", hasher.finish());
}

fn gather(path: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|e| gather(&e.path(), files)),
        Err(_) => files.push(path.to_owned()),
    }
}

fn worker() {
    let source = "src/runtime/foreign/worker_main.rs";
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=src/runtime/foreign/worker.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = Path::new(&variable("OUT_DIR")).join("worker");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-name=worker", "--cap-lints=allow", source, "-o"]).arg(&out);
    rustc.args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols"]);
    rustc.args(["--target", &variable("TARGET")]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let done = rustc.status().expect("rustc starts");
    assert!(done.success(), "{source} was not compiled");
}
