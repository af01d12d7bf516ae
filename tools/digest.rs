// Included by build scripts: the digest of all files in the given folders.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
};

fn digest(parts: &[&str]) -> u64 {
    let mut files = Vec::new();
    for part in parts {
        println!("cargo::rerun-if-changed={part}");
        gather(Path::new(part), &mut files);
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    hasher.finish()
}

fn gather(path: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|e| gather(&e.path(), files)),
        Err(_) => files.push(path.to_owned()),
    }
}
