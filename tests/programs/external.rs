//! External compilers: registered ones, shared libraries written in C, several at once, and all the ways in which they fail.
#![cfg(feature = "llvm")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use crate::common::vendor;
use resat::{
    driver::{Built, Options, build, difference},
    interp,
    ir::{Attrs, Module, OpId, Type},
    partition::{self, Arguments, CallError, Callable, Code, Compiled, CompilerError, ExternalCompiler, Region},
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    runtime::{LoadedModel, export::export_library},
    target::Target,
    tensor::{Tensor, Value},
};

/// A program with work for everybody: elementwise chains, a dense layer, a softmax.
const PROGRAM: &str = r#"#[version = "0.0.5"]
def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32], %w: Tensor[(4, 4), float32]) {
  %0 = nn.relu(add(%x, %y));
  %1 = multiply(%0, %x);
  %2 = nn.dense(%1, %w);
  (nn.softmax(%2), negative(%1))
}
"#;

fn module(text: &str) -> Module {
    text::parse_module("test.relay", text).unwrap_or_else(|e| panic!("{e}"))
}

fn inputs() -> Vec<Tensor> {
    let tensor = |shape: &[usize], k: usize| {
        Tensor::from_f64_fn(resat::tensor::DType::F32, shape, |i| ((i * k) % 7) as f64 * 0.5 - 1.5)
    };
    vec![tensor(&[3, 4], 3), tensor(&[3, 4], 5), tensor(&[4, 4], 2)]
}

fn options(passes: &str) -> Options {
    let settings = Settings::new(Target::host());
    let passes = sequence(passes, &settings).unwrap_or_else(|e| panic!("{e}"));
    Options { passes: Some(Box::new(passes)), threads: 1, ..Options::new(settings) }
}

fn built(text: &str, passes: &str) -> Built {
    build(module(text), &[], options(passes)).unwrap_or_else(|e| panic!("{e}"))
}

/// Builds, runs, and compares with the interpreter.
fn agrees(text: &str, passes: &str) -> Built {
    let inputs: Vec<Tensor> = inputs().into_iter().take(text.matches("%w:").count() + 2).collect();
    let built = built(text, passes);
    let want = interp::run_flat(&module(text), "main", inputs.iter().cloned().map(Value::from).collect());
    let got = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
    difference(&want.unwrap_or_else(|e| panic!("{e}")), &got).unwrap_or_else(|e| panic!("{e}"));
    built
}

#[test]
fn three_compilers_share_one_program() {
    partition::load(vendor()).unwrap_or_else(|e| panic!("{e}"));
    let built = agrees(PROGRAM, "Partition(vendor), Partition(c, nn.softmax)");
    let symbols: Vec<&str> =
        built.record().expect("it is built here").external.iter().map(|(s, _)| s.as_str()).collect();
    assert!(symbols.iter().any(|s| s.contains("_vendor_")) && symbols.iter().any(|s| s.contains("_c_")), "{symbols:?}");
    // The dense layer is LLVM's.
    assert_eq!(built.record().expect("it is built here").kernels.len(), 1);
    // All of it goes into one library.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let all = built.exportable(&Target::host().codegen()).unwrap_or_else(|e| panic!("{e}"));
    let objects: Vec<&[u8]> = all.objects.iter().map(|o| &o[..]).collect();
    let program = built.executable.as_plain().expect("it is plain").program();
    let written = export_library(program, &objects, &dir.path().join("all.so")).unwrap_or_else(|e| panic!("{e}"));
    let got = LoadedModel::load(&written.library).expect("it was written").run(&inputs()).expect("it runs");
    let want = built.executable.run(&inputs()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got, want);
}

