//! How compiled code is called.
//!
//! A kernel is a C function `void kernel(const ResatCtx *ctx, void *const *args, void *workspace)`. `args` holds one pointer
//! per input and output of the kernel, at the numbers that [`Space`](crate::loops::Space) gives; each is aligned to
//! [`ALIGN`] bytes and points at as many bytes as the buffer has. Outputs overlap nothing, but that one may
//! take the place of an input where [`Kernel::in_place`](crate::loops::Kernel::in_place) says so. `workspace` is aligned likewise and as large as
//! [`Kernel::workspace`](crate::loops::Kernel::workspace) says; its contents mean nothing between calls. Kernels keep no
//! state, so one kernel may run in several threads at once, on different memory.
//!
//! Functions of external compilers are called the same way.

use std::ffi::c_void;

/// Alignment of every pointer that a kernel gets, in bytes.
pub const ALIGN: usize = crate::loops::BUFFER_ALIGN as usize;

/// The body of a parallel loop: runs the iterations from `begin` to before `end`.
pub type ParallelBody = unsafe extern "C" fn(env: *mut u8, begin: i64, end: i64);

/// A compiled kernel.
pub type KernelFn = unsafe extern "C" fn(ctx: *const ResatCtx, args: *const *mut u8, workspace: *mut u8);

/// What a kernel may ask of the runtime. Its layout is that of the C struct of the same name in exported headers.
#[repr(C)]
#[derive(Debug)]
pub struct ResatCtx {
    /// Runs `body(env, begin, end)` on ranges that make up `0..n`, on any threads in any order, and returns when all are
    /// done. Not to be called from within a body.
    pub parallel_for: unsafe extern "C" fn(ctx: *const ResatCtx, body: ParallelBody, env: *mut u8, n: i64),
    /// The thread pool; only `parallel_for` looks at it.
    pub pool: *const c_void,
    /// The number of threads that may work at once, at least 1. A kernel may skip `parallel_for` where it is 1.
    pub threads: i64,
}

/// `parallel_for` where there is one thread.
unsafe extern "C" fn in_caller(_: *const ResatCtx, body: ParallelBody, env: *mut u8, n: i64) {
    if n > 0 {
        // SAFETY: `body` and `env` belong together, as whoever calls `parallel_for` promises.
        unsafe { body(env, 0, n) }
    }
}

impl ResatCtx {
    /// A context without other threads.
    pub fn single() -> ResatCtx {
        ResatCtx { parallel_for: in_caller, pool: std::ptr::null(), threads: 1 }
    }
}
