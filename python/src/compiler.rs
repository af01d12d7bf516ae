//! External compilers from Python.

use std::sync::{Mutex, PoisonError};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};
use resat::{
    ir::{Attrs, OpId, TensorType as Ty, Type},
    partition::{self, Arguments, CallError, Callable, Compiled, CompilerError, Composite, ExternalCompiler, RuleText},
    tensor::Tensor,
};

use crate::{
    call::refuse,
    module::Module,
    tensor::{copied, to_numpy},
    values::{TensorType, attrs_to_py, type_to_py},
};

/// A part of a program that a compiler is given: a function of the operators that it takes.
#[pyclass(frozen, module = "resat", name = "Region")]
pub struct Region {
    symbol: String,
    module: Module,
    plain: Option<Module>,
    inputs: Vec<Ty>,
    outputs: Vec<Ty>,
}

fn tensor_types<'py>(py: Python<'py>, types: &[Ty]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, types.iter().map(|t| TensorType(t.clone())))
}

#[pymethods]
impl Region {
    /// The name that the compiled function shall have: a C identifier.
    #[getter]
    fn symbol(&self) -> &str {
        &self.symbol
    }

    /// The region by itself: a module whose `@main` it is, composites as functions.
    #[getter]
    fn module(&self) -> Module {
        self.module.clone()
    }

    /// The same with composites dissolved: calls of operators alone.
    #[getter]
    fn plain(&self) -> PyResult<Module> {
        self.plain.clone().ok_or_else(|| refuse("the region's body is no expression of operators"))
    }

    /// The types of the tensors that it takes, in order, tuples flattened depth first.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        tensor_types(py, &self.inputs)
    }

    /// The types of the tensors that it gives, likewise.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        tensor_types(py, &self.outputs)
    }

    fn __repr__(&self) -> String {
        format!("<resat.Region {}>", self.symbol)
    }
}

/// A compiler of the user's.
struct PyCompiler {
    name: String,
    supports: Py<PyAny>,
    compile: Py<PyAny>,
    cost: Option<Py<PyAny>>,
    patterns: Vec<(String, String)>,
    rules: Option<String>,
    keeps_constants: bool,
    /// What went wrong in `supports` or `cost`, which can't say.
    trouble: Mutex<Option<String>>,
}

impl PyCompiler {
    /// Keeps what a method raised, to be raised again by who asked.
    fn note(&self, method: &str, e: &PyErr) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert(format!("`{method}` raised {e}"));
    }

    fn region(&self, region: &partition::Region<'_>) -> Region {
        Region {
            symbol: region.symbol().to_owned(),
            module: Module(region.alone()),
            plain: region.plain().ok().map(Module),
            inputs: region.inputs(),
            outputs: region.outputs(),
        }
    }
}

impl ExternalCompiler for PyCompiler {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        let asked = Python::attach(|py| -> PyResult<bool> {
            let types = args.iter().map(|t| type_to_py(py, t)).collect::<PyResult<Vec<_>>>()?;
            let arguments =
                (op.op().name(), attrs_to_py(py, attrs)?, PyTuple::new(py, types)?, type_to_py(py, result)?);
            self.supports.bind(py).call1(arguments)?.is_truthy()
        });
        asked.unwrap_or_else(|e| {
            self.note("supports", &e);
            false
        })
    }

    fn patterns(&self) -> Vec<Composite> {
        self.patterns.iter().map(|(name, pattern)| Composite::new(name, pattern)).collect()
    }

    fn rules(&self) -> Option<RuleText> {
        let text = self.rules.clone()?;
        Some(RuleText { file: format!("{}.rules", self.name).into(), text: text.into() })
    }

    fn keeps_constants(&self) -> bool {
        self.keeps_constants
    }

    fn cost(&self, region: &partition::Region<'_>) -> Option<f64> {
        let f = self.cost.as_ref()?;
        let asked = Python::attach(|py| f.bind(py).call1((self.region(region),))?.extract::<Option<f64>>());
        asked.unwrap_or_else(|e| {
            self.note("cost", &e);
            None
        })
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn compile(&self, region: &partition::Region<'_>) -> Result<Compiled, CompilerError> {
        let made = Python::attach(|py| -> PyResult<Compiled> {
            let made = self.compile.bind(py).call1((self.region(region),))?;
            if let Ok(source) = made.cast::<PyString>() {
                return Ok(Compiled::source(source.to_cow()?.into_owned()));
            }
            if let Ok(object) = made.cast::<PyBytes>() {
                return Ok(Compiled::object(object.as_bytes().to_vec()));
            }
            if made.is_callable() {
                let function =
                    PyFunction { function: made.unbind(), inputs: region.inputs(), outputs: region.outputs() };
                return Ok(Compiled::callable(function));
            }
            Err(refuse(format!(
                "`compile` gives C (str), an object file (bytes) or a function, not {}",
                made.get_type().name()?
            )))
        });
        made.map_err(|e| region.refuse(e.to_string()))
    }
}

