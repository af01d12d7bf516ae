//! Kernels that go through rows in several steps: softmax, normalizations, reductions, attention. Compiled programs against the
//! interpreter, for shapes that leave rests of vectors and of blocks; and how much memory attention takes.
#![cfg(feature = "llvm")]

use crate::common::{Data, Rng, difference, random_tensor};
use resat::{
    driver::{Options, build},
    infer::infer_types,
    interp,
    ir::{Attrs, Name, Type},
    loops::Builder,
    lower::kernel,
    ops,
    pass::{Settings, sequence},
    relay::text::{parse_module, print_module},
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// Runs a program of float parameters by the interpreter and compiled under these passes; gives the program as the passes left it.
fn agree(name: &str, text: &str, passes: &str, threads: usize) -> String {
    let m = parse_module(name, &format!("#[version = \"0.0.5\"]\n{text}")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut rng = Rng(11);
    let inputs: Vec<Tensor> = typed
        .entry("main")
        .expect("there is a main")
        .params
        .iter()
        .map(|&p| random_tensor(typed.var_ty(p).as_tensor().expect("a tensor"), Data::Tame, &mut rng))
        .collect();
    let args: Vec<Value> = inputs.iter().cloned().map(Value::from).collect();
    let want = interp::run_flat(&m, "main", args).unwrap_or_else(|e| panic!("{name}: {e}"));
    let settings = Settings::new(Target::host());
    let mut options = Options::new(settings.clone());
    options.passes = Some(Box::new(sequence(passes, &settings).expect("it is a list of passes")));
    options.threads = threads;
    let built = build(m, &[], options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let got = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (w, g) in want.iter().zip(&got) {
        if let Some(d) = difference(w, g) {
            panic!("{name}: {d}\n{text}");
        }
    }
    print_module(&built.record().expect("it is built here").module)
}

fn tensor(shape: &[i64], dtype: &str) -> String {
    let extents: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    format!("Tensor[({}), {dtype}]", extents.concat().trim_end_matches(if shape.len() > 1 { "," } else { "" }))
}

#[test]
fn softmax_along_every_axis() {
    for shape in [&[5, 37][..], &[3, 128, 128], &[2, 19, 33], &[1, 7, 3, 50], &[130], &[4, 1]] {
        for axis in 0..shape.len() {
            for dtype in ["float32", "float64", "float16"] {
                let ty = tensor(shape, dtype);
                let text =
                    format!("def @main(%x: {ty}) {{ (nn.softmax(%x, axis={axis}), nn.log_softmax(%x, axis={axis})) }}");
                agree("softmax", &text, "none", 2);
            }
        }
    }
}

#[test]
fn statistics_of_rows() {
    for shape in [&[5, 37][..], &[64, 768], &[2, 19, 33], &[1, 6, 3, 50]] {
        let ty = tensor(shape, "float32");
        for axis in 0..shape.len() {
            let v = tensor(&shape[axis..=axis], "float32");
            let text = format!(
                "def @main(%x: {ty}, %g: {v}, %b: {v}) {{\n  (nn.layer_norm(%x, %g, %b, axis={axis}, epsilon=0.1f), \
                 nn.l2_normalize(%x, eps=0.001f, axis=[{axis}]),\n   variance(%x, mean(%x, axis=[{axis}], keepdims=True), axis=[{axis}]))\n}}"
            );
            agree("layer_norm", &text, "none", 2);
            for reduction in ["sum", "mean", "max", "min", "prod"] {
                agree(reduction, &format!("def @main(%x: {ty}) {{ {reduction}(%x, axis=[{axis}]) }}"), "none", 2);
            }
        }
    }
}

/// Functions behind a product are evaluated in loops over its register tiles.
#[test]
fn functions_after_products() {
    for (m, n) in [(7, 40), (33, 65), (1, 19), (40, 3)] {
        let text = format!(
            "def @main(%x: {}, %w: {}) {{\n  let %d = nn.dense(%x, %w);\n  multiply(add(erf(multiply(%d, 0.7f)), 1f), tanh(%d))\n}}",
            tensor(&[m, 24], "float32"),
            tensor(&[n, 24], "float32")
        );
        agree("gelu", &text, "default", 2);
    }
}

#[test]
fn attention_is_found_and_its_transposes_vanish() {
    // Queries, keys and values of 2 sequences with 3 heads, as frameworks write it.
    for (s, t, d) in [(19, 23, 8), (16, 16, 20), (40, 37, 16)] {
        let split = |name: &str, n: i64, to: &str| {
            format!("transpose(reshape(%{name}, newshape=[2, {n}, 3, {d}]), axes=[{to}])")
        };
        let text = format!(
            "def @main(%q: {q}, %k: {k}, %v: {k}, %m: {m}) {{
  let %a = reshape({}, newshape=[6, {s}, {d}]);
  let %b = reshape({}, newshape=[6, {d}, {t}]);
  let %c = reshape({}, newshape=[6, {t}, {d}]);
  let %z = reshape(nn.batch_matmul(%a, %b, transpose_b=False), newshape=[2, 3, {s}, {t}]);
  let %p = reshape(nn.softmax(add(divide(%z, 2f), %m), axis=-1), newshape=[6, {s}, {t}]);
  let %o = reshape(nn.batch_matmul(%p, %c, transpose_b=False), newshape=[2, 3, {s}, {d}]);
  reshape(transpose(%o, axes=[0, 2, 1, 3]), newshape=[{}, {}])
}}",
            split("q", s, "0, 2, 1, 3"),
            split("k", t, "0, 2, 3, 1"),
            split("v", t, "0, 2, 1, 3"),
            2 * s,
            3 * d,
            q = tensor(&[2 * s, 3 * d], "float32"),
            k = tensor(&[2 * t, 3 * d], "float32"),
            m = tensor(&[2, 1, 1, t], "float32"),
        );
        let after = agree("attention", &text, "default", 2);
        assert!(after.contains("nn.attention"), "{after}");
        assert!(!after.contains("transpose(") && !after.contains("nn.softmax"), "{after}");
    }
}

/// Masks that choose a number for some scores, or keep some, of as many axes as it takes.
#[test]
fn attention_whose_masks_choose_is_found() {
    let x = |n: i64| tensor(&[6, n, 8], "float32");
    for (choice, mask) in [
        ("where(%m, -1000000000f, %z)", &[19, 23][..]),
        ("where(%m, %z, -1000000000f)", &[2, 1, 1, 23]),
        ("where(logical_not(%m), -3e+38f, %z)", &[1, 19, 23]),
    ] {
        let text = format!(
            "def @main(%q: {}, %k: {}, %v: {}, %m: {}) {{
  let %z = reshape(nn.batch_matmul(%q, %k, transpose_b=True), newshape=[2, 3, 19, 23]);
  let %p = reshape(nn.softmax({choice}, axis=-1), newshape=[6, 19, 23]);
  nn.batch_matmul(%p, %v, transpose_b=False)
}}",
            x(19),
            x(23),
            x(23),
            tensor(mask, "bool"),
        );
        let after = agree("choices", &text, "default", 1);
        assert!(after.contains("nn.attention") && !after.contains("where("), "{after}");
    }
    let x = tensor(&[1, 2, 40, 16], "bfloat16");
    let m = tensor(&[40, 40], "bool");
    let text = format!(
        "def @main(%q: {x}, %k: {x}, %v: {x}, %m: {m}) {{ nn.attention(%q, %k, %v, expand_dims(%m, axis=0, num_newaxis=2), masked=-1e30f) }}"
    );
    agree("short choices", &text, "none", 2);
}

