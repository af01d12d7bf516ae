//! Compiles the small program that foreign compilers run in, which resat carries along as bytes.

use std::{env, path::Path, process::Command};

fn main() {
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
