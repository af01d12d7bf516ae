//! Options of LLVM that its C interface has for a whole process alone.
#![allow(unsafe_code)]

use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;

/// Turns loop strength reduction (LSR) off: [`super::moving`] makes the induction variables that it would.
pub(super) fn set() {
    let words = [c"resat".as_ptr(), c"-disable-lsr".as_ptr()];
    // SAFETY: both words are strings that end with 0 and live as long as the program; without an overview, and called once, before LLVM makes any code.
    unsafe { LLVMParseCommandLineOptions(words.len() as i32, words.as_ptr(), std::ptr::null()) };
}
