//! Files that commands write: whole or not at all, and nothing left behind.
//!
//! What is written lies in a folder of its own beside the place where it goes, so that moving it there is one rename on one file
//! system. Its owner holds a lock within it: what a killed process left has none, and is removed by the next one that writes to the
//! same place.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// What the names of working folders begin with; the process' number and a number of its own follow.
const PREFIX: &str = ".resat-";

/// The file in a working folder that its owner holds a lock on.
const LOCK: &str = "lock";

/// A folder without that file is about to get it, unless it is older than this.
const NEW: Duration = Duration::from_secs(60);

/// The working folders of this process that are still there.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Attempts to remove a folder that a compiler of ours may still be writing to.
const ATTEMPTS: usize = 20;

/// Removes all working folders of this process, for who ends it at once, as on a signal. No thread can make another one afterwards: who
/// tries waits for the end.
pub fn remove_all() {
    let mut folders = live();
    for folder in folders.drain(..) {
        for _ in 0..ATTEMPTS {
            match fs::remove_dir_all(&folder) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => std::thread::sleep(Duration::from_millis(10)),
                _ => break,
            }
        }
    }
    std::mem::forget(folders);
}

/// A working folder, which goes with its owner.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    _lock: File,
}

impl WorkFolder {
    /// A folder in another one, which must exist. What killed processes left there is removed.
    ///
    /// # Errors
    /// Where no folder can be made.
    pub fn within(parent: &Path) -> io::Result<WorkFolder> {
        remove_abandoned(parent);
        loop {
            let path = unused(parent);
            // It is made and listed in one step: a signal may come in between.
            let mut folders = live();
            match fs::create_dir(&path) {
                Ok(()) => {
                    folders.push(path.clone());
                    drop(folders);
                    let lock = match File::create(path.join(LOCK)) {
                        // A process that can't see this one took the folder for abandoned.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                        lock => lock?,
                    };
                    lock.lock()?;
                    // Who took it for abandoned before it was locked held the lock until it was gone.
                    if !path.join(LOCK).exists() {
                        live().retain(|p| *p != path);
                        continue;
                    }
                    return Ok(WorkFolder { path, _lock: lock });
                }
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// A folder beside a file that is going to be written; where that is a link, beside what it leads to.
    ///
    /// # Errors
    /// Where no folder can be made: there is none to hold the file, or it may not be written to.
    pub fn beside(file: &Path) -> io::Result<WorkFolder> {
        let file = resolved(file)?;
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        WorkFolder::within(&std::path::absolute(parent)?)
    }

    /// A folder among the system's temporary files.
    ///
    /// # Errors
    /// Where no folder can be made.
    pub fn temporary() -> io::Result<WorkFolder> {
        WorkFolder::within(&std::env::temp_dir())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts files of this folder where they belong, by name and path, in place of what is there, whose permissions they take over. Data is on the
    /// disk before its name is. All places are looked at ([`may_be_files`]) before anything is put into one.
    ///
    /// # Errors
    /// Where the system refuses, or a place is for no such file, with its path; what was there before is still there.
    pub fn publish(&self, files: &[(&str, &Path)]) -> Result<(), (PathBuf, io::Error)> {
        may_be_files(&files.iter().map(|f| f.1).collect::<Vec<&Path>>())?;
        files.iter().try_for_each(|(name, to)| self.publish_one(name, to).map_err(|e| ((*to).to_owned(), e)))
    }

    fn publish_one(&self, name: &str, to: &Path) -> io::Result<()> {
        let (from, to) = (self.path.join(name), resolved(to)?);
        let file = File::open(&from)?;
        if let Ok(there) = fs::metadata(&to) {
            file.set_permissions(there.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&from, &to)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What can't be removed now is removed by whoever writes here next.
        let _ = fs::remove_dir_all(&self.path);
        live().retain(|p| *p != self.path);
    }
}

/// Whether regular files can be put under these paths, each under one of its own: the folder of each is there, and so far nothing else is in its place than
/// a regular file. A device or a pipe would be lost where a file takes its name.
///
/// # Errors
/// The first path under which none can be, and why.
pub fn may_be_files(paths: &[&Path]) -> Result<(), (PathBuf, io::Error)> {
    let mut places: Vec<PathBuf> = Vec::new();
    for path in paths {
        let at = |e| (path.to_path_buf(), e);
        let refused = |why: &str| at(io::Error::new(io::ErrorKind::InvalidInput, why));
        let place = place(path).map_err(at)?;
        match fs::metadata(&place) {
            Ok(about) if about.is_dir() => return Err(at(io::ErrorKind::IsADirectory.into())),
            Ok(about) if !about.is_file() => {
                return Err(refused("it is no regular file, and would be replaced by one"));
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at(e)),
            _ => {}
        }
        if places.contains(&place) {
            return Err(refused("two files would have that name"));
        }
        places.push(place);
    }
    Ok(())
}

/// Whether two paths are of one file, whether it is there or not.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((place(a), place(b)), (Ok(a), Ok(b)) if a == b)
}

/// Where a file is, or is going to be: by its folder without links, which must be there.
fn place(path: &Path) -> io::Result<PathBuf> {
    let path = resolved(path)?;
    let Some(name) = path.file_name() else { return fs::canonicalize(&path) };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(folder)?.join(name))
}

/// The file that a path leads to, where it is a link.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => fs::canonicalize(path),
        _ => Ok(path.to_owned()),
    }
}

/// The path of a working folder that this process has not used yet.
fn unused(parent: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    parent.join(format!("{PREFIX}{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)))
}

/// Removes the working folders that nobody holds a lock in. What a killed process has started, such as a linker, may still write
/// there: under another name, nothing is added to a folder while it is removed.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        // The lock is held meanwhile: the owner may be about to take it.
        if let Some(pid) = owner(&entry.file_name())
            && let Some(_lock) = abandoned(&entry.path(), pid)
        {
            let aside = unused(parent);
            if fs::rename(entry.path(), &aside).is_ok() {
                let _ = fs::remove_dir_all(aside);
            }
        }
    }
}

/// The process that a working folder's name tells; none where it is no such name.
fn owner(name: &std::ffi::OsStr) -> Option<u32> {
    let (pid, number) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    pid.parse().ok()
}

/// Whether a process is gone, as far as the system reports.
fn is_gone(pid: u32) -> bool {
    let processes = Path::new("/proc");
    // A thread has such a folder, too, and is no process.
    let status = fs::read_to_string(processes.join(pid.to_string()).join("status")).unwrap_or_default();
    let process = status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok());
    processes.join("self").exists() && process != Some(pid)
}

