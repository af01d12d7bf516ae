//! Dense row-major tensors, shared by reference and aligned to a cache line.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, OnceLock},
};

use bytemuck::{Pod, Zeroable, allocation::try_zeroed_vec};
use half::{bf16, f16};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::{DType, out_of_memory};

/// Extents of a tensor, outermost first.
pub type Shape = SmallVec<[usize; 6]>;

/// Storage unit: keeps data on 64-byte boundaries, which is what vector loads and exported libraries rely on.
#[repr(C, align(64))]
#[derive(Copy, Clone, Pod, Zeroable)]
struct Line([u8; 64]);

struct Buffer {
    storage: Storage,
    len: usize,
    digest: OnceLock<u64>,
}

enum Storage {
    /// Of its own.
    Lines(Vec<Line>),
    /// From that byte on of what others use as well.
    Part(Arc<dyn AsRef<[u8]> + Send + Sync>, usize),
}

impl Buffer {
    fn new(lines: Vec<Line>, len: usize) -> Arc<Buffer> {
        Arc::new(Buffer { storage: Storage::Lines(lines), len, digest: OnceLock::new() })
    }

    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Lines(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Storage::Part(all, at) => &(**all).as_ref()[*at..*at + self.len],
        }
    }
}

/// A dense row-major array; cloning shares the data.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Arc<Buffer>,
}

/// The number of elements or bytes given does not fit the shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given} bytes given for a {dtype} tensor of shape {shape:?}, which takes {wanted}")]
pub struct ShapeMismatch {
    given: usize,
    wanted: u128,
    dtype: DType,
    shape: Shape,
}

/// A Rust type that stores one [`DType`].
pub trait Element: Pod + PartialOrd + Send + Sync {
    /// The element type that this Rust type stores.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

/// Elements between neighbours along each axis of a row-major array.
pub fn row_major_strides(shape: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

fn fill<T>(to: &mut [T], mut f: impl FnMut(usize) -> T) {
    to.iter_mut().enumerate().for_each(|(i, slot)| *slot = f(i));
}

/// Whether so many bytes are what a shape takes.
fn takes(dtype: DType, shape: &[usize], given: usize) -> Result<(), ShapeMismatch> {
    let wanted = shape.iter().fold(dtype.bytes() as u128, |n, &d| n.saturating_mul(d as u128));
    // Extents beside a zero must be such that their products are numbers, too.
    let room = shape.iter().fold(dtype.bytes() as u128, |n, &d| n.saturating_mul(d.max(1) as u128));
    match wanted == given as u128 && room <= isize::MAX as u128 {
        true => Ok(()),
        false => Err(ShapeMismatch { given, wanted, dtype, shape: shape.into() }),
    }
}

impl Tensor {
    /// An array of zeros. Where memory has no room for it, [`within_memory`](super::within_memory) says so.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Tensor {
        let bytes = match shape.contains(&0) {
            true => 0,
            false => shape.iter().fold(dtype.bytes() as u128, |n, &d| n.saturating_mul(d as u128)),
        };
        let len = usize::try_from(bytes).unwrap_or_else(|_| out_of_memory(bytes));
        // Zero pages of the system where it is large: not touched before somebody writes.
        let lines = try_zeroed_vec(len.div_ceil(64)).unwrap_or_else(|()| out_of_memory(bytes));
        Tensor { dtype, shape: shape.into(), data: Buffer::new(lines, len) }
    }

    /// An array of the given little-endian bytes, in row-major order.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, ShapeMismatch> {
        takes(dtype, shape, bytes.len())?;
        let mut t = Tensor::zeros(dtype, shape);
        t.bytes_mut().copy_from_slice(bytes);
        Ok(t)
    }

    /// Whether an array's bytes may begin where these do: on a 64-byte boundary.
    pub fn may_lie_at(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(size_of::<Line>())
    }

