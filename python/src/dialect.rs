//! Operators and dialects from Python.

use std::fmt;

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use resat::{
    dialect::{self, Dialect},
    ir::{AttrValue, Attrs, Type},
    loops::{Builder, Operand},
    ops::{self, AttrDefault, AttrField, AttrKind, AxisMap, Class, Op, OpError, Sample, Work},
    tensor::Value,
};

use crate::{
    call::{refuse, refused},
    tensor::{value_from_py, value_to_py},
    values::{attr_from_py, attrs_to_py, type_from_py, type_to_py},
};

/// An operator whose type relation and evaluation are Python functions.
struct PyOp {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    attrs: &'static [AttrField],
    /// (attrs, argument types) to the result's type.
    infer: Py<PyAny>,
    /// (attrs, arguments) to the result.
    eval: Py<PyAny>,
    /// (attrs, argument types, result type) to operations, where there is one.
    flops: Option<Py<PyAny>>,
    samples: Vec<Sample>,
}

impl fmt::Debug for PyOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What is kept as long as the process lives, as operators are.
fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// The message of an exception, as operators give them.
fn said(e: &PyErr) -> OpError {
    OpError(e.to_string())
}

fn types<'py>(py: Python<'py>, types: &[Type]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, types.iter().map(|t| type_to_py(py, t)).collect::<PyResult<Vec<_>>>()?)
}

impl Op for PyOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn inputs(&self) -> &'static [&'static str] {
        self.inputs
    }

    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }

    fn class(&self) -> Class {
        Class::Opaque
    }

    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let asked =
            Python::attach(|py| type_from_py(&self.infer.bind(py).call1((attrs_to_py(py, attrs)?, types(py, args)?))?));
        asked.map_err(|e| said(&e))
    }

    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let asked = Python::attach(|py| {
            let args = args.iter().map(|v| value_to_py(py, v)).collect::<PyResult<Vec<_>>>()?;
            value_from_py(&self.eval.bind(py).call1((attrs_to_py(py, attrs)?, PyTuple::new(py, args)?))?, None)
        });
        asked.map_err(|e| said(&e))
    }

    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque(args.iter().filter_map(|a| a.as_tensor()).map(|t| t.rank()))
    }

    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let bytes = |t: &Type| t.flatten().map_or(0.0, |all| all.iter().filter_map(|t| t.bytes()).sum::<i64>() as f64);
        let flops = self.flops.as_ref().and_then(|f| {
            let asked = Python::attach(|py| -> PyResult<f64> {
                f.bind(py).call1((attrs_to_py(py, attrs)?, types(py, args)?, type_to_py(py, out)?))?.extract()
            });
            // There is nobody to raise it to: Python tells it as it tells exceptions of finalizers.
            asked.map_err(|e| Python::attach(|py| e.write_unraisable(py, Some(f.bind(py))))).ok()
        });
        Work { flops: flops.unwrap_or(0.0), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }

    fn lower(&self, _: &Attrs, _: &[Operand], _: &mut Builder) -> Result<Operand, OpError> {
        Err(OpError("an operator from Python has no lowering: rules say what it is".into()))
    }

    fn samples(&self) -> Vec<Sample> {
        self.samples.clone()
    }
}

/// The kind and default of an attribute: `float` (it must be given), or a value (its default).
fn field(name: String, given: &Bound<'_, PyAny>) -> PyResult<AttrField> {
    let name = leaked(name);
    let required = |kind| AttrField::new(name, kind, AttrDefault::Required);
    if let Ok(class) = given.cast::<pyo3::types::PyType>() {
        return Ok(match class.name()?.to_cow()?.as_ref() {
            "bool" => required(AttrKind::Bool),
            "int" => required(AttrKind::Int),
            "float" => required(AttrKind::Float),
            "str" => required(AttrKind::Str),
            "list" | "tuple" => required(AttrKind::List),
            other => return Err(refuse(format!("attribute `{name}` can't be of the class `{other}`"))),
        });
    }
    Ok(match attr_from_py(given)? {
        AttrValue::None => AttrField::new(name, AttrKind::Any, AttrDefault::None),
        AttrValue::Bool(b) => AttrField::new(name, AttrKind::Bool, AttrDefault::Bool(b)),
        AttrValue::Int(i) => AttrField::new(name, AttrKind::Int, AttrDefault::Int(i)),
        AttrValue::Float(f) => AttrField::new(name, AttrKind::Float, AttrDefault::Float(f.0)),
        AttrValue::Str(s) => AttrField::new(name, AttrKind::Str, AttrDefault::Str(leaked(s.to_string()))),
        v => match v.as_ints() {
            Some(ints) => AttrField::new(name, AttrKind::Ints, AttrDefault::Ints(Box::leak(ints.into_boxed_slice()))),
            None => return Err(refuse(format!("attribute `{name}` has a default that attributes can't have"))),
        },
    })
}

