//! Exported libraries as programs of the command line.

use std::{num::NonZeroUsize, path::Path};

use super::{
    Failure,
    args::{ModelArgs, in_order, inputs},
    run::SEED,
};
use crate::{
    diag::{Diagnostic, Refused},
    interp::random_value,
    ir::Type,
    runtime::{LoadedLibrary, export::PortType},
    tensor::Tensor,
};

/// A library with its interface checked.
pub(super) struct Library(LoadedLibrary);

/// Loads the library that the arguments name.
pub(super) fn open(args: &ModelArgs, threads: Option<NonZeroUsize>) -> Result<Library, Failure> {
    if args.params.is_some() {
        let message = "a compiled library has its parameters inside: `--params` has no place here";
        return Err(Failure::Refused(Diagnostic::new(message).into()));
    }
    let library = LoadedLibrary::load(&args.file).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?;
    let threads = threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    match library.set_threads(threads) {
        true => Ok(Library(library)),
        false => Err(Failure::Other(format!("the system gives fewer than {threads} threads"))),
    }
}

impl Library {
    /// The inputs in order, from an archive or at random.
    pub(super) fn inputs(&self, path: Option<&Path>) -> Result<Vec<Tensor>, Failure> {
        let ports = self.0.inputs();
        let Some(path) = path else {
            let random = |(i, p): (usize, &PortType)| {
                let shape: Option<Vec<i64>> = p.shape.iter().map(|n| n.map(|n| n as i64)).collect();
                let shape = shape.ok_or_else(|| {
                    let message =
                        format!("input `{}` has extents that the library leaves open: give it by `--inputs`", p.name);
                    Refused::from(Diagnostic::new(message))
                })?;
                Ok(random_value(&Type::tensor(&shape, p.dtype), SEED, i).map(|v| v.tensor().clone()))
            };
            let values: Vec<Option<Tensor>> = ports.iter().enumerate().map(random).collect::<Result<_, Refused>>()?;
            return Ok(values.into_iter().flatten().collect());
        };
        let wanted: Vec<_> = ports.into_iter().map(|p| (p.name, p.dtype)).collect();
        Ok(in_order(&wanted, inputs(path)?)?)
    }

    /// The outputs' names, in order; as many as there are results where the library does not say how many there will be.
    pub(super) fn output_names(&self, results: usize) -> Vec<String> {
        let names = self.0.outputs();
        if names.len() == results { names } else { (0..results).map(|i| i.to_string()).collect() }
    }

    /// Runs once.
    pub(super) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        self.0.run(inputs).map_err(|e| Failure::Refused(Diagnostic::new(e.to_string()).into()))
    }
}
