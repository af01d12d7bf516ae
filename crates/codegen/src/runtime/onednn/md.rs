//! Memory descriptors: the extents of a tensor, its type, and how it lies in memory, which may be in blocks that only the library
//! knows.

use std::{ffi::c_int, fmt, sync::Arc};

use super::library::{Dims, Generation, Handle, Library, MAX_RANK, MdPtr, Status, meaning};
use crate::tensor::DType;

/// Words of version 2's `dnnl_memory_desc_t`, the same in all releases of it from 2.0 on.
const WORDS: usize = 87;

/// A memory descriptor.
#[derive(Clone)]
pub(super) struct Md {
    dims: Arc<[i64]>,
    dtype: DType,
    raw: Arc<Raw>,
}

#[allow(clippy::large_enum_variant, reason = "it is never moved: it lies behind a counted pointer")]
enum Raw {
    /// Version 2.
    Struct([u64; WORDS]),
    /// Version 3.
    Handle(&'static Library, Handle),
}

// SAFETY: descriptors are never changed once they are made, and the library reads them from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        if let (Raw::Handle(library, md), true) = (&*self, true)
            && let Generation::V3(f) = &library.generation
        {
            // SAFETY: made by the library, and destroyed once. The status says nothing that could be acted on.
            unsafe { (f.memory_desc_destroy)(*md) };
        }
    }
}

/// The library's number of a type; `None` for those that it has none for.
pub(super) fn code(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::BF16 => 2,
        DType::F32 => 3,
        DType::I32 => 4,
        DType::I8 => 5,
        DType::U8 => 6,
        _ => return None,
    })
}

/// Extents as the library takes them.
pub(super) fn dims(values: &[i64]) -> Dims {
    let mut out = [0; MAX_RANK];
    out[..values.len()].copy_from_slice(values);
    out
}

/// The strides of a tensor that lies row by row.
pub(super) fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for k in (1..shape.len()).rev() {
        strides[k - 1] = strides[k] * shape[k];
    }
    strides
}

impl Md {
    fn make(
        library: &'static Library,
        shape: &[i64],
        dtype: DType,
        v2: impl FnOnce(&super::library::V2, *mut std::ffi::c_void) -> Status,
        v3: impl FnOnce(&super::library::V3, *mut std::ffi::c_void) -> Status,
    ) -> Result<Md, String> {
        let (status, raw) = match &library.generation {
            Generation::V2(f) => {
                let mut words = [0u64; WORDS];
                (v2(f, words.as_mut_ptr().cast()), Raw::Struct(words))
            }
            Generation::V3(f) => {
                let mut md: Handle = std::ptr::null_mut();
                let status = v3(f, (&raw mut md).cast());
                // A handle that was not made must not be destroyed.
                if status != 0 {
                    return Err(format!("no such layout of {shape:?}: {}", meaning(status)));
                }
                (status, Raw::Handle(library, md))
            }
        };
        match status {
            0 => Ok(Md { dims: shape.into(), dtype, raw: Arc::new(raw) }),
            _ => Err(format!("no such layout of {shape:?}: {}", meaning(status))),
        }
    }

    /// Plain memory with these strides, in elements.
    pub(super) fn strided(lib: &'static Library, shape: &[i64], dtype: DType, strides: &[i64]) -> Result<Md, String> {
        let (n, d, s) = (shape.len() as c_int, dims(shape), dims(strides));
        let t = code(dtype).ok_or_else(|| format!("it has no type {dtype}"))?;
        // SAFETY: the result is memory for a descriptor, or for a handle; `d` and `s` have as many extents as any tensor.
        Md::make(
            lib,
            shape,
            dtype,
            |f, md| unsafe { (f.memory_desc_init_by_strides)(md, n, &d, t, &s) },
            |f, md| unsafe { (f.memory_desc_create_with_strides)(md, n, &d, t, &s) },
        )
    }

    /// Plain memory, row by row.
    pub(super) fn plain(lib: &'static Library, shape: &[i64], dtype: DType) -> Result<Md, String> {
        Md::strided(lib, shape, dtype, &row_major(shape))
    }

