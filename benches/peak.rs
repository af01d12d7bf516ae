//! How much of this machine's peak the convolutions of a network reach, each as it stands in the program: in its layout, with what was
//! fused into it.
//!
//! ```sh
//! cargo bench --bench peak                                   # ResNet-50
//! cargo bench --bench peak -- mobilenet_v2 --rounds 50       # another recorded model
//! ```
//!
//! The peak is measured out of registers, by a kernel of this compiler. Counted are the multiplications that a kernel executes, each with an
//! addition: of Winograd's algorithm fewer than those of the convolution. A kernel's time is the fastest of all rounds within the whole
//! program, on one thread.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use resat::{
    cost::Machine,
    driver::{self, Options, Runnable, Stopwatch, load_module, load_params},
    infer::infer_types,
    interp,
    loops::{BinOp, Kernel, Scalar, ScalarKind, Stmt},
    pass::{Settings, bind_params},
    target::Target,
    tensor::{DType, Tensor},
};

/// Multiplications of `float32` in an expression.
fn products(s: &Scalar) -> f64 {
    match s.kind() {
        ScalarKind::Binary(op, a, b) => {
            let own = *op == BinOp::Mul && s.dtype() == DType::F32;
            f64::from(u8::from(own)) + products(a) + products(b)
        }
        ScalarKind::Unary(_, a) | ScalarKind::Cast(a) | ScalarKind::Bits(a) => products(a),
        ScalarKind::Select(_, a, b) => products(a).max(products(b)),
        _ => 0.0,
    }
}

/// Those that a statement executes; none where the number of turns of a loop depends on others.
fn executed(stmt: &Stmt) -> Option<f64> {
    match stmt {
        Stmt::Block(all) => all.iter().map(executed).sum(),
        Stmt::For { extent, body, .. } => match extent.kind() {
            ScalarKind::Int(n) => Some(*n as f64 * executed(body)?),
            _ => None,
        },
        Stmt::Store { value, .. } => Some(products(value)),
        Stmt::Prefetch { .. } => Some(0.0),
        Stmt::Let { value, body, .. } => Some(products(value) + executed(body)?),
        Stmt::If { then, otherwise, .. } => {
            let other = otherwise.as_ref().map_or(Some(0.0), |o| executed(o))?;
            Some(executed(then)?.max(other))
        }
        Stmt::While { .. } => None,
    }
}

/// A row: a kernel, how often it is called, and the seconds of a call.
struct Row<'a> {
    kernel: &'a Kernel,
    calls: usize,
    seconds: f64,
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let (mut name, mut rounds) = ("resnet50".to_owned(), 20);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = args.next().and_then(|n| n.parse().ok()).expect("--rounds takes a number"),
            _ => name = arg,
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = std::env::var_os("RESAT_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let folder = shared.join("corpus").join(&name);
    if !folder.join("model.relay").exists() {
        println!("{name}: skipped, as {} is not there", folder.display());
        return;
    }
    let target = Target { cores: 1, ..Target::host() };
    let watch = Stopwatch::new(target.clone(), None);
    let peaks = watch.peaks().expect("kernels of this machine run here");
    let peak = peaks.of(DType::F32).expect("it is measured");
    println!("peak of a core, float32: {:.1} GFLOP/s", peak / 1e9);
    if let Some(bytes) = peaks.of(DType::I8) {
        println!("products of bytes: {:.1} GOP/s in a dense layer", bytes / 1e9);
    }

    let temporary = tempfile::tempdir().expect("a temporary folder");
    let weights = temporary.path().join("weights.params");
    let made = Command::new("python3").arg(shared.join("corpus/params.py")).arg(&folder).arg(&weights).status();
    if !made.is_ok_and(|s| s.success()) {
        println!("{name}: skipped, as its weights can't be made: python3 with numpy is needed");
        return;
    }
    let module = load_module(&folder.join("model.relay")).unwrap_or_else(|e| panic!("{e}"));
    let weights = load_params(&weights).unwrap_or_else(|e| panic!("{e}"));
    let module = bind_params(&module, &weights).unwrap_or_else(|e| panic!("{e}"));
    let typed = infer_types(module).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 7).unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<Tensor> = inputs.iter().flat_map(|v| v.flatten()).collect();
    let mut options = Options::new(Settings::new(target));
    options.threads = 1;
    let built = driver::build(typed.into_module(), &[], options).unwrap_or_else(|e| panic!("{e}"));
    let Runnable::Plain(exe) = &built.executable else {
        println!("{name}: skipped, as it is no plain sequence of calls");
        return;
    };
    let mut fastest: Vec<f64> = vec![f64::INFINITY; exe.program().steps().len()];
    for _ in 0..rounds {
        let times = exe.profile(&inputs).unwrap_or_else(|e| panic!("{e}"));
        fastest.iter_mut().zip(times).for_each(|(f, t)| *f = f.min(t.as_secs_f64()));
    }
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for (step, &seconds) in exe.program().steps().iter().zip(&fastest) {
        let called = exe.program().step_name(step);
        let Some(kernel) = built.kernels.iter().find(|k| k.name == called) else { continue };
        let row = rows.entry(called).or_insert(Row { kernel, calls: 0, seconds: 0.0 });
        row.calls += 1;
        row.seconds += seconds;
    }
    let whole: f64 = fastest.iter().sum();
    let (mut work, mut time) = (0.0, 0.0);
    let mut convolutions: Vec<Row> = rows.into_values().filter(|r| r.kernel.name.contains("conv2d")).collect();
    convolutions.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("{:>5} {:>10} {:>10} {:>9} {:>6}  kernel", "calls", "us a call", "MFLOP", "GFLOP/s", "share");
    for r in &convolutions {
        let Some(n) = executed(&r.kernel.body) else { continue };
        let (flops, seconds) = (2.0 * n, r.seconds / r.calls as f64);
        work += flops * r.calls as f64;
        time += r.seconds;
        let rate = flops / seconds;
        println!(
            "{:>5} {:>10.1} {:>10.1} {:>9.1} {:>5.1}%  {}",
            r.calls,
            1e6 * seconds,
            flops / 1e6,
            rate / 1e9,
            100.0 * rate / peak,
            r.kernel.name
        );
    }
    println!(
        "{name}: {} different convolutions take {:.2} of {:.2} ms; weighted mean {:.1} GFLOP/s, {:.1} % of peak",
        convolutions.len(),
        1e3 * time,
        1e3 * whole,
        work / time / 1e9,
        100.0 * work / time / peak
    );
}
