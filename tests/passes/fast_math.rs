//! Functions that are exact but for the last places: how far they are off over the whole range, interpreted and compiled.

use resat::{
    diag::Refused,
    interp,
    ir::Module,
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
    tensor::{Tensor, Value, erf},
};

fn run(spec: &str, m: Module) -> Result<Module, Refused> {
    sequence(spec, &Settings::new(Target::host()))?.run(m, &mut PassContext::default())
}

fn program(function: &str, n: usize) -> Module {
    let text = format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({n}), float32]) {{ {function}(%x) }}");
    text::parse_module("t.relay", &text).unwrap_or_else(|e| panic!("{e}"))
}

/// Every 4096th float32.
fn floats() -> Vec<f32> {
    (0..1u32 << 20).map(|i| f32::from_bits(i << 12)).filter(|x| !x.is_nan()).collect()
}

fn check(function: &str, fast: &str, exact: fn(f64) -> f64, bound: f64) {
    let x = floats();
    let m = run("FastMath", program(function, x.len())).unwrap_or_else(|e| panic!("{e}"));
    assert!(text::print_module(&m).contains(fast), "{}", text::print_module(&m));
    let data = Tensor::from_slice(&[x.len()], &x);
    let mut results = interp::run_flat(&m, "main", vec![Value::from(data.clone())]).unwrap_or_else(|e| panic!("{e}"));
    #[cfg(feature = "llvm")]
    {
        use resat::driver::{Options, build};
        let built = build(m, &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"));
        results.extend(built.executable.run(&[data]).unwrap_or_else(|e| panic!("{e}")));
    }
    for y in results {
        let off = |i: usize| (y.get_f64(i) - exact(f64::from(x[i]))).abs();
        let worst = (0..x.len()).max_by(|&i, &j| off(i).total_cmp(&off(j))).expect("there are some");
        assert!(off(worst) <= bound, "{fast}({}) is {:e} off", x[worst], off(worst));
    }
}

#[test]
fn fast_tanh_is_near() {
    check("tanh", "fast_tanh", f64::tanh, 3e-7);
}

#[test]
fn fast_erf_is_near() {
    check("erf", "fast_erf", erf, 4e-7);
}

#[test]
fn only_the_pass_asks_for_it() {
    let m = run("Saturate", program("tanh", 4)).unwrap_or_else(|e| panic!("{e}"));
    assert!(!text::print_module(&m).contains("fast_"));
}
