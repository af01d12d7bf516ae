//! What must hold of every program: it reads back as it was written, has the types that its values have, and gives the same
//! values through every route.
//!
//! How far floats may be off is measured: the interpreter runs the program again with every float disturbed by a few units in its last
//! places, in the element types that it has, and a small multiple of what that makes of the results is what rounding may make of them, up to
//! a share of the largest. Results that such a disturbance throws further off (a comparison of nearly equal numbers, a difference of large
//! ones) are not compared.

use std::panic::{AssertUnwindSafe, catch_unwind};

use resat::{
    driver::{self, BuildError, Options},
    infer::{TypedModule, infer_types},
    interp,
    ir::{Copier, Dim, Expr, Module, Type},
    ops,
    pass::{Pass, PassContext, Settings, sequence},
    relay::{json, text},
    rules,
    target::Target,
    tensor::{DType, Tensor, Value},
};

use crate::{
    common::{Rng, plain},
    make::{self, Case},
    offload::offloaded,
    same::Same,
};

/// What is wrong: which check found it, and what it says.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) check: String,
    pub(crate) what: String,
}

/// What became of a program.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Results that were compared.
    pub(crate) compared: usize,
    /// Results that were not: rounding decides them.
    pub(crate) chaotic: usize,
    /// What the back end refused, in its words.
    pub(crate) refused: Vec<String>,
}

/// The checks, by name. Of those with a number in the list, a program goes through some.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// Print and parse, as text and as JSON.
    Texts,
    /// Machine code of the program as it stands.
    Plain,
    /// Machine code of what the default pipeline makes of it.
    Default,
    /// The same of the program for special values, drawn by the number: infinities and NaN must stand in the same places as in the
    /// interpreter, after the default pipeline alone and in machine code.
    Special(u64),
    /// The machine for control flow, its kernels evaluated operator by operator.
    Machine,
    /// The same of what the default pipeline makes of the program.
    MachineDefault,
    /// A pass, and the interpreter.
    Pass(String),
    /// Parts of the program for external compilers, drawn by the number, and the interpreter.
    Offloaded(u64),
    /// The same compiled, by those compilers and by ours.
    OffloadedCode(u64),
}

impl Route {
    fn name(&self) -> String {
        match self {
            Route::Texts => "texts".into(),
            Route::Plain => "compiled as it is".into(),
            Route::Default => "compiled by the default pipeline".into(),
            Route::Special(n) => format!("special values by the default pipeline, {n}"),
            Route::Machine => "machine".into(),
            Route::MachineDefault => "machine after the default pipeline".into(),
            Route::Pass(p) => p.clone(),
            Route::Offloaded(n) => format!("for external compilers, {n}"),
            Route::OffloadedCode(n) => format!("compiled by external compilers, {n}"),
        }
    }
}

/// So many draws of special values each program is run for.
const SPECIALS: u64 = 3;

/// Of so many programs one is compiled by external compilers.
const CODE_BY_OTHERS: u64 = 6;

/// All routes; `all` or those of a seed's turn.
pub(crate) fn routes(seed: u64, all: bool) -> Vec<Route> {
    let mut passes: Vec<String> = rules::shipped().iter().map(|r| format!("Saturate({})", r.name)).collect();
    passes.extend(["Saturate(fusion)", "Saturate(all, fusion)", "FuseOps,DefuseOps"].map(String::from));
    passes.extend(["Inline", "FoldConstant", "DeadCodeElimination", "FuseOps"].map(String::from));
    let mut routes = vec![Route::Texts, Route::Plain, Route::Default, Route::Machine, Route::MachineDefault];
    routes.extend((0..SPECIALS).map(|k| Route::Special(seed * SPECIALS + k)));
    let n = passes.len();
    let turn = |k: usize| all || k == seed as usize % n || k == (seed as usize / n + 3) % n;
    routes.extend(passes.into_iter().enumerate().filter(|(k, _)| turn(*k)).map(|(_, p)| Route::Pass(p)));
    let draws = if all { 8 } else { 2 };
    routes.extend((0..draws).map(|k| Route::Offloaded(seed * draws + k)));
    // The C compiler takes its time.
    if all || seed.is_multiple_of(CODE_BY_OTHERS) {
        routes.extend((0..draws / 2).map(|k| Route::OffloadedCode(seed + k)));
    }
    routes
}

