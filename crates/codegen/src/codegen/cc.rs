//! The target's C compiler.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use super::CodegenTarget;
use crate::{
    output::WorkFolder,
    runtime::{Data, export},
};

/// Why the target's C compiler made nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CcError {
    /// There is no temporary folder.
    #[error("no folder for its files: {0}")]
    Folder(io::Error),
    /// What it is to compile can't be written.
    #[error("can't write {}: {error}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It can't be started.
    #[error("can't start the C compiler `{compiler}`: {error}")]
    Start {
        /// Its command.
        compiler: String,
        /// Why.
        error: io::Error,
    },
    /// It refused the text.
    #[error("the C compiler `{compiler}` refused: {message}")]
    Refused {
        /// Its command.
        compiler: String,
        /// The first error that it printed.
        message: String,
    },
    /// Its output can't be read.
    #[error("can't read what the C compiler wrote: {0}")]
    Read(io::Error),
    /// It did not link the object.
    #[error("it can't be linked: {0}")]
    Link(String),
}

fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<(), CcError> {
    std::fs::write(file, content).map_err(|error| CcError::Write { file: file.to_owned(), error })
}

/// The C compiler for a target: what `CC` names, else `cc`; for another architecture than this machine's what
/// `CC_<triple>` names (with `_` for `-`), else GCC by its name for that architecture, such as `aarch64-linux-gnu-gcc`.
fn c_compiler(target: &CodegenTarget) -> String {
    let named = |variable: &str| std::env::var(variable).ok().filter(|c| !c.is_empty());
    if let Some(own) = named(&format!("CC_{}", target.triple.replace(['-', '.'], "_"))) {
        return own;
    }
    if target.arch() == CodegenTarget::baseline().arch() {
        return named("CC").unwrap_or_else(|| "cc".into());
    }
    format!("{}-linux-gnu-gcc", target.arch())
}

/// The C compiler for a target and the first line of what it says of itself: what its objects depend on besides their text.
pub(super) fn described(target: &CodegenTarget) -> String {
    let compiler = c_compiler(target);
    let said = Command::new(&compiler).arg("--version").output();
    let said = said.map(|o| String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or_default().to_owned());
    format!("{compiler} {}", said.unwrap_or_default())
}

/// The object code of a text in C99, position-independent. `Err` says what the compiler said.
pub fn compile_c(text: &str, target: &CodegenTarget) -> Result<Vec<u8>, CcError> {
    // Products and sums stay apart: what is computed must not depend on the C compiler.
    let mut flags: Vec<String> =
        ["-std=c99", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-w"].map(str::to_owned).into();
    flags.extend(machine_flags(target));
    let dir = WorkFolder::temporary().map_err(CcError::Folder)?;
    compile_file(dir.path(), "region.c", text, &flags, target)
}

/// The object of constants under their symbol. `Err` says what the assembler said.
pub fn compile_data(data: &Data, target: &CodegenTarget) -> Result<Vec<u8>, CcError> {
    let dir = WorkFolder::temporary().map_err(CcError::Folder)?;
    let bytes = dir.path().join("data.bin");
    let written = export::write_at(data.tensors.iter().zip(Data::places(&data.tensors)), &bytes);
    written.map_err(|error| CcError::Write { file: bytes.clone(), error })?;
    compile_file(dir.path(), "data.s", &export::assembly(&data.symbol, "data.bin"), &[], target)
}

/// The object of a file, which is written into a folder.
fn compile_file(
    dir: &Path,
    name: &str,
    text: &str,
    flags: &[String],
    target: &CodegenTarget,
) -> Result<Vec<u8>, CcError> {
    let compiler = c_compiler(target);
    let (input, output) = (dir.join(name), dir.join("region.o"));
    write(&input, text)?;
    let run = Command::new(&compiler)
        .current_dir(dir)
        // The compiler's own temporary files go with ours, even if it outlives this process.
        .env("TMPDIR", dir)
        .args(flags)
        .args(["-c", "-o"])
        .args([&output, &input])
        .output()
        .map_err(|error| CcError::Start { compiler: compiler.clone(), error })?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr);
        let first = said.lines().find(|l| l.contains("error")).or(said.lines().next());
        let message = first.unwrap_or("without a word").to_owned();
        return Err(CcError::Refused { compiler, message });
    }
    std::fs::read(&output).map_err(CcError::Read)
}

/// Links an object into a shared library. `Err` says what the linker said.
pub fn link_c(object: &[u8], libraries: &[String], target: &CodegenTarget, to: &Path) -> Result<(), CcError> {
    let compiler = c_compiler(target);
    let dir = WorkFolder::temporary().map_err(CcError::Folder)?;
    let input = dir.path().join("region.o");
    write(&input, object)?;
    let run = Command::new(&compiler)
        .env("TMPDIR", dir.path())
        .args(["-shared", "-o"])
        .args([to, &input])
        .args(libraries.iter().map(|l| format!("-l{l}")))
        .arg("-lm")
        .output()
        .map_err(|error| CcError::Start { compiler: compiler.clone(), error })?;
    match run.status.success() {
        true => Ok(()),
        false => Err(CcError::Link(String::from_utf8_lossy(&run.stderr).trim().to_owned())),
    }
}

/// What tells GCC and Clang of the target's vectors.
fn machine_flags(target: &CodegenTarget) -> Vec<String> {
    const KNOWN: &[&str] = &[
        "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "avx512f",
        "avx512bw", "avx512cd", "avx512dq", "avx512vl",
    ];
    if target.arch() != "x86_64" {
        return Vec::new();
    }
    KNOWN.iter().filter(|f| target.has(f)).map(|f| format!("-m{f}")).collect()
}
