//! Exported libraries, loaded back.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    path::Path,
    sync::{Mutex, PoisonError},
};

use super::{
    code::LoadError,
    executable::{RunError, fits},
    export::PortType,
    memory::Block,
    program::Port,
};
use crate::tensor::{DType, Shape, Tensor};

/// `RESAT_FAILED` of exported headers.
const FAILED: c_int = 4;

/// `resat_tensor` of exported headers.
#[repr(C)]
struct RawTensor {
    name: *const c_char,
    dtype: *const c_char,
    rank: u32,
    shape: *const i64,
    bytes: u64,
}

/// `resat_model` of exported headers.
#[repr(C)]
struct RawModel {
    name: *const c_char,
    input_count: u32,
    output_count: u32,
    inputs: *const RawTensor,
    outputs: *const RawTensor,
    workspace_bytes: u64,
    run: unsafe extern "C" fn(*const *const c_void, *const *mut c_void, *mut c_void) -> c_int,
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
}

/// A library that [`export_library`](super::export::export_library) wrote. Any number of threads may run it at once.
pub struct LoadedModel {
    name: String,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    workspace_bytes: usize,
    run: unsafe extern "C" fn(*const *const c_void, *const *mut c_void, *mut c_void) -> c_int,
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
    /// What was wrong in the calling thread's last run.
    error: Option<unsafe extern "C" fn() -> *const c_char>,
    idle: Mutex<Vec<Block>>,
    _library: libloading::Library,
}

