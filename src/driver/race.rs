//! Programs that take turns, so that what disturbs a machine disturbs them alike.

use std::time::{Duration, Instant};

/// Rounds after which those that are slower leave, and the race may end.
const LEAST: usize = 7;

/// Rounds after which it ends in any case.
const MOST: usize = 40;

/// So long a race lasts, once there were [`LEAST`] rounds.
const BUDGET: Duration = Duration::from_secs(20);

/// A turn is at least so long: one run that brings its data into caches, and timed ones.
const TURN: Duration = Duration::from_millis(4);

/// Timed runs of a turn.
const RUNS: std::ops::RangeInclusive<usize> = 2..=50;

/// Who takes longer than the fastest by this factor is not looked at again.
const OUT: f64 = 1.2;

/// Who takes longer by this one is not even looked at twice.
const FAR_OUT: f64 = 2.0;

/// The race is over once nobody is this near to the fastest.
const NEAR: f64 = 1.05;

/// The seconds of a run of each: the lower quartile of the medians of its turns. What disturbs a machine makes runs longer and never
/// shorter, so the lower half says what a program takes; the very least may be luck.
pub(super) fn in_turns<E, F: FnMut() -> Result<(), E>>(mut programs: Vec<F>) -> Vec<Result<f64, E>> {
    let begin = Instant::now();
    let mut turns: Vec<Vec<f64>> = vec![Vec::new(); programs.len()];
    let mut failed: Vec<Option<E>> = programs.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..programs.len()).collect();
    for round in 0..MOST {
        // Each is first as often as the others.
        let n = left.len();
        for k in 0..n {
            let i = left[(round + k) % n];
            match turn(&mut programs[i]) {
                Ok(seconds) => turns[i].push(seconds),
                Err(why) => failed[i] = Some(why),
            }
        }
        left.retain(|&i| failed[i].is_none());
        let seconds = |i: usize| quartile(&turns[i]);
        let best = left.iter().map(|&i| seconds(i)).fold(f64::INFINITY, f64::min);
        let out = if round + 1 < LEAST { FAR_OUT } else { OUT };
        left.retain(|&i| seconds(i) <= out * best);
        if round + 1 < LEAST && left.len() > 1 {
            continue;
        }
        let near = left.iter().filter(|&&i| seconds(i) <= NEAR * best).count();
        if near == 1 || begin.elapsed() > BUDGET {
            break;
        }
    }
    turns.iter().zip(failed).map(|(t, why)| why.map_or_else(|| Ok(quartile(t)), Err)).collect()
}

/// The median run of one turn.
fn turn<E>(program: &mut impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut timed = || -> Result<f64, E> {
        let start = Instant::now();
        program()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let first = timed()?.max(1e-9);
    let runs = ((TURN.as_secs_f64() / first) as usize).clamp(*RUNS.start(), *RUNS.end());
    let mut all = (0..runs).map(|_| timed()).collect::<Result<Vec<f64>, E>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[(all.len() - 1) / 2].max(1e-9))
}

fn quartile(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(micros: u64) -> Box<dyn FnMut() -> Result<(), String>> {
        Box::new(move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(micros) {
                std::hint::spin_loop();
            }
            Ok(())
        })
    }

    #[test]
    fn the_fastest_wins_and_who_fails_says_why() {
        let times = in_turns(vec![takes(900), Box::new(|| Err("it fell".into())), takes(300)]);
        assert!(times[2].as_ref().expect("it ran") < times[0].as_ref().expect("it ran"));
        assert_eq!(times[1], Err("it fell".into()));
    }
}
