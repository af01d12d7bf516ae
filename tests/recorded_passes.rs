//! Modules that were recorded before and after one pass of TVM: what our pass of that name makes of the first computes the same
//! as the second, on random inputs by the interpreter, and is as good by the pass' measure.
//!
//! The recordings are `tests/recorded/tvm/pass.tar.gz`, or an unpacked folder that `RESAT_RECORDED_PASSES` names.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

#[path = "recorded/external.rs"]
mod external;

use libtest_mimic::{Arguments, Failed, Trial};
use resat::{
    diag::Refused,
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, Module, OpId, Type, reachable},
    ops::Class,
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// How a pass is compared.
struct Row {
    /// TVM's name of the pass.
    tvm: &'static str,
    /// Our passes for the arguments that it was made with; `None` where ours has nothing like them.
    ours: fn(&Made) -> Option<String>,
    /// How near results must be: 0 for equal bits, else a share of the largest magnitude.
    within: f64,
    /// What there should not be more of than after TVM's pass, and its name.
    measure: fn(&TypedModule) -> usize,
    measured: &'static str,
    /// Our pass where its arguments are in Python: made from what TVM's pass did, or from the test's name.
    made: Option<fn(&str, &Module, &Module) -> Option<Box<dyn Pass>>>,
}

/// The table: a pass is added by a row.
const ROWS: &[Row] = &[
    Row {
        tvm: "FakeQuantizationToInteger",
        ours: |made| {
            Some(format!("FakeQuantizationToInteger({})", made.named(&["hard_fail", "use_qat", "optional_qnn_ops"])))
        },
        within: 0.0,
        measure: float_contractions,
        measured: "contractions of floats",
        made: None,
    },
    Row {
        tvm: "ConvertLayout",
        ours: convert_layout,
        within: 1e-4,
        measure: transforms,
        measured: "layout transforms",
        made: None,
    },
    Row {
        tvm: "ToMixedPrecision",
        ours: |made| Some(format!("ToMixedPrecision({})", made.named(&["mixed_precision_type", "missing_op_mode"]))),
        within: 0.02,
        measure: single_contractions,
        measured: "contractions of float32",
        made: None,
    },
    Row {
        tvm: "FastMath",
        ours: |_| Some("FastMath".to_owned()),
        within: 1e-6,
        measure: |m| {
            calls(m).iter().filter(|(op, ..)| ["exp", "erf", "tanh", "nn.softmax"].contains(&op.op().name())).count()
        },
        measured: "functions that are not fast",
        made: None,
    },
    Row {
        tvm: "Legalize",
        ours: |_| Some("Legalize".to_owned()),
        within: 1e-5,
        measure: quantized_contractions,
        measured: "contractions of quantized tensors or floats",
        made: None,
    },
    Row {
        tvm: "FuseOps",
        ours: |made| {
            // At level 0 every operator is a function by itself.
            let alone = made.named(&["fuse_opt_level"]) == "fuse_opt_level=0";
            Some(if alone { "FuseOps(largest=1)" } else { "FuseOps" }.to_owned())
        },
        within: 1e-5,
        measure: primitives,
        measured: "primitive functions",
        made: None,
    },
    Row {
        tvm: "DefuseOps",
        ours: |_| Some("DefuseOps".to_owned()),
        within: 1e-5,
        measure: primitives,
        measured: "primitive functions",
        made: None,
    },
    plain("SimplifyExpr", weighed_calls, "calls"),
    plain("SimplifyInference", weighed_calls, "calls"),
    plain("ForwardFoldScaleAxis", contractions, "convolutions and products"),
    plain("BackwardFoldScaleAxis", weighed_calls, "calls"),
    plain("EliminateCommonSubexpr", weighed_calls, "calls"),
    plain("FoldExplicitPadding", weighed_calls, "calls"),
    plain("FlattenAtrousConv", weighed_calls, "calls"),
    Row {
        ours: |made| Some(format!("FoldConstant({})", made.named(&["fold_qnn"]))),
        ..plain("FoldConstant", weighed_calls, "calls")
    },
    Row {
        ours: |made| Some(format!("CombineParallelConv2D({})", made.named(&["min_num_branches"]))),
        ..plain("CombineParallelConv2D", contractions, "convolutions and products")
    },
    Row {
        ours: |made| Some(format!("CombineParallelDense({})", made.named(&["min_num_branches", "to_batch"]))),
        ..plain("CombineParallelDense", contractions, "convolutions and products")
    },
    Row {
        ours: |made| Some(format!("CombineParallelBatchMatmul({})", made.named(&["min_num_branches"]))),
        ..plain("CombineParallelBatchMatmul", contractions, "convolutions and products")
    },
    Row { made: Some(external::annotating), ..plain("AnnotateTarget", external::regions, "regions") },
    Row { made: Some(external::annotating), ..plain("AllowedListAnnotator", external::regions, "regions") },
    Row {
        made: Some(external::composing),
        ..plain("MergeComposite", external::loose_calls, "calls outside of composites")
    },
    plain("MergeCompilerRegions", external::regions, "regions"),
    plain("PartitionGraph", external::regions, "regions"),
];

