//! What a model file is made of: its configuration and its arrays.

use std::io::{Cursor, Read};

use serde_json::Value as Json;
use zip::ZipArchive;

use super::weights::{File, Weights};

/// First bytes of HDF5 files.
pub(super) const HDF5_MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";

/// First bytes of zip archives.
pub(super) const ZIP_MAGIC: &[u8] = b"PK\x03\x04";

/// Deflate can't shrink data by more than this; an entry that claims more is damaged.
const DEFLATE_LIMIT: u64 = 1032;

/// A model file, opened.
pub(super) struct Opened {
    /// The configuration: a layer's, of class `Sequential` or `Functional`.
    pub config: Json,
    /// The arrays.
    pub weights: Weights,
    /// Whether it was written by Keras 2, some of whose names mean something else.
    pub keras2: bool,
}

/// Whether there is an HDF5 file at the start. (User blocks before it are not written by Keras.)
pub(super) fn is_hdf5(bytes: &[u8]) -> bool {
    bytes.starts_with(HDF5_MAGIC)
}

/// Whether it is a zip archive that holds a `config.json`, however damaged: the name stands in plain text.
pub(super) fn is_archive(bytes: &[u8]) -> bool {
    let name = b"config.json";
    bytes.starts_with(ZIP_MAGIC) && bytes.windows(name.len()).any(|w| w == name)
}

/// Opens a `.keras` archive.
pub(super) fn open_archive(bytes: &[u8]) -> Result<Opened, String> {
    let mut zip = Zip::open(bytes)?;
    let config = json("config.json", &zip.read("config.json")?.ok_or("the archive has no config.json")?)?;
    let version = match zip.read("metadata.json")? {
        Some(text) => json("metadata.json", &text)?.get("keras_version").and_then(Json::as_str).map(str::to_owned),
        None => None,
    };
    let opened = |name: &str, bytes| File::open(bytes).map_err(|e| format!("{name}: {e}"));
    let weights = if let Some(bytes) = zip.read("model.weights.h5")? {
        Weights::groups(opened("model.weights.h5", bytes)?)
    } else if let Some(map) = zip.read("model.weights.json")? {
        let map = json("model.weights.json", &map)?;
        let names: Vec<String> = zip.names().filter(|n| n.ends_with(".weights.h5")).map(str::to_owned).collect();
        let mut files = Vec::new();
        for name in &names {
            let bytes = zip.read(name)?.ok_or_else(|| format!("the archive has no {name}"))?;
            files.push(opened(name, bytes)?);
        }
        Weights::shards(files, &names, &map)?
    } else if zip.names().any(|n| n == "model.weights.npz") {
        return Err("weights as model.weights.npz are not supported: save the model again as .keras".to_owned());
    } else {
        Weights::nothing()
    };
    Ok(Opened { keras2: is_keras2(version.as_deref(), &config), config, weights })
}

/// Opens a legacy file.
pub(super) fn open_hdf5(bytes: &[u8]) -> Result<Opened, String> {
    let file = File::open(bytes.to_vec())?;
    let Some(config) = file.text("model_config") else {
        return Err("the HDF5 file has no attribute `model_config`: it is not a Keras model, or its weights alone \
                    (save the whole model)"
            .to_owned());
    };
    let config = json("model_config", config.as_bytes())?;
    let keras2 = is_keras2(file.text("keras_version").as_deref(), &config);
    Ok(Opened { config, weights: Weights::named(file), keras2 })
}

/// Whether Keras 2 wrote it: by the version that the file names, else by the form of the configuration.
fn is_keras2(version: Option<&str>, config: &Json) -> bool {
    // tf_keras is Keras 2 under the version of the TensorFlow that it goes with.
    let module = config.get("module").and_then(Json::as_str).unwrap_or_default();
    let major = version.and_then(|v| v.split('.').next()?.parse::<u32>().ok());
    module.starts_with("tf_keras") || major.is_some_and(|m| m < 3)
}

fn json(name: &str, bytes: &[u8]) -> Result<Json, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("{name}: {e}"))
}

struct Zip<'a> {
    archive: ZipArchive<Cursor<&'a [u8]>>,
    /// So many bytes may still be unpacked.
    left: u64,
}

impl<'a> Zip<'a> {
    fn open(bytes: &'a [u8]) -> Result<Zip<'a>, String> {
        let archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("not a zip archive: {e}"))?;
        Ok(Zip { archive, left: (bytes.len() as u64).saturating_mul(DEFLATE_LIMIT) })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.archive.file_names()
    }

    /// An entry's content; `None` where there is no entry of that name.
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        if !self.archive.file_names().any(|n| n == name) {
            return Ok(None);
        }
        let mut entry = self.archive.by_name(name).map_err(|e| format!("{name}: {e}"))?;
        let size = entry.size();
        self.left = self.left.checked_sub(size).ok_or_else(|| format!("{name} claims {size} bytes, which can't be"))?;
        // What it really takes counts, not what it claims.
        let mut bytes = Vec::new();
        entry.by_ref().take(size).read_to_end(&mut bytes).map_err(|e| format!("{name}: {e}"))?;
        Ok(Some(bytes))
    }
}
