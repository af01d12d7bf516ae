//! Programs that were built before, and what they are found by: the files that they were made of.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Failure,
    args::{CacheArgs, ModelArgs, PassArgs, in_order, inputs},
    run::SEED,
};
use crate::{
    driver::{Built, Cache, Options, settings_key},
    frontend,
    interp::random_value,
    ir::{Name, Type},
    pass::Settings,
    runtime::{Executable, Port},
    store::{Digests, Key, KeyMaker},
    tensor::Tensor,
};

/// The cache of a command, and the key of its program.
pub(super) struct Kept {
    cache: Option<Arc<Cache>>,
    key: Option<Key>,
    /// Whether the program may be found before anything is read.
    whole: bool,
}

impl Kept {
    /// What the arguments say. `name` is the program's.
    pub(super) fn new(
        cache: &CacheArgs,
        model: &ModelArgs,
        passes: &PassArgs,
        settings: &Settings,
        name: &str,
    ) -> Kept {
        let cache = cache.open();
        // What can't be read has no key; whoever reads it next says why.
        let key = cache.as_ref().and_then(|c| key(c.digests(), model, passes, settings, name).ok().flatten());
        Kept { cache, key, whole: true }
    }

    /// Has programs rebuilt: for those who want to see how.
    pub(super) fn rebuild(self, rebuild: bool) -> Kept {
        if let (Some(cache), true) = (&self.cache, rebuild) {
            cache.rebuild();
        }
        self
    }

    /// Where `only`, nothing is found before the model is read: what else is asked for is no part of the key, but of what the build looks for.
    pub(super) fn for_builds(self, only: bool) -> Kept {
        Kept { whole: self.whole && !only, ..self }
    }

    /// Keeps nothing.
    pub(super) fn nothing(self) -> Kept {
        Kept { key: None, ..self }
    }

    /// The program, where it was built before.
    pub(super) fn find(&self, settings: &Settings, threads: Option<NonZeroUsize>) -> Option<Built> {
        let threads = threads.map_or(settings.target.cores, NonZeroUsize::get);
        let key = self.key.as_ref().filter(|_| self.whole)?;
        let found = self.cache.as_ref()?.find(key, threads);
        self.warn();
        found
    }

    /// Has a build use the cache.
    pub(super) fn fill(&self, options: &mut Options) {
        options.cache = self.cache.clone();
        options.key = self.key;
    }

    /// Says on stderr what went wrong with the cache.
    pub(super) fn warn(&self) {
        for complaint in self.cache.iter().flat_map(|c| c.complaints()) {
            eprintln!("note: {complaint}");
        }
    }
}

/// None where the settings have no key by content.
fn key(
    digests: &Digests,
    model: &ModelArgs,
    passes: &PassArgs,
    settings: &Settings,
    name: &str,
) -> std::io::Result<Option<Key>> {
    // The text of rule files is a part of the key below; a compiler's code is its file, or resat's own.
    let mut plain = settings.clone();
    plain.rulesets.clear();
    plain.placement.compilers.clear();
    let Some(mut key) = settings_key(KeyMaker::new().part("files").part(name), &plain) else { return Ok(None) };
    let arguments = format!("{passes:?}");
    key = key.part(&arguments).part(format!("{:?}", model.sizes()));
    for path in [Some(&model.file), model.params.as_ref()].into_iter().flatten() {
        key = of_file(key, path, digests)?;
    }
    for (place, path) in frontend::files_beside(&model.file)? {
        key = of_file(key.part(place), &path, digests)?;
    }
    // Of a parameter file, the name says how it is read.
    key = key.part(model.params.as_ref().and_then(|p| p.extension()).unwrap_or_default().as_encoded_bytes());
    for path in files_within(&arguments) {
        key = of_file(key, &path, digests)?;
    }
    Ok(Some(key.key()))
}

/// With the content of a file; a pipe can be read only once.
fn of_file(key: KeyMaker, path: &Path, digests: &Digests) -> std::io::Result<KeyMaker> {
    match std::fs::metadata(path)?.is_file() {
        true => key.file(path, digests),
        false => Err(std::io::ErrorKind::Unsupported.into()),
    }
}

/// The files that arguments name: rulesets, prices, samples. What stands in quotes is tried as a whole, and piece by piece.
fn files_within(arguments: &str) -> Vec<PathBuf> {
    let quoted = arguments.split(['"', '\\']);
    let pieces = arguments.split(|c: char| c.is_whitespace() || "\"\\\'=,:;()[]{}".contains(c));
    let mut found: Vec<PathBuf> = quoted.chain(pieces).map(PathBuf::from).filter(|p| p.is_file()).collect();
    found.sort();
    found.dedup();
    found
}

/// The inputs of a program in order, from an archive or at random.
pub(super) fn inputs_of(
    program: &Executable,
    parameters: &[usize],
    path: Option<&Path>,
) -> Result<Vec<Tensor>, Failure> {
    let ports = program.program().inputs();
    if let Some(path) = path {
        let wanted: Vec<_> = ports.iter().map(|p| (p.name.to_string(), p.dtype)).collect();
        // Inputs go by the model's names and by those of the parameters.
        let named = |(name, t): (Name, Tensor)| {
            let port = ports.iter().find(|p| p.alias.as_ref() == Some(&name));
            (port.map_or(name, |p| p.name.clone()), t)
        };
        return Ok(in_order(&wanted, inputs(path)?.into_iter().map(named).collect())?);
    }
    let ty = |p: &Port| Type::tensor(&p.shape.iter().map(|&n| n as i64).collect::<Vec<_>>(), p.dtype);
    let mut rest = ports.iter();
    let values = parameters.iter().enumerate().filter_map(|(i, &n)| {
        // A tuple's tensors are drawn one after another.
        let fields: Vec<Type> = rest.by_ref().take(n).map(ty).collect();
        random_value(&Type::tuple(fields), SEED, i)
    });
    Ok(values.flat_map(|v| v.flatten()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_arguments() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("with space.npz");
        std::fs::write(&path, "x").expect("it can be written");
        let other = folder.path().join("prices.json");
        std::fs::write(&other, "x").expect("it can be written");
        let passes = format!("Quantize(calibration=\"{}\"), default", path.display());
        let arguments =
            format!("Args {{ passes: Some({passes:?}), cost: {:?} }}", format!("table:{}", other.display()));
        assert_eq!(files_within(&arguments), [other, path]);
    }
}