/// What passes may take of a small program.
fn settings() -> Settings {
    let mut s = Settings::new(Target::host());
    (s.limits.nodes, s.limits.iterations) = (5_000, 8);
    s
}

/// Runs `f`; a panic is a fault, too.
fn guarded<T>(check: &str, f: impl FnOnce() -> Result<T, String>) -> Result<T, Fault> {
    let fault = |what: String| Fault { check: check.to_owned(), what };
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(done) => done.map_err(fault),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
            Err(fault(format!("panicked: {text}")))
        }
    }
}

/// What results must be, and how far off.
struct Expected {
    values: Vec<Tensor>,
    /// Largest error per result; `None` where rounding decides it.
    errors: Vec<Option<f64>>,
    /// Whether nothing on the way was infinite, not a number or large: of that, rules keep where it is, and the rest up to rounding.
    finite: bool,
    /// The largest magnitude on the way, of what is finite.
    largest: f64,
}

/// Takes a program through routes. `None` where it can't be run at all: values that it computes on the way do not exist.
pub(crate) fn check(case: &Case, routes: &[Route]) -> Result<Option<Outcome>, Fault> {
    let typed = guarded("types", || infer_types(case.m.clone()).map_err(|e| e.to_string()))?;
    let Some(expected) = guarded("interpreter", || expected(case, &typed))? else { return Ok(None) };
    let mut outcome = Outcome::default();
    outcome.compared = expected.errors.iter().flatten().count();
    outcome.chaotic = expected.errors.len() - outcome.compared;
    for route in routes {
        let name = route.name();
        guarded(&name, || match route {
            Route::Texts => texts(&case.m),
            Route::Plain | Route::Default => {
                let passes = if matches!(route, Route::Plain) { "none" } else { "default" };
                match compiled(case, passes)? {
                    Ok(found) => agree(&expected, &found, matches!(route, Route::Plain)),
                    Err(refused) => {
                        // It may refuse what it has no code for, and says so; not that a pass made of it what has no types.
                        let m = optimized(case.m.clone(), passes)?;
                        infer_types(m).map_err(|e| format!("its result has no types: {e}"))?;
                        outcome.refused.push(refused);
                        Ok(())
                    }
                }
            }
            Route::Special(n) => specials(&make::special(case, *n)),
            Route::Machine => agree(&expected, &machine(case.m.clone(), &case.inputs)?, true),
            Route::MachineDefault => {
                let m = optimized(case.m.clone(), "default")?;
                agree(&expected, &machine(m, &case.inputs)?, false)
            }
            Route::Pass(pass) => passed(case, &typed, pass, &expected),
            Route::Offloaded(n) => {
                let o = offloaded(&case.m, *n, false)?;
                for (what, m) in [("annotated", o.annotated), ("merged", o.merged), ("partitioned", o.partitioned)] {
                    let said = |e: String| format!("{what}: {e}\n{}", text::print_module(&m));
                    same_types(&m, &typed).map_err(said)?;
                    texts(&m).map_err(said)?;
                    agree(&expected, &run(&m, &case.inputs).map_err(said)?, true).map_err(said)?;
                }
                Ok(())
            }
            Route::OffloadedCode(n) => {
                let m = offloaded(&case.m, *n, true)?.partitioned;
                let said = |e: String| format!("{e}\n{}", text::print_module(&m));
                let passes = if n % 2 == 0 { "none" } else { "default" };
                let other = Case { m: m.clone(), inputs: case.inputs.clone() };
                match compiled(&other, passes).map_err(said)? {
                    Ok(found) => agree(&expected, &found, passes == "none").map_err(said),
                    // What it has no code for, it has none for without regions.
                    Err(why) => match compiled(case, passes)? {
                        Ok(_) => Err(said(format!("refused: {why}"))),
                        Err(_) => Ok(()),
                    },
                }
            }
        })?;
    }
    Ok(Some(outcome))
}

