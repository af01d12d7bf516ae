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

/// `resat_state` of exported headers.
#[repr(C)]
struct RawState {
    data: *mut c_void,
    spare: *mut c_void,
    capacity: *const i64,
    shape: *mut i64,
}

/// `resat_state_type` of exported headers.
#[repr(C)]
struct RawStateType {
    tensor: RawTensor,
    output: *const c_char,
    most: *const i64,
    spare: c_int,
}

type RawCall = unsafe extern "C" fn(*const *const c_void, *const *const i64, *mut *mut RawResults) -> c_int;

type RawStatefulCall =
    unsafe extern "C" fn(*const *const c_void, *const *const i64, *mut RawState, *mut *mut RawResults) -> c_int;

/// `resat_stateful_model` of exported headers.
#[repr(C)]
struct RawStatefulModel {
    name: *const c_char,
    input_count: u32,
    output_count: u32,
    state_count: u32,
    inputs: *const RawTensor,
    outputs: *const RawTensor,
    states: *const RawStateType,
    call: RawStatefulCall,
    release: unsafe extern "C" fn(*mut RawResults),
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
}

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

/// A library of a program whose extents, or whose results, are found out when it runs: what [`export_sized`](super::export::export_sized)
/// wrote. Any number of threads may run it at once.
pub struct LoadedSizedModel {
    name: String,
    inputs: Vec<PortType>,
    outputs: Vec<String>,
    states: Vec<StateType>,
    call: AnyCall,
    release: unsafe extern "C" fn(*mut RawResults),
    set_threads: unsafe extern "C" fn(c_int) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
    _library: libloading::Library,
}

/// What runs a library once.
enum AnyCall {
    Plain(RawCall),
    /// With state.
    Keeping(RawStatefulCall),
}

/// A state of a library: an input that is an output, too, which is kept from one run to the next.
#[derive(Clone, Debug)]
pub struct StateType {
    /// The input.
    pub port: PortType,
    /// Its name as an output.
    pub output: String,
    /// Extents that are room enough.
    pub most: Vec<usize>,
    /// Whether it needs a second memory, at some sizes at least.
    spare: bool,
}

impl LoadedSizedModel {
    /// Loads an exported library; none where it is one of known extents. Loading runs code of the library, so it must come from where the
    /// user trusts it.
    pub fn load(path: &Path) -> Result<Option<LoadedSizedModel>, LoadError> {
        let refuse = |reason: String| LoadError { library: path.display().to_string(), reason };
        let full = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
        // SAFETY: the user asked for this library to be run; `resat_sized_model_v1` and `resat_stateful_model_v1` are names that only exported
        // libraries have, and there they are of these types and point at a static description. What it points at lives while the library is
        // loaded.
        unsafe {
            let library = libloading::Library::new(&full).map_err(|e| refuse(e.to_string()))?;
            let sized = library.get::<unsafe extern "C" fn() -> *const RawSizedModel>(b"resat_sized_model_v1");
            if let Ok(describe) = sized.map(|f| *f) {
                let raw = &*describe();
                let inputs = (0..raw.input_count as usize).map(|i| port_type(&*raw.inputs.add(i)));
                let outputs = (0..raw.output_count as usize).map(|i| text((*raw.outputs.add(i)).name)).collect();
                return Ok(Some(LoadedSizedModel {
                    name: text(raw.name),
                    inputs: inputs.collect::<Result<_, _>>().map_err(refuse)?,
                    outputs,
                    states: Vec::new(),
                    call: AnyCall::Plain(raw.call),
                    release: raw.release,
                    set_threads: raw.set_threads,
                    error: raw.error,
                    _library: library,
                }));
            }
            let keeping = library.get::<unsafe extern "C" fn() -> *const RawStatefulModel>(b"resat_stateful_model_v1");
            let Ok(describe) = keeping.map(|f| *f) else { return Ok(None) };
            let raw = &*describe();
            let inputs = (0..raw.input_count as usize).map(|i| port_type(&*raw.inputs.add(i)));
            let outputs = (0..raw.output_count as usize).map(|i| text((*raw.outputs.add(i)).name)).collect();
            let state = |k: usize| -> Result<StateType, String> {
                let s = &*raw.states.add(k);
                let most = std::slice::from_raw_parts(s.most, s.tensor.rank as usize);
                let most =
                    most.iter().map(|&n| usize::try_from(n).map_err(|e| e.to_string())).collect::<Result<_, _>>()?;
                Ok(StateType { port: port_type(&s.tensor)?, output: text(s.output), most, spare: s.spare != 0 })
            };
            let states = (0..raw.state_count as usize).map(state);
            Ok(Some(LoadedSizedModel {
                name: text(raw.name),
                inputs: inputs.collect::<Result<_, _>>().map_err(refuse)?,
                outputs,
                states: states.collect::<Result<_, _>>().map_err(refuse)?,
                call: AnyCall::Keeping(raw.call),
                release: raw.release,
                set_threads: raw.set_threads,
                error: raw.error,
                _library: library,
            }))
        }
    }

