//! Compilers that are shared libraries with the interface of `include/resat_compiler.h`.
//!
//! A library is asked in a process of its own, a small program that resat carries along: whatever a library does there, it
//! can't do here. The process starts when the library is first asked, answers one question after another, and is started
//! again after it has died. What a compiler made can be run there as well, to see that it runs ([`try_code`]).

pub(super) mod error;
#[allow(dead_code, reason = "some of it is for the program alone")]
mod worker;

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    time::Duration,
};

pub use error::ForeignError;
use worker::{In, Out, ask};

use super::{
    callable::{Arguments, CallError, Callable, SerializeError},
    code::LoadError,
};

/// The program, as `build.rs` has compiled it.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/worker"));

/// A tensor's type in messages: its element type's name, and extents of which -1 is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignType {
    /// As `float32`.
    pub dtype: String,
    /// Outermost first.
    pub shape: Vec<i64>,
}

/// A tensor of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignValue {
    /// Its type.
    pub ty: ForeignType,
    /// The elements of a constant.
    pub data: Option<crate::tensor::Tensor>,
}

/// The call of an operator in a region; values by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignNode {
    /// The operator.
    pub op: String,
    /// Its attributes as JSON.
    pub attrs: String,
    /// The pattern that met it, and the number of the match.
    pub composite: Option<(String, u32)>,
    /// What it reads.
    pub args: Vec<u32>,
    /// What it gives.
    pub results: Vec<u32>,
}

/// A region as libraries see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForeignRegion {
    /// The function's name.
    pub symbol: String,
    /// Relay text.
    pub relay: String,
    /// Triple, processor, features.
    pub target: [String; 3],
    /// All tensors, inputs first.
    pub values: Vec<ForeignValue>,
    /// How many of them are inputs.
    pub inputs: u32,
    /// The calls, in order.
    pub nodes: Vec<ForeignNode>,
    /// The results.
    pub outputs: Vec<u32>,
}

/// What a library made of a region.
#[derive(Clone, Debug)]
pub struct ForeignCompiled {
    /// The code.
    pub code: super::Code,
    /// Bytes of workspace.
    pub workspace: usize,
    /// The tensors that it says that it gives.
    pub outputs: Vec<ForeignType>,
    /// Libraries that it calls.
    pub libraries: Vec<String>,
}

/// A compiler that is a shared library.
#[derive(Debug)]
pub struct ForeignLibrary {
    process: Arc<Process>,
    name: String,
    keeps_constants: bool,
    has_cost: bool,
    /// The library in this process, once a function of it is wanted.
    here: OnceLock<Result<Here, String>>,
}

/// A library that was opened in this process.
struct Here(worker::Library);

// SAFETY: it holds addresses of functions, which are called by one thread at a time, under the lock of the process.
unsafe impl Send for Here {}
// SAFETY: as above.
unsafe impl Sync for Here {}

impl std::fmt::Debug for Here {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a library")
    }
}

impl ForeignLibrary {
    /// Loads a library, in a process of its own, and asks its name.
    pub fn open(path: &Path, limit: Duration) -> Result<ForeignLibrary, LoadError> {
        let refuse = |reason: String| LoadError { library: path.display().to_string(), reason };
        // A path without a slash would be looked for in the system's folders.
        let full = std::fs::canonicalize(path).map_err(|e| refuse(e.to_string()))?;
        let process = Arc::new(Process::new(Some(full), limit));
        let hello = process.ask(ask::HELLO, &[], "resat_compiler_name").map_err(|e| refuse(e.to_string()))?;
        let mut m = In::new(&hello);
        let (name, keeps_constants, has_cost) = (m.text(), m.u32() != 0, m.u32() != 0);
        Ok(ForeignLibrary { process, name, keeps_constants, has_cost, here: OnceLock::new() })
    }

