//! What is kept on disk between runs, found again by the content that it was made from.
//!
//! A store is a folder of files named by keys. Any number of processes may use one at the same time: a file appears whole, under
//! its name, or not at all; it never changes; it may go at any time, and whoever reads it then keeps what was read. What is found
//! is checked before it is believed. Nothing that goes wrong here costs more than time.

mod digests;

use std::{
    fmt, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

pub use digests::Digests;
use digests::{Digest, Version};

use crate::runtime::{LARGE_PAGE, MappedFile};

/// What something was made from, in 256 bits.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Key([u8; 32]);

/// Makes a key of all that matters, part by part. This very build of resat is part of every key.
#[derive(Clone, Debug)]
pub struct KeyMaker(blake3::Hasher);

/// A folder of files, found by key.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limits: Limits,
    /// Which files were found to be as they were written.
    digests: Option<Arc<Digests>>,
    complaints: Mutex<Vec<String>>,
    /// Whether something could not be written: nothing more is tried then.
    full: AtomicBool,
}

/// How much a store may hold. Beyond that, what was not used for longest goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Number of files.
    pub files: usize,
}

/// What was found in a store: bytes that lie on a boundary of [`ALIGN`].
#[derive(Clone, Debug)]
pub struct Entry(Arc<MappedFile>);

/// Alignment of what is kept, in bytes: as kernels want their arguments.
pub const ALIGN: usize = 64;

/// Digests of entries are those of what was kept, without the header.
const WHOLE: &str = "entry";

/// What every file begins with; then the number of bytes that were kept, and their digest. The whole takes [`ALIGN`] bytes.
const MAGIC: &[u8; 8] = b"resat-s1";

/// Under names that begin so are files that are not done yet.
const UNFINISHED: &str = ".new";

/// How exactly it is kept when a file was last used.
const USED: Duration = Duration::from_secs(600);

/// After this time, an unfinished file is one that somebody left behind.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Bytes that are read at a time: enough for all threads to have a part, few enough to stay in the last cache.
const CHUNK: usize = 4 << 20;

/// So many bytes and more are looked at by all threads.
const SHARED: usize = 128 << 10;

fn add(digest: &mut blake3::Hasher, bytes: &[u8]) {
    match bytes.len() {
        SHARED.. => digest.update_rayon(bytes),
        _ => digest.update(bytes),
    };
}

impl Key {
    /// The key as bytes: what another key is made of.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Default for KeyMaker {
    fn default() -> KeyMaker {
        KeyMaker::new()
    }
}

impl KeyMaker {
    /// A key of nothing but this build.
    pub fn new() -> KeyMaker {
        let key = KeyMaker(blake3::Hasher::new());
        key.part(env!("CARGO_PKG_VERSION")).part(env!("RESAT_CODEGEN_SOURCES"))
    }

    /// With these bytes. Parts keep apart from their neighbours.
    pub fn part(mut self, bytes: impl AsRef<[u8]>) -> KeyMaker {
        self.0.update(&(bytes.as_ref().len() as u64).to_le_bytes());
        add(&mut self.0, bytes.as_ref());
        self
    }

    /// With the content of a file, whatever its name is. A large one whose digest is remembered is not read.
    pub fn file(mut self, path: &Path, digests: &Digests) -> io::Result<KeyMaker> {
        let mut file = fs::File::open(path)?;
        let version = Version::of(&file, "content");
        let digest = match version.as_ref().and_then(|v| digests.known(v)) {
            Some(known) => known,
            None => {
                let read = digest_of_file(&mut file)?;
                // Unless somebody wrote to it in the meantime.
                if let Some(v) = version.filter(|v| v.is_old() && Version::of(&file, "content").as_ref() == Some(v)) {
                    digests.remember(&v, &read);
                }
                read
            }
        };
        self.0.update(&digest);
        Ok(self)
    }

    /// The key.
    pub fn key(&self) -> Key {
        Key(*self.0.finalize().as_bytes())
    }
}

/// The digest of bytes in pieces.
fn digest_of(pieces: &[&[u8]]) -> Digest {
    let mut digest = blake3::Hasher::new();
    pieces.iter().for_each(|piece| add(&mut digest, piece));
    *digest.finalize().as_bytes()
}

/// The digest of all that is left of a file, and of how much that is.
fn digest_of_file(file: &mut fs::File) -> io::Result<Digest> {
    let (mut content, mut length) = (blake3::Hasher::new(), 0u64);
    let [mut now, mut next] = [(); 2].map(|()| vec![0; CHUNK]);
    let mut n = file.read(&mut now)?;
    while n > 0 {
        length += n as u64;
        // Of a long file, one thread reads what comes next while the others look at this.
        n = match n {
            CHUNK => rayon::join(|| add(&mut content, &now), || file.read(&mut next)).1?,
            _ => {
                add(&mut content, &now[..n]);
                file.read(&mut next)?
            }
        };
        std::mem::swap(&mut now, &mut next);
    }
    content.update(&length.to_le_bytes());
    Ok(*content.finalize().as_bytes())
}

