//! Programs and parameters from files.

use std::{fs::File, io::BufReader, path::Path};

use crate::{
    diag::{Diagnostic, Refused, read_text},
    ir::{Module, Name},
    relay::{json, npz, params, text},
    tensor::Tensor,
};

fn read(path: &Path) -> Result<Vec<u8>, Refused> {
    std::fs::read(path).map_err(|e| Diagnostic::new(format!("{}: {e}", path.display())).into())
}

/// The module of a file: Relay JSON where it starts as such an object does, with a brace and a quote, else Relay text.
pub fn load_module(path: &Path) -> Result<Module, Refused> {
    let name = path.display().to_string();
    let text = read_text(path)?;
    match text.trim_start().strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with('"')) {
        true => json::parse_module(&name, &text),
        false => text::parse_module(&name, &text),
    }
}

/// The named arrays of a parameter file: an npz archive where its name ends so, else Relay's binary format.
pub fn load_params(path: &Path) -> Result<Vec<(Name, Tensor)>, Refused> {
    let name = path.display().to_string();
    if path.extension().is_some_and(|e| e == "npz") {
        return npz::read(&name, &read(path)?);
    }
    let failed = |e| Refused::from(Diagnostic::new(format!("{name}: {e}")));
    let file = File::open(path).map_err(failed)?;
    match file.metadata().map_err(failed)? {
        there if there.is_file() => params::read_from(&name, BufReader::new(file), there.len()),
        // A pipe does not say how much it holds.
        _ => params::read(&name, &read(path)?),
    }
}