impl LoadedModel {
    /// Loads an exported library. Loading runs code of the library, so it must come from where the user trusts it.
    pub fn load(path: &Path) -> Result<LoadedModel, LoadError> {
        let refuse = |reason: String| LoadError { library: path.display().to_string(), reason };
        // A path without a slash would be looked for in the system's folders.
        let full = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
        // SAFETY: the user asked for this library to be run; `resat_model_v1` is a name that only exported libraries have, and
        // there it is of this type and points at a static description. What it points at lives while the library is loaded.
        unsafe {
            let library = libloading::Library::new(&full).map_err(|e| refuse(e.to_string()))?;
            let describe = library
                .get::<unsafe extern "C" fn() -> *const RawModel>(b"resat_model_v1")
                .map_err(|_| refuse("it is not a library that resat has exported".to_owned()))?;
            let raw = &*describe();
            let inputs = ports(raw.inputs, raw.input_count).map_err(refuse)?;
            let outputs = ports(raw.outputs, raw.output_count).map_err(refuse)?;
            let error = library.get(b"resat_error_v1").ok().map(|f| *f);
            Ok(LoadedModel {
                name: text(raw.name),
                inputs,
                outputs,
                workspace_bytes: raw.workspace_bytes as usize,
                run: raw.run,
                set_threads: raw.set_threads,
                error,
                idle: Mutex::new(Vec::new()),
                _library: library,
            })
        }
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Sets how many threads share the work of runs to come, the caller counted; false where the system gives fewer.
    pub fn set_threads(&self, threads: usize) -> bool {
        let threads = c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: a function of the library's interface, which takes any number.
        unsafe { (self.set_threads)(threads) == 0 }
    }

    /// Runs once. Inputs and outputs are in the order of [`LoadedModel::inputs`] and [`LoadedModel::outputs`].
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        let mut outputs: Vec<Tensor> = self.outputs.iter().map(|p| Tensor::zeros(p.dtype, &p.shape)).collect();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// Runs once, into tensors that the caller has made.
    pub fn run_into(&self, inputs: &[Tensor], outputs: &mut [Tensor]) -> Result<(), RunError> {
        fits("input", self.inputs.iter(), inputs, |_| false)?;
        fits("output", self.outputs.iter(), outputs, |_| false)?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let workspace = idle.unwrap_or_else(|| Block::new(self.workspace_bytes));
        // An array without elements has no address of its own; the library wants an aligned one.
        let nowhere = workspace.at(0);
        let read: Vec<*const c_void> = inputs
            .iter()
            .map(|t| if t.is_empty() { nowhere.cast_const() } else { t.bytes().as_ptr() }.cast())
            .collect();
        let written: Vec<*mut c_void> = outputs
            .iter_mut()
            .map(|t| if t.is_empty() { nowhere } else { t.bytes_mut().as_mut_ptr() }.cast())
            .collect();
        // SAFETY: as many pointers as the library counts, each to memory of the size that it states, aligned as all tensors are.
        let code = unsafe { (self.run)(read.as_ptr(), written.as_ptr(), workspace.at(0).cast()) };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        match (code, self.error) {
            (0, _) => Ok(()),
            (FAILED, Some(error)) => {
                // SAFETY: a function of the library's interface; this thread's last run failed, so that there is a text, which
                // lives until its next.
                let why = unsafe { text(error()) };
                Err(RunError::Function { function: self.name.clone(), reason: why })
            }
            _ => Err(RunError::Library(code)),
        }
    }
}

/// `resat_array` of exported headers.
#[repr(C)]
struct RawArray {
    dtype: *const c_char,
    rank: u32,
    shape: *const i64,
    bytes: u64,
    data: *const c_void,
}

/// `resat_results` of exported headers.
#[repr(C)]
struct RawResults {
    count: u32,
    arrays: *const RawArray,
}

type RawCall = unsafe extern "C" fn(*const *const c_void, *const *const i64, *mut *mut RawResults) -> c_int;

/// `resat_sized_model` of exported headers.
#[repr(C)]
struct RawSizedModel {
    name: *const c_char,
    input_count: u32,
    output_count: u32,
    inputs: *const RawTensor,
    outputs: *const RawTensor,
    call: RawCall,
    release: unsafe extern "C" fn(*mut RawResults),
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
}

/// An exported library of either kind.
pub enum LoadedLibrary {
    /// Of known extents.
    Known(LoadedModel),
    /// Of extents that are found out when it runs.
    Sized(LoadedSizedModel),
}

impl LoadedLibrary {
    /// Loads an exported library. Loading runs code of the library, so it must come from where the user trusts it.
    pub fn load(path: &Path) -> Result<LoadedLibrary, LoadError> {
        match LoadedSizedModel::load(path)? {
            Some(model) => Ok(LoadedLibrary::Sized(model)),
            None => Ok(LoadedLibrary::Known(LoadedModel::load(path)?)),
        }
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        match self {
            LoadedLibrary::Known(m) => m.name(),
            LoadedLibrary::Sized(m) => &m.name,
        }
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> Vec<PortType> {
        let port = |p: &Port| PortType {
            name: p.name.to_string(),
            dtype: p.dtype,
            shape: p.shape.iter().map(|&n| Some(n)).collect(),
        };
        match self {
            LoadedLibrary::Known(m) => m.inputs().iter().map(port).collect(),
            LoadedLibrary::Sized(m) => m.inputs.clone(),
        }
    }

    /// The names of the outputs, where it is known how many there are.
    pub fn outputs(&self) -> Vec<String> {
        match self {
            LoadedLibrary::Known(m) => m.outputs().iter().map(|p| p.name.to_string()).collect(),
            LoadedLibrary::Sized(m) => m.outputs.clone(),
        }
    }

    /// Sets how many threads share the work of runs to come, the caller counted; false where the system gives fewer.
    pub fn set_threads(&self, threads: usize) -> bool {
        match self {
            LoadedLibrary::Known(m) => m.set_threads(threads),
            LoadedLibrary::Sized(m) => m.set_threads(threads),
        }
    }

    /// Runs once.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        match self {
            LoadedLibrary::Known(m) => m.run(inputs),
            LoadedLibrary::Sized(m) => m.run(inputs),
        }
    }
}

/// A library of a program whose extents, or whose results, are found out when it runs: what [`export_sized`](super::export::export_sized) and
/// [`export_machine`](super::export::export_machine) wrote. Any number of threads may run it at once.
pub struct LoadedSizedModel {
    name: String,
    inputs: Vec<PortType>,
    outputs: Vec<String>,
    call: RawCall,
    release: unsafe extern "C" fn(*mut RawResults),
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
    _library: libloading::Library,
}

