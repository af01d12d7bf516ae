//! Measures how the reductions of a program run fastest: the candidates that the model ranks first are compiled and timed.
//!
//! Measuring corrects the model and keeps its list: a build takes the first candidate, or the one that was measured to be the fastest of
//! the first dozen. A measurement is known by the kernel's expressions and by the list itself, so that a change of the model forgets what
//! was measured under another one.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    backend::Backend,
    build::BuildError,
    stopwatch::{folder_of_user, processor, tame},
};
use crate::{
    cancel::Cancel,
    diag::Diagnostic,
    loops::{Kernel, Stages},
    lower::{self, CodeSet, Tunable, Tuned, worth_measuring},
    runtime::{Call, Estimate, Executable, Pool, Port, Program, RunError, Step},
    target::Target,
    tensor::{Shape, Tensor},
};

/// Samples of each candidate, taken in turn: what disturbs a machine disturbs all.
const ROUNDS: usize = 3;

/// Further samples of those that came near to the fastest...
const FINAL_ROUNDS: usize = 16;

/// ...by this share.
const NEAR: f64 = 0.08;

/// A sample is at least so long.
const SAMPLE: Duration = Duration::from_micros(300);

/// Another candidate than the model's must be faster by this share.
const GAIN: f64 = 0.02;

/// Constants come from memory, or from the last cache, where a program has more of them than the caches before: a kernel that is measured
/// alone goes through copies of its own, of so many bytes at most.
const COPIES: usize = 48 << 20;

/// Runs of whole programs that are compared, at least and at most, and for how long.
const RUNS: std::ops::RangeInclusive<usize> = 8..=60;
const COMPARED: Duration = Duration::from_secs(6);

/// What came of measuring.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tuning {
    /// Reductions that were measured.
    pub measured: usize,
    /// Those of them that run in another way now than the model said.
    pub changed: usize,
    /// Those that ran faster in another way, but not within the program.
    pub reverted: usize,
    /// Those that were known already.
    pub known: usize,
    /// Those for which no time was left.
    pub left: usize,
    /// Those that were measured, each with all its candidates.
    pub timed: Vec<TimedReduction>,
}

/// A reduction that was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct TimedReduction {
    /// The kernel that it is part of.
    pub kernel: String,
    /// By candidate, the model's first one first: cycles that the model expects of the reduction, and seconds of the whole kernel.
    pub candidates: Vec<(f64, f64)>,
    /// The same of tilings that were drawn from all that the model knows ([`Options::rank`](super::Options::rank)).
    pub drawn: Vec<(f64, f64)>,
    /// The candidates in words.
    pub tilings: String,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { measured, changed, reverted, known, left, timed: _ } = self;
        write!(
            f,
            "{measured} reductions measured, {changed} of them run in another way than the model said; {known} were known"
        )?;
        if *reverted > 0 {
            write!(f, "; {reverted} were faster in another way alone, but not within the program")?;
        }
        match left {
            0 => Ok(()),
            n => write!(f, "; for {n} there was no time: they run as the model says, until they are tuned, too"),
        }
    }
}

/// So many of all tilings, from the best to the worst in even steps of rank.
fn drawn(all: usize, most: usize) -> Vec<usize> {
    let count = most.min(all);
    (0..count).map(|i| i * (all - 1) / (count - 1).max(1)).collect()
}

/// What was measured on this machine of a target's code, remembered in a folder.
pub fn tuned_in(target: &Target, folder: Option<PathBuf>) -> Tuned {
    let code = target.codegen();
    Tuned::new(format!("tiles on {}; {} {} {}", processor(), code.triple, code.cpu, code.features), folder)
}

/// The user's folder of what was measured: `resat/tiles` within `$XDG_CACHE_HOME` or `~/.cache`. None where neither is set.
pub fn tuned_of_user() -> Option<PathBuf> {
    folder_of_user("tiles")
}

