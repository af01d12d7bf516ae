//! Builds, and what comes of them: programs that run.

use std::{
    ffi::CString,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};
use resat::{
    diag::{Diagnostic, Refused, nearest},
    driver::{
        self, Built, Cache, EmitError, ExtentBound, Options, Origin, Record, Runnable, Said, Specialize, content_key,
        tuned_in, tuned_of_user,
    },
    ir::{Dim, TensorType as TypeOfTensor, Type, input_names, output_names},
    machine::Known,
    runtime::{LoadedLibrary, Port, RunError, export::PortType},
    store::KeyMaker,
    tensor::{self as rt, DType},
};

use crate::{
    call::{Failure, Shared, long, refuse, refused},
    module::Module,
    passes::{Watcher, make, rust_of},
    settings::{Settings, seconds},
    stateful::{LibraryRuns, Stateful},
    tensor::{borrowed, to_numpy},
    values::{TensorType, type_to_py},
};

/// An input: its name and its type.
pub struct Input {
    /// The model's own name where it has one, else the parameter's.
    pub name: String,
    /// The parameter's name where that is another one.
    other: Option<String>,
    dtype: Option<DType>,
    ty: Type,
}

/// A program that runs: native code. Any number of threads may run it at once.
#[pyclass(frozen, module = "resat", name = "Executable")]
pub struct Executable {
    pub built: Built,
    pub inputs: Vec<Input>,
    outputs: Vec<String>,
    result: Type,
    target: resat::codegen::CodegenTarget,
    /// What symbols of an exported library begin with.
    name: String,
    /// How many of the warnings that runs gave were passed on.
    warned: AtomicUsize,
}

impl Executable {
    /// What users give for the program as it is written, in order.
    fn given(&self, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<rt::Tensor>> {
        if let Some(pair) = self.built.state.iter().find(|p| p.order.is_some()) {
            return Err(refuse(format!(
                "state `{}` lies in another order than the model has (`reorder_state`): only `stateful()` runs this program",
                pair.name
            )));
        }
        gather(inputs, self.inputs.iter().map(Input::wanted))
    }

    /// Passes on what runs warn of, each once.
    pub fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let all = self.built.executable.warnings();
        let before = self.warned.fetch_max(all.len(), Ordering::Relaxed);
        for warning in all.iter().skip(before) {
            let category = py.import("resat")?.getattr("ResatWarning")?;
            PyErr::warn(py, &category, &CString::new(warning.as_str())?, 1)?;
        }
        Ok(())
    }
}

/// The tensors of parameters, depth first: `x.0`, `x.1` are fields of a tuple `x`.
fn flatten(name: String, other: Option<String>, ty: &Type, out: &mut Vec<Input>) {
    match ty {
        Type::Tuple(fields) => {
            for (i, field) in fields.iter().enumerate() {
                flatten(format!("{name}.{i}"), other.as_ref().map(|o| format!("{o}.{i}")), field, out);
            }
        }
        ty => out.push(Input { name, other, dtype: ty.as_tensor().map(|t| t.dtype), ty: ty.clone() }),
    }
}

/// What is said of an input: by which names it may be given, and its element type.
#[derive(Copy, Clone)]
pub struct Wanted<'a> {
    name: &'a str,
    other: Option<&'a str>,
    dtype: Option<DType>,
}

impl Input {
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted { name: &self.name, other: self.other.as_deref(), dtype: self.dtype }
    }
}