    /// What it keeps from one run to the next.
    pub fn states(&self) -> &[StateType] {
        &self.states
    }

    /// Runs that keep its state, from its beginning on: zeros, with extents of 0 where they are unknown. Takes memory for the greatest that
    /// the library serves.
    pub fn stateful(&self) -> LoadedRuns<'_> {
        LoadedRuns { model: self, kept: self.states.iter().map(LoadedState::new).collect() }
    }

    /// Runs that go on with what earlier runs of this library have kept; from its beginning on where that is of another library.
    pub fn resumed(&self, kept: LoadedKept) -> LoadedRuns<'_> {
        let fits =
            |(s, ty): (&LoadedState, &StateType)| s.capacity.iter().map(|&n| n as usize).eq(ty.most.iter().copied());
        match kept.0.len() == self.states.len() && kept.0.iter().zip(&self.states).all(fits) {
            true => LoadedRuns { model: self, kept: kept.0 },
            false => self.stateful(),
        }
    }

    /// The inputs, in order, without state.
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

    /// Runs once. Refuses libraries that keep state: see [`LoadedSizedModel::stateful`].
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        match self.call {
            // SAFETY: what the library takes.
            AnyCall::Plain(call) => self.run_by(inputs, |read, shapes, results| unsafe { call(read, shapes, results) }),
            AnyCall::Keeping(_) => {
                let reason =
                    "the library keeps state from one run to the next, so that it can't be run once by itself".into();
                Err(RunError::Function { function: self.name.clone(), reason })
            }
        }
    }

    /// Runs once by a function of the library.
    fn run_by(
        &self,
        inputs: &[Tensor],
        call: impl FnOnce(*const *const c_void, *const *const i64, *mut *mut RawResults) -> c_int,
    ) -> Result<Vec<Tensor>, RunError> {
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
            if call(read.as_ptr(), shapes.as_ptr(), &mut results) != 0 {
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

/// Runs of a library one after another, each of which begins with the state that the last one left.
pub struct LoadedRuns<'a> {
    model: &'a LoadedSizedModel,
    kept: Vec<LoadedState>,
}

/// What runs of a library have kept, by itself.
#[derive(Debug)]
pub struct LoadedKept(Vec<LoadedState>);

/// What is kept, in memory that has room for the greatest.
#[derive(Debug)]
struct LoadedState {
    data: Block,
    spare: Option<Block>,
    capacity: Vec<i64>,
    shape: Vec<i64>,
}

impl LoadedState {
    fn new(ty: &StateType) -> LoadedState {
        let bytes = ty.most.iter().product::<usize>() * ty.port.dtype.bytes();
        let shape: Vec<i64> = ty.port.shape.iter().map(|n| n.unwrap_or(0) as i64).collect();
        let data = Block::new(bytes);
        let filled = shape.iter().product::<i64>() as usize * ty.port.dtype.bytes();
        // SAFETY: known extents are those of the greatest: so many bytes are within the block.
        unsafe { data.at(0).write_bytes(0, filled) };
        let capacity = ty.most.iter().map(|&n| n as i64).collect();
        LoadedState { data, spare: ty.spare.then(|| Block::new(bytes)), capacity, shape }
    }
}

impl LoadedRuns<'_> {
    /// What is kept, by itself: [`LoadedSizedModel::resumed`] goes on with it.
    pub fn into_kept(self) -> LoadedKept {
        LoadedKept(self.kept)
    }

    fn number(&self, input: &str) -> Option<usize> {
        self.model.states.iter().position(|s| s.port.name == input)
    }

    /// A copy of the state of that input; none where no such input is kept.
    pub fn get(&self, input: &str) -> Option<Tensor> {
        let k = self.number(input)?;
        let (ty, kept) = (&self.model.states[k].port, &self.kept[k]);
        let shape: Shape = kept.shape.iter().map(|&n| n as usize).collect();
        // SAFETY: the library says that the array has these extents, for which there is room, and has written or been given all of it.
        let bytes =
            unsafe { std::slice::from_raw_parts(kept.data.at(0), shape.iter().product::<usize>() * ty.dtype.bytes()) };
        Tensor::from_bytes(ty.dtype, &shape, bytes).ok()
    }

    /// Gives the state of an input. Refuses what does not fit its type, or what the library has no room for.
    pub fn set(&mut self, input: &str, value: &Tensor) -> Result<(), RunError> {
        let Some(number) = self.number(input) else {
            let reason = format!("there is no state `{input}`");
            return Err(RunError::Function { function: self.model.name.clone(), reason });
        };
        let (StateType { port, most, .. }, kept) = (&self.model.states[number], &mut self.kept[number]);
        let extents_fit =
            || port.shape.iter().zip(value.shape()).all(|(known, n)| known.is_none_or(|known| known == *n));
        let fits = port.dtype == value.dtype() && port.shape.len() == value.shape().len() && extents_fit();
        if !fits || value.shape().iter().zip(most).any(|(n, most)| n > most) {
            return Err(RunError::Type {
                what: "state",
                number,
                name: port.name.clone(),
                wanted: format!("{} of shape {most:?} at most", port.dtype),
                given: format!("{} of shape {:?}", value.dtype(), value.shape()),
            });
        }
        let bytes = value.bytes();
        // SAFETY: the block has room for the greatest extents, which these are not beyond; nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), kept.data.at(0), bytes.len()) };
        kept.shape = value.shape().iter().map(|&n| n as i64).collect();
        Ok(())
    }

    /// Runs once. Inputs and outputs are those that are not state, in order. Where the library refuses a run, the state is as it was.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        let AnyCall::Keeping(call) = self.model.call else { return self.model.run(inputs) };
        let raw = |s: &mut LoadedState| RawState {
            data: s.data.at(0).cast(),
            spare: s.spare.as_ref().map_or(std::ptr::null_mut(), |b| b.at(0).cast()),
            capacity: s.capacity.as_ptr(),
            shape: s.shape.as_mut_ptr(),
        };
        let mut states: Vec<RawState> = self.kept.iter_mut().map(raw).collect();
        let at = states.as_mut_ptr();
        // SAFETY: what the library takes, and as many states as it counts, each with the memory and the extents that it says of it.
        let done = self.model.run_by(inputs, |read, shapes, results| unsafe { call(read, shapes, at, results) });
        for (kept, raw) in self.kept.iter_mut().zip(&states) {
            if let (true, Some(spare)) = (raw.data != kept.data.at(0).cast(), &mut kept.spare) {
                std::mem::swap(&mut kept.data, spare);
            }
        }
        done
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
/// `t` has texts, and as many extents as it says.
unsafe fn port_type(t: &RawTensor) -> Result<PortType, String> {
    // SAFETY: as the caller promises.
    let (name, dtype, shape) =
        unsafe { (text(t.name), text(t.dtype), std::slice::from_raw_parts(t.shape, t.rank as usize)) };
    let dtype: DType = dtype.parse().map_err(|e| format!("{e}"))?;
    Ok(PortType { name, dtype, shape: shape.iter().map(|&n| usize::try_from(n).ok()).collect() })
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
