//! A folder in which the command line runs, and what became of a run.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use resat::{relay::npz, tensor::Tensor};
use tempfile::TempDir;

/// A folder of its own, and a cache that is no file of the folder, and not the user's.
pub(crate) struct Folder(TempDir, TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        let temporary = || TempDir::new().expect("a folder can be made");
        let folder = Folder(temporary(), temporary());
        looked_at(folder.1.path());
        folder
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(file), content).expect("the file can be written");
    }

    pub(crate) fn archive(&self, file: &str, name: &str, t: &Tensor) {
        self.write(file, npz::write([(name, t)]).expect("an archive can be made"));
    }

    /// `resat` in this folder.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command.env("XDG_CACHE_HOME", self.1.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().expect("the program starts");
        Ran::new(args.join(" "), output)
    }

    /// Runs the words of a line.
    pub(crate) fn line(&self, line: &str) -> Ran {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// The files in the folder, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("the folder can be read");
        let name = |e: std::io::Result<fs::DirEntry>| e.expect("an entry").file_name().to_string_lossy().into_owned();
        let mut files: Vec<String> = entries.map(name).collect();
        files.sort();
        files
    }
}

/// Has a user's folder of caches say that this processor was looked at, so that the first build measures nothing, whatever the processor is.
pub(crate) fn looked_at(caches: &Path) {
    let record = resat::driver::machine::file();
    let Some(name) = record.as_ref().and_then(|f| f.file_name()) else { return };
    let folder = caches.join("resat/machine");
    fs::create_dir_all(&folder).expect("the folder can be made");
    fs::write(folder.join(name), "").expect("the record can be written");
}

/// A command that ran.
pub(crate) struct Ran {
    pub(crate) line: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(line: String, output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
        Ran { line, code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// It did what it was asked; its standard output.
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "resat {}\n{}", self.line, self.stderr);
        self.stdout
    }

    /// It refused its input with exit code 2, with a message that has these parts, and without a panic.
    pub(crate) fn refused(self, parts: &[&str]) {
        let Ran { line, code, stdout, stderr } = self;
        assert_eq!(code, Some(2), "resat {line}\n{stdout}\n{stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("internal error"), "resat {line}\n{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "resat {line}\n`{part}` is not in\n{stderr}");
        }
    }
}