    /// An array of the bytes of `all` from `at` on, which are not copied where they lie on a 64-byte boundary: weights in a file that
    /// is mapped are there once, however many programs use them.
    pub fn from_part(
        dtype: DType,
        shape: &[usize],
        all: Arc<dyn AsRef<[u8]> + Send + Sync>,
        at: usize,
    ) -> Result<Tensor, ShapeMismatch> {
        let bytes: &[u8] = (*all).as_ref().get(at..).unwrap_or_default();
        let len = shape.iter().fold(dtype.bytes(), |n, &d| n.saturating_mul(d)).min(bytes.len());
        takes(dtype, shape, len)?;
        if !Tensor::may_lie_at(bytes) {
            return Tensor::from_bytes(dtype, shape, &bytes[..len]);
        }
        let data = Buffer { storage: Storage::Part(all, at), len, digest: OnceLock::new() };
        Ok(Tensor { dtype, shape: shape.into(), data: Arc::new(data) })
    }

    /// An array of the given elements, in row-major order.
    ///
    /// Panics where the number of elements is not the shape's: this is for values that the program itself made.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Tensor {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(data)).expect("as many elements as the shape holds")
    }

    /// A `bool` array of the given elements.
    pub fn from_bools(shape: &[usize], data: &[bool]) -> Tensor {
        let bytes: Vec<u8> = data.iter().map(|&b| b as u8).collect();
        Tensor::from_bytes(DType::Bool, shape, &bytes).expect("as many elements as the shape holds")
    }

    /// A tensor without axes that holds one element.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[], &[value])
    }

    /// An array of `dtype` with element `i` (row-major) converted from `f(i)`: floats rounded to nearest, integers
    /// truncated and wrapped, `bool` true where non-zero.
    pub fn from_f64_fn(dtype: DType, shape: &[usize], mut f: impl FnMut(usize) -> f64) -> Tensor {
        let mut t = Tensor::zeros(dtype, shape);
        match dtype {
            DType::F32 => fill(t.as_mut_slice::<f32>(), |i| f(i) as f32),
            DType::F64 => fill(t.as_mut_slice::<f64>(), f),
            DType::F16 => fill(t.as_mut_slice(), |i| f16::from_f64(f(i))),
            DType::BF16 => fill(t.as_mut_slice(), |i| bf16::from_f64(f(i))),
            DType::Bool => fill(t.bytes_mut(), |i| (f(i) != 0.0) as u8),
            DType::U64 => fill(t.as_mut_slice(), |i| {
                let v = f(i);
                if v < 0.0 { v as i64 as u64 } else { v as u64 }
            }),
            _ => return Tensor::from_i64_fn(dtype, shape, |i| f(i) as i64),
        }
        t
    }

    /// The same, rows of `row` elements at a time and in parallel: `f` fills in the row of a number; the last one may be shorter. Floats
    /// only, others panic.
    pub fn from_f64_rows(dtype: DType, shape: &[usize], row: usize, f: impl Fn(usize, &mut [f64]) + Sync) -> Tensor {
        fn go<T: Element + Send>(to: &mut [T], row: usize, f: impl Fn(usize, &mut [f64]) + Sync, of: fn(f64) -> T) {
            to.par_chunks_mut(row.max(1)).enumerate().for_each_init(
                || vec![0.0; row],
                |values, (i, to)| {
                    let values = &mut values[..to.len()];
                    f(i, values);
                    to.iter_mut().zip(values).for_each(|(to, v)| *to = of(*v));
                },
            );
        }
        let mut t = Tensor::zeros(dtype, shape);
        match dtype {
            DType::F32 => go::<f32>(t.as_mut_slice(), row, f, |v| v as f32),
            DType::F64 => go::<f64>(t.as_mut_slice(), row, f, |v| v),
            DType::F16 => go::<f16>(t.as_mut_slice(), row, f, f16::from_f64),
            DType::BF16 => go::<bf16>(t.as_mut_slice(), row, f, bf16::from_f64),
            other => panic!("rows of {other} are no floats"),
        }
        t
    }

    /// An array of `dtype` with element `i` (row-major) converted from `f(i)`; integers wrap around.
    pub fn from_i64_fn(dtype: DType, shape: &[usize], mut f: impl FnMut(usize) -> i64) -> Tensor {
        let mut t = Tensor::zeros(dtype, shape);
        match dtype {
            DType::Bool => fill(t.bytes_mut(), |i| (f(i) != 0) as u8),
            DType::I8 => fill(t.as_mut_slice(), |i| f(i) as i8),
            DType::I16 => fill(t.as_mut_slice(), |i| f(i) as i16),
            DType::I32 => fill(t.as_mut_slice(), |i| f(i) as i32),
            DType::I64 => fill(t.as_mut_slice(), f),
            DType::U8 => fill(t.as_mut_slice(), |i| f(i) as u8),
            DType::U16 => fill(t.as_mut_slice(), |i| f(i) as u16),
            DType::U32 => fill(t.as_mut_slice(), |i| f(i) as u32),
            DType::U64 => fill(t.as_mut_slice(), |i| f(i) as u64),
            DType::F32 => fill(t.as_mut_slice(), |i| f(i) as f32),
            DType::F64 => fill(t.as_mut_slice(), |i| f(i) as f64),
            DType::F16 => fill(t.as_mut_slice(), |i| f16::from_f64(f(i) as f64)),
            DType::BF16 => fill(t.as_mut_slice(), |i| bf16::from_f64(f(i) as f64)),
        }
        t
    }

    /// An array of this one's element type whose element `i` (row-major) is this one's element `f(i)`, bit for bit, or zero
    /// where that is `None`.
    pub fn pick(&self, shape: &[usize], f: impl FnMut(usize) -> Option<usize>) -> Tensor {
        fn go<T: Pod>(from: &[u8], to: &mut [u8], mut f: impl FnMut(usize) -> Option<usize>) {
            let from: &[T] = bytemuck::cast_slice(from);
            for (i, slot) in bytemuck::cast_slice_mut::<u8, T>(to).iter_mut().enumerate() {
                if let Some(k) = f(i) {
                    *slot = from[k];
                }
            }
        }
        let mut t = Tensor::zeros(self.dtype, shape);
        match self.dtype.bytes() {
            1 => go::<u8>(self.bytes(), t.bytes_mut(), f),
            2 => go::<u16>(self.bytes(), t.bytes_mut(), f),
            4 => go::<u32>(self.bytes(), t.bytes_mut(), f),
            _ => go::<u64>(self.bytes(), t.bytes_mut(), f),
        }
        t
    }

    /// Element `bases[i] + within[k]` as element `k` of row `i`, all rows one after another; rows in parallel.
    pub fn pick_rows(&self, shape: &[usize], bases: &[usize], within: &[usize]) -> Tensor {
        fn go<T: Pod + Send + Sync>(from: &[u8], to: &mut [u8], bases: &[usize], within: &[usize]) {
            let from: &[T] = bytemuck::cast_slice(from);
            let rows = bytemuck::cast_slice_mut::<u8, T>(to).par_chunks_mut(within.len().max(1));
            rows.with_min_len(256).zip(bases).for_each(|(to, base)| {
                to.iter_mut().zip(within).for_each(|(to, k)| *to = from[base + k]);
            });
        }
        let mut t = Tensor::zeros(self.dtype, shape);
        match self.dtype.bytes() {
            1 => go::<u8>(self.bytes(), t.bytes_mut(), bases, within),
            2 => go::<u16>(self.bytes(), t.bytes_mut(), bases, within),
            4 => go::<u32>(self.bytes(), t.bytes_mut(), bases, within),
            _ => go::<u64>(self.bytes(), t.bytes_mut(), bases, within),
        }
        t
    }

    /// An array of `shape` whose element at indices `i` is this one's element number `offset` + sum of `i[k] * strides[k]`; rows in parallel.
    pub fn strided(&self, shape: &[usize], offset: i64, strides: &[i64]) -> Tensor {
        /// The last axes, as many as have so many elements together, make a row.
        const ROW: usize = 256;
        let mut split = shape.len();
        while split > 0 && shape[split..].iter().product::<usize>() < ROW {
            split -= 1;
        }
        let places = |axes: std::ops::Range<usize>, from: i64| {
            axes.fold(vec![from], |from, k| {
                let along = |&base: &i64| (0..shape[k] as i64).map(move |i| base + i * strides[k]);
                from.iter().flat_map(along).collect()
            })
        };
        let (bases, within) = (places(0..split, offset), places(split..shape.len(), 0));
        // Where an axis goes backwards, a row's first element is not its least.
        let least = within.iter().copied().min().unwrap_or(0);
        let bases: Vec<usize> = bases.into_iter().map(|base| (base + least) as usize).collect();
        let within: Vec<usize> = within.into_iter().map(|at| (at - least) as usize).collect();
        self.pick_rows(shape, &bases, &within)
    }

    /// The same bytes as elements of another type of the same width. Panics where the widths differ.
    pub fn reinterpreted(&self, dtype: DType) -> Tensor {
        assert_eq!(self.dtype.bytes(), dtype.bytes(), "reinterpreted as a type of another width");
        Tensor { dtype, shape: self.shape.clone(), data: self.data.clone() }
    }

    /// Whether its elements are memory of its own, which no other tensor shares.
    pub fn is_unshared(&self) -> bool {
        matches!(self.data.storage, Storage::Lines(_)) && Arc::strong_count(&self.data) == 1
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' bytes, row-major, little-endian.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// The elements' bytes for writing; copies them first where they are shared.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let own = matches!(self.data.storage, Storage::Lines(_)) && Arc::get_mut(&mut self.data).is_some();
        if !own {
            let mut lines: Vec<Line> = bytemuck::zeroed_vec(self.data.len.div_ceil(64));
            bytemuck::cast_slice_mut(&mut lines)[..self.data.len].copy_from_slice(self.data.bytes());
            self.data = Buffer::new(lines, self.data.len);
        }
        let buffer = Arc::get_mut(&mut self.data).expect("just made unique");
        buffer.digest = OnceLock::new();
        match &mut buffer.storage {
            Storage::Lines(lines) => &mut bytemuck::cast_slice_mut(lines)[..buffer.len],
            Storage::Part(..) => unreachable!("what is shared was copied"),
        }
    }

    /// The same elements, and more of any value after them. They stay where they are where nobody else has them and there is room; where
    /// there is not, room is made for as many again. Panics where the shape takes fewer bytes.
    pub fn lengthened(mut self, shape: &[usize]) -> Tensor {
        let bytes = shape.iter().fold(self.dtype.bytes() as u128, |n, &d| n.saturating_mul(d as u128));
        let len = usize::try_from(bytes).unwrap_or_else(|_| out_of_memory(bytes));
        assert!(len >= self.data.len, "what is lengthened does not get shorter");
        let needed = len.div_ceil(size_of::<Line>());
        let grow = |lines: &mut Vec<Line>| {
            let more = needed.saturating_sub(lines.len());
            // Twice as much where it does not fit, by itself.
            lines.try_reserve(more).unwrap_or_else(|_| out_of_memory(bytes));
            lines.resize(needed, Line([0; 64]));
        };
        match Arc::get_mut(&mut self.data) {
            Some(Buffer { storage: Storage::Lines(lines), len: known, digest }) => {
                grow(lines);
                (*known, *digest) = (len, OnceLock::new());
            }
            _ => {
                let mut lines: Vec<Line> = bytemuck::zeroed_vec(self.data.len.div_ceil(size_of::<Line>()));
                bytemuck::cast_slice_mut(&mut lines)[..self.data.len].copy_from_slice(self.data.bytes());
                grow(&mut lines);
                self.data = Buffer::new(lines, len);
            }
        }
        Tensor { shape: shape.into(), ..self }
    }

    /// The elements. Panics where `T` is not the element type; `bool` tensors are read by [`Tensor::bytes`].
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "elements read as another type than they have");
        bytemuck::cast_slice(self.bytes())
    }

    /// The elements for writing. Panics where `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "elements written as another type than they have");
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// The first `n` rows: elements along the outermost axis. Panics where there are fewer.
    pub fn rows(&self, n: usize) -> Tensor {
        assert!(n <= self.shape[0], "a tensor has as many rows as its outermost extent");
        if n == self.shape[0] {
            return self.clone();
        }
        let mut shape = self.shape.clone();
        shape[0] = n;
        let bytes = shape.iter().product::<usize>() * self.dtype.bytes();
        Tensor::from_bytes(self.dtype, &shape, &self.bytes()[..bytes]).expect("rows are whole")
    }

    /// The same elements under other extents. Panics where the number of elements changes.
    pub fn reshaped(&self, shape: &[usize]) -> Tensor {
        assert_eq!(self.len(), shape.iter().product::<usize>(), "a reshape keeps the number of elements");
        Tensor { dtype: self.dtype, shape: shape.into(), data: self.data.clone() }
    }

    /// Element `i` (row-major) as a float; 64-bit integers round.
    pub fn get_f64(&self, i: usize) -> f64 {
        match self.dtype {
            DType::F32 => self.as_slice::<f32>()[i] as f64,
            DType::F64 => self.as_slice::<f64>()[i],
            DType::F16 => self.as_slice::<f16>()[i].to_f64(),
            DType::BF16 => self.as_slice::<bf16>()[i].to_f64(),
            DType::U64 => self.as_slice::<u64>()[i] as f64,
            _ => self.get_i64(i) as f64,
        }
    }

    /// Element `i` (row-major) as an integer: floats truncate and saturate, `uint64` wraps.
    pub fn get_i64(&self, i: usize) -> i64 {
        match self.dtype {
            DType::Bool => self.bytes()[i] as i64,
            DType::I8 => self.as_slice::<i8>()[i] as i64,
            DType::I16 => self.as_slice::<i16>()[i] as i64,
            DType::I32 => self.as_slice::<i32>()[i] as i64,
            DType::I64 => self.as_slice::<i64>()[i],
            DType::U8 => self.as_slice::<u8>()[i] as i64,
            DType::U16 => self.as_slice::<u16>()[i] as i64,
            DType::U32 => self.as_slice::<u32>()[i] as i64,
            DType::U64 => self.as_slice::<u64>()[i] as i64,
            _ => self.get_f64(i) as i64,
        }
    }

    /// Writes element `i` (row-major), rounding floats to nearest, truncating and wrapping into integers.
    pub fn set_f64(&mut self, i: usize, v: f64) {
        match self.dtype {
            DType::F32 => self.as_mut_slice::<f32>()[i] = v as f32,
            DType::F64 => self.as_mut_slice::<f64>()[i] = v,
            DType::F16 => self.as_mut_slice::<f16>()[i] = f16::from_f64(v),
            DType::BF16 => self.as_mut_slice::<bf16>()[i] = bf16::from_f64(v),
            DType::Bool => self.bytes_mut()[i] = (v != 0.0) as u8,
            DType::U64 => self.as_mut_slice::<u64>()[i] = if v < 0.0 { v as i64 as u64 } else { v as u64 },
            _ => self.set_i64(i, v as i64),
        }
    }

    /// Writes element `i` (row-major), wrapping into narrower integers.
    pub fn set_i64(&mut self, i: usize, v: i64) {
        match self.dtype {
            DType::Bool => self.bytes_mut()[i] = (v != 0) as u8,
            DType::I8 => self.as_mut_slice::<i8>()[i] = v as i8,
            DType::I16 => self.as_mut_slice::<i16>()[i] = v as i16,
            DType::I32 => self.as_mut_slice::<i32>()[i] = v as i32,
            DType::I64 => self.as_mut_slice::<i64>()[i] = v,
            DType::U8 => self.as_mut_slice::<u8>()[i] = v as u8,
            DType::U16 => self.as_mut_slice::<u16>()[i] = v as u16,
            DType::U32 => self.as_mut_slice::<u32>()[i] = v as u32,
            DType::U64 => self.as_mut_slice::<u64>()[i] = v as u64,
            _ => self.set_f64(i, v as f64),
        }
    }

    /// All elements as floats.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match self.dtype {
            DType::F32 => self.as_slice::<f32>().iter().map(|&v| v as f64).collect(),
            DType::F64 => self.as_slice::<f64>().to_vec(),
            DType::F16 => self.as_slice::<f16>().iter().map(|v| v.to_f64()).collect(),
            DType::BF16 => self.as_slice::<bf16>().iter().map(|v| v.to_f64()).collect(),
            DType::U64 => self.as_slice::<u64>().iter().map(|&v| v as f64).collect(),
            _ => self.to_i64_vec().into_iter().map(|v| v as f64).collect(),
        }
    }

    /// All elements as integers: floats truncate and saturate, `uint64` wraps.
    pub fn to_i64_vec(&self) -> Vec<i64> {
        match self.dtype {
            DType::Bool => self.bytes().iter().map(|&v| v as i64).collect(),
            DType::I8 => self.as_slice::<i8>().iter().map(|&v| v as i64).collect(),
            DType::I16 => self.as_slice::<i16>().iter().map(|&v| v as i64).collect(),
            DType::I32 => self.as_slice::<i32>().iter().map(|&v| v as i64).collect(),
            DType::I64 => self.as_slice::<i64>().to_vec(),
            DType::U8 => self.as_slice::<u8>().iter().map(|&v| v as i64).collect(),
            DType::U16 => self.as_slice::<u16>().iter().map(|&v| v as i64).collect(),
            DType::U32 => self.as_slice::<u32>().iter().map(|&v| v as i64).collect(),
            DType::U64 => self.as_slice::<u64>().iter().map(|&v| v as i64).collect(),
            _ => self.to_f64_vec().into_iter().map(|v| v as i64).collect(),
        }
    }

    /// A hash of dtype, shape and bytes, computed once per buffer: what constants are interned by.
    pub fn digest(&self) -> u64 {
        let bytes = *self.data.digest.get_or_init(|| {
            let mut h = rustc_hash::FxHasher::default();
            h.write(self.bytes());
            h.finish()
        });
        let mut h = rustc_hash::FxHasher::default();
        (self.dtype, &self.shape, bytes).hash(&mut h);
        h.finish()
    }

    /// Whether both are the same bits: dtype, shape, and every byte (so NaN equals itself and -0.0 is not 0.0).
    pub fn same_bits(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && (Arc::ptr_eq(&self.data, &other.data)
                || (self.digest() == other.digest() && self.bytes() == other.bytes()))
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        self.same_bits(other)
    }
}