/// Whether a module has types, and those of the module that it was made of.
fn same_types(m: &Module, typed: &TypedModule) -> Result<(), String> {
    let after = infer_types(m.clone()).map_err(|e| format!("it has no types: {e}"))?;
    match refines(after.result_type("main"), typed.result_type("main")) {
        true => Ok(()),
        false => Err(format!("{} became {}", typed.result_type("main"), after.result_type("main"))),
    }
}

fn texts(m: &Module) -> Result<(), String> {
    let printed = text::print_module(m);
    let again = text::parse_module("printed", &printed).map_err(|e| format!("its text is refused: {e}"))?;
    Same::modules(m, &again).map_err(|e| format!("read back from text: {e}"))?;
    if text::print_module(&again) != printed {
        return Err("printed twice, it is two texts".into());
    }
    let written = json::print_module(m).map_err(|e| format!("it has no JSON: {e}"))?;
    let again = json::parse_module("written", &written).map_err(|e| format!("its JSON is refused: {e}"))?;
    Same::modules(m, &again).map_err(|e| format!("read back from JSON: {e}"))
}

/// Whether the default pipeline leaves infinities and NaN where they are.
fn specials(case: &Case) -> Result<(), String> {
    let typed = infer_types(case.m.clone()).map_err(|e| e.to_string())?;
    // What padding makes of infinite weights is for each kernel to say: it may leave their products with zeros out. So it is with the zeros
    // that transposed convolutions and gradients put between.
    let mut plain = true;
    if let Ok(mut interp) = interp::Interpreter::new(&case.m) {
        interp.observe(|e, op, args, _| {
            let name = op.op().name();
            let infinite = |v: &Value| {
                v.flatten().iter().any(|t| t.dtype().is_float() && t.to_f64_vec().iter().any(|x| !x.is_finite()))
            };
            // Sines and cosines of multiples of a quarter turn are next to zero: rounding says with which sign.
            if name.ends_with("dft") || name.ends_with("stft") {
                plain &= !args.iter().any(infinite);
            }
            // What infinite scales make of packed weights, and of zero points beside them, is for each kernel to say.
            if name == "nn.dense_nbits" {
                plain &= !args.get(2).is_some_and(infinite);
            }
            // Of a gradient for weights, what is padded is the second operand, and the first one takes the part of the weights.
            let backward = name.ends_with("backward_weight");
            let fused = name.contains("bottleneck");
            let mut weights = args.iter().skip(usize::from(!backward)).take(if fused { usize::MAX } else { 1 });
            let finite = !weights.any(infinite);
            let attrs = case.m.op_call(e).expect("operators are called").2;
            let padded = || attrs.get("padding").and_then(|p| p.as_ints()).is_none_or(|p| p.iter().any(|&n| n != 0));
            let spread = || backward || name.contains("transpose") || name.contains("deformable");
            let is_conv = fused || name.contains("conv");
            plain &= finite || !is_conv || !(padded() || spread());
        });
        drop(interp.call("main", case.inputs.iter().cloned().map(interp::Value::from).collect()));
    }
    if !plain {
        return Ok(());
    }
    // A program that such values have no value in is none for them.
    let Some(mut expected) = expected(case, &typed)? else { return Ok(()) };
    // Of large numbers on the way, kernels may have squares that are infinite where the interpreter's are not.
    expected.finite = false;
    let m = optimized(case.m.clone(), "default")?;
    agree(&expected, &machine(m, &case.inputs)?, false)?;
    match compiled(case, "default")? {
        Ok(found) => agree(&expected, &found, false),
        Err(_) => Ok(()),
    }
}

fn run(m: &Module, inputs: &[Value]) -> Result<Vec<Tensor>, String> {
    interp::run_flat(m, "main", inputs.to_vec()).map_err(|e| e.to_string())
}

fn fits(ty: &Type, t: &Tensor) -> bool {
    ty.as_tensor().is_some_and(|ty| {
        ty.dtype == t.dtype()
            && ty.rank() == t.shape().len()
            && ty.shape.iter().zip(t.shape()).all(|(d, &n)| matches!(d, Dim::Any) || d.known() == Some(n as i64))
    })
}

