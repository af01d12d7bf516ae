//! Weights in large pages, of memory or of a file that all share who run a program of the same weights.

use std::sync::Arc;

use rayon::prelude::*;

use super::memory::{Block, PAGE};
use crate::{
    ir::{Expr, ExprId, Module, reachable},
    tensor::Tensor,
};

/// Tensors begin at multiples of this: where vectors of any width are aligned, and no two share what a processor fetches at once.
const LINES: usize = 128;

/// Smaller weights stay where they are: the pages that translations are kept for at a time hold as many.
const FEW: usize = 4 << 20;

/// Bytes of weights from which on programs read them from where a cache keeps them: twice as many as cores keep translations of in small pages. Fewer are
/// read as fast where they are, and to map a file takes whole large pages.
pub const MANY: usize = 24 << 20;

/// Tensors of so many bytes and more begin at [`WITHIN_PAGE`] of some page.
const LARGE: usize = 64 << 10;

/// Where in a page large weights begin, in bytes. Products that stream them (`each_part` of Winograd's convolutions) go through 4 KiB of a panel at a time, and
/// prefetch the next 4 KiB meanwhile, so that all such pieces cross into another page at the same step. On Granite Rapids they take 12 to 20 % longer where
/// that is one of the first steps: docs/speed.md has measurements. Kernels whose weights fit into L2 take as long anywhere.
const WITHIN_PAGE: usize = 768;

/// Where a tensor of so many bytes begins, after `end` bytes of a block or a file that are taken, which begin with a page.
pub fn place_after(end: usize, bytes: usize) -> usize {
    match bytes {
        LARGE.. => (end + PAGE - WITHIN_PAGE).next_multiple_of(PAGE) - PAGE + WITHIN_PAGE,
        _ => end.next_multiple_of(LINES),
    }
}

/// Where tensors begin, one after the other, after `end` bytes; and where the last one ends.
pub fn places_after<'a>(end: usize, tensors: impl IntoIterator<Item = &'a Tensor>) -> (Vec<usize>, usize) {
    let mut end = end;
    let place = |t: &Tensor| {
        let at = place_after(end, t.bytes().len());
        end = at + t.bytes().len();
        at
    };
    let places = tensors.into_iter().map(place).collect();
    (places, end)
}

/// The bytes of tensors at their places after `end` bytes, with zeros between them.
pub fn with_gaps<'a>(end: usize, tensors: impl IntoIterator<Item = (&'a Tensor, usize)>) -> Vec<&'a [u8]> {
    static ZEROS: [u8; PAGE] = [0; PAGE];
    let mut end = end;
    let pieces = |(t, at): (&'a Tensor, usize)| {
        let gap = &ZEROS[..at - end];
        end = at + t.bytes().len();
        [gap, t.bytes()]
    };
    tensors.into_iter().flat_map(pieces).collect()
}

/// A block all of whose bytes up to `bytes` have been written, and are written no more.
struct Weights {
    block: Block,
    bytes: usize,
}

impl AsRef<[u8]> for Weights {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block has as many bytes, all of which were written before this was made; nobody writes them again.
        unsafe { std::slice::from_raw_parts(self.block.at(0), self.bytes) }
    }
}

/// Moves the constants of a module into one piece of memory, in their order, for which the system is asked for large pages; or, where there are many of
/// them, to where `keep`, which takes the expressions and their tensors, keeps them. What reads megabytes once
/// in each run, as products with one row do, is bound by the translation of addresses where pages are small: on an AMD Zen 4, it gets 15 GB/s from
/// pages of 4 KiB, and 28 from those of 2 MiB. Constants that others hold as well stay where they are, since they would be there twice; so do
/// few ones, and all of them where there is no such memory.
pub fn into_large_pages(m: &mut Module, keep: impl FnOnce(&[ExprId], &[Tensor]) -> Option<Vec<Tensor>>) {
    let is_ours = |m: &Module, e: &ExprId| matches!(&m[*e], Expr::Constant(t) if t.is_unshared() && !t.is_empty());
    let functions: Vec<ExprId> = m.functions().map(|(_, f)| f).collect();
    let ours: Vec<ExprId> = reachable(m, functions).into_iter().filter(|e| is_ours(m, e)).collect();
    let tensors: Vec<Tensor> = ours.iter().filter_map(|&e| m.take_constant(e)).collect();
    let moved = moved(tensors, |tensors| keep(&ours, tensors));
    for (e, t) in ours.into_iter().zip(moved) {
        m.replace_constant(e, t);
    }
}

