//! From kernels to objects, whoever makes them: on as many threads as there are processors.

use std::{
    cmp::Reverse,
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{Code, CodeGenerator, CodegenError, cc::compile_c};
use crate::{
    cancel::Cancel,
    loops::{Kernel, check},
    machine::CodegenTarget,
};

/// Relocatable object code of some kernels.
#[derive(Clone, Debug)]
pub struct ObjectCode {
    /// The object file.
    pub bytes: Vec<u8>,
    /// The kernels' names, which are its global symbols.
    pub symbols: Vec<String>,
}

/// Stack of a compiling thread in bytes: expressions of fused kernels nest deeply, and so do their walks.
pub(super) const STACK: usize = 256 << 20;

/// Refuses kernels of one name.
pub(super) fn distinct(kernels: &[&Kernel]) -> Result<(), CodegenError> {
    let mut names = HashSet::new();
    match kernels.iter().find(|k| !names.insert(&k.name)) {
        Some(k) => Err(CodegenError::Invalid(format!("two kernels are named {}", k.name))),
        None => Ok(()),
    }
}

/// Compiles kernels, whose names must differ, for a machine. The objects' order and content do not depend on the number of
/// threads. Source goes through the target's C compiler.
pub fn compile(
    generator: &dyn CodeGenerator,
    kernels: &[&Kernel],
    target: &CodegenTarget,
) -> Result<Vec<ObjectCode>, CodegenError> {
    compile_unless(generator, kernels, target, &Cancel::default())
}

/// The same, unless somebody ends it, which it looks at before each kernel.
pub fn compile_unless(
    generator: &dyn CodeGenerator,
    kernels: &[&Kernel],
    target: &CodegenTarget,
    cancel: &Cancel,
) -> Result<Vec<ObjectCode>, CodegenError> {
    distinct(kernels)?;
    each(generator, kernels, target, cancel, &|_, _| {})
}

/// Compiles each kernel to an object. What costs most comes first, so that none keeps one thread at work when the others are done. `done` is
/// called, on whatever thread, with each that is made and its place among the kernels.
pub(super) fn each(
    generator: &dyn CodeGenerator,
    kernels: &[&Kernel],
    target: &CodegenTarget,
    cancel: &Cancel,
    done: &(dyn Fn(usize, &ObjectCode) + Sync),
) -> Result<Vec<ObjectCode>, CodegenError> {
    target.validate()?;
    let results: Vec<Mutex<Option<Result<ObjectCode, CodegenError>>>> =
        kernels.iter().map(|_| Mutex::new(None)).collect();
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by_cached_key(|&i| Reverse(generator.cost(kernels[i])));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let made = match cancel.is_cancelled() {
                true => Err(CodegenError::Cancelled),
                false => object(generator, kernels[i], target),
            };
            made.iter().for_each(|object| done(i, object));
            *results[i].lock().expect("no thread panics while it holds a result") = Some(made);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(kernels.len());
    std::thread::scope(|scope| {
        let spawned: Vec<_> =
            (0..threads).map(|_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)).collect();
        for thread in spawned {
            let thread = thread.map_err(|e| CodegenError::Failed {
                generator: generator.name().to_owned(),
                reason: format!("no thread to compile on: {e}"),
            })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        Ok::<_, CodegenError>(())
    })?;
    results
        .into_iter()
        .map(|r| r.into_inner().expect("no thread panicked").expect("every kernel was compiled"))
        .collect()
}

fn object(generator: &dyn CodeGenerator, kernel: &Kernel, target: &CodegenTarget) -> Result<ObjectCode, CodegenError> {
    check(kernel)?;
    generator.supports(kernel, target)?;
    let bytes = match generator.generate(kernel, target)? {
        Code::Object(bytes) => bytes,
        Code::Source(text) => compile_c(&text, target)
            .map_err(|e| CodegenError::Failed { generator: generator.name().to_owned(), reason: e.to_string() })?,
    };
    Ok(ObjectCode { bytes, symbols: vec![kernel.name.clone()] })
}
