//! Primitives: described, created, asked what layouts they want.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use super::{
    graph::{BinaryKind, Eltwise, EltwiseKind, Kind, PoolKind, Windows},
    library::{Dims, Generation, Handle, Library, MdPtr, Status, implementation, meaning},
    md::{Md, dims},
};

/// `DNNL_ARG_*`.
pub(super) mod arg {
    use std::ffi::c_int;

    pub(in super::super) const SRC: c_int = 1;
    pub(in super::super) const SRC_1: c_int = 2;
    pub(in super::super) const DST: c_int = 17;
    pub(in super::super) const WEIGHTS: c_int = 33;
    pub(in super::super) const BIAS: c_int = 41;
    pub(in super::super) const SCRATCHPAD: c_int = 80;
    pub(in super::super) const MULTIPLE_SRC: c_int = 1024;
}

/// `dnnl_query_*_md`.
const SRC_MD: c_int = 129;
const WEIGHTS_MD: c_int = 131;
const DST_MD: c_int = 133;
const SCRATCHPAD_MD: c_int = 136;

const FORWARD_INFERENCE: c_int = 96;

/// Bytes enough for any of version 2's descriptions of operations, the largest of which has 5976.
const OPERATION: usize = 8192;

/// What follows a primitive, with layouts.
#[derive(Clone, Debug)]
pub(super) enum PostMd {
    /// Added to what was in the result's memory.
    Sum,
    Eltwise(Eltwise),
    Binary(BinaryKind, Md),
}

/// A primitive that can be run, by any number of threads at once.
pub(super) struct Primitive {
    library: &'static Library,
    pd: Handle,
    primitive: Handle,
    /// How it is implemented, in the library's words.
    pub(super) implementation: String,
    /// Bytes of memory that a run takes beside its tensors.
    pub(super) scratchpad: usize,
    scratchpad_md: Option<Md>,
    /// The layouts of what it reads: data first, then weight and bias where it has them.
    pub(super) reads: Vec<Md>,
    /// The layout of what it makes.
    pub(super) makes: Md,
}

// SAFETY: the library says that primitives may be run by any number of threads at once, where the scratchpad is the caller's.
unsafe impl Send for Primitive {}
// SAFETY: as above.
unsafe impl Sync for Primitive {}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe {
            if !self.primitive.is_null() {
                (self.library.common.primitive_destroy)(self.primitive);
            }
            (self.library.common.primitive_desc_destroy)(self.pd);
        }
    }
}

/// Attributes while a primitive is described.
struct Attr(&'static Library, Handle);

impl Drop for Attr {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        unsafe { (self.0.common.primitive_attr_destroy)(self.1) };
    }
}

fn check(what: &str, status: Status) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(format!("{what}: {}", meaning(status))),
    }
}

impl Attr {
    fn new(lib: &'static Library, posts: &[PostMd]) -> Result<Attr, String> {
        const USER: c_int = 1;
        const UNDEFINED: c_int = 0;
        let c = &lib.common;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the result is written where success is returned.
        check("attributes", unsafe { (c.primitive_attr_create)(&mut handle) })?;
        let attr = Attr(lib, handle);
        // SAFETY: a live handle; the list of operations is copied by `set_post_ops`.
        unsafe {
            check("scratchpad mode", (c.primitive_attr_set_scratchpad_mode)(attr.1, USER))?;
            if posts.is_empty() {
                return Ok(attr);
            }
            let mut list: Handle = std::ptr::null_mut();
            check("post-operations", (c.post_ops_create)(&mut list))?;
            let mut all = Ok(());
            for post in posts {
                let status = match (post, &lib.generation) {
                    (PostMd::Sum, Generation::V2(f)) => (f.post_ops_append_sum)(list, 1.0),
                    (PostMd::Sum, Generation::V3(f)) => (f.post_ops_append_sum)(list, 1.0, 0, UNDEFINED),
                    (PostMd::Eltwise(e), Generation::V2(f)) => {
                        (f.post_ops_append_eltwise)(list, 1.0, algorithm(lib, e.kind), e.alpha, e.beta)
                    }
                    (PostMd::Eltwise(e), Generation::V3(f)) => {
                        (f.post_ops_append_eltwise)(list, algorithm(lib, e.kind), e.alpha, e.beta)
                    }
                    (PostMd::Binary(kind, md), _) => (c.post_ops_append_binary)(list, binary(*kind), md.as_ptr()),
                };
                all = all.and(check("post-operation", status));
            }
            let set = all.and_then(|()| check("post-operations", (c.primitive_attr_set_post_ops)(attr.1, list)));
            (c.post_ops_destroy)(list);
            set.map(|()| attr)
        }
    }
}