impl LoadedSizedModel {
    /// Loads an exported library; none where it is one of known extents. Loading runs code of the library, so it must come from where the
    /// user trusts it.
    pub fn load(path: &Path) -> Result<Option<LoadedSizedModel>, LoadError> {
        let refuse = |reason: String| LoadError { library: path.display().to_string(), reason };
        let full = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
        // SAFETY: the user asked for this library to be run; `resat_sized_model_v1` is a name that only exported libraries have, and
        // there it is of this type and points at a static description. What it points at lives while the library is loaded.
        unsafe {
            let library = libloading::Library::new(&full).map_err(|e| refuse(e.to_string()))?;
            let describe = library.get::<unsafe extern "C" fn() -> *const RawSizedModel>(b"resat_sized_model_v1");
            let Ok(describe) = describe.map(|f| *f) else { return Ok(None) };
            let raw = &*describe();
            let input = |i| {
                let t = &*raw.inputs.add(i);
                let dtype: DType = text(t.dtype).parse().map_err(|e| refuse(format!("{e}")))?;
                let shape = std::slice::from_raw_parts(t.shape, t.rank as usize);
                let shape = shape.iter().map(|&n| usize::try_from(n).ok()).collect();
                Ok(PortType { name: text(t.name), dtype, shape })
            };
            let inputs = (0..raw.input_count as usize).map(input).collect::<Result<_, _>>()?;
            let outputs = (0..raw.output_count as usize).map(|i| text((*raw.outputs.add(i)).name)).collect();
            Ok(Some(LoadedSizedModel {
                name: text(raw.name),
                inputs,
                outputs,
                call: raw.call,
                release: raw.release,
                set_threads: raw.set_threads,
                error: raw.error,
                _library: library,
            }))
        }
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[PortType] {
        &self.inputs
    }

    /// The names of the outputs, where it is known how many there are.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Sets how many threads share the work of runs to come, the caller counted; false where the system gives fewer.
    pub fn set_threads(&self, threads: usize) -> bool {
        let threads = c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: a function of the library's interface, which takes any number.
        unsafe { (self.set_threads)(threads) == 0 }
    }

    /// Runs once.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        if inputs.len() != self.inputs.len() {
            return Err(RunError::Count { what: "input", wanted: self.inputs.len(), given: inputs.len() });
        }
        for (number, (p, t)) in self.inputs.iter().zip(inputs).enumerate() {
            if p.dtype != t.dtype() || p.shape.len() != t.shape().len() {
                return Err(RunError::Type {
                    what: "input",
                    number,
                    name: p.name.clone(),
                    wanted: format!("{} of {} axes", p.dtype, p.shape.len()),
                    given: format!("{} of shape {:?}", t.dtype(), t.shape()),
                });
            }
        }
        let nowhere = Block::new(1);
        let read: Vec<*const c_void> = inputs
            .iter()
            .map(|t| if t.is_empty() { nowhere.at(0).cast_const() } else { t.bytes().as_ptr() }.cast())
            .collect();
        let shapes: Vec<Vec<i64>> = inputs.iter().map(|t| t.shape().iter().map(|&n| n as i64).collect()).collect();
        let shapes: Vec<*const i64> = shapes.iter().map(|s| s.as_ptr()).collect();
        let mut results: *mut RawResults = std::ptr::null_mut();
        // SAFETY: as many pointers as the library counts, to arrays of the types and ranks that it states, aligned as all tensors are, and
        // to their extents. What it gives is described by itself, and freed once it is copied.
        unsafe {
            if (self.call)(read.as_ptr(), shapes.as_ptr(), &mut results) != 0 {
                return Err(RunError::Function { function: self.name.clone(), reason: text((self.error)()) });
            }
            let raw = &*results;
            let tensor = |i: usize| {
                let a = &*raw.arrays.add(i);
                let shape: Shape = (0..a.rank as usize).map(|axis| *a.shape.add(axis) as usize).collect();
                let bytes = std::slice::from_raw_parts(a.data.cast::<u8>(), a.bytes as usize);
                let dtype = text(a.dtype).parse::<DType>().ok()?;
                Tensor::from_bytes(dtype, &shape, bytes).ok()
            };
            let found: Option<Vec<Tensor>> = (0..raw.count as usize).map(tensor).collect();
            (self.release)(results);
            found.ok_or_else(|| RunError::Function {
                function: self.name.clone(),
                reason: "its description of the results contradicts itself".into(),
            })
        }
    }
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedModel({}, {:?} -> {:?})", self.name, self.inputs, self.outputs)
    }
}

/// # Safety
/// `s` points at a C string.
unsafe fn text(s: *const c_char) -> String {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// # Safety
/// `raw` points at `count` descriptions.
unsafe fn ports(raw: *const RawTensor, count: u32) -> Result<Vec<Port>, String> {
    let port = |i| {
        // SAFETY: as the caller promises; `shape` has `rank` extents.
        let (name, dtype, shape, bytes) = unsafe {
            let t = &*raw.add(i);
            (text(t.name), text(t.dtype), std::slice::from_raw_parts(t.shape, t.rank as usize), t.bytes)
        };
        let dtype: DType = dtype.parse().map_err(|e| format!("{e}"))?;
        let shape: Shape = shape.iter().map(|&d| d as usize).collect();
        let port = Port { name: name.into(), dtype, shape, alias: None };
        match port.bytes() as u64 == bytes {
            true => Ok(port),
            false => Err(format!("its description of `{}` contradicts itself", port.name)),
        }
    };
    (0..count as usize).map(port).collect()
}
