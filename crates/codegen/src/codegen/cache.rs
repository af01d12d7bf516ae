//! Object code kept on disk, found again by the kernel that it was made from: what is the same is compiled once, whatever program
//! it stands in.

use std::path::PathBuf;

use super::{CodeGenerator, CodegenError, CodegenTarget, ObjectCode, objects};
use crate::{
    cancel::Cancel,
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

    /// As [`compile_unless`](super::compile_unless), but what was compiled before by this build is only read, and each kernel is kept as soon
    /// as it is there. Failures to read or write the cache cost time and nothing else.
    pub fn compile(
        &self,
        generator: &dyn CodeGenerator,
        kernels: &[&Kernel],
        target: &CodegenTarget,
        cancel: &Cancel,
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
        let keep = |n: usize, object: &ObjectCode| drop(self.0.put(&keys[missing[n]], &[&object.bytes]));
        let made = objects::each(generator, &wanted, target, cancel, &keep);
        for (&i, object) in missing.iter().zip(made?) {
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
        let first = cache.compile(&Llvm, &[&kernel], &target, &Cancel::default()).expect("compiles");
        let count = || std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(count(), 1);
        let again = cache.compile(&Llvm, &[&kernel], &target, &Cancel::default()).expect("is found");
        assert_eq!((&first[0].bytes, &first[0].symbols), (&again[0].bytes, &again[0].symbols));
        // Another kernel beside it is all that is made.
        let other = Kernel { name: "other".into(), ..tiled_product(1, 1, 5) };
        let both = cache.compile(&Llvm, &[&other, &kernel], &target, &Cancel::default()).expect("compiles");
        assert_eq!((both[1].bytes.clone(), count()), (first[0].bytes.clone(), 2));
        // Another target has code of its own.
        cache.compile(&Llvm, &[&kernel], &CodegenTarget::baseline(), &Cancel::default()).expect("compiles");
        assert_eq!(count(), 3);
        // As has another generator.
        cache.compile(&C99, &[&kernel], &target, &Cancel::default()).expect("compiles");
        assert_eq!(count(), 4);
        assert_eq!(cache.complaints(), [""; 0]);
    }

    #[test]
    fn what_is_finished_is_kept_when_somebody_ends_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = ObjectCache::new(folder.path());
        let kernels: Vec<Kernel> = (1..9).map(|n| Kernel { name: format!("k{n}"), ..tiled_product(1, 1, n) }).collect();
        let target = crate::codegen::llvm::host_target();
        let cancel = Cancel::new();
        // Ends the work when the first kernel is begun.
        #[derive(Debug)]
        struct Ending(Cancel);
        impl CodeGenerator for Ending {
            fn name(&self) -> &str {
                Llvm.name()
            }
            fn supports(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<(), CodegenError> {
                Llvm.supports(kernel, target)
            }
            fn generate(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<crate::codegen::Code, CodegenError> {
                self.0.cancel();
                Llvm.generate(kernel, target)
            }
            fn version(&self, target: &CodegenTarget) -> String {
                Llvm.version(target)
            }
        }
        let all: Vec<&Kernel> = kernels.iter().collect();
        let ended = cache.compile(&Ending(cancel.clone()), &all, &target, &cancel);
        assert!(matches!(ended, Err(CodegenError::Cancelled)));
        let kept = std::fs::read_dir(folder.path()).expect("a folder").count();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert!((1..=threads.min(7)).contains(&kept), "{kept} kernels are kept");
        assert_eq!(cache.compile(&Llvm, &all, &target, &Cancel::default()).expect("compiles").len(), 8);
    }

    #[test]
    fn what_is_damaged_is_made_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = ObjectCache::new(folder.path());
        let kernel = tiled_product(1, 1, 4);
        let target = crate::codegen::llvm::host_target();
        let first = cache.compile(&Llvm, &[&kernel], &target, &Cancel::default()).expect("compiles");
        let file =
            std::fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("an entry").path();
        std::fs::write(&file, "something else").expect("it can be written");
        let again = cache.compile(&Llvm, &[&kernel], &target, &Cancel::default()).expect("compiles");
        assert_eq!(first[0].bytes, again[0].bytes);
        assert!(cache.complaints()[0].contains("made again"));
    }
}
