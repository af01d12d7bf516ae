//! Progress on stderr, for what takes longer than a second.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A spinner that appears after a second and names the current phase.
pub(super) struct Progress {
    phases: Option<Sender<String>>,
    shower: Option<JoinHandle<()>>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        let (phases, incoming) = mpsc::channel::<String>();
        let shower = std::thread::spawn(move || {
            let start = std::time::Instant::now();
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            let mut shown = false;
            loop {
                if start.elapsed() > Duration::from_secs(1) && !shown {
                    shown = true;
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_millis(100));
                }
                match incoming.recv_timeout(Duration::from_millis(200)) {
                    Ok(phase) => bar.set_message(phase),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            bar.finish_and_clear();
        });
        Progress { phases: Some(phases), shower: Some(shower) }
    }

    /// A function that reports phases.
    pub(super) fn teller(&self) -> impl FnMut(&str) + Send + use<> {
        let phases = self.phases.clone();
        move |phase| {
            if let Some(p) = &phases {
                // Nobody listens any more only when the command is over.
                let _ = p.send(phase.to_owned());
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.phases = None;
        // Tellers that are still alive keep the shower waiting: it is left to end with the process then.
        if let Some(s) = self.shower.take()
            && s.is_finished()
        {
            let _ = s.join();
        }
    }
}
