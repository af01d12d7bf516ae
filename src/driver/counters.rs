//! What the system counts while a program runs: of the processor, where it lets programs ask, and page faults.

/// Of one thread, from when they were opened on.
pub(crate) struct Counters {
    names: Vec<&'static str>,
    missing: Vec<String>,
    #[cfg(target_os = "linux")]
    open: Vec<perf_event::Counter>,
}

impl Counters {
    /// Those that there are, for this thread. Only what the thread does itself counts, not what the system does for it.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_this_thread() -> Counters {
        use perf_event::{
            Builder,
            events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software},
        };
        let misses = |which| Cache { which, operation: CacheOp::READ, result: CacheResult::MISS };
        let builders = [
            ("cycles", Builder::new(Hardware::CPU_CYCLES)),
            ("instructions", Builder::new(Hardware::INSTRUCTIONS)),
            ("l1_misses", Builder::new(misses(CacheId::L1D))),
            ("cache_misses", Builder::new(Hardware::CACHE_MISSES)),
            ("tlb_misses", Builder::new(misses(CacheId::DTLB))),
            ("branch_misses", Builder::new(Hardware::BRANCH_MISSES)),
            ("page_faults", Builder::new(Software::PAGE_FAULTS)),
        ];
        let mut counters = Counters { names: Vec::new(), missing: Vec::new(), open: Vec::new() };
        for (name, builder) in builders {
            match builder.build().and_then(|mut c| c.enable().map(|()| c)) {
                Ok(counter) => {
                    counters.names.push(name);
                    counters.open.push(counter);
                }
                Err(e) => counters.lacks(name, &e),
            }
        }
        counters
    }

    /// Notes that there is none of that name, beside others of which there is none for the same reason.
    #[cfg(target_os = "linux")]
    fn lacks(&mut self, name: &str, e: &std::io::Error) {
        let why = match e.kind() {
            std::io::ErrorKind::NotFound => "(there is no such counter; a virtual machine may hide them)".to_owned(),
            std::io::ErrorKind::PermissionDenied => "(not permitted; see kernel.perf_event_paranoid)".to_owned(),
            _ => format!("({e})"),
        };
        match self.missing.iter_mut().find(|m| m.ends_with(&why)) {
            Some(same) => same.insert_str(same.len() - why.len() - 1, &format!(", {name}")),
            None => self.missing.push(format!("{name} {why}")),
        }
    }

    /// Those that there are: none, on other systems than Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of_this_thread() -> Counters {
        Counters { names: Vec::new(), missing: vec!["anything (counters are read on Linux)".to_owned()] }
    }

    /// What they are called.
    pub(crate) fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Those that there are not, and why.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// What they say now. Where the processor has fewer than are asked for, they take turns, and each says what it would have come to all the time.
    #[cfg(target_os = "linux")]
    pub(crate) fn read(&mut self) -> Vec<f64> {
        let scaled = |c: &mut perf_event::Counter| {
            let Ok(found) = c.read_count_and_time() else { return 0.0 };
            let share = found.time_enabled as f64 / (found.time_running as f64).max(1.0);
            found.count as f64 * share.max(1.0)
        };
        self.open.iter_mut().map(scaled).collect()
    }

    /// What they say now: nothing, on other systems than Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read(&mut self) -> Vec<f64> {
        Vec::new()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_told_by_reason() {
        let mut counters = Counters { names: Vec::new(), missing: Vec::new(), open: Vec::new() };
        let lacks = [
            ("cycles", libc::ENOENT),
            ("page_faults", libc::EACCES),
            ("instructions", libc::ENOENT),
            ("tlb_misses", libc::EMFILE),
        ];
        for (name, error) in lacks {
            counters.lacks(name, &std::io::Error::from_raw_os_error(error));
        }
        let [hidden, forbidden, other] = counters.missing() else { panic!("{:?}", counters.missing()) };
        assert!(hidden.starts_with("cycles, instructions (there is no such"), "{hidden}");
        assert!(forbidden.starts_with("page_faults (not permitted"), "{forbidden}");
        assert!(other.starts_with("tlb_misses (Too many"), "{other}");
        assert!(counters.read().is_empty());
    }

    #[test]
    fn what_is_counted_grows() {
        let mut counters = Counters::of_this_thread();
        let before = counters.read();
        // Memory that nobody had before, where page faults are counted.
        let touched = vec![1u8; 64 << 20];
        let after = counters.read();
        assert_eq!((before.len(), after.len()), (counters.names().len(), counters.names().len()));
        assert!(after.iter().zip(&before).all(|(a, b)| a >= b), "{before:?} {after:?} {}", touched.len());
        let faults = counters.names().iter().position(|n| *n == "page_faults");
        assert!(faults.is_none_or(|i| after[i] > before[i]), "{before:?} {after:?}");
    }
}
