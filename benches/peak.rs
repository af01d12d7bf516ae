//! How much of this machine's peak the convolutions of a network reach, each as it stands in the program: in its layout, with what was
//! fused into it.
//!
//! ```sh
//! cargo bench --bench peak                                   # ResNet-50
//! cargo bench --bench peak -- mobilenet_v2 --rounds 100      # another recorded model
//! ```
//!
//! Everything runs on one thread. The peak is measured out of registers, by a kernel of this compiler, right before and right after each
//! run of the whole program, so that a processor whose frequency drifts is compared with itself; runs around which it differs, or
//! that take much longer than others, were disturbed and are left out. A convolution's share is the median over the runs that are left.
//! Counted are the multiplications and additions of the direct algorithm, whatever algorithm runs: Winograd's does with fewer.

mod recorded;

use resat::{
    driver::{self, Options, Peak, Runnable, load_module, load_params},
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, ExprId, TensorType, reachable, reachable_outside},
    pass::{Settings, bind_params},
    target::Target,
    tensor::Tensor,
};

/// A convolution of the program.
#[derive(Clone, PartialEq)]
struct Convolution {
    shape: String,
    algorithm: &'static str,
    flops: f64,
}

/// A row of the table: a convolution, and the steps that compute it.
struct Row {
    convolution: Convolution,
    steps: Vec<usize>,
}

/// Channels, rows and columns of a tensor: plain, or with blocks of channels.
fn image(t: &TensorType, layout: &str) -> Option<(i64, i64, i64)> {
    let shape: Vec<i64> = t.shape.iter().map(|d| d.known()).collect::<Option<_>>()?;
    match shape[..] {
        [_, h, w, c] if layout == "NHWC" => Some((c, h, w)),
        [_, c, h, w] => Some((c, h, w)),
        [_, blocks, h, w, block] => Some((blocks * block, h, w)),
        _ => None,
    }
}

fn elements(t: &TensorType) -> Option<i64> {
    t.shape.iter().map(|d| d.known()).product()
}