fn expected(case: &Case, typed: &TypedModule) -> Result<Option<Expected>, String> {
    // Calls of undefined value make a program that says nothing; so do errors that only running shows.
    let (mut finite, mut defined, mut misfit, mut most) = (true, true, None, 0.0f64);
    let values = {
        let mut interp = interp::Interpreter::new(&case.m).map_err(|e| e.to_string())?;
        interp.observe(|e, op, args, out| {
            let flat = out.flatten();
            finite &= flat.iter().all(|t| !t.dtype().is_float() || t.to_f64_vec().iter().all(|x| x.abs() < 1e15));
            let inputs = args.iter().flat_map(Value::flatten);
            most = flat.iter().cloned().chain(inputs).map(|t| largest(&t)).fold(most, f64::max);
            let (name, attrs) = (op.op().name(), case.m.op_call(e).expect("operators are called").2);
            defined &= make::defined(op, attrs, args);
            let types = typed.ty(e).flatten().unwrap_or_default();
            if types.len() != flat.len() || !types.iter().zip(&flat).all(|(t, v)| fits(&t.clone().into(), v)) {
                misfit.get_or_insert_with(|| format!("`{name}` has the type {}, but gives {flat:?}", typed.ty(e)));
            }
        });
        let args = case.inputs.iter().cloned().map(interp::Value::from).collect();
        match interp.call("main", args) {
            Ok(v) => v.flatten(),
            Err(_) => return Ok(None),
        }
    };
    if let Some(misfit) = misfit {
        return Err(misfit);
    }
    if !defined {
        return Ok(None);
    }
    let values = values.ok_or("the result holds a function")?;
    let types = typed.result_type("main").flatten().ok_or("the result is no tensor or tuple")?;
    if types.len() != values.len() || !types.iter().zip(&values).all(|(t, v)| fits(&t.clone().into(), v)) {
        return Err(format!("the result's type is {}, but its value {values:?}", typed.result_type("main")));
    }
    let mut errors: Vec<Option<f64>> = values
        .iter()
        .map(|v| match v.dtype().is_float() {
            true => Some(largest(v) * 2.0 * unit(v.dtype())),
            false => Some(0.0),
        })
        .collect();
    for seed in 0..DISTURBANCES {
        let disturbed = disturbed(case, typed, seed);
        // Where rounding decides whether there is a value at all, nothing can be said of it.
        let Ok(found) = run(&disturbed.m, &disturbed.inputs) else { return Ok(None) };
        for ((want, found), error) in values.iter().zip(&found).zip(&mut errors) {
            let most = most_off(want) * largest(want);
            *error = match (*error, spread(want, found)) {
                (Some(e), Some(off)) if off == 0.0 || FACTOR * off <= most => Some(e.max(FACTOR * off)),
                _ => None,
            };
        }
    }
    Ok(Some(Expected { values, errors, finite, largest: most }))
}

/// So often a program is disturbed.
const DISTURBANCES: u64 = 4;

/// What rounding may do is so many times what the disturbances did: those are some draws of many, of several units in the last place each
/// where an operator rounds by a half; but a sum rounds as often as it has terms.
const FACTOR: f64 = 4.0;

/// No result may be further off than by this share of its largest element; where rounding may do more, it is not compared. Of types of 16
/// bits, a unit in the last place is up to 1 % already.
fn most_off(t: &Tensor) -> f64 {
    if t.dtype().bytes() == 2 { 5e-2 } else { 1e-2 }
}

fn largest(t: &Tensor) -> f64 {
    t.to_f64_vec().into_iter().filter(|x| x.is_finite()).fold(0.0, |m, x| m.max(x.abs()))
}

/// A few units in the last place.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F64 => 1e-12,
        _ => 5e-7,
    }
}

/// How far two tensors are apart, if the distance is a number.
fn spread(a: &Tensor, b: &Tensor) -> Option<f64> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return None;
    }
    if !a.dtype().is_float() {
        return a.same_bits(b).then_some(0.0);
    }
    a.to_f64_vec().into_iter().zip(b.to_f64_vec()).try_fold(0.0f64, |m, (x, y)| {
        match x == y || (x.is_nan() && y.is_nan()) {
            true => Some(m),
            false if (x - y).is_finite() => Some(m.max((x - y).abs())),
            false => None,
        }
    })
}

