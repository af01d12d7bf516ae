//! Compiled programs as shared libraries with a C interface: object code, a generated driver in C, and the weights.

mod c99;
mod machine;
mod sized;
mod sized_c;
mod source;

use std::{
    borrow::Cow,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
};

pub use c99::{ExportedC, FunctionText, c_function, export_c, works_in_place};
pub use machine::{Entry, MachineParts, Word, Words};
pub use sized::{ExtentOf, Form, InForm, PortType, SizedFunction, SizedParts, Span, export_sized};
pub use sized_c::export_sized_c;

use super::{PAGE, places_after, program::Program, with_gaps};
use crate::{output::WorkFolder, tensor::Tensor};

/// Why a library could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file could not be written.
    #[error("can't write {0}: {1}")]
    Write(PathBuf, #[source] std::io::Error),
    /// There is no C compiler.
    #[error("can't start the C compiler `{0}`: {1}")]
    NoCompiler(String, #[source] std::io::Error),
    /// The C compiler complained.
    #[error(
        "the C compiler refused: {0}\n(`CC` names the compiler of the target; a path that ends in `.tar` needs none)"
    )]
    Compiler(String),
    /// What it keeps from run to run grows.
    #[error(
        "a program that appends to what it keeps from one run to the next runs in process only: build it without state"
    )]
    Appends,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The shared library.
    pub library: PathBuf,
    /// The C header beside it, which documents how to call it.
    pub header: PathBuf,
    /// Why it refuses sizes within bounds that the program takes, and how many, where it does.
    pub unserved: Option<String>,
}

/// Writes a shared library of a program and the object code of all its functions, and a C
/// header beside it. `path` is the library's; the header has the same name with the extension `h`.
///
/// The library holds the weights, and needs nothing but the C library, libm and POSIX threads. It is linked by the C compiler
/// that the environment variable `CC` names, `cc` where it does not.
///
/// A path that ends in `.tar` gets what the library would be linked of: object files, C, weights, and a `Makefile` for whoever has a C
/// compiler for the target.
pub fn export_library(program: &Program, objects: &[&[u8]], path: &Path) -> Result<Exported, ExportError> {
    let objects = objects.iter().map(|&o| Cow::Borrowed(o)).collect();
    export_linked(program, &Exportable { objects, ..Exportable::default() }, path)
}

/// What an exported library is linked of.
#[derive(Clone, Debug, Default)]
pub struct Exportable<'a> {
    /// Object files, which hold the program's functions.
    pub objects: Vec<Cow<'a, [u8]>>,
    /// Names of shared libraries that they call: the library needs those where it is loaded.
    pub libraries: Vec<String>,
    /// Functions of the objects that say whether others are ready: see [`Serialized::ready`](crate::runtime::Serialized::ready).
    pub ready: Vec<String>,
}

/// The same of objects that call other libraries, or may fail.
pub fn export_linked(program: &Program, parts: &Exportable<'_>, path: &Path) -> Result<Exported, ExportError> {
    if !program.appended.is_empty() {
        return Err(ExportError::Appends);
    }
    let plan = program.plan();
    let (weights, _) = places_after(0, program.constants());
    let driver = Driver {
        header: source::header(program, &plan, &parts.ready),
        text: source::driver(program, &plan, &weights, &parts.ready),
        constants: program.constants(),
        weights: source::weights_symbol(program.name()),
        symbols: source::symbols(program),
    };
    link(&driver, parts, path)
}

/// What the driver includes its header as.
const HEADER: &str = "model.h";

/// What a library consists of beside objects.
struct Driver<'a> {
    header: String,
    text: String,
    /// Which it has one after another, where [`places_after`] has them,
    constants: &'a [Tensor],
    /// under this symbol.
    weights: String,
    /// What can be seen from outside.
    symbols: Vec<String>,
}

