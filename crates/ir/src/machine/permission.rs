//! What the operating system has to be asked for.
#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Whether this process may use the processor's matrix registers (AMX). Linux wants to be asked, since it saves eight kilobytes more
/// for threads that use them; it is asked once, for all threads. Where it is another system that would have to be asked, the
/// answer is no.
pub fn matrix_registers_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(ask)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn ask() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of the kernel's interface.
    const REQUEST: libc::c_long = 0x1023;
    /// The component of a thread's state that holds the tiles.
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but what this process may do; kernels that don't know it say so.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn ask() -> bool {
    false
}