#[test]
fn a_library_tells_of_itself() {
    let compiler = partition::load(vendor()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(compiler.name(), "vendor");
    assert_eq!(compiler.patterns().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["vendor.add_relu"]);
    assert!(compiler.rules().is_none() && !compiler.keeps_constants());
    let typed = resat::infer::infer_types(module(PROGRAM)).unwrap_or_else(|e| panic!("{e}"));
    let main = typed.function_id("main").expect("it has one");
    let target = Target::host().codegen();
    let region = Region::new(&typed, main, "vendor", "all", &target);
    assert_eq!(compiler.cost(&region).map(|c| (c * 1e9).round()), Some(24.0));
    let again = partition::find(&vendor().display().to_string()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.name(), "vendor");
    let error = partition::load(Path::new("nothing/here.so")).map(|c| c.name()).expect_err("no file").to_string();
    assert!(error.contains("nothing/here.so"), "{error}");
}

#[test]
fn the_compiler_c_takes_all() {
    let built = agrees(PROGRAM, "Partition(c)");
    assert_eq!(
        (
            built.record().expect("it is built here").kernels.len(),
            built.record().expect("it is built here").external.len()
        ),
        (0, 1)
    );
}

#[test]
fn regions_hold_constants_bindings_and_composites() {
    let text = r#"#[version = "0.0.5"]
    def @region(%a: Tensor[(3, 4), float32], Compiler="c", global_symbol="the.region", Primitive=1) -> Tensor[(3, 4), float32] {
      %0 = fn (%p: Tensor[(3, 4), float32], %q: Tensor[(3, 4), float32], Composite="c.sum") -> Tensor[(3, 4), float32] {
        add(%p, %q)
      };
      let %b = multiply(%a, 3f);
      %0(%b, %a)
    }
    def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32]) {
      (@region(%x), @region(%y))
    }"#;
    let built = agrees(text, "none");
    assert_eq!(
        built.record().expect("it is built here").external.iter().map(|(s, _)| s.as_str()).collect::<Vec<_>>(),
        ["the_region"]
    );
}

/// A compiler in Rust that computes here, where it may.
struct Here;

struct Doubled;

impl Callable for Doubled {
    fn call(&self, a: &mut Arguments<'_>) -> Result<(), CallError> {
        for (x, y) in a.inputs[0].chunks_exact(4).zip(a.outputs[0].chunks_exact_mut(4)) {
            let x = f32::from_ne_bytes(x.try_into().map_err(|_| "a float has four bytes")?);
            if x > 1e30 {
                return Err("that is too much".into());
            }
            y.copy_from_slice(&(x + x).to_ne_bytes());
        }
        Ok(())
    }
}

impl ExternalCompiler for Here {
    fn name(&self) -> &str {
        "here"
    }

    fn supports(&self, op: OpId, _: &Attrs, _: &[Type], _: &Type) -> bool {
        ["negative", "exp", "sin", "log"].contains(&op.op().name())
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        let text = region.text();
        match () {
            _ if text.contains("exp(") => Ok(Compiled::callable(Doubled)),
            _ if text.contains("sin(") => panic!("no sines"),
            _ if text.contains("log(") => Ok(Compiled { outputs: Some(vec![]), ..Compiled::callable(Doubled) }),
            _ => Err(region.refuse("out of ink")),
        }
    }
}

fn here() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        partition::register(Here).unwrap_or_else(|e| panic!("{e}"));
    });
}

fn unary(op: &str) -> String {
    format!(
        "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32]) {{ add(%y, {op}(%x)) }}"
    )
}

#[test]
fn functions_of_the_process_are_called_and_not_exported() {
    here();
    let built = built(&unary("exp"), "Partition(here)");
    assert!(matches!(built.record().expect("it is built here").external[0].1.code, Code::Callable(_)));
    let [x, y, _] = &inputs()[..] else { unreachable!() };
    let got = built.executable.run(&[x.clone(), y.clone()]).unwrap_or_else(|e| panic!("{e}"));
    let want = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| y.get_f64(i) + 2.0 * x.get_f64(i));
    assert_eq!(got, [want]);
    let huge = Tensor::from_f64_fn(x.dtype(), x.shape(), |_| 2e30);
    let error = built.executable.run(&[huge, y.clone()]).expect_err("it fails").to_string();
    assert!(error.contains("that is too much") && error.contains("_here_"), "{error}");
    let error = built.exportable(&Target::host().codegen()).map(|_| ()).expect_err("it lives here").to_string();
    assert!(error.contains("_here_") && error.contains("lives in the process"), "{error}");
    // It does not compute what it should, which is seen where it is asked for.
    let options = Options { check_regions: true, ..options("Partition(here)") };
    let error = build(module(&unary("exp")), &[], options).map(|b| b.calls).expect_err("it is wrong").to_string();
    assert!(error.contains("compiler `here`") && error.contains("differs at element"), "{error}");
}

