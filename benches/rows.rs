//! Kernels that are no GEMM: those that go through rows, elementwise functions, pools, moves of axes. Prints bytes a second of
//! what each must read and write, and multiply-adds a second of attention. Run on a quiet machine; the best run counts.

use std::time::Instant;

use resat::{
    driver::{Options, build},
    infer::infer_types,
    pass::Settings,
    relay::text::parse_module,
    target::Target,
    tensor::Tensor,
};

/// Name, parameters' types, body, and floating point operations where these are what counts.
const CASES: &[(&str, &[&str], &str, f64)] = &[
    ("softmax of rows", &["Tensor[(12, 128, 128), float32]"], "nn.softmax(%x0)", 0.0),
    ("softmax of columns", &["Tensor[(12, 128, 128), float32]"], "nn.softmax(%x0, axis=1)", 0.0),
    ("log_softmax", &["Tensor[(64, 1000), float32]"], "nn.log_softmax(%x0)", 0.0),
    (
        "layer_norm",
        &["Tensor[(128, 768), float32]", "Tensor[(768,), float32]", "Tensor[(768,), float32]"],
        "nn.layer_norm(%x0, %x1, %x2)",
        0.0,
    ),
    ("sum of rows", &["Tensor[(512, 1024), float32]"], "sum(%x0, axis=[1])", 0.0),
    ("sum of columns", &["Tensor[(512, 1024), float32]"], "sum(%x0, axis=[0])", 0.0),
    ("erf", &["Tensor[(128, 3072), float32]"], "erf(%x0)", 0.0),
    ("tanh", &["Tensor[(128, 3072), float32]"], "tanh(%x0)", 0.0),
    ("exp", &["Tensor[(128, 3072), float32]"], "exp(%x0)", 0.0),
    ("sigmoid", &["Tensor[(128, 3072), float32]"], "sigmoid(%x0)", 0.0),
    (
        "max_pool2d 3x3/2",
        &["Tensor[(1, 4, 112, 112, 16), float32]"],
        "nn.max_pool2d(%x0, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1], layout=\"NCHW16c\")",
        0.0,
    ),
    (
        "avg_pool2d 3x3",
        &["Tensor[(1, 48, 17, 17, 16), float32]"],
        "nn.avg_pool2d(%x0, pool_size=[3, 3], padding=[1, 1, 1, 1], layout=\"NCHW16c\")",
        0.0,
    ),
    (
        "global_avg_pool2d",
        &["Tensor[(1, 128, 7, 7, 16), float32]"],
        "nn.global_avg_pool2d(%x0, layout=\"NCHW16c\")",
        0.0,
    ),
    ("transpose of matrices", &["Tensor[(768, 768), float32]"], "transpose(%x0)", 0.0),
    ("transpose of heads", &["Tensor[(128, 12, 64), float32]"], "transpose(%x0, axes=[1, 2, 0])", 0.0),
    (
        "layout_transform",
        &["Tensor[(1, 64, 56, 56), float32]"],
        "layout_transform(%x0, src_layout=\"NCHW\", dst_layout=\"NCHW16c\")",
        0.0,
    ),
    (
        "attention, 12 of 128",
        &[
            "Tensor[(1, 12, 128, 64), float32]",
            "Tensor[(1, 12, 128, 64), float32]",
            "Tensor[(1, 12, 128, 64), float32]",
            "Tensor[(1, 1, 1, 128), float32]",
        ],
        "nn.attention(%x0, %x1, %x2, %x3)",
        4.0 * 12.0 * 128.0 * 128.0 * 64.0,
    ),
    (
        "attention, 2 of 1024",
        &[
            "Tensor[(1, 2, 1024, 64), float32]",
            "Tensor[(1, 2, 1024, 64), float32]",
            "Tensor[(1, 2, 1024, 64), float32]",
            "Tensor[(1, 1, 1, 1024), float32]",
        ],
        "nn.attention(%x0, %x1, %x2, %x3)",
        4.0 * 2.0 * 1024.0 * 1024.0 * 64.0,
    ),
];

/// Runs of each case.
const RUNS: usize = 200;

fn main() {
    println!("{:24} {:>10} {:>10} {:>10}", "", "us", "GB/s", "GFLOP/s");
    for (name, types, body, flops) in CASES {
        let params: Vec<String> = types.iter().enumerate().map(|(i, t)| format!("%x{i}: {t}")).collect();
        let text = format!("#[version = \"0.0.5\"]\ndef @main({}) {{ {body} }}", params.join(", "));
        let m = parse_module(name, &text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let inputs: Vec<Tensor> = typed
            .entry("main")
            .expect("there is a main")
            .params
            .iter()
            .map(|&p| {
                let t = typed.var_ty(p).as_tensor().expect("parameters are tensors");
                let shape: Vec<usize> =
                    t.known_shape().expect("of known extents").iter().map(|&n| n as usize).collect();
                Tensor::from_f64_fn(t.dtype, &shape, |i| ((i * 37) % 101) as f64 * 0.02 - 1.0)
            })
            .collect();
        let mut options = Options::new(Settings::new(Target::host()));
        options.threads = 1;
        let built = build(m, &[], options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let outputs = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        let bytes: usize = inputs.iter().chain(&outputs).map(|t| t.bytes().len()).sum();
        let best = (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                built.executable.run(&inputs).expect("it ran before");
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min);
        let arithmetic = if *flops > 0.0 { format!("{:10.1}", flops / best / 1e9) } else { String::new() };
        println!("{name:24} {:10.1} {:10.1} {arithmetic}", best * 1e6, bytes as f64 / best / 1e9);
    }
}
