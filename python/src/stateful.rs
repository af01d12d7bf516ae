//! Runs that follow each other: inputs that come back as outputs are kept between them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::{exceptions::PyKeyError, prelude::*};
use resat::{
    driver::{Kept, Stateful as Runs},
    runtime::{LoadedKept, LoadedLibrary, LoadedRuns, LoadedSizedModel},
};

use crate::{
    build::{Executable, Input, Library, Wanted, arrays, gather, run_error},
    call::{guarded, refuse, refused},
    tensor::{copied, to_numpy},
};

/// Runs of a program one after another, each of which begins with the state that the last one left. State begins as zeros; extents that are
/// unknown begin as 0, but for those that an input has by the same name, such as a batch.
#[pyclass(frozen, module = "resat", name = "Stateful")]
pub struct Stateful {
    program: Py<Executable>,
    /// None while a run has it.
    kept: Mutex<Option<Kept>>,
}

impl Stateful {
    pub fn new(program: Bound<'_, Executable>) -> PyResult<Stateful> {
        let built = &program.get().built;
        if built.state.is_empty() {
            return Err(refuse(
                "the program keeps nothing between runs: `build(state={input: output})` names what it should",
            ));
        }
        let kept = Mutex::new(Some(built.stateful().into_kept()));
        Ok(Stateful { program: program.unbind(), kept })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state, which nobody else has meanwhile. It is as before where that is refused.
    fn with<T>(&self, f: impl FnOnce(&mut Runs<'_>) -> PyResult<T>) -> PyResult<T> {
        let kept = self.lock().take();
        let kept = kept.ok_or_else(|| refuse("runs with state follow each other, but another one is under way"))?;
        let mut runs = self.program.get().built.resumed(kept);
        let result = f(&mut runs);
        *self.lock() = Some(runs.into_kept());
        result
    }

    /// The inputs that are not state.
    fn given<'a>(&self, program: &'a Executable) -> Vec<&'a Input> {
        let is_state = |n: usize| program.built.state.iter().any(|p| p.input == n);
        program.inputs.iter().enumerate().filter(|(n, _)| !is_state(*n)).map(|(_, input)| input).collect()
    }
}

#[pymethods]
impl Stateful {
    /// Runs once. `inputs` are those that are not state, by name or in order; gives the outputs that are not state. What is refused leaves the
    /// state as it was.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let program = self.program.get();
        let given = gather(inputs, self.given(program).into_iter().map(Input::wanted))?;
        // What a run keeps must not be memory of the caller's.
        let given = given.iter().map(|t| resat::tensor::Tensor::from_bytes(t.dtype(), t.shape(), t.bytes()));
        let given = given.collect::<Result<Vec<_>, _>>().map_err(refuse)?;
        let outputs =
            py.detach(|| self.with(|runs| guarded(|| runs.run(&given).map_err(crate::call::Failure::Refused))))?;
        program.warn(py)?;
        arrays(py, outputs, &given)
    }

    /// The state of an input, as a new array.
    fn __getitem__(&self, py: Python<'_>, input: &str) -> PyResult<Py<PyAny>> {
        let found = self.with(|runs| {
            let tensor = runs.get(input).map(std::borrow::Cow::into_owned);
            tensor.ok_or_else(|| PyKeyError::new_err(input.to_owned()))
        })?;
        to_numpy(py, found)
    }

    /// Gives the state of an input; the array is copied.
    fn __setitem__(&self, input: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let pair = self.program.get().built.state.iter().find(|p| p.name == input);
        let value = copied(value, pair.map(|p| p.ty.dtype))?;
        self.with(|runs| runs.set(input, value).map_err(|e| refused(&e)))
    }

    /// The inputs that are kept, by the names that `build(state=…)` gave.
    fn keys(&self) -> Vec<String> {
        self.program.get().built.state.iter().map(|p| p.name.clone()).collect()
    }

    /// The names and types of the inputs of a run, in order: those that are not state.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        let program = self.program.get();
        let is_state = |n: usize| program.built.state.iter().any(|p| p.input == n);
        Ok(program.inputs(py)?.into_iter().enumerate().filter(|(n, _)| !is_state(*n)).map(|(_, i)| i).collect())
    }

    /// The names and types of the outputs of a run, in order: those that are not state.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<(String, Py<PyAny>)>> {
        let program = self.program.get();
        let is_state = |n: usize| program.built.state.iter().any(|p| p.output == n);
        Ok(program.outputs(py)?.into_iter().enumerate().filter(|(n, _)| !is_state(*n)).map(|(_, o)| o).collect())
    }

    fn __repr__(&self) -> String {
        format!("<resat.Stateful, which keeps {}>", self.keys().join(", "))
    }
}

/// Runs of a library one after another, each of which begins with the state that the last one left, in memory that has room for the
/// greatest that the library was built for. State begins as zeros; extents that are unknown begin as 0.
#[pyclass(frozen, module = "resat", name = "LibraryRuns")]
pub struct LibraryRuns {
    library: Py<Library>,
    /// None while a run has it.
    kept: Mutex<Option<LoadedKept>>,
}

/// The library, where it is one that may keep state.
fn sized(library: &Library) -> PyResult<&LoadedSizedModel> {
    match &library.0 {
        LoadedLibrary::Sized(m) if !m.states().is_empty() => Ok(m),
        _ => Err(refuse("the library keeps nothing between runs: `build(state={input: output})` names what it should")),
    }
}

impl LibraryRuns {
    pub fn new(library: Bound<'_, Library>) -> PyResult<LibraryRuns> {
        let kept = Mutex::new(Some(sized(library.get())?.stateful().into_kept()));
        Ok(LibraryRuns { library: library.unbind(), kept })
    }

    fn lock(&self) -> MutexGuard<'_, Option<LoadedKept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state, which nobody else has meanwhile.
    fn with<T>(&self, f: impl FnOnce(&mut LoadedRuns<'_>) -> PyResult<T>) -> PyResult<T> {
        let model = sized(self.library.get())?;
        let kept = self.lock().take();
        let kept = kept.ok_or_else(|| refuse("runs with state follow each other, but another one is under way"))?;
        let mut runs = model.resumed(kept);
        let result = f(&mut runs);
        *self.lock() = Some(runs.into_kept());
        result
    }
}

#[pymethods]
impl LibraryRuns {
    /// Runs once. `inputs` are those that are not state, by name or in order; gives the outputs that are not state. What is refused leaves the
    /// state as it was.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let given = gather(inputs, sized(self.library.get())?.inputs().iter().map(Wanted::of_port))?;
        let outputs = py.detach(|| self.with(|runs| runs.run(&given).map_err(run_error)))?;
        arrays(py, outputs, &given)
    }

    /// The state of an input, as a new array.
    fn __getitem__(&self, py: Python<'_>, input: &str) -> PyResult<Py<PyAny>> {
        to_numpy(py, self.with(|runs| runs.get(input).ok_or_else(|| PyKeyError::new_err(input.to_owned())))?)
    }

    /// Gives the state of an input; the array is copied.
    fn __setitem__(&self, input: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = sized(self.library.get())?.states().iter().find(|s| s.port.name == input);
        let value = copied(value, state.map(|s| s.port.dtype))?;
        self.with(|runs| runs.set(input, &value).map_err(run_error))
    }

    /// The inputs that are kept.
    fn keys(&self) -> PyResult<Vec<String>> {
        Ok(sized(self.library.get())?.states().iter().map(|s| s.port.name.clone()).collect())
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<resat.LibraryRuns, which keeps {}>", self.keys()?.join(", ")))
    }
}
