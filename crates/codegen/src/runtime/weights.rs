//! Weights in memory of large pages.

use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions};
use rayon::prelude::*;

use super::memory::LARGE_PAGE;
use crate::{
    ir::{Expr, ExprId, Module},
    tensor::Tensor,
};

/// Tensors begin at multiples of this: where vectors of any width are aligned, and no two share what a processor fetches at once.
const LINES: usize = 128;

/// Smaller weights stay where they are: the pages that translations are kept for at a time hold as many.
const FEW: usize = 4 << 20;

/// Memory that is written no more.
struct Weights(MmapMut);

impl AsRef<[u8]> for Weights {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Moves the constants of a module into one piece of memory, in their order, for which the system is asked for large pages. What reads megabytes once
/// in each run, as products with one row do, is bound by the translation of addresses where pages are small: on an AMD Zen 4, it gets 15 GB/s from
/// pages of 4 KiB, and 28 from those of 2 MiB. Constants that others hold as well stay where they are, since they would be there twice; so do
/// few ones, and all of them where there is no such memory.
pub fn into_large_pages(m: &mut Module) {
    let is_ours = |m: &Module, e: &ExprId| matches!(&m[*e], Expr::Constant(t) if t.is_unshared() && !t.is_empty());
    let ours: Vec<ExprId> = m.ids().filter(|e| is_ours(m, e)).collect();
    let tensors: Vec<Tensor> = ours.iter().filter_map(|&e| m.take_constant(e)).collect();
    for (e, t) in ours.into_iter().zip(moved(tensors)) {
        m.replace_constant(e, t);
    }
}

/// The same of tensors.
fn moved(tensors: Vec<Tensor>) -> Vec<Tensor> {
    let room = |t: &Tensor| t.bytes().len().next_multiple_of(LINES);
    let bytes: usize = tensors.iter().map(room).sum();
    if bytes < FEW {
        return tensors;
    }
    let Some((mut memory, start)) = of_large_pages(bytes) else { return tensors };
    let mut places = Vec::with_capacity(tensors.len());
    let (mut rest, mut at) = (&mut memory[start..], start);
    for t in tensors {
        let room = room(&t);
        let (own, others) = rest.split_at_mut(room);
        places.push((t, own, at));
        (rest, at) = (others, at + room);
    }
    // Each goes as soon as it has been copied: there are not two of all of them at any time.
    let copied = |(t, own, at): (Tensor, &mut [u8], usize)| {
        own[..t.bytes().len()].copy_from_slice(t.bytes());
        (t.dtype(), t.shape().to_vec(), at)
    };
    let copied: Vec<_> = places.into_par_iter().with_max_len(1).map(copied).collect();
    let memory = Arc::new(Weights(memory));
    let tensor = |(dtype, shape, at): (_, Vec<usize>, usize)| {
        Tensor::from_part(dtype, &shape, memory.clone(), at).expect("as many bytes as were copied")
    };
    copied.into_iter().map(tensor).collect()
}

/// So many bytes, and where the first of them that begins a large page is.
fn of_large_pages(bytes: usize) -> Option<(MmapMut, usize)> {
    let memory = MmapOptions::new().len(bytes + LARGE_PAGE).map_anon().ok()?;
    #[cfg(target_os = "linux")]
    // Advice, which may be ignored.
    memory.advise(memmap2::Advice::HugePage).ok();
    let start = memory.as_ptr().align_offset(LARGE_PAGE);
    Some((memory, start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn weights_are_the_same_elsewhere() {
        let mut m = Module::new();
        let large = |k: i64| Tensor::from_i64_fn(DType::I32, &[1 << 18, 3], |i| i as i64 + k);
        let (one, other) = (m.constant(large(1)), m.constant(large(2)));
        let shared = large(3);
        let kept = m.constant(shared.clone());
        let before = |m: &Module, e: ExprId| match &m[e] {
            Expr::Constant(t) => t.bytes().as_ptr().addr(),
            other => panic!("{other:?} is no constant"),
        };
        into_large_pages(&mut m);
        assert_eq!(before(&m, other) - before(&m, one), 3 << 20, "one after another");
        assert_eq!(before(&m, one) % LARGE_PAGE, 0);
        assert_eq!(before(&m, kept), shared.bytes().as_ptr().addr(), "what others hold is there once");
        for (e, k) in [(one, 1), (other, 2), (kept, 3)] {
            assert_eq!(m[e], Expr::Constant(large(k)));
        }
    }
}
