//! Calls that may take long: on a thread of their own, so that the interpreter can look at signals meanwhile.

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyRuntimeError, prelude::*, sync::PyOnceLock, types::PyType};
use resat::{
    cancel::Cancel,
    diag::{Diagnostic, Refused},
};

/// What a call and the user's functions that it calls share.
#[derive(Clone, Default)]
pub struct Shared {
    /// By which the call is ended early.
    pub cancel: Cancel,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Shared {
    /// For a call that can be cancelled.
    pub fn new() -> Shared {
        Shared { cancel: Cancel::new(), raised: Arc::default() }
    }

    /// Keeps the first exception of the user's functions, and ends the call.
    pub fn keep(&self, error: PyErr) {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.cancel.cancel();
    }

    /// The refusal that stands for an exception that was kept, on its way through Rust.
    pub fn refuse(&self, error: PyErr) -> Refused {
        let text = error.to_string();
        self.keep(error);
        Diagnostic::new(text).into()
    }

    /// The exception that was kept.
    pub fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Why a call failed.
pub enum Failure {
    /// The input was refused.
    Refused(Refused),
    /// Something else that is no fault of resat's.
    Other(String),
    /// The user's own exception.
    Raised(PyErr),
}

impl From<Refused> for Failure {
    fn from(e: Refused) -> Failure {
        Failure::Refused(e)
    }
}

impl From<PyErr> for Failure {
    fn from(e: PyErr) -> Failure {
        Failure::Raised(e)
    }
}

impl From<resat::driver::BuildError> for Failure {
    fn from(e: resat::driver::BuildError) -> Failure {
        match e {
            resat::driver::BuildError::Refused(r) => Failure::Refused(r),
            e => Failure::Other(e.to_string()),
        }
    }
}

/// A class of the package's Python part.
fn class<'py>(py: Python<'py>, cell: &'static PyOnceLock<Py<PyType>>, name: &str) -> PyResult<Bound<'py, PyType>> {
    cell.import(py, "resat._errors", name).cloned()
}

static REFUSED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static INTERNAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static COMPILE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn of_class(
    cell: &'static PyOnceLock<Py<PyType>>,
    name: &'static str,
    arguments: impl FnOnce(Python<'_>, Bound<'_, PyType>) -> PyResult<Py<PyAny>>,
) -> PyErr {
    Python::attach(|py| match class(py, cell, name).and_then(|c| arguments(py, c)) {
        Ok(error) => PyErr::from_value(error.into_bound(py)),
        Err(e) => e,
    })
}

/// `resat.Refused` with its diagnostics.
pub fn refused(e: &Refused) -> PyErr {
    of_class(&REFUSED, "Refused", |_, class| {
        let one = |d: &Diagnostic| {
            let place = d.span.as_ref().map(|s| {
                let (line, column) = s.line_col();
                (s.source.name.clone(), line, column)
            });
            (d.message.clone(), place, d.label.clone(), d.help.clone())
        };
        let diagnostics: Vec<_> = e.0.iter().map(one).collect();
        Ok(class.call_method1("_make", (e.render().trim_end().to_owned(), diagnostics))?.unbind())
    })
}

/// A refusal of a few words.
pub fn refuse(message: impl Display) -> PyErr {
    refused(&Diagnostic::new(message.to_string()).into())
}

fn internal(message: String) -> PyErr {
    of_class(&INTERNAL, "InternalError", |_, class| Ok(class.call1((message,))?.unbind()))
}

impl From<Failure> for PyErr {
    fn from(e: Failure) -> PyErr {
        match e {
            Failure::Refused(r) => refused(&r),
            Failure::Other(text) => of_class(&COMPILE, "CompileError", |_, class| Ok(class.call1((text,))?.unbind())),
            Failure::Raised(e) => e,
        }
    }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("internal error: this is a bug in resat: {}", text.unwrap_or("no message"))
}

/// The result of something short; a panic in it is an `InternalError`.
pub fn guarded<T>(f: impl FnOnce() -> Result<T, Failure>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|p| internal(said(&*p)))?.map_err(PyErr::from)
}

/// Panics as a bug would, within a call that may take long or a short one: what becomes of a bug has tests by it.
#[pyfunction]
pub fn panic(py: Python<'_>, within_long: bool) -> PyResult<()> {
    let bug = || -> Result<(), Failure> { panic!("asked for") };
    match within_long {
        true => long(py, &Shared::new(), bug),
        false => guarded(bug),
    }
}

/// So often signals are looked at.
const LOOK: Duration = Duration::from_millis(30);

/// So long a call that is cancelled has to come to its end; after that it is left alone, and what it gives is dropped.
const PATIENCE: Duration = Duration::from_millis(120);

/// Threads that work.
static WORKING: AtomicUsize = AtomicUsize::new(0);

/// One of them.
struct Working;

impl Working {
    fn new() -> Working {
        WORKING.fetch_add(1, Ordering::SeqCst);
        Working
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for calls that were left alone, at most so many seconds: they end soon, and must not work while the process tears down what they use.
#[pyfunction]
pub fn wait_for_calls(py: Python<'_>, seconds: f64) {
    let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    py.detach(|| {
        while WORKING.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(LOOK / 10);
        }
    });
}

/// The stack of the thread that works: passes walk what users wrote, some of them as deep as types are nested.
const STACK: usize = 64 << 20;

/// Does something that may take long, without the interpreter's lock. Ctrl-C cancels it.
pub fn long<T: Send + 'static>(
    py: Python<'_>,
    shared: &Shared,
    f: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let working = Working::new();
    let work = move || {
        let _working = working;
        let result = catch_unwind(AssertUnwindSafe(f));
        // Nobody waits any more where the call was left alone.
        let _ = sender.send(result.map_err(|p| said(&*p)));
    };
    std::thread::Builder::new()
        .name("resat".into())
        .stack_size(STACK)
        .spawn(work)
        .map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    let mut interrupt: Option<(PyErr, Instant)> = None;
    let result = loop {
        match py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK)) {
            Ok(result) => break Some(result),
            Err(RecvTimeoutError::Disconnected) => break Some(Err("the worker is gone".into())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match &interrupt {
            None => {
                if let Err(e) = py.check_signals() {
                    shared.cancel.cancel();
                    interrupt = Some((e, Instant::now()));
                }
            }
            Some((_, since)) if since.elapsed() > PATIENCE => break None,
            Some(_) => {}
        }
    };
    if let Some((e, _)) = interrupt {
        return Err(e);
    }
    if let Some(e) = shared.raised() {
        return Err(e);
    }
    match result {
        Some(Ok(result)) => result.map_err(PyErr::from),
        Some(Err(why)) => Err(internal(why)),
        None => Err(internal("the call was left alone".into())),
    }
}
