//! Exported libraries, called from C and loaded back.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use resat::{
    runtime::{
        Call, Estimate, Executable, LoadedModel, Pool, Port, Program, SharedLibrary, Step, export::export_library,
    },
    tensor::{DType, Tensor},
};

const ROWS: usize = 64;
const DEPTH: usize = 32;
const COLUMNS: usize = 48;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export").join(name)
}

fn cc(args: &[&str], paths: &[&Path]) {
    let output = Command::new("cc").args(args).args(paths).output().expect("the system has a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `relu(x w)`, and `x` itself.
fn program() -> Program {
    let mut p = Program::new("net");
    let x = p.input(Port::new("x", DType::F32, &[ROWS, DEPTH]));
    let w = p.constant(weights());
    let product = p.buffer(ROWS * COLUMNS * 4);
    let y = p.buffer(ROWS * COLUMNS * 4);
    let (matmul, relu) = (p.function("matmul"), p.function("relu"));
    let args = vec![(x, false), (w, false), (product, true)];
    p.step(Step::Call(Call { function: matmul, args, workspace: 0, in_place: vec![], estimate: Estimate::default() }));
    let args = vec![(product, false), (y, true)];
    p.step(Step::Call(Call {
        function: relu,
        args,
        workspace: ROWS * COLUMNS * 4,
        in_place: vec![],
        estimate: Estimate::default(),
    }));
    p.output(Port::new("0", DType::F32, &[ROWS, COLUMNS]), y);
    p.output(Port::new("1", DType::F32, &[ROWS, DEPTH]), x);
    p
}

fn weights() -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[DEPTH, COLUMNS], |i| ((i * 5) % 11) as f64 - 5.0)
}

fn input() -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[ROWS, DEPTH], |i| (i % 7) as f64 - 3.0)
}

/// The output, and its sum as the C program prints it.
fn expected() -> (Tensor, String) {
    let (x, w) = (input(), weights());
    let dot = |i, j| (0..DEPTH).map(|k| x.get_f64(i * DEPTH + k) * w.get_f64(k * COLUMNS + j)).sum::<f64>();
    let y = Tensor::from_f64_fn(DType::F32, &[ROWS, COLUMNS], |i| dot(i / COLUMNS, i % COLUMNS).max(0.0));
    let sum: f64 = y.to_f64_vec().iter().sum();
    (y, format!("{sum:.3}"))
}

fn exported(dir: &Path) -> PathBuf {
    let object = dir.join("kernels.o");
    cc(&["-O2", "-fPIC", "-c", "-o"], &[&object, &source("kernels.c")]);
    let object = std::fs::read(&object).expect("the object was written");
    let library = dir.join("libnet.so");
    let files = export_library(&program(), &[&object], &library).expect("it can be exported");
    std::fs::rename(&files.header, dir.join("net.h")).expect("the header was written");
    library
}

#[test]
fn a_c_program_calls_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    exported(dir.path());
    let binary = dir.path().join("main");
    let include = format!("-I{}", dir.path().display());
    let folder = format!("-L{}", dir.path().display());
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", &include, "-o"];
    cc(
        &[
            &flags[..],
            &[&binary.display().to_string(), &source("main.c").display().to_string(), &folder, &rpath, "-lnet"],
        ]
        .concat(),
        &[],
    );
    let output = Command::new(&binary).output().expect("it was linked");
    assert_eq!(output.status.code(), Some(0));
    let sum = expected().1;
    let line = format!("{sum} 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("net x float32 2\n{}", line.repeat(4)));
}

#[test]
fn it_is_loaded_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = LoadedModel::load(&exported(dir.path())).expect("it was exported");
    assert_eq!(model.inputs(), program().inputs());
    assert!(model.outputs().iter().eq(program().outputs()));
    let want = [expected().0, input()];
    for threads in [1, 2, 5, 1] {
        assert!(model.set_threads(threads));
        assert_eq!(model.run(&[input()]).expect("x fits"), want);
    }
    model.set_threads(2);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..50).for_each(|_| assert_eq!(model.run(&[input()]).expect("x fits"), want)));
        }
    });
    assert!(model.run(&[weights()]).expect_err("another shape").to_string().contains("input 0 (`x`) should be"));
}

#[test]
fn its_functions_run_in_process() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let library = dir.path().join("libkernels.so");
    cc(&["-O2", "-fPIC", "-shared", "-o"], &[&library, &source("kernels.c")]);
    let code = SharedLibrary::load(&library).expect("it was compiled");
    let exe = Executable::link(program(), vec![Arc::new(code)], Arc::new(Pool::new(2))).expect("it has both functions");
    assert_eq!(exe.run(&[input()]).expect("x fits"), [expected().0, input()]);
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let library = dir.path().join("other.so");
    assert!(LoadedModel::load(&library).is_err());
    cc(&["-O2", "-fPIC", "-shared", "-o"], &[&library, &source("kernels.c")]);
    let message = LoadedModel::load(&library).expect_err("no model").to_string();
    assert!(message.contains("not a library that resat has exported"), "{message}");
}
