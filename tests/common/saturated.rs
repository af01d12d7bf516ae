//! How far passes that are rules grow their e-graphs: the passes, the programs, and what each pass made of each.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use resat::{
    driver::load_module,
    infer::infer_types,
    ir::{Expr, ExprId, Function, Module, Name, OpId, Type, VarId},
    ops,
    pass::{Pass, PassContext, Settings, bind_params, passes, sequence},
    relay::params,
    rules,
    saturate::{Limits, Stop},
    target::Target,
    tensor::{DType, Tensor},
};

/// A program's e-graph may become so many times as large.
pub(crate) const TIMES: usize = 40;
/// E-nodes that a graph may have in any case: of a program of a few calls everything counts, attributes too.
pub(crate) const FLOOR: usize = 1000;

/// Passes with arguments, which their names alone do not make.
const WITH_ARGUMENTS: &[&str] = &[
    "ConvertLayout(to=\"NHWC\")",
    "ConvertLayout(from=\"NHWC\", to=\"NCHW\")",
    "ConvertLayout(to=\"NHWC4c\")",
    "ConvertLayout(to=\"NCHW8c\")",
    "ConvertLayout(to=\"NDHWC\")",
    "ConvertLayout(to=\"NWC\")",
    "ToMixedPrecision(bfloat16)",
    "CombineParallelDense(to_batch=false, min_num_branches=2)",
    "CombineParallelConv2D(min_num_branches=2)",
    "CombineParallelBatchMatmul(min_num_branches=2)",
    "FakeQuantizationToInteger(optional_qnn_ops=nn.softmax)",
];

/// What a pass does without its rules is of no interest here, and neither is how long it may take elsewhere.
fn settings() -> Settings {
    let mut settings = Settings::new(Target::parse("llvm -mcpu=x86-64-v4 -num-cores=2").expect("a target"));
    settings.limits = Limits { time: Duration::from_secs(600), ..Limits::default() };
    settings
}

/// The passes that are made of rules, and each ruleset that runs by request alone, with their names.
pub(crate) fn rule_passes() -> Vec<(String, Box<dyn Pass>)> {
    let named = passes().map(|(name, _)| name.to_owned()).chain(WITH_ARGUMENTS.iter().map(|p| p.to_string()));
    // Kernels are formed of what all others have found; alone there is nothing to form them of.
    let sets = rules::by_request().into_iter().filter(|s| s.name.as_str() != "fusion");
    let alone = sets.map(|s| format!("Saturate({})", s.name));
    let settings = settings();
    let mut found = Vec::new();
    for text in named.chain(alone) {
        let Ok(mut sequence) = sequence(&text, &settings) else { continue };
        // Without what a pass does after its rules, such as folding constants.
        if let Some(pass) = sequence.0.pop().and_then(|p| p.restricted(&[], u64::MAX)) {
            found.push((text, pass));
        }
    }
    found
}

/// What rules made of one program.
#[derive(Clone, Debug)]
pub(crate) struct Grown {
    pub(crate) stop: Stop,
    pub(crate) nodes: usize,
    pub(crate) before: usize,
    #[allow(dead_code, reason = "the bench prints it")]
    pub(crate) seconds: f64,
}

impl Grown {
    /// What is wrong with it, for a program that has so many e-nodes without any operator of a dialect.
    pub(crate) fn fault(&self, plain: usize) -> Option<String> {
        let most = (TIMES * self.before.max(plain)).max(FLOOR);
        match self.stop {
            Stop::Saturated | Stop::GrowthBounded if self.nodes <= most => None,
            Stop::Saturated | Stop::GrowthBounded => {
                Some(format!("{} e-nodes where {} came in and {most} are allowed", self.nodes, self.before))
            }
            stop => Some(format!("{stop} with {} e-nodes where {} came in", self.nodes, self.before)),
        }
    }
}