/// A pass without arguments that is called as TVM's is.
const fn plain(tvm: &'static str, measure: fn(&TypedModule) -> usize, measured: &'static str) -> Row {
    Row { tvm, ours: |made| Some(made.name.clone()), within: 1e-4, measure, measured, made: None }
}

/// Recordings that are not compared, each with the reason: names as far as they are alike.
const EXCEPT: &[(&str, &str)] = &[(
    "test_pass_fuse_ops-test_fuse_parallel_injective",
    "it shifts floats, which TVM's type relation lets pass, but no back end compiles",
)];

/// What ours is given for TVM's `{'nn.conv2d': ['NCHW', 'default']}`.
fn convert_layout(made: &Made) -> Option<String> {
    let inside = |s: &str, open: char, close: char| Some(s.trim().strip_prefix(open)?.strip_suffix(close)?.to_owned());
    let mut requests = Vec::new();
    for request in items(&inside(made.positional.first()?, '{', '}')?) {
        let (op, layouts) = request.split_once(':')?;
        let layouts: Vec<String> =
            items(&inside(layouts, '[', ']')?).iter().map(|l| l.trim_matches('\'').to_owned()).collect();
        requests.push(format!("{}={}", op.trim().trim_matches('\''), layouts.join(":")));
    }
    Some(format!("ConvertLayout({})", requests.join(", ")))
}

/// How a pass was made: what stands between the parentheses of its arguments by position and the braces of those by name, in
/// Python's notation.
struct Made {
    name: String,
    positional: Vec<String>,
    named: Vec<(String, String)>,
}

impl Made {
    fn read(meta: &serde_json::Value) -> Option<Made> {
        let text = |i: usize| meta["made"][i].as_str();
        let inside = |s: &str| Some(s.get(1..s.len().checked_sub(1)?)?.to_owned());
        let named = items(&inside(text(2)?)?).into_iter().filter_map(|item| {
            let (name, value) = item.split_once(':')?;
            Some((name.trim().trim_matches('\'').to_owned(), value.trim().to_owned()))
        });
        let name = text(0)?.rsplit('.').next()?.to_owned();
        Some(Made { name, positional: items(&inside(text(1)?)?), named: named.collect() })
    }

    /// All arguments in the notation of our passes, those by position under these names; a list is its elements, each by name.
    fn named(&self, names: &[&str]) -> String {
        let positional = self.positional.iter().zip(names).map(|(v, n)| ((*n).to_owned(), v.clone()));
        let mut all = Vec::new();
        for (name, value) in positional.chain(self.named.iter().cloned()) {
            let values = match value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) {
                Some(list) => items(list),
                None => vec![value],
            };
            all.extend(values.iter().map(|v| format!("{name}={}", v.trim_matches('\''))));
        }
        all.join(", ")
    }
}

/// The items of a list, without those of lists inside.
fn items(text: &str) -> Vec<String> {
    let (mut depth, mut found, mut item) = (0, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(std::mem::take(&mut item));
                continue;
            }
            _ => {}
        }
        item.push(c);
    }
    found.push(item);
    found.into_iter().map(|i| i.trim().to_owned()).filter(|i| !i.is_empty()).collect()
}

/// The element types of a value.
fn dtypes(t: &Type) -> Vec<DType> {
    t.flatten().map_or(Vec::new(), |ts| ts.iter().map(|t| t.dtype).collect())
}

/// Calls that do something: those that only rename axes aside.
fn weighed_calls(m: &TypedModule) -> usize {
    let renames =
        ["reshape", "expand_dims", "squeeze", "nn.batch_flatten", "contrib_reverse_reshape", "reshape_like", "copy"];
    calls(m).iter().filter(|(op, ..)| !renames.contains(&op.op().name())).count()
}

/// Convolutions and products, of whatever type.
fn contractions(m: &TypedModule) -> usize {
    let multiplies = |name: &str| ["conv", "dense", "matmul"].iter().any(|part| name.contains(part));
    calls(m).iter().filter(|(op, ..)| multiplies(op.op().name())).count()
}

