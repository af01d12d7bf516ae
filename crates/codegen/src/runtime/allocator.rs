//! The allocator of the command line.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use libmimalloc_sys::{mi_option_set, mi_option_t};
use mimalloc::MiMalloc;

/// Bytes from which on a piece of memory comes from the system's allocator.
const LARGE: usize = 32 << 10;

/// Small pieces from mimalloc, in which programs are searched, lowered and planned: millions of expressions of a few words each, many of which another
/// thread frees. Large ones, weights and results, from the system's allocator, which gives back at once what is freed
/// ([`memory`](super::memory)).
#[derive(Copy, Clone, Debug, Default)]
pub struct Allocator;

/// `mi_option_arena_eager_commit` of mimalloc 3 (`mimalloc.h`), to which the bindings give no name: whether memory is committed before it is used, with
/// which a build takes 15 to 20 MB more.
const EAGER_COMMIT: mi_option_t = 4;

/// A piece of mimalloc's, which is told first how it is to take memory.
///
/// # Safety
/// As [`GlobalAlloc::alloc`].
unsafe fn small(layout: Layout) -> *mut u8 {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.load(Relaxed) {
        // Before the process has a second thread.
        TOLD.store(true, Relaxed);
        // SAFETY: it sets a number, which is looked at when memory is first taken.
        unsafe { mi_option_set(EAGER_COMMIT, 0) };
    }
    // SAFETY: as the caller promises.
    unsafe { MiMalloc.alloc(layout) }
}

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE
}

// SAFETY: a piece is freed where it was allocated, since its size, by which that is decided, comes with it; both allocators keep the trait's contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { if is_large(&layout) { System.alloc(layout) } else { small(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as the caller promises; the piece has as many bytes.
        unsafe {
            let piece = small(layout);
            if !piece.is_null() {
                piece.write_bytes(0, layout.size());
            }
            piece
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises, of the allocator that `piece` is from.
        unsafe { if is_large(&layout) { System.dealloc(piece, layout) } else { MiMalloc.dealloc(piece, layout) } }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises: `size` is not 0, and no more than a layout may have with this alignment.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            match (is_large(&layout), is_large(&new)) {
                (true, true) => System.realloc(piece, layout, size),
                (false, false) => MiMalloc.realloc(piece, layout, size),
                _ => {
                    let to = self.alloc(new);
                    if !to.is_null() {
                        to.copy_from_nonoverlapping(piece, size.min(layout.size()));
                        self.dealloc(piece, layout);
                    }
                    to
                }
            }
        }
    }
}
