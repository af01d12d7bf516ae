//! Weights in large pages, of memory or of a file that all share who run a program of the same weights.

use std::sync::Arc;

use rayon::prelude::*;

use super::memory::Block;
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
/// them, to where `keep` keeps them. What reads megabytes once
/// in each run, as products with one row do, is bound by the translation of addresses where pages are small: on an AMD Zen 4, it gets 15 GB/s from
/// pages of 4 KiB, and 28 from those of 2 MiB. Constants that others hold as well stay where they are, since they would be there twice; so do
/// few ones, and all of them where there is no such memory.
pub fn into_large_pages(m: &mut Module, keep: impl FnOnce(&[Tensor]) -> Option<Vec<Tensor>>) {
    let is_ours = |m: &Module, e: &ExprId| matches!(&m[*e], Expr::Constant(t) if t.is_unshared() && !t.is_empty());
    let functions: Vec<ExprId> = m.functions().map(|(_, f)| f).collect();
    let ours: Vec<ExprId> = reachable(m, functions).into_iter().filter(|e| is_ours(m, e)).collect();
    let tensors: Vec<Tensor> = ours.iter().filter_map(|&e| m.take_constant(e)).collect();
    for (e, t) in ours.into_iter().zip(moved(tensors, keep)) {
        m.replace_constant(e, t);
    }
}

/// The same of tensors.
fn moved(tensors: Vec<Tensor>, keep: impl FnOnce(&[Tensor]) -> Option<Vec<Tensor>>) -> Vec<Tensor> {
    let room = |t: &Tensor| t.bytes().len().next_multiple_of(LINES);
    let bytes: usize = tensors.iter().map(room).sum();
    if bytes < FEW {
        return tensors;
    }
    if let Some(kept) = (bytes >= MANY).then(|| keep(&tensors)).flatten() {
        return kept;
    }
    let Some(block) = Block::try_new(bytes) else { return tensors };
    let starts = tensors.iter().scan(0, |next, t| Some(std::mem::replace(next, *next + room(t))));
    let placed: Vec<(usize, Tensor)> = starts.collect::<Vec<usize>>().into_iter().zip(tensors).collect();
    // Each goes as soon as it has been copied: there are not two of all of them at any time.
    let copied = |(at, t): (usize, Tensor)| {
        let from = t.bytes();
        // SAFETY: each tensor has a room of its own in the block, of as many bytes and what fills up its last line.
        unsafe {
            block.at(at).copy_from_nonoverlapping(from.as_ptr(), from.len());
            block.at(at + from.len()).write_bytes(0, room(&t) - from.len());
        }
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
        into_large_pages(&mut m, |_| None);
        assert_eq!(at(&m, unused), unused_at, "nothing uses it");
        assert_eq!(at(&m, other) - at(&m, one), 3 << 20, "one after another");
        assert_eq!(at(&m, one) % LARGE_PAGE, 0);
        assert_eq!(at(&m, kept), shared.bytes().as_ptr().addr(), "what others hold is there once");
        for (e, k) in [(one, 1), (other, 2), (kept, 3)] {
            assert_eq!(m[e], Expr::Constant(large(k)));
        }
    }
}