#[test]
fn attention_of_batches_is_found() {
    let (x, y) = (tensor(&[4, 21, 12], "float32"), tensor(&[4, 30, 12], "float32"));
    for scores in ["nn.batch_matmul(%x, %y, transpose_b=True)", "add(nn.batch_matmul(%x, %y, transpose_b=True), %m)"] {
        let m = tensor(&[4, 21, 30], "float32");
        let text = format!(
            "def @main(%x: {x}, %y: {y}, %v: {y}, %m: {m}) {{\n  nn.batch_matmul(nn.softmax({scores}), %v, transpose_b=False)\n}}"
        );
        assert!(agree("batches", &text, "default", 1).contains("nn.attention"));
    }
}

#[test]
fn long_sequences() {
    for (s, t, d, e) in [(1024, 1024, 64, 64), (130, 700, 24, 40), (3, 5000, 16, 16)] {
        let text = format!(
            "def @main(%q: {}, %k: {}, %v: {}, %m: {}) {{ nn.attention(%q, %k, %v, %m, scale=0.125f) }}",
            tensor(&[1, 2, s, d], "float32"),
            tensor(&[1, 2, t, d], "float32"),
            tensor(&[1, 2, t, e], "float32"),
            tensor(&[1, 1, 1, t], "float32")
        );
        agree("long", &text, "none", 2);
    }
    for dtype in ["float64", "float16", "bfloat16"] {
        let x = tensor(&[1, 2, 40, 16], dtype);
        let m = tensor(&[1, 2, 40, 40], dtype);
        let text = format!(
            "def @main(%q: {x}, %k: {x}, %v: {x}, %m: {m}) {{ nn.attention(%q, %k, %v, %m, query_layout=\"BHSD\") }}"
        );
        agree(dtype, &text, "none", 2);
    }
}