/// Measures within a budget of time.
pub(super) struct Tuner {
    tuned: Arc<Tuned>,
    backend: Backend,
    deadline: Option<Instant>,
    /// So many tilings are drawn from all of each reduction, and timed.
    rank: usize,
    done: Tuning,
}

/// A program before its reductions ran in other ways.
pub(super) struct Untuned {
    program: Program,
    kernels: Vec<Kernel>,
    tunable: Vec<Tunable>,
}

impl Untuned {
    /// Takes what a program was made of.
    pub(super) fn take(code: &mut CodeSet, program: Program) -> Untuned {
        Untuned { program, kernels: std::mem::take(&mut code.kernels), tunable: std::mem::take(&mut code.tunable) }
    }
}

impl Tuner {
    pub(super) fn new(tuned: Arc<Tuned>, backend: &Backend, budget: Duration, rank: usize) -> Tuner {
        let deadline = Instant::now().checked_add(budget);
        Tuner { tuned, backend: backend.clone(), deadline, rank, done: Tuning::default() }
    }

    /// What came of it.
    pub(super) fn done(self) -> Tuning {
        self.done
    }

    /// Measures what is not known of the reductions of some programs' kernels, those first that take most of the time by the model. Gives
    /// whether some kernel should be compiled again.
    pub(super) fn tune(
        &mut self,
        code: &CodeSet,
        programs: &[&Program],
        on_phase: &mut dyn FnMut(&str),
    ) -> Result<bool, BuildError> {
        let host = Target::host().codegen();
        let wanted = self.backend.target.features.split(',').filter_map(|f| f.strip_prefix('+'));
        let lacking: Vec<&str> = wanted.filter(|f| !host.has(f)).collect();
        if self.backend.target.arch() != host.arch() || !lacking.is_empty() {
            let what = if lacking.is_empty() { self.backend.target.arch().to_owned() } else { lacking.join(", ") };
            let d = Diagnostic::new(format!("tuning runs the target's code, but this machine has no {what}"));
            return Err(BuildError::Refused(d.help("tune on the target, or build without").into()));
        }
        let mut tunable: Vec<&Tunable> = code.tunable.iter().collect();
        let cycles = |t: &Tunable| t.calls as f64 * t.reductions.iter().map(|r| r.cycles()).sum::<f64>();
        tunable.sort_by(|a, b| cycles(b).total_cmp(&cycles(a)));
        let mut changed = false;
        for (at, t) in tunable.iter().enumerate() {
            let name = &code.kernels[t.kernel].name;
            let mut choices = t.choices.clone();
            let keys = Tuned::keys(&t.group, &t.reductions);
            let constants = constants(name, programs);
            for i in worth_measuring(&t.reductions) {
                if self.tuned.choice(keys[i]).is_some() {
                    self.done.known += 1;
                    continue;
                }
                if self.deadline.is_some_and(|d| Instant::now() >= d) {
                    self.done.left += 1;
                    continue;
                }
                on_phase(&format!("tuning kernel {} of {}: {name}", at + 1, tunable.len()));
                code.cancel.go_on()?;
                let (all, drawn) = (0..t.reductions[i].candidates(), drawn(t.reductions[i].tilings(), self.rank));
                let candidates = self.times(t, name, &choices, i, &all.collect::<Vec<_>>(), code, &constants)?;
                let drawn = match drawn[..] {
                    [] => Vec::new(),
                    _ => self.times(t, name, &choices, i, &drawn, code, &constants)?,
                };
                let times: Vec<f64> = candidates.iter().map(|c| c.1).collect();
                self.done.timed.push(TimedReduction {
                    kernel: name.clone(),
                    candidates,
                    drawn,
                    tilings: t.reductions[i].described(),
                });
                let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
                let best = if times[best] < times[0] * (1.0 - GAIN) { best } else { 0 };
                let about = format!("{:.3e} s, the model's {:.3e} s, {name}", times[best], times[0]);
                self.tuned.remember(keys[i], best, &about);
                choices[i] = best;
                self.done.measured += 1;
                self.done.changed += usize::from(best > 0);
                changed |= best > 0;
            }
        }
        Ok(changed)
    }