/// The lock of a folder whose owner is gone, where there is one in it; none where it has an owner.
fn abandoned(folder: &Path, pid: u32) -> Option<Option<File>> {
    let is_old = || {
        let made = fs::symlink_metadata(folder).and_then(|m| m.modified()).ok();
        made.and_then(|t| t.elapsed().ok()).is_some_and(|age| age > NEW)
    };
    let lock = match File::open(folder.join(LOCK)) {
        Ok(lock) => Some(lock.try_lock().ok().map(|()| lock)?),
        Err(_) => None,
    };
    // It was killed, or is about to take its lock.
    (is_gone(pid) || is_old()).then_some(lock)
}

/// Writes a file whole: what was there before stays until all of the new content is on the disk. Links are followed; what is there
/// and is no regular file, such as a pipe, is written to.
///
/// # Errors
/// Where the system refuses.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let folder = WorkFolder::beside(path)?;
    fs::write(folder.path().join("file"), bytes)?;
    folder.publish(&[("file", path)]).map_err(|(_, e)| e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("the folder is there");
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_is_still_written_to_goes_all_the_same() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        for round in 0..20 {
            // Nobody has that number: no system counts its processes so far.
            let folder = parent.path().join(format!("{PREFIX}4294967295-{round}"));
            fs::create_dir(&folder).expect("it can be made");
            fs::write(folder.join(LOCK), b"").expect("it can be written");
            std::thread::scope(|scope| {
                let writer = scope
                    .spawn(|| (0..).take_while(|n| fs::write(folder.join(n.to_string()), b"linked").is_ok()).count());
                remove_abandoned(parent.path());
                writer.join().expect("writing does not panic");
            });
            assert_eq!(names(parent.path()), Vec::<String>::new());
        }
    }

    #[test]
    fn files_are_replaced_whole_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        replace(&path, b"one").expect("it can be written");
        replace(&path, b"two").expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"two");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn files_are_put_in_the_place_of_files_only_and_all_of_them_or_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let work = WorkFolder::within(folder.path()).expect("a folder can be made");
        fs::write(work.path().join("one"), "one").expect("it can be written");
        fs::write(work.path().join("two"), "two").expect("it can be written");
        fs::create_dir(at("folder")).expect("it can be made");
        std::os::unix::fs::symlink("out", at("link")).expect("links can be made");
        std::os::unix::fs::symlink("socket", at("linked")).expect("links can be made");
        let socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket can be made");
        fs::write(at("out"), "old").expect("it can be written");
        let refused = |second: &str| {
            let (path, why) = work.publish(&[("one", &at("out")), ("two", &at(second))]).expect_err(second);
            assert_eq!(fs::read(at("out")).expect("it is there"), b"old", "{second}");
            assert_eq!(path, at(second));
            why.to_string()
        };
        assert_eq!(refused("folder"), "is a directory");
        assert_eq!(refused("linked"), "it is no regular file, and would be replaced by one");
        assert_eq!(refused("socket"), "it is no regular file, and would be replaced by one");
        assert_eq!(refused("out"), "two files would have that name");
        assert_eq!(refused("link"), "two files would have that name");
        assert_eq!(refused("none/two"), "No such file or directory (os error 2)");
        drop(socket);
        work.publish(&[("one", &at("out")), ("two", &at("two"))]).expect("they can be written");
        assert_eq!(fs::read(at("out")).expect("it is there"), b"one");
        assert!(is_same_file(&at("link"), &at("out")) && !is_same_file(&at("two"), &at("out")));
    }

    #[test]
    fn links_stay_links() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "one").expect("it can be written");
        std::os::unix::fs::symlink(&real, &link).expect("links can be made");
        replace(&link, b"two").expect("it can be written");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read(&real).expect("it is there"), b"two");
    }

    #[test]
    fn what_killed_processes_left_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let abandoned = folder.path().join(format!("{PREFIX}4294967294-0"));
        fs::create_dir(&abandoned).expect("it can be made");
        fs::write(abandoned.join(LOCK), "").expect("it can be written");
        fs::write(abandoned.join("weights.bin"), "x").expect("it can be written");
        let others = folder.path().join(".resat-notes");
        fs::write(&others, "x").expect("it can be written");
        let held = WorkFolder::within(folder.path()).expect("a folder can be made");
        drop(WorkFolder::within(folder.path()).expect("a folder can be made"));
        assert!(held.path().exists() && !abandoned.exists() && others.exists());
    }

    #[test]
    fn a_folder_without_a_lock_goes_with_its_process() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let gone = child.id();
        child.wait().expect("it ends");
        let make = |pid: u32| fs::create_dir(folder.path().join(format!("{PREFIX}{pid}-0"))).expect("it can be made");
        make(gone);
        make(std::process::id());
        remove_abandoned(folder.path());
        assert_eq!(names(folder.path()), [format!("{PREFIX}{}-0", std::process::id())]);
    }

    #[test]
    fn a_folder_whose_lock_is_about_to_be_taken_stays() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let begun = folder.path().join(format!("{PREFIX}{}-0", std::process::id()));
        fs::create_dir(&begun).expect("it can be made");
        fs::write(begun.join(LOCK), "").expect("it can be written");
        remove_abandoned(folder.path());
        assert!(begun.exists());
    }

    #[test]
    fn folders_are_their_owners_while_others_look_for_abandoned_ones() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let own = WorkFolder::within(folder.path()).expect("a folder can be made");
                        fs::write(own.path().join("region.c"), "x").expect("it is still there");
                    }
                });
            }
        });
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }
}