/// A region that a Python function computes: of arrays, to an array or a tuple of such.
struct PyFunction {
    function: Py<PyAny>,
    inputs: Vec<Ty>,
    outputs: Vec<Ty>,
}

impl Callable for PyFunction {
    fn call(&self, arguments: &mut Arguments<'_>) -> Result<(), CallError> {
        let asked = Python::attach(|py| -> PyResult<()> {
            let given = arguments.inputs.iter().zip(&self.inputs).map(|(bytes, ty)| {
                let shape: Vec<usize> = ty.known_shape().unwrap_or_default().iter().map(|&n| n as usize).collect();
                to_numpy(py, Tensor::from_bytes(ty.dtype, &shape, bytes).map_err(refuse)?)
            });
            let given = PyTuple::new(py, given.collect::<PyResult<Vec<_>>>()?)?;
            let made = self.function.bind(py).call1(given)?;
            let made: Vec<Bound<'_, PyAny>> = match (made.cast::<PyTuple>(), made.cast::<PyList>()) {
                (Ok(all), _) => all.iter().collect(),
                (_, Ok(all)) => all.iter().collect(),
                _ => vec![made],
            };
            if made.len() != self.outputs.len() {
                return Err(refuse(format!("it should give {} arrays, but gave {}", self.outputs.len(), made.len())));
            }
            for ((value, ty), out) in made.iter().zip(&self.outputs).zip(arguments.outputs.iter_mut()) {
                let t = copied(value, Some(ty.dtype))?;
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                if t.dtype() != ty.dtype || Some(&shape) != ty.known_shape().as_ref() {
                    return Err(refuse(format!("it should give {ty}, but gave {} of shape {shape:?}", t.dtype())));
                }
                out.copy_from_slice(t.bytes());
            }
            Ok(())
        });
        asked.map_err(|e| e.to_string().into())
    }
}

/// Registers a compiler for as long as the process lives.
#[pyfunction]
fn register_compiler(given: &Bound<'_, PyDict>) -> PyResult<()> {
    let get = |name: &str| -> PyResult<Bound<'_, PyAny>> {
        given.get_item(name)?.ok_or_else(|| refuse(format!("the compiler has no `{name}`")))
    };
    let cost = get("cost")?;
    let compiler = PyCompiler {
        name: get("name")?.extract()?,
        supports: get("supports")?.unbind(),
        compile: get("compile")?.unbind(),
        cost: (!cost.is_none()).then(|| cost.unbind()),
        patterns: get("patterns")?.extract()?,
        rules: get("rules")?.extract()?,
        keeps_constants: get("keeps_constants")?.extract()?,
        trouble: Mutex::default(),
    };
    partition::register(compiler).map(drop).map_err(refuse)
}

/// The names of all compilers.
#[pyfunction]
fn compilers() -> Vec<&'static str> {
    partition::compilers()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(register_compiler, m)?)?;
    m.add_function(wrap_pyfunction!(compilers, m)?)
}