/// What a pass makes of the functions of a module, one after the other; more than one for a pass that saturates again where its rules made
/// operators of dialects.
pub(crate) fn grown(pass: &dyn Pass, module: &Module) -> Result<Vec<Grown>, String> {
    let found: Arc<Mutex<Vec<Grown>>> = Arc::default();
    let out = found.clone();
    let mut cx = PassContext {
        on_region: Some(Box::new(move |x| {
            let (r, seconds) = (x.report, x.report.saturate_time.as_secs_f64());
            let grown = Grown { stop: r.stop, nodes: r.nodes, before: r.nodes_before, seconds };
            out.lock().expect("no thread panicked").push(grown);
        })),
        ..PassContext::default()
    };
    pass.run(module.clone(), &mut cx).map_err(|e| e.render())?;
    Ok(std::mem::take(&mut found.lock().expect("no thread panicked")))
}

/// The e-nodes of each function of a module once its operators of dialects are plain ones.
pub(crate) fn legalized(module: &Module) -> usize {
    let legalize = sequence("Legalize", &settings()).expect("a pass");
    let Ok(plain) = legalize.run(module.clone(), &mut PassContext::default()) else { return 0 };
    let nothing = sequence("EliminateCommonSubexpr", &settings()).expect("a pass");
    let mut cx = PassContext::default();
    match nothing.run(plain, &mut cx) {
        Ok(_) => cx.reports.iter().map(|r| r.nodes_before).max().unwrap_or(0),
        Err(_) => 0,
    }
}