impl<'a> Wanted<'a> {
    pub fn of_port(port: &'a PortType) -> Wanted<'a> {
        Wanted { name: &port.name, other: None, dtype: Some(port.dtype) }
    }

    /// Whether that is a name of it, which is number `i`.
    fn is_called(&self, key: &str, i: usize) -> bool {
        self.name == key || self.other == Some(key) || key.parse() == Ok(i)
    }
}

/// The inputs in order, from a dict by name or a sequence.
pub fn gather<'a>(
    given: &Bound<'_, PyAny>,
    wanted: impl ExactSizeIterator<Item = Wanted<'a>> + Clone,
) -> PyResult<Vec<rt::Tensor>> {
    let count = wanted.len();
    if let Ok(dict) = given.cast::<PyDict>() {
        let mut tensors = Vec::with_capacity(count);
        for (i, w) in wanted.clone().enumerate() {
            let mut found = dict.get_item(w.name)?;
            if let (None, Some(other)) = (&found, w.other) {
                found = dict.get_item(other)?;
            }
            if found.is_none() {
                found = dict.get_item(i)?;
            }
            if let Some(found) = found {
                tensors.push(borrowed(&found, w.dtype)?);
            }
        }
        if tensors.len() == count && dict.len() == count {
            return Ok(tensors);
        }
        return Err(mismatch(dict, &wanted.collect::<Vec<_>>()));
    }
    let items: Vec<Bound<'_, PyAny>> = match given.cast::<PyTuple>() {
        Ok(items) => items.iter().collect(),
        Err(_) => given
            .cast::<PyList>()
            .map_err(|_| refuse("inputs are a dict by name, or a list in order"))?
            .iter()
            .collect(),
    };
    if items.len() != count {
        return Err(refuse(format!("the program takes {count} inputs, but {} were given", items.len())));
    }
    items.iter().zip(wanted).map(|(v, w)| borrowed(v, w.dtype)).collect()
}

/// What is wrong with the names of inputs: all of it.
fn mismatch(given: &Bound<'_, PyDict>, wanted: &[Wanted<'_>]) -> PyErr {
    let names: Vec<&str> = wanted.iter().map(|w| w.name).collect();
    let mut complaints = Vec::new();
    let mut seen = vec![0; wanted.len()];
    for (key, _) in given.iter() {
        let key = key.str().map(|k| k.to_string()).unwrap_or_default();
        match wanted.iter().enumerate().position(|(i, w)| w.is_called(&key, i)) {
            Some(at) => seen[at] += 1,
            None => {
                let message = format!("the program has no input `{key}`; it has {}", names.join(", "));
                complaints.push(match nearest(&key, names.iter().copied()) {
                    Some(near) => Diagnostic::new(message).help(format!("did you mean `{near}`?")),
                    None => Diagnostic::new(message),
                });
            }
        }
    }
    for (name, times) in names.iter().zip(seen) {
        match times {
            0 => complaints.push(Diagnostic::new(format!("input `{name}` is not given"))),
            1 => {}
            _ => complaints.push(Diagnostic::new(format!("input `{name}` is given twice"))),
        }
    }
    refused(&Refused(complaints))
}

pub fn run_error(e: RunError) -> PyErr {
    refuse(e)
}

/// An output that an input's memory is: it would change with the input.
fn of_its_own(output: rt::Tensor, inputs: &[rt::Tensor]) -> rt::Tensor {
    let at = output.bytes().as_ptr_range();
    let shares = inputs.iter().any(|i| {
        let of = i.bytes().as_ptr_range();
        at.start < of.end && of.start < at.end
    });
    match shares {
        true => rt::Tensor::from_bytes(output.dtype(), output.shape(), output.bytes()).unwrap_or(output),
        false => output,
    }
}

pub fn arrays(py: Python<'_>, outputs: Vec<rt::Tensor>, inputs: &[rt::Tensor]) -> PyResult<Vec<Py<PyAny>>> {
    outputs.into_iter().map(|t| to_numpy(py, of_its_own(t, inputs))).collect()
}

fn port_type(p: &PortType) -> Type {
    TypeOfTensor::of(p.shape.iter().map(|n| n.map_or(Dim::Any, |n| Dim::Known(n as i64))), p.dtype).into()
}

