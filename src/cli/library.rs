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
    runtime::LoadedModel,
    tensor::Tensor,
};

/// A library with its interface checked.
pub(super) struct Library(LoadedModel);

/// Loads the library that the arguments name.
pub(super) fn open(args: &ModelArgs, threads: Option<NonZeroUsize>) -> Result<Library, Failure> {
    if args.params.is_some() {
        let message = "a compiled library has its parameters inside: `--params` has no place here";
        return Err(Failure::Refused(Diagnostic::new(message).into()));
    }
    let model = LoadedModel::load(&args.file).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?;
    let threads = threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    if !model.set_threads(threads) {
        return Err(Failure::Other(format!("the system gives fewer than {threads} threads")));
    }
    Ok(Library(model))
}

impl Library {
    /// The inputs in order, from an archive or at random.
    pub(super) fn inputs(&self, path: Option<&Path>) -> Result<Vec<Tensor>, Failure> {
        let wanted: Vec<_> = self.0.inputs().iter().map(|p| (p.name.to_string(), p.dtype)).collect();
        match path {
            Some(path) => Ok(in_order(&wanted, inputs(path)?)?),
            None => {
                let ty = |p: &crate::runtime::Port| {
                    Type::tensor(&p.shape.iter().map(|&n| n as i64).collect::<Vec<_>>(), p.dtype)
                };
                let values = self.0.inputs().iter().enumerate().filter_map(|(i, p)| random_value(&ty(p), SEED, i));
                Ok(values.map(|v| v.tensor().clone()).collect())
            }
        }
    }

    /// The outputs' names, in order.
    pub(super) fn output_names(&self) -> Vec<String> {
        self.0.outputs().iter().map(|p| p.name.to_string()).collect()
    }

    /// Runs once.
    pub(super) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        self.0.run(inputs).map_err(|e| Failure::Refused(Diagnostic::new(e.to_string()).into()))
    }
}
