//! Built programs kept on disk: a program that was built before, of the same text, weights and settings, is there at once.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::{Built, frozen::Head};
use crate::{
    codegen::{CodegenTarget, ObjectCache},
    ir::{Expr, ExprId, Module, Name, reachable},
    ops,
    pass::Settings,
    runtime::{ConstantRecord, PAGE, Program, place_after, places_after, with_gaps},
    store::{ALIGN, Digests, Entry, Key, KeyMaker, Limits, Store},
    tensor::{DType, Tensor},
};

/// Kernels by content, and whole programs by what they were made from, in one folder. Any number of processes may use it at once.
///
/// A program is kept with its calls, its object code and its constants (folded and packed as they are used), which are mapped from
/// the file and not read: several programs of one model, in one process or many, share them. Kept are programs that are plain
/// sequences of calls and that no external compiler has a part in. Of programs whose extents are unknown, or that have control flow, the module is
/// kept as passes left it, with its weights in a file by themselves; of those that external compilers have a part in, the kernels.
#[derive(Debug)]
pub struct Cache {
    objects: ObjectCache,
    models: Store,
    digests: Arc<Digests>,
    /// Whether programs are only kept and not taken from here.
    rebuilds: AtomicBool,
}

/// A few models of hundreds of megabytes.
const MODELS: Limits = Limits { bytes: 2 << 30, files: 1024 };

impl Cache {
    /// The cache in a folder, which is made when something is first kept.
    pub fn new(folder: impl Into<PathBuf>) -> Cache {
        let folder = folder.into();
        let digests = Arc::new(Digests::new(folder.join("digests")));
        let models = Store::new(folder.join("models"), MODELS).with_digests(digests.clone());
        Cache { objects: ObjectCache::new(folder.join("objects")), models, digests, rebuilds: AtomicBool::new(false) }
    }

    /// The user's: in `$XDG_CACHE_HOME/resat` or `~/.cache/resat`. None where neither is set.
    pub fn of_user() -> Option<Cache> {
        Store::folder_of_user().map(Cache::new)
    }

    /// Programs are rebuilt from now on, and kept again: for those who want to see how they are built.
    pub fn rebuild(&self) {
        self.rebuilds.store(true, Ordering::Relaxed);
    }

    /// The kernels.
    pub fn objects(&self) -> &ObjectCache {
        &self.objects
    }

    /// Weights of a program that is not kept, as they lie in a file that has them by their content: whoever makes a program of the same ones maps
    /// it. None where that can't be written, or is too large.
    pub(super) fn keep_weights(&self, tensors: &[Tensor]) -> Option<Vec<Tensor>> {
        Some(self.weights_file(tensors)?.tensors)
    }

    fn weights_file(&self, tensors: &[Tensor]) -> Option<WeightsFile> {
        let (places, end) = places_after(ALIGN, tensors);
        if !self.models.may_keep(end) {
            return None;
        }
        let about: Vec<_> = tensors.iter().zip(&places).map(|(t, at)| (t.dtype(), t.shape(), at)).collect();
        let key = KeyMaker::new().part("weights").part(format!("{about:?}"));
        let key = tensors.iter().fold(key, |key, t| key.part(t.bytes())).key();
        let entry = match self.models.get(&key) {
            Some(entry) => entry,
            None => {
                let file = self.models.put(&key, &with_gaps(ALIGN, tensors.iter().zip(places.iter().copied())))?;
                self.models.tidy();
                Entry::of(&file)?
            }
        };
        let part = |(t, &at): (&Tensor, &usize)| Tensor::from_part(t.dtype(), t.shape(), entry.file(), at).ok();
        let tensors = tensors.iter().zip(&places).map(part).collect::<Option<_>>()?;
        Some(WeightsFile { key, places, tensors })
    }

