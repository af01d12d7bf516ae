//! What was measured about reductions, kept in a folder: which of its candidates is the fastest, by content and machine.
//!
//! The model of a core that ranks candidates does not see everything; where somebody has measured, that counts. A reduction is known by
//! the tensor expressions of its kernel and the list of its candidates: where either changes, nothing is known of it.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use hashbrown::HashMap;

use super::Reduced;
use crate::loops::{Digest, Stages, digest_bytes};

/// By reduction: the candidate that was measured to be the fastest.
#[derive(Debug)]
pub struct Tuned {
    /// What the machine is called, in words.
    machine: String,
    folder: Option<PathBuf>,
    known: Mutex<HashMap<Digest, usize>>,
}

/// Cycles from which on a kernel is worth measuring, by the model: of all its reductions together, since one may be made in pieces.
const WORTH: f64 = 20_000.0;

/// The share of a kernel's cycles from which on one of its reductions is.
const PART: f64 = 0.05;

/// The reductions of a kernel where there is something to gain from measuring.
pub fn worth_measuring(all: &[Reduced]) -> impl Iterator<Item = usize> {
    let cycles: f64 = all.iter().map(Reduced::cycles).sum();
    let worth = move |r: &Reduced| r.candidates() > 1 && cycles >= WORTH && r.cycles() >= PART * cycles;
    (0..all.len()).filter(move |&i| worth(&all[i]))
}

impl Tuned {
    /// What is known of a machine, which is called so, in a folder; where none is given, it is remembered while this lives.
    pub fn new(machine: String, folder: Option<PathBuf>) -> Tuned {
        let tuned = Tuned { machine, folder, known: Mutex::default() };
        let text = tuned.file().and_then(|f| fs::read_to_string(f).ok()).unwrap_or_default();
        // Lines that are none of ours, such as one that was cut short, are passed over.
        let line = |line: &str| {
            let mut words = line.split('\t');
            let key = u128::from_str_radix(words.next()?, 16).ok()?;
            let choice = words.next()?.parse().ok()?;
            words.next().map(|_| (Digest(key), choice))
        };
        tuned.known.lock().unwrap_or_else(PoisonError::into_inner).extend(text.lines().filter_map(line));
        tuned
    }

    /// The file of this machine: a line for each reduction.
    pub fn file(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.tsv", digest_bytes(&[self.machine.as_bytes()]))))
    }

    /// What the reductions of a group of expressions are known by.
    pub fn keys(group: &Stages, reductions: &[Reduced]) -> Vec<Digest> {
        let group = format!("{group:?}");
        let key = |(i, r): (usize, &Reduced)| {
            digest_bytes(&[group.as_bytes(), i.to_string().as_bytes(), r.described().as_bytes()])
        };
        reductions.iter().enumerate().map(key).collect()
    }

    /// Which candidate was the fastest.
    pub fn choice(&self, key: Digest) -> Option<usize> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    /// The candidates that the reductions of a group should take: the model's where nothing was measured.
    pub fn choices(&self, group: &Stages, reductions: &[Reduced]) -> Vec<usize> {
        let nothing = self.known.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if nothing || worth_measuring(reductions).next().is_none() {
            return vec![0; reductions.len()];
        }
        Tuned::keys(group, reductions).into_iter().map(|key| self.choice(key).unwrap_or(0)).collect()
    }

    /// Remembers which candidate is the fastest. A file that can't be written costs time and nothing else.
    pub fn remember(&self, key: Digest, choice: usize, about: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, choice);
        let Some(file) = self.file() else { return };
        let append = || {
            fs::create_dir_all(file.parent().unwrap_or(std::path::Path::new(".")))?;
            let header = if file.exists() { String::new() } else { format!("# {}\n", self.machine) };
            let mut to = fs::OpenOptions::new().create(true).append(true).open(&file)?;
            // In one piece: other processes may append to the same file.
            to.write_all(format!("{header}{key}\t{choice}\t{about}\n").as_bytes())
        };
        if let Err(e) = append() {
            log::debug!("{}: {e}", file.display());
        }
    }
}
