//! The library, loaded when first asked for: its symbols, its version, its threads.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::OnceLock,
};

/// What the library calls `dnnl_status_t`: 0 is success.
pub(super) type Status = c_int;
/// A handle of the library: an engine, a stream, a memory, a primitive, or what describes one.
pub(super) type Handle = *mut c_void;
/// A memory descriptor as functions take it: of version 2 the address of a struct, of version 3 a handle.
pub(super) type MdPtr = *const c_void;

/// The most axes a tensor of the library has.
pub const MAX_RANK: usize = 12;
/// Extents, strides and such as the library takes them.
pub(super) type Dims = [i64; MAX_RANK];

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct ExecArg {
    pub(super) arg: c_int,
    pub(super) memory: Handle,
}

/// The head of `dnnl_version_t`, of both versions.
#[repr(C)]
struct RawVersion {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: u32,
}

/// `DNNL_RUNTIME_SEQ` and `DNNL_RUNTIME_OMP`: the builds whose number of threads can be said from outside.
const SEQUENTIAL: u32 = 1;
const OPEN_MP: u32 = 2;

/// `dnnl_cpu_isa_avx512_core`, and the bit that adds the int8 dot products that accumulate without saturation.
pub(super) const ISA_AVX512_CORE: c_int = 0x27;
pub(super) const ISA_AVX512_VNNI: c_int = 0x67;

/// Declares a struct of function pointers, each found under `dnnl_` and its name.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($arg:ty),* $(,)?) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }
        impl $table {
            fn load(library: &libloading::Library) -> Result<$table, String> {
                Ok($table { $($name: {
                    const SYMBOL: &str = concat!("dnnl_", stringify!($name));
                    // SAFETY: the types are those of the library's header for the version that was asked for before.
                    let found = unsafe { library.get(SYMBOL.as_bytes()) };
                    *found.map_err(|_| format!("it has no function `{SYMBOL}`"))?
                },)* })
            }
        }
    };
}

symbols! {
    /// What both versions have in the same form.
    Common {
        get_effective_cpu_isa() -> c_int;
        engine_create(*mut Handle, c_int, usize) -> Status;
        stream_create(*mut Handle, Handle, u32) -> Status;
        stream_wait(Handle) -> Status;
        stream_destroy(Handle) -> Status;
        memory_create(*mut Handle, MdPtr, Handle, *mut c_void) -> Status;
        memory_set_data_handle(Handle, *mut c_void) -> Status;
        memory_destroy(Handle) -> Status;
        memory_desc_get_size(MdPtr) -> usize;
        memory_desc_equal(MdPtr, MdPtr) -> c_int;
        memory_desc_permute_axes(*mut c_void, MdPtr, *const c_int) -> Status;
        memory_desc_reshape(*mut c_void, MdPtr, c_int, *const Dims) -> Status;
        primitive_desc_query(Handle, c_int, c_int, *mut c_void) -> Status;
        primitive_desc_query_md(Handle, c_int, c_int) -> MdPtr;
        primitive_desc_destroy(Handle) -> Status;
        primitive_create(*mut Handle, Handle) -> Status;
        primitive_execute(Handle, Handle, c_int, *const ExecArg) -> Status;
        primitive_destroy(Handle) -> Status;
        primitive_attr_create(*mut Handle) -> Status;
        primitive_attr_destroy(Handle) -> Status;
        primitive_attr_set_scratchpad_mode(Handle, c_int) -> Status;
        primitive_attr_set_post_ops(Handle, Handle) -> Status;
        post_ops_create(*mut Handle) -> Status;
        post_ops_destroy(Handle) -> Status;
        post_ops_append_binary(Handle, c_int, MdPtr) -> Status;
        reorder_primitive_desc_create(*mut Handle, MdPtr, Handle, MdPtr, Handle, Handle) -> Status;
    }
}

symbols! {
    /// Version 2: descriptions of operations are structs that are filled, and made into descriptions of primitives afterwards.
    V2 {
        memory_desc_init_by_strides(*mut c_void, c_int, *const Dims, c_int, *const Dims) -> Status;
        memory_desc_init_by_tag(*mut c_void, c_int, *const Dims, c_int, c_int) -> Status;
        primitive_desc_create(*mut Handle, *const c_void, Handle, Handle, Handle) -> Status;
        dilated_convolution_forward_desc_init(
            *mut c_void, c_int, c_int, MdPtr, MdPtr, MdPtr, MdPtr, *const Dims, *const Dims, *const Dims, *const Dims) -> Status;
        dilated_deconvolution_forward_desc_init(
            *mut c_void, c_int, c_int, MdPtr, MdPtr, MdPtr, MdPtr, *const Dims, *const Dims, *const Dims, *const Dims) -> Status;
        inner_product_forward_desc_init(*mut c_void, c_int, MdPtr, MdPtr, MdPtr, MdPtr) -> Status;
        matmul_desc_init(*mut c_void, MdPtr, MdPtr, MdPtr, MdPtr) -> Status;
        pooling_v2_forward_desc_init(
            *mut c_void, c_int, c_int, MdPtr, MdPtr, *const Dims, *const Dims, *const Dims, *const Dims, *const Dims) -> Status;
        eltwise_forward_desc_init(*mut c_void, c_int, c_int, MdPtr, f32, f32) -> Status;
        binary_desc_init(*mut c_void, c_int, MdPtr, MdPtr, MdPtr) -> Status;
        softmax_v2_forward_desc_init(*mut c_void, c_int, c_int, MdPtr, MdPtr, c_int) -> Status;
        concat_primitive_desc_create(*mut Handle, MdPtr, c_int, c_int, *const c_void, Handle, Handle) -> Status;
        post_ops_append_sum(Handle, f32) -> Status;
        post_ops_append_eltwise(Handle, f32, c_int, f32, f32) -> Status;
    }
}