    /// Digests of files that have not changed since they were read, for keys of their content.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// What a user should know: see [`Store::complaints`].
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.objects.complaints();
        all.extend(self.models.complaints());
        all
    }

    /// The program that was kept under a key, to be run by so many threads.
    pub fn find(&self, key: &Key, threads: usize) -> Option<Built> {
        if self.rebuilds.load(Ordering::Relaxed) {
            return None;
        }
        let start = Instant::now();
        let entry = self.models.get(key)?;
        let (head, data) = head(&entry)?;
        let code = entry.bytes().get(data..data + head.code_bytes())?;
        let constant = |c: &ConstantRecord| {
            let (dtype, shape) = c.ty()?;
            Tensor::from_part(dtype, &shape, entry.file(), ALIGN + data + c.at).ok()
        };
        let found = head.link(code, constant, threads)?;
        Some(Built { time: start.elapsed(), ..found })
    }

    /// Keeps a program under a key. Gives its constants as they lie in the cache's file; none where the program was not kept.
    pub(super) fn keep(
        &self,
        key: &Key,
        program: &Program,
        built: &Built,
        target: &CodegenTarget,
    ) -> Option<Vec<Tensor>> {
        let objects = &built.objects;
        let code: usize = objects.iter().map(|o| o.bytes.len()).sum();
        let mut end = code;
        // Constants that share their data share it here, too.
        let mut placed: Vec<(&Tensor, usize)> = Vec::new();
        let mut places = Vec::new();
        for t in program.constants() {
            let (from, len) = (t.bytes().as_ptr(), t.bytes().len());
            let is_same = |other: &Tensor| (other.bytes().as_ptr(), other.bytes().len()) == (from, len);
            let known = placed.iter().find(|(other, _)| is_same(other)).map(|p| p.1);
            places.push(known.unwrap_or_else(|| {
                let at = place_after(end, len);
                placed.push((t, at));
                end = at + len;
                at
            }));
        }
        let mut next = places.iter().copied();
        let head = Head::new(program, built, target, |_| next.next().expect("a place for each constant"));
        let head = serde_json::to_vec(&head).ok()?;
        let length = (head.len() as u64).to_le_bytes();
        let data = data_after(head.len());
        let zeros = [0; PAGE];
        let mut pieces: Vec<&[u8]> = vec![&length, &head, &zeros[..data - ALIGN - length.len() - head.len()]];
        pieces.extend(objects.iter().map(|o| &o.bytes[..]));
        pieces.extend(with_gaps(code, placed.iter().copied()));
        let file = self.models.put(key, &pieces);
        self.models.tidy();
        let entry = Entry::of(&file?)?;
        let kept = |(t, at): (&Tensor, usize)| Tensor::from_part(t.dtype(), t.shape(), entry.file(), data + at).ok();
        program.constants().iter().zip(places).map(kept).collect()
    }

    /// The module that was kept under a key.
    pub(super) fn find_module(&self, key: &Key) -> Option<Module> {
        if self.rebuilds.load(Ordering::Relaxed) {
            return None;
        }
        let entry = self.models.get(key)?;
        let KeptModule { mut module, weights, constants }: KeptModule<Module> =
            serde_json::from_slice(entry.bytes()).ok()?;
        let weights = self.models.get(&weights)?;
        for (e, dtype, shape, at) in constants {
            module.replace_constant(e, Tensor::from_part(dtype, &shape, weights.file(), at).ok()?);
        }
        Some(module)
    }

    /// Keeps a module under a key. Gives its constants as they lie in the cache's file; none where it was not kept.
    pub(super) fn keep_module(&self, key: &Key, module: &Module) -> Option<HashMap<ExprId, Tensor>> {
        let functions: Vec<ExprId> = module.functions().map(|(_, f)| f).collect();
        // Constants that share their data share it here, too.
        let mut numbers: HashMap<(*const u8, DType, &[usize]), usize> = HashMap::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut constants = Vec::new();
        for e in reachable(module, functions) {
            let Expr::Constant(t) = &module[e] else { continue };
            let number = *numbers.entry((t.bytes().as_ptr(), t.dtype(), t.shape())).or_insert(tensors.len());
            if number == tensors.len() {
                tensors.push(t.clone());
            }
            constants.push((e, number));
        }
        let WeightsFile { key: weights, places, tensors } = self.weights_file(&tensors)?;
        let place = |&(e, n): &(ExprId, usize)| (e, tensors[n].dtype(), tensors[n].shape().to_vec(), places[n]);
        let record = KeptModule { module, weights, constants: constants.iter().map(place).collect() };
        self.models.put(key, &[&serde_json::to_vec(&record).ok()?])?;
        self.models.tidy();
        Some(constants.into_iter().map(|(e, n)| (e, tensors[n].clone())).collect())
    }
}

/// A file of weights, and the tensors that it has.
struct WeightsFile {
    key: Key,
    /// Where each begins.
    places: Vec<usize>,
    tensors: Vec<Tensor>,
}

/// A module that is kept: what there is beside its weights, which are in a file by their content.
#[derive(Serialize, Deserialize)]
struct KeptModule<M> {
    module: M,
    weights: Key,
    /// The constants, and where each begins in the file of the weights.
    constants: Vec<(ExprId, DType, Vec<usize>, usize)>,
}

/// The head of an entry, and where what it speaks of begins.
fn head(entry: &Entry) -> Option<(Head, usize)> {
    let (length, rest) = entry.bytes().split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let head = serde_json::from_slice(rest.get(..length)?).ok()?;
    Some((head, data_after(length) - ALIGN))
}

