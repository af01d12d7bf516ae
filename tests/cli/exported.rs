//! Libraries that the command line writes: what they need, how C calls them, and code for other machines.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use resat::{driver::load_params, relay::npz, target::Target, tensor::Tensor};
use tempfile::TempDir;

fn shipped(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn array(file: &str) -> Tensor {
    load_params(&shipped("models/digits").join(file)).expect("the model has it").swap_remove(0).1
}

/// Exports the digits network with these arguments to a file of a folder.
fn build(folder: &Path, file: &str, arguments: &[&str]) -> PathBuf {
    let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
    command.arg("build").arg(shipped("models/digits/model.relay")).args(["-o", file, "--params"]);
    command.arg(shipped("models/digits/model.params")).args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.env("XDG_CACHE_HOME", folder.join("user")).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join(file)
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn libraries_need_libc_and_threads_only() {
    let folder = TempDir::new().expect("a folder can be made");
    let library = build(folder.path(), "libdigits.so", &[]);
    let dynamic = said(Command::new("readelf").arg("-d").arg(&library));
    let needed: Vec<&str> = dynamic.lines().filter(|l| l.contains("(NEEDED)")).collect();
    let known =
        ["[libc.so.6]", "[libm.so.6]", "[libpthread.so.0]", "[ld-linux-x86-64.so.2]", "[ld-linux-aarch64.so.1]"];
    assert!(!needed.is_empty() && needed.iter().all(|n| known.iter().any(|k| n.contains(k))), "{dynamic}");
    // Nothing but the interface is to be seen from outside.
    let symbols = said(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(&library));
    let defined = symbols.lines().filter(|l| l.contains(" GLOBAL ") && !l.contains(" UND "));
    let mut names: Vec<&str> = defined.filter_map(|l| l.split_whitespace().last()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "libdigits_error",
            "libdigits_model",
            "libdigits_run",
            "libdigits_set_threads",
            "resat_error_v1",
            "resat_model_v1"
        ]
    );
    let header = fs::read_to_string(folder.path().join("libdigits.h")).expect("a header");
    for word in ["RESAT_ALIGN", "WORKSPACE_BYTES", "several threads"] {
        assert!(header.contains(word), "{header}");
    }
}

#[test]
fn the_example_in_c_reads_digits() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    build(at, "libdigits.so", &[]);
    fs::write(at.join("images.f32"), array("inputs.npz").bytes()).expect("it can be written");
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I.", "-o", "digits"];
    let libraries = ["-L.", "-Wl,-rpath,.", "-ldigits", "-lpthread"];
    said(Command::new("cc").args(flags).arg(shipped("examples/c/digits.c")).args(libraries).current_dir(at));
    let printed = said(Command::new(at.join("digits")).arg("images.f32").current_dir(at));
    let lines: Vec<&str> = printed.lines().collect();
    let scores = array("outputs.npz").to_f64_vec();
    let best = |s: &[f64]| (0..10).max_by(|&a, &b| s[a].total_cmp(&s[b])).expect("ten classes").to_string();
    let want: Vec<String> = scores.chunks(10).map(best).collect();
    assert_eq!(
        lines.split_last(),
        Some((&"4 threads agree", &want.iter().map(String::as_str).collect::<Vec<_>>()[..]))
    );
}

/// An archive unpacked into a folder; its object files.
fn unpacked(archive: &Path) -> (TempDir, Vec<PathBuf>) {
    let folder = TempDir::new().expect("a folder can be made");
    said(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder.path()));
    let mut objects: Vec<PathBuf> =
        fs::read_dir(folder.path()).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    objects.retain(|p| p.extension().is_some_and(|e| e == "o"));
    (folder, objects)
}

#[test]
fn code_for_another_architecture() {
    let folder = TempDir::new().expect("a folder can be made");
    for cpu in ["cortex-a53", "neoverse-n1", "neoverse-v2"] {
        let target = format!("llvm,-mtriple=aarch64-linux-gnu,-mcpu={cpu}");
        let archive = build(folder.path(), "digits.tar", &["--target", &target]);
        let (sources, objects) = unpacked(&archive);
        assert!(objects.len() > 3, "{cpu}: {objects:?}");
        for object in objects {
            let header = said(Command::new("readelf").arg("-h").arg(&object));
            assert!(header.contains("AArch64") && header.contains("REL (Relocatable file)"), "{header}");
        }
        // Where there is a compiler for it, the rest is linked, and run where an emulator is.
        let compiler = "aarch64-linux-gnu-gcc";
        if Command::new(compiler).arg("--version").output().is_ok() {
            said(Command::new("make").arg(format!("CC={compiler}")).current_dir(sources.path()));
            let header = said(Command::new("readelf").args(["-h", "digits.so"]).current_dir(sources.path()));
            assert!(header.contains("AArch64") && header.contains("DYN"), "{header}");
        } else {
            eprintln!("{compiler} is not there: the library was not linked");
        }
    }
}