    /// The cycles that the model expects of the kernel's reduction number `which` by each of these tilings, and the seconds of a call of the kernel.
    #[expect(clippy::too_many_arguments, reason = "a kernel, what of it varies, and what it is measured with")]
    fn times(
        &self,
        t: &Tunable,
        name: &str,
        choices: &[usize],
        which: usize,
        tilings: &[usize],
        code: &CodeSet,
        constants: &Constants,
    ) -> Result<Vec<(f64, f64)>, BuildError> {
        let variant = |&tiling: &usize| {
            let mut choices = choices.to_vec();
            choices[which] = tiling;
            let made = lower::schedule(&format!("{name}_c{tiling}"), &t.group, code.unit(), &choices);
            (made.reductions.get(which).map_or(f64::NAN, |r| r.cycles_of(tiling)), made.kernel)
        };
        let (expected, kernels): (Vec<f64>, Vec<Kernel>) = tilings.iter().map(variant).unzip();
        let library = self.backend.load(&kernels.iter().collect::<Vec<_>>(), None, &code.cancel)?;
        let pool = Arc::new(Pool::new(1));
        let mut timed = Vec::new();
        for kernel in &kernels {
            timed.push(Executable::link(alone(kernel, &t.group), vec![library.clone()], pool.clone())?);
        }
        let ports = timed[0].program().inputs();
        let inputs: Vec<Tensor> = ports.iter().map(tame).collect();
        let own: usize = constants.args.iter().map(|&i| ports[i].bytes()).sum();
        let copies = constants.bytes.min(COPIES).checked_div(own).unwrap_or(1).clamp(1, 64);
        let copied = |_| {
            let mut inputs = inputs.clone();
            constants.args.iter().for_each(|&i| inputs[i] = tame(&ports[i]));
            inputs
        };
        let inputs: Vec<Vec<Tensor>> = (0..copies).map(copied).collect();
        let mut outputs: Vec<Tensor> = timed[0].program().outputs().map(|p| Tensor::zeros(p.dtype, &p.shape)).collect();
        let mut next = 0;
        let mut fastest = vec![f64::INFINITY; timed.len()];
        for round in 0..=ROUNDS + FINAL_ROUNDS {
            let best = fastest.iter().copied().fold(f64::INFINITY, f64::min);
            for (i, exe) in timed.iter().enumerate() {
                // The model's own stays to the end: the others must be faster than that.
                if round > ROUNDS && i > 0 && fastest[i] > best * (1.0 + NEAR) {
                    continue;
                }
                let mut run = || {
                    next = (next + 1) % copies;
                    exe.run_into(&inputs[next], &mut outputs).map_err(failed)
                };
                // What the first run waits for, such as memory, is no part of the kernel's time.
                run()?;
                let (start, mut n) = (Instant::now(), 0u32);
                while n == 0 || start.elapsed() < SAMPLE {
                    run()?;
                    n += 1;
                }
                if round > 0 {
                    fastest[i] = fastest[i].min(start.elapsed().as_secs_f64() / f64::from(n));
                }
            }
        }
        Ok(expected.into_iter().zip(fastest).collect())
    }