/// The library's number of a function of one element: the versions count differently.
fn algorithm(lib: &Library, kind: EltwiseKind) -> c_int {
    let (v2, v3) = algorithms(kind);
    if matches!(lib.generation, Generation::V2(_)) { v2 } else { v3 }
}

/// The numbers of a function of one element in version 2 and in version 3.
pub(super) fn algorithms(kind: EltwiseKind) -> (c_int, c_int) {
    match kind {
        EltwiseKind::Relu => (0x1f, 0x20),
        EltwiseKind::Tanh => (0x2f, 0x21),
        EltwiseKind::Elu => (0x3f, 0x22),
        EltwiseKind::Square => (0x4f, 0x23),
        EltwiseKind::Abs => (0x5f, 0x24),
        EltwiseKind::Sqrt => (0x6f, 0x25),
        EltwiseKind::Linear => (0x7f, 0x26),
        EltwiseKind::Logistic => (0xaf, 0x29),
        EltwiseKind::Exp => (0xbf, 0x2a),
        EltwiseKind::Swish => (0xdf, 0x2c),
        EltwiseKind::Log => (0xef, 0x2d),
        EltwiseKind::Clip => (0xff, 0x2e),
        EltwiseKind::Pow => (0x20, 0x30),
        EltwiseKind::GeluErf => (0x30, 0x31),
    }
}

/// The library's number of a function of two elements.
pub(super) fn binary(kind: BinaryKind) -> c_int {
    const FIRST: c_int = 0x1fff0;
    FIRST
        + match kind {
            BinaryKind::Add => 0,
            BinaryKind::Mul => 1,
            BinaryKind::Max => 2,
            BinaryKind::Min => 3,
            BinaryKind::Div => 4,
            BinaryKind::Sub => 5,
        }
}

/// The argument number of the tensor that operation `i` after a primitive reads.
pub(super) fn post_arg(lib: &Library, i: usize) -> c_int {
    let base = if matches!(lib.generation, Generation::V2(_)) { 16384 } else { 32768 };
    (base * (i as c_int + 1)) | arg::SRC_1
}

/// A window's numbers as the library takes them.
struct Raw {
    strides: Dims,
    dilation: Dims,
    before: Dims,
    after: Dims,
}

impl Raw {
    fn new(w: &Windows) -> Raw {
        // The library counts the elements between two taps.
        let dilation: Vec<i64> = w.dilation.iter().map(|d| d - 1).collect();
        Raw { strides: dims(&w.strides), dilation: dims(&dilation), before: dims(&w.before), after: dims(&w.after) }
    }
}

/// Describes an operation of version 2: fills the struct, and makes a primitive's description of it.
///
/// # Safety
/// `fill` writes a description of an operation, of at most [`OPERATION`] bytes, where it returns success.
unsafe fn described(
    lib: &'static Library,
    f: &super::library::V2,
    attr: &Attr,
    pd: &mut Handle,
    fill: impl FnOnce(*mut c_void) -> Status,
) -> Status {
    let mut operation = [0u64; OPERATION / 8];
    match fill(operation.as_mut_ptr().cast()) {
        // SAFETY: `operation` was filled, the other handles live.
        0 => unsafe {
            (f.primitive_desc_create)(pd, operation.as_ptr().cast(), attr.1, lib.engine.0, std::ptr::null_mut())
        },
        failed => failed,
    }
}