#[test]
fn archives_are_linked_by_whoever_gets_them() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    let (sources, _) = unpacked(&build(at, "digits.tar", &[]));
    said(Command::new("make").arg("CC=cc").current_dir(sources.path()));
    fs::copy(sources.path().join("digits.so"), at.join("digits.so")).expect("it was linked");
    let mut run = Command::new(env!("CARGO_BIN_EXE_resat"));
    run.args(["run", "digits.so", "--outputs", "out.npz", "--inputs"]).arg(shipped("models/digits/inputs.npz"));
    said(run.current_dir(at));
    close(&at.join("out.npz"));
}

/// The results are those that were recorded, but for rounding.
fn close(file: &Path) {
    let found = npz::read("out", &fs::read(file).expect("it was written")).expect("an archive").swap_remove(0).1;
    let (want, found) = (array("outputs.npz").to_f64_vec(), found.to_f64_vec());
    let worst = want.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(want.len() == found.len() && worst < 1e-4, "{worst}");
}

#[test]
fn code_for_other_processors() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    let host = resat::codegen::llvm::host_target();
    for (cpu, wide) in [("x86-64", false), ("haswell", false), ("skylake-avx512", true), ("sapphirerapids", true)] {
        let name = format!("{}.so", cpu.replace('-', "_"));
        let target = format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu}");
        let library = build(at, &name, &["--target", &target]);
        let header = said(Command::new("readelf").arg("-h").arg(&library));
        assert!(header.contains("X86-64"), "{header}");
        let code = said(Command::new("objdump").arg("-d").arg(&library));
        assert_eq!(code.contains("%zmm"), wide, "{cpu}");
        let lacking = Target::parse(&target).expect("a target").codegen().lacking_on(&host);
        let mut run = Command::new(env!("CARGO_BIN_EXE_resat"));
        run.args(["run", &name, "--outputs", "out.npz", "--inputs"]).arg(shipped("models/digits/inputs.npz"));
        match lacking {
            None => {
                said(run.current_dir(at));
                close(&at.join("out.npz"));
            }
            Some(what) => eprintln!("this machine is not or has not {what}: the library for {cpu} was not run"),
        }
    }
}

#[test]
fn sizes_that_change_are_bounded() {
    let folder = TempDir::new().expect("a folder can be made");
    let at = folder.path();
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(?, 8), float32]) { nn.softmax(%x) }";
    fs::write(at.join("net.relay"), text).expect("it can be written");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
        command.args(arguments).current_dir(at).stdin(Stdio::null()).env("XDG_CACHE_HOME", at.join("user"));
        let output = command.output().expect("the program starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for emit in ["library", "c"] {
        let (done, said) = run(&["build", "net.relay", "--emit", emit, "-o", "net.out"]);
        assert!(!done && said.contains("axis 0 of `x`") && said.contains("--max"), "{said}");
        let (done, said) = run(&["build", "net.relay", "--emit", emit, "--max", "x=5x8", "-o", "net.out"]);
        assert!(done, "{said}");
    }
    let (done, said) = run(&["build", "net.relay", "--max", "x=5x8", "-o", "libnet.so"]);
    assert!(done, "{said}");
    for n in [1, 5, 6] {
        let x = Tensor::from_f64_fn(resat::tensor::DType::F32, &[n, 8], |i| i as f64);
        fs::write(at.join("in.npz"), npz::write([("x", &x)]).expect("an archive")).expect("it can be written");
        let (done, said) = run(&["run", "libnet.so", "--inputs", "in.npz", "--outputs", "out.npz"]);
        assert_eq!(done, n <= 5, "{said}");
        assert!(done || said.contains("has 6 elements; the library serves 5 and fewer"), "{said}");
    }
}
