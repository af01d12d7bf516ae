//! Relay's own files: JSON and text.

use super::{FrontEnd, LoadOptions, Model, SourceFile};
use crate::{
    diag::{Diagnostic, Refused},
    ir::Module,
    relay::{json, text},
};

/// Relay JSON: an object, so a brace and a quote come first.
pub(super) struct Json;

/// Relay text, which has no mark of its own: whatever is nothing else.
pub(super) struct Text;

fn model(module: Module, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
    // Relay has no names for unknown extents, and its types say the shapes of inputs.
    if !options.dims.is_empty() || !options.shapes.is_empty() {
        let message = format!("{}: sizes can be given for ONNX, TFLite and Keras models, not for Relay", file.name);
        return Err(Diagnostic::new(message).help("write them into the types of `@main`'s parameters").into());
    }
    Ok(Model { module, params: Vec::new() })
}

impl FrontEnd for Json {
    fn name(&self) -> &'static str {
        "relay json"
    }

    fn recognizes(&self, bytes: &[u8]) -> bool {
        let text = bytes.trim_ascii_start();
        text.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\""))
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        model(json::parse_module(file.name, file.text()?)?, file, options)
    }
}

impl FrontEnd for Text {
    fn name(&self) -> &'static str {
        "relay text"
    }

    fn recognizes(&self, _: &[u8]) -> bool {
        true
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        model(text::parse_module(file.name, file.text()?)?, file, options)
    }
}