impl Eq for Tensor {}

impl Hash for Tensor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor[{:?}, {}]", &self.shape[..], self.dtype)?;
        if self.len() <= 8 {
            match self.dtype.is_float() {
                true => write!(f, "{:?}", self.to_f64_vec()),
                false => write!(f, "{:?}", self.to_i64_vec()),
            }?;
        }
        Ok(())
    }
}

/// What an operator takes and gives: a tensor, or a tuple of such values.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// One tensor.
    Tensor(Tensor),
    /// A tuple, possibly nested or empty.
    Tuple(Vec<Value>),
}

impl Value {
    /// The tensor. Panics on a tuple: types are checked before values flow.
    pub fn tensor(&self) -> &Tensor {
        match self {
            Value::Tensor(t) => t,
            Value::Tuple(_) => panic!("a tensor was expected where type inference had allowed a tuple"),
        }
    }

    /// The tuple's fields. Panics on a tensor: types are checked before values flow.
    pub fn fields(&self) -> &[Value] {
        match self {
            Value::Tuple(v) => v,
            Value::Tensor(_) => panic!("a tuple was expected where type inference had allowed a tensor"),
        }
    }

    /// All tensors, depth first: the order in which outputs are numbered.
    pub fn flatten(&self) -> Vec<Tensor> {
        match self {
            Value::Tensor(t) => vec![t.clone()],
            Value::Tuple(v) => v.iter().flat_map(Value::flatten).collect(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}
