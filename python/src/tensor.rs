//! Tensors and arrays: memory of resat's as Python's, and the other way, without copies where it is aligned.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::PyBufferError,
    ffi,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyString, PyTuple},
};
use resat::{
    ir::Type,
    tensor::{self as rt, DType},
};

use crate::{
    call::{Failure, guarded, refuse, refused},
    values::element,
};

/// Memory of resat's on a boundary of 64 bytes, row-major. It is a buffer, which NumPy takes without a copy.
#[pyclass(frozen, module = "resat", name = "Tensor")]
pub struct Tensor {
    /// Nobody else has it: whoever wants the content elsewhere copies, so that what is written from Python changes nothing but this.
    _own: rt::Tensor,
    data: *mut u8,
    dtype: DType,
    shape: Box<[isize]>,
    strides: Box<[isize]>,
    bytes: isize,
}

// SAFETY: after `of`, the tensor is only read from (its description) and dropped; its bytes are Python's to write, under Python's rules for
// buffers, through `data`.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

/// What the buffer protocol calls an element type. It has no bfloat16: those are shown as their bits.
fn format(dtype: DType) -> &'static std::ffi::CStr {
    match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 | DType::BF16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
    }
}

impl Tensor {
    /// A tensor that is Python's from now on; copied where somebody else has it as well.
    pub fn of(mut tensor: rt::Tensor) -> Tensor {
        let data = tensor.bytes_mut().as_mut_ptr();
        let dtype = tensor.dtype();
        let shape: Box<[isize]> = tensor.shape().iter().map(|&n| n as isize).collect();
        let mut strides = vec![dtype.bytes() as isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1);
        }
        let bytes = tensor.bytes().len() as isize;
        Tensor { _own: tensor, data, dtype, shape, strides: strides.into(), bytes }
    }
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (shape, dtype = "float32"))]
    fn new(shape: Vec<usize>, dtype: &str) -> PyResult<Tensor> {
        let dtype = element(dtype)?;
        guarded(|| {
            let made = rt::within_memory(|| rt::Tensor::zeros(dtype, &shape));
            Ok(Tensor::of(made.map_err(|e| Failure::Other(e.to_string()))?))
        })
    }

    /// Extents, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    /// The element type by TVM's name, as "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The address of the first element.
    #[getter]
    fn address(&self) -> usize {
        self.data as usize
    }

    fn __repr__(&self) -> String {
        format!("Tensor(shape={:?}, dtype={})", self.shape, self.dtype)
    }

    /// The buffer protocol: shape and strides in bytes.
    ///
    /// # Safety
    /// Python calls it with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, _flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let t = slf.get();
        let (shape, strides) = (t.shape.as_ptr().cast_mut(), t.strides.as_ptr().cast_mut());
        // SAFETY: the view is Python's, and valid until it is released; it keeps this object alive, whose memory neither moves nor goes before.
        unsafe {
            (*view).buf = t.data.cast::<c_void>();
            (*view).len = t.bytes;
            (*view).readonly = 0;
            (*view).itemsize = t.dtype.bytes() as isize;
            (*view).format = format(t.dtype).as_ptr().cast_mut();
            (*view).ndim = t.shape.len() as c_int;
            (*view).shape = shape;
            (*view).strides = strides;
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// As a NumPy array over the same memory.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__(slf: Bound<'_, Self>, dtype: Option<Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let array = over(slf)?;
        let array = match dtype {
            Some(dtype) => array.bind(py).call_method1("astype", (dtype,))?.unbind(),
            None => array,
        };
        match copy {
            Some(true) => Ok(array.bind(py).call_method0("copy")?.unbind()),
            _ => Ok(array),
        }
    }

    /// As DLPack, through NumPy: memory of this processor, for torch, JAX and others.
    #[pyo3(signature = (**options))]
    fn __dlpack__(slf: Bound<'_, Self>, options: Option<Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        Ok(over(slf)?.bind(py).call_method("__dlpack__", (), options.as_ref())?.unbind())
    }

    /// The processor's memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }
}