#[test]
fn failures_name_compiler_and_region() {
    here();
    for (op, why) in [("negative", "out of ink"), ("sin", "it panicked: no sines"), ("log", "it gives 0 outputs")] {
        let error = build(module(&unary(op)), &[], options("Partition(here)")).map(|b| b.calls);
        let error = error.expect_err("it fails").to_string();
        assert!(error.contains("compiler `here` failed on region `") && error.contains(why), "{op}: {error}");
        let fallback = Options { fallback: true, ..options("Partition(here)") };
        let built = build(module(&unary(op)), &[], fallback).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            built.record().expect("it is built here").external.is_empty()
                && !built.record().expect("it is built here").kernels.is_empty(),
            "{op}"
        );
        assert!(
            built.warnings().iter().any(|w| w.contains("compiler `here` failed") && w.contains(why)),
            "{:?}",
            built.warnings()
        );
    }
    let unknown =
        unary("exp").replace("exp(%x)", "fn (%a: Tensor[(3, 4), float32], Compiler=\"hree\") { exp(%a) }(%x)");
    let error =
        build(module(&unknown), &[], options("none")).map(|b| b.calls).expect_err("nobody has that name").to_string();
    assert!(error.contains("`hree`, which is not known") && error.contains("did you mean `here`?"), "{error}");
}

#[test]
fn names_are_checked() {
    here();
    struct Named(&'static str);
    impl ExternalCompiler for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn supports(&self, _: OpId, _: &Attrs, _: &[Type], _: &Type) -> bool {
            false
        }
        fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
            Err(region.refuse("it takes nothing"))
        }
    }
    for (name, why) in
        [("here", "there is a compiler `here`"), ("c", "there is"), ("a-b", "can't be called"), ("", "can't be")]
    {
        let error = partition::register(Named(name)).map(|c| c.name()).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// The command line on the program with the compiler in C, which misbehaves.
fn resat(fault: &str, more: &[&str]) -> Output {
    static MODEL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, model) = MODEL.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("model.relay");
        std::fs::write(&path, PROGRAM).expect("it is written");
        (dir, path)
    });
    let passes = ["--passes", "Partition(vendor)"];
    Command::new(env!("CARGO_BIN_EXE_resat"))
        .args(["run".as_ref(), model.as_os_str(), "--compiler".as_ref(), vendor().as_os_str()])
        .args(passes)
        .args(["--validate", "--threads", "1"])
        .args(more)
        .env("EXT_FAULT", fault)
        .env("RESAT_COMPILER_SECONDS", "5")
        .output()
        .expect("it starts")
}