/// Where in a file what follows a head of so many bytes begins: with a page.
fn data_after(head: usize) -> usize {
    (ALIGN + size_of::<u64>() + head).next_multiple_of(PAGE)
}

/// A key of all that the settings hold and that decides what a program becomes, by content. None where the content of a part can't
/// be told: of rulesets, cost models, extractors and external compilers of the user's own. What such a part decided is not kept.
pub fn settings_key(key: KeyMaker, settings: &Settings) -> Option<KeyMaker> {
    // A new field must find its place here.
    let Settings {
        target,
        limits,
        cost,
        extractor,
        grade,
        rulesets,
        // What calibration ran on; passes that calibrate are no part of the default pipeline, and others name their samples.
        backend: _,
        without,
        rulesets_off,
        rulesets_on,
        placement,
    } = settings;
    if !rulesets.is_empty() || !placement.compilers.is_empty() {
        return None;
    }
    let key = key
        .part(env!("RESAT_SOURCES"))
        .part(format!("{target:?} {:?}", target.codegen()))
        .part(format!("{limits:?} {grade}"))
        .part(cost.fingerprint()?)
        .part(extractor.fingerprint()?)
        .part(format!("{without:?} {rulesets_off:?} {rulesets_on:?}"));
    // Dialects of the user's own decide by their rules; what their operators do is looked after where a module is known.
    let rules = ops::dialects().into_iter().flat_map(|d| d.rule_texts().iter().map(move |r| (d.name(), r)));
    Some(rules.fold(key, |key, (name, rules)| key.part(name).part(&*rules.file).part(&*rules.text)))
}

/// Whether a module calls operators that do not come with resat: what they do is code of the user's, which has no content to tell.
fn has_foreign_operators(m: &Module) -> bool {
    m.ids().any(|id| matches!(m[id], Expr::Op(op) if !ops::is_shipped(op)))
}

/// A key of all that decides what a program becomes, by content: `key`, which says what passes there are, the settings, the module and its parameters. None
/// where the content of a part can't be told: see [`settings_key`]; of modules, where they call operators of the user's own.
pub fn content_key(key: KeyMaker, settings: &Settings, m: &Module, params: &[(Name, Tensor)]) -> Option<Key> {
    Some(module_key(settings_key(key, settings)?, m, params)?.key())
}

fn module_key(mut key: KeyMaker, m: &Module, params: &[(Name, Tensor)]) -> Option<KeyMaker> {
    if has_foreign_operators(m) {
        return None;
    }
    // All but the elements of constants.
    key = key.part(serde_json::to_vec(m).ok()?);
    let tensor = |key: KeyMaker, t: &Tensor| key.part(format!("{} {:?}", t.dtype(), t.shape())).part(t.bytes());
    for id in m.ids() {
        if let Expr::Constant(t) = &m[id] {
            key = tensor(key, t);
        }
    }
    for (name, t) in params {
        key = tensor(key.part(name.as_str()), t);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever has the same weights reads them from the same file; one that is damaged is written again.
    #[test]
    fn weights_are_kept_by_their_content() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::new(folder.path());
        let models = folder.path().join("models");
        let files = || std::fs::read_dir(&models).expect("it is there").map(|f| f.expect("a file").path());
        let weights = |k: i64| {
            let of = |n: usize, k: i64| Tensor::from_i64_fn(DType::I32, &[n], move |i| i as i64 ^ k);
            vec![of(5000, k), of(7, 1), of(70_000, 2), of(0, 3)]
        };
        for (k, there) in [(0, 1), (0, 1), (5, 2), (0, 2)] {
            let kept = cache.keep_weights(&weights(k)).expect("they are kept");
            assert_eq!((&kept, files().count()), (&weights(k), there));
            assert!(kept.iter().all(|t| t.bytes().as_ptr().addr().is_multiple_of(ALIGN)));
            let in_page = |t: &Tensor| t.bytes().as_ptr().addr() % PAGE;
            assert_eq!(in_page(&kept[2]), place_after(0, kept[2].bytes().len()) % PAGE, "large ones have their place");
        }
        for path in files().collect::<Vec<PathBuf>>() {
            let whole = std::fs::read(&path).expect("it can be read");
            std::fs::write(&path, &whole[..whole.len() - 5]).expect("it can be written");
        }
        for k in [0, 5] {
            assert_eq!(cache.keep_weights(&weights(k)), Some(weights(k)));
        }
        assert_eq!((cache.complaints().len(), files().count()), (2, 2));
    }
}