symbols! {
    /// Version 3: descriptions of primitives are made at once, memory descriptors are handles.
    V3 {
        memory_desc_create_with_strides(*mut c_void, c_int, *const Dims, c_int, *const Dims) -> Status;
        memory_desc_create_with_tag(*mut c_void, c_int, *const Dims, c_int, c_int) -> Status;
        memory_desc_clone(*mut c_void, MdPtr) -> Status;
        memory_desc_destroy(Handle) -> Status;
        convolution_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, c_int, MdPtr, MdPtr, MdPtr, MdPtr,
            *const Dims, *const Dims, *const Dims, *const Dims, Handle) -> Status;
        deconvolution_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, c_int, MdPtr, MdPtr, MdPtr, MdPtr,
            *const Dims, *const Dims, *const Dims, *const Dims, Handle) -> Status;
        inner_product_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, MdPtr, MdPtr, MdPtr, MdPtr, Handle) -> Status;
        matmul_primitive_desc_create(*mut Handle, Handle, MdPtr, MdPtr, MdPtr, MdPtr, Handle) -> Status;
        pooling_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, c_int, MdPtr, MdPtr,
            *const Dims, *const Dims, *const Dims, *const Dims, *const Dims, Handle) -> Status;
        eltwise_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, c_int, MdPtr, MdPtr, f32, f32, Handle) -> Status;
        binary_primitive_desc_create(*mut Handle, Handle, c_int, MdPtr, MdPtr, MdPtr, Handle) -> Status;
        softmax_forward_primitive_desc_create(
            *mut Handle, Handle, c_int, c_int, MdPtr, MdPtr, c_int, Handle) -> Status;
        concat_primitive_desc_create(
            *mut Handle, Handle, MdPtr, c_int, c_int, *const MdPtr, Handle) -> Status;
        post_ops_append_sum(Handle, f32, i32, c_int) -> Status;
        post_ops_append_eltwise(Handle, c_int, f32, f32) -> Status;
    }
}

/// The functions whose form differs.
pub(super) enum Generation {
    V2(V2),
    V3(V3),
}

/// oneDNN, loaded.
pub struct Library {
    pub(super) common: Common,
    pub(super) generation: Generation,
    pub(super) engine: Engine,
    version: (i32, i32, i32),
    runtime: u32,
    set_threads: Option<unsafe extern "C" fn(c_int)>,
    get_threads: Option<unsafe extern "C" fn() -> c_int>,
    _library: libloading::Library,
}

/// The engine of this machine's processor; it lives as long as the process.
pub(super) struct Engine(pub(super) Handle);

// SAFETY: the library says that engines may be used by any number of threads at once.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

/// The names that the library has, newest first.
const NAMES: [&str; 3] = ["libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"];

/// The variable that names a library to take instead.
pub const LIBRARY_VARIABLE: &str = "RESAT_ONEDNN";

/// What oneDNN does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OneDnnError {
    /// There is no library of that name.
    #[error(
        "oneDNN is not installed ({names} can't be loaded): install Debian's package libdnnl2 (libdnnl3 where there is version 3), or name \
         the library in {LIBRARY_VARIABLE}"
    )]
    NotInstalled {
        /// The files that were looked for.
        names: String,
    },
    /// The library that was found is no use: of a version that is not known, or without an engine for this processor.
    #[error("oneDNN can't be used: {0}")]
    Unusable(String),
    /// A graph can't be planned: what of it the library does not do.
    #[error("{0}")]
    Plan(String),
    /// A planned graph did not run: what failed.
    #[error("{0}")]
    Run(String),
}

impl Library {
    /// The library of this machine, loaded once. `Err` says what was looked for and what to install.
    pub fn get() -> Result<&'static Library, OneDnnError> {
        static LOADED: OnceLock<Result<Library, OneDnnError>> = OnceLock::new();
        LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, OneDnnError> {
        let named = std::env::var(LIBRARY_VARIABLE).ok().filter(|n| !n.is_empty());
        let names: Vec<&str> = named.as_deref().map_or(NAMES.to_vec(), |n| vec![n]);
        // SAFETY: a library of that name is oneDNN, installed by whoever runs the machine, or named by the user.
        let open = |n: &&str| unsafe { libloading::Library::new(*n) }.ok();
        let Some(library) = names.iter().find_map(open) else {
            return Err(OneDnnError::NotInstalled { names: names.join(", ") });
        };
        Library::link(library).map_err(OneDnnError::Unusable)
    }

