//! Object code kept on disk, found again by what it was made from: an unchanged program is compiled once.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use super::{CodegenError, ObjectCode, compile};
use crate::{
    codegen::CodegenTarget,
    loops::{Digest, Kernel, digest_bytes},
};

/// A folder of object files.
#[derive(Clone, Debug)]
pub struct ObjectCache {
    folder: PathBuf,
    /// What made the code, beside kernels and target: this very build of the program.
    maker: Vec<u8>,
}

/// What every file begins with; then the digest of the rest, the number of symbols, their lengths and names, and the object.
const MAGIC: &[u8; 8] = b"resatob1";

/// Identifies the running build: objects of another one may differ in any way.
fn build() -> Vec<u8> {
    let mut id = env!("CARGO_PKG_VERSION").as_bytes().to_vec();
    if let Ok(meta) = std::env::current_exe().and_then(fs::metadata) {
        id.extend(meta.len().to_le_bytes());
        let changed = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        id.extend(changed.map_or(0, |d| d.as_nanos()).to_le_bytes());
    }
    id
}

impl ObjectCache {
    /// The cache in a folder, which is made when something is first stored.
    pub fn new(folder: impl Into<PathBuf>) -> ObjectCache {
        ObjectCache { folder: folder.into(), maker: build() }
    }

    /// The user's cache: `resat` within `$XDG_CACHE_HOME` or `~/.cache`. None where neither is set.
    pub fn of_user() -> Option<ObjectCache> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
        Some(ObjectCache::new(base.join("resat").join("objects")))
    }

    /// As [`compile`](super::compile()), but what was compiled before by this build is only read. Failures to read or
    /// write the cache cost time and nothing else.
    pub fn compile(&self, kernels: &[&Kernel], target: &CodegenTarget) -> Result<Vec<ObjectCode>, CodegenError> {
        compile::distinct(kernels)?;
        let groups: Vec<&[&Kernel]> = kernels.chunks(compile::KERNELS_PER_MODULE).collect();
        let keys: Vec<Digest> = groups.iter().map(|group| self.key(group, target)).collect();
        let mut found: Vec<Option<ObjectCode>> = keys.iter().map(|&k| self.read(k)).collect();
        let missing: Vec<usize> = (0..groups.len()).filter(|&i| found[i].is_none()).collect();
        let wanted: Vec<&[&Kernel]> = missing.iter().map(|&i| groups[i]).collect();
        for (&i, object) in missing.iter().zip(compile::compile_groups(&wanted, target)?) {
            if let Err(e) = self.write(keys[i], &object) {
                log::debug!("object cache {}: {e}", self.folder.display());
            }
            found[i] = Some(object);
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn key(&self, group: &[&Kernel], target: &CodegenTarget) -> Digest {
        let digests: Vec<[u8; 16]> = group.iter().map(|k| k.digest().0.to_le_bytes()).collect();
        let mut parts: Vec<&[u8]> = vec![&self.maker, target.triple.as_bytes(), target.cpu.as_bytes()];
        parts.push(target.features.as_bytes());
        for (k, digest) in group.iter().zip(&digests) {
            parts.extend([k.name.as_bytes(), &digest[..]]);
        }
        digest_bytes(&parts)
    }

    fn path(&self, key: Digest) -> PathBuf {
        self.folder.join(format!("{key}.resatobj"))
    }

    fn read(&self, key: Digest) -> Option<ObjectCode> {
        decode(&fs::read(self.path(key)).ok()?)
    }

    fn write(&self, key: Digest, object: &ObjectCode) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Others may read or write the same file at the same time: it appears complete or not at all.
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&encode(object))?;
        file.persist(self.path(key)).map_err(|e| e.error)?;
        Ok(())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn encode(object: &ObjectCode) -> Vec<u8> {
    let mut rest = (object.symbols.len() as u64).to_le_bytes().to_vec();
    for s in &object.symbols {
        rest.extend((s.len() as u64).to_le_bytes());
        rest.extend(s.as_bytes());
    }
    rest.extend(&object.bytes);
    let digest = digest_bytes(&[&rest]).0.to_le_bytes();
    [&MAGIC[..], &digest, &rest].concat()
}

/// The object in a file; none where the file is not whole.
fn decode(file: &[u8]) -> Option<ObjectCode> {
    let (digest, rest) = file.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
    if digest_bytes(&[rest]).0.to_le_bytes() != *digest {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<8>()?;
    let mut symbols = vec![];
    for _ in 0..u64::from_le_bytes(*count) {
        let (len, more) = rest.split_first_chunk::<8>()?;
        let (name, more) = more.split_at_checked(u64::from_le_bytes(*len) as usize)?;
        symbols.push(String::from_utf8(name.to_vec()).ok()?);
        rest = more;
    }
    Some(ObjectCode { bytes: rest.to_vec(), symbols })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_nothing() {
        let object = ObjectCode { bytes: vec![1, 2, 3], symbols: vec!["a".into(), "bc".into()] };
        let file = encode(&object);
        let back = decode(&file).expect("a whole file");
        assert_eq!((back.bytes, back.symbols), (object.bytes, object.symbols));
        for cut in 0..file.len() {
            assert!(decode(&file[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn compiled_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = ObjectCache::new(folder.path());
        let kernel = crate::codegen::llvm::tests::tiled_product(1, 1, 4);
        let target = CodegenTarget::host();
        let first = cache.compile(&[&kernel], &target).expect("compiles");
        let count = || fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(count(), 1);
        let again = cache.compile(&[&kernel], &target).expect("is found");
        assert_eq!(first[0].bytes, again[0].bytes);
        let other = crate::codegen::llvm::tests::tiled_product(1, 1, 5);
        cache.compile(&[&other], &target).expect("compiles");
        assert_eq!(count(), 2);
    }
}
