//! Front ends: readers of model files. Each is a folder with an `impl FrontEnd` and a row in [`ALL`].
//!
//! A front end recognizes its files by their content, never by their names, and writes plain Relay with a [`Builder`], which
//! infers types as it goes. What exporters took apart is found again by rulesets, not by front ends.

mod builder;
pub mod keras;
mod moved;
mod onnx;
mod relay;
mod tflite;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use builder::{Builder, Convert};

use crate::{
    diag::{self, Diagnostic, Refused, nearest},
    ir::{Module, Name},
    runtime::MappedFile,
    tensor::Tensor,
};

/// A model file's content and where it came from.
pub struct SourceFile<'a> {
    /// The name that messages use: mostly the path as the user wrote it.
    pub name: &'a str,
    /// The whole content.
    pub bytes: &'a [u8],
    /// The folder in which files that the model refers to are looked up; none where the model came as bytes.
    pub folder: Option<&'a Path>,
}

impl SourceFile<'_> {
    /// The content as text.
    ///
    /// # Errors
    /// Names the line and column of the first byte that is not UTF-8.
    pub fn text(&self) -> Result<&str, Refused> {
        diag::utf8(self.name, self.bytes)
    }
}

/// What a user says about a model that is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOptions {
    /// Extents of symbolic dimensions, by the dimension's name.
    pub dims: Vec<(String, i64)>,
    /// Shapes of inputs, by the input's name. `None` leaves an extent unknown.
    pub shapes: Vec<(String, Vec<Option<i64>>)>,
    /// What inputs there will be, where that is known: names, as npz archives have them, and numbers of axes. Of use only where the
    /// model itself leaves open how long a sequence is, whether an optional value is there, or how many axes an input has.
    pub given: Option<Vec<(String, usize)>>,
}

impl LoadOptions {
    /// The shape that the user gave for an input.
    pub fn shape_of(&self, input: &str) -> Option<&[Option<i64>]> {
        self.shapes.iter().find(|(n, _)| n == input).map(|(_, s)| s.as_slice())
    }

    /// The number of axes of an input that is there.
    pub fn rank_of(&self, input: &str) -> Option<usize> {
        self.given.as_ref()?.iter().find(|(n, _)| n == input).map(|g| g.1)
    }

    /// The extent that the user gave for a symbolic dimension.
    pub fn dim(&self, name: &str) -> Option<i64> {
        self.dims.iter().find(|(n, _)| n == name).map(|(_, d)| *d)
    }

    /// Refuses options that name no input or symbolic dimension of the model.
    ///
    /// # Errors
    /// One complaint for each such name, with the nearest one that the model has.
    pub fn check_names(&self, file: &str, inputs: &[&str], dims: &[&str]) -> Result<(), Refused> {
        let unknown = |what: &str, name: &str, known: &[&str]| {
            let d = Diagnostic::new(format!("{file}: the model has no {what} `{name}`"));
            match nearest(name, known.iter().copied()) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None if known.is_empty() => d,
                None => d.help(format!("it has {}", known.join(", "))),
            }
        };
        let shapes = self.shapes.iter().filter(|(n, _)| !inputs.contains(&n.as_str()));
        let dims_ = self.dims.iter().filter(|(n, _)| !dims.contains(&n.as_str()));
        let complaints: Vec<Diagnostic> = shapes
            .map(|(n, _)| unknown("input", n, inputs))
            .chain(dims_.map(|(n, _)| unknown("symbolic dimension", n, dims)))
            .collect();
        if complaints.is_empty() { Ok(()) } else { Err(Refused(complaints)) }
    }
}

/// A model that was read.
#[derive(Clone, Debug)]
pub struct Model {
    /// The program. `@main` takes the inputs first, in the model's order, then the weights.
    pub module: Module,
    /// The weights, by the names of `@main`'s parameters.
    pub params: Vec<(Name, Tensor)>,
}

/// A kind of model file.
pub trait FrontEnd: Sync {
    /// Its name, as in messages: `onnx`.
    fn name(&self) -> &'static str;

    /// Whether a file of that content is meant for this front end, be it well formed or not.
    fn recognizes(&self, bytes: &[u8]) -> bool;

    /// Paths, from the model's folder, of the files beside it that a model has data in. Of a malformed model any that were found:
    /// [`FrontEnd::read`] refuses it.
    fn files_beside(&self, _bytes: &[u8]) -> Vec<String> {
        Vec::new()
    }

    /// Reads a model.
    ///
    /// # Errors
    /// Whatever is malformed or not supported, with the node, tensor, operator or layer, or the line, that it is about.
    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused>;

    /// The same for the bytes of a mapped file. A front end may use parts of it without a copy, or release them as soon as they are copied.
    ///
    /// # Errors
    /// As [`FrontEnd::read`].
    fn read_mapped(
        &self,
        name: &str,
        mapped: &Arc<MappedFile>,
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<Model, Refused> {
        self.read(&SourceFile { name, bytes: (**mapped).as_ref(), folder: Some(folder) }, options)
    }
}

/// The front ends, asked in this order. The last one takes whatever the others do not recognize.
pub const ALL: &[&dyn FrontEnd] =
    &[&tflite::TfLite, &keras::Archive, &keras::Legacy, &onnx::Onnx, &relay::Json, &relay::Text];

/// Whether a file is one of Relay's own, by its content.
pub fn is_relay(bytes: &[u8]) -> bool {
    !ALL.iter().any(|f| f.recognizes(bytes) && !f.name().starts_with("relay"))
}

/// The files beside a model file that it has data in: as the model names them, and where they are.
///
/// # Errors
/// A file that can't be read.
pub fn files_beside(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let file = MappedFile::open(path)?;
    let bytes = file.as_ref();
    let places = of(bytes).files_beside(bytes);
    Ok(places.into_iter().map(|place| (place.clone(), folder_of(path).join(place))).collect())
}

/// The folder that a model file lies in.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

/// The front end that a file of that content is meant for.
fn of(bytes: &[u8]) -> &'static dyn FrontEnd {
    *ALL.iter().find(|f| f.recognizes(bytes)).expect("the last front end takes everything")
}

/// Reads a model file of any kind that there is a front end for.
///
/// # Errors
/// A file that can't be read, or that its front end refuses.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Model, Refused> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Diagnostic::new(format!("{name}: {e}"));
    let folder = folder_of(path);
    if std::fs::metadata(path).map_err(failed)?.is_file() {
        let mapped = Arc::new(MappedFile::open(path).map_err(failed)?);
        return of((*mapped).as_ref()).read_mapped(&name, &mapped, &folder, options);
    }
    // A pipe can't be mapped; a folder is refused by the system.
    let bytes = std::fs::read(path).map_err(failed)?;
    load_from(&SourceFile { name: &name, bytes: &bytes, folder: Some(&folder) }, options)
}

/// Reads a model from memory; see [`load`].
///
/// # Errors
/// What its front end refuses.
pub fn load_from(file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
    of(file.bytes).read(file, options)
}
