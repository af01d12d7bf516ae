//! What the system counts while a program runs: of the processor, where it lets programs ask, and page faults.

/// What a counter says at some time. Where a processor has fewer counters than are asked for, they take turns.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Count {
    value: u64,
    /// Nanoseconds for which it was asked for.
    enabled: u64,
    /// Nanoseconds for which it counted.
    running: u64,
}

impl Count {
    /// What it would have counted since then had it done so all the time; NaN where it did not count at all.
    pub(crate) fn since(self, before: Count) -> f64 {
        let of = |all: fn(Count) -> u64| all(self).saturating_sub(all(before)) as f64;
        let (enabled, running) = (of(|c| c.enabled), of(|c| c.running));
        if running > 0.0 { of(|c| c.value) * (enabled / running).max(1.0) } else { f64::NAN }
    }
}

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

    /// What they say now; of one that can't be read, what none says that counts.
    #[cfg(target_os = "linux")]
    pub(crate) fn read(&mut self) -> Vec<Count> {
        let count = |c: &mut perf_event::Counter| {
            let found = c.read_count_and_time().ok()?;
            Some(Count { value: found.count, enabled: found.time_enabled, running: found.time_running })
        };
        self.open.iter_mut().map(|c| count(c).unwrap_or_default()).collect()
    }

    /// What they say now: nothing, on other systems than Linux.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read(&mut self) -> Vec<Count> {
        Vec::new()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_grouped_by_reason() {
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
    fn counters_that_take_turns_are_scaled() {
        let at = |value, enabled, running| Count { value, enabled, running };
        assert_eq!(at(900, 30, 30).since(at(300, 10, 10)), 600.0);
        assert_eq!(at(900, 50, 20).since(at(300, 10, 10)), 2400.0);
        assert!(at(300, 50, 10).since(at(300, 10, 10)).is_nan(), "it did not count");
        assert!(Count::default().since(at(300, 10, 10)).is_nan(), "it could not be read");
    }

    #[test]
    fn what_is_counted_grows() {
        let mut counters = Counters::of_this_thread();
        let before = counters.read();
        // Memory that nobody had before, where page faults are counted.
        let touched = vec![1u8; 64 << 20];
        let after = counters.read();
        assert_eq!((before.len(), after.len()), (counters.names().len(), counters.names().len()));
        assert!(touched.iter().all(|&byte| byte == 1));
        let faults = counters.names().iter().position(|n| *n == "page_faults");
        assert!(faults.is_none_or(|i| after[i].since(before[i]) > 0.0), "{before:?} {after:?}");
    }
}
