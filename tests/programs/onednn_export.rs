//! Exported libraries with regions of oneDNN: they run without resat, give what the interpreter gives, hold what other compilers made
//! as well, and say what is wrong where the library is missing. Where it is not installed, the tests say so and pass.
#![cfg(feature = "llvm")]

use std::{path::Path, process::Command};

use crate::common::{
    onednn::{Random, bytes, compare, floats, installed},
    vendor,
};
use resat::{
    driver::{Options, build},
    infer::infer_types,
    interp,
    ir::{AttrValue, Attrs, Copier, Expr, Function, Module},
    pass::{Settings, sequence},
    relay::text::parse_module,
    runtime::{LoadedModel, export::export_linked},
    target::Target,
    tensor::{Tensor, Value},
};

/// A module whose `@main` calls each of these functions, as a region of its own; parameters that begin with `c` are constants. And
/// inputs for it.
fn regions(functions: &[String], random: &mut Random) -> (Module, Vec<Tensor>) {
    let named = functions.iter().enumerate().map(|(i, f)| format!("{}\n", f.replacen("@main", &format!("@p{i}"), 1)));
    let text = format!("#[version = \"0.0.5\"]\n{}", named.collect::<String>());
    let parsed = parse_module("functions", &text).unwrap_or_else(|e| panic!("{text}\n{e}"));
    let typed = infer_types(parsed).unwrap_or_else(|e| panic!("{text}\n{e}"));
    let m = typed.module();
    let mut out = m.derive();
    let (mut calls, mut params, mut inputs) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..functions.len() {
        let name = format!("p{i}");
        let id = m.function_id(&name).expect("it was parsed");
        let copied = Copier::new().copy(m, id, &mut out);
        let attrs = Attrs::new(vec![
            ("Primitive".into(), AttrValue::Int(1)),
            ("Compiler".into(), "onednn".into()),
            ("global_symbol".into(), name.as_str().into()),
        ]);
        let region = Function { attrs, ..out.func(copied).clone() };
        let region = out.add(Expr::Func(Box::new(region)));
        let mut args = Vec::new();
        for &p in &m.func(id).params {
            let ty = typed.var_ty(p).clone();
            let t = ty.as_tensor().expect("tensors");
            let shape: Vec<usize> = t.known_shape().expect("known").iter().map(|&n| n as usize).collect();
            let own = m.var(p).name.clone();
            let mut data = random.tensor(t.dtype, &shape);
            if own.starts_with("cp") {
                data = Tensor::from_f64_fn(t.dtype, &shape, |i| data.get_f64(i).abs() + 0.1);
            }
            if own.starts_with("cscale") {
                data = Tensor::from_f64_fn(t.dtype, &shape, |i| 0.001 + 0.0007 * i as f64);
            }
            args.push(match own.starts_with('c') {
                true => out.constant(data),
                false => {
                    let var = out.new_var(format!("x{}", inputs.len()), Some(ty.clone()));
                    params.push(var);
                    inputs.push(data);
                    out.add(Expr::Var(var))
                }
            });
        }
        calls.push(out.add(Expr::Call { callee: region, args, attrs: Attrs::empty(), type_args: vec![] }));
    }
    let body = out.add(Expr::Tuple(calls));
    let main = out.add(Expr::Func(Box::new(Function::new(params, body, None))));
    out.define("main", main);
    (out, inputs)
}

