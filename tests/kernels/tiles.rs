//! Products in matrix registers, emulated and, where there are some, real ones, against the interpreter: integers exactly; and the instructions that they become.
#![cfg(all(feature = "llvm", target_arch = "x86_64"))]

use std::process::Command;

use crate::common::{Data, Rng, difference, random_tensor};
use resat::{
    codegen::c,
    driver, interp,
    loops::{Builder, Kernel, Stmt, TILE, eval_stages, run_kernel},
    lower, ops,
    pass::{Pass, Sequential, Settings},
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// This machine with matrix registers besides.
fn with_tiles() -> Target {
    let mut t = Target::host();
    t.features.extend(["amx-tile", "amx-int8", "amx-bf16", "amx-emulated"].map(str::to_owned));
    t
}

/// Where code with matrix registers runs: on what stands in for them, and on those of this machine, if it has any.
fn targets() -> Vec<Target> {
    let host = Target::host();
    let has_tiles = host.features.contains("amx-int8") && host.features.contains("amx-bf16");
    [with_tiles()].into_iter().chain(has_tiles.then_some(host)).collect()
}

/// Runs `@main` on random arguments, by passes where some are given, else as it is written. `wanted` says whether matrix registers should
/// be used. Gives the words of the deepest tiles.
fn check(text: &str, default_passes: bool, small: bool, wanted: bool) -> i64 {
    let m =
        parse_module("tiles", &format!("#[version = \"0.0.5\"]\n{text}")).unwrap_or_else(|e| panic!("{}", e.render()));
    let mut rng = Rng(5);
    let (_, main) = m.functions().next().expect("one function");
    let args: Vec<Tensor> = (m.func(main).params.iter())
        .map(|&p| {
            let ty = m.var(p).ty.as_ref().expect("annotated").as_tensor().expect("a tensor").clone();
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.known().expect("known") as usize).collect();
            match small {
                // Sums of such are exact in any order.
                true => Tensor::from_f64_fn(ty.dtype, &shape, |_| (rng.next() % 17) as f64 - 8.0),
                false => random_tensor(&ty, Data::Wild, &mut rng),
            }
        })
        .collect();
    let values: Vec<Value> = args.iter().cloned().map(Value::from).collect();
    let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{}", e.render()));
    let mut deepest = 0;
    for target in targets() {
        let are_own = !target.features.contains("amx-emulated");
        let settings = Settings::new(target);
        let passes: Box<dyn Pass> = match default_passes {
            true => Box::new(resat::pass::default_pipeline(&settings).unwrap_or_else(|e| panic!("{}", e.render()))),
            false => Box::new(Sequential::default()),
        };
        let options = driver::Options { passes: Some(passes), ..driver::Options::new(settings) };
        let built = driver::build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}"));
        deepest = built.record().expect("it is built here").kernels.iter().map(depth).max().unwrap_or(0);
        // What vectors do as well is asked of processors that have both: others' vectors may be the faster or the slower ones.
        if wanted || are_own {
            assert_eq!(deepest > 0, wanted, "whether matrix registers are used for\n{text}");
        }
        let got = built.executable.run(&args).expect("runs");
        for (w, g) in want.iter().zip(&got) {
            if let Some(d) = difference(w, g) {
                panic!("{text}\n{d}");
            }
        }
    }
    deepest
}

/// Words of the deepest tiles of a kernel: 0 where it has none.
fn depth(k: &Kernel) -> i64 {
    let mut deepest = 0;
    k.body.for_each(&mut |s| {
        if let Stmt::Tiles { block, .. } = s {
            deepest = deepest.max(block.depth);
        }
    });
    deepest
}

