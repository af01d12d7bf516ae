//! Exact int8 dot products.
//!
//! Some of the library's kernels bring sums into f32 on their way to `int32`, which is exact up to 2^24 only; which ones do is
//! written nowhere. So where a weight's size allows greater sums, the kernel is tried on data that would show it, and one that
//! rounds is given the weight in parts, each of which stays below.

use super::{
    graph::Kind,
    library::Library,
    md::Md,
    plan::{MemoryId, Planner},
    primitive::{Primitive, arg},
};
use crate::tensor::{DType, Tensor};

/// Integers of at most this size are exact in f32.
const EXACT: i64 = 1 << 24;

/// What is known of a weight while planning.
pub(super) enum Weights {
    Known(Tensor),
    Unknown,
}

/// The outputs of a weight of this shape, and how many products each sums.
fn extents(kind: &Kind, shape: &[i64]) -> (usize, usize) {
    let outputs = match kind {
        Kind::Convolution(w) | Kind::Deconvolution(w) if shape.len() == w.strides.len() + 3 => shape[0] * shape[1],
        _ => shape[0],
    };
    (outputs as usize, (shape.iter().product::<i64>() / outputs.max(1)) as usize)
}

/// The greatest size of an element.
fn largest(dtype: DType) -> i64 {
    if dtype == DType::U8 { 255 } else { 128 }
}

/// The products of a sum that belong to a part.
fn range(part: usize, parts: usize, products: usize) -> std::ops::Range<usize> {
    part * products / parts..(part + 1) * products / parts
}

/// The sums of a weight's products.
pub(super) struct Sums<'a> {
    outputs: usize,
    products: usize,
    most: i64,
    weight: Option<&'a Tensor>,
}

