//! The arrays of a Keras model: HDF5 files, and which of their datasets belong to which layer.
//!
//! Two orders exist. What Keras 3 writes (`model.weights.h5`) has a group for each layer, found by the layer's class and place
//! among its siblings, with the layer's own arrays numbered. The legacy form has a group for each layer of the outermost model,
//! and a list of the paths of all arrays within it, which end in the names of layers and arrays.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use hdf5_reader::{Dataset, Datatype, Hdf5File, OpenOptions};
use serde_json::Value as Json;

use crate::tensor::{DType, Tensor};

/// Deflate can't shrink data by more than this; arrays that claim more than their file could hold are damaged.
const DEFLATE_LIMIT: usize = 1032;

/// Legacy files cut lists of names into pieces of at most 64 KiB; so many pieces are looked for.
const MOST_PIECES: usize = 4096;

/// Where a layer's arrays are.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The layer's group in files of Keras 3: `layers/dense_1`; empty for the outermost model.
    pub group: String,
    /// The names of the layers around it and its own, from the layer of the outermost model on.
    pub names: Vec<String>,
}

/// The arrays of one model.
pub(super) struct Weights {
    store: Store,
    /// Legacy paths that were given out: layers of one name take theirs in order.
    taken: HashSet<String>,
    /// What was given out for a place and a number.
    given: HashMap<(String, Vec<String>, usize), Arc<(String, Tensor)>>,
}

enum Store {
    /// Keras 3: files, and which of them has which group (none where there is one file).
    Groups { files: Vec<File>, shards: HashMap<String, Vec<usize>> },
    /// The legacy form, and the group that all layers are in.
    Named { file: File, root: String },
    /// A model without arrays.
    Nothing,
}

/// One HDF5 file.
pub(super) struct File {
    file: Hdf5File,
    bytes: usize,
}

impl File {
    /// Opens a file.
    pub(super) fn open(bytes: Vec<u8>) -> Result<File, String> {
        let size = bytes.len();
        let most = size.saturating_mul(DEFLATE_LIMIT);
        let options = OpenOptions::default()
            .with_chunk_cache_bytes(0)
            .with_max_read_bytes(most)
            .with_max_chunk_bytes(most)
            .with_max_object_header_bytes(size);
        let file = Hdf5File::from_vec_with_options(bytes, options).map_err(|e| format!("not an HDF5 file: {e}"))?;
        Ok(File { file, bytes: size })
    }

