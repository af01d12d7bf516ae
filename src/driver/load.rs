//! Programs and parameters from files.

use std::{fs::File, io::BufReader, path::Path};

use crate::{
    diag::{Diagnostic, Refused},
    frontend::{self, LoadOptions, Model},
    ir::{Module, Name},
    pass::bind_params,
    relay::{npz, params},
    tensor::Tensor,
};

fn read(path: &Path) -> Result<Vec<u8>, Refused> {
    std::fs::read(path).map_err(|e| Diagnostic::new(format!("{}: {e}", path.display())).into())
}

/// The module of a file of any kind that there is a front end for; weights that come with it are constants.
pub fn load_module(path: &Path) -> Result<Module, Refused> {
    let Model { module, params } = frontend::load(path, &LoadOptions::default())?;
    bind_params(&module, &params)
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