#[test]
fn libraries_that_fail_are_told_by_file_entry_and_region() {
    let refused = |fault: &str, more: &[&str], all: &[&str]| {
        let out = resat(fault, more);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // Messages are wrapped to the width of a terminal.
        let words = said.replace(['│', '\n'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(out.status.code(), Some(2), "{fault}: {said}");
        for part in all {
            assert!(words.contains(part), "{fault} {part}: {said}");
        }
    };
    refused("abi", &[], &["vendor.so", "`resat_compiler_abi` says version 99"]);
    refused("name", &[], &["vendor.so", "`resat_compiler_name` gives NULL"]);
    refused("utf8", &[], &["vendor.so", "`resat_compiler_name` gives a text that is no UTF-8"]);
    refused("supports", &[], &["vendor.so", "`resat_compiler_supports` crashed: signal 11"]);
    let region = "compiler `vendor` failed on region `tvmgen_";
    for (fault, why) in [
        ("crash", "`resat_compiler_compile` crashed: signal 11 (segmentation fault)"),
        ("abort", "`resat_compiler_compile` crashed: signal 6 (abort)"),
        ("exit", "`resat_compiler_compile` ended its process with code 3"),
        ("hang", "`resat_compiler_compile` gave no answer within 5 s"),
        ("refuse", "not today"),
        ("null", "`resat_compiler_compile` gives NULL instead of code"),
        ("kind", "`resat_compiler_compile` gives code of kind 77"),
        ("shape", "but the region's result is"),
        ("dtype", "it gives Tensor[(3, 4), int32], Tensor[(3, 4), float32], but"),
        ("few", "outputs, but the region has"),
        ("garbage", "what it gives is no object file"),
        ("symbol", "its object has no function `tvmgen_"),
        ("undefined", "its object needs `nowhere_to_be_found`, which is nowhere"),
    ] {
        refused(fault, &[], &[region, why]);
    }
    for (fault, why) in [
        ("code", "crashed: signal 11"),
        ("beyond", "it writes beyond the end of output"),
        ("wrong", "differs at element"),
    ] {
        refused(fault, &["--check-regions"], &[region, "its code was tried", why]);
    }
}

#[test]
fn what_a_library_fails_on_falls_back() {
    for fault in ["crash", "garbage", "few"] {
        let out = resat(fault, &["--fallback"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.contains("validated"), "{fault}: {said}");
        assert!(said.contains("is resat's own code now") && said.contains("vendor"), "{fault}: {said}");
    }
    let out = resat("", &["--check-regions"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A region of unknown extents is compiled when they are known.
#[test]
fn regions_of_unknown_extents_are_compiled_when_called() {
    let text = r#"#[version = "0.0.5"]
    def @main(%x: Tensor[(?, 4), float32]) {
      fn (%a: Tensor[(?, 4), float32], Compiler="c", Primitive=1) { nn.relu(negative(%a)) }(%x)
    }"#;
    let built = built(text, "none");
    for rows in [1, 5] {
        let x = Tensor::from_f64_fn(resat::tensor::DType::F32, &[rows, 4], |i| i as f64 - 3.0);
        let got = built.executable.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
        let want = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| (-x.get_f64(i)).max(0.0));
        difference(&[want], &got).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// A region of unknown extents that falls back says so with the run that met it, and once.
#[test]
fn regions_that_fall_back_when_called_are_told_once() {
    here();
    let text = r#"#[version = "0.0.5"]
    def @main(%x: Tensor[(?, 4), float32]) {
      let %r = fn (%a: Tensor[(?, 4), float32], Compiler="here", global_symbol="first", Primitive=1) { negative(%a) }(%x);
      fn (%a: Tensor[(?, 4), float32], Compiler="here", global_symbol="second", Primitive=1) { nn.relu(sin(%a)) }(%r)
    }"#;
    let options = |fallback| Options { fallback, ..options("none") };
    let rows = |n: usize| Tensor::from_f64_fn(resat::tensor::DType::F32, &[n, 4], |i| i as f64 - 3.0);
    let refused = build(module(text), &[], options(false)).unwrap_or_else(|e| panic!("{e}"));
    let error = refused.executable.run(&[rows(1)]).expect_err("there is no fallback").to_string();
    assert!(error.contains("compiler `here` failed on region `first`: out of ink"), "{error}");
    let built = build(module(text), &[], options(true)).unwrap_or_else(|e| panic!("{e}"));
    assert!(built.warnings().is_empty() && built.executable.warnings().is_empty(), "nothing was called yet");
    for n in [1, 5, 2] {
        let want = interp::run_flat(&module(text), "main", vec![rows(n).into()]).unwrap_or_else(|e| panic!("{e}"));
        let got = built.executable.run(&[rows(n)]).unwrap_or_else(|e| panic!("{e}"));
        difference(&want, &got).unwrap_or_else(|e| panic!("{e}"));
        let said = built.executable.warnings();
        let tells = |region: &str, why: &str| {
            let start =
                format!("region `{region}` is resat's own code now: compiler `here` failed on region `{region}`");
            said.iter().filter(|w| w.starts_with(&start) && w.contains(why)).count()
        };
        assert_eq!((tells("first", "out of ink"), tells("second", "no sines"), said.len()), (1, 1, 2), "{said:?}");
    }
}

/// The passes see what a partition is.
#[test]
fn a_partition_prints() {
    partition::load(vendor()).unwrap_or_else(|e| panic!("{e}"));
    let passes = sequence("Partition(vendor)", &Settings::new(Target::host())).unwrap_or_else(|e| panic!("{e}"));
    let out = passes.run(module(PROGRAM), &mut PassContext::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(text::print_module(&out).contains("Compiler=\"vendor\""));
}

/// A program in C99: nothing is needed but a C compiler and libm, and nothing is warned of.
#[test]
fn programs_become_c() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let large = r#"#[version = "0.0.5"]
    def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32]) {
      let %big = ones(shape=[600, 600], dtype="float32");
      (add(sum(%big), %x), fn (%a: Tensor[(3, 4), float32], Compiler="c") { exp(%a) }(%y))
    }"#;
    for (name, text, flags) in
        [("small", PROGRAM, &["-O2"][..]), ("large", large, &["-O1"]), ("threads", PROGRAM, &["-O2", "-fopenmp"])]
    {
        let path = dir.path().join(format!("{name}.c"));
        let mut options = options("default");
        options.name = name.into();
        // A constant of a size that C compilers do not like.
        let module = match name {
            "large" => module(&text.replace("ones(shape=[600, 600], dtype=\"float32\")", "%z").replace(
                "%y: Tensor[(3, 4), float32])",
                "%y: Tensor[(3, 4), float32], %z: Tensor[(600, 600), float32])",
            )),
            _ => module(text),
        };
        let weights = Tensor::from_f64_fn(resat::tensor::DType::F32, &[600, 600], |i| (i % 3) as f64);
        let params = if name == "large" { vec![("z".into(), weights)] } else { vec![] };
        // Folded, the sum would be a small constant.
        if name == "large" {
            options.passes = Some(Box::new(sequence("none", &options.settings).unwrap_or_else(|e| panic!("{e}"))));
        }
        let written = resat::driver::emit_c(module, &params, options, &path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(written.weights.is_some(), name == "large");
        let library = dir.path().join(format!("{name}.so"));
        let run = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Werror", "-fPIC", "-shared"])
            .args(flags)
            .arg("-o")
            .args([&library, &written.source])
            .arg("-lm")
            .output()
            .expect("the system has a C compiler");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let main = dir.path().join("main.c");
        std::fs::write(&main, MAIN.replace("NAME", name).replace("UPPER", &name.to_uppercase()))
            .expect("it is written");
        let binary = dir.path().join(format!("{name}-main"));
        let large = if name == "large" { "-DWEIGHTS" } else { "-DNO_WEIGHTS" };
        let run = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Werror", large, "-I"])
            .arg(dir.path())
            .arg("-o")
            .args([&binary, &main, &library])
            .arg("-lm")
            .output()
            .expect("the system has a C compiler");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let given = inputs();
        let count = if name == "large" { 2 } else { 3 };
        let bytes: Vec<u8> = given.iter().take(count).flat_map(|t| t.bytes().to_vec()).collect();
        std::fs::write(dir.path().join("in"), bytes).expect("it is written");
        let run = Command::new(&binary).current_dir(dir.path()).output().expect("it starts");
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        let out = std::fs::read(dir.path().join("out")).expect("it was written");
        let got: Vec<Tensor> = out
            .chunks(48)
            .map(|b| Tensor::from_bytes(resat::tensor::DType::F32, &[3, 4], b).expect("twelve floats"))
            .collect();
        let want: Vec<Tensor> = match name {
            "large" => vec![
                Tensor::from_f64_fn(given[0].dtype(), &[3, 4], |i| 360_000.0 + given[0].get_f64(i)),
                Tensor::from_f64_fn(given[1].dtype(), &[3, 4], |i| given[1].get_f64(i).exp()),
            ],
            _ => interp::run_flat(&self::module(PROGRAM), "main", given.into_iter().map(Value::from).collect())
                .unwrap_or_else(|e| panic!("{e}")),
        };
        difference(&want, &got).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    partition::load(vendor()).unwrap_or_else(|e| panic!("{e}"));
    let error = resat::driver::emit_c(module(PROGRAM), &[], options("Partition(vendor)"), &dir.path().join("no.c"));
    let error = error.map(|w| w.source).expect_err("not C").to_string();
    assert!(error.contains("compiler `vendor`, whose code is not C"), "{error}");
}

/// Reads the inputs from a file, runs the model twice, with its own workspace and without, and writes the outputs.
const MAIN: &str = r#"
#include "NAME.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static float in[3][16], out[2][12], again[2][12];
static double workspace[UPPER_WORKSPACE_BYTES / 8 + 1];
int main(void) {
  FILE *f = fopen("in", "rb");
  if (!f) return 1;
  size_t n = fread(in[0], 1, 48, f) + fread(in[1], 1, 48, f) + fread(in[2], 1, 64, f);
  fclose(f);
  if (n < 96) return 2;
  const void *inputs[3] = {in[0], in[1], in[2]};
  void *outputs[2] = {out[0], out[1]}, *others[2] = {again[0], again[1]};
#ifdef WEIGHTS
  if (NAME_run(inputs, outputs, NULL) != RESAT_BAD_ARGUMENT) return 3;
  f = fopen("NAME.weights", "rb");
  void *weights = malloc(UPPER_WEIGHTS_BYTES);
  if (!f || fread(weights, 1, UPPER_WEIGHTS_BYTES, f) != UPPER_WEIGHTS_BYTES) return 4;
  if (NAME_set_weights(weights, UPPER_WEIGHTS_BYTES) != RESAT_OK) return 5;
#endif
  if (NAME_run(inputs, outputs, NULL) != RESAT_OK || NAME_run(inputs, others, workspace) != RESAT_OK) return 6;
  if (memcmp(out, again, sizeof out) != 0) return 7;
  f = fopen("out", "wb");
  if (!f || fwrite(out, 1, sizeof out, f) != sizeof out) return 8;
  return fclose(f);
}
"#;
