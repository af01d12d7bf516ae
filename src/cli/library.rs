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
    relay::npz,
    runtime::{LoadedLibrary, LoadedRuns, RunError, export::PortType},
    tensor::Tensor,
};

/// A library with its interface checked.
pub(super) struct Library(LoadedLibrary);

/// Refuses what is asked of a library that only goes with a program that is to be built: options, and whether they were given.
pub(super) fn refuse(asked: &[(&str, bool)]) -> Result<(), Failure> {
    match asked.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            let message = format!("a compiled library is what it was built to be: `{option}` has no place here");
            Err(Failure::Refused(Diagnostic::new(message).into()))
        }
        None => Ok(()),
    }
}

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
    /// Runs that keep its state; none where it has none.
    pub(super) fn stateful(&self) -> Option<LoadedRuns<'_>> {
        match &self.0 {
            LoadedLibrary::Sized(m) if !m.states().is_empty() => Some(m.stateful()),
            _ => None,
        }
    }

    /// State as it is now, by its name as an output.
    pub(super) fn state(&self, runs: &LoadedRuns<'_>) -> Vec<(String, Tensor)> {
        let LoadedLibrary::Sized(m) = &self.0 else { return Vec::new() };
        m.states().iter().filter_map(|s| Some((s.output.clone(), runs.get(&s.port.name)?))).collect()
    }

    /// The inputs in order, from an archive or at random. State that an archive gives is that of the next run.
    pub(super) fn inputs(
        &self,
        path: Option<&Path>,
        runs: Option<&mut LoadedRuns<'_>>,
    ) -> Result<Vec<Tensor>, Failure> {
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
        let mut given = inputs(path)?;
        if let (LoadedLibrary::Sized(m), Some(runs)) = (&self.0, runs) {
            for PortType { name, dtype, .. } in m.states().iter().map(|s| &s.port) {
                if let Some(at) = given.iter().position(|(n, _)| n.as_str() == name) {
                    runs.set(name, &npz::as_element(given.remove(at).1, *dtype)).map_err(refused)?;
                }
            }
        }
        let wanted: Vec<_> = ports.into_iter().map(|p| (p.name, p.dtype)).collect();
        Ok(in_order(&wanted, given)?)
    }

    /// The outputs' names, in order; as many as there are results where the library does not say how many there will be.
    pub(super) fn output_names(&self, results: usize) -> Vec<String> {
        let names = self.0.outputs();
        if names.len() == results { names } else { (0..results).map(|i| i.to_string()).collect() }
    }

    /// Runs once.
    pub(super) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        self.0.run(inputs).map_err(refused)
    }
}

/// Why a library did not run.
pub(super) fn refused(e: RunError) -> Failure {
    Failure::Refused(Diagnostic::new(e.to_string()).into())
}
