//! Passes: by name, in Python, and what they are seen to do.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};
use resat::{
    diag::Refused,
    infer::infer_types,
    ir::{Module as Ir, Name},
    pass::{
        AfterPass, BeforePass, Calibrate, Pass, PassContext, Pipeline, Quantize, QuantizeOptions, Sequential,
        Settings as Rust, default_pass, parse_specs, passes, sequence,
    },
    saturate::Report,
    tensor::Tensor,
};

use crate::{
    call::{Failure, Shared, long, refuse, refused},
    module::Module,
    settings::Settings,
    tensor::named,
};

/// A pass that is a Python function of a module.
struct PyPass {
    name: String,
    function: Py<PyAny>,
    shared: Shared,
}

impl Pass for PyPass {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&self, module: Ir, _: &mut PassContext) -> Result<Ir, Refused> {
        let made = Python::attach(|py| -> PyResult<Ir> {
            let made = self.function.bind(py).call1((Module(module),))?;
            match made.cast::<Module>() {
                Ok(m) => Ok(m.get().0.clone()),
                Err(_) => {
                    let found = made.get_type().name()?;
                    Err(PyTypeError::new_err(format!("pass `{}` should give a resat.Module, not {found}", self.name)))
                }
            }
        });
        made.map_err(|e| self.shared.refuse(e))
    }
}

/// A pass that is a function in Python.
pub fn own_pass(name: String, function: Py<PyAny>, settings: &Settings) -> Arc<dyn Pass> {
    Arc::new(PyPass { name, function, shared: settings.shared.clone() })
}

/// The pass that a description from Python means: the text of passes; a name and a function; a text and samples for it; or a list of
/// stages, each a name and a description.
pub fn make(item: &Bound<'_, PyAny>, settings: &Settings, rust: &Rust) -> PyResult<Box<dyn Pass>> {
    if let Ok(text) = item.extract::<String>() {
        if text.trim() == "default" {
            return default_pass(rust, &settings.config).map_err(|e| refused(&e));
        }
        let mut all = sequence(&text, rust).map_err(|e| refused(&e))?;
        return Ok(if all.0.len() == 1 { all.0.remove(0) } else { Box::new(all) });
    }
    if let Ok(stages) = item.cast::<PyList>() {
        let mut pipeline = Pipeline::new();
        for stage in stages.iter() {
            let (name, pass): (String, Bound<'_, PyAny>) = stage.extract()?;
            pipeline.push(&name, make(&pass, settings, rust)?).map_err(|e| refuse(e.to_string()))?;
        }
        return Ok(Box::new(pipeline));
    }
    let (first, second): (String, Bound<'_, PyAny>) = item.extract()?;
    match second.cast::<PyDict>() {
        Ok(samples) => with_samples(&first, named(samples)?, rust),
        Err(_) => Ok(Box::new(PyPass { name: first, function: second.unbind(), shared: settings.shared.clone() })),
    }
}

/// A pass that calibrates, with arrays.
fn with_samples(text: &str, samples: Vec<(Name, Tensor)>, rust: &Rust) -> PyResult<Box<dyn Pass>> {
    let specs = parse_specs(text).map_err(|e| refused(&e))?;
    let [spec] = specs.as_slice() else { return Err(refuse(format!("`{text}` is not one pass"))) };
    let made = || -> Result<Box<dyn Pass>, Refused> {
        Ok(match spec.name.as_str() {
            "Calibrate" => Box::new(Calibrate::with_samples(spec, Some(samples), rust)?),
            _ => Box::new(Quantize::new(QuantizeOptions::parse_with(spec, Some(samples))?, rust)?),
        })
    };
    made().map_err(|e| refused(&e))
}

/// What was seen of one pass.
struct Seen {
    name: String,
    depth: usize,
    seconds: f64,
    before: Ir,
    after: Ir,
    reports: std::ops::Range<usize>,
}

/// Looks at passes while they run.
#[derive(Clone, Default)]
pub struct Watcher {
    keeps: bool,
    shared: Shared,
    depth: Arc<Mutex<Vec<usize>>>,
    seen: Arc<Mutex<Vec<(usize, String, usize, Ir, Ir)>>>,
}

/// What a call of passes gives to Python besides the module.
pub struct Outcome {
    seen: Vec<Seen>,
    reports: Vec<Report>,
    warnings: Vec<String>,
}

impl Watcher {
    pub fn new(keeps: bool, shared: &Shared) -> Watcher {
        Watcher { keeps, shared: shared.clone(), ..Watcher::default() }
    }

    /// What is to be called before and after each pass: it ends the compilation where that was asked for.
    pub fn hooks(&self) -> (BeforePass, Option<AfterPass>) {
        let (depth, shared) = (self.depth.clone(), self.shared.clone());
        let before = move |_: &dyn Pass, _: &Ir| {
            shared.cancel.go_on()?;
            depth.lock().unwrap_or_else(PoisonError::into_inner).push(0);
            Ok(())
        };
        let (depth, seen) = (self.depth.clone(), self.seen.clone());
        let mut number = 0;
        let after = move |pass: &dyn Pass, old: &Ir, new: &Ir| {
            let mut open = depth.lock().unwrap_or_else(PoisonError::into_inner);
            open.pop();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((number, pass.name(), open.len(), old.clone(), new.clone()));
            number += 1;
            Ok(())
        };
        (Box::new(before), self.keeps.then(|| Box::new(after) as AfterPass))
    }

    /// What there is to tell. `log` has an entry for each pass that ran, in the order in which they ended, as the watcher's.
    pub fn outcome(&self, log: Vec<resat::pass::PassEntry>, reports: Vec<Report>, warnings: Vec<String>) -> Outcome {
        let all = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let seen = all.into_iter().zip(log).map(|((_, name, depth, before, after), entry)| Seen {
            name,
            depth,
            seconds: entry.time.as_secs_f64(),
            before,
            after,
            reports: entry.reports,
        });
        Outcome { seen: seen.collect(), reports, warnings }
    }
}

/// A report as a dict.
fn report<'py>(py: Python<'py>, r: &Report) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    d.set_item("stop", r.stop.to_string())?;
    d.set_item("iterations", r.iterations)?;
    d.set_item("regions", r.regions)?;
    d.set_item("nodes", r.nodes)?;
    d.set_item("classes", r.classes)?;
    d.set_item("nodes_before", r.nodes_before)?;
    d.set_item("peak_bytes", r.peak_bytes)?;
    d.set_item("saturate_s", r.saturate_time.as_secs_f64())?;
    d.set_item("extract_s", r.extract_time.as_secs_f64())?;
    d.set_item("cost_before", r.cost_before)?;
    d.set_item("cost_after", r.cost_after)?;
    d.set_item("grade", r.grade.to_string())?;
    d.set_item("error", r.error)?;
    d.set_item("faults", r.faults.clone())?;
    d.set_item("notes", r.notes.clone())?;
    d.set_item("text", r.to_string())?;
    let rules = PyList::empty(py);
    for rule in &r.rules {
        let one = PyDict::new(py);
        one.set_item("ruleset", rule.ruleset.as_str())?;
        one.set_item("rule", rule.rule.as_str())?;
        one.set_item("grade", rule.grade.to_string())?;
        one.set_item("matches", rule.matches)?;
        one.set_item("unions", rule.unions)?;
        one.set_item("seconds", rule.time.as_secs_f64())?;
        one.set_item("cut", rule.cut)?;
        one.set_item("undecided", rule.undecided)?;
        rules.append(one)?;
    }
    d.set_item("rules", rules)?;
    Ok(d)
}