    /// Its name, as it says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.process.library.as_deref().expect("it was opened by its path")
    }

    /// Whether regions shall hold their constants.
    pub fn keeps_constants(&self) -> bool {
        self.keeps_constants
    }

    /// Its patterns: names and left sides of rules.
    pub fn patterns(&self) -> Result<Vec<(String, String)>, ForeignError> {
        let answer = self.process.ask(ask::PATTERNS, &[], "resat_compiler_patterns")?;
        let mut m = In::new(&answer);
        Ok((0..m.u32()).map_while(|_| m.whole().then(|| (m.text(), m.text()))).collect())
    }

    /// Its rules.
    pub fn rules(&self) -> Result<Option<String>, ForeignError> {
        let answer = self.process.ask(ask::RULES, &[], "resat_compiler_rules")?;
        Ok(Some(In::new(&answer).text()).filter(|t| !t.is_empty()))
    }

    /// Whether it takes a call.
    pub fn supports(
        &self,
        op: &str,
        attrs: &str,
        args: &[ForeignType],
        results: &[ForeignType],
    ) -> Result<bool, ForeignError> {
        let mut out = Out::default();
        out.bytes(op.as_bytes());
        out.bytes(attrs.as_bytes());
        for types in [args, results] {
            out.u32(types.len() as u32);
            types.iter().for_each(|t| out.ty(&t.dtype, &t.shape));
        }
        Ok(In::new(&self.process.ask(ask::SUPPORTS, &out.0, "resat_compiler_supports")?).u32() != 0)
    }

    /// The seconds that it says that a region takes.
    pub fn cost(&self, region: &ForeignRegion) -> Result<Option<f64>, ForeignError> {
        if !self.has_cost {
            return Ok(None);
        }
        let cost = In::new(&self.process.ask(ask::COST, &message(region), "resat_compiler_cost")?).f64();
        match cost {
            c if c.is_nan() => Err(ForeignError::CostIsNan),
            c => Ok(Some(c).filter(|c| *c >= 0.0)),
        }
    }

    /// Compiles a region; once more in this process, where the code is a function.
    pub fn compile(&self, region: &ForeignRegion) -> Result<ForeignCompiled, ForeignError> {
        let question = message(region);
        let answer = self.process.ask(ask::COMPILE, &question, "resat_compiler_compile")?;
        let mut m = In::new(&answer);
        let (kind, code, workspace) = (m.u32(), m.bytes().to_vec(), m.u64() as usize);
        let outputs = (0..m.u32()).map_while(|_| {
            m.whole().then(|| {
                let (dtype, rank) = (m.text(), m.u32());
                ForeignType { dtype, shape: (0..rank).map_while(|_| m.whole().then(|| m.u64() as i64)).collect() }
            })
        });
        let outputs = outputs.collect();
        let libraries = m.text().split_whitespace().map(str::to_owned).collect();
        let code = match kind {
            1 => super::Code::Object(code),
            2 => super::Code::Source(
                String::from_utf8(code).map_err(|e| ForeignError::NoUtf8 { at: e.utf8_error().valid_up_to() })?,
            ),
            _ => super::Code::Callable(Arc::new(self.function(question)?)),
        };
        Ok(ForeignCompiled { code, workspace, outputs, libraries })
    }

    fn function(&self, question: Vec<u8>) -> Result<ForeignFunction, ForeignError> {
        let _one_at_a_time = self.process.running.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path().display().to_string();
        let here = self.here.get_or_init(|| worker::Library::open(&path).map(Here)).as_ref();
        let here = here.map_err(|why| ForeignError::Refused(why.clone()))?;
        let function = here.0.compile(&question, &mut Out::default()).map_err(ForeignError::Refused)?;
        let function = function.ok_or(ForeignError::NoFunction)?;
        Ok(ForeignFunction { function, process: self.process.clone(), question })
    }
}

/// The message that a region is.
fn message(r: &ForeignRegion) -> Vec<u8> {
    let mut out = Out::default();
    let [triple, cpu, features] = &r.target;
    for text in [&r.symbol, &r.relay, triple, cpu, features] {
        out.bytes(text.as_bytes());
    }
    out.u32(r.values.len() as u32);
    for v in &r.values {
        out.ty(&v.ty.dtype, &v.ty.shape);
        out.u32(v.data.is_some() as u32);
        if let Some(t) = &v.data {
            out.bytes(t.bytes());
        }
    }
    out.u32(r.inputs);
    let numbers = |out: &mut Out, all: &[u32]| {
        out.u32(all.len() as u32);
        all.iter().for_each(|&n| out.u32(n));
    };
    out.u32(r.nodes.len() as u32);
    for n in &r.nodes {
        out.bytes(n.op.as_bytes());
        out.bytes(n.attrs.as_bytes());
        let (name, group) = n.composite.as_ref().map_or(("", 0), |(name, group)| (name, *group));
        out.bytes(name.as_bytes());
        out.u32(group);
        numbers(&mut out, &n.args);
        numbers(&mut out, &n.results);
    }
    numbers(&mut out, &r.outputs);
    out.0
}

