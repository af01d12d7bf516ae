//! ONNX: protobuf files as frameworks export them.
//!
//! Every node is converted by the row of its operator in a table ([`ops`]), in the version that the model imports. Shapes and
//! other operands whose values are known when the model is read become attributes; others are computed while running.

mod beside;
mod custom;
mod elem;
mod history;
mod importer;
mod kit;
mod listing;
mod node;
mod ops;
mod proto;
mod tensors;

use std::{path::Path, sync::Arc};

use bytes::{Buf, Bytes};
use prost::Message;

use self::tensors::Files;
use super::{FrontEnd, LoadOptions, Model, SourceFile};
use crate::{
    diag::{Diagnostic, Refused},
    runtime::MappedFile,
};

/// ONNX's models.
pub(super) struct Onnx;

impl FrontEnd for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn recognizes(&self, bytes: &[u8]) -> bool {
        looks_like_a_model(bytes)
    }

    fn files_beside(&self, bytes: &[u8]) -> Vec<String> {
        beside::files(bytes)
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        model(file.name, file.bytes, Files::of(file.folder), options)
    }

    fn read_mapped(
        &self,
        name: &str,
        mapped: &Arc<MappedFile>,
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<Model, Refused> {
        // Tensors' data are parts of the mapped file, and no copies.
        let bytes = Bytes::from_owner(Mapped(mapped.clone()));
        model(name, bytes, Files::of_mapped(mapped.clone(), folder), options)
    }
}

/// A mapped file as an owner of [`Bytes`].
struct Mapped(Arc<MappedFile>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// The model that is encoded in these bytes; messages call it by that name.
fn model(name: &str, bytes: impl Buf, files: Files, options: &LoadOptions) -> Result<Model, Refused> {
    let mut model = proto::ModelProto::decode(bytes)
        .map_err(|e| Diagnostic::new(format!("{name}: not a well-formed ONNX model: {e}")))?;
    let weights = model.graph.as_mut().map(|g| std::mem::take(&mut g.initializer)).unwrap_or_default();
    importer::import(&model, weights, name, files, options)
}

/// The fields of a model: their numbers and whether they are numbers (wire type 0) or have a length (2).
const FIELDS: &[(u64, u64)] =
    &[(1, 0), (2, 2), (3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 2), (14, 2), (20, 2), (25, 2), (26, 2)];

/// The fields without which a model is none: its graph, and the versions of operators that it imports.
const TELLING: [u64; 2] = [7, 8];

/// Whether a file's top-level fields are a model's, as far as they can be read: a truncated model is one, too.
fn looks_like_a_model(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut recognized = false;
    while !rest.is_empty() {
        let Some(key) = varint(&mut rest) else { return recognized };
        let (field, wire) = (key >> 3, key & 7);
        if !FIELDS.contains(&(field, wire)) {
            return false;
        }
        let Some(value) = varint(&mut rest) else { return recognized };
        if wire == 2 {
            recognized |= TELLING.contains(&field);
            let Some(after) = usize::try_from(value).ok().and_then(|n| rest.get(n..)) else { return recognized };
            rest = after;
        }
    }
    recognized
}

/// The next number, in groups of seven bits.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_from_other_files() {
        let model =
            proto::ModelProto { ir_version: 8, graph: Some(proto::GraphProto::default()), ..Default::default() };
        assert!(looks_like_a_model(&model.encode_to_vec()));
        for other in ["", "def @main() { 1 }", "{\"nodes\": []}", "#[version = \"0.0.5\"]", "\u{1c}\0\0\0TFL3\0\0"] {
            assert!(!looks_like_a_model(other.as_bytes()), "{other}");
        }
    }
}
