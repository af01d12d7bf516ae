//! What an exploration has found out, a line of JSON each, so that one that was interrupted goes on where it was.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::{
    diag::{Diagnostic, Refused},
    loops::Digest,
};

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Record {
    /// What the rest is about.
    Start { resat: String, key: String, about: Vec<(String, String)> },
    /// A pass made one module of another, or refused it.
    Pass { pass: String, from: String, result: Outcome },
    /// A program was compiled.
    Program { program: String, result: Code },
    /// A program was measured.
    Latency { program: String, latencies_s: Vec<f64>, difference: Option<f64> },
    /// How good a saturation was after so many rounds.
    Anytime { from: String, points: Vec<Anytime> },
}

/// What became of a module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The module, by its digest.
    pub to: Option<String>,
    /// Why there is none.
    pub refused: Option<String>,
    pub seconds: f64,
    /// What a saturation did, where the pass is one.
    pub saturated: Option<Saturated>,
}

/// What became of a program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Code {
    /// By the cost model.
    pub cost: Option<f64>,
    /// Why there is no code.
    pub refused: Option<String>,
    pub compile_s: f64,
    pub kernels: usize,
    pub calls: usize,
}

/// Why an order gives no program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The pass, or `code` where the program could not be compiled or run.
    pub at: String,
    /// The reason.
    pub reason: String,
}

/// What a saturation did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saturated {
    /// Why it stopped.
    pub stop: String,
    /// Whether no rule had anything new to say.
    pub saturated: bool,
    /// Rounds.
    pub rounds: usize,
    /// E-nodes.
    pub nodes: usize,
    /// Classes.
    pub classes: usize,
    /// Before, by the cost model.
    pub cost_before: f64,
    /// After, by the cost model.
    pub cost_after: f64,
    /// For saturating and extracting.
    pub seconds: f64,
}

/// How good a saturation is when it is stopped after so many rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anytime {
    /// Rounds.
    pub rounds: usize,
    /// For saturating and extracting.
    pub seconds: f64,
    /// E-nodes.
    pub nodes: usize,
    /// The cost of what is extracted.
    pub cost: f64,
}

/// Everything that is known, and the file that it is kept in.
#[derive(Debug, Default)]
pub(super) struct State {
    file: Option<PathBuf>,
    pub passes: HashMap<(String, Digest), Outcome>,
    pub programs: HashMap<Digest, Code>,
    pub latencies: HashMap<Digest, (Vec<f64>, Option<f64>)>,
    pub anytime: HashMap<Digest, Vec<Anytime>>,
    /// Lines that were read.
    pub resumed: usize,
}

/// A digest as it is written.
pub(super) fn parse_digest(text: &str) -> Option<Digest> {
    u128::from_str_radix(text, 16).ok().map(Digest)
}

impl State {
    /// What a file holds that is about the same model, settings and resat; an empty state where there is no such file, which is begun.
    /// A last line that was cut short is dropped.
    ///
    /// Refused is a file about something else, and one that can't be read or written.
    pub(super) fn open(file: Option<&Path>, key: &Digest, about: &[(String, String)]) -> Result<State, Refused> {
        let mut state = State { file: file.map(Path::to_owned), ..State::default() };
        let Some(path) = file else { return Ok(state) };
        let name = path.display();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Diagnostic::new(format!("{name}: {e}")).into()),
        };
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut lines = whole.lines().enumerate();
        if let Some((_, first)) = lines.next() {
            match serde_json::from_str(first) {
                Ok(Record::Start { key: of, about: other, .. }) => {
                    if of != key.to_string() {
                        let differs = about.iter().find(|pair| !other.contains(pair)).map(|(name, _)| name.as_str());
                        let what = differs.unwrap_or("resat itself");
                        let d = Diagnostic::new(format!("{name} is the state of another exploration: {what} differs"));
                        return Err(d.help("name another file by `--state`, or delete this one to start over").into());
                    }
                }
                _ => {
                    let d = Diagnostic::new(format!("{name}:1: this is not the state of an exploration"));
                    return Err(d.help("name another file by `--state`").into());
                }
            }
        }
        for (i, line) in lines {
            let record = serde_json::from_str(line).map_err(|e| Diagnostic::new(format!("{name}:{}: {e}", i + 1)))?;
            state.take(record);
            state.resumed += 1;
        }
        if whole.is_empty() {
            state.create()?;
            let resat = env!("CARGO_PKG_VERSION").to_owned();
            state.write(&Record::Start { resat, key: key.to_string(), about: about.to_vec() })?;
        } else if whole.len() < text.len() {
            fs::write(path, whole).map_err(|e| Diagnostic::new(format!("{name}: {e}")))?;
        }
        Ok(state)
    }

    fn create(&self) -> Result<(), Refused> {
        let Some(path) = &self.file else { return Ok(()) };
        fs::write(path, "").map_err(|e| Diagnostic::new(format!("{}: {e}", path.display())).into())
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start { .. } => {}
            Record::Pass { pass, from, result } => {
                if let Some(from) = parse_digest(&from) {
                    self.passes.insert((pass, from), result);
                }
            }
            Record::Program { program, result } => {
                if let Some(program) = parse_digest(&program) {
                    self.programs.insert(program, result);
                }
            }
            Record::Latency { program, latencies_s, difference } => {
                if let Some(program) = parse_digest(&program) {
                    self.latencies.insert(program, (latencies_s, difference));
                }
            }
            Record::Anytime { from, points } => {
                if let Some(from) = parse_digest(&from) {
                    self.anytime.insert(from, points);
                }
            }
        }
    }

    /// Remembers, in the file as well.
    pub(super) fn add(&mut self, record: Record) -> Result<(), Refused> {
        self.write(&record)?;
        self.take(record);
        Ok(())
    }

    fn write(&self, record: &Record) -> Result<(), Refused> {
        let Some(path) = &self.file else { return Ok(()) };
        let failed = |e: String| Refused::from(Diagnostic::new(format!("{}: {e}", path.display())));
        let mut line = serde_json::to_string(record).map_err(|e| failed(e.to_string()))?;
        line.push('\n');
        let file = fs::OpenOptions::new().append(true).open(path);
        file.and_then(|mut f| f.write_all(line.as_bytes())).map_err(|e| failed(e.to_string()))
    }
}
