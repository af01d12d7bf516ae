//! Aligned memory without contents.

use std::{
    alloc::{Layout, alloc, dealloc},
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{abi::ALIGN, results::Results};
use crate::tensor::out_of_memory;

/// A block of memory, aligned to a page where it is at least one long, else to [`ALIGN`]. Its contents are arbitrary. Where it is large,
/// the system is asked for large pages: there are fewer addresses to translate.
#[derive(Debug)]
pub(super) struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

/// Bytes of a page, where systems have no others.
pub const PAGE: usize = 4096;

/// What systems with pages of 4 KiB have beside them.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Blocks are of whole large pages where that takes no more than this part of them in addition. On Granite Rapids one thread reads 16 GB/s of memory that lies
/// in large pages and 8 of what lies in small ones; a layer whose 5 MB of weights lay in the last part of a block took 0.35 ms instead of 0.2.
const SPARE: usize = 4;

impl Block {
    /// Takes memory. Where there is none, [`within_memory`](crate::tensor::within_memory) says so.
    pub(super) fn new(bytes: usize) -> Block {
        Block::try_new(bytes).unwrap_or_else(|| out_of_memory(bytes as u128))
    }

    /// The same; none where there is none.
    pub(super) fn try_new(bytes: usize) -> Option<Block> {
        // What does not fill a large page would lie in small ones.
        let whole = bytes.checked_next_multiple_of(LARGE_PAGE)?;
        let bytes = if whole - bytes <= bytes / SPARE { whole } else { bytes };
        let align = match bytes {
            LARGE_PAGE.. => LARGE_PAGE,
            PAGE.. => PAGE,
            _ => ALIGN,
        };
        let layout = Layout::from_size_align(bytes.max(ALIGN), align).ok()?;
        // SAFETY: the layout's size is not zero.
        let at = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == LARGE_PAGE {
            // SAFETY: whole pages of the block; this is advice, which changes no contents and may be ignored.
            unsafe { libc::madvise(at.as_ptr().cast(), bytes / LARGE_PAGE * LARGE_PAGE, libc::MADV_HUGEPAGE) };
        }
        Some(Block { at, layout })
    }

    /// The address of a byte of the block.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.layout.size(), "an offset within the block");
        // SAFETY: within the block, or one past its end.
        unsafe { self.at.as_ptr().add(offset) }
    }
}

/// Blocks that are not in use: what programs work in while they run.
#[derive(Debug, Default)]
pub struct Arenas {
    idle: Mutex<Vec<Block>>,
    /// No block is smaller.
    least: AtomicUsize,
    /// Memory of results that nobody has any more.
    pub(super) results: Arc<Results>,
}

impl Arenas {
    /// A block of at least so many bytes, whose contents are arbitrary. Where all are smaller, one of them goes for it: so there are no
    /// more than were in use at once. Then the new one has room for twice as much as that: pages which nobody writes are no memory, and sizes that
    /// grow little by little find the rest written already.
    pub(super) fn take(&self, bytes: usize) -> Block {
        let bytes = bytes.max(self.least.load(Ordering::Relaxed));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |b: &Block| b.layout.size();
        let fits = (0..idle.len()).filter(|&i| size(&idle[i]) >= bytes).min_by_key(|&i| size(&idle[i]));
        if let Some(i) = fits {
            return idle.swap_remove(i);
        }
        let largest = (0..idle.len()).max_by_key(|&i| size(&idle[i]));
        let smaller = largest.map(|i| idle.swap_remove(i));
        drop(idle);
        let room = smaller.as_ref().map_or(0, |b| size(b).saturating_mul(2));
        drop(smaller);
        if room > bytes
            && let Some(block) = Block::try_new(room)
        {
            return block;
        }
        Block::new(bytes)
    }

    /// Gives a block back.
    pub(super) fn give(&self, block: Block) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }

    /// Takes a block of so many bytes at once, and none smaller from now on: a run that takes no more finds its memory there.
    pub fn reserve(&self, bytes: usize) {
        self.least.fetch_max(bytes, Ordering::Relaxed);
        self.give(self.take(bytes));
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

/// While one lives, large blocks of memory go back to the system as soon as they are freed, and when the last one goes, all that is
/// free does. The allocator would rather keep them for later; but a compilation frees weights in one form as it makes them in
/// another, in sizes that do not fit each other's gaps, and takes many times what running does.
#[derive(Debug)]
pub struct MemoryRelease(());

/// How many there are.
static RELEASING: Mutex<usize> = Mutex::new(0);

/// Larger blocks are maps of their own while there is some [`MemoryRelease`], in bytes.
const LARGE: usize = 512 << 10;

/// The same when there is none: as much as the allocator would come to by itself. Runs then find memory for their results without the
/// system, which would have to clear it.
const LARGE_LATER: usize = 32 << 20;

impl MemoryRelease {
    /// From now on.
    pub fn new() -> MemoryRelease {
        let mut some = RELEASING.lock().unwrap_or_else(PoisonError::into_inner);
        *some += 1;
        if *some == 1 {
            keep_blocks_below(LARGE);
        }
        MemoryRelease(())
    }

    /// Where one lives: a compilation has other code to run from now on than before, and [forgets](forget_code) that.
    pub fn next_phase() {
        if *RELEASING.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            forget_code();
        }
    }
}