#[pymethods]
impl Executable {
    /// Runs once. `inputs` is a dict of arrays by parameter name, or a list in order; tuples are flattened depth first (`x.0`, `x.1`). Gives a
    /// list of new arrays. Inputs are read where they lie if they are dense, row-major and on a boundary of 64 bytes (`resat.empty` makes such),
    /// else they are copied; nobody may write them meanwhile.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let given = self.given(inputs)?;
        let outputs = match &self.built.executable {
            Runnable::Plain(exe) => py.detach(|| exe.run(&given)).map_err(run_error)?,
            // Code for extents that were met is known by the values that decided them, which outlive the call.
            runnable => {
                let kept = given.iter().map(|t| rt::Tensor::from_bytes(t.dtype(), t.shape(), t.bytes()));
                let kept = kept.collect::<Result<Vec<_>, _>>().map_err(refuse)?;
                let outputs = py.detach(|| runnable.run(&kept)).map_err(|e| refused(&e))?;
                self.warn(py)?;
                outputs
            }
        };
        arrays(py, outputs, &given)
    }

    /// Runs that keep what `build(state=…)` named, from its beginning on.
    fn stateful(slf: Bound<'_, Self>) -> PyResult<Stateful> {
        Stateful::new(slf)
    }

    /// The names and types of the inputs, in order.
    #[getter]
    pub fn inputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        self.inputs.iter().map(|i| Ok((i.name.clone(), type_to_py(py, &i.ty)?))).collect()
    }

    /// The names and types of the outputs, in order.
    #[getter]
    pub fn outputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        let types = self.result.flatten().unwrap_or_default();
        let name = |i: usize| self.outputs.get(i).cloned().unwrap_or_else(|| i.to_string());
        types
            .into_iter()
            .enumerate()
            .map(|(i, t)| Ok((name(i), Bound::new(py, TensorType(t))?.into_any().unbind())))
            .collect()
    }

    /// The module as the passes left it.
    #[getter]
    fn module(&self) -> PyResult<Module> {
        let record = self.built.record().ok_or_else(not_kept)?;
        Ok(Module(record.module.clone()))
    }

    /// The names of its kernels, each once.
    #[getter]
    fn kernels(&self) -> PyResult<Vec<String>> {
        let record = self.built.record().ok_or_else(not_kept)?;
        Ok(record.kernels.iter().map(|k| k.name.to_string()).collect())
    }

    /// How many calls of kernels a run makes.
    #[getter]
    fn calls(&self) -> usize {
        self.built.calls
    }

    /// How long the build took, in seconds.
    #[getter]
    fn build_seconds(&self) -> f64 {
        self.built.time.as_secs_f64()
    }

    /// Memory that it holds, in bytes: for intermediate results, and for constants. None where only running shows.
    #[getter]
    fn memory(&self) -> Option<(usize, usize)> {
        let exe = self.built.executable.as_plain()?;
        Some((exe.plan().arena, exe.program().constants().iter().map(|t| t.bytes().len()).sum()))
    }

    /// Runs once and says how long each call took: a list of (function, seconds).
    fn profile(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<(String, f64)>> {
        let given = self.given(inputs)?;
        let Some(exe) = self.built.executable.as_plain() else {
            return Err(refuse("only a sequence of calls on tensors of known extents can be profiled"));
        };
        let times = py.detach(|| exe.profile(&given)).map_err(run_error)?;
        let names: Vec<String> = exe.program().functions().map(ToString::to_string).collect();
        let called = exe.program().steps().iter().map(|s| match s {
            resat::runtime::Step::Call(c) => names[c.function.0 as usize].clone(),
            _ => String::new(),
        });
        Ok(called.zip(times).map(|(name, t)| (name, t.as_secs_f64())).collect())
    }

    /// Runs so often, after three runs that don't count; seconds of each, without what Python takes.
    #[pyo3(signature = (inputs, repeat = 20))]
    fn latencies(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>, repeat: usize) -> PyResult<Vec<f64>> {
        let given = self.given(inputs)?;
        let run = || -> Result<Vec<f64>, Refused> {
            let mut all = Vec::with_capacity(repeat);
            for i in 0..repeat + 3 {
                let start = std::time::Instant::now();
                self.built.executable.run(&given)?;
                if i >= 3 {
                    all.push(start.elapsed().as_secs_f64());
                }
            }
            Ok(all)
        };
        py.detach(run).map_err(|e| refused(&e))
    }

    /// Writes a shared library and a C header beside it; with the ending `.tar`, what it is linked of.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| self.built.export(&self.name, &self.target, &path).map_err(failure));
        unserved(py, written?.unserved)
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
        let kernels = self.built.record().map_or(String::new(), |r| format!("{} kernels in ", r.kernels.len()));
        format!("<resat.Executable ({}), {kernels}{} calls>", names.join(", "), self.built.calls)
    }
}

