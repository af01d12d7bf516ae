//! Keras models: `.keras` archives and legacy `.h5` files, of Keras 2 and 3.
//!
//! - [`archive`]: what a file holds; [`weights`]: which arrays are a layer's.
//! - [`layer`]: layers as they are configured; [`model`]: how they call each other.
//! - [`call`]: what converters work with; [`layers`]: the converters, a table of classes.
//!
//! What is taken, and what is refused and why, is in `docs/keras.md`.

mod archive;
mod call;
mod layer;
mod layers;
mod model;
mod weights;

pub use call::{Arg, Call, Converter, Held};
pub use layer::{Layer, Policy};
pub use layers::register;

use super::{FrontEnd, LoadOptions, Model, SourceFile};
use crate::diag::{Diagnostic, Refused};

/// Keras' own archive: a zip archive that holds a `config.json`.
pub(super) struct Archive;

/// The legacy form: one HDF5 file.
pub(super) struct Legacy;

impl FrontEnd for Archive {
    fn name(&self) -> &'static str {
        "keras"
    }

    fn recognizes(&self, bytes: &[u8]) -> bool {
        archive::is_archive(bytes)
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        read(archive::open_archive(file.bytes), file, options)
    }
}

impl FrontEnd for Legacy {
    fn name(&self) -> &'static str {
        "keras hdf5"
    }

    fn recognizes(&self, bytes: &[u8]) -> bool {
        archive::is_hdf5(bytes)
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        read(archive::open_hdf5(file.bytes), file, options)
    }
}

fn read(opened: Result<archive::Opened, String>, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
    let refuse = |e: String| Refused::from(Diagnostic::new(format!("{}: {e}", file.name)));
    let opened = opened.map_err(refuse)?;
    let top = layer::Layer::parse(&opened.config, opened.keras2).map_err(refuse)?;
    model::read(file.name, top, call::State::new(opened.weights), options)
}