/// The program with every float that an operator gives, and every float that goes in, a little off.
fn disturbed(case: &Case, typed: &TypedModule, seed: u64) -> Case {
    let mut rng = Rng(seed ^ 0x5eed);
    let mut to = case.m.derive();
    let mut copier = Copier::new();
    let mut noise = |dtype: DType, shape: &[usize], around: f64| {
        Tensor::from_f64_fn(dtype, shape, |_| around + unit(dtype) * (2.0 * rng.unit() - 1.0))
    };
    let none = ops::make_attrs(ops::op("multiply"), &[]).expect("it has none");
    for (name, f) in case.m.functions() {
        let new = copier.copy_with(&case.m, f, &mut to, |to, id, expr| {
            let t = typed.ty(id).as_tensor().filter(|t| t.dtype.is_float())?;
            let call = case.m.op_call(id)?;
            // What only moves elements does not round.
            if call.0.op().class() == ops::Class::Injective {
                return None;
            }
            let shape: Vec<usize> = t.known_shape()?.iter().map(|&n| n as usize).collect();
            let by = to.constant(noise(t.dtype, &shape, 1.0));
            let mut plain = expr.clone();
            // Of products that cancel out, what is left is off by as much as they are: constants that are multiplied are a little off, too.
            if let (ops::Class::Contract, Expr::Call { args, .. }) = (call.0.op().class(), &mut plain) {
                for arg in args {
                    let Expr::Constant(c) = to[*arg].clone() else { continue };
                    if c.dtype().is_float() {
                        let f = noise(c.dtype(), c.shape(), 1.0);
                        let off = Tensor::from_f64_fn(c.dtype(), c.shape(), |i| c.get_f64(i) * f.get_f64(i));
                        *arg = to.constant(off);
                    }
                }
            }
            let plain = to.add(plain);
            let off = to.call_op(ops::op("multiply"), vec![plain, by], none.clone());
            // Sums of products of float16 are rounded at each step or at their end: what cancels out is off by units of its terms.
            if t.dtype == DType::F16 && call.0.op().class() == ops::Class::Contract {
                let terms = to.constant(noise(t.dtype, &shape, 0.0));
                return Some(to.call_op(ops::op("add"), vec![off, terms], none.clone()));
            }
            Some(off)
        });
        to.define(name.clone(), new);
    }
    let mut off = |v: &Tensor| -> Tensor {
        match v.dtype().is_float() {
            true => {
                let f = noise(v.dtype(), v.shape(), 1.0);
                Tensor::from_f64_fn(v.dtype(), v.shape(), |i| v.get_f64(i) * f.get_f64(i))
            }
            false => v.clone(),
        }
    };
    fn each(v: &Value, off: &mut impl FnMut(&Tensor) -> Tensor) -> Value {
        match v {
            Value::Tensor(t) => off(t).into(),
            Value::Tuple(f) => Value::Tuple(f.iter().map(|v| each(v, off)).collect()),
        }
    }
    let inputs = case.inputs.iter().map(|v| each(v, &mut off)).collect();
    Case { m: to, inputs }
}

