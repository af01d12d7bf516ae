//! Types and attribute values, as Python sees them.

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use resat::{
    ir::{AttrValue, Attrs, Dim, Name, TensorType as Ty, Type},
    tensor::DType,
};

use crate::{call::refuse, tensor};

/// The type of a tensor: `shape`, a tuple of extents (None where one is not known before the program runs), and `dtype` by TVM's name.
#[pyclass(frozen, module = "resat", name = "TensorType", eq, hash, from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType(pub Ty);

#[pymethods]
impl TensorType {
    #[new]
    #[pyo3(signature = (shape, dtype = "float32"))]
    fn new(shape: Vec<Option<i64>>, dtype: &str) -> PyResult<TensorType> {
        let dims = shape.into_iter().map(|d| d.map_or(Dim::Any, Dim::Known));
        Ok(TensorType(Ty::of(dims, element(dtype)?)))
    }

    /// Extents, outermost first; None for one that is not known.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape.iter().map(|d| d.known()))
    }

    /// The elements' type, as "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    /// Number of axes.
    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    /// Size in memory, in bytes; None where an extent is not known.
    #[getter]
    fn nbytes(&self) -> Option<i64> {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Py<PyAny>, (Bound<'py, PyTuple>, &'static str))> {
        let class = py.get_type::<TensorType>().into_any().unbind();
        Ok((class, (self.shape(py)?, self.dtype())))
    }
}

/// The element type of that name.
pub fn element(name: &str) -> PyResult<DType> {
    name.parse().map_err(refuse)
}

/// A type: a `TensorType`, a tuple of types, or the text of any other one.
pub fn type_to_py(py: Python<'_>, ty: &Type) -> PyResult<Py<PyAny>> {
    Ok(match ty {
        Type::Tensor(t) => Bound::new(py, TensorType(t.clone()))?.into_any().unbind(),
        Type::Tuple(fields) => {
            let fields = fields.iter().map(|f| type_to_py(py, f)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, fields)?.into_any().unbind()
        }
        other => PyString::new(py, &other.to_string()).into_any().unbind(),
    })
}

/// The other way.
pub fn type_from_py(value: &Bound<'_, PyAny>) -> PyResult<Type> {
    if let Ok(t) = value.cast::<TensorType>() {
        return Ok(Type::Tensor(t.get().0.clone()));
    }
    if let Ok(fields) = value.cast::<PyTuple>() {
        return Ok(Type::tuple(fields.iter().map(|f| type_from_py(&f)).collect::<PyResult<Vec<_>>>()?));
    }
    Err(PyTypeError::new_err(format!("a TensorType or a tuple of types is wanted, not {}", value.get_type().name()?)))
}

/// An attribute's value.
pub fn attr_to_py(py: Python<'_>, value: &AttrValue) -> PyResult<Py<PyAny>> {
    let list = |items: &[AttrValue]| items.iter().map(|v| attr_to_py(py, v)).collect::<PyResult<Vec<_>>>();
    Ok(match value {
        AttrValue::None => py.None(),
        AttrValue::Bool(b) => PyBool::new(py, *b).to_owned().into_any().unbind(),
        AttrValue::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
        AttrValue::Float(f) => PyFloat::new(py, f.0).into_any().unbind(),
        AttrValue::Str(s) => PyString::new(py, s).into_any().unbind(),
        AttrValue::DType(d) => PyString::new(py, d.name()).into_any().unbind(),
        AttrValue::AnyDim => PyString::new(py, "?").into_any().unbind(),
        AttrValue::List(items) => PyTuple::new(py, list(items)?)?.into_any().unbind(),
        AttrValue::Dict(items) => {
            let dict = PyDict::new(py);
            for (name, value) in items.iter() {
                dict.set_item(name.as_str(), attr_to_py(py, value)?)?;
            }
            dict.into_any().unbind()
        }
        AttrValue::Tensor(t) => tensor::to_numpy(py, t.0.clone())?,
        AttrValue::Type(t) => type_to_py(py, t)?,
        AttrValue::Opaque(_, text) => PyString::new(py, text).into_any().unbind(),
    })
}

/// The other way; strings stay strings.
pub fn attr_from_py(value: &Bound<'_, PyAny>) -> PyResult<AttrValue> {
    let list = |items: Vec<Bound<'_, PyAny>>| -> PyResult<AttrValue> {
        Ok(AttrValue::List(items.iter().map(attr_from_py).collect::<PyResult<Vec<_>>>()?.into()))
    };
    if value.is_none() {
        return Ok(AttrValue::None);
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(value.extract::<bool>()?.into());
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(value.extract::<i64>()?.into());
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(value.extract::<f64>()?.into());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.as_ref().into());
    }
    if let Ok(items) = value.cast::<PyList>() {
        return list(items.iter().collect());
    }
    if let Ok(items) = value.cast::<PyTuple>() {
        return list(items.iter().collect());
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let items = dict.iter().map(|(k, v)| Ok((Name::from(k.extract::<String>()?), attr_from_py(&v)?)));
        return Ok(AttrValue::Dict(items.collect::<PyResult<Vec<_>>>()?.into()));
    }
    if let Ok(t) = value.cast::<TensorType>() {
        return Ok(AttrValue::Type(Type::Tensor(t.get().0.clone())));
    }
    Ok(tensor::copied(value, None)?.into())
}

/// A record as a dict.
pub fn attrs_to_py<'py>(py: Python<'py>, attrs: &Attrs) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in attrs.iter() {
        dict.set_item(name.as_str(), attr_to_py(py, value)?)?;
    }
    Ok(dict)
}
