//! What two threads of this machine have of each other at the moment.
//!
//! Two threads may be two cores that share a cache, two cores that do not, or the two hardware threads of one core. A virtual machine does not say
//! which, and its host changes it from second to second. It is measured, so that benches can tell times of one state from those of another.

use std::{
    hint::{black_box, spin_loop},
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::*},
    },
    thread,
    time::Instant,
};

use super::probe::{Peak, ProbeError};
use crate::{runtime::RunError, target::Target};

/// Runs of multiply-adds on each thread, some 40 us each.
const RUNS: usize = 24;

/// Messages there and back.
const MESSAGES: u64 = 200;

/// How often an array goes from one thread to the other.
const PASSES: u64 = 24;

/// Elements of the array: 128 KB, so that it stays in the writer's second cache.
const ELEMENTS: usize = 16 << 10;

/// Pauses before a thread that waits offers its processor to others: some 100 us.
const SPINS: u64 = 1 << 12;

/// A thread of two on one core computes half of what it does alone, one of two cores all of it; less than this share is the former.
const ONE_CORE: f64 = 0.7;

/// Two cores share no cache where the seconds that a message takes there and back, over the share of the last cache's bandwidth at which one reads what the
/// other has written, are more than this. Where they share one: 0.12 us and 0.3 to 0.5 on AMD Zen 3, 0.12 us and 0.78 on Zen 4, 0.3 us and 0.3 to 0.5 on Zen 5;
/// where not: 0.35 to 0.55 us and 0.2, 0.47 us and 0.28, 0.6 us and 0.2.
const FAR: f64 = 1.3e-6;

/// Threads that take longer than this for a message there and back, in seconds, are not awake at once.
const IN_TURNS: f64 = 20e-6;

/// How two threads lie.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On one processor, which runs one after the other.
    InTurns,
    /// On the hardware threads of one core: each computes about half of what it does alone.
    OneCore,
    /// On two cores that share a cache.
    SharedCache,
    /// On two cores that do not: what one has written takes long to reach the other.
    Apart,
}

impl Placement {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Placement::InTurns => "in turns",
            Placement::OneCore => "one core",
            Placement::SharedCache => "shared cache",
            Placement::Apart => "apart",
        }
    }
}

/// What two threads have of each other.
#[derive(Copy, Clone, Debug)]
pub struct Together {
    /// Operations per second of `float32` out of registers, of one thread while the other one waits.
    pub alone: f64,
    /// The same of both at once, each.
    pub both: f64,
    /// Seconds that a message takes to the other thread and back.
    pub round_trip: f64,
    /// Bytes per second at which one reads 128 KB that the other has just written.
    pub read: f64,
    /// The last cache's bandwidth in bytes per second, as the machine's record has it.
    pub last_cache: f64,
}

