//! The program between passes: as files, and as differences.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use similar::TextDiff;

use super::{Failure, args::write_file};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    driver::Options,
    ir::Module,
    pass::{AfterPass, BeforePass, Pass},
    relay::text,
};

/// What is shown of the program on its way.
#[derive(clap::Args, Debug)]
pub(super) struct DumpArgs {
    /// Write the program after each pass of this name (or after `all`) to a file of the folder, constants as `…` and a digest
    #[arg(long, num_args = 2, value_names = ["PASS", "DIR"])]
    dump_after: Option<Vec<String>>,
    /// Say on stderr what each pass changed, as a difference of texts
    #[arg(long)]
    diff: bool,
}

/// What has been seen of the passes so far.
#[derive(Default)]
struct Seen {
    /// Passes that run now, and of each whether others run within it: such a pass is these, and nothing of its own.
    open: Vec<bool>,
    /// Names of the passes that have run.
    names: Vec<String>,
    written: usize,
    failed: Option<Failure>,
}

/// Looks at passes as [`DumpArgs`] ask for.
pub(super) struct Dump {
    after: Option<(String, PathBuf)>,
    diff: bool,
    seen: Arc<Mutex<Seen>>,
}

/// Lines around a change that are shown.
const CONTEXT: usize = 2;

impl DumpArgs {
    /// Whether there is anything to show.
    pub(super) fn asked(&self) -> bool {
        self.dump_after.is_some() || self.diff
    }

    /// The looks, where any are asked for.
    pub(super) fn start(&self) -> Result<Option<Dump>, Failure> {
        let after = match self.dump_after.as_deref() {
            Some([pass, folder]) => {
                let folder = PathBuf::from(folder);
                std::fs::create_dir_all(&folder)
                    .map_err(|e| Failure::Other(format!("can't make the folder {}: {e}", folder.display())))?;
                Some((pass.clone(), folder))
            }
            _ => None,
        };
        Ok(self.asked().then(|| Dump { after, diff: self.diff, seen: Arc::default() }))
    }
}

impl Dump {
    /// Has a build show what is asked for.
    pub(super) fn fill(&self, options: &mut Options) {
        let (before, after) = self.hooks();
        (options.before_pass, options.after_pass) = (Some(before), Some(after));
    }

    /// What is to be called before and after each pass.
    pub(super) fn hooks(&self) -> (BeforePass, AfterPass) {
        let (seen, after, diff) = (self.seen.clone(), self.after.clone(), self.diff);
        let opened = seen.clone();
        let before = move |_: &dyn Pass, _: &Module| {
            let mut seen = opened.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(around) = seen.open.last_mut() {
                *around = true;
            }
            seen.open.push(false);
            Ok(())
        };
        let after = move |pass: &dyn Pass, old: &Module, new: &Module| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.open.pop() == Some(true) {
                return Ok(());
            }
            let name = pass.name();
            let base = name.split('(').next().unwrap_or(&name).to_owned();
            if diff {
                show(&name, old, new);
            }
            if let Some((wanted, folder)) = &after
                && (wanted == "all" || *wanted == base || *wanted == name)
            {
                let file = folder.join(format!("{:02}-{base}.relay", seen.names.len()));
                seen.written += 1;
                let text = format!("/* after {} */\n{}", name.replace("*/", "* /"), text::print_brief(new));
                if let Err(e) = write_file(&file, text.as_bytes()) {
                    seen.failed.get_or_insert(e);
                }
            }
            seen.names.push(base);
            Ok(())
        };
        (Box::new(before), Box::new(after))
    }

    /// Says what could not be written, or that no pass of the name ran.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failed) = seen.failed.take() {
            return Err(failed);
        }
        match &self.after {
            Some((wanted, _)) if seen.written == 0 => {
                let names = seen.names.join(", ");
                let d = Diagnostic::new(format!("--dump-after {wanted}: no pass of that name ran; there ran {names}"));
                let near = nearest(wanted, seen.names.iter().map(String::as_str)).map(str::to_owned);
                Err(Failure::Refused(Refused::from(match near {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                })))
            }
            _ => Ok(()),
        }
    }
}

/// What a pass changed, on stderr; nothing where it changed nothing.
fn show(name: &str, old: &Module, new: &Module) {
    let (old, new) = (text::print_brief(old), text::print_brief(new));
    if old == new {
        return;
    }
    let diff = TextDiff::from_lines(&old, &new);
    let mut unified = diff.unified_diff();
    eprint!("{}", unified.context_radius(CONTEXT).header(&format!("before {name}"), &format!("after {name}")));
}