/// Calls of operators, with the types of their arguments and results.
fn calls(m: &TypedModule) -> Vec<(OpId, Vec<Type>, Type)> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let call = |&e: &_| {
        let (op, args, _) = m.op_call(e)?;
        Some((op, args.iter().map(|&a| m.ty(a).clone()).collect(), m.ty(e).clone()))
    };
    ids.iter().filter_map(call).collect()
}

fn float_contractions(m: &TypedModule) -> usize {
    let floats = |t: &Type| dtypes(t).iter().any(|d| d.is_float());
    calls(m)
        .iter()
        .filter(|(op, args, _)| op.op().class() == Class::Contract && args.first().is_some_and(floats))
        .count()
}

fn single_contractions(m: &TypedModule) -> usize {
    let single = |t: &Type| dtypes(t).contains(&DType::F32);
    calls(m)
        .iter()
        .filter(|(op, args, _)| op.op().class() == Class::Contract && args.first().is_some_and(single))
        .count()
}

/// Of a quantized program nothing but plain contractions of integers should be left. Of others, floats are what they are about.
fn quantized_contractions(m: &TypedModule) -> usize {
    let quantized = |op: OpId| op.op().class() == Class::Contract && op.dialect() == Some("qnn");
    float_contractions(m) + calls(m).iter().filter(|(op, ..)| quantized(*op)).count()
}

/// Layout transforms and transposes. What recordings hold as parameters may be a weight, so that none is free.
fn transforms(m: &TypedModule) -> usize {
    calls(m).iter().filter(|(op, ..)| ["layout_transform", "transpose"].contains(&op.op().name())).count()
}

fn primitives(m: &TypedModule) -> usize {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    ids.iter().filter(|&&e| matches!(&m[e], Expr::Func(f) if f.is_primitive())).count()
}

/// The name of the pass: of a sequence, that of the pass that was put into it.
fn pass_of(meta: &serde_json::Value) -> &str {
    match (meta["pass"].as_str(), meta["made"][0].as_str()) {
        (Some("sequential"), Some(made)) => made.rsplit('.').next().unwrap_or(made),
        (name, _) => name.unwrap_or("").trim(),
    }
}

/// More multiply-adds than the interpreter should be asked for: such modules run compiled, as they are.
const MANY: f64 = 1e8;

fn results(m: &TypedModule, inputs: Vec<Value>) -> Result<Vec<Tensor>, Failed> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let work = |&e: &_| {
        let (op, args, attrs) = m.op_call(e)?;
        let args: Vec<Type> = args.iter().map(|&a| m.ty(a).clone()).collect();
        Some(op.op().work(attrs, &args, m.ty(e)).flops)
    };
    #[cfg(feature = "llvm")]
    if ids.iter().filter_map(work).sum::<f64>() > MANY {
        let settings = Settings::new(Target::host());
        let passes = Box::new(sequence("none", &settings).map_err(|e| e.to_string())?);
        let options = resat::driver::Options { passes: Some(passes), ..resat::driver::Options::new(settings) };
        let built = resat::driver::build(m.module().clone(), &[], options).map_err(|e| e.to_string())?;
        let inputs: Vec<Tensor> = inputs.iter().map(|v| v.tensor().clone()).collect();
        return Ok(built.executable.run(&inputs).map_err(|e| e.to_string())?);
    }
    Ok(interp::run_flat(m, "main", inputs).map_err(|e| e.to_string())?)
}

fn main() {
    let args = Arguments::from_args();
    let folder = recordings();
    let mut trials = Vec::new();
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(&*folder).into_iter().flatten().map(|e| e.expect("the folder can be read").path()).collect();
    cases.sort();
    for case in cases {
        let Ok(meta) = std::fs::read_to_string(case.join("meta.json")) else { continue };
        let meta: serde_json::Value = serde_json::from_str(&meta).expect("recordings have JSON");
        let Some(row) = ROWS.iter().find(|r| pass_of(&meta) == r.tvm) else { continue };
        let name = case.file_name().expect("a folder").to_string_lossy().into_owned();
        let except = EXCEPT.iter().find(|(part, _)| name.contains(part));
        let (Some(made), None) = (Made::read(&meta), except) else { continue };
        let folder = folder.clone();
        trials.push(Trial::test(format!("{}::{name}", row.tvm), move || {
            let _kept = &folder;
            compare(&case, row, &made)
        }));
    }
    libtest_mimic::run(&args, trials).exit();
}