/// Exports the functions as regions of one library, runs it in several threads, and compares with the interpreter.
fn check(functions: &[String], seed: u64) {
    let (module, inputs) = regions(functions, &mut Random(seed));
    let values: Vec<Value> = inputs.iter().cloned().map(Value::from).collect();
    let wanted = interp::run_flat(&module, "main", values).unwrap_or_else(|e| panic!("{e}"));
    let settings = Settings::new(Target::host());
    let passes = sequence("", &settings).expect("no passes");
    let options = Options { passes: Some(Box::new(passes)), threads: 2, ..Options::new(settings) };
    let built = build(module, &[], options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(built.record().expect("it is built here").external.len(), functions.len());
    let parts = built.exportable(&Target::host().codegen()).unwrap_or_else(|e| panic!("{e}"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let program = built.executable.as_plain().expect("it is plain").program();
    let written = export_linked(program, &parts, &dir.path().join("all.so")).unwrap_or_else(|e| panic!("{e}"));
    let model = LoadedModel::load(&written.library).unwrap_or_else(|e| panic!("{e}"));
    for threads in [1, 2, 1] {
        assert!(model.set_threads(threads));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        let got = model.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
                        assert_eq!(got.len(), wanted.len());
                        for (i, (g, w)) in got.iter().zip(&wanted).enumerate() {
                            compare(g, w, &format!("{functions:#?}\nresult {i}, {threads} threads"));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn regions_of_floats_run_without_resat() {
    if !installed() {
        return;
    }
    let programs = [
        // Sums in place, what follows a product, layouts with channels that fill no block.
        "def @main(%x: Tensor[(1, 12, 9, 9), T], %c1: Tensor[(12, 12, 3, 3), T], %c2: Tensor[(12, 12, 3, 3), T],
             %c3: Tensor[(12), T], %c4: Tensor[(12, 12, 1, 1), T]) {
             %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %c1, padding=[1, 1]), %c3));
             %1 = nn.relu(nn.conv2d(%0, %c2, padding=[1, 1]));
             %2 = nn.bias_add(nn.conv2d(%1, %c4), %c3);
             %3 = nn.relu(add(%2, %0));
             %4 = nn.max_pool2d(%3, pool_size=[3, 3], strides=[2, 2], padding=[1, 1]);
             %5 = nn.conv2d(%4, %c4);
             (concatenate((%5, nn.avg_pool2d(%4, pool_size=[3, 3], padding=[1, 1, 1, 1])), axis=1), nn.global_avg_pool2d(%4)) }",
        "def @main(%x: Tensor[(1, 9, 9, 8), T], %c: Tensor[(3, 3, 8, 1), T]) {
             maximum(nn.conv2d(%x, %c, groups=8, channels=8, kernel_size=[3, 3], padding=[1, 1], data_layout=\"NHWC\", kernel_layout=\"HWOI\"), %x) }",
        "def @main(%x: Tensor[(1, 4, 5, 6, 7), T], %c: Tensor[(8, 4, 2, 3, 3), T]) { nn.conv3d(%x, %c, padding=[1, 1, 1], dilation=[1, 2, 1]) }",
        "def @main(%x: Tensor[(1, 6, 5, 4), T], %c: Tensor[(6, 5, 3, 3), T]) {
             nn.relu(nn.conv2d_transpose(%x, %c, channels=5, kernel_size=[3, 3], strides=[2, 2], padding=[1, 1], output_padding=[1, 0])) }",
        "def @main(%x: Tensor[(3, 20), T], %c: Tensor[(16, 20), T], %cb: Tensor[(16), T], %x2: Tensor[(3, 16), T]) {
             tanh(add(add(nn.dense(%x, %c), %cb), %x2)) }",
        "def @main(%x: Tensor[(20, 3), T], %xw: Tensor[(20, 9), T]) { nn.leaky_relu(nn.matmul(%x, %xw, transpose_a=True), alpha=0.3f) }",
        "def @main(%x: Tensor[(1, 5, 32), T], %y: Tensor[(1, 5, 32), T]) {
             %0 = transpose(reshape(%x, newshape=[5, 4, 8]), axes=[1, 0, 2]); %1 = transpose(reshape(%y, newshape=[5, 4, 8]), axes=[1, 0, 2]);
             %2 = nn.softmax(nn.batch_matmul(%0, %1, transpose_b=True)); %3 = nn.batch_matmul(%2, transpose(%1, axes=[0, 2, 1]), transpose_b=True);
             reshape(transpose(%3, axes=[1, 0, 2]), newshape=[1, 5, 32]) }",
        "def @main(%x: Tensor[(1, 6, 5, 5), T], %cg: Tensor[(6), T], %cb: Tensor[(6), T], %cm: Tensor[(6), T], %cpv: Tensor[(6), T]) {
             %0 = nn.batch_norm(%x, %cg, %cb, %cm, %cpv);
             clip(%0.0, a_min=-0.7f, a_max=0.9f) }",
        // The same result twice, an input as it is, a constant.
        "def @main(%x: Tensor[(4, 6), T], %c: Tensor[(4, 6), T]) {
             %0 = multiply(%x, %c); (%0, subtract(%c, %0), %0, exp(negative(abs(%0))), nn.log_softmax(%0)) }",
    ];
    for (i, t) in floats().into_iter().enumerate() {
        let of_type = |p: &&str| p.replace(", T]", &format!(", {t}]"));
        check(&programs.iter().map(of_type).collect::<Vec<_>>(), i as u64);
    }
}