/// The convolution that a primitive function computes, if it computes one.
fn convolution(typed: &TypedModule, f: ExprId) -> Option<Convolution> {
    let m = typed.module();
    let calls = reachable(m, [m.func(f).body]).into_iter();
    let (call, args, name, attrs) =
        calls.filter_map(|e| Some((e, m.op_call(e)?))).find_map(|(e, (op, args, attrs))| {
            let name = op.op().name();
            let is_one = matches!(
                name,
                "nn.conv2d"
                    | "nn.contrib_conv2d_NCHWc"
                    | "nn.contrib_depthwise_conv2d_NCHWc"
                    | "nn.contrib_conv2d_winograd_without_weight_transform"
                    | "nn.winograd_conv2d"
            );
            is_one.then_some((e, args, name, attrs))
        })?;
    let (data, weight, out) =
        (typed.ty(args[0]).as_tensor()?, typed.ty(args[1]).as_tensor()?, typed.ty(call).as_tensor()?);
    let layout = attrs.get("data_layout").map(|_| attrs.str("data_layout")).unwrap_or_default();
    let ((from, h, w), (to, oh, ow)) = (image(data, layout)?, image(out, layout)?);
    // Weights for one result.
    let mut each = elements(weight)? / to;
    let winograd = name.contains("winograd");
    let taps = if winograd {
        // Blocked weights have the blocks of results first.
        let points = weight.shape[usize::from(attrs.str("kernel_layout").starts_with("OHW"))].known()?;
        let taps = points - attrs.int("tile_size") + 1;
        each = each / (points * points) * taps * taps;
        [taps, taps]
    } else {
        let size = attrs.get("kernel_size")?.as_ints()?;
        [size[0], size[1]]
    };
    let depthwise = each == taps[0] * taps[1] && from > 1;
    let algorithm = match (winograd, depthwise, taps) {
        (true, ..) => "Winograd",
        (_, true, _) => "depthwise",
        (_, _, [1, 1]) => "1 x 1",
        _ => "direct",
    };
    let flops = 2.0 * elements(out)? as f64 * each as f64;
    let shape = format!("{from} x {h} x {w} to {to} x {oh} x {ow}, {} x {}", taps[0], taps[1]);
    Some(Convolution { shape, algorithm, flops })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Runs of the loop that measures the peak, before and after each run of the program: the fastest counts.
const BEATS: usize = 20;

/// Runs of the program count around which the peak differs by no more than this share, and that take no longer by more than that
/// than half of them do.
const STEADY: f64 = 0.04;

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    let (mut name, mut rounds) = ("resnet50".to_owned(), 60usize);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = args.next().and_then(|n| n.parse().ok()).expect("--rounds takes a number"),
            _ => name = arg,
        }
    }
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let (folder, weights) = match recorded::model(&name, temporary.path()) {
        Ok(files) => files,
        Err(why) => return println!("{name}: skipped, as {why}"),
    };
    let target = Target { cores: 1, ..Target::host() };
    let mut registers = Peak::new(&target).expect("kernels of this machine run here");
    let module = load_module(&folder.join("model.relay")).unwrap_or_else(|e| panic!("{e}"));
    let weights = load_params(&weights).unwrap_or_else(|e| panic!("{e}"));
    let module = bind_params(&module, &weights).unwrap_or_else(|e| panic!("{e}"));
    drop(weights);
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
    let typed = infer_types(built.record().expect("it is built here").module.clone()).unwrap_or_else(|e| panic!("{e}"));
    let rows = rows(&typed, exe.program());
    let (mut peaks, mut runs): (Vec<f64>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    let mut peak = || registers.rate(BEATS).unwrap_or_else(|e| panic!("{e}"));
    let mut before = peak();
    for round in 0..rounds + 3 {
        let times = exe.profile(&inputs).unwrap_or_else(|e| panic!("{e}"));
        let after = peak();
        if round >= 3 && (before / after - 1.0).abs() <= STEADY {
            peaks.push(before.max(after));
            runs.push(times.iter().map(|t| t.as_secs_f64()).collect());
        }
        before = after;
    }
    if runs.is_empty() {
        println!("{name}: the machine is too busy: its peak was never the same before a run and after it");
        return;
    }
    let whole: Vec<f64> = runs.iter().map(|r| r.iter().sum()).collect();
    let usual = median(whole.clone());
    let calm: Vec<usize> = (0..runs.len()).filter(|&r| whole[r] <= usual * (1.0 + STEADY)).collect();
    let peak = median(calm.iter().map(|&r| peaks[r]).collect());
    println!("peak of a core, float32: {:.1} GFLOP/s; {} calm runs of {rounds}", peak / 1e9, calm.len());
    println!();
    println!("| calls | convolution | algorithm | us a call | GFLOP/s | share of peak |");
    println!("| ---: | --- | --- | ---: | ---: | ---: |");
    let (mut work, mut time) = (0.0, 0.0);
    let mut lines = Vec::new();
    for row in &rows {
        let steps = row.steps.len() as f64;
        let seconds = |r: usize| row.steps.iter().map(|&s| runs[r][s]).sum::<f64>() / steps;
        let typical = median(calm.iter().map(|&r| seconds(r)).collect());
        let share = median(calm.iter().map(|&r| row.convolution.flops / seconds(r) / peaks[r]).collect());
        work += steps * row.convolution.flops;
        time += steps * typical;
        lines.push((steps * typical, row, typical, share));
    }
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, Row { convolution: Convolution { shape, algorithm, flops }, steps }, seconds, share) in lines {
        println!(
            "| {} | {shape} | {algorithm} | {:.1} | {:.1} | {:.0} % |",
            steps.len(),
            1e6 * seconds,
            flops / seconds / 1e9,
            100.0 * share
        );
    }
    println!();
    println!(
        "{name}: {:.2} GFLOP of convolutions in {:.2} of {:.2} ms: {:.1} GFLOP/s",
        work / 1e9,
        1e3 * time,
        1e3 * usual,
        work / time / 1e9
    );
    let mean = |counts: &dyn Fn(&Row) -> bool| {
        let counted: Vec<&Row> = rows.iter().filter(|row| counts(row)).collect();
        let work: f64 = counted.iter().map(|row| row.steps.len() as f64 * row.convolution.flops).sum();
        let time = |r: usize| counted.iter().flat_map(|row| &row.steps).map(|&s| runs[r][s]).sum::<f64>();
        100.0 * median(calm.iter().map(|&r| work / time(r) / peaks[r]).collect())
    };
    println!("mean share, weighted by time: {:.1} % of all convolutions", mean(&|_| true));
    let saves = |row: &Row| row.convolution.algorithm == "Winograd";
    if rows.iter().any(saves) && !rows.iter().all(saves) {
        println!("{:.1} % of those that execute every multiplication", mean(&|row| !saves(row)));
    }
}

/// The different convolutions of a program, with the steps that compute them: calls and steps come in the same order.
fn rows(typed: &TypedModule, program: &resat::runtime::Program) -> Vec<Row> {
    let m = typed.module();
    let body = typed.entry("main").unwrap_or_else(|e| panic!("{e}")).body;
    let calls = reachable_outside(m, [body], |e| matches!(e, Expr::Func(_)));
    let convolutions = calls.into_iter().filter_map(|e| match &m[e] {
        Expr::Call { callee, .. } => match &m[*callee] {
            Expr::Func(_) => convolution(typed, *callee),
            Expr::Global(name) => convolution(typed, m.function_id(name)?),
            _ => None,
        },
        _ => None,
    });
    let is_one = |s: &usize| program.step_name(&program.steps()[*s]).contains("conv2d");
    let steps: Vec<usize> = (0..program.steps().len()).filter(is_one).collect();
    let convolutions: Vec<Convolution> = convolutions.collect();
    assert_eq!(steps.len(), convolutions.len(), "each convolution is a step, which is named after it");
    let mut rows: Vec<Row> = Vec::new();
    for (step, convolution) in steps.into_iter().zip(convolutions) {
        match rows.iter_mut().find(|r| r.convolution == convolution) {
            Some(row) => row.steps.push(step),
            None => rows.push(Row { convolution, steps: vec![step] }),
        }
    }
    rows
}