/// The description of a primitive of version 2.
fn describe_v2(
    lib: &'static Library,
    f: &super::library::V2,
    kind: &Kind,
    reads: &[Md],
    makes: &Md,
    attr: &Attr,
) -> (Status, Handle) {
    let mut pd: Handle = std::ptr::null_mut();
    let md = |i: usize| reads.get(i).map_or(std::ptr::null(), Md::as_ptr);
    let dst = makes.as_ptr();
    let inference = FORWARD_INFERENCE;
    // SAFETY: every pointer is to a live descriptor (or null, for a bias that is not there) or to numbers of all axes; what is
    // filled is large enough.
    let status = unsafe {
        match kind {
            Kind::Convolution(w) => {
                let r = Raw::new(w);
                described(lib, f, attr, &mut pd, |op| {
                    (f.dilated_convolution_forward_desc_init)(
                        op,
                        inference,
                        1,
                        md(0),
                        md(1),
                        md(2),
                        dst,
                        &r.strides,
                        &r.dilation,
                        &r.before,
                        &r.after,
                    )
                })
            }
            Kind::Deconvolution(w) => {
                let r = Raw::new(w);
                described(lib, f, attr, &mut pd, |op| {
                    (f.dilated_deconvolution_forward_desc_init)(
                        op,
                        inference,
                        10,
                        md(0),
                        md(1),
                        md(2),
                        dst,
                        &r.strides,
                        &r.dilation,
                        &r.before,
                        &r.after,
                    )
                })
            }
            Kind::InnerProduct => described(lib, f, attr, &mut pd, |op| {
                (f.inner_product_forward_desc_init)(op, inference, md(0), md(1), md(2), dst)
            }),
            Kind::Matmul => described(lib, f, attr, &mut pd, |op| (f.matmul_desc_init)(op, md(0), md(1), md(2), dst)),
            Kind::Pool { kind, kernel, windows } => {
                let (r, kernel) = (Raw::new(windows), dims(kernel));
                described(lib, f, attr, &mut pd, |op| {
                    (f.pooling_v2_forward_desc_init)(
                        op,
                        inference,
                        pool(*kind),
                        md(0),
                        dst,
                        &r.strides,
                        &kernel,
                        &r.dilation,
                        &r.before,
                        &r.after,
                    )
                })
            }
            Kind::Eltwise(e) => described(lib, f, attr, &mut pd, |op| {
                (f.eltwise_forward_desc_init)(op, inference, algorithm(lib, e.kind), md(0), e.alpha, e.beta)
            }),
            Kind::Binary(kind) => {
                described(lib, f, attr, &mut pd, |op| (f.binary_desc_init)(op, binary(*kind), md(0), md(1), dst))
            }
            Kind::Softmax { axis, log } => described(lib, f, attr, &mut pd, |op| {
                (f.softmax_v2_forward_desc_init)(op, inference, softmax(*log), md(0), dst, *axis as c_int)
            }),
            Kind::Concat { axis } => {
                let all: Vec<u64> = reads.iter().filter_map(Md::words).flatten().copied().collect();
                let (n, axis) = (reads.len() as c_int, *axis as c_int);
                (f.concat_primitive_desc_create)(&mut pd, dst, n, axis, all.as_ptr().cast(), attr.1, lib.engine.0)
            }
            Kind::Convert => reorder(lib, &mut pd, md(0), dst, attr),
        }
    };
    (status, pd)
}

