//! Programs between dequantize and quantize, and the integer programs that they become: the same bits as those that TVM's pass
//! gives, written out here; also compiled.

use resat::{
    infer::infer_types,
    interp,
    ir::{Module, reachable},
    ops::Class,
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
};

fn module(text: &str) -> Module {
    text::parse_module("t.relay", &format!("#[version = \"0.0.5\"]\n{text}")).unwrap_or_else(|e| panic!("{e}"))
}

fn run(spec: &str, m: Module) -> Result<Module, String> {
    let pass = sequence(spec, &Settings::new(Target::host())).map_err(|e| e.to_string())?;
    pass.run(m, &mut PassContext::default()).map_err(|e| e.to_string())
}

/// Contractions whose data has floats.
fn float_contractions(m: &Module) -> usize {
    let m = infer_types(m.clone()).expect("it has types");
    let ids = reachable(&m, m.functions().map(|(_, f)| f));
    let is = |&&e: &&_| {
        let Some((op, args, _)) = m.op_call(e) else { return false };
        let floats = |&a: &_| m.ty(a).flatten().is_some_and(|ts| ts.iter().any(|t| t.dtype.is_float()));
        op.op().class() == Class::Contract && args.first().is_some_and(floats)
    };
    ids.iter().filter(is).count()
}

/// That the pass makes of `before` what computes the same bits as `wanted`, with no contraction of floats left and, where
/// `integers` says so, no operator that changes between floats and integers.
fn same(before: &str, wanted: &str, integers: bool) {
    let ours = run("FakeQuantizationToInteger", module(before)).unwrap_or_else(|e| panic!("{e}"));
    let shown = text::print_module(&ours);
    assert_eq!(float_contractions(&ours), 0, "{shown}");
    if integers {
        // What depends on constants alone is computed beforehand.
        let folded = run("FoldConstant", ours.clone()).unwrap_or_else(|e| panic!("{e}"));
        let folded = text::print_module(&folded);
        assert!(!folded.contains("quantize(") || !folded.replace("requantize(", "").contains("quantize("), "{folded}");
    }
    let wanted = module(wanted);
    let typed = infer_types(wanted.clone()).unwrap_or_else(|e| panic!("{e}"));
    for seed in 0..4 {
        let inputs = interp::random_inputs(&typed, seed).unwrap_or_else(|e| panic!("{e}"));
        let x = interp::run_flat(&ours, "main", inputs.clone()).unwrap_or_else(|e| panic!("{e}\n{shown}"));
        let y = interp::run_flat(&wanted, "main", inputs).unwrap_or_else(|e| panic!("{e}"));
        for (x, y) in x.iter().zip(&y) {
            assert_eq!((x.dtype(), x.shape(), x.bytes()), (y.dtype(), y.shape(), y.bytes()), "{shown}");
        }
    }
}