/// A program that comes out of a cache does not know how it came about.
fn not_kept() -> PyErr {
    PyValueError::new_err("the program was found in a cache, which keeps neither its module nor its kernels' names")
}

/// A program that was exported, loaded again.
#[pyclass(frozen, module = "resat", name = "Library")]
pub struct Library(pub LoadedLibrary);

#[pymethods]
impl Library {
    #[new]
    #[pyo3(signature = (path, threads = None))]
    fn new(path: PathBuf, threads: Option<usize>) -> PyResult<Library> {
        let model = LoadedLibrary::load(&path).map_err(|e| refuse(e.to_string()))?;
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(|n| n.get())).unwrap_or(1);
        match model.set_threads(threads) {
            true => Ok(Library(model)),
            false => Err(Failure::Other(format!("the system gives fewer than {threads} threads")).into()),
        }
    }

    /// The program's name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The names and types of the inputs, in order.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        self.0.inputs().iter().map(|p| Ok((p.name.clone(), type_to_py(py, &port_type(p))?))).collect()
    }

    /// The names and types of the outputs, in order; None for types that are found out when it runs. None at all where it is not known how
    /// many there are.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Option<Py<PyAny>>)>> {
        match &self.0 {
            LoadedLibrary::Known(m) => {
                let ty = |p: &Port| Type::tensor(&p.shape.iter().map(|&n| n as i64).collect::<Vec<_>>(), p.dtype);
                m.outputs().iter().map(|p| Ok((p.name.to_string(), Some(type_to_py(py, &ty(p))?)))).collect()
            }
            LoadedLibrary::Sized(m) => Ok(m.outputs().iter().map(|name| (name.clone(), None)).collect()),
        }
    }

    /// Runs once; see `Executable.run`.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let ports = self.0.inputs();
        let given = gather(inputs, ports.iter().map(Wanted::of_port))?;
        let outputs = py.detach(|| self.0.run(&given)).map_err(run_error)?;
        arrays(py, outputs, &given)
    }

    /// Runs one after another that keep the library's state.
    fn stateful(slf: Bound<'_, Self>) -> PyResult<LibraryRuns> {
        LibraryRuns::new(slf)
    }

    fn __repr__(&self) -> String {
        format!("<resat.Library {}>", self.0.name())
    }
}

/// A cache of kernels and programs, and how many of its complaints were passed on.
type Opened = (PathBuf, Arc<Cache>, Arc<AtomicUsize>);

/// The cache in a folder, opened once.
fn cache(folder: PathBuf) -> Opened {
    static OPEN: OnceLock<Mutex<Vec<Opened>>> = OnceLock::new();
    let mut open = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = open.iter().find(|c| c.0 == folder) {
        return known.clone();
    }
    let new = (folder.clone(), Arc::new(Cache::new(folder)), Arc::default());
    open.push(Opened::clone(&new));
    new
}