/// The folders of the corpus' models; none, with a line that says so, where it is missing. `RESAT_MODEL` names one of them.
pub(crate) fn corpus() -> Vec<PathBuf> {
    let shared = std::env::var_os("RESAT_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let only = std::env::var("RESAT_MODEL").ok();
    let Ok(dir) = std::fs::read_dir(shared.join("corpus")) else {
        eprintln!("skipped: there is no corpus at {}", shared.display());
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = dir.flatten().map(|e| e.path()).filter(|p| p.join("model.relay").exists()).collect();
    found.retain(|p| only.as_ref().is_none_or(|only| p.ends_with(only)));
    found.sort();
    found
}

/// A model as it is written, and with constants for its parameters: its own where it has them, else arrays of the right types of which
/// no two are equal.
pub(crate) fn model(dir: &Path) -> Result<[Module; 2], String> {
    let written = load_module(&dir.join("model.relay")).map_err(|e| e.to_string())?;
    let values: Vec<(Name, Tensor)> = match std::fs::read(dir.join("model.params")) {
        Ok(bytes) => params::read("model.params", &bytes).map_err(|e| e.to_string())?,
        Err(_) => {
            let json = std::fs::read_to_string(dir.join("params.json")).map_err(|e| e.to_string())?;
            let json: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&json).map_err(|e| e.to_string())?;
            let made =
                |(i, (name, v)): (usize, (&String, &serde_json::Value))| Some((name.as_str().into(), array(i, v)?));
            json.iter().enumerate().map(made).collect::<Option<_>>().ok_or("params.json is of another form")?
        }
    };
    let bound = bind_params(&written, &values).map_err(|e| e.to_string())?;
    let typed = |m| infer_types(m).map(|t| t.into_module()).map_err(|e| e.to_string());
    Ok([typed(written)?, typed(bound)?])
}

/// An array of zeros but for its first element, which nobody has to write where it is large.
fn array(number: usize, v: &serde_json::Value) -> Option<Tensor> {
    let shape: Vec<usize> = v[0].as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<_>>()?;
    let dtype: DType = v[1].as_str()?.parse().ok()?;
    let mut t = Tensor::zeros(dtype, &shape);
    if dtype == DType::F32
        && let Some(x) = t.as_mut_slice::<f32>().first_mut()
    {
        *x = 1.0 + number as f32;
    }
    Some(t)
}

/// A small generator of pseudo-random numbers (splitmix64): programs must be the same on every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Of each operator, so many samples.
const SAMPLES: usize = 2;
/// Second operators that are tried for each sample, and of those that fit, how many are taken: the second with a third operator.
const TRIES: usize = 400;
const TAKEN: usize = 2;

/// Programs of two and three operators, each a function of a module, named after them: what a sample of each operator gives goes to samples of
/// others, where their types allow. With `constants`, all but the first value are constants.
pub(crate) fn compositions(constants: bool) -> Module {
    let mut rng = Rng(7);
    let samples: Vec<(OpId, ops::Sample)> = ops::all()
        .into_iter()
        .flat_map(|op| op.op().samples().into_iter().take(SAMPLES).map(move |s| (op, s)))
        .collect();
    let mut out = Module::new();
    for first in 0..samples.len() {
        let mut taken = 0;
        for _ in 0..TRIES {
            let mut program = Program::new(constants);
            if !program.call(&samples[first], None) || taken == TAKEN {
                break;
            }
            let fitting = |program: &mut Program, rng: &mut Rng| {
                let (op, sample) = &samples[rng.below(samples.len())];
                let at = rng.below(sample.args.len().max(1));
                program.call(&(*op, sample.clone()), Some(at))
            };
            if !fitting(&mut program, &mut rng) {
                continue;
            }
            for _ in 0..if taken > 0 { TRIES } else { 0 } {
                if fitting(&mut program, &mut rng) {
                    break;
                }
            }
            taken += 1;
            program.into_function(&mut out);
        }
    }
    out
}

/// A program under construction: calls, each of which takes the result of the one before.
struct Program {
    constants: bool,
    calls: Vec<(OpId, ops::Sample, Option<usize>)>,
    result: Option<Type>,
}

impl Program {
    fn new(constants: bool) -> Program {
        Program { constants, calls: Vec::new(), result: None }
    }

    /// Adds a call whose argument number `at` is the last result; whether it has a type.
    fn call(&mut self, (op, sample): &(OpId, ops::Sample), at: Option<usize>) -> bool {
        let mut sample = sample.clone();
        if let Some(at) = at {
            let (Some(result @ Type::Tensor(t)), Some(Type::Tensor(old))) = (&self.result, sample.args.get(at)) else {
                return false;
            };
            if t.dtype != old.dtype || t.rank() != old.rank() {
                return false;
            }
            // What has the argument's shape in the sample has it here: operands of elementwise operators.
            let old = sample.args[at].clone();
            sample.args.iter_mut().filter(|a| **a == old).for_each(|a| *a = result.clone());
        }
        let given: Vec<(Name, _)> = sample.attrs.iter().map(|(n, v)| (Name::from(n), v.clone())).collect();
        let Ok(attrs) = ops::make_attrs(*op, &given) else { return false };
        let whole = sample.args.iter().all(|t| matches!(t, Type::Tensor(t) if t.known_shape().is_some()));
        match op.op().infer(&attrs, &sample.args) {
            Ok(ty) if whole && matches!(&ty, Type::Tensor(t) if t.known_shape().is_some()) => {
                self.result = Some(ty);
                self.calls.push((*op, sample, at));
                true
            }
            _ => false,
        }
    }

    fn into_function(self, m: &mut Module) {
        let mut params: Vec<VarId> = Vec::new();
        let mut last: Option<ExprId> = None;
        let mut names = Vec::new();
        for (number, (op, sample, at)) in self.calls.into_iter().enumerate() {
            names.push(op.op().name().to_owned());
            let mut args = Vec::new();
            for (k, ty) in sample.args.iter().enumerate() {
                let arg = match (last, at == Some(k), ty) {
                    (Some(last), true, _) => last,
                    (_, _, Type::Tensor(t)) if self.constants && !params.is_empty() => {
                        let shape: Vec<usize> =
                            t.known_shape().unwrap_or_default().iter().map(|&n| n as usize).collect();
                        let seed = 10 * number + k;
                        m.constant(Tensor::from_i64_fn(t.dtype, &shape, |i| 1 + ((i + seed) % 3) as i64))
                    }
                    _ => {
                        let var = m.new_var(format!("p{}", params.len()), Some(ty.clone()));
                        params.push(var);
                        m.add(Expr::Var(var))
                    }
                };
                args.push(arg);
            }
            let given: Vec<(Name, _)> = sample.attrs.iter().map(|(n, v)| (Name::from(n), v.clone())).collect();
            let attrs = ops::make_attrs(op, &given).expect("they were made before");
            last = Some(m.call_op(op, args, attrs));
        }
        let name = format!("f{}_{}", m.functions().count(), names.join("_").replace('.', "_"));
        let body = last.expect("a program has a call");
        let f = m.add(Expr::Func(Box::new(Function::new(params, body, None))));
        m.define(name, f);
    }
}
