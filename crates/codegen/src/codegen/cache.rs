//! Object code kept on disk, found again by the kernel that it was made from: what is the same is compiled once, whatever program
//! it stands in.

use std::path::PathBuf;

use super::{CodeGenerator, CodegenError, CodegenTarget, ObjectCode, objects};
use crate::{
    loops::Kernel,
    store::{Key, KeyMaker, Limits, Store},
};

/// A folder of object files, one a kernel.
#[derive(Debug)]
pub struct ObjectCache(Store);

/// Kernels take some ten kilobytes each.
const LIMITS: Limits = Limits { bytes: 256 << 20, files: 16 << 10 };

impl ObjectCache {
    /// The cache in a folder, which is made when something is first stored.
    pub fn new(folder: impl Into<PathBuf>) -> ObjectCache {
        ObjectCache(Store::new(folder, LIMITS))
    }

    /// As [`compile`](super::compile()), but what was compiled before by this build is only read. Failures to read or
    /// write the cache cost time and nothing else.
    pub fn compile(
        &self,
        generator: &dyn CodeGenerator,
        kernels: &[&Kernel],
        target: &CodegenTarget,
    ) -> Result<Vec<ObjectCode>, CodegenError> {
        objects::distinct(kernels)?;
        let version = generator.version(target);
        let of = |k: &&Kernel| key(&format!("{} {version}", generator.name()), k, target);
        let keys: Vec<Key> = kernels.iter().map(of).collect();
        let known = |(kernel, key): (&&Kernel, &Key)| {
            let bytes = self.0.get(key)?.bytes().to_vec();
            Some(ObjectCode { bytes, symbols: vec![kernel.name.clone()] })
        };
        let mut found: Vec<Option<ObjectCode>> = kernels.iter().zip(&keys).map(known).collect();
        let missing: Vec<usize> = (0..kernels.len()).filter(|&i| found[i].is_none()).collect();
        let wanted: Vec<&Kernel> = missing.iter().map(|&i| kernels[i]).collect();
        for (&i, object) in missing.iter().zip(objects::each(generator, &wanted, target)?) {
            self.0.put(&keys[i], &[&object.bytes]);
            found[i] = Some(object);
        }
        if !missing.is_empty() {
            self.0.tidy();
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// What a user should know: see [`Store::complaints`].
    pub fn complaints(&self) -> Vec<String> {
        self.0.complaints()
    }
}

fn key(generator: &str, kernel: &Kernel, target: &CodegenTarget) -> Key {
    KeyMaker::new()
        .part(format!("object by {generator}"))
        .part(&target.triple)
        .part(&target.cpu)
        .part(&target.features)
        .part(&kernel.name)
        .part(kernel.digest().0.to_le_bytes())
        .key()
}

#[cfg(all(test, feature = "llvm"))]
mod tests {
    use super::*;
    use crate::codegen::{
        c::C99,
        llvm::{Llvm, tests::tiled_product},
    };

    #[test]
    fn compiled_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = ObjectCache::new(folder.path());
        let kernel = tiled_product(1, 1, 4);
        let target = crate::codegen::llvm::host_target();
        let first = cache.compile(&Llvm, &[&kernel], &target).expect("compiles");
        let count = || std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(count(), 1);
        let again = cache.compile(&Llvm, &[&kernel], &target).expect("is found");
        assert_eq!((&first[0].bytes, &first[0].symbols), (&again[0].bytes, &again[0].symbols));
        // Another kernel beside it is all that is made.
        let other = Kernel { name: "other".into(), ..tiled_product(1, 1, 5) };
        let both = cache.compile(&Llvm, &[&other, &kernel], &target).expect("compiles");
        assert_eq!((both[1].bytes.clone(), count()), (first[0].bytes.clone(), 2));
        // Another target has code of its own.
        cache.compile(&Llvm, &[&kernel], &CodegenTarget::baseline()).expect("compiles");
        assert_eq!(count(), 3);
        // As has another generator.
        cache.compile(&C99, &[&kernel], &target).expect("compiles");
        assert_eq!(count(), 4);
        assert_eq!(cache.complaints(), [""; 0]);
    }

    #[test]
    fn what_is_damaged_is_made_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = ObjectCache::new(folder.path());
        let kernel = tiled_product(1, 1, 4);
        let target = crate::codegen::llvm::host_target();
        let first = cache.compile(&Llvm, &[&kernel], &target).expect("compiles");
        let file =
            std::fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("an entry").path();
        std::fs::write(&file, "something else").expect("it can be written");
        let again = cache.compile(&Llvm, &[&kernel], &target).expect("compiles");
        assert_eq!(first[0].bytes, again[0].bytes);
        assert!(cache.complaints()[0].contains("made again"));
    }
}
