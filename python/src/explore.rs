//! Explorations, with a crew in Python: whatever takes tasks and gives what came of them.

use std::path::PathBuf;

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};
use resat::{
    diag::Refused,
    driver::Frozen,
    explore::{self, Compiled, Crew, Done, Exploration, Found, Member, Options, OwnPass, Program, Task},
    infer::infer_types,
    ir::Module as Ir,
    tensor::Tensor,
};

use crate::{
    call::{Failure, Shared, guarded, long, refuse, refused},
    module::{Constant, Module},
    passes::own_pass,
    settings::{Settings, seconds},
    tensor::{copied, to_numpy},
};

/// Arguments of an exploration, by name.
fn options(settings: &Settings, given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let get = |name: &str| -> PyResult<Bound<'_, PyAny>> {
        given.get_item(name)?.ok_or_else(|| refuse(format!("an exploration needs `{name}`")))
    };
    let own: Vec<OwnPass> = get("own")?
        .extract::<Vec<(String, Py<PyAny>)>>()?
        .into_iter()
        .map(|(name, function)| own_pass(name, function, settings))
        .collect();
    let members =
        Member::parse(&get("members")?.extract::<String>()?, &settings.rust, &own).map_err(|e| refused(&e))?;
    let threads: Option<usize> = get("threads")?.extract()?;
    let measure = seconds("measure_seconds", get("measure_seconds")?.extract()?)?;
    Ok(Options {
        threads: threads.unwrap_or(settings.rust.target.cores),
        settings: settings.rust.clone(),
        config: settings.config.clone(),
        members,
        own,
        saturation: get("saturation")?.extract()?,
        max_orders: get("max_orders")?.extract::<usize>()?.max(1),
        seed: get("seed")?.extract()?,
        measure,
        anytime: get("anytime")?.extract()?,
        state: get("state")?.extract::<Option<PathBuf>>()?,
        model: get("model")?.extract()?,
        about: get("about")?.extract()?,
        workers: get("workers")?.extract()?,
        crew: None,
        on_progress: None,
    })
}

/// Refuses a list of passes that no exploration could order.
#[pyfunction]
fn check_members(text: &str, settings: &Settings) -> PyResult<()> {
    Member::parse(text, &settings.rust, &[]).map(drop).map_err(|e| refused(&e))
}

/// A crew of the package's Python part: `room`, `measures`, `start_pass`, `start_build`, `poll` and `measure`.
struct PyCrew {
    crew: Py<PyAny>,
    shared: Shared,
}

impl PyCrew {
    fn ask<T>(&self, f: impl for<'py> FnOnce(Python<'py>, &Bound<'py, PyAny>) -> PyResult<T>) -> Result<T, Refused> {
        Python::attach(|py| f(py, self.crew.bind(py))).map_err(|e| self.shared.refuse(e))
    }
}

impl Crew for PyCrew {
    fn room(&self) -> usize {
        self.ask(|_, crew| crew.getattr("room")?.extract()).unwrap_or(1)
    }

    fn start(&mut self, number: usize, task: &Task, module: &Ir) -> Result<(), Refused> {
        self.ask(|_, crew| {
            let module = Module(module.clone());
            match task {
                Task::Pass { pass, .. } => crew.call_method1("start_pass", (number, pass, module))?,
                Task::Build { program } => crew.call_method1("start_build", (number, program, module))?,
            };
            Ok(())
        })
    }

    fn next(&mut self) -> Result<(usize, Option<Done>), Refused> {
        loop {
            self.shared.cancel.go_on()?;
            // A task's number, whether it was a program's, and what came of it.
            type Ended = Option<(usize, bool, Option<(String, Option<Module>)>)>;
            let ended: Ended = self.ask(|_, crew| crew.call_method0("poll")?.extract())?;
            return Ok(match ended {
                None => continue,
                Some((number, _, None)) => (number, None),
                Some((number, true, Some((text, _)))) => (number, Some(Done::Build(text))),
                Some((number, false, Some((text, module)))) => {
                    (number, Some(Done::Pass(Box::new(Found::from_parts(&text, module.map(|m| m.0))?))))
                }
            });
        }
    }

    fn measures(&self) -> bool {
        self.ask(|_, crew| crew.getattr("measures")?.extract()).unwrap_or(false)
    }

    fn measure(&mut self, programs: &[(String, Ir)], inputs: &[Tensor]) -> Result<Vec<String>, Refused> {
        self.ask(|py, crew| {
            let list = PyList::empty(py);
            for (digest, module) in programs {
                list.append((digest, Module(module.clone())))?;
            }
            let inputs = inputs.iter().map(|t| to_numpy(py, t.clone())).collect::<PyResult<Vec<_>>>()?;
            crew.call_method1("measure", (list, inputs))?.extract()
        })
    }
}

