//! Floats of other types where they are asked for: which operators change, what stays, and that compiled code computes it.

use resat::{
    infer::infer_types,
    interp,
    ir::Module,
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
    tensor::{DType, Tensor},
};

const NETWORK: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32], %b: Tensor[(4), float32], %v: Tensor[(5, 4), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], kernel_size=[3, 3], channels=4);
  %1 = nn.relu(nn.bias_add(%0, %b));
  %2 = nn.max_pool2d(%1, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %3 = nn.batch_flatten(nn.global_avg_pool2d(%2));
  nn.softmax(add(nn.dense(%3, %v), 0.5f))
}";

fn module(text: &str) -> Module {
    text::parse_module("t.relay", text).unwrap_or_else(|e| panic!("{e}"))
}

fn run(spec: &str, text: &str) -> Result<Module, String> {
    let pass = sequence(spec, &Settings::new(Target::host())).map_err(|e| e.to_string())?;
    pass.run(module(text), &mut PassContext::default()).map_err(|e| e.to_string())
}

/// The types of the calls of an operator.
fn types(m: &Module, op: &str) -> Vec<DType> {
    let m = infer_types(m.clone()).expect("it has types");
    let call = |e| {
        let (found, ..) = m.op_call(e)?;
        (found.op().name() == op).then(|| m.ty(e).as_tensor().map(|t| t.dtype))?
    };
    m.ids().filter_map(call).collect()
}

fn results(m: &Module, seed: u64) -> Tensor {
    // The parameters are float32 either way.
    let typed = infer_types(m.clone()).expect("it has types");
    let inputs = interp::random_inputs(&typed, seed).expect("tensors");
    interp::run_flat(m, "main", inputs).unwrap_or_else(|e| panic!("{e}")).swap_remove(0)
}

#[test]
fn contractions_change_and_what_follows_them() {
    for (name, dtype, within) in
        [("float16", DType::F16, 4e-3), ("bfloat16", DType::BF16, 3e-2), ("float64", DType::F64, 1e-6)]
    {
        let m = run(&format!("ToMixedPrecision({name})"), NETWORK).unwrap_or_else(|e| panic!("{e}"));
        for op in ["nn.conv2d", "nn.bias_add", "nn.relu", "nn.max_pool2d", "nn.dense", "add"] {
            assert_eq!(types(&m, op), [dtype], "{op} in {}", text::print_module(&m));
        }
        // Sums and what magnifies errors stay.
        for op in ["nn.global_avg_pool2d", "nn.softmax"] {
            assert_eq!(types(&m, op), [DType::F32], "{op} in {}", text::print_module(&m));
        }
        for seed in 0..3 {
            let (x, y) = (results(&m, seed), results(&module(NETWORK), seed));
            assert!((0..y.len()).all(|i| (x.get_f64(i) - y.get_f64(i)).abs() < within), "{x:?} {y:?}");
        }
    }
}

#[test]
fn results_keep_their_types_where_that_is_asked_for() {
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32]) { (nn.dense(%x, %w), nn.relu(%x)) }";
    let of = |spec: &str| {
        let m = run(spec, text).unwrap_or_else(|e| panic!("{e}"));
        let typed = infer_types(m).expect("it has types");
        let main = typed.function("main").expect("it is there").body;
        typed.ty(main).flatten().expect("tensors").iter().map(|t| t.dtype).collect::<Vec<_>>()
    };
    assert_eq!(of("ToMixedPrecision(float16, keep_orig_output_dtype=true)"), [DType::F32; 2]);
    assert_eq!(of("ToMixedPrecision(float16)")[0], DType::F16);
}

#[test]
fn sums_can_be_wide_and_operators_left_alone() {
    let m = run("ToMixedPrecision(float16, accumulation_dtype=float32)", NETWORK).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(types(&m, "nn.conv2d"), [DType::F32], "{}", text::print_module(&m));
    assert_eq!(types(&m, "nn.relu"), [DType::F16], "{}", text::print_module(&m));
    let m = run("ToMixedPrecision(float16, ignore=nn.dense)", NETWORK).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((types(&m, "nn.dense"), types(&m, "nn.conv2d")), (vec![DType::F32], vec![DType::F16]));
}

#[test]
fn arguments_are_checked() {
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 3), float32]) { sin(%x) }";
    assert!(run("ToMixedPrecision(float16)", text).is_ok());
    let e = run("ToMixedPrecision(float16, missing_op_mode=0)", text).expect_err("nothing is said of it");
    assert!(e.contains("nothing is said of `sin`"), "{e}");
    let e = run("ToMixedPrecision(int8)", text).expect_err("no floats");
    assert!(e.contains("should be float16, bfloat16 or float64"), "{e}");
    let e = run("ToMixedPrecision(float16, ignore=nn.dens)", text).expect_err("no operator");
    assert!(e.contains("did you mean `nn.dense`?"), "{e}");
    // Ends that float16 can't say.
    let clip = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 3), float32]) { clip(%x, a_min=-128000f, a_max=128000f) }";
    let m = run("ToMixedPrecision(float16)", clip).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(types(&m, "clip"), [DType::F32]);
    let m = run("ToMixedPrecision(bfloat16)", clip).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(types(&m, "clip"), [DType::BF16]);
}

#[cfg(feature = "llvm")]
#[test]
fn compiled_code_computes_in_short_floats() {
    use resat::driver::{Options, build};
    for (name, within) in [("float16", 4e-3), ("bfloat16", 3e-2)] {
        let m = run(&format!("ToMixedPrecision({name})"), NETWORK).unwrap_or_else(|e| panic!("{e}"));
        let typed = infer_types(m.clone()).expect("it has types");
        let built =
            build(m.clone(), &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"));
        let inputs = interp::random_inputs(&typed, 1).expect("tensors");
        let inputs: Vec<Tensor> = inputs.iter().map(|v| v.tensor().clone()).collect();
        let y = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        let x = results(&m, 1);
        assert!((0..x.len()).all(|i| (x.get_f64(i) - y[0].get_f64(i)).abs() < within), "{x:?} {:?}", y[0]);
    }
}