fn agree(expected: &Expected, found: &[Tensor], exact_route: bool) -> Result<(), String> {
    if found.len() != expected.values.len() {
        return Err(format!("{} results, but {} were expected", found.len(), expected.values.len()));
    }
    for (k, (want, found)) in expected.values.iter().zip(found).enumerate() {
        if want.dtype() != found.dtype() || want.shape() != found.shape() {
            return Err(format!("result {k} is {found:?}, but should be {want:?}"));
        }
        let Some(error) = expected.errors[k] else { continue };
        let (w, f) = match want.dtype().is_float() {
            true => (want.to_f64_vec(), found.to_f64_vec()),
            false => {
                let (w, f) = (want.to_i64_vec(), found.to_i64_vec());
                match (0..w.len()).find(|&i| w[i] != f[i]) {
                    Some(i) => return Err(format!("result {k}, element {i} is {}, but should be {}", f[i], w[i])),
                    None => continue,
                }
            }
        };
        if !exact_route && !expected.finite {
            // Rules keep where results stop being finite, but for what nearly overflows.
            let rim = if want.dtype() == DType::F16 { 1e3 } else { f32::MAX as f64 / resat::saturate::RIM };
            let near = |x: f64, y: f64| x.abs() >= rim && y.abs() >= rim && x.signum() == y.signum();
            // What is finite is as far off as rounding makes what large numbers, and their squares, were added to and taken from.
            let rounding = 64.0 * unit(want.dtype()) * expected.largest.max(expected.largest.powi(2));
            let close = |a: f64, b: f64| a.is_finite() && b.is_finite() && (a - b).abs() <= error.max(rounding);
            let kept = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || close(a, b) || near(a, b);
            match (0..w.len()).find(|&i| !kept(w[i], f[i])) {
                Some(i) => return Err(format!("result {k}, element {i} is {:?}, but should be {:?}", f[i], w[i])),
                None => continue,
            }
        }
        let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= error;
        if let Some(i) = (0..w.len()).find(|&i| !same(w[i], f[i])) {
            return Err(format!(
                "result {k}, element {i} is {:?}, but should be {:?} (at most {error:e} off)",
                f[i], w[i]
            ));
        }
    }
    Ok(())
}

/// The results of machine code, or why there is none.
fn compiled(case: &Case, passes: &str) -> Result<Result<Vec<Tensor>, String>, String> {
    let mut options = Options::new(settings());
    options.passes = Some(Box::new(sequence(passes, &options.settings).map_err(|e| e.to_string())?));
    options.threads = 1;
    let built = match driver::build(case.m.clone(), &[], options) {
        Ok(built) => built,
        Err(BuildError::Refused(why)) => return Ok(Err(why.to_string())),
        Err(e) => return Err(e.to_string()),
    };
    let flat: Vec<Tensor> = case.inputs.iter().flat_map(Value::flatten).collect();
    built.executable.run(&flat).map(Ok).map_err(|e| e.to_string())
}

/// Whether a type says what another says, or more: which extents are not unknown.
fn refines(new: &Type, old: &Type) -> bool {
    match (new, old) {
        (Type::Tensor(n), Type::Tensor(o)) => {
            n.dtype == o.dtype
                && n.rank() == o.rank()
                && n.shape.iter().zip(o.shape.iter()).all(|(n, o)| n == o || *o == Dim::Any)
        }
        (Type::Tuple(n), Type::Tuple(o)) => n.len() == o.len() && n.iter().zip(o.iter()).all(|(n, o)| refines(n, o)),
        _ => new == old,
    }
}

/// The program after passes.
fn optimized(m: Module, passes: &str) -> Result<Module, String> {
    let passes = sequence(passes, &settings()).map_err(|e| e.to_string())?;
    passes.run(m, &mut PassContext::default()).map_err(|e| format!("refused: {e}"))
}

fn machine(m: Module, inputs: &[Value]) -> Result<Vec<Tensor>, String> {
    let program = plain::compiled(m).map_err(|e| format!("not compiled: {e}"))?;
    plain::run(&program, inputs).map_err(|e| e.to_string())
}

fn passed(case: &Case, typed: &TypedModule, pass: &str, expected: &Expected) -> Result<(), String> {
    let settings = settings();
    let passes = sequence(pass, &settings).map_err(|e| e.to_string())?;
    let mut cx = PassContext::default();
    let m = passes.run(case.m.clone(), &mut cx).map_err(|e| format!("refused: {e}"))?;
    if let Some(r) = cx.reports.iter().find(|r| !r.faults.is_empty()) {
        return Err(format!("faults: {:?}", r.faults));
    }
    let after = infer_types(m).map_err(|e| format!("its result has no types: {e}"))?;
    if !refines(after.result_type("main"), typed.result_type("main")) {
        return Err(format!("{} became {}", typed.result_type("main"), after.result_type("main")));
    }
    // Rulesets that run by request may hold only where all is finite.
    let finite = rules::by_request().iter().any(|set| pass == format!("Saturate({})", set.name));
    if finite && !expected.finite {
        return Ok(());
    }
    agree(expected, &run(after.module(), &case.inputs)?, false)
}