/// The description of a primitive of version 3.
fn describe_v3(
    lib: &'static Library,
    f: &super::library::V3,
    kind: &Kind,
    reads: &[Md],
    makes: &Md,
    attr: &Attr,
) -> (Status, Handle) {
    let mut pd: Handle = std::ptr::null_mut();
    let md = |i: usize| reads.get(i).map_or(std::ptr::null(), Md::as_ptr);
    let (dst, engine, inference) = (makes.as_ptr(), lib.engine.0, FORWARD_INFERENCE);
    let out = &mut pd;
    // SAFETY: as in `describe_v2`.
    let status = unsafe {
        match kind {
            Kind::Convolution(w) => {
                let r = Raw::new(w);
                (f.convolution_forward_primitive_desc_create)(
                    out,
                    engine,
                    inference,
                    1,
                    md(0),
                    md(1),
                    md(2),
                    dst,
                    &r.strides,
                    &r.dilation,
                    &r.before,
                    &r.after,
                    attr.1,
                )
            }
            Kind::Deconvolution(w) => {
                let r = Raw::new(w);
                (f.deconvolution_forward_primitive_desc_create)(
                    out,
                    engine,
                    inference,
                    10,
                    md(0),
                    md(1),
                    md(2),
                    dst,
                    &r.strides,
                    &r.dilation,
                    &r.before,
                    &r.after,
                    attr.1,
                )
            }
            Kind::InnerProduct => (f.inner_product_forward_primitive_desc_create)(
                out,
                engine,
                inference,
                md(0),
                md(1),
                md(2),
                dst,
                attr.1,
            ),
            Kind::Matmul => (f.matmul_primitive_desc_create)(out, engine, md(0), md(1), md(2), dst, attr.1),
            Kind::Pool { kind, kernel, windows } => {
                let (r, kernel) = (Raw::new(windows), dims(kernel));
                (f.pooling_forward_primitive_desc_create)(
                    out,
                    engine,
                    inference,
                    pool(*kind),
                    md(0),
                    dst,
                    &r.strides,
                    &kernel,
                    &r.dilation,
                    &r.before,
                    &r.after,
                    attr.1,
                )
            }
            Kind::Eltwise(e) => (f.eltwise_forward_primitive_desc_create)(
                out,
                engine,
                inference,
                algorithm(lib, e.kind),
                md(0),
                dst,
                e.alpha,
                e.beta,
                attr.1,
            ),
            Kind::Binary(kind) => {
                (f.binary_primitive_desc_create)(out, engine, binary(*kind), md(0), md(1), dst, attr.1)
            }
            Kind::Softmax { axis, log } => (f.softmax_forward_primitive_desc_create)(
                out,
                engine,
                inference,
                softmax(*log),
                md(0),
                dst,
                *axis as c_int,
                attr.1,
            ),
            Kind::Concat { axis } => {
                let all: Vec<MdPtr> = reads.iter().map(Md::as_ptr).collect();
                let n = reads.len() as c_int;
                (f.concat_primitive_desc_create)(out, engine, dst, n, *axis as c_int, all.as_ptr(), attr.1)
            }
            Kind::Convert => reorder(lib, out, md(0), dst, attr),
        }
    };
    (status, pd)
}

/// # Safety
/// `from` and `to` are live descriptors.
unsafe fn reorder(lib: &'static Library, pd: &mut Handle, from: MdPtr, to: MdPtr, attr: &Attr) -> Status {
    // SAFETY: as the caller promises.
    unsafe { (lib.common.reorder_primitive_desc_create)(pd, from, lib.engine.0, to, lib.engine.0, attr.1) }
}

/// The library's number of a pool.
pub(super) fn pool(kind: PoolKind) -> c_int {
    match kind {
        PoolKind::Max => 0x1ff,
        PoolKind::MeanOfAll => 0x2ff,
        PoolKind::Mean => 0x3ff,
    }
}

/// The library's number of a softmax.
pub(super) fn softmax(log: bool) -> c_int {
    0x30000 + c_int::from(log)
}