    fn link(library: libloading::Library) -> Result<Library, String> {
        // SAFETY: `dnnl_version` gives a pointer to a static struct, which begins with these fields since version 1.3.
        let version = unsafe {
            let get = library
                .get::<unsafe extern "C" fn() -> *const RawVersion>(b"dnnl_version")
                .map_err(|_| "it has no function `dnnl_version`".to_owned())?;
            &*get()
        };
        let numbers = (version.major, version.minor, version.patch);
        let generation = match numbers {
            (2, minor, _) if minor >= 6 => Generation::V2(V2::load(&library)?),
            (3, ..) => Generation::V3(V3::load(&library)?),
            (a, b, c) => return Err(format!("it is version {a}.{b}.{c}; 2.6 and later of 2, and 3, are known")),
        };
        let common = Common::load(&library)?;
        // SAFETY: functions of OpenMP, which the library is linked with where it says so; their types are OpenMP's.
        let (set_threads, get_threads) = unsafe {
            match version.cpu_runtime {
                OPEN_MP => (
                    library.get(b"omp_set_num_threads").ok().map(|f| *f),
                    library.get(b"omp_get_max_threads").ok().map(|f| *f),
                ),
                _ => (None, None),
            }
        };
        let mut engine = std::ptr::null_mut();
        const CPU: c_int = 1;
        // SAFETY: the result is written before success is returned.
        let status = unsafe { (common.engine_create)(&mut engine, CPU, 0) };
        if status != 0 {
            return Err(format!("it has no engine for this processor ({})", meaning(status)));
        }
        Ok(Library {
            common,
            generation,
            engine: Engine(engine),
            version: numbers,
            runtime: version.cpu_runtime,
            set_threads,
            get_threads,
            _library: library,
        })
    }

    /// Major, minor and patch.
    pub fn version(&self) -> (i32, i32, i32) {
        self.version
    }

    /// Whether it computes in bfloat16 on this machine.
    pub fn has_bf16(&self) -> bool {
        self.isa() & ISA_AVX512_CORE == ISA_AVX512_CORE
    }

    /// Whether its int8 dot products are exact on this machine: sums of pairs don't saturate.
    pub fn has_exact_bytes(&self) -> bool {
        self.isa() & ISA_AVX512_VNNI == ISA_AVX512_VNNI
    }

    fn isa(&self) -> c_int {
        // SAFETY: a function without arguments.
        unsafe { (self.common.get_effective_cpu_isa)() }
    }

    /// The number of threads that a call may use, where the library can be told: OpenMP's builds; those that know no threads have 1.
    /// Other builds (TBB) take as many as they like.
    pub(super) fn limit_threads(&self, wanted: usize) -> ThreadLimit {
        let (Some(set), Some(get)) = (self.set_threads, self.get_threads) else { return ThreadLimit(None) };
        // SAFETY: functions of OpenMP, which set and get a number of the calling thread.
        unsafe {
            let before = get();
            set(c_int::try_from(wanted.max(1)).unwrap_or(c_int::MAX));
            ThreadLimit(Some((set, before)))
        }
    }

    /// The number of threads that plans are made for where a caller has `threads`.
    pub(super) fn threads(&self, threads: usize) -> usize {
        match self.runtime {
            SEQUENTIAL => 1,
            _ => threads.max(1),
        }
    }
}

/// While it lives, the calling thread's parallel regions have that many threads.
pub(super) struct ThreadLimit(Option<(unsafe extern "C" fn(c_int), c_int)>);

impl Drop for ThreadLimit {
    fn drop(&mut self) {
        if let Some((set, before)) = self.0 {
            // SAFETY: a function of OpenMP, given what it had before.
            unsafe { set(before) }
        }
    }
}

/// What a status says.
pub(super) fn meaning(status: Status) -> String {
    match status {
        1 => "out of memory".into(),
        2 => "invalid arguments".into(),
        3 => "not implemented".into(),
        4 => "no further implementation".into(),
        5 => "runtime error".into(),
        6 => "not required".into(),
        other => format!("status {other}"),
    }
}

/// The name of an implementation, as the library tells it.
///
/// # Safety
/// `pd` is a live description of a primitive.
pub(super) unsafe fn implementation(library: &Library, pd: Handle) -> String {
    const IMPL_INFO: c_int = 8;
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the query writes a pointer to a string that lives as long as the description.
    unsafe {
        let status = (library.common.primitive_desc_query)(pd, IMPL_INFO, 0, (&raw mut text).cast());
        if status != 0 || text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (a, b, c) = self.version;
        write!(f, "oneDNN {a}.{b}.{c}")
    }
}