    /// A text attribute of the file itself.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.file.root_group().ok()?.attribute(name).ok()?.read_string().ok()
    }

    /// Whether there is a group of that path.
    fn has(&self, path: &str) -> bool {
        self.file.group(path).is_ok()
    }

    /// A text attribute of a group.
    fn group_text(&self, path: &str, name: &str) -> Option<String> {
        self.file.group(path).ok()?.attribute(name).ok()?.read_string().ok()
    }

    /// The groups and arrays right within a group.
    fn members(&self, path: &str) -> (Vec<String>, Vec<String>) {
        self.file.group(path).and_then(|g| g.member_names()).unwrap_or_default()
    }

    /// A list of texts that is an attribute of a group, put together where it was cut into pieces.
    fn texts(&self, path: &str, name: &str) -> Vec<String> {
        let Ok(group) = self.file.group(path) else { return Vec::new() };
        if let Ok(all) = group.attribute(name) {
            return all.read_strings().unwrap_or_default();
        }
        (0..MOST_PIECES)
            .map_while(|i| group.attribute(&format!("{name}{i}")).ok())
            .flat_map(|piece| piece.read_strings().unwrap_or_default())
            .collect()
    }

    fn dataset(&self, path: &str) -> Option<Dataset> {
        self.file.dataset(path).ok()
    }

    /// An array.
    fn tensor(&self, path: &str) -> Result<Tensor, String> {
        let data = self.file.dataset(path).map_err(|e| e.to_string())?;
        let mut elements = 1usize;
        let mut shape = Vec::new();
        for &n in data.shape() {
            let n = usize::try_from(n).map_err(|_| format!("an extent of {n}"))?;
            elements = elements.checked_mul(n).ok_or("it has too many elements")?;
            shape.push(n);
        }
        let half_of_float = || data.attribute("dtype").is_ok_and(|a| a.read_string().is_ok_and(|s| s == "bfloat16"));
        let dtype = match data.dtype() {
            Datatype::FloatingPoint { size: 2, .. } if half_of_float() => DType::BF16,
            Datatype::FloatingPoint { size: 2, .. } => DType::F16,
            Datatype::FloatingPoint { size: 4, .. } => DType::F32,
            Datatype::FloatingPoint { size: 8, .. } => DType::F64,
            Datatype::Opaque { size: 2, .. } | Datatype::FixedPoint { size: 2, signed: false, .. }
                if half_of_float() =>
            {
                DType::BF16
            }
            Datatype::FixedPoint { size, signed, .. } => match (size, signed) {
                (1, true) => DType::I8,
                (2, true) => DType::I16,
                (4, true) => DType::I32,
                (8, true) => DType::I64,
                (1, false) => DType::U8,
                (2, false) => DType::U16,
                (4, false) => DType::U32,
                (8, false) => DType::U64,
                _ => return Err(format!("integers of {size} bytes are not supported")),
            },
            // What numpy's booleans are written as.
            Datatype::Enum { base, members } if members.len() == 2 => match **base {
                Datatype::FixedPoint { size: 1, .. } => DType::Bool,
                _ => return Err("enumerations are not supported".to_owned()),
            },
            other => return Err(format!("arrays of {other:?} are not supported")),
        };
        if elements.checked_mul(dtype.bytes()).is_none_or(|n| n > self.bytes.saturating_mul(DEFLATE_LIMIT)) {
            return Err(format!("{elements} elements, which the file can't hold"));
        }
        let bytes = match dtype {
            DType::Bool | DType::BF16 => data.read_raw_bytes(),
            _ => data.read_native_bytes(),
        };
        let mut bytes = bytes.map_err(|e| e.to_string())?;
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        Tensor::from_bytes(dtype, &shape, &bytes).map_err(|e| e.to_string())
    }
}

impl Weights {
    fn new(store: Store) -> Weights {
        Weights { store, taken: HashSet::new(), given: HashMap::new() }
    }

    /// No arrays at all.
    pub(super) fn nothing() -> Weights {
        Weights::new(Store::Nothing)
    }

    /// The one file of a `.keras` archive.
    pub(super) fn groups(file: File) -> Weights {
        Weights::new(Store::Groups { files: vec![file], shards: HashMap::new() })
    }

    /// Several files, and `model.weights.json`, which says what is where; `names` are those of the files.
    ///
    /// # Errors
    /// A map that is malformed, or names a file that is not there.
    pub(super) fn shards(files: Vec<File>, names: &[String], map: &Json) -> Result<Weights, String> {
        let map = map.get("weight_map").and_then(Json::as_object).ok_or("model.weights.json has no `weight_map`")?;
        let mut shards: HashMap<String, Vec<usize>> = HashMap::new();
        for (group, files) in map {
            let listed: Vec<&Json> = match files {
                Json::Array(several) => several.iter().collect(),
                one => vec![one],
            };
            for file in listed {
                let at = file.as_str().and_then(|f| names.iter().position(|n| n == f));
                let at = at.ok_or_else(|| format!("model.weights.json names {file}, which is not in the archive"))?;
                shards.entry(group.trim_matches('/').to_owned()).or_default().push(at);
            }
        }
        Ok(Weights::new(Store::Groups { files, shards }))
    }

    /// A legacy file.
    pub(super) fn named(file: File) -> Weights {
        let root = if file.has("model_weights") { "model_weights/" } else { "" };
        Weights::new(Store::Named { root: root.to_owned(), file })
    }