/// An operator as Python describes it: name, doc, inputs, attrs, infer, eval, flops, samples.
fn op(given: &Bound<'_, PyDict>) -> PyResult<PyOp> {
    let get = |name: &str| -> PyResult<Bound<'_, PyAny>> {
        given.get_item(name)?.ok_or_else(|| refuse(format!("the operator has no `{name}`")))
    };
    let inputs: Vec<String> = get("inputs")?.extract()?;
    let inputs: Vec<&'static str> = inputs.into_iter().map(leaked).collect();
    let attrs =
        get("attrs")?.cast::<PyDict>()?.iter().map(|(k, v)| field(k.extract()?, &v)).collect::<PyResult<Vec<_>>>()?;
    let attrs: &'static [AttrField] = Box::leak(attrs.into_boxed_slice());
    let name = |n: String| -> PyResult<&'static str> {
        let found = attrs.iter().find(|f| f.name == n);
        found.map(|f| f.name).ok_or_else(|| refuse(format!("a sample gives `{n}`, which is no attribute")))
    };
    let mut samples = Vec::new();
    for sample in get("samples")?.try_iter()? {
        let (args, given): (Bound<'_, PyTuple>, Bound<'_, PyDict>) = sample?.extract()?;
        samples.push(Sample {
            attrs: given.iter().map(|(k, v)| Ok((name(k.extract()?)?, attr_from_py(&v)?))).collect::<PyResult<_>>()?,
            args: args.iter().map(|t| type_from_py(&t)).collect::<PyResult<_>>()?,
        });
    }
    let flops = get("flops")?;
    Ok(PyOp {
        name: leaked(get("name")?.extract()?),
        doc: leaked(get("doc")?.extract()?),
        inputs: Box::leak(inputs.into_boxed_slice()),
        attrs,
        infer: get("infer")?.unbind(),
        eval: get("eval")?.unbind(),
        flops: (!flops.is_none()).then(|| flops.unbind()),
        samples,
    })
}

/// Registers a dialect for as long as the process lives.
#[pyfunction]
fn register(name: String, ops: Vec<Bound<'_, PyDict>>, rules: Vec<(String, String)>) -> PyResult<()> {
    if ops::dialects().iter().any(|d| d.name() == name) {
        return Err(refuse(format!("dialect `{name}` is already registered")));
    }
    let mut made = Dialect::new(leaked(name));
    for given in &ops {
        made = made.op(op(given)?);
    }
    for (file, text) in rules {
        made = made.rules(file, text);
    }
    dialect::register(made).map_err(|e| refused(&e))
}

/// The dialects that there are: names and the names of their operators.
#[pyfunction]
fn dialects() -> Vec<(&'static str, Vec<&'static str>)> {
    ops::dialects().iter().map(|d| (d.name(), d.ops().iter().map(|o| o.name()).collect())).collect()
}

/// What is known of an operator: (doc, inputs, attributes with what they take), or none where there is none of that name.
#[pyfunction]
fn describe(name: &str) -> Option<(&'static str, Vec<&'static str>, Vec<(&'static str, String)>)> {
    let op = ops::lookup(name)?.op();
    let attrs = op.attrs().iter().map(|f| (f.name, f.wanted())).collect();
    Some((op.doc(), op.inputs().to_vec(), attrs))
}

/// The names of all operators.
#[pyfunction]
fn operators() -> Vec<&'static str> {
    ops::all().into_iter().map(|o| o.op().name()).collect()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let dialects_ = PyModule::new(m.py(), "dialects")?;
    dialects_.add_function(wrap_pyfunction!(register, &dialects_)?)?;
    dialects_.add_function(wrap_pyfunction!(dialects, &dialects_)?)?;
    dialects_.add_function(wrap_pyfunction!(describe, &dialects_)?)?;
    dialects_.add_function(wrap_pyfunction!(operators, &dialects_)?)?;
    m.add_submodule(&dialects_)
}
