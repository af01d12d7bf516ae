//! Aligned memory without contents.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use super::abi::ALIGN;

/// A block of memory, aligned to a page where it is at least one long, else to [`ALIGN`]. Its contents are arbitrary.
#[derive(Debug)]
pub(super) struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

const PAGE: usize = 4096;

impl Block {
    /// Takes memory. Ends the process where there is none, as Rust's own containers do.
    pub(super) fn new(bytes: usize) -> Block {
        let align = if bytes >= PAGE { PAGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes.max(ALIGN), align).expect("a size that fits the address space");
        // SAFETY: the layout's size is not zero.
        let at = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Block { at, layout }
    }

    /// The address of a byte of the block.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.layout.size(), "an offset within the block");
        // SAFETY: within the block, or one past its end.
        unsafe { self.at.as_ptr().add(offset) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

// SAFETY: a block owns its memory alone, and gives out nothing but addresses.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}