impl Entry {
    /// What was kept.
    pub fn bytes(&self) -> &[u8] {
        &(*self.0).as_ref()[ALIGN..]
    }

    /// What lies in a file that [`Store::put`] gave. None where it can't be mapped.
    pub fn of(file: &fs::File) -> Option<Entry> {
        Some(Entry(Arc::new(MappedFile::of(file).ok().filter(|m| m.as_ref().len() >= ALIGN)?)))
    }

    /// The file that holds it, for those who keep parts of it. What was kept begins at byte [`ALIGN`].
    pub fn file(&self) -> Arc<MappedFile> {
        self.0.clone()
    }
}

impl Store {
    /// The store in a folder, which is made when something is first kept.
    pub fn new(folder: impl Into<PathBuf>, limits: Limits) -> Store {
        Store {
            folder: folder.into(),
            limits,
            digests: None,
            complaints: Mutex::default(),
            full: AtomicBool::new(false),
        }
    }

    /// Remembers which files are as they were written, so that large ones are not read whole each time.
    pub fn with_digests(self, digests: Arc<Digests>) -> Store {
        Store { digests: Some(digests), ..self }
    }

    /// The user's folder for what can be made again: `resat` within `$XDG_CACHE_HOME` or `~/.cache`. None where neither is set.
    pub fn folder_of_user() -> Option<PathBuf> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("resat"))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a user should know: what could not be read or written, since this was last asked.
    pub fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut *self.complaints.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn complain(&self, path: &Path, what: impl fmt::Display) {
        let mut all = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(format!("cache: {}: {what}", path.display()));
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.to_string())
    }

    /// What was kept under a key. A file that is not as it was written is passed over, with a complaint, and removed.
    pub fn get(&self, key: &Key) -> Option<Entry> {
        let path = self.path(key);
        let opened = fs::File::open(&path).and_then(|file| Ok((MappedFile::of(&file)?, file)));
        let (mapped, file) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    self.complain(&path, format_args!("{e}; it is made again"));
                }
                return None;
            }
        };
        let known = self.digests.as_ref().and_then(|d| d.known(&Version::of(&file, WHOLE)?));
        let Some(found) = whole(mapped.as_ref(), known) else {
            self.complain(&path, "damaged, or not of resat's making; it is made again");
            let _ = fs::remove_file(&path);
            return None;
        };
        // Used just now: others go first. Where that can't be noted, it only goes earlier.
        let used = file.metadata().and_then(|m| m.modified()).ok();
        let noted = used.is_some_and(|used| used.elapsed().is_ok_and(|age| age < USED)) || {
            let _ = fs::File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
            false
        };
        if known.is_none() || !noted {
            self.remember(&file, &found);
        }
        Some(Entry(Arc::new(mapped)))
    }

    /// That a file has what its header says.
    fn remember(&self, file: &fs::File, digest: &Digest) {
        if let Some(digests) = &self.digests
            && let Some(version) = Version::of(file, WHOLE)
        {
            digests.remember(&version, digest);
        }
    }

    /// Whether so many bytes are not too many to keep.
    pub fn may_keep(&self, bytes: usize) -> bool {
        (bytes + ALIGN) as u64 <= self.limits.bytes / 2
    }

    /// Keeps some bytes, given in pieces, under a key; gives the file. What can't be written is complained of.
    pub fn put(&self, key: &Key, pieces: &[&[u8]]) -> Option<fs::File> {
        let size: usize = pieces.iter().map(|p| p.len()).sum();
        let path = self.path(key);
        if !self.may_keep(size) {
            self.complain(&path, format_args!("{size} bytes are too many to keep"));
            return None;
        }
        if self.full.load(Ordering::Relaxed) {
            return None;
        }
        let written = self.write(&path, size, pieces);
        if let Err(e) = &written {
            self.full.store(true, Ordering::Relaxed);
            self.complain(&self.folder, format_args!("{e}; nothing more is kept"));
        }
        written.ok()
    }

    fn write(&self, path: &Path, size: usize, pieces: &[&[u8]]) -> io::Result<fs::File> {
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)?;
        let digest = digest_of(pieces);
        // Whole large pages at a time: systems that keep files in such pages then have this one in them, where it is read from.
        let mut page = Vec::with_capacity((size + ALIGN).min(LARGE_PAGE));
        for mut piece in [&header(size, &digest)[..]].iter().chain(pieces).copied() {
            while !piece.is_empty() {
                let (now, later) = piece.split_at(piece.len().min(LARGE_PAGE - page.len()));
                page.extend_from_slice(now);
                if page.len() == LARGE_PAGE {
                    file.write_all(&page)?;
                    page.clear();
                }
                piece = later;
            }
        }
        file.write_all(&page)?;
        let file = file.persist(path).map_err(|e| e.error)?;
        self.remember(&file, &digest);
        Ok(file)
    }

    /// Removes what is too much. Worth a call after several things were kept: it looks at the whole folder.
    pub fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
                continue;
            }
            files.push((used, about.len(), entry.path()));
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|f| f.1).sum();
        let mut left = files.len();
        for (_, size, path) in &files {
            if bytes <= self.limits.bytes && left <= self.limits.files {
                break;
            }
            // Somebody else may have removed it already.
            let _ = fs::remove_file(path);
            (bytes, left) = (bytes - size, left - 1);
        }
    }
}

