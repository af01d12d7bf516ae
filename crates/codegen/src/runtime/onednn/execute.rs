//! Primitives run: the library's memory objects and streams.

use std::ffi::c_int;

use super::{
    library::{ExecArg, Handle, Library, meaning},
    md::Md,
    primitive::{Primitive, arg},
};
use crate::runtime::memory::Block;

/// A memory object of the library.
pub(super) struct Object(&'static Library, Handle);

impl Object {
    pub(super) fn new(lib: &'static Library, md: &Md, at: *mut u8) -> Result<Object, String> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a live descriptor and engine; the result is written where success is returned. The library looks at `at` only when
        // a primitive runs on it.
        let status = unsafe { (lib.common.memory_create)(&mut handle, md.as_ptr(), lib.engine.0, at.cast()) };
        if status == 0 { Ok(Object(lib, handle)) } else { Err(format!("memory of {md:?}: {}", meaning(status))) }
    }

    pub(super) fn handle(&self) -> Handle {
        self.1
    }

    /// Has it lie elsewhere.
    pub(super) fn set(&self, at: *mut u8) -> Result<(), String> {
        // SAFETY: a live object. Memory with gaps may be filled with zeros in them now: it is there, and of that size.
        let status = unsafe { (self.0.common.memory_set_data_handle)(self.1, at.cast()) };
        if status == 0 { Ok(()) } else { Err(format!("memory can't be used: {}", meaning(status))) }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe { (self.0.common.memory_destroy)(self.1) };
    }
}

/// A stream of the library.
pub(super) struct Stream(&'static Library, Handle);

impl Stream {
    pub(super) fn new(lib: &'static Library) -> Result<Stream, String> {
        const DEFAULT: u32 = 1;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a live engine; the result is written where success is returned.
        let status = unsafe { (lib.common.stream_create)(&mut handle, lib.engine.0, DEFAULT) };
        if status == 0 { Ok(Stream(lib, handle)) } else { Err(format!("a stream: {}", meaning(status))) }
    }

    /// # Safety
    /// The memory of all arguments is there, of the layouts that the primitive wants, and nobody else uses it.
    pub(super) unsafe fn execute(&self, primitive: &Primitive, args: &[ExecArg]) -> Result<(), String> {
        // SAFETY: live handles; as the caller promises.
        let status = unsafe {
            (self.0.common.primitive_execute)(primitive.handle(), self.1, args.len() as c_int, args.as_ptr())
        };
        if status == 0 { Ok(()) } else { Err(format!("`{}`: {}", primitive.implementation, meaning(status))) }
    }

    pub(super) fn wait(&self) -> Result<(), String> {
        // SAFETY: a live stream.
        let status = unsafe { (self.0.common.stream_wait)(self.1) };
        if status == 0 { Ok(()) } else { Err(format!("the library failed: {}", meaning(status))) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe { (self.0.common.stream_destroy)(self.1) };
    }
}

/// Runs a primitive once, on memory at these addresses, which must be of their layouts.
pub(super) fn once(lib: &'static Library, primitive: &Primitive, args: &[(c_int, &Md, *mut u8)]) -> Result<(), String> {
    let stream = Stream::new(lib)?;
    let scratch = Block::new(primitive.scratchpad);
    let mut objects = Vec::new();
    let mut given = Vec::new();
    let extra = primitive.scratchpad_md().map(|md| (arg::SCRATCHPAD, md, scratch.at(0)));
    for (arg, md, at) in args.iter().copied().chain(extra) {
        let object = Object::new(lib, md, at)?;
        given.push(ExecArg { arg, memory: object.handle() });
        objects.push(object);
    }
    // SAFETY: the caller's memory, and the scratchpad's.
    unsafe { stream.execute(primitive, &given)? };
    stream.wait()
}