#[test]
fn regions_of_bytes_run_without_resat() {
    if !bytes() {
        return;
    }
    let products = |data: &str, zero: i64, pad: i64| {
        format!(
            "def @main(%x: Tensor[(1, 12, 7, 7), {data}], %c: Tensor[(20, 12, 3, 3), int8], %cb: Tensor[(20), int32], %cscale: Tensor[(20), float32]) {{
             %0 = qnn.conv2d(%x, %c, {zero}, 0, 0.5f, %cscale, padding=[{pad}, {pad}, {pad}, {pad}], channels=20, kernel_size=[3, 3], out_dtype=\"int32\");
             clip(qnn.requantize(nn.bias_add(%0, %cb), %cscale, 0, 0.7f, 3, axis=1, out_dtype=\"int8\"), a_min=-100f, a_max=90f) }}"
        )
    };
    let mut all: Vec<String> = [("uint8", 0, 1), ("uint8", 119, 1), ("uint8", 7, 0), ("int8", -5, 1)]
        .map(|(d, z, p)| products(d, z, p))
        .into();
    all.extend(
        [
            "def @main(%x: Tensor[(2, 24), uint8], %c: Tensor[(10, 24), int8]) {
             qnn.requantize(qnn.dense(%x, %c, 3, 0, 0.2f, 0.1f, units=10, out_dtype=\"int32\"), 0.02f, 0, 0.4f, 7, out_dtype=\"uint8\") }",
            // Sums of more than 24 bits.
            "def @main(%x: Tensor[(2, 5000), uint8], %c: Tensor[(9, 5000), int8]) {
             qnn.dense(%x, %c, 255, 0, 0.2f, 0.1f, units=9, out_dtype=\"int32\") }",
            "def @main(%x: Tensor[(1, 16, 9, 9), uint8], %c1: Tensor[(16, 16, 3, 3), int8], %cb: Tensor[(16), int32], %cscale: Tensor[(16), float32]) {
             %0 = qnn.conv2d(%x, %c1, 0, 0, 1f, 1f, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], out_dtype=\"int32\");
             %1 = qnn.requantize(nn.bias_add(%0, %cb), %cscale, 0, 0.7f, 0, axis=1, out_dtype=\"uint8\");
             %2 = qnn.add(%1, %x, 0.04f, 119, 0.02f, 0, 0.033f, 0, lhs_axis=1, rhs_axis=1);
             (%2, nn.max_pool2d(%2, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])) }",
        ]
        .map(str::to_owned),
    );
    check(&all, 11);
}

/// A program with work for everybody, and constants.
const SHARED: &str = r#"#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(8, 3, 3, 3), float32], %v: Tensor[(5, 8), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.relu(add(%0, %0));
  %2 = nn.batch_flatten(nn.global_max_pool2d(%1));
  %3 = nn.dense(%2, %v);
  (nn.softmax(%3), sum(%1, axis=[1, 2, 3]))
}
"#;

/// Says what a run returned, and why.
const MAIN: &str = r#"
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
static void *make(uint64_t bytes) {
  float *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
  for (uint64_t i = 0; i < bytes / 4; i++) p[i] = (float)(i % 7) * 0.25f - 0.5f;
  return p;
}
int main(void) {
  const resat_model *m = model_model();
  const void *in[8];
  void *out[8];
  for (uint32_t i = 0; i < m->input_count; i++) in[i] = make(m->inputs[i].bytes);
  for (uint32_t i = 0; i < m->output_count; i++) out[i] = make(m->outputs[i].bytes);
  int code = model_run(in, out, NULL);
  printf("%d\n", code);
  if (code == RESAT_FAILED) printf("%s\n", model_error());
  else for (uint32_t i = 0; i < m->output_count; i++)
    for (uint64_t k = 0; k < m->outputs[i].bytes / 4; k++) printf("%.9g\n", ((float *)out[i])[k]);
  return 0;
}
"#;

fn said(command: &mut Command) -> (String, String) {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{command:?}: {err}");
    (String::from_utf8_lossy(&out.stdout).into_owned(), err)
}

#[test]
fn four_makers_are_in_one_library() {
    if !installed() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("model.relay"), SHARED).expect("it is written");
    std::fs::write(at("main.c"), MAIN).expect("it is written");
    let passes =
        "Partition(onednn, nn.conv2d, nn.global_max_pool2d), Partition(vendor, nn.relu, add), Partition(c, nn.softmax)";
    let build = |library: &Path, passes: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
        command.args(["build".as_ref(), at("model.relay").as_os_str(), "-o".as_ref(), library.as_os_str()]);
        command.args(["--compiler".as_ref(), vendor().as_os_str(), "--passes".as_ref(), passes.as_ref()]);
        said(&mut command);
    };
    let program = |name: &str, passes: &str| {
        let folder = at(name);
        std::fs::create_dir(&folder).expect("a folder");
        build(&folder.join("model.so"), passes);
        let main = folder.join("main");
        let mut cc = Command::new("cc");
        cc.arg("-I").arg(&folder).arg("-o").args([&main, &at("main.c"), &folder.join("model.so")]);
        said(cc.arg(format!("-Wl,-rpath,{}", folder.display())));
        main
    };
    let (all, plain) = (program("all", passes), program("plain", "default"));
    let symbols = said(Command::new("nm").arg("-a").arg(at("all/model.so"))).0;
    for of in ["onednn", "vendor", "c"] {
        assert!(symbols.contains(&format!("_{of}_main_")), "{of}: {symbols}");
    }
    let numbers = |text: String| text.lines().map(|l| l.parse::<f32>().expect("a number")).collect::<Vec<_>>();
    let (got, wanted) = (numbers(said(&mut Command::new(&all)).0), numbers(said(&mut Command::new(plain)).0));
    assert_eq!((got.len(), got[0]), (wanted.len(), 0.0));
    for (g, w) in got.iter().zip(&wanted) {
        assert!((g - w).abs() <= 1e-4 * w.abs().max(1.0), "{got:?} {wanted:?}");
    }
    // Without oneDNN, loading says so, and so does each run.
    let (out, err) = said(Command::new(&all).env("RESAT_ONEDNN", "/nowhere/libdnnl.so"));
    let why = "oneDNN is not installed (/nowhere/libdnnl.so can't be loaded): install Debian's package";
    assert!(out.starts_with("4\n") && out.contains(why), "{out}");
    assert!(err.starts_with("model: ") && err.contains(why), "{err}");
    // For whoever links it elsewhere.
    build(&at("model.tar"), passes);
}
