//! Options of LLVM that its C interface has for a whole process alone.
#![allow(unsafe_code)]

use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;

/// Loop strength reduction takes up to half of all time that LLVM needs for a kernel, and finds what [`super::moving`] has made: it stays out.
pub(super) fn set() {
    let words = [c"resat".as_ptr(), c"-disable-lsr".as_ptr()];
    // SAFETY: both words are strings that end with 0 and live as long as the program; without an overview, and called once, before LLVM makes any code.
    unsafe { LLVMParseCommandLineOptions(words.len() as i32, words.as_ptr(), std::ptr::null()) };
}