fn convolution(
    data: &str,
    weight: &str,
    [inputs, outputs, size, kernel]: [i64; 4],
    blocks: [i64; 2],
    attrs: &str,
) -> String {
    let (count, sums) = if data == "bfloat16" { (2, "float32") } else { (4, "int32") };
    let [i, o] = blocks;
    let (c, n, words) = (inputs / i, outputs / o, inputs / count);
    format!(
        "def @main(%x: Tensor[(1, {c}, {size}, {size}, {i}), {data}], %w: Tensor[({n}, {words}, {kernel}, {kernel}, {o}, {count}), {weight}],
                   %b: Tensor[(1, {n}, 1, 1, {o}), {sums}]) {{
           %0 = fn (%x1: Tensor[(1, {c}, {size}, {size}, {i}), {data}], %w1: Tensor[({n}, {words}, {kernel}, {kernel}, {o}, {count}), {weight}],
                    %b1: Tensor[(1, {n}, 1, 1, {o}), {sums}], Primitive=1) {{
             %1 = nn.contrib_conv2d_NCHWc(%x1, %w1, channels={outputs}, kernel_size=[{kernel}, {kernel}], data_layout=\"NCHW{i}c\",
                    kernel_layout=\"OIHW{o}o{count}i\", out_layout=\"NCHW{o}c\", out_dtype=\"{sums}\", {attrs});
             nn.relu(add(%1, %b1))
           }};
           %0(%x, %w, %b)
         }}"
    )
}