/// Rows of scores stay on the stack: memory holds the keys in order, and no scores.
#[test]
fn attention_keeps_no_scores_in_memory() {
    let (heads, s, d) = (2, 1024, 64);
    let mut b = Builder::new();
    let of = |n: i64, k: i64| Type::tensor(&[1, heads, n, k], DType::F32);
    let types = [of(s, d), of(s, d), of(s, d), Type::tensor(&[1, 1, 1, s], DType::F32)];
    let args = crate::common::operands(&types, &mut b).expect("tensors of known extents");
    let id = ops::lookup("nn.attention").expect("it is an operator");
    let attrs: Attrs = ops::make_attrs(id, &[]).expect("all have defaults");
    let out = id.op().lower(&attrs, &args, &mut b).expect("lowers");
    let group = b.finish_with(&out);
    let kernel = kernel("attention", &group, Target::host().core());
    let (scores, keys) = (heads * s * s * 4, heads * s * d * 4);
    let workspace = kernel.workspace().1;
    assert!(workspace <= keys + 4096, "{workspace} bytes; the keys take {keys}, the scores would take {scores}");
}

/// Windows that overlap much are read from a copy with padding, which is made for a block of channels at a time: vectors lie along these.
#[test]
fn padded_copies_have_blocks_of_channels() {
    for batch in [1, 2] {
        let text = format!(
            "def @main(%x: Tensor[({batch}, 3, 14, 14, 16), float32], %w: Tensor[(3, 1, 5, 5, 1, 16), float32]) {{
               nn.contrib_depthwise_conv2d_NCHWc(%x, %w, padding=[2, 2, 2, 2], groups=48, kernel_size=[5, 5], data_layout=\"NCHW16c\",
                 kernel_layout=\"OIHW1i16o\", out_layout=\"NCHW16c\")
             }}"
        );
        agree("windows.relay", &text, "none", 2);
        let m = parse_module("windows.relay", &format!("#[version = \"0.0.5\"]\n{text}")).expect("is read");
        let mut options = Options::new(Settings::new(Target::parse("llvm -mcpu=skylake-avx512").expect("is a target")));
        options.passes = Some(Box::new(sequence("none", &options.settings).expect("it is a list of passes")));
        let built = build(m, &[], options).unwrap_or_else(|e| panic!("{e}"));
        let made = &built.record().expect("it is built here").kernels[0];
        let copies = made.buffers.iter().filter(|b| b.len == batch * 18 * 18 * 16).count();
        assert_eq!(copies, 1, "{made}");
    }
}

