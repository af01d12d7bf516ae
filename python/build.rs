//! How the module is linked: what is not its own entry is kept out of its symbols, as two LLVMs in one process must not meet; and the
//! libraries that LLVM uses and that not every machine has are linked into it.

use std::{env, fs, os::unix::fs::symlink, path::Path, process::Command};

/// Libraries that are linked statically where there are archives of them.
const STATIC: [&str; 2] = ["zstd", "ffi"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os != "linux") {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--gc-sections");
    // The linker takes what it finds first: a folder that has the archives and not the shared libraries.
    let folder = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("archives");
    fs::create_dir_all(&folder).expect("the build's own folder can be written");
    for name in STATIC {
        let file = format!("lib{name}.a");
        let found = Command::new("cc").arg(format!("-print-file-name={file}")).output();
        let found = found.ok().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
        let link = folder.join(&file);
        if let Some(path) = found.filter(|p| Path::new(p).is_absolute()) {
            let _ = fs::remove_file(&link);
            symlink(path, &link).expect("the build's own folder can be written");
        }
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
}