    /// Compares the program with what it was before, kernel by kernel, while both take turns: alone, a kernel has caches and memory for
    /// itself. What is not faster within the program is forgotten; gives whether there is such a thing.
    pub(super) fn check(
        &mut self,
        before: &Untuned,
        program: &Program,
        kernels: &[Kernel],
        pool: &Arc<Pool>,
    ) -> Result<bool, BuildError> {
        let new = kernels.iter().filter(|k| before.kernels.iter().all(|b| b.name != k.name));
        let all: Vec<&Kernel> = before.kernels.iter().chain(new).collect();
        let library = self.backend.load(&all, None, &Cancel::default())?;
        let both = [&before.program, program];
        let both = both.map(|p| Executable::link(p.clone(), vec![library.clone()], pool.clone()));
        let [was, is] = both;
        let (was, is) = (was?, is?);
        let inputs: Vec<Tensor> = program.inputs().iter().map(tame).collect();
        let steps = program.steps().len();
        assert_eq!(before.program.steps().len(), steps, "tuning changes kernels, not what calls them");
        let mut fastest = vec![[f64::INFINITY; 2]; steps];
        let start = Instant::now();
        for round in 0..=*RUNS.end() {
            if round > *RUNS.start() && start.elapsed() > COMPARED {
                break;
            }
            for (which, exe) in [&was, &is].into_iter().enumerate() {
                let times = exe.profile(&inputs).map_err(failed)?;
                for (fastest, time) in fastest.iter_mut().zip(times) {
                    fastest[which] = fastest[which].min(time.as_secs_f64());
                }
            }
        }
        let mut reverted = false;
        for t in &before.tunable {
            let name = &before.kernels[t.kernel].name;
            let called = |s: &usize| before.program.step_name(&before.program.steps()[*s]) == name.as_str();
            let (mut old, mut new, mut same) = (0.0, 0.0, true);
            for step in (0..steps).filter(called) {
                old += fastest[step][0];
                new += fastest[step][1];
                same &= program.step_name(&program.steps()[step]) == name.as_str();
            }
            if same || new < old {
                continue;
            }
            let keys = Tuned::keys(&t.group, &t.reductions);
            for (&key, &choice) in keys.iter().zip(&t.choices) {
                if self.tuned.choice(key).is_some_and(|now| now != choice) {
                    let about = format!("{old:.3e} s within a program, in another way {new:.3e} s, {name}");
                    self.tuned.remember(key, choice, &about);
                    self.done.reverted += 1;
                    self.done.changed -= 1;
                    reverted = true;
                }
            }
        }
        Ok(reverted)
    }
}

fn failed(e: RunError) -> BuildError {
    BuildError::Refused(Diagnostic::new(e.to_string()).into())
}

/// What a kernel is given of a program's constants.
struct Constants {
    /// Which of its arguments.
    args: Vec<usize>,
    /// Bytes of all constants of the program.
    bytes: usize,
}

/// As the first of the programs that calls a kernel has it.
fn constants(kernel: &str, programs: &[&Program]) -> Constants {
    let call = programs.iter().find_map(|p| Some((p, p.steps().iter().find(|s| p.step_name(s) == kernel)?)));
    let found = call.map(|(p, step)| Constants {
        args: p.constant_args(step).collect(),
        bytes: p.constants().iter().map(|t| t.bytes().len()).sum(),
    });
    found.unwrap_or(Constants { args: Vec::new(), bytes: 0 })
}

/// A program that calls a kernel once.
pub(super) fn alone(kernel: &Kernel, group: &Stages) -> Program {
    let mut program = Program::new("alone");
    let port = |i: usize, t| {
        let decl = group.decl(t);
        let shape: Shape = decl.shape.iter().map(|&n| n as usize).collect();
        Port::new(format!("x{i}"), decl.dtype, &shape)
    };
    let mut args: Vec<_> = group.args.iter().enumerate().map(|(i, &t)| (program.input(port(i, t)), false)).collect();
    let results: Vec<Port> = group.results.iter().enumerate().map(|(i, &t)| port(i, t)).collect();
    let buffers: Vec<_> = results.iter().map(|p| program.buffer(p.bytes())).collect();
    args.extend(buffers.iter().map(|&b| (b, true)));
    let function = program.function(&kernel.name);
    let workspace = kernel.workspace().1 as usize;
    program.step(Step::Call(Call { function, args, workspace, in_place: vec![], estimate: Estimate::default() }));
    results.into_iter().zip(buffers).for_each(|(port, buffer)| program.output(port, buffer));
    program
}
