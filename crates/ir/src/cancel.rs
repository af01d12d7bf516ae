//! Work that somebody may want to end before it is done.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::diag::{Diagnostic, Refused};

/// A way to ask a run to end: clones are about the same run. It decides nothing that a run which is not ended comes to; so all are equal.
#[derive(Clone, Default)]
pub struct Cancel(Option<Arc<AtomicBool>>);

impl Cancel {
    /// One that can be asked for; the default one never is.
    pub fn new() -> Cancel {
        Cancel(Some(Arc::default()))
    }

    /// Asks the run to end soon.
    pub fn cancel(&self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }

    /// Refuses to go on where somebody asked.
    pub fn go_on(&self) -> Result<(), Refused> {
        match self.is_cancelled() {
            true => Err(Diagnostic::new("cancelled").into()),
            false => Ok(()),
        }
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

impl PartialEq for Cancel {
    fn eq(&self, _: &Cancel) -> bool {
        true
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancel")
    }
}