impl Outcome {
    /// The same as dicts: passes in the order in which they began, reports, warnings.
    pub fn to_py<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outcome = PyDict::new(py);
        let reports = self.reports.iter().map(|r| report(py, r)).collect::<PyResult<Vec<_>>>()?;
        let passes = PyList::empty(py);
        for seen in &self.seen {
            let one = PyDict::new(py);
            one.set_item("name", &seen.name)?;
            one.set_item("depth", seen.depth)?;
            one.set_item("seconds", seen.seconds)?;
            one.set_item("before", Module(seen.before.clone()))?;
            one.set_item("after", Module(seen.after.clone()))?;
            one.set_item("reports", PyList::new(py, reports.get(seen.reports.clone()).unwrap_or_default())?)?;
            passes.append(one)?;
        }
        outcome.set_item("passes", passes)?;
        outcome.set_item("reports", PyList::new(py, &reports)?)?;
        outcome.set_item("warnings", self.warnings.clone())?;
        Ok(outcome)
    }
}

/// Runs a pass over a module; gives the module and what was seen.
#[pyfunction]
#[pyo3(signature = (module, item, settings, trace))]
fn run_pass<'py>(
    py: Python<'py>,
    module: Module,
    item: &Bound<'py, PyAny>,
    settings: &Settings,
    trace: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let pass = make(item, settings, &rust_of(settings)?)?;
    let watcher = Watcher::new(trace, &settings.shared);
    let (before, after) = watcher.hooks();
    let (made, outcome) = long(py, &settings.shared, move || {
        let mut cx = PassContext { before_pass: Some(before), after_pass: after, ..PassContext::default() };
        let typed = infer_types(module.0)?.into_module();
        let made = Sequential(vec![pass]).run(typed, &mut cx)?;
        Ok::<_, Failure>((made, watcher.outcome(cx.log, cx.reports, cx.warnings)))
    })?;
    (Module(made), outcome.to_py(py)?).into_pyobject(py)
}

/// The settings as the level and the switches make them.
pub fn rust_of(settings: &Settings) -> PyResult<Rust> {
    settings.config.settings(&settings.rust).map_err(|e| refused(&e))
}

/// The names of all passes with a sentence each.
#[pyfunction]
fn registry() -> Vec<(&'static str, &'static str)> {
    passes().collect()
}

/// Whether a text is one of passes that there are.
#[pyfunction]
fn check_passes(text: &str, settings: &Settings) -> PyResult<()> {
    sequence(text, &settings.rust).map(drop).map_err(|e| refused(&e))
}

/// The difference of two modules' texts, as `diff -u` writes it; empty where there is none.
#[pyfunction]
#[pyo3(signature = (before, after, names = ("before", "after"), context = 2))]
fn diff(before: &Module, after: &Module, names: (&str, &str), context: usize) -> String {
    let (old, new) = (resat::relay::text::print_brief(&before.0), resat::relay::text::print_brief(&after.0));
    if old == new {
        return String::new();
    }
    let diff = similar::TextDiff::from_lines(&old, &new);
    diff.unified_diff().context_radius(context).header(names.0, names.1).to_string()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(run_pass, m)?)?;
    m.add_function(wrap_pyfunction!(registry, m)?)?;
    m.add_function(wrap_pyfunction!(check_passes, m)?)?;
    m.add_function(wrap_pyfunction!(diff, m)?)
}
