//! Compiles the small program that foreign compilers run in, which this crate carries along as bytes; and tells the crate what it was
//! made of: what one build keeps on disk is of no use to another one.

use std::{env, process::Command};

include!("../../tools/digest.rs");

fn main() {
    worker();
    let digest = digest(&["src", "../ir/src", "../ops/src", "../../Cargo.lock"]);
    println!("cargo::rustc-env=RESAT_CODEGEN_SOURCES={digest:016x}");
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