/// The same of tensors.
fn moved(tensors: Vec<Tensor>, keep: impl FnOnce(&[Tensor]) -> Option<Vec<Tensor>>) -> Vec<Tensor> {
    let (starts, bytes) = places_after(0, &tensors);
    if bytes < FEW {
        return tensors;
    }
    if let Some(kept) = (bytes >= MANY).then(|| keep(&tensors)).flatten() {
        return kept;
    }
    let Some(block) = Block::try_new(bytes) else { return tensors };
    let zeros = |from: usize, to: usize| {
        // SAFETY: bytes of the block, which are no tensor's.
        unsafe { block.at(from).write_bytes(0, to - from) };
    };
    zeros(0, starts.first().copied().unwrap_or(bytes));
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([bytes]).collect();
    let placed: Vec<_> = starts.into_iter().zip(ends).zip(tensors).collect();
    // Each goes as soon as it has been copied: there are not two of all of them at any time.
    let copied = |((at, end), t): ((usize, usize), Tensor)| {
        let from = t.bytes();
        // SAFETY: each tensor has a place of its own in the block, of as many bytes.
        unsafe { block.at(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        zeros(at + from.len(), end);
        (at, t.dtype(), t.shape().to_vec())
    };
    let copied: Vec<_> = placed.into_par_iter().with_max_len(1).map(copied).collect();
    let weights = Arc::new(Weights { block, bytes });
    let tensor = |(at, dtype, shape): (usize, _, Vec<usize>)| {
        Tensor::from_part(dtype, &shape, weights.clone(), at).expect("as many bytes as were copied")
    };
    copied.into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::memory::LARGE_PAGE, *};
    use crate::{
        ir::{Attrs, Function},
        tensor::DType,
    };

    #[test]
    fn large_weights_begin_within_pages() {
        let of = |bytes: usize| Tensor::zeros(DType::U8, &[bytes]);
        let tensors = [of(10), of(LARGE), of(LARGE), of(5000), of(LARGE + 1), of(0), of(3)];
        let (places, end) = places_after(64, &tensors);
        let ends = places.iter().zip(&tensors).map(|(at, t)| at + t.bytes().len());
        assert!(places.iter().skip(1).zip(ends).all(|(at, end)| (end..end + PAGE).contains(at)));
        assert_eq!((places[0], places[6] + 3), (LINES, end));
        for (at, t) in places.iter().zip(&tensors) {
            let large = t.bytes().len() >= LARGE;
            assert!(if large { at % PAGE == WITHIN_PAGE } else { at % LINES == 0 }, "{at}");
        }
    }

    #[test]
    fn weights_are_the_same_elsewhere() {
        let mut m = Module::new();
        let large = |k: i64| Tensor::from_i64_fn(DType::I32, &[1 << 18, 3], |i| i as i64 + k);
        let (one, other) = (m.constant(large(1)), m.constant(large(2)));
        let shared = large(3);
        let kept = m.constant(shared.clone());
        let unused = m.constant(large(4));
        let body = m.add(Expr::Tuple(vec![one, other, kept]));
        let (type_params, params, attrs) = (vec![], vec![], Attrs::new(vec![]));
        let main = m.add(Expr::Func(Box::new(Function { type_params, params, ret: None, body, attrs })));
        m.define("main", main);
        let at = |m: &Module, e: ExprId| match &m[e] {
            Expr::Constant(t) => t.bytes().as_ptr().addr(),
            other => panic!("{other:?} is no constant"),
        };
        let unused_at = at(&m, unused);
        into_large_pages(&mut m, |_, _| None);
        assert_eq!(at(&m, unused), unused_at, "nothing uses it");
        assert_eq!(at(&m, other) - at(&m, one), 3 << 20, "one after another");
        assert_eq!(at(&m, one) % LARGE_PAGE, WITHIN_PAGE);
        assert_eq!(at(&m, kept), shared.bytes().as_ptr().addr(), "what others hold is there once");
        for (e, k) in [(one, 1), (other, 2), (kept, 3)] {
            assert_eq!(m[e], Expr::Constant(large(k)));
        }
    }
}