impl Primitive {
    /// A primitive of tensors in these layouts, each of which may be left to it ([`Md::any`]).
    pub(super) fn new(
        lib: &'static Library,
        kind: &Kind,
        reads: &[Md],
        makes: &Md,
        posts: &[PostMd],
    ) -> Result<Arc<Primitive>, String> {
        let attr = Attr::new(lib, posts)?;
        let (status, pd) = match &lib.generation {
            Generation::V2(f) => describe_v2(lib, f, kind, reads, makes, &attr),
            Generation::V3(f) => describe_v3(lib, f, kind, reads, makes, &attr),
        };
        check(&format!("{kind:?} of {reads:?} to {makes:?}"), status)?;
        // From here on, dropping destroys the description.
        let mut p = Primitive {
            library: lib,
            pd,
            primitive: std::ptr::null_mut(),
            // SAFETY: it was just made.
            implementation: unsafe { implementation(lib, pd) },
            scratchpad: 0,
            scratchpad_md: None,
            reads: Vec::new(),
            makes: p_md(lib, pd, DST_MD, 0, makes)?.unwrap_or_else(|| makes.clone()),
        };
        for (i, md) in reads.iter().enumerate() {
            let (what, index) = match kind {
                Kind::Convolution(_) | Kind::Deconvolution(_) | Kind::InnerProduct | Kind::Matmul if i > 0 => {
                    (WEIGHTS_MD, i - 1)
                }
                _ => (SRC_MD, i),
            };
            p.reads.push(p_md(lib, pd, what, index, md)?.unwrap_or_else(|| md.clone()));
        }
        p.scratchpad_md = scratchpad(lib, pd)?;
        p.scratchpad = p.scratchpad_md.as_ref().map_or(0, |md| md.bytes(lib));
        // SAFETY: a live description.
        check("primitive", unsafe { (lib.common.primitive_create)(&mut p.primitive, pd) })?;
        Ok(Arc::new(p))
    }

    /// A copy from one layout, or type, to another.
    pub(super) fn reorder(lib: &'static Library, from: &Md, to: &Md) -> Result<Arc<Primitive>, String> {
        Primitive::new(lib, &Kind::Convert, std::slice::from_ref(from), to, &[])
    }

    /// The handle, to be run.
    pub(super) fn handle(&self) -> Handle {
        self.primitive
    }

    /// The layout of its scratchpad, where it has one.
    pub(super) fn scratchpad_md(&self) -> Option<&Md> {
        self.scratchpad_md.as_ref().filter(|_| self.scratchpad > 0)
    }

    /// Whether it is the library's plain code, which is slow.
    pub(super) fn is_reference(&self) -> bool {
        self.implementation.starts_with("ref") || self.implementation.contains(":ref")
    }

    /// The arguments' numbers in the order of `reads`.
    pub(super) fn read_args(kind: &Kind, n: usize) -> Vec<c_int> {
        let named = match kind {
            Kind::Convolution(_) | Kind::Deconvolution(_) | Kind::InnerProduct | Kind::Matmul => {
                [arg::SRC, arg::WEIGHTS, arg::BIAS]
            }
            Kind::Concat { .. } => return (0..n).map(|i| arg::MULTIPLE_SRC + i as c_int).collect(),
            _ => [arg::SRC, arg::SRC_1, 0],
        };
        named[..n].to_vec()
    }
}

/// What a description says of one of its tensors.
fn p_md(lib: &'static Library, pd: Handle, what: c_int, index: usize, like: &Md) -> Result<Option<Md>, String> {
    // SAFETY: a live description; what the query gives lives as long as that, and is copied.
    unsafe {
        let md = (lib.common.primitive_desc_query_md)(pd, what, index as c_int);
        if md.is_null() { Ok(None) } else { Md::copied(lib, md, like.dims(), like.dtype()).map(Some) }
    }
}

/// The memory that a primitive wants beside its tensors, bytes in a row.
fn scratchpad(lib: &'static Library, pd: Handle) -> Result<Option<Md>, String> {
    // SAFETY: as in `p_md`. Its extents are asked for nowhere.
    unsafe {
        let md = (lib.common.primitive_desc_query_md)(pd, SCRATCHPAD_MD, 0);
        if md.is_null() { Ok(None) } else { Md::copied(lib, md, &[], crate::tensor::DType::U8).map(Some) }
    }
}