/// A function that a library keeps.
struct ForeignFunction {
    function: worker::Function,
    /// Where it can be made and run without harm.
    process: Arc<Process>,
    /// The region that it was made of.
    question: Vec<u8>,
}

impl Callable for ForeignFunction {
    fn call(&self, a: &mut Arguments<'_>) -> Result<(), CallError> {
        // The library reads inputs only, as the header asks of it.
        let inputs = a.inputs.iter().map(|i| i.as_ptr().cast_mut().cast());
        let pointers: Vec<*mut std::ffi::c_void> =
            inputs.chain(a.outputs.iter_mut().map(|o| o.as_mut_ptr().cast())).collect();
        let context = std::ptr::from_ref(a.context).cast();
        // SAFETY: a function of the library, which stays loaded, for a region of these inputs and outputs; it has run on such
        // in its own process where that was asked for. The context has the layout that the header says.
        unsafe { (self.function)(context, pointers.as_ptr(), a.workspace.as_mut_ptr().cast()) };
        Ok(())
    }

    fn trial(&self, inputs: &[&[u8]], outputs: &[usize], workspace: usize) -> Option<Result<Vec<Vec<u8>>, CallError>> {
        let tried = || -> Result<_, CallError> {
            self.process.ask(ask::COMPILE, &self.question, "resat_compiler_compile")?;
            let question = trial("", "", workspace, inputs, outputs);
            Ok(results(&self.process.ask(ask::RUN, &question, "the function")?))
        };
        Some(tried())
    }

    fn serialize(&self, symbol: &str) -> Result<super::Serialized, SerializeError> {
        Err(SerializeError::OfTheLibrary { symbol: symbol.to_owned() })
    }
}

/// Runs code in a process of its own, on these inputs, and gives the bytes of the outputs, which are so large. `Err` says that it
/// crashed, hung, wrote where it must not, or did not write all.
pub fn try_code(
    library: &Path,
    symbol: &str,
    workspace: usize,
    inputs: &[&[u8]],
    outputs: &[usize],
    limit: Duration,
) -> Result<Vec<Vec<u8>>, ForeignError> {
    let question = trial(&library.display().to_string(), symbol, workspace, inputs, outputs);
    Ok(results(&Process::new(None, limit).ask(ask::RUN, &question, symbol)?))
}

fn trial(path: &str, symbol: &str, workspace: usize, inputs: &[&[u8]], outputs: &[usize]) -> Vec<u8> {
    let mut out = Out::default();
    out.bytes(path.as_bytes());
    out.bytes(symbol.as_bytes());
    out.u64(workspace as u64);
    out.u32(inputs.len() as u32);
    inputs.iter().for_each(|i| out.bytes(i));
    out.u32(outputs.len() as u32);
    outputs.iter().for_each(|&n| out.u64(n as u64));
    out.0
}

fn results(answer: &[u8]) -> Vec<Vec<u8>> {
    let mut m = In::new(answer);
    (0..m.u32()).map_while(|_| m.whole().then(|| m.bytes().to_vec())).collect()
}

/// The process that a library runs in.
#[derive(Debug)]
struct Process {
    library: Option<PathBuf>,
    /// How long it may take to answer.
    limit: Duration,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    questions: ChildStdin,
    answers: mpsc::Receiver<(u32, Vec<u8>)>,
}

impl Process {
    fn new(library: Option<PathBuf>, limit: Duration) -> Process {
        Process { library, limit, running: Mutex::new(None) }
    }

