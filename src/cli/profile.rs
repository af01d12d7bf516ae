//! What `resat bench --profile` prints.

use std::fmt::Write;

use crate::driver::{Profile, ProfiledCall};

/// The calls as people read them, those that take longest first.
pub(super) fn table(profile: &Profile) -> String {
    let sorted = by_time(profile);
    let all: f64 = sorted.iter().map(|c| c.seconds).sum();
    let mut text = format!(
        "peak {:.1} Gop/s (float32), bandwidth {:.1} GB/s, from memory {:.1} GB/s, {} thread{}\n{:>11} {:>6} {:>9} {:>8} {:>8} {:>10}  {:10}  {:>11}  kernel\n",
        profile.peak(None) / 1e9,
        profile.bandwidth() / 1e9,
        profile.memory_bandwidth() / 1e9,
        profile.threads,
        if profile.threads == 1 { "" } else { "s" },
        "us",
        "share",
        "Gop/s",
        "of peak",
        "GB/s",
        "of bandw.",
        "bound by",
        "expected us"
    );
    for call in sorted {
        let expected = profile.expected(call).map_or("-".to_owned(), |s| format!("{:.3}", 1e6 * s));
        let rate = call.estimate.operations / call.seconds / 1e9;
        let arithmetic = match rate > 0.0 {
            true => format!("{rate:>9.2} {:>7.1}%", 100.0 * profile.of_peak(call)),
            false => format!("{:>9} {:>8}", "-", "-"),
        };
        let _ = writeln!(
            text,
            "{:>11.3} {:>5.1}% {arithmetic} {:>8.2} {:>9.1}%  {:10}  {expected:>11}  {}",
            1e6 * call.seconds,
            100.0 * call.seconds / all,
            call.estimate.bytes / call.seconds / 1e9,
            100.0 * profile.of_bandwidth(call),
            profile.bound(call).name(),
            call.kernel,
        );
    }
    text
}

/// The calls that take longest first.
fn by_time(profile: &Profile) -> Vec<&ProfiledCall> {
    let mut sorted: Vec<&ProfiledCall> = profile.calls.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    sorted
}

/// What was counted in each call, in the same order; nothing where nothing was.
pub(super) fn counters(profile: &Profile) -> String {
    if profile.counters.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    profile.counters.iter().for_each(|name| _ = write!(text, "{name:>14} "));
    text.push_str(" kernel\n");
    for call in by_time(profile) {
        for n in &call.counted {
            let _ = if n.is_nan() { write!(text, "{:>14} ", "-") } else { write!(text, "{n:>14.0} ") };
        }
        let _ = writeln!(text, " {}", call.kernel);
    }
    text
}

/// The calls as data, in the order of the program.
pub(super) fn json(profile: &Profile) -> serde_json::Value {
    let call = |c: &ProfiledCall| {
        let mut found = serde_json::json!({
            "kernel": c.kernel,
            "seconds": c.seconds,
            "least_seconds": c.least,
            "operations": c.estimate.operations,
            "bytes": c.estimate.bytes,
            "bytes_from_memory": c.from_memory,
            "share_of_peak": profile.of_peak(c),
            "share_of_bandwidth": profile.of_bandwidth(c),
            "bound": profile.bound(c).name(),
            "expected_seconds": profile.expected(c),
        });
        if !profile.counters.is_empty() {
            found["counters"] = profile.counters.iter().copied().zip(c.counted.iter().copied()).collect();
        }
        found
    };
    profile.calls.iter().map(call).collect()
}