impl Default for MemoryRelease {
    fn default() -> MemoryRelease {
        MemoryRelease::new()
    }
}

impl Drop for MemoryRelease {
    fn drop(&mut self) {
        let mut some = RELEASING.lock().unwrap_or_else(PoisonError::into_inner);
        *some -= 1;
        if *some == 0 {
            keep_blocks_below(LARGE_LATER);
            give_back_memory();
            forget_code();
        }
    }
}

fn keep_blocks_below(bytes: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: concerns where blocks are taken from that are asked for later.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes as libc::c_int);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * bytes as libc::c_int);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = bytes;
}

/// Takes the code of programs and libraries out of this process' memory; what is called comes back page by page. Loading LLVM looks at
/// most of it, a compilation at a part, and running at nothing.
pub fn forget_code() {
    #[cfg(target_os = "linux")]
    for (start, bytes) in unchanged_code(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()) {
        // SAFETY: whole pages of a file that is mapped to be read and to which this process has no changes of its own (no relocations, no
        // debugger's traps), so that the same bytes are there when they are looked at again.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), bytes, libc::MADV_DONTNEED) };
    }
}

/// Where files are mapped for this process alone, not to be written, and are as on disk: addresses and bytes.
#[cfg(target_os = "linux")]
fn unchanged_code(smaps: &str) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut here = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [range, "r--p" | "r-xp", _, _, inode, _, ..] if inode != "0" => {
                let number = |hex| usize::from_str_radix(hex, 16).ok();
                here = range.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?.checked_sub(number(a)?)?)));
            }
            ["Anonymous:", changed, "kB"] => all.extend(here.take().filter(|_| changed == "0")),
            // The first line of another one.
            [range, ..] if !range.ends_with(':') => here = None,
            _ => {}
        }
    }
    all
}

/// Returns to the system what the allocators keep for later.
pub fn give_back_memory() {
    #[cfg(feature = "allocator")]
    // SAFETY: concerns free memory only.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_of_whole_large_pages_where_that_takes_little_more() {
        let taken = |bytes: usize| {
            let block = Block::new(bytes);
            (block.layout.size(), block.at(0).addr().is_multiple_of(LARGE_PAGE))
        };
        let (page, part) = (LARGE_PAGE, LARGE_PAGE / 8);
        for (bytes, whole) in [(page - part, page), (2 * page - part, 2 * page), (6 * page + 1, 7 * page), (page, page)]
        {
            assert_eq!(taken(bytes), (whole, true), "{bytes}");
        }
        for bytes in [ALIGN, 3 * PAGE, page / 2, page + part, 3 * page + 1] {
            assert_eq!(taken(bytes).0, bytes, "{bytes}: as much again would be too much");
        }
    }

    #[test]
    fn what_grows_a_little_stays_where_it_is() {
        let arenas = Arenas::default();
        let take = |bytes| {
            let block = arenas.take(bytes);
            let at = block.at(0);
            arenas.give(block);
            at
        };
        take(LARGE_PAGE);
        let grown = take(LARGE_PAGE + PAGE);
        assert_eq!(take(LARGE_PAGE + 5 * PAGE), grown);
        assert_eq!(take(2 * LARGE_PAGE), grown);
    }

    #[test]
    fn code_is_as_on_disk() {
        let text = "\
7f00-7f10 r--p 00000000 fe:00 42 /lib/a b.so
Size:                  4 kB
Anonymous:             0 kB
7f10-7f20 r-xp 00000010 fe:00 42 /lib/a b.so
Anonymous:             4 kB
7f20-7f30 r-xp 00000010 fe:00 42 /lib/c.so
7f30-7f40 rw-p 00000020 fe:00 42 /lib/c.so
Anonymous:             0 kB
7f40-7f50 r--s 00000000 fe:00 43 /weights
Anonymous:             0 kB
7f50-7f60 r--p 00000000 00:00 0
Anonymous:             0 kB
";
        assert_eq!(unchanged_code(text), [(0x7f00, 0x10)]);
        // All goes on afterwards.
        forget_code();
        drop(MemoryRelease::new());
    }
}