/// The NumPy array over a tensor's memory.
fn over(tensor: Bound<'_, Tensor>) -> PyResult<Py<PyAny>> {
    static NDARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tensor.py();
    let ndarray = NDARRAY.get_or_try_init(py, || PyResult::Ok(py.import("numpy")?.getattr("ndarray")?.unbind()))?;
    let t = tensor.get();
    let (shape, dtype) = (t.shape(py)?, numpy_dtype(py, t.dtype)?);
    // An array without elements needs no memory, which a buffer of none has not.
    if t.bytes == 0 {
        return Ok(ndarray.bind(py).call1((shape, dtype))?.unbind());
    }
    Ok(ndarray.bind(py).call1((shape, dtype, tensor))?.unbind())
}

/// NumPy's dtype; bfloat16 is that of ml_dtypes.
fn numpy_dtype<'py>(py: Python<'py>, dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    static DTYPES: [PyOnceLock<Py<PyAny>>; DType::ALL.len()] = [const { PyOnceLock::new() }; DType::ALL.len()];
    let known = &DTYPES[DType::ALL.iter().position(|d| *d == dtype).unwrap_or(0)];
    let made = || -> PyResult<Py<PyAny>> {
        let numpy = py.import("numpy")?;
        let of = match dtype {
            DType::BF16 => py.import("ml_dtypes")?.getattr("bfloat16")?,
            d => PyString::new(py, d.name()).into_any(),
        };
        Ok(numpy.getattr("dtype")?.call1((of,))?.unbind())
    };
    Ok(known.get_or_try_init(py, made)?.bind(py).clone())
}

/// A NumPy array of a tensor's content, over its own memory where nobody else has it.
pub fn to_numpy(py: Python<'_>, tensor: rt::Tensor) -> PyResult<Py<PyAny>> {
    over(Bound::new(py, Tensor::of(tensor))?)
}

/// Memory of Python's that is borrowed.
struct Borrowed(PyUntypedBuffer);

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        let len = self.0.len_bytes();
        if len == 0 {
            return &[];
        }
        // SAFETY: Python keeps the memory of a buffer that is not released yet. Whoever writes it meanwhile from another thread races with a
        // program's inputs, as with every library that takes arrays; the documentation says so.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), len) }
    }
}

/// The element type of a buffer's format, where it is one of resat's in this machine's byte order.
fn of_format(format: &std::ffi::CStr, size: usize) -> Option<DType> {
    let text = format.to_bytes();
    let text = text.strip_prefix(b"<").or(text.strip_prefix(b"=")).or(text.strip_prefix(b"@")).unwrap_or(text);
    Some(match (text, size) {
        (b"?", 1) => DType::Bool,
        (b"e", 2) => DType::F16,
        (b"f", 4) => DType::F32,
        (b"d", 8) => DType::F64,
        (b"b", 1) => DType::I8,
        (b"B", 1) => DType::U8,
        (b"h", 2) => DType::I16,
        (b"H", 2) => DType::U16,
        (b"i" | b"l", 4) => DType::I32,
        (b"I" | b"L", 4) => DType::U32,
        (b"l" | b"q", 8) => DType::I64,
        (b"L" | b"Q", 8) => DType::U64,
        _ => return None,
    })
}

/// An object's memory as a tensor, where its buffer is dense, row-major and of an element type of resat's: borrowed where it is aligned and
/// `borrow` allows it, else copied.
fn of_buffer(value: &Bound<'_, PyAny>, borrow: bool) -> PyResult<Option<rt::Tensor>> {
    let Ok(buffer) = PyUntypedBuffer::get(value) else { return Ok(None) };
    if !buffer.is_c_contiguous() {
        return Ok(None);
    }
    let Some(dtype) = of_format(buffer.format(), buffer.item_size()) else { return Ok(None) };
    let shape: rt::Shape = buffer.shape().iter().copied().collect();
    let held = Borrowed(buffer);
    let made = match borrow {
        true => rt::Tensor::from_part(dtype, &shape, Arc::new(held), 0),
        false => rt::Tensor::from_bytes(dtype, &shape, held.as_ref()),
    };
    made.map(Some).map_err(refuse)
}

