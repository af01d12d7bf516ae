//! Object code made callable in this process.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_char},
    ptr,
};

use inkwell::llvm_sys::{
    core::LLVMCreateMemoryBufferWithMemoryRangeCopy,
    error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage},
    orc2::{
        LLVMJITEvaluatedSymbol, LLVMJITSymbolFlags, LLVMJITSymbolGenericFlags, LLVMOrcAbsoluteSymbols,
        LLVMOrcCSymbolMapPair, LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess, LLVMOrcJITDylibAddGenerator,
        LLVMOrcJITDylibDefine,
        lljit::{
            LLVMOrcCreateLLJIT, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddObjectFile, LLVMOrcLLJITGetGlobalPrefix,
            LLVMOrcLLJITGetMainJITDylib, LLVMOrcLLJITLookup, LLVMOrcLLJITMangleAndIntern, LLVMOrcLLJITRef,
        },
    },
};

use super::{CodegenError, ObjectCode, compile, emulated};
use crate::runtime::{CompiledCode, abi::KernelFn};

/// Object code that was linked into this process; its functions live as long as it does.
pub struct JitLibrary {
    jit: LLVMOrcLLJITRef,
    functions: HashMap<String, KernelFn>,
}

// SAFETY: after construction the library is only read (function addresses) until it is dropped.
unsafe impl Send for JitLibrary {}
// SAFETY: as above.
unsafe impl Sync for JitLibrary {}

fn check(error: LLVMErrorRef) -> Result<(), CodegenError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is consumed by taking its message, which is disposed of once.
    let text = unsafe {
        let message = LLVMGetErrorMessage(error);
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(message);
        text
    };
    Err(CodegenError::Llvm(text))
}

impl JitLibrary {
    /// Links object code made for this machine. Functions of the C library and libm come from the process.
    pub fn load(objects: &[ObjectCode]) -> Result<JitLibrary, CodegenError> {
        compile::initialize();
        let mut library = JitLibrary { jit: ptr::null_mut(), functions: HashMap::new() };
        // SAFETY: the default builder (null) makes a JIT for this process; results are checked before use, and the JIT is
        // disposed of when the library is dropped, also on the error paths below.
        unsafe {
            check(LLVMOrcCreateLLJIT(&mut library.jit, ptr::null_mut()))?;
            let dylib = LLVMOrcLLJITGetMainJITDylib(library.jit);
            let mut process = ptr::null_mut();
            let prefix: c_char = LLVMOrcLLJITGetGlobalPrefix(library.jit);
            check(LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(&mut process, prefix, None, ptr::null_mut()))?;
            LLVMOrcJITDylibAddGenerator(dylib, process);
            // What stands in for instructions, which no program exports.
            let mut own: Vec<LLVMOrcCSymbolMapPair> = emulated::functions()
                .iter()
                .map(|(name, address)| LLVMOrcCSymbolMapPair {
                    Name: LLVMOrcLLJITMangleAndIntern(library.jit, name.as_ptr()),
                    Sym: LLVMJITEvaluatedSymbol {
                        Address: *address as u64,
                        Flags: LLVMJITSymbolFlags {
                            GenericFlags: LLVMJITSymbolGenericFlags::LLVMJITSymbolGenericFlagsCallable as u8,
                            TargetFlags: 0,
                        },
                    },
                })
                .collect();
            check(LLVMOrcJITDylibDefine(dylib, LLVMOrcAbsoluteSymbols(own.as_mut_ptr(), own.len())))?;
            for object in objects {
                let bytes = object.bytes.as_ptr().cast();
                let copy = LLVMCreateMemoryBufferWithMemoryRangeCopy(bytes, object.bytes.len(), c"resat".as_ptr());
                check(LLVMOrcLLJITAddObjectFile(library.jit, dylib, copy))?;
            }
            for symbol in objects.iter().flat_map(|o| &o.symbols) {
                let name = CString::new(symbol.as_str())
                    .map_err(|_| CodegenError::Invalid(format!("the kernel name {symbol:?} holds a NUL")))?;
                let mut address = 0;
                check(LLVMOrcLLJITLookup(library.jit, &mut address, name.as_ptr()))?;
                let function = std::mem::transmute::<usize, KernelFn>(address as usize);
                library.functions.insert(symbol.clone(), function);
            }
        }
        Ok(library)
    }

    /// The function of a kernel, by its name; callable while the library lives.
    pub fn get(&self, name: &str) -> Option<KernelFn> {
        self.functions.get(name).copied()
    }
}

// SAFETY: kernels are compiled to the runtime's convention, for buffers of the sizes that they declare; they stay mapped until
// the library is dropped.
unsafe impl CompiledCode for JitLibrary {
    fn address(&self, symbol: &str) -> Option<KernelFn> {
        self.get(symbol)
    }
}

impl Drop for JitLibrary {
    fn drop(&mut self) {
        if !self.jit.is_null() {
            // SAFETY: made by `load`, disposed of once; an error here leaves nothing to do.
            let _ = check(unsafe { LLVMOrcDisposeLLJIT(self.jit) });
        }
    }
}

impl std::fmt::Debug for JitLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JitLibrary({} kernels)", self.functions.len())
    }
}