#[test]
fn contractions() {
    same(
        "def @main(%x: Tensor[(1, 3, 7, 7), int8], %w: Tensor[(3, 16, 5, 5), int8]) {
          %0 = qnn.dequantize(%x, 2f, 0);
          %1 = qnn.dequantize(%w, 0.5f, 0);
          %2 = nn.conv2d_transpose(%0, %1, kernel_size=[5, 5], data_layout=\"NCHW\", kernel_layout=\"IOHW\");
          qnn.quantize(%2, 1f, 0, out_dtype=\"int8\")
        }",
        "def @main(%x: Tensor[(1, 3, 7, 7), int8], %w: Tensor[(3, 16, 5, 5), int8]) {
          %0 = qnn.conv2d_transpose(%x, %w, 0, 0, 2f, 0.5f, kernel_size=[5, 5], data_layout=\"NCHW\", kernel_layout=\"IOHW\", out_dtype=\"int32\");
          qnn.requantize(%0, 1f, 0, 1f, 0, axis=1, out_dtype=\"int8\")
        }",
        true,
    );
    // An average keeps the scale of its data where it is not what is closed.
    same(
        "def @main(%x: Tensor[(1, 4, 9, 9), uint8], %w: Tensor[(1, 4, 1, 1), uint8]) {
          %0 = qnn.dequantize(%x, 0.64f, 2);
          %1 = nn.avg_pool2d(%0, pool_size=[3, 3]);
          %2 = qnn.dequantize(%w, 0.5f, 10);
          %3 = nn.conv2d(%1, %2, kernel_size=[1, 1]);
          qnn.quantize(%3, 1f, 0, out_dtype=\"uint8\")
        }",
        "def @main(%x: Tensor[(1, 4, 9, 9), uint8], %w: Tensor[(1, 4, 1, 1), uint8]) {
          %0 = qnn.avg_pool2d(%x, 0.64f, 2, 0.64f, 2, pool_size=[3, 3]);
          %1 = qnn.conv2d(%0, %w, 2, 10, 0.64f, 0.5f, kernel_size=[1, 1], out_dtype=\"int32\");
          qnn.requantize(%1, 0.32f, 0, 1f, 0, axis=1, out_dtype=\"uint8\")
        }",
        true,
    );
}

#[test]
fn biases() {
    same(
        "def @main(%x: Tensor[(2, 8), int8], %w: Tensor[(3, 8), int8], %b: Tensor[(3), int32]) {
          %0 = nn.dense(qnn.dequantize(%x, 2f, 0), qnn.dequantize(%w, 0.5f, 0));
          %1 = add(%0, qnn.dequantize(%b, 1f, 0));
          qnn.quantize(%1, 1f, 0, out_dtype=\"int8\")
        }",
        "def @main(%x: Tensor[(2, 8), int8], %w: Tensor[(3, 8), int8], %b: Tensor[(3), int32]) {
          %0 = qnn.dense(%x, %w, 0, 0, 2f, 0.5f, out_dtype=\"int32\");
          qnn.requantize(add(%0, %b), 1f, 0, 1f, 0, axis=1, out_dtype=\"int8\")
        }",
        true,
    );
    // Of another scale, which is brought to that of the sum.
    same(
        "def @main(%x: Tensor[(1, 3, 7, 7), int8], %w: Tensor[(4, 3, 3, 3), int8], %b: Tensor[(4), int32]) {
          %0 = nn.conv2d(qnn.dequantize(%x, 2f, 0), qnn.dequantize(%w, 0.5f, 0), kernel_size=[3, 3]);
          %1 = nn.bias_add(%0, qnn.dequantize(%b, 2f, 0));
          qnn.quantize(%1, 1f, 0, out_dtype=\"int8\")
        }",
        "def @main(%x: Tensor[(1, 3, 7, 7), int8], %w: Tensor[(4, 3, 3, 3), int8], %b: Tensor[(4), int32]) {
          %0 = qnn.conv2d(%x, %w, 0, 0, 2f, 0.5f, kernel_size=[3, 3], out_dtype=\"int32\");
          %1 = nn.bias_add(%0, qnn.requantize(%b, 2f, 0, 1f, 0, axis=0, out_dtype=\"int32\"));
          qnn.requantize(%1, 1f, 0, 1f, 0, axis=1, out_dtype=\"int8\")
        }",
        true,
    );
    // A sum with a number is rounded to the scale, where the region is closed.
    same(
        "def @main(%x: Tensor[(1, 4, 2), int8], %y: Tensor[(1, 4, 2), int8]) {
          %0 = nn.batch_matmul(qnn.dequantize(%x, 2f, 0), qnn.dequantize(%y, 6f, 0), transpose_b=True);
          qnn.quantize(add(%0, 1f), 1f, 0, out_dtype=\"int8\")
        }",
        "def @main(%x: Tensor[(1, 4, 2), int8], %y: Tensor[(1, 4, 2), int8]) {
          %0 = qnn.batch_matmul(%x, %y, 0, 0, 2f, 6f, transpose_b=True, out_dtype=\"int32\");
          %1 = add(%0, qnn.quantize(1f, 12f, 0, out_dtype=\"int32\"));
          qnn.requantize(%1, 12f, 0, 1f, 0, out_dtype=\"int8\")
        }",
        true,
    );
}

#[test]
fn moves_and_order() {
    for (op, of, shape) in [
        ("nn.max_pool2d(%0, pool_size=[3, 3])", "nn.max_pool2d(%x, pool_size=[3, 3])", "(1, 3, 8, 8)"),
        ("expand_dims(%0, axis=1)", "expand_dims(%x, axis=1)", "(2, 3)"),
        ("split(%0, indices_or_sections=2, axis=1).0", "split(%x, indices_or_sections=2, axis=1).0", "(2, 4)"),
        ("take(%0, meta_free, axis=0)", "take(%x, meta_free, axis=0)", "(4, 3)"),
        ("nn.relu(%0)", "maximum(%x, cast(114, dtype=\"uint8\"))", "(2, 3)"),
        ("clip(%0, a_min=0f, a_max=6f)", "clip(%x, a_min=114f, a_max=117f)", "(2, 3)"),
        ("mean(%0)", "cast(mean(cast(%x, dtype=\"int32\")), dtype=\"uint8\")", "(2, 3)"),
        (
            "where(greater(%c, 0.0f), reverse(%0, axis=0), %0)",
            "where(greater(%c, 0.0f), reverse(%x, axis=0), %x)",
            "(2, 3)",
        ),
    ] {
        let (op, of) = (op.replace("meta_free", "%i"), of.replace("meta_free", "%i"));
        let params = format!("%x: Tensor[{shape}, uint8], %i: Tensor[(2), int32], %c: Tensor[(2, 3), float32]");
        let before = format!(
            "def @main({params}) {{ %0 = qnn.dequantize(%x, 2f, 114); qnn.quantize({op}, 2f, 114, out_dtype=\"uint8\") }}"
        );
        same(&before, &format!("def @main({params}) {{ {of} }}"), true);
    }
    // Between other scales the integers are brought to the results' scale first.
    same(
        "def @main(%x: Tensor[(1, 3, 6, 6), int8]) {
          qnn.quantize(nn.avg_pool2d(qnn.dequantize(%x, 2f, -12), pool_size=[3, 3]), 0.5f, 10)
        }",
        "def @main(%x: Tensor[(1, 3, 6, 6), int8]) { qnn.avg_pool2d(%x, 2f, -12, 0.5f, 10, pool_size=[3, 3]) }",
        true,
    );
}

#[test]
fn what_nothing_closes_keeps_its_dequantize() {
    same(
        "def @main(%x: Tensor[(1, 2, 4), int8], %y: Tensor[(2, 4), int8]) {
          %0 = reshape(qnn.dequantize(%x, 2f, 0), newshape=[1, 4, 2]);
          %1 = broadcast_to(qnn.dequantize(%y, 6f, 0), shape=[1, 2, 4]);
          erf(nn.batch_matmul(%0, reshape(%1, newshape=[1, 4, 2]), transpose_b=True))
        }",
        "def @main(%x: Tensor[(1, 2, 4), int8], %y: Tensor[(2, 4), int8]) {
          %0 = reshape(%x, newshape=[1, 4, 2]);
          %1 = reshape(broadcast_to(%y, shape=[1, 2, 4]), newshape=[1, 4, 2]);
          erf(qnn.dequantize(qnn.batch_matmul(%0, %1, 0, 0, 2f, 6f, transpose_b=True, out_dtype=\"int32\"), 12f, 0))
        }",
        false,
    );
    // A sum of floats behind a product stays one: rounding the number to the product's scale would lose it.
    same(
        "def @main(%x: Tensor[(1, 4, 2), int8], %y: Tensor[(1, 4, 2), int8]) {
          erf(add(nn.batch_matmul(qnn.dequantize(%x, 2f, 0), qnn.dequantize(%y, 6f, 0), transpose_b=True), 1f))
        }",
        "def @main(%x: Tensor[(1, 4, 2), int8], %y: Tensor[(1, 4, 2), int8]) {
          %0 = qnn.batch_matmul(%x, %y, 0, 0, 2f, 6f, transpose_b=True, out_dtype=\"int32\");
          erf(add(qnn.dequantize(%0, 12f, 0), 1f))
        }",
        false,
    );
}

#[test]
fn simulated_quantization_becomes_real() {
    same(
        "def @main(%x: Tensor[(2, 8), float32], %w: Tensor[(3, 8), float32]) {
          %0 = qnn.simulated_dequantize(qnn.simulated_quantize(%x, 1, 0.01f, 3), 1, 0.01f, 3);
          %1 = qnn.simulated_dequantize(qnn.simulated_quantize(%w, 1, 0.02f, 0), 1, 0.02f, 0);
          nn.dense(%0, %1)
        }",
        "def @main(%x: Tensor[(2, 8), float32], %w: Tensor[(3, 8), float32]) {
          %0 = qnn.quantize(%x, 0.01f, 3, out_dtype=\"int8\");
          %1 = qnn.quantize(%w, 0.02f, 0, out_dtype=\"int8\");
          %2 = qnn.dense(%0, %1, 3, 0, 0.01f, 0.02f, out_dtype=\"int32\");
          qnn.dequantize(%2, multiply(0.01f, 0.02f), 0)
        }",
        false,
    );
}

#[test]
fn arguments_are_checked() {
    let program = || {
        module(
            "def @main(%x: Tensor[(2, 3), int8]) {
              qnn.quantize(sin(qnn.dequantize(%x, 0.1f, 0)), 0.1f, 0, out_dtype=\"int8\")
            }",
        )
    };
    assert!(run("FakeQuantizationToInteger", program()).is_ok());
    let e = run("FakeQuantizationToInteger(hard_fail=true)", program()).expect_err("there is no integer sine");
    assert!(e.contains("`sin` has no integer form"), "{e}");
    let e = run("FakeQuantizationToInteger(optional_qnn_ops=nn.dense)", program()).expect_err("it is not optional");
    assert!(e.contains("nn.softmax"), "{e}");
    let e = run("FakeQuantizationToInteger(hardfail=true)", program()).expect_err("a wrong name");
    assert!(e.contains("did you mean `hard_fail`?"), "{e}");
}

/// A small network of convolution, bias, activation, pool, residual sum and dense layer.
const NETWORK: &str = "def @main(%x: Tensor[(1, 4, 8, 8), uint8], %w: Tensor[(4, 4, 3, 3), int8], %b: Tensor[(4), int32], %v: Tensor[(5, 64), int8]) {
  %0 = qnn.dequantize(%x, 0.05f, 128);
  %1 = nn.conv2d(%0, qnn.dequantize(%w, 0.02f, 0), padding=[1, 1, 1, 1], kernel_size=[3, 3]);
  %2 = nn.relu(nn.bias_add(%1, qnn.dequantize(%b, 0.001f, 0)));
  %3 = qnn.quantize(%2, 0.06f, 0, out_dtype=\"uint8\");
  %4 = add(qnn.dequantize(%3, 0.06f, 0), qnn.dequantize(%x, 0.05f, 128));
  %5 = qnn.dequantize(qnn.quantize(%4, 0.1f, 64, out_dtype=\"uint8\"), 0.1f, 64);
  %6 = nn.max_pool2d(%5, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %7 = nn.dense(nn.batch_flatten(%6), qnn.dequantize(%v, 0.03f, 0));
  qnn.quantize(%7, 0.4f, 0, out_dtype=\"int8\")
}";

#[test]
fn a_network_is_all_integers() {
    let ours =
        run("FakeQuantizationToInteger, Legalize, FoldConstant", module(NETWORK)).unwrap_or_else(|e| panic!("{e}"));
    let shown = text::print_module(&ours);
    assert!(!shown.contains("float32"), "{shown}");
}

#[cfg(feature = "llvm")]
#[test]
fn compiled_networks_give_the_same_bits() {
    use resat::driver::{Options, build};
    let ours = run("FakeQuantizationToInteger", module(NETWORK)).unwrap_or_else(|e| panic!("{e}"));
    let typed = infer_types(ours.clone()).expect("it has types");
    let built = build(ours.clone(), &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"));
    for seed in 0..4 {
        let inputs = interp::random_inputs(&typed, seed).unwrap_or_else(|e| panic!("{e}"));
        let x = interp::run_flat(&ours, "main", inputs.clone()).unwrap_or_else(|e| panic!("{e}"));
        let inputs: Vec<_> = inputs.iter().map(|v| v.tensor().clone()).collect();
        let y = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(x[0].bytes(), y[0].bytes());
    }
}
