//! Files as memory.

use std::{fs::File, io, path::Path};

#[cfg(target_os = "linux")]
use super::memory::LARGE_PAGE;

/// A file's bytes, read only, brought in from disk as they are looked at and shared with others who map the same file.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

/// How much of a file is copied before it goes out of memory, in bytes.
const COPIED_AT_ONCE: usize = 8 << 20;

/// A part of fewer bytes stays in memory: it takes less of that than asking takes of time.
const WORTH_RELEASING: usize = 1 << 16;

impl MappedFile {
    /// Maps a file that nobody changes in place while it is mapped: one of a cache, which is only ever replaced by another or removed, or a
    /// model's, while it is read. Such a file may go meanwhile; its bytes stay.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        MappedFile::of(&File::open(path)?)
    }

    /// Maps an open file; the same holds for it.
    pub(crate) fn of(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the bytes do not change while they are borrowed, as whoever calls this promises of the file.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        #[cfg(target_os = "linux")]
        if map.len() >= LARGE_PAGE {
            // Read in such pages where the system does that with files; advice, which may be ignored.
            map.advise(memmap2::Advice::HugePage).ok();
        }
        Ok(MappedFile(map))
    }

    /// Copies bytes of the file to where there is room for as many. What was copied goes out of memory meanwhile, and is read from the file again should
    /// somebody look at it. Bytes that are no part of the file are copied, too.
    pub fn copy_out(&self, part: &[u8], to: &mut [u8]) {
        for (from, to) in part.chunks(COPIED_AT_ONCE).zip(to.chunks_mut(COPIED_AT_ONCE)) {
            to.copy_from_slice(from);
            self.release(from);
        }
    }

    fn release(&self, part: &[u8]) {
        let Some(at) = part.as_ptr().addr().checked_sub(self.0.as_ptr().addr()) else { return };
        if at + part.len() > self.0.len() || part.len() < WORTH_RELEASING {
            return;
        }
        #[cfg(unix)]
        {
            // SAFETY: nobody writes to these pages, and the system reads them from the file again.
            let released = unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, part.len()) };
            // Where that can't be done, they take memory until all of the file is unmapped.
            released.ok();
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    /// Kilobytes of a map that are in memory.
    fn resident(map: &MappedFile) -> usize {
        let start = format!("{:x}-", map.as_ref().as_ptr().addr());
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux says");
        let from = smaps.lines().skip_while(|l| !l.starts_with(&start));
        let line = from.into_iter().find(|l| l.starts_with("Rss:")).expect("a line of it");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    #[test]
    fn what_was_copied_out_can_be_read_again() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        let bytes: Vec<u8> = (0..8u32 << 20).map(|i| (i % 251) as u8).collect();
        file.write_all(&bytes).expect("written");
        let map = MappedFile::open(file.path()).expect("it is there");
        assert!(map.as_ref() == bytes);
        assert_eq!(resident(&map), 8 << 10);
        let mut copy = vec![0; 6 << 20];
        map.copy_out(&map.as_ref()[1 << 20..7 << 20], &mut copy);
        assert!(copy == bytes[1 << 20..7 << 20]);
        assert!(resident(&map) < 4 << 10, "{}", resident(&map));
        // Of what belongs to others, nothing goes.
        map.copy_out(&bytes[1 << 20..7 << 20], &mut copy);
        assert!(map.as_ref() == bytes);
    }
}