    /// Whatever layout a primitive likes best.
    pub(super) fn any(lib: &'static Library, shape: &[i64], dtype: DType) -> Result<Md, String> {
        const ANY: c_int = 1;
        let (n, d) = (shape.len() as c_int, dims(shape));
        let t = code(dtype).ok_or_else(|| format!("it has no type {dtype}"))?;
        // SAFETY: as above.
        Md::make(
            lib,
            shape,
            dtype,
            |f, md| unsafe { (f.memory_desc_init_by_tag)(md, n, &d, t, ANY) },
            |f, md| unsafe { (f.memory_desc_create_with_tag)(md, n, &d, t, ANY) },
        )
    }

    /// The same memory with its axes in another order: axis `k` of the result is axis `axes[k]` of this.
    pub(super) fn permuted(&self, lib: &'static Library, axes: &[usize]) -> Result<Md, String> {
        let shape: Vec<i64> = axes.iter().map(|&a| self.dims[a]).collect();
        let mut places = [0 as c_int; MAX_RANK];
        axes.iter().enumerate().for_each(|(k, &a)| places[a] = k as c_int);
        let permute = |md| {
            // SAFETY: `self` is a descriptor, `places` has a number for each of its axes, `md` is memory for the result.
            unsafe { (lib.common.memory_desc_permute_axes)(md, self.as_ptr(), places.as_ptr()) }
        };
        Md::make(lib, &shape, self.dtype, |_, md| permute(md), |_, md| permute(md))
    }

    /// The same memory under other extents, where the layout allows it.
    pub(super) fn reshaped(&self, lib: &'static Library, shape: &[i64]) -> Result<Md, String> {
        let d = dims(shape);
        let reshape = |md| {
            // SAFETY: `self` is a descriptor, `md` is memory for the result.
            unsafe { (lib.common.memory_desc_reshape)(md, self.as_ptr(), shape.len() as c_int, &d) }
        };
        Md::make(lib, shape, self.dtype, |_, md| reshape(md), |_, md| reshape(md))
    }

    /// A copy of what a query gave.
    ///
    /// # Safety
    /// `md` is a descriptor of the library, of this shape and type.
    pub(super) unsafe fn copied(lib: &'static Library, md: MdPtr, shape: &[i64], dtype: DType) -> Result<Md, String> {
        // SAFETY: as the caller promises; in version 2 it is a struct of so many words.
        Md::make(
            lib,
            shape,
            dtype,
            |_, out| unsafe {
                std::ptr::copy_nonoverlapping(md.cast::<u64>(), out.cast(), WORDS);
                0
            },
            // SAFETY: as above: the library's own copy of its descriptor.
            |f, out| unsafe { (f.memory_desc_clone)(out, md) },
        )
    }

    /// As functions of the library take it, while `self` lives.
    pub(super) fn as_ptr(&self) -> MdPtr {
        match &*self.raw {
            Raw::Struct(words) => words.as_ptr().cast(),
            Raw::Handle(_, md) => *md,
        }
    }

    /// Its words, in version 2.
    pub(super) fn words(&self) -> Option<&[u64; WORDS]> {
        match &*self.raw {
            Raw::Struct(words) => Some(words),
            Raw::Handle(..) => None,
        }
    }

    /// The extents.
    pub(super) fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// The type.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes that such a tensor takes.
    pub(super) fn bytes(&self, lib: &Library) -> usize {
        // SAFETY: a descriptor.
        unsafe { (lib.common.memory_desc_get_size)(self.as_ptr()) }
    }

    /// Whether another lies in memory in the same way.
    pub(super) fn same(&self, lib: &Library, other: &Md) -> bool {
        // SAFETY: two descriptors.
        unsafe { (lib.common.memory_desc_equal)(self.as_ptr(), other.as_ptr()) != 0 }
    }
}

impl fmt::Debug for Md {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.dims, self.dtype)
    }
}
