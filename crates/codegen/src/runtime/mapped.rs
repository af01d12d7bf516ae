//! Files as memory.

use std::{fs::File, io, path::Path};

#[cfg(target_os = "linux")]
use super::memory::LARGE_PAGE;

/// A file's bytes, read only, brought in from disk as they are looked at and shared with others who map the same file.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

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
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