/// A block as MobileNet has them, of so many channels in, between and out, and its weights.
fn bottleneck(
    side: usize,
    stride: usize,
    [ins, wide, outs]: [usize; 3],
    residual: bool,
) -> (String, Vec<(Name, Tensor)>) {
    let text = format!(
        "#[version = \"0.0.5\"]
        def @main(%x: {x}, %w1: {w1}, %b1: {b}, %w2: {w2}, %b2: {b}, %w3: {w3}) {{
          %0 = clip(nn.bias_add(nn.conv2d(%x, %w1, channels={wide}, kernel_size=[1, 1]), %b1), a_min=0f, a_max=6f);
          %1 = nn.conv2d(%0, %w2, strides=[{stride}, {stride}], padding=[1, 1, 1, 1], groups={wide}, channels={wide}, kernel_size=[3, 3]);
          %2 = clip(nn.bias_add(%1, %b2), a_min=0f, a_max=6f);
          %3 = nn.conv2d(%2, %w3, channels={outs}, kernel_size=[1, 1]);
          {result}
        }}",
        x = tensor(&[1, ins as i64, side as i64, side as i64], "float32"),
        w1 = tensor(&[wide as i64, ins as i64, 1, 1], "float32"),
        b = tensor(&[wide as i64], "float32"),
        w2 = tensor(&[wide as i64, 1, 3, 3], "float32"),
        w3 = tensor(&[outs as i64, wide as i64, 1, 1], "float32"),
        result = if residual { "add(%x, %3)" } else { "%3" },
    );
    let weight = |name: &str, shape: &[usize]| {
        let numbers = |i: usize| ((i * 37 % 101) as f64 - 50.0) / 100.0;
        (name.into(), Tensor::from_f64_fn(DType::F32, shape, numbers))
    };
    let weights = vec![
        weight("w1", &[wide, ins, 1, 1]),
        weight("b1", &[wide]),
        weight("w2", &[wide, 1, 3, 3]),
        weight("b2", &[wide]),
        weight("w3", &[outs, wide, 1, 1]),
    ];
    (text, weights)
}

/// Blocks as MobileNet has them become one kernel where the second cache does not hold what stands between their convolutions, and none where it does;
/// their results are the same.
#[test]
fn bottlenecks_are_one_kernel_where_a_cache_does_not_hold_what_is_between() {
    for (side, stride, channels, residual) in
        [(56, 1, [16, 96, 16], true), (57, 2, [16, 96, 24], false), (64, 2, [24, 144, 32], false)]
    {
        let (text, weights) = bottleneck(side, stride, channels, residual);
        let m = parse_module("block.relay", &text).unwrap_or_else(|e| panic!("{e}"));
        let x = Type::tensor(&[1, channels[0] as i64, side as i64, side as i64], DType::F32);
        let x = random_tensor(x.as_tensor().expect("a tensor"), Data::Tame, &mut Rng(5));
        let run = |cache: i64, threads: usize| {
            let mut target = Target::host();
            target.timing.l2.bytes = cache;
            let settings = Settings::new(target);
            let mut options = Options::new(settings.clone());
            options.passes = Some(Box::new(sequence("default", &settings).expect("it is a list of passes")));
            options.threads = threads;
            let built = build(m.clone(), &weights, options).unwrap_or_else(|e| panic!("{e}"));
            let kernels = &built.record().expect("it is built here").kernels;
            let text = kernels.iter().map(|k| format!("{} ", k.name)).collect::<String>();
            (built.executable.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}")).remove(0), text)
        };
        let (want, text) = run(1 << 30, 1);
        assert!(!text.contains("inverted_bottleneck"), "{text}");
        // A cache that holds one of the two images between the convolutions does not hold both.
        let image = (side * side * channels[1] * 4) as i64;
        for (cache, threads) in [(1 << 10, 1), (1 << 10, 2), (image * 3 / 2, 1)] {
            let (got, text) = run(cache, threads);
            assert!(text.contains("inverted_bottleneck"), "{text}");
            assert_eq!(difference(&want, &got), None, "{side}, {stride}, {channels:?}");
        }
    }
}