/// A folder, deleted with its last owner where it was made here.
#[derive(Clone)]
struct Folder(PathBuf, #[expect(dead_code, reason = "it deletes what was unpacked")] Option<Arc<tempfile::TempDir>>);

impl std::ops::Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

/// The recordings, unpacked.
fn recordings() -> Folder {
    if let Some(folder) = std::env::var_os("RESAT_RECORDED_PASSES") {
        return Folder(folder.into(), None);
    }
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/tvm/pass.tar.gz");
    let unpacked = tempfile::tempdir().expect("a folder can be made");
    let status = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path()).status();
    assert!(status.is_ok_and(|s| s.success()), "{} can't be unpacked", archive.display());
    // The cases may lie in a folder of the archive.
    let inner = unpacked.path().join("pass");
    let at = if inner.is_dir() { inner } else { unpacked.path().to_owned() };
    Folder(at, Some(Arc::new(unpacked)))
}

fn compare(case: &Path, row: &Row, made: &Made) -> Result<(), Failed> {
    let read = |name: &str| -> Result<Module, Failed> {
        let text = std::fs::read_to_string(case.join(name))?;
        text::parse_module(name, &text).map_err(|e| Failed::from(e.to_string()))
    };
    let refused = |e: Refused| Failed::from(e.to_string());
    let (before, after) = (read("before.relay")?, read("after.relay")?);
    let pass: Box<dyn Pass> = match row.made {
        Some(made) => {
            let name = case.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            made(&name, &before, &after).ok_or_else(|| format!("no pass is known for {name}"))?
        }
        None => {
            let Some(spec) = (row.ours)(made) else { return Ok(()) };
            Box::new(sequence(&spec, &Settings::new(Target::host())).map_err(refused)?)
        }
    };
    let ours = pass.run(before, &mut PassContext::default()).map_err(refused)?;
    let theirs = infer_types(after).map_err(refused)?;
    let ours = infer_types(ours).map_err(refused)?;
    let shown = || text::print_module(&ours).chars().take(4000).collect::<String>();
    let (n, m) = ((row.measure)(&ours), (row.measure)(&theirs));
    if n > m {
        return Err(format!("{n} {}, but TVM leaves {m}:\n{}", row.measured, shown()).into());
    }
    // Where extents are not known there is nothing to run it on.
    let unknown = |t: &Type| t.flatten().is_none_or(|ts| ts.iter().any(|t| t.known_shape().is_none()));
    if theirs.param_types("main").into_iter().any(unknown) {
        return Ok(());
    }
    for seed in 0..3 {
        let inputs =
            interp::random_inputs(&theirs, seed).or_else(|e| of_two(&theirs, seed).ok_or(e)).map_err(refused)?;
        // Where values decide extents, what TVM made may not take random ones, which then say nothing.
        let Ok(y) = results(&theirs, inputs.clone()) else { continue };
        let x = results(&ours, inputs)?;
        for (k, (x, y)) in x.iter().zip(&y).enumerate() {
            if let Some(why) = differ(x, y, row.within) {
                return Err(format!("result {k} of inputs {seed}: {why}\n{}", shown()).into());
            }
        }
    }
    Ok(())
}

/// Inputs whose unknown extents are 2; `None` where there are others than tensors of floats.
fn of_two(m: &TypedModule, seed: u64) -> Option<Vec<Value>> {
    let value = |&p: &_| {
        let t = m.var_ty(p).as_tensor().filter(|t| t.dtype.is_float())?;
        let shape: Vec<usize> = t.shape.iter().map(|d| d.known().unwrap_or(2) as usize).collect();
        let element = |i: usize| ((i as u64 * 37 + seed * 11) % 64) as f64 / 32.0 - 1.0;
        Some(Tensor::from_f64_fn(t.dtype, &shape, element).into())
    };
    m.entry("main").ok()?.params.iter().map(value).collect()
}

/// How two results differ, where they do.
fn differ(x: &Tensor, y: &Tensor, within: f64) -> Option<String> {
    // Which results keep their types is a setting that the recordings don't tell.
    let is_alike = x.dtype() == y.dtype() || within > 0.0 && x.dtype().is_float() && y.dtype().is_float();
    if !is_alike || x.shape() != y.shape() {
        return Some(format!("{} {:?} instead of {} {:?}", x.dtype(), x.shape(), y.dtype(), y.shape()));
    }
    if within == 0.0 && x.bytes() == y.bytes() {
        return None;
    }
    let scale = (0..y.len()).map(|i| y.get_f64(i).abs()).filter(|v| v.is_finite()).fold(1e-3, f64::max);
    let apart = |i: &usize| {
        let (a, b) = (x.get_f64(*i), y.get_f64(*i));
        !(a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= within * scale)
    };
    let wrong: Vec<usize> = (0..x.len()).filter(apart).collect();
    let first = *wrong.first()?;
    let (a, b, n) = (x.get_f64(first), y.get_f64(first), wrong.len());
    Some(format!("{n} of {} elements differ; element {first} is {a:?} instead of {b:?}", x.len()))
}
