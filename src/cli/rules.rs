//! `resat rules`.

use std::path::PathBuf;

use clap::Subcommand;

use super::Failure;
use crate::{
    diag::{Diagnostic, Refused, nearest, read_text},
    rules::{self, CodeRules, Definition, Definitions, reference},
    saturate::Grade,
};

/// Arguments of `resat rules`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  resat rules list\n  resat rules show layout/merge-transposes\n  resat rules check my.rules")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// One rule a line: name, grade, what it says
    #[command(after_help = "Example:\n  resat rules list my.rules")]
    List {
        /// Rule files; the shipped rules where none is given
        files: Vec<PathBuf>,
    },
    /// Test rules: each is instantiated with random types and values, fires, and both sides are compared; a rule a line
    #[command(after_help = "Example:\n  resat rules check my.rules")]
    Check {
        /// Rule files; the shipped rules where none is given
        files: Vec<PathBuf>,
    },
    /// What the guards and attribute functions of the rule language are, or those of one name
    #[command(after_help = "Examples:\n  resat rules doc\n  resat rules doc layout-split")]
    Doc {
        /// A guard or function; all where none is given
        name: Option<String>,
    },
    /// A rule with its comment
    #[command(after_help = "Example:\n  resat rules show algebra/merge-reshapes")]
    Show {
        /// `ruleset/rule`, or a ruleset
        name: String,
        /// Rule files; the shipped rules where none is given
        files: Vec<PathBuf>,
    },
}

fn definitions(files: &[PathBuf]) -> Result<Vec<Definitions>, Refused> {
    if files.is_empty() {
        return Ok(rules::shipped_definitions().to_vec());
    }
    let (mut sets, mut complaints) = (Vec::new(), Vec::new());
    for path in files {
        match read_text(path).and_then(|text| rules::define(&path.display().to_string(), &text)) {
            Ok(defined) => sets.extend(defined),
            Err(Refused(d)) => complaints.extend(d),
        }
    }
    if complaints.is_empty() { Ok(sets) } else { Err(Refused(complaints)) }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::List { files } => {
            let sets = definitions(&files)?;
            let line = |r: &Definition| format!("{:44} {:6} {}\n", r.name().as_str(), r.grade().to_string(), r.text());
            let mut lines: String = sets.iter().flat_map(|s| &s.rules).map(line).collect();
            for set in shipped_in_code(&files) {
                let line = |(name, doc): &(&str, &str)| {
                    format!("{:44} {:6} {doc}\n", format!("{}/{name}", set.name), Grade::Exact.to_string())
                };
                lines.extend(set.rules.iter().map(line));
            }
            super::print(&lines)
        }
        Command::Doc { name: None } => super::print(&reference::markdown()),
        Command::Doc { name: Some(name) } => match reference::entry(&name) {
            Some(lines) => super::print(&lines),
            None => {
                let d = Diagnostic::new(format!("there is no guard or function `{name}`"));
                Err(Failure::Refused(Refused::from(match nearest(&name, reference::names()) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d.help("`resat rules doc` lists them"),
                })))
            }
        },
        Command::Check { files } => check(&definitions(&files)?),
        Command::Show { name, files } => {
            let sets = shipped_in_code(&files);
            let rule = |set: &CodeRules, (rule, doc): &(&str, &str)| {
                format!("{doc}\n({}) {}/{rule}: Rust code\n\n", Grade::Exact, set.name)
            };
            if let Some(set) = sets.iter().find(|s| s.name == name) {
                let rules: String = set.rules.iter().map(|r| rule(set, r)).collect();
                return super::print(&format!("{}\n{rules}", set.doc));
            }
            let mut all = sets.iter().flat_map(|s| s.rules.iter().map(move |r| (s, r)));
            match all.find(|(s, (rule, _))| format!("{}/{rule}", s.name) == name) {
                Some((set, r)) => super::print(&rule(set, r)),
                None => show(&definitions(&files)?, &name),
            }
        }
    }
}

/// The rulesets that are Rust code; none where files are given, as those are meant then.
fn shipped_in_code(files: &[PathBuf]) -> Vec<CodeRules> {
    if files.is_empty() { rules::in_code() } else { Vec::new() }
}

fn check(sets: &[Definitions]) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for rule in sets.iter().flat_map(|s| &s.rules) {
        let report = rules::check(rule);
        super::print(&format!("{} {report}\n", if report.is_sound() { "ok  " } else { "FAIL" }))?;
        if !report.is_sound() {
            let d = Diagnostic::new(format!("{} does not pass its test", rule.name()));
            wrong.push(d.at(Some(rule.span().clone())));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Refused(Refused(wrong))) }
}

fn show(sets: &[Definitions], name: &str) -> Result<(), Failure> {
    let rule = |r: &Definition| format!("{}\n({}) {}\n{}\n\n", r.doc(), r.grade(), r.name(), r.text());
    if let Some(set) = sets.iter().find(|s| s.name.as_str() == name) {
        let text: String = set.rules.iter().map(rule).collect();
        return super::print(&format!("{}\n{}\n\n{text}", set.doc, set.head));
    }
    let all: Vec<&Definition> = sets.iter().flat_map(|s| &s.rules).collect();
    match all.iter().find(|r| r.name().as_str() == name) {
        Some(r) => super::print(&rule(r)),
        None => {
            let names: Vec<String> = all.iter().map(|r| r.name().to_string()).collect();
            let d = Diagnostic::new(format!("there is no rule or ruleset `{name}`"));
            let d = match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d.help("`resat rules list` lists them"),
            };
            Err(Failure::Refused(d.into()))
        }
    }
}
