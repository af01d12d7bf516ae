//! `resat build`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{
    Failure,
    args::{CacheArgs, ExtentArgs, ModelArgs, PassArgs, RegionArgs, StateArgs, TuneArgs, tell_tuning},
    dump::{Dump, DumpArgs},
    kept::Kept,
    progress::Progress,
};
use crate::{
    frontend::Model,
    diag::Diagnostic,
    driver::{self, EmitError, Options},
    infer::infer_types,
    output,
};

/// Arguments of `resat build`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  resat build model.relay --params model.params --target llvm,-mcpu=native -o model.so")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    #[command(flatten)]
    regions: RegionArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    tune: TuneArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    extents: ExtentArgs,
    #[command(flatten)]
    dump: DumpArgs,
    /// What is written: a shared library, or C99 that needs a C compiler and libm
    #[arg(long, value_enum, default_value = "library")]
    emit: Emit,
    /// The shared library (with the ending `.tar`, what it is linked of, for other machines) or the C source; the header goes beside it
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Say on stderr what each pass and rule did
    #[arg(long)]
    report: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// A shared library
    Library,
    /// C99
    C,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if args.output.as_os_str() == "-" {
        let d = Diagnostic::new("`-o -`: a library or C source comes with a header and can't go to standard output");
        return Err(Failure::Refused(d.help("name a file").into()));
    }
    may_be_written(&args)?;
    let settings = args.passes.settings_for_code()?;
    let name = symbol(&args.output);
    let kept = Kept::new(&args.cache, &args.model, &args.passes, &settings, &name).rebuild(args.report || args.tune.asked() || args.dump.asked());
    let kept = kept.for_builds(args.extents.asked() || !args.state.state.is_empty());
    let progress = Progress::new();
    let dump = args.dump.start()?;
    if args.emit == Emit::C {
        let mut options = Options::new(settings.clone());
        options.release_memory = true;
        options.passes = Some(Box::new(args.passes.sequence(&settings)?));
        options.name = name;
        args.extents.fill(&mut options);
        options.state = args.state.state.clone();
        options.on_phase = Some(Box::new(progress.teller()));
        dump.iter().for_each(|d| d.fill(&mut options));
        let Model { module, params } = args.model.read()?;
        let written = driver::emit_c(module, &params, options, &args.output);
        let written = written.map_err(emit_failure)?;
        super::warn(written.unserved.as_slice());
        let weights = written.weights.map(|w| format!(", weights in {}", w.display())).unwrap_or_default();
        eprintln!("{} and {}{weights}", written.source.display(), written.header.display());
        return dump.map_or(Ok(()), Dump::finish);
    }
    let built = match kept.find(&settings, None) {
        Some(found) => found,
        None => {
            let mut options = Options::new(settings.clone());
            options.release_memory = true;
            options.passes = Some(Box::new(args.passes.sequence(&settings)?));
            args.regions.apply_to(&mut options);
            args.tune.fill(&args.passes, &mut options)?;
            options.name = name;
            args.extents.fill(&mut options);
            options.state = args.state.state.clone();
            options.on_phase = Some(Box::new(progress.teller()));
            dump.iter().for_each(|d| d.fill(&mut options));
            kept.fill(&mut options);
            let Model { module, params } = args.model.read()?;
            let typed = infer_types(module.clone())?;
            if params.is_empty() {
                args.model.note_weights(&typed, false);
            }
            args.passes.note_quantized(&typed);
            driver::build(module, &params, options).map_err(super::build_failure)?
        }
    };
    kept.warn();
    let written = built.export(&symbol(&args.output), &settings.target.codegen(), &args.output).map_err(emit_failure)?;
    drop(progress);
    super::warn(built.warnings());
    super::warn(written.unserved.as_slice());
    tell_tuning(&built);
    dump.map_or(Ok(()), Dump::finish)?;
    if let Some(record) = built.record().filter(|_| args.report) {
        super::report(&record.log, &record.reports);
    }
    let kernels = match built.executable.as_plain() {
        Some(exe) => kernels_in_calls(exe.program().functions().len(), built.calls),
        None => "for sizes that are found out when it runs".to_owned(),
    };
    let (library, header) = (written.library.display(), written.header.display());
    eprintln!("{library} and {header}: {kernels}, {:.2} s", built.time.as_secs_f64());
    Ok(())
}

/// Refuses outputs that would take the place of what is no output of this command, or be taken for another kind of file, before anything is built.
fn may_be_written(args: &Args) -> Result<(), Failure> {
    let (output, header) = (&args.output, args.output.with_extension("h"));
    let ending = output.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let (what, others, advice) = match args.emit {
        Emit::Library => (
            "a shared library",
            &["h", "c", "o", "a"][..],
            "`.so` is the ending of one, `.tar` that of an archive of what it is linked of, and `--emit c` writes C",
        ),
        Emit::C => ("C source", &["h", "weights", "o", "a", "so", "tar"][..], "`.c` is its ending"),
    };
    if others.contains(&ending) {
        let d = Diagnostic::new(format!("`-o {}`: {what} is written, and no `.{ending}` file", output.display()));
        return Err(Failure::Refused(d.help(advice).into()));
    }
    for given in [Some(&args.model.file), args.model.params.as_ref()].into_iter().flatten() {
        if let Some(written) = [output, &header].into_iter().find(|o| output::is_same_file(o, given)) {
            let message = format!("`{}` would be written in the place of `{}`, which is read", written.display(), given.display());
            return Err(Failure::Refused(Diagnostic::new(message).help("name another file by `-o`").into()));
        }
    }
    output::may_be_files(&[output, &header])
        .map_err(|(path, e)| Failure::Other(format!("can't write {}: {e}", path.display())))
}

fn emit_failure(e: EmitError) -> Failure {
    match e {
        EmitError::Build(e) => super::build_failure(e),
        EmitError::Export(e) => Failure::Other(e.to_string()),
    }
}

/// How many kernels a program has, and how often it calls them.
fn kernels_in_calls(kernels: usize, calls: usize) -> String {
    let s = |n: usize| if n == 1 { "" } else { "s" };
    match (kernels, calls) {
        (0, _) => "no kernel, as its results are known beforehand".to_owned(),
        // Only what every run calls is counted.
        (k, 0) => format!("{k} kernel{}, which are called as control flow decides", s(k)),
        (k, c) => format!("{k} kernel{} in {c} call{}", s(k), s(c)),
    }
}

/// A file's name as part of C symbols.
fn symbol(path: &std::path::Path) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let mut name: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.chars().next().is_none_or(|c| c.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_explained() {
        assert_eq!(kernels_in_calls(7, 9), "7 kernels in 9 calls");
        assert_eq!(kernels_in_calls(1, 1), "1 kernel in 1 call");
        assert_eq!(kernels_in_calls(7, 0), "7 kernels, which are called as control flow decides");
        assert_eq!(kernels_in_calls(0, 0), "no kernel, as its results are known beforehand");
    }
}