impl<'a> Sums<'a> {
    /// Of data of a type, and a weight of a shape that may be known.
    pub(super) fn new(kind: &Kind, data: DType, shape: &[i64], weight: Option<&'a Tensor>) -> Sums<'a> {
        let (outputs, products) = extents(kind, shape);
        Sums { outputs, products, most: largest(data), weight }
    }

    /// How many products each sums.
    pub(super) fn products(&self) -> usize {
        self.products
    }

    /// The greatest that a sum may be where it is taken in so many parts.
    fn bound(&self, parts: usize) -> i64 {
        let Sums { outputs, products, most, weight } = *self;
        let ranges = || (0..parts).map(|part| range(part, parts, products));
        let Some(w) = weight else { return ranges().map(|r| r.len() as i64).max().unwrap_or(0) * 128 * most };
        let w: &[i8] = w.as_slice();
        let sum = |o: usize, r: std::ops::Range<usize>| -> i64 {
            w[o * products..][r].iter().map(|&x| i64::from(x).abs() * most).sum()
        };
        (0..outputs).flat_map(|o| ranges().map(move |r| (o, r))).map(|(o, r)| sum(o, r)).max().unwrap_or(0)
    }

    /// Whether sums may have more than 24 bits.
    pub(super) fn great(&self) -> bool {
        self.bound(1) >= EXACT
    }

    /// In how many parts no sum has.
    pub(super) fn parts(&self) -> usize {
        (2..=self.products).find(|&n| self.bound(n) < EXACT).unwrap_or(self.products)
    }
}

/// In how many parts a weight is given to a primitive, so that its sums are exact.
pub(super) fn split(
    p: &mut Planner,
    kind: &Kind,
    primitive: &Primitive,
    weights: &Weights,
    shape: &[i64],
) -> Result<usize, String> {
    let known = match weights {
        Weights::Known(w) => Some(w),
        Weights::Unknown => None,
    };
    let sums = Sums::new(kind, primitive.reads[0].dtype(), shape, known);
    if !sums.great() || keeps_low_bits(p, kind, primitive, shape)? {
        return Ok(1);
    }
    match known {
        Some(_) => Ok(sums.parts()),
        None => Err(format!(
            "`{}` rounds sums of more than 24 bits, and the weight, being no constant, can't be taken apart",
            primitive.implementation
        )),
    }
}

/// A weight in parts that sum up to it.
pub(super) fn parts(w: &Tensor, shape: &[i64], kind: &Kind, parts: usize) -> Vec<Tensor> {
    if parts == 1 {
        return vec![w.clone()];
    }
    let (_, products) = extents(kind, shape);
    let extents: Vec<usize> = w.shape().to_vec();
    let of = |part: usize| {
        let kept = range(part, parts, products);
        Tensor::from_i64_fn(DType::I8, &extents, |i| if kept.contains(&(i % products)) { w.get_i64(i) } else { 0 })
    };
    (0..parts).map(of).collect()
}

/// What a zero point takes away from each output, where no window reaches beyond the data.
pub(super) fn per_channel(w: &Tensor, shape: &[i64], kind: &Kind, zero: i64) -> Vec<i32> {
    let (outputs, products) = extents(kind, shape);
    let w: &[i8] = w.as_slice();
    let sum = |o: usize| -> i64 { w[o * products..][..products].iter().map(|&x| i64::from(x)).sum() };
    (0..outputs).map(|o| (-zero * sum(o)) as i32).collect()
}

/// The result for data that are one number everywhere, kept.
pub(super) fn of_constant(
    p: &mut Planner,
    primitive: &Primitive,
    number: i64,
    weights: &[MemoryId],
) -> Result<MemoryId, String> {
    let data = filled(p, &primitive.reads[0], |_| number as u8);
    let total = run_all(p, primitive, data, weights)?;
    let out = p.keep(primitive.makes.clone());
    words(p, out, |words| words.copy_from_slice(&total));
    Ok(out)
}

/// Whether sums of more than 24 bits come out to the last bit: the same sum, in parts that are exact, is compared.
fn keeps_low_bits(p: &mut Planner, kind: &Kind, primitive: &Primitive, shape: &[i64]) -> Result<bool, String> {
    let lib = p.library;
    let (_, products) = extents(kind, shape);
    let extents: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    let top = largest(primitive.reads[0].dtype()).min(if primitive.reads[0].dtype() == DType::U8 { 255 } else { 127 });
    // Great sums whose low bits are of all kinds.
    let data = filled(p, &primitive.reads[0], |i| (top - (i % 5) as i64) as u8);
    let weight = Tensor::from_i64_fn(DType::I8, &extents, |i| 127 - (i % 3) as i64);
    let count = (products as i64 * 127 * top / (EXACT / 2) + 1) as usize;
    let whole = packed(p, lib, primitive, parts(&weight, shape, kind, 1), shape)?;
    let pieces = packed(p, lib, primitive, parts(&weight, shape, kind, count.min(products)), shape)?;
    Ok(run_all(p, primitive, data, &whole)? == run_all(p, primitive, data, &pieces)?)
}

fn packed(
    p: &mut Planner,
    lib: &'static Library,
    primitive: &Primitive,
    parts: Vec<Tensor>,
    shape: &[i64],
) -> Result<Vec<MemoryId>, String> {
    let mut all = Vec::new();
    for part in parts {
        let plain = Md::plain(lib, shape, DType::I8)?;
        let reorder = Primitive::reorder(lib, &plain, &primitive.reads[1])?;
        let (from, to) = (p.keep_tensor(part, plain), p.keep(primitive.reads[1].clone()));
        p.now_run(&reorder, &[(arg::SRC, from), (arg::DST, to)])?;
        all.push(to);
    }
    Ok(all)
}

/// Bytes in a layout without gaps.
fn filled(p: &mut Planner, md: &Md, f: impl Fn(usize) -> u8) -> MemoryId {
    let bytes = md.bytes(p.library);
    let m = p.keep(md.clone());
    // SAFETY: the memory was just made, for so many bytes, and nobody else knows of it.
    let all = unsafe { std::slice::from_raw_parts_mut(p.kept_at(m), bytes) };
    all.iter_mut().enumerate().for_each(|(i, b)| *b = f(i));
    m
}

/// The `int32` elements of what is kept, as they lie.
fn words<T>(p: &Planner, m: MemoryId, f: impl FnOnce(&mut [i32]) -> T) -> T {
    let n = p.md_of(m).bytes(p.library) / 4;
    // SAFETY: kept memory of so many bytes, aligned; it is only looked at while planning, by this thread.
    f(unsafe { std::slice::from_raw_parts_mut(p.kept_at(m).cast::<i32>(), n) })
}

/// The sum of the results for several weights.
fn run_all(p: &mut Planner, primitive: &Primitive, data: MemoryId, weights: &[MemoryId]) -> Result<Vec<i32>, String> {
    let out = p.keep(primitive.makes.clone());
    words(p, out, |words| words.fill(0));
    let mut total: Vec<i32> = Vec::new();
    for &w in weights {
        p.now_run(primitive, &[(arg::SRC, data), (arg::WEIGHTS, w), (arg::DST, out)])?;
        words(p, out, |words| {
            total.resize(words.len(), 0);
            total.iter_mut().zip(&*words).for_each(|(t, &w)| *t = t.wrapping_add(w));
        });
    }
    Ok(total)
}
