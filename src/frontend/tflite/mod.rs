//! TFLite models: flatbuffers with the identifier `TFL3`.
//!
//! [`flat`] verifies and reads tables, [`schema`] decodes them into lists whose indices are checked, [`graph`] walks the operators,
//! and the rules of [`builtins`], in `ops`, say what each of them is in Relay. What quantized operators compute is in
//! [`quant`]: the integers of TFLite's reference kernels, bit for bit.

mod builtins;
mod constants;
mod fixed;
mod flat;
mod flex;
mod graph;
mod node;
mod ops;
mod quant;
mod schema;

use super::{FrontEnd, LoadOptions, Model, SourceFile};
use crate::diag::{Diagnostic, Refused};

/// TFLite's files.
pub(super) struct TfLite;

impl FrontEnd for TfLite {
    fn name(&self) -> &'static str {
        "tflite"
    }

    fn recognizes(&self, bytes: &[u8]) -> bool {
        bytes.get(4..8) == Some(b"TFL3")
    }

    fn read(&self, file: &SourceFile, options: &LoadOptions) -> Result<Model, Refused> {
        let model = schema::decode(file.bytes)
            .map_err(|e| Diagnostic::new(format!("{}: not a valid TFLite model: {e}", file.name)))?;
        graph::import(file.name, &model, options)
    }
}
