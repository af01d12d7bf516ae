//! Aligned memory without contents.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::NonNull,
};

use super::abi::ALIGN;

/// A block of memory, aligned to a page where it is at least one long, else to [`ALIGN`]. Its contents are arbitrary. Where it is large,
/// the system is asked for large pages: there are fewer addresses to translate.
#[derive(Debug)]
pub(super) struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

const PAGE: usize = 4096;

/// What systems with pages of 4 KiB have beside them.
const LARGE_PAGE: usize = 2 << 20;

impl Block {
    /// Takes memory. Ends the process where there is none, as Rust's own containers do.
    pub(super) fn new(bytes: usize) -> Block {
        let align = match bytes {
            LARGE_PAGE.. => LARGE_PAGE,
            PAGE.. => PAGE,
            _ => ALIGN,
        };
        let layout = Layout::from_size_align(bytes.max(ALIGN), align).expect("a size that fits the address space");
        // SAFETY: the layout's size is not zero.
        let at = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        #[cfg(target_os = "linux")]
        if align == LARGE_PAGE {
            // SAFETY: whole pages of the block; this is advice, which changes no contents and may be ignored.
            unsafe { libc::madvise(at.as_ptr().cast(), bytes / LARGE_PAGE * LARGE_PAGE, libc::MADV_HUGEPAGE) };
        }
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

/// Gives back to the system what the allocator keeps for later: worth it after a compilation, which takes many times what running does.
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: concerns free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The most memory that this process ever had, in bytes, where the system says it.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