    /// Asks something; `entry` is the function that answers, for messages.
    fn ask(&self, what: u32, question: &[u8], entry: &str) -> Result<Vec<u8>, ForeignError> {
        let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(self.start().map_err(|e| ForeignError::Start(e.to_string()))?);
        }
        let running = slot.as_mut().expect("it was started");
        let mut frame = Out::default();
        frame.u32(what);
        frame.u64(question.len() as u64);
        frame.0.extend(question);
        // Where the process has died, there is no answer either.
        let _ = running.questions.write_all(&frame.0).and_then(|()| running.questions.flush());
        match running.answers.recv_timeout(self.limit) {
            Ok((0, answer)) => Ok(answer),
            Ok((_, why)) => Err(ForeignError::Refused(String::from_utf8_lossy(&why).into_owned())),
            Err(e) => {
                let mut dead = slot.take().expect("it was started");
                if e == mpsc::RecvTimeoutError::Timeout {
                    dead.end();
                    return Err(ForeignError::NoAnswer { entry: entry.to_owned(), limit: self.limit });
                }
                Err(ForeignError::Died { entry: entry.to_owned(), fate: dead.fate() })
            }
        }
    }

    fn start(&self) -> std::io::Result<Running> {
        let mut command = Command::new(program()?);
        command.args(&self.library).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (questions, mut out) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            let Some(from) = &mut out else { return };
            // Ends with the process, or when nobody listens.
            while let Some(answer) = frame(from) {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let questions = questions.ok_or_else(|| std::io::Error::other("it has no standard input"))?;
        Ok(Running { child, questions, answers })
    }
}

/// The next answer.
fn frame(from: &mut impl Read) -> Option<(u32, Vec<u8>)> {
    let mut head = [0; 12];
    from.read_exact(&mut head).ok()?;
    let mut h = In::new(&head);
    let (status, len) = (h.u32(), h.u64());
    let mut body = vec![0; usize::try_from(len).ok()?];
    from.read_exact(&mut body).ok()?;
    Some((status, body))
}

impl Running {
    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How a process that answers no more has ended.
    fn fate(&mut self) -> String {
        use std::os::unix::process::ExitStatusExt;
        // It has closed its output; in a moment it is gone, unless it hangs.
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match (status.signal(), status.code()) {
                        (Some(signal), _) => format!("crashed: signal {signal}{}", signal_name(signal)),
                        (_, Some(code)) => format!("ended its process with code {code}"),
                        _ => "ended its process".into(),
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(_) => break,
            }
        }
        self.end();
        "closed the pipe that answers come by".into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => " (segmentation fault)",
        libc::SIGABRT => " (abort)",
        libc::SIGILL => " (illegal instruction)",
        libc::SIGFPE => " (arithmetic exception)",
        libc::SIGBUS => " (bus error)",
        libc::SIGKILL => " (killed)",
        _ => "",
    }
}

/// Where the program is: a file in memory, or where there is none such, a temporary one that stays as long as the process.
fn program() -> std::io::Result<PathBuf> {
    static FILE: OnceLock<Result<(PathBuf, Option<File>), String>> = OnceLock::new();
    let made = FILE.get_or_init(|| in_memory().or_else(|_| on_disk()).map_err(|e| e.to_string()));
    made.as_ref().map(|(path, _)| path.clone()).map_err(|e| std::io::Error::other(e.clone()))
}

fn in_memory() -> std::io::Result<(PathBuf, Option<File>)> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: a name and a flag.
    let fd = unsafe { libc::memfd_create(c"resat-worker".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it was made here, and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(PROGRAM)?;
    let path = |f: &File| PathBuf::from(format!("/proc/self/fd/{}", f.as_raw_fd()));
    // What is open for writing can't be executed.
    let open = File::open(path(&file))?;
    drop(file);
    Ok((path(&open), Some(open)))
}

fn on_disk() -> std::io::Result<(PathBuf, Option<File>)> {
    use std::os::unix::fs::PermissionsExt;
    let folder = crate::output::WorkFolder::temporary()?;
    let path = folder.path().join("worker");
    std::fs::write(&path, PROGRAM)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    // It is started again and again as long as this process runs.
    std::mem::forget(folder);
    Ok((path, None))
}