/// What an array-like object holds. Objects without a buffer (torch's and JAX's tensors, lists, numbers) go through NumPy: by DLPack where
/// they have it. A wanted element type changes integers and floats that Python itself does not tell apart by width (numbers and lists).
fn any(value: &Bound<'_, PyAny>, wanted: Option<DType>, borrow: bool) -> PyResult<rt::Tensor> {
    if let Some(found) = of_buffer(value, borrow)? {
        // The bits of bfloat16 are what the buffer protocol has for it.
        return Ok(match value.cast::<Tensor>() {
            Ok(t) if t.get().dtype != found.dtype() => found.reinterpreted(t.get().dtype),
            _ => found,
        });
    }
    let py = value.py();
    let helper = py.import("resat._arrays")?.getattr("plain")?;
    let (array, dtype, shape): (Bound<'_, PyAny>, String, Vec<usize>) =
        helper.call1((value, wanted.map(DType::name)))?.extract()?;
    let dtype = element(&dtype)?;
    let found = of_buffer(&array, borrow)?.ok_or_else(|| refuse(format!("an array of {dtype} can't be read")))?;
    Ok(found.reinterpreted(dtype).reshaped(&shape))
}

/// A tensor for the length of a call, over the object's own memory where it is aligned.
pub fn borrowed(value: &Bound<'_, PyAny>, wanted: Option<DType>) -> PyResult<rt::Tensor> {
    any(value, wanted, true)
}

/// A tensor of its own: for constants, which nobody may change.
pub fn copied(value: &Bound<'_, PyAny>, wanted: Option<DType>) -> PyResult<rt::Tensor> {
    any(value, wanted, false)
}

/// Named arrays, copied.
pub fn named(values: &Bound<'_, PyDict>) -> PyResult<Vec<(resat::ir::Name, rt::Tensor)>> {
    values.iter().map(|(k, v)| Ok((k.extract::<String>()?.into(), copied(&v, None)?))).collect()
}

/// A value of the interpreter's: a tensor, or a tuple of such.
pub fn value_to_py(py: Python<'_>, value: &rt::Value) -> PyResult<Py<PyAny>> {
    match value {
        rt::Value::Tensor(t) => to_numpy(py, t.clone()),
        rt::Value::Tuple(fields) => {
            let fields = fields.iter().map(|f| value_to_py(py, f)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, fields)?.into_any().unbind())
        }
    }
}

/// The other way; tuples are tuples. Python's own numbers and lists take the element type of the wanted type.
pub fn value_from_py(value: &Bound<'_, PyAny>, wanted: Option<&Type>) -> PyResult<rt::Value> {
    match value.cast::<PyTuple>() {
        Ok(fields) => {
            let types = wanted.and_then(Type::as_tuple);
            let fields = fields.iter().enumerate().map(|(i, f)| value_from_py(&f, types.and_then(|t| t.get(i))));
            Ok(rt::Value::Tuple(fields.collect::<PyResult<_>>()?))
        }
        Err(_) => Ok(rt::Value::Tensor(copied(value, wanted.and_then(Type::as_tensor).map(|t| t.dtype))?)),
    }
}

/// Columns of numbers as NumPy arrays.
pub fn column<T: rt::Element>(py: Python<'_>, values: &[T]) -> PyResult<Py<PyAny>> {
    to_numpy(py, rt::Tensor::from_slice(&[values.len()], values))
}

/// Reads a file of named arrays.
pub fn read_params(path: &str) -> PyResult<Vec<(resat::ir::Name, rt::Tensor)>> {
    resat::driver::load_params(std::path::Path::new(path)).map_err(|e| refused(&e))
}