/// Builds a module: passes, then code.
#[pyfunction]
#[pyo3(signature = (module, item, settings, *, trace, threads, name, fallback, check_regions, cache_folder, tune, specialize, state, reorder_state, hints, bounds, on_phase))]
#[allow(clippy::too_many_arguments, reason = "the package's Python part alone calls it, by name")]
fn build<'py>(
    py: Python<'py>,
    module: Module,
    item: &Bound<'py, PyAny>,
    settings: &Settings,
    trace: bool,
    threads: Option<usize>,
    name: String,
    fallback: bool,
    check_regions: bool,
    cache_folder: Option<PathBuf>,
    tune: Option<f64>,
    specialize: &str,
    state: Vec<(String, String)>,
    reorder_state: bool,
    hints: Vec<Said>,
    bounds: Vec<(String, Vec<Option<String>>)>,
    on_phase: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let pass = make(item, settings, &rust_of(settings)?)?;
    let watcher = Watcher::new(trace, &settings.shared);
    let (before, after) = watcher.hooks();
    let mut options = Options::new(settings.rust.clone());
    options.passes = Some(pass);
    options.threads = threads.unwrap_or(options.threads);
    if options.threads == 0 {
        return Err(refuse("a program is run by one thread at least, not by 0"));
    }
    options.name = name.clone();
    (options.fallback, options.check_regions) = (fallback, check_regions);
    (options.before_pass, options.after_pass) = (Some(before), after);
    let opened = cache_folder.map(cache);
    options.cache = opened.as_ref().map(|c| c.1.clone());
    options.specialize = match specialize {
        "off" => Specialize::Off,
        "hot" => Specialize::Hot,
        "all" => Specialize::All,
        other => return Err(refuse(format!("specialize is \"off\", \"hot\" or \"all\", not `{other}`"))),
    };
    (options.state, options.reorder_state) = (state, reorder_state);
    (options.hints, options.bounds) = (hints, ranges(bounds)?);
    options.tuned = Some(Arc::new(tuned_in(&settings.rust.target, tuned_of_user())));
    options.tune = tune.map(|t| seconds("tune", t)).transpose()?;
    if let Some(f) = on_phase {
        let shared: Shared = settings.shared.clone();
        options.on_phase = Some(Box::new(move |phase| {
            let called = Python::attach(|py| f.bind(py).call1((phase,)).map(drop));
            called.unwrap_or_else(|e| shared.keep(e));
        }));
    }
    let target = settings.rust.target.codegen();
    // The default pipeline is what the configuration says; whoever traces passes has them run.
    let is_default = item.extract::<String>().is_ok_and(|text| text.trim() == "default") && !trace;
    let passes = is_default.then(|| format!("default {:?}", settings.config));
    let (executable, outcome) = long(py, &settings.shared, move || {
        // What the program itself says of its inputs, and not what passes made of them.
        let typed = resat::infer::infer_types(module.0.clone())?;
        let mut inputs = Vec::new();
        let own = input_names(&module.0).unwrap_or_default();
        for (i, &p) in typed.entry("main")?.params.iter().enumerate() {
            let name = typed.var(p).name.to_string();
            let (name, other) = match own.get(i).filter(|own| **own != name) {
                Some(own) => (own.clone(), Some(name)),
                None => (name, None),
            };
            flatten(name, other, typed.var_ty(p), &mut inputs);
        }
        let outputs = output_names(&module.0).unwrap_or_default();
        let written = typed.result_type("main").clone();
        drop(typed);
        if let Some(passes) = passes.filter(|_| options.cache.is_some()) {
            let key = KeyMaker::new().part(passes).part(&options.name);
            options.key = content_key(key, &options.settings, &module.0, &[]);
        }
        let mut built = driver::build(module.0, &[], options)?;
        let complaints = opened.iter().flat_map(|(_, cache, told)| {
            let all = cache.complaints();
            let before = told.fetch_max(all.len(), Ordering::Relaxed);
            all.into_iter().skip(before)
        });
        let (result, outcome) = match &mut built.origin {
            Origin::Here(record) => {
                let result = resat::infer::infer_types(record.module.clone())?.result_type("main").clone();
                let Record { log, reports, warnings, .. } = &mut **record;
                let warnings = std::mem::take(warnings).into_iter().chain(complaints).collect();
                (result, watcher.outcome(std::mem::take(log), std::mem::take(reports), warnings))
            }
            Origin::Cache => (written, watcher.outcome(Vec::new(), Vec::new(), complaints.collect())),
        };
        Ok((Executable { built, inputs, outputs, result, target, name, warned: AtomicUsize::new(0) }, outcome))
    })?;
    let executable = Bound::new(py, executable)?;
    (executable, outcome.to_py(py)?).into_pyobject(py)
}