    /// The group of a layer among those of a container, such as `layers`: by the name that its arrays carry, or by its class
    /// and number as it was counted.
    pub(super) fn child(&self, container: &str, counted: &str, name: &str) -> String {
        let path = join(container, counted);
        let Store::Groups { files, .. } = &self.store else { return path };
        let called = |group: &str| files.iter().find_map(|f| f.group_text(&join(group, "vars"), "name"));
        match called(&path) {
            found if found.as_deref().is_some_and(|n| n != name) || !files.iter().any(|f| f.has(&path)) => {
                let siblings = files.iter().flat_map(|f| f.members(container).0);
                let found = siblings.map(|s| join(container, s.rsplit('/').next().unwrap_or(&s)));
                found.into_iter().find(|group| called(group).is_some_and(|n| n == name)).unwrap_or(path)
            }
            _ => path,
        }
    }

    /// Which of the names that a part of a layer may have is that of its group.
    pub(super) fn part(&self, group: &str, candidates: &[&str]) -> String {
        let there = |c: &&&str| match &self.store {
            Store::Groups { files, .. } => files.iter().any(|f| f.has(&join(group, c))),
            _ => true,
        };
        let found = candidates.iter().find(there).or(candidates.first()).copied().unwrap_or_default();
        join(group, found)
    }

    /// The array of a layer with that number and name; `None` where the file has none.
    ///
    /// # Errors
    /// An array that can't be read.
    pub(super) fn get(
        &mut self,
        place: &Place,
        index: usize,
        leaf: &str,
    ) -> Result<Option<Arc<(String, Tensor)>>, String> {
        let key = (place.group.clone(), place.names.clone(), index);
        if let Some(found) = self.given.get(&key) {
            return Ok(Some(found.clone()));
        }
        let Some((at, path)) = self.find(place, index, leaf) else { return Ok(None) };
        let file = match &self.store {
            Store::Groups { files, .. } => &files[at],
            Store::Named { file, .. } => file,
            Store::Nothing => return Ok(None),
        };
        let tensor = file.tensor(&path).map_err(|e| format!("array `{path}`: {e}"))?;
        let found = Arc::new((path.clone(), tensor));
        self.taken.insert(path);
        self.given.insert(key, found.clone());
        Ok(Some(found))
    }

    fn find(&self, place: &Place, index: usize, leaf: &str) -> Option<(usize, String)> {
        match &self.store {
            Store::Nothing => None,
            Store::Groups { files, shards } => {
                let group = join(&place.group, "vars");
                let path = join(&group, &index.to_string());
                let in_map = shards.get(&group).or_else(|| shards.get(&place.group));
                let all: Vec<usize> = (0..files.len()).collect();
                let at = in_map.unwrap_or(&all).iter().copied().find(|&i| files[i].dataset(&path).is_some())?;
                Some((at, path))
            }
            Store::Named { file, root } => {
                let outermost = place.names.first()?;
                let group = format!("{root}{outermost}");
                let names = file.texts(&group, "weight_names");
                let path = legacy_path(&names, &place.names, leaf, |p| !self.taken.contains(&format!("{group}/{p}")))?;
                Some((0, format!("{group}/{path}")))
            }
        }
    }
}

/// Of the paths of a layer's arrays, the first free one that is for an array of that name; of several, those count that name all
/// of the layers, then most of them.
fn legacy_path<'a>(paths: &'a [String], layers: &[String], leaf: &str, free: impl Fn(&str) -> bool) -> Option<&'a str> {
    let score = |path: &str| {
        let mut parts: Vec<&str> = path.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        let last = last.split(':').next().unwrap_or(last);
        if last != leaf {
            return None;
        }
        // The names of layers, in order, among the parts.
        let mut rest = parts.as_slice();
        let mut met = 0;
        for name in layers {
            if let Some(at) = rest.iter().position(|p| p == name) {
                (met, rest) = (met + 1, &rest[at + 1..]);
            }
        }
        let own = layers.last().is_some_and(|own| parts.contains(&own.as_str()));
        Some((own, met))
    };
    let fitting = paths.iter().filter(|p| free(p)).filter_map(|p| score(p).map(|s| (s, p)));
    let best = fitting.fold(None, |best: Option<((bool, usize), &'a String)>, (s, p)| match best {
        Some((most, _)) if most >= s => best,
        _ => Some((s, p)),
    });
    best.map(|(_, p)| p.as_str())
}

fn join(group: &str, name: &str) -> String {
    match (group.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (_, true) => group.to_owned(),
        _ => format!("{group}/{name}"),
    }
}