fn header(size: usize, digest: &Digest) -> [u8; ALIGN] {
    let mut header = [0; ALIGN];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&(size as u64).to_le_bytes());
    header[16..48].copy_from_slice(digest);
    header
}

/// The digest of what a file holds, where it is what the header says. What is known of it is not computed again.
fn whole(file: &[u8], known: Option<Digest>) -> Option<Digest> {
    let (found, rest) = file.split_first_chunk::<ALIGN>()?;
    let digest = known.unwrap_or_else(|| digest_of(&[rest]));
    (header(rest.len(), &digest) == *found).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1000, files: 4 };

    fn key(text: &str) -> Key {
        KeyMaker::new().part(text).key()
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::new(folder.path().join("deeper"), LIMITS);
        (folder, store)
    }

    #[test]
    fn what_is_kept_is_found() {
        let (_folder, store) = store();
        assert!(store.get(&key("a")).is_none());
        store.put(&key("a"), &[b"one", b"", b"two"]);
        let entry = store.get(&key("a")).expect("it was kept");
        assert_eq!(entry.bytes(), b"onetwo");
        assert!(entry.bytes().as_ptr().addr().is_multiple_of(ALIGN));
        assert!(store.get(&key("b")).is_none());
        assert_eq!(store.complaints(), [""; 0]);
    }

    #[test]
    fn parts_keep_apart() {
        let of = |a: &str, b: &str| KeyMaker::new().part(a).part(b).key();
        assert_ne!(of("ab", "c"), of("a", "bc"));
    }

    #[test]
    fn files_are_whole_or_nothing() {
        let (_folder, store) = store();
        store.put(&key("a"), &[b"some bytes"]);
        let path = store.path(&key("a"));
        let file = fs::read(&path).expect("it is there");
        for at in 0..file.len() {
            let mut other = file.clone();
            other[at] ^= 1;
            for damaged in [&file[..at], &other] {
                fs::write(&path, damaged).expect("it can be written");
                // What the header leaves free is the only place where a difference could go unnoticed, and it does not.
                assert!(store.get(&key("a")).is_none(), "byte {at}");
                assert_eq!(store.complaints().len(), 1);
                assert!(!path.exists());
            }
        }
    }

    #[test]
    fn what_was_not_used_goes_first() {
        let (_folder, store) = store();
        let old = SystemTime::now() - 10 * USED;
        for (i, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            store.put(&key(name), &[name.as_bytes()]);
            let file = fs::File::options().append(true).open(store.path(&key(name))).expect("it is there");
            file.set_modified(old + Duration::from_secs(i as u64)).expect("it has a time");
        }
        assert!(store.get(&key("a")).is_some());
        store.tidy();
        let there = ["a", "b", "c", "d", "e"].map(|name| store.get(&key(name)).is_some());
        assert_eq!(there, [true, false, true, true, true]);
        // The bound on bytes, and what is larger than half of it.
        store.put(&key("large"), &[&[0; 600]]);
        assert!(store.complaints()[0].contains("too many to keep"));
        for name in ["x", "y", "z"] {
            store.put(&key(name), &[&[0; 400]]);
        }
        store.tidy();
        let all = fs::read_dir(store.folder()).expect("a folder");
        assert!(all.map(|e| e.expect("an entry").metadata().expect("a file").len()).sum::<u64>() <= LIMITS.bytes);
    }

    #[test]
    fn what_cannot_be_written_is_told_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let taken = folder.path().join("taken");
        fs::write(&taken, "a file").expect("it can be written");
        let store = Store::new(&taken, LIMITS);
        store.put(&key("a"), &[b"one"]);
        store.put(&key("b"), &[b"two"]);
        assert_eq!(store.complaints().len(), 1);
    }

    #[test]
    fn many_at_once_do_not_disturb_each_other() {
        let (_folder, store) = store();
        std::thread::scope(|s| {
            for t in 0..4 {
                let folder = store.folder();
                s.spawn(move || {
                    let mine = Store::new(folder, LIMITS);
                    for i in 0..100 {
                        let k = key(&(i % 5).to_string());
                        mine.put(&k, &[&[(i % 5) as u8; 100]]);
                        if let Some(found) = mine.get(&k) {
                            assert_eq!(found.bytes(), [(i % 5) as u8; 100], "thread {t}");
                        }
                        mine.tidy();
                    }
                    assert_eq!(mine.complaints(), [""; 0]);
                });
            }
        });
    }
}