fn dense(data: &str, weight: &str, [m, n, k]: [i64; 3], block: i64) -> String {
    let (count, sums) = if data == "bfloat16" { (2, "float32") } else { (4, "int32") };
    format!(
        "def @main(%x: Tensor[({m}, {k}), {data}], %w: Tensor[({}, {}, {block}, {count}), {weight}]) {{
           nn.contrib_dense_pack(%x, %w, weight_layout=\"NC{block}n{count}c\", out_dtype=\"{sums}\") }}",
        n / block,
        k / count
    )
}

#[test]
fn products_of_bytes_are_exact() {
    for (data, weight) in [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")] {
        check(&dense(data, weight, [32, 32, 64], 16), false, false, true);
    }
    // Rows, columns and depths that fill tiles badly.
    for shape in [[37, 48, 100], [17, 16, 68], [64, 80, 256], [3, 96, 400]] {
        check(&dense("uint8", "int8", shape, 16), false, false, true);
    }
    // Too little for tiles.
    check(&dense("uint8", "int8", [5, 32, 8], 16), false, false, false);
    check(&dense("int8", "int8", [40, 96, 128], 32), false, false, true);
    check(&dense("int8", "int8", [9, 24, 64], 24), false, false, true);
}

#[test]
fn convolutions_of_bytes_are_exact() {
    check(&convolution("uint8", "int8", [64, 64, 14, 3], [64, 64], "padding=[1, 1, 1, 1]"), false, false, true);
    check(&convolution("uint8", "int8", [64, 64, 7, 3], [32, 32], "padding=[1, 1, 1, 1]"), false, false, true);
    check(&convolution("int8", "int8", [128, 32, 8, 1], [64, 16], ""), false, false, true);
    check(
        &convolution("uint8", "int8", [32, 32, 9, 3], [16, 16], "strides=[2, 2], padding=[1, 0, 0, 1]"),
        false,
        false,
        false,
    );
    check(
        &convolution("uint8", "int8", [64, 32, 9, 3], [64, 32], "strides=[2, 2], padding=[1, 0, 0, 1]"),
        false,
        false,
        true,
    );
    check(&convolution("int8", "uint8", [48, 48, 20, 1], [48, 48], "strides=[2, 2]"), false, false, true);
}

#[test]
fn pairs_of_bfloat16_agree() {
    check(&dense("bfloat16", "bfloat16", [33, 64, 96], 16), false, true, true);
    check(&dense("bfloat16", "bfloat16", [7, 32, 50], 32), false, true, true);
    check(&dense("bfloat16", "bfloat16", [20, 32, 128], 16), false, false, true);
    check(&convolution("bfloat16", "bfloat16", [32, 32, 10, 3], [32, 32], "padding=[1, 1, 1, 1]"), false, true, true);
    check(&convolution("bfloat16", "bfloat16", [64, 32, 6, 1], [32, 16], ""), false, false, true);
}

/// Weights in whole tiles, window first: images that leave few rows in a tile, sums long enough to store tiles in between, output channels that
/// fill half a tile, and windows of few channels, whose rows of pixels are words.
#[test]
fn weights_in_whole_tiles_agree() {
    let convolution = |data: &str, [inputs, outputs, size, kernel]: [i64; 4], [i, o, b]: [i64; 3], attrs: &str| {
        let (count, sums, weight) = if data == "bfloat16" { (2, "float32", data) } else { (4, "int32", "int8") };
        let (c, n, words) = (inputs / i, outputs / b, inputs / count);
        format!(
            "def @main(%x: Tensor[(1, {c}, {size}, {size}, {i}), {data}], %w: Tensor[({n}, {kernel}, {kernel}, {words}, {b}, {count}), {weight}]) {{
               nn.contrib_conv2d_NCHWc(%x, %w, channels={outputs}, kernel_size=[{kernel}, {kernel}], data_layout=\"NCHW{i}c\",
                 kernel_layout=\"OHWI{b}o{count}i\", out_layout=\"NCHW{o}c\", out_dtype=\"{sums}\", {attrs}) }}"
        )
    };
    let padded = "padding=[1, 1, 1, 1]";
    for (data, deep) in [("bfloat16", 32), ("uint8", 64)] {
        check(&convolution(data, [2 * deep, 64, 7, 3], [deep, deep, 16], padded), false, true, true);
        check(&convolution(data, [4 * deep, 32, 7, 3], [deep, 16, 16], padded), false, true, true);
        check(&convolution(data, [deep, 24, 14, 3], [deep, 8, 8], padded), false, true, true);
        check(&convolution(data, [deep, 64, 28, 1], [deep, 32, 16], ""), false, true, true);
        let few = check(
            &convolution(data, [4, 32, 30, 7], [4, 16, 16], "strides=[2, 2], padding=[3, 3, 3, 3]"),
            false,
            true,
            true,
        );
        assert_eq!(few, if data == "uint8" { 7 } else { 14 }, "a row of the window is one of a tile");
    }
}

/// Products of two arguments, of which one is copied into tiles as the program runs; of odd extents, vectors do them.
#[test]
fn products_of_arguments_agree() {
    let product = |[b, m, n, k]: [i64; 4], transposed: &str| {
        let right = if transposed == "True" { format!("{n}, {k}") } else { format!("{k}, {n}") };
        format!(
            "def @main(%x: Tensor[({b}, {m}, {k}), bfloat16], %y: Tensor[({b}, {right}), bfloat16]) {{
               nn.batch_matmul(%x, %y, out_dtype=\"float32\", transpose_b={transposed}) }}"
        )
    };
    for transposed in ["False", "True"] {
        check(&product([3, 48, 64, 64], transposed), false, true, true);
        check(&product([2, 33, 40, 96], transposed), false, true, true);
    }
    check(&product([2, 33, 40, 33], "False"), false, true, false);
}

/// Images of any number and size, and sentences of any length: one code with matrix registers for all, whatever is left of rows after whole tiles.
#[test]
fn unknown_extents_go_through_tiles() {
    let convolution = |data: &str, weight: &str, deep: i64, count: i64, attrs: &str| {
        let sums = if count == 4 { "int32" } else { "float32" };
        format!(
            "def @main(%x: Tensor[(?, 2, ?, ?, {deep}), {data}], %w: Tensor[(4, 3, 3, {}, 16, {count}), {weight}]) {{
               nn.contrib_conv2d_NCHWc(%x, %w, channels=64, kernel_size=[3, 3], data_layout=\"NCHW{deep}c\", kernel_layout=\"OHWI16o{count}i\",
                 out_layout=\"NCHW32c\", out_dtype=\"{sums}\", {attrs}) }}",
            2 * deep / count
        )
    };
    let images = |deep: i64| -> Vec<Vec<i64>> {
        [[1, 14, 14], [2, 9, 33], [1, 5, 16], [3, 1, 1], [1, 40, 7]].map(|[n, h, w]| vec![n, 2, h, w, deep]).to_vec()
    };
    let dense = "def @main(%x: Tensor[(?, ?, 96), bfloat16], %w: Tensor[(4, 48, 16, 2), bfloat16]) {
        nn.contrib_dense_pack(%x, %w, weight_layout=\"NC16n2c\", out_dtype=\"float32\") }";
    let sentences = [[1, 128], [2, 37], [1, 1], [3, 16]].map(|[n, l]| vec![n, l, 96]).to_vec();
    let padded = "padding=[1, 1, 1, 1]";
    let programs = [
        (convolution("bfloat16", "bfloat16", 32, 2, padded), images(32)),
        (convolution("bfloat16", "bfloat16", 32, 2, "strides=[2, 2], padding=[1, 1, 1, 1]"), images(32)),
        (convolution("uint8", "int8", 64, 4, padded), images(64)),
        (dense.to_owned(), sentences),
    ];
    for ((text, shapes), target) in programs.iter().flat_map(|p| targets().into_iter().map(move |t| (p, t))) {
        let m = parse_module("tiles", &format!("#[version = \"0.0.5\"]\n{text}"))
            .unwrap_or_else(|e| panic!("{}", e.render()));
        let options = driver::Options {
            passes: Some(Box::new(Sequential::default())),
            ..driver::Options::new(Settings::new(target))
        };
        let exe = driver::build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}")).executable;
        let driver::Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
        let (_, main) = m.functions().next().expect("one function");
        let weight =
            m.var(m.func(main).params[1]).ty.as_ref().expect("annotated").as_tensor().expect("a tensor").clone();
        let extents: Vec<usize> = weight.shape.iter().map(|d| d.known().expect("known") as usize).collect();
        let mut rng = Rng(7);
        let mut small = |dtype, shape: &[usize]| Tensor::from_f64_fn(dtype, shape, |_| (rng.next() % 17) as f64 - 8.0);
        let weight = small(weight.dtype, &extents);
        let data = m.var(m.func(main).params[0]).ty.as_ref().expect("annotated").as_tensor().expect("a tensor").dtype;
        let mut compiled = None;
        for shape in shapes {
            let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            let args = [small(data, &shape), weight.clone()];
            let values: Vec<Value> = args.iter().cloned().map(Value::from).collect();
            let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{}", e.render()));
            let got = exe.run(&args).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(difference(&want[0], &got[0]), None, "{text}\n{shape:?}");
            let all = machine.compiled_kernels();
            assert_eq!(*compiled.get_or_insert(all), all, "{text}\n{shape:?}: nothing is compiled again");
        }
    }
}

/// By the default pipeline, from plain layouts: rules bring channels into blocks as deep as tiles.
#[test]
fn networks_are_brought_into_tiles() {
    let constant = |number: usize, shape: &str, dtype: &str| {
        format!("%{number} = cast(full(2, shape={shape}, dtype=\"int32\"), dtype=\"{dtype}\");")
    };
    for (dtype, sums, weights) in [("uint8", "int32", "int8"), ("bfloat16", "float32", "bfloat16")] {
        let text = format!(
            "def @main(%x: Tensor[(1, 64, 10, 10), {dtype}]) {{
               {} {}
               %0 = nn.conv2d(%x, %8, padding=[1, 1, 1, 1], channels=64, kernel_size=[3, 3], out_dtype=\"{sums}\");
               %1 = cast(clip(%0, a_min=0f, a_max=200f), dtype=\"{dtype}\");
               nn.conv2d(%1, %9, channels=64, kernel_size=[1, 1], out_dtype=\"{sums}\")
             }}",
            constant(8, "[64, 64, 3, 3]", weights),
            constant(9, "[64, 64, 1, 1]", weights),
        );
        assert_eq!(check(&text, true, true, true), TILE, "tiles of {dtype} are full");
    }
}

/// What kernels with matrix registers mean, before there is code.
#[test]
fn kernels_with_tiles_mean_what_they_were_made_of() {
    use DType::{BF16, F32, I8, I32, U8};
    for (data, weight, sums) in [(U8, I8, I32), (BF16, BF16, F32)] {
        let count = 4 / data.bytes();
        let op = ops::lookup("nn.contrib_dense_pack").expect("an operator");
        let layout = format!("NC16n{count}c");
        let given = [("weight_layout".into(), layout.as_str().into()), ("out_dtype".into(), sums.into())];
        let attrs = ops::make_attrs(op, &given).expect("legal");
        let mut b = Builder::new();
        let shapes = [vec![37, 100], vec![3, 100 / count, 16, count]];
        let of = |s: &[usize]| s.iter().map(|&n| n as i64).collect::<Vec<i64>>();
        let args = [b.arg(&of(&shapes[0]), data).into(), b.arg(&of(&shapes[1]), weight).into()];
        let out = op.op().lower(&attrs, &args, &mut b).expect("lowers");
        let stages = b.finish_with(&out);
        let kernel = lower::kernel("dense", &stages, with_tiles().core());
        assert!(depth(&kernel) > 0 && kernel.to_string().contains("tiles b"), "{kernel}");
        let mut rng = Rng(3);
        let mut random = |dtype, shape: &[usize]| Tensor::from_f64_fn(dtype, shape, |_| (rng.next() % 7) as f64);
        let given = [random(data, &shapes[0]), random(weight, &shapes[1])];
        let want = eval_stages(&stages, &given).expect("evaluates");
        let mut all = given.to_vec();
        all.push(Tensor::zeros(sums, &[37, 48]));
        run_kernel(&kernel, &mut all).expect("runs");
        assert_eq!(difference(&want[0], &all[2]), None, "{kernel}");
        all[2] = in_c(&kernel, &given, all[2].clone());
        assert_eq!(difference(&want[0], &all[2]), None, "in C: {kernel}");
    }
}

/// What the C of a kernel gives for two arguments.
fn in_c(kernel: &Kernel, args: &[Tensor], mut out: Tensor) -> Tensor {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sizes: Vec<usize> = args.iter().chain([&out]).map(|t| t.bytes().len()).collect();
    let text = format!(
        "{}{}#include <stdio.h>
         static unsigned char x[{}], y[{}], z[{}];
         int main(void) {{
           void *args[3] = {{x, y, z}};
           if (fread(x, 1, sizeof x, stdin) != sizeof x || fread(y, 1, sizeof y, stdin) != sizeof y) return 1;
           dense(0, args, 0);
           return fwrite(z, 1, sizeof z, stdout) != sizeof z;
         }}",
        c::PRELUDE,
        c::kernel(kernel, "dense", false),
        sizes[0],
        sizes[1],
        sizes[2]
    );
    let [source, program, input] = ["dense.c", "dense", "input"].map(|n| folder.path().join(n));
    std::fs::write(&source, text).expect("can be written");
    std::fs::write(&input, [args[0].bytes(), args[1].bytes()].concat()).expect("can be written");
    let compiled =
        Command::new("cc").arg("-std=c99").arg("-o").args([&program, &source]).arg("-lm").output().expect("cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let input = std::fs::File::open(input).expect("was written");
    let ran = Command::new(program).stdin(input).output().expect("runs");
    assert!(ran.status.success());
    out.bytes_mut().copy_from_slice(&ran.stdout);
    out
}