fn link(driver: &Driver<'_>, parts: &Exportable<'_>, path: &Path) -> Result<Exported, ExportError> {
    let libraries = &parts.libraries[..];
    let at = |p: &Path| {
        let p = p.to_owned();
        move |e| ExportError::Write(p, e)
    };
    let work = WorkFolder::beside(path).map_err(at(path))?;
    let dir = work.path().join("parts");
    std::fs::create_dir(&dir).map_err(at(path))?;
    let header_path = path.with_extension("h");
    let write = |name: &str, bytes: &[u8]| {
        let file = dir.join(name);
        std::fs::write(&file, bytes).map_err(at(&file)).map(|()| file)
    };
    write(HEADER, driver.header.as_bytes())?;
    let weights_file = dir.join("weights.bin");
    write_tensors(driver.constants, &weights_file).map_err(at(&weights_file))?;
    write("driver.c", driver.text.as_bytes())?;
    write("weights.s", assembly(&driver.weights, "weights.bin").as_bytes())?;
    write("exports.map", format!("{{ global: {}; local: *; }};\n", driver.symbols.join("; ")).as_bytes())?;
    let mut sources = vec!["driver.c".to_owned(), "weights.s".to_owned()];
    for (i, bytes) in parts.objects.iter().enumerate() {
        let name = format!("object{i}.o");
        write(&name, bytes)?;
        sources.push(name);
    }
    let library = work.path().join("library");
    match path.extension().is_some_and(|e| e == "tar") {
        true => pack(&dir, &sources, libraries, path, &library).map_err(at(path))?,
        false => compile(&dir, &sources, libraries, &library)?,
    }
    std::fs::copy(dir.join(HEADER), work.path().join("header")).map_err(at(&header_path))?;
    work.publish(&[("header", &header_path), ("library", path)]).map_err(|(p, e)| ExportError::Write(p, e))?;
    Ok(Exported { library: path.to_owned(), header: header_path, unserved: None })
}

/// Writes tensors into one file, where [`places_after`] has them, and says where that is.
pub fn write_tensors(tensors: &[Tensor], path: &Path) -> std::io::Result<Vec<usize>> {
    let (places, _) = places_after(0, tensors);
    write_at(tensors.iter().zip(places.iter().copied()), path)?;
    Ok(places)
}

/// Writes tensors into one file, each at its place, which are in order and no page apart.
pub fn write_at<'a>(tensors: impl IntoIterator<Item = (&'a Tensor, usize)>, path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    with_gaps(0, tensors).into_iter().try_for_each(|piece| file.write_all(piece))?;
    file.flush()
}

/// A file's bytes under a symbol, for the assembler, which copies the file as it is: that takes no time even for weights of
/// hundreds of megabytes.
pub fn assembly(symbol: &str, file: &str) -> String {
    format!(
        "\t.section .rodata\n\t.globl {symbol}\n\t.hidden {symbol}\n\t.balign {PAGE}\n{symbol}:\n\t.incbin \"{file}\"\n\
         \t.byte 0\n\t.section .note.GNU-stack,\"\",%progbits\n"
    )
}

/// Packs the files of a folder, which are the sources of a library, and how to link it under the name that `path` has.
fn pack(dir: &Path, sources: &[String], libraries: &[String], path: &Path, to: &Path) -> std::io::Result<()> {
    let name = path.with_extension("so");
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let make = format!(
        "# Links the library: make CC=aarch64-linux-gnu-gcc\n{name}: model.h weights.bin exports.map {files}\n\t$(CC) {flags} -o $@ \
         {files} {called}{libraries}\n",
        files = sources.join(" "),
        flags = LINK.join(" "),
        called = libraries.iter().map(|l| format!("-l{l} ")).collect::<String>(),
        libraries = LIBRARIES.join(" ")
    );
    std::fs::write(dir.join("Makefile"), make)?;
    let mut archive = tar::Builder::new(BufWriter::new(File::create(to)?));
    archive.append_dir_all(".", dir)?;
    archive.into_inner()?.flush()
}

/// Arguments of the C compiler.
const LINK: [&str; 5] = ["-std=c99", "-O2", "-fPIC", "-shared", "-Wl,--version-script=exports.map"];

/// What a library may need; only what is called is needed where it is loaded.
const LIBRARIES: [&str; 3] = ["-Wl,--as-needed", "-lm", "-lpthread"];

fn compile(dir: &Path, sources: &[String], libraries: &[String], library: &Path) -> Result<(), ExportError> {
    let cc = std::env::var("CC").ok().filter(|c| !c.is_empty()).unwrap_or_else(|| "cc".to_owned());
    let output = Command::new(&cc)
        .current_dir(dir)
        // The compiler's own temporary files go with ours, even if it outlives this process.
        .env("TMPDIR", dir)
        .args(LINK)
        .arg("-o")
        .arg(library)
        .args(sources)
        .args(libraries.iter().map(|l| format!("-l{l}")))
        .args(LIBRARIES)
        .output()
        .map_err(|e| ExportError::NoCompiler(cc, e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(ExportError::Compiler(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
