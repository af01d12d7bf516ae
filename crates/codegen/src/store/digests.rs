//! Digests of large files, remembered while nothing says that a file has changed.
//!
//! A file is taken for unchanged while device, inode, size, time of last write and time of last change are the same, on file systems
//! that keep these for every write, and within one boot of the system: what a crash may have lost is read again. Programs can set the
//! time of last write but not that of last change.

use std::{
    fs::File,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Key, KeyMaker, Limits, Store};

/// What is remembered of files, in a folder. Where it can't be read or written, files are read again and nothing is said.
#[derive(Debug)]
pub struct Digests(Store);

/// A digest of a file's content.
pub(super) type Digest = [u8; 32];

/// What tells one version of a file from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Version {
    key: Key,
    /// When the file was last written or changed.
    since: SystemTime,
}

/// Each record is a file of its own.
const LIMITS: Limits = Limits { bytes: 1 << 20, files: 4096 };

/// A smaller file is read as fast as what is remembered of it.
const LARGE: u64 = 1 << 20;

/// The least time since its last change after which a file of somebody else's is remembered. A page that is written through memory changes the times
/// when it is first written after it went to disk, which it does within half a minute.
const LEAST_AGE: Duration = Duration::from_secs(60);

impl Digests {
    /// Those in a folder, which is made when something is first remembered.
    pub fn new(folder: impl Into<PathBuf>) -> Digests {
        Digests(Store::new(folder, LIMITS))
    }

    pub(super) fn known(&self, version: &Version) -> Option<Digest> {
        self.0.get(&version.key)?.bytes().try_into().ok()
    }

    pub(super) fn remember(&self, version: &Version, digest: &Digest) {
        self.0.put(&version.key, &[digest]);
        self.0.tidy();
    }
}

impl Version {
    /// That of an open file. `what` says which digest is meant. None of small files, and where the system does not tell enough.
    pub(super) fn of(file: &File, what: &str) -> Option<Version> {
        version(file, what)
    }

    /// Whether the file has not been changed for a while.
    pub(super) fn is_old(&self) -> bool {
        self.since.elapsed().is_ok_and(|age| age >= LEAST_AGE)
    }
}

#[cfg(target_os = "linux")]
fn version(file: &File, what: &str) -> Option<Version> {
    use std::os::unix::fs::MetadataExt;

    /// File systems that note every change of a file, whoever makes it: ext2 to ext4, XFS, Btrfs, OverlayFS, F2FS (`linux/magic.h`). In
    /// memory (tmpfs) and over networks, what is written through memory or by another machine may go unnoticed.
    const LOCAL: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0xF2F5_2010];

    let about = file.metadata().ok().filter(|m| m.is_file() && m.len() >= LARGE)?;
    // The field's width and sign differ from machine to machine; a magic number takes 32 bits.
    let kind = rustix::fs::fstatfs(file).ok()?.f_type as u32;
    if !LOCAL.contains(&kind) {
        return None;
    }
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let (written, changed) = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
    let at = |(seconds, nanoseconds): (i64, i64)| {
        UNIX_EPOCH + Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32)
    };
    let place = format!("{} {} {} {written:?} {changed:?}", about.dev(), about.ino(), about.len());
    Some(Version { key: KeyMaker::new().part(what).part(boot).part(place).key(), since: at(written.max(changed)) })
}

#[cfg(not(target_os = "linux"))]
fn version(_: &File, _: &str) -> Option<Version> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        fs,
        io::{Seek, SeekFrom, Write},
        path::Path,
    };

    use super::*;

    /// Beside the test itself, since the system's folder for temporary files may lie in memory.
    fn folder() -> tempfile::TempDir {
        let test = std::env::current_exe().expect("the test is a file");
        tempfile::tempdir_in(test.parent().expect("it lies in a folder")).expect("a temporary folder")
    }

    fn version(path: &Path) -> Option<Version> {
        Version::of(&File::open(path).expect("it is there"), "content")
    }

    #[test]
    fn edits_make_another_version() {
        let folder = folder();
        let path = folder.path().join("weights");
        fs::write(&path, vec![1; LARGE as usize]).expect("it can be written");
        let Some(first) = version(&path) else { return eprintln!("skipped: a file system without sure times") };
        assert_eq!(version(&path).as_ref(), Some(&first));
        assert!(!first.is_old());
        let digests = Digests::new(folder.path().join("digests"));
        assert_eq!(digests.known(&first), None);
        let key = || KeyMaker::new().file(&path, &digests).expect("it can be read").key();
        let read = key();
        // A file that was changed just now is not remembered by itself.
        assert_eq!(digests.known(&first), None);
        digests.remember(&first, &[7; 32]);
        let remembered = key();
        assert_ne!(read, remembered);
        assert_eq!(digests.known(&first), Some([7; 32]));
        // The clock of files is coarse.
        std::thread::sleep(Duration::from_millis(20));
        let written = fs::metadata(&path).expect("it is there").modified().expect("it has a time");
        let mut file = fs::File::options().write(true).open(&path).expect("it is there");
        file.seek(SeekFrom::End(-1)).expect("it is long enough");
        file.write_all(&[2]).expect("it can be written");
        file.set_modified(written).expect("it has a time");
        let second = version(&path).expect("it is large");
        assert_ne!(second, first);
        assert_eq!(digests.known(&second), None);
        assert!(![read, remembered].contains(&key()));
        // Of one file, digests of several kinds.
        assert_ne!(Version::of(&file, "entry"), Some(second));
        assert_eq!(digests.0.complaints(), [""; 0]);
    }

    #[test]
    fn small_files_are_read() {
        let folder = folder();
        let path = folder.path().join("weights");
        fs::write(&path, vec![1; LARGE as usize - 1]).expect("it can be written");
        assert_eq!(version(&path), None);
        assert_eq!(Version::of(&File::open(folder.path()).expect("a folder"), "content"), None);
    }
}
