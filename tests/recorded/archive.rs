//! Recorded cases of front ends: zip archives with a folder for each case.

use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

/// The files of a case, by name.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The folder of the archives.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/frontends")
}

/// All cases of an archive, by name.
pub(crate) fn cases(archive: &str) -> BTreeMap<String, Files> {
    let bytes = std::fs::read(folder().join(archive)).expect("the archive is there");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).expect("it is an archive");
    let mut cases: BTreeMap<String, Files> = BTreeMap::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).expect("an entry");
        let name = entry.name().to_owned();
        let (case, file) = name.split_once('/').expect("a folder for each case");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("it is whole");
        cases.entry(case.to_owned()).or_default().insert(file.to_owned(), content);
    }
    cases
}
