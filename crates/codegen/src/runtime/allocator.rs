//! The allocator of the command line.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

/// Allocations of so many bytes and more come from the system's allocator.
const LARGE: usize = 32 << 10;

/// Small allocations by mimalloc: programs are searched, lowered and planned in millions of expressions of a few words each, many of which another
/// thread frees. Large ones, weights and results, by the system's allocator, which returns freed memory to the system at once
/// ([`memory`](super::memory)).
#[derive(Copy, Clone, Debug, Default)]
pub struct Allocator;

/// `mi_option_arena_eager_commit` (`mimalloc.h`), which the bindings leave out: whether arenas are committed when they are reserved. With it the peak of a
/// build is 15 to 20 MB higher.
const EAGER_COMMIT: mi_option_t = 4;

/// mimalloc, with its options set before the first allocation.
fn small() -> MiMalloc {
    static IS_SET: AtomicBool = AtomicBool::new(false);
    // The first allocation comes before the process has a second thread.
    if !IS_SET.load(Relaxed) {
        IS_SET.store(true, Relaxed);
        // SAFETY: it sets a number, which mimalloc reads when it first maps memory.
        unsafe { mi_option_set(EAGER_COMMIT, 0) };
    }
    MiMalloc
}

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE
}

// SAFETY: the layout decides which allocator it is, and memory is freed with the layout that it was allocated with; both keep the trait's contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { if is_large(&layout) { System.alloc(layout) } else { small().alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { if is_large(&layout) { System.alloc_zeroed(layout) } else { small().alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises, of the allocator that `memory` is from.
        unsafe { if is_large(&layout) { System.dealloc(memory, layout) } else { MiMalloc.dealloc(memory, layout) } }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises: `size` is not 0, and no more than a layout may have with this alignment.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            match (is_large(&layout), is_large(&new)) {
                (true, true) => System.realloc(memory, layout, size),
                (false, false) => MiMalloc.realloc(memory, layout, size),
                _ => {
                    let to = self.alloc(new);
                    if !to.is_null() {
                        to.copy_from_nonoverlapping(memory, size.min(layout.size()));
                        self.dealloc(memory, layout);
                    }
                    to
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is reallocated from one allocator to the other, and back, keeps its bytes and its alignment.
    #[test]
    fn bytes_are_kept_across_the_limit() {
        for align in [1, 8, 64, 4096] {
            let layout = |size: usize| Layout::from_size_align(size, align).expect("a layout");
            let is_counted = |memory: *mut u8, n: usize| {
                // SAFETY: there are as many bytes, and more.
                (0..n).all(|i| unsafe { memory.add(i).read() } == (i % 251) as u8)
            };
            // SAFETY: sizes are not 0, each layout is the one that memory was last allocated with, and what is written lies within.
            unsafe {
                let mut memory = Allocator.alloc_zeroed(layout(100));
                assert!((0..100).all(|i| memory.add(i).read() == 0));
                (0..100).for_each(|i| memory.add(i).write((i % 251) as u8));
                let mut size = 100;
                for to in [200, LARGE - 1, LARGE, 3 * LARGE, LARGE - 1, 100] {
                    memory = Allocator.realloc(memory, layout(size), to);
                    size = to;
                    assert!(is_counted(memory, 100), "{align}, {to}");
                    assert_eq!(memory as usize % align, 0, "{align}, {to}");
                }
                Allocator.dealloc(memory, layout(size));
                let memory = Allocator.alloc_zeroed(layout(2 * LARGE));
                assert!((0..2 * LARGE).all(|i| memory.add(i).read() == 0));
                Allocator.dealloc(memory, layout(2 * LARGE));
            }
        }
    }
}