fn failure(e: EmitError) -> Failure {
    match e {
        EmitError::Build(e) => Failure::from(e),
        EmitError::Export(e) => Failure::Other(e.to_string()),
    }
}

/// Warns of sizes that an export does not serve.
fn unserved(py: Python<'_>, why: Option<String>) -> PyResult<()> {
    let Some(why) = why else { return Ok(()) };
    let category = py.import("resat")?.getattr("ResatWarning")?;
    PyErr::warn(py, &category, &CString::new(why)?, 1)
}

/// Writes a module as C99: the files that were written.
#[pyfunction]
#[pyo3(signature = (module, item, settings, *, name, path, state, hints, bounds))]
#[allow(clippy::too_many_arguments, reason = "the package's Python part alone calls it, by name")]
fn emit_c(
    py: Python<'_>,
    module: Module,
    item: &Bound<'_, PyAny>,
    settings: &Settings,
    name: String,
    path: PathBuf,
    state: Vec<(String, String)>,
    hints: Vec<Said>,
    bounds: Vec<(String, Vec<Option<String>>)>,
) -> PyResult<Vec<PathBuf>> {
    let mut options = Options::new(settings.rust.clone());
    options.passes = Some(make(item, settings, &rust_of(settings)?)?);
    options.name = name;
    options.state = state;
    (options.hints, options.bounds) = (hints, ranges(bounds)?);
    let written = long(py, &settings.shared, move || driver::emit_c(module.0, &[], options, &path).map_err(failure))?;
    unserved(py, written.unserved)?;
    Ok([written.source, written.header].into_iter().chain(written.weights).collect())
}

/// What is known of this machine, as JSON; with `measure`, it is measured and what was found is kept.
#[pyfunction]
fn machine(py: Python<'_>, measure: bool) -> PyResult<String> {
    long(py, &Shared::new(), move || {
        let failed = |e: &dyn std::fmt::Display| Failure::Other(e.to_string());
        let measured = match measure {
            true => {
                let measured = driver::machine::measure().map_err(|e| failed(&e))?;
                driver::machine::keep(&measured).map_err(|e| failed(&e))?;
                measured
            }
            false => driver::machine::kept().unwrap_or_default(),
        };
        let known = Known::here().corrected(&measured);
        Ok(driver::machine::to_json(&known, &measured).to_string())
    })
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(build, m)?)?;
    m.add_function(wrap_pyfunction!(emit_c, m)?)?;
    m.add_function(wrap_pyfunction!(machine, m)?)
}

/// Bounds as the command line has them.
fn ranges(bounds: Vec<(String, Vec<Option<String>>)>) -> PyResult<Vec<ExtentBound>> {
    let range = |name: &str, text: String| text.parse().map_err(|e| refuse(format!("the bound of `{name}`: {e}")));
    let all = |(name, axes): (String, Vec<Option<String>>)| {
        let axes = axes.into_iter().map(|text| text.map(|t| range(&name, t)).transpose()).collect::<PyResult<_>>()?;
        Ok((name, axes))
    };
    bounds.into_iter().map(all).collect()
}