/// Does tasks of an exploration, in whatever process.
#[pyclass(frozen, module = "resat._resat", name = "Worker")]
pub struct Worker(explore::Worker, Shared);

/// A program's code on its way: description, machine code, constants.
type Code<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<Py<Constant>>);

#[pymethods]
impl Worker {
    #[new]
    fn new(settings: &Settings, given: &Bound<'_, PyDict>) -> PyResult<Worker> {
        let worker = explore::Worker::new(options(settings, given)?).map_err(|e| refused(&e))?;
        Ok(Worker(worker, settings.shared.clone()))
    }

    /// Runs a pass over a module: what came of it as text, and the module where there is one.
    fn run(&self, py: Python<'_>, pass: &str, module: Module) -> PyResult<(String, Option<Module>)> {
        let made = py.detach(|| guarded(|| Ok(self.0.run(pass, module.0).and_then(Found::into_parts)?)));
        if let Some(e) = self.1.raised() {
            return Err(e);
        }
        let (text, module) = made?;
        Ok((text, module.map(Module)))
    }

    /// Compiles a program: what came of it as text, and its code (description, machine code, constants) where there is code that can leave
    /// this process.
    fn compile<'py>(&self, py: Python<'py>, module: Module) -> PyResult<(String, Option<Code<'py>>)> {
        let made = py.detach(|| guarded(|| Ok(self.0.compile(module.0).into_parts()?)));
        if let Some(e) = self.1.raised() {
            return Err(e);
        }
        let (text, frozen) = made?;
        let code = frozen.map(|f| {
            let constants = f.constants.into_iter().map(|t| Py::new(py, Constant(t))).collect::<PyResult<Vec<_>>>()?;
            PyResult::Ok((PyBytes::new(py, &f.head), PyBytes::new(py, &f.code), constants))
        });
        Ok((text, code.transpose()?))
    }

    /// Measures programs in turns: lines for the state's file. A program is its digest, what `compile` said of it and its code; or without
    /// these a module, which is compiled here.
    fn measure(
        &self,
        py: Python<'_>,
        programs: Vec<(String, Option<(String, Code<'_>)>, Option<Module>)>,
        inputs: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<String>> {
        let inputs = inputs.iter().map(|t| copied(t, None)).collect::<PyResult<Vec<_>>>()?;
        let programs = programs.into_iter().map(|(digest, compiled, module)| {
            let program = match (compiled, module) {
                (Some((text, (head, code, constants))), _) => {
                    let (head, code) = (head.as_bytes().to_vec(), code.as_bytes().to_vec());
                    let constants = constants.iter().map(|c| c.get().0.clone()).collect();
                    let compiled = Compiled::from_parts(&text, Some(Frozen { head, code, constants }));
                    Program::Compiled(compiled.map_err(|e| refused(&e))?)
                }
                (None, Some(module)) => Program::Module(module.0),
                (None, None) => return Err(refuse("a program to be measured is neither code nor a module")),
            };
            Ok((digest, program))
        });
        let programs = programs.collect::<PyResult<Vec<_>>>()?;
        py.detach(|| guarded(|| Ok(self.0.measure(programs, &inputs)?)))
    }
}

/// Explores: JSON of what was found, a page, a summary.
#[pyfunction]
#[pyo3(signature = (module, inputs, settings, given, crew = None, on_progress = None))]
fn run_exploration(
    py: Python<'_>,
    module: Module,
    inputs: Vec<Bound<'_, PyAny>>,
    settings: &Settings,
    given: &Bound<'_, PyDict>,
    crew: Option<Py<PyAny>>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<(String, String, String)> {
    let mut options = options(settings, given)?;
    let inputs = inputs.iter().map(|t| copied(t, None)).collect::<PyResult<Vec<_>>>()?;
    let shared = settings.shared.clone();
    options.crew = crew.map(|crew| Box::new(PyCrew { crew, shared: shared.clone() }) as Box<dyn Crew>);
    if let Some(f) = on_progress {
        options.on_progress = Some(Box::new(move |p| {
            let called = Python::attach(|py| f.bind(py).call1((p.phase, p.done, p.total)).map(drop));
            called.unwrap_or_else(|e| shared.keep(e));
        }));
    }
    long(py, &settings.shared, move || {
        let module = infer_types(module.0)?.into_module();
        let found: Exploration = explore::explore(&module, &inputs, options)?;
        let json = serde_json::to_string(&found).map_err(|e| Failure::Other(e.to_string()))?;
        Ok((json, explore::page(&found), found.summary()))
    })
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Worker>()?;
    m.add_function(wrap_pyfunction!(check_members, m)?)?;
    m.add_function(wrap_pyfunction!(run_exploration, m)?)
}