impl Together {
    /// Measures it, in some ten milliseconds. Refuses where code for this machine can't be made.
    pub fn measure() -> Result<Together, ProbeError> {
        let target = Target::host();
        let (mut here, mut there) = (Peak::new(&target)?, Peak::new(&target)?);
        let operations = here.operations();
        let (asked, answered) = (Signal::default(), Signal::default());
        let array = Mutex::new(vec![0u64; ELEMENTS]);
        let (alone, both, beside, trips, reads) = thread::scope(|s| {
            // Whatever a run says, both go on to the end: neither waits for one that has gone.
            let other = s.spawn(|| {
                asked.wait(1);
                let beside = times(&mut there);
                answered.set(1);
                for i in 2..2 + MESSAGES {
                    asked.wait(i);
                    answered.set(i);
                }
                for i in 2 + MESSAGES..2 + MESSAGES + PASSES {
                    asked.wait(i);
                    array.lock().unwrap_or_else(PoisonError::into_inner).fill(i);
                    answered.set(i);
                }
                beside
            });
            let alone = times(&mut here);
            asked.set(1);
            let both = times(&mut here);
            answered.wait(1);
            let trip = |i: u64| {
                let start = Instant::now();
                asked.set(i);
                answered.wait(i);
                start.elapsed().as_secs_f64()
            };
            let trips: Vec<f64> = (2..2 + MESSAGES).map(trip).collect();
            let read = |i: u64| {
                asked.set(i);
                answered.wait(i);
                let array = array.lock().unwrap_or_else(PoisonError::into_inner);
                let start = Instant::now();
                black_box(array.iter().fold(0u64, |sum, &x| sum.wrapping_add(x)));
                start.elapsed().as_secs_f64()
            };
            let reads: Vec<f64> = (2 + MESSAGES..2 + MESSAGES + PASSES).map(read).collect();
            let beside = other.join().unwrap_or_else(|panic| resume_unwind(panic));
            (alone, both, beside, trips, reads)
        });
        let rate = |times: Vec<f64>| operations / median(times);
        Ok(Together {
            alone: rate(alone?),
            both: (rate(both?) + rate(beside?)) / 2.0,
            round_trip: median(trips),
            last_cache: target.timing.clock * target.timing.l3.bytes_per_cycle,
            read: (ELEMENTS * size_of::<u64>()) as f64 / median(reads),
        })
    }

    /// How the two threads lie.
    pub fn placement(&self) -> Placement {
        match self {
            t if t.round_trip > IN_TURNS => Placement::InTurns,
            t if t.both < ONE_CORE * t.alone => Placement::OneCore,
            t if t.round_trip * t.last_cache > FAR * t.read => Placement::Apart,
            _ => Placement::SharedCache,
        }
    }

    /// As JSON: {"alone_flops", "both_flops", "round_trip_s", "read_bytes_per_s", "placement": "in turns", "one core", "shared cache" or "apart"}.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "alone_flops": self.alone, "both_flops": self.both, "round_trip_s": self.round_trip,
            "read_bytes_per_s": self.read, "placement": self.placement().name() })
    }
}

/// Seconds of each run.
fn times(peak: &mut Peak) -> Result<Vec<f64>, RunError> {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            peak.run()?;
            Ok(start.elapsed().as_secs_f64())
        })
        .collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A number that one thread sets and the other waits for, alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Signal(AtomicU64);

impl Signal {
    fn set(&self, number: u64) {
        self.0.store(number, Release);
    }

    /// Waits for that number without sleeping.
    fn wait(&self, number: u64) {
        for turn in 1u64.. {
            if self.0.load(Acquire) >= number {
                return;
            }
            match turn.is_multiple_of(SPINS) {
                // Where both threads have one processor, the other is to come by.
                true => thread::yield_now(),
                false => spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_are_measured() {
        let found = Together::measure().expect("this machine's code");
        for value in [found.alone, found.both, found.round_trip, found.read] {
            assert!(value.is_finite() && value > 0.0, "{found:?}");
        }
    }

    #[test]
    fn placement_follows_from_what_is_measured() {
        let two = Together { alone: 100e9, both: 97e9, round_trip: 0.12e-6, read: 33e9, last_cache: 72e9 };
        assert_eq!(two.placement(), Placement::SharedCache);
        assert_eq!(Together { round_trip: 0.52e-6, read: 14e9, ..two }.placement(), Placement::Apart);
        let zen4 = Together { read: 66e9, last_cache: 84e9, ..two };
        assert_eq!(zen4.placement(), Placement::SharedCache);
        assert_eq!(Together { round_trip: 0.47e-6, read: 23e9, ..zen4 }.placement(), Placement::Apart);
        assert_eq!(Together { round_trip: 0.3e-6, read: 25e9, ..two }.placement(), Placement::SharedCache);
        assert_eq!(Together { round_trip: 3e-3, ..two }.placement(), Placement::InTurns);
        assert_eq!(Together { both: 52e9, round_trip: 0.05e-6, ..two }.placement(), Placement::OneCore);
    }
}
