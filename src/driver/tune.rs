//! Measures how the reductions of a program run fastest: the candidates that the model ranks first are compiled and timed.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    build::BuildError,
    stopwatch::{folder_of_user, processor, tame},
};
use crate::{
    codegen::{
        CodegenTarget,
        llvm::{self, JitLibrary},
    },
    diag::Diagnostic,
    loops::{Kernel, Stages},
    lower::{self, CodeSet, Tunable, Tuned, VectorUnit, is_worth_measuring},
    runtime::{Call, CompiledCode, Executable, Pool, Port, Program, Step},
    target::Target,
    tensor::{Shape, Tensor},
};

/// Samples of each candidate, taken in turn: what disturbs a machine disturbs all.
const ROUNDS: usize = 7;

/// A sample is at least so long.
const SAMPLE: Duration = Duration::from_micros(500);

/// Another candidate than the model's must be faster by this share.
const GAIN: f64 = 0.02;

/// What came of measuring.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tuning {
    /// Reductions that were measured.
    pub measured: usize,
    /// Those of them that run in another way now than the model said.
    pub changed: usize,
    /// Those that were known already.
    pub known: usize,
    /// Those for which no time was left.
    pub left: usize,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { measured, changed, known, left } = self;
        write!(
            f,
            "{measured} reductions measured, {changed} of them run in another way than the model said; {known} were known"
        )?;
        match left {
            0 => Ok(()),
            n => write!(f, "; for {n} there was no time: they run as the model says, until they are tuned, too"),
        }
    }
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
    target: CodegenTarget,
    deadline: Option<Instant>,
    done: Tuning,
}

impl Tuner {
    pub(super) fn new(tuned: Arc<Tuned>, target: &CodegenTarget, budget: Duration) -> Tuner {
        Tuner { tuned, target: target.clone(), deadline: Instant::now().checked_add(budget), done: Tuning::default() }
    }

    /// What came of it.
    pub(super) fn done(self) -> Tuning {
        self.done
    }

    /// Measures what is not known of these kernels' reductions, those first that take most of the time by the model. Gives whether
    /// some kernel should be made anew.
    pub(super) fn tune(&mut self, code: &CodeSet, told: &mut dyn FnMut(&str)) -> Result<bool, BuildError> {
        let host = Target::host().codegen();
        let wanted = self.target.features.split(',').filter_map(|f| f.strip_prefix('+'));
        let lacking: Vec<&str> = wanted.filter(|f| !host.has(f)).collect();
        if self.target.arch() != host.arch() || !lacking.is_empty() {
            let what = if lacking.is_empty() { self.target.arch().to_owned() } else { lacking.join(", ") };
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
            for (i, key) in keys.into_iter().enumerate() {
                if !is_worth_measuring(&t.reductions[i]) {
                    continue;
                }
                if self.tuned.choice(key).is_some() {
                    self.done.known += 1;
                    continue;
                }
                if self.deadline.is_some_and(|d| Instant::now() >= d) {
                    self.done.left += 1;
                    continue;
                }
                told(&format!("tuning kernel {} of {}: {name}", at + 1, tunable.len()));
                let times = self.times(t, name, &choices, i, code.unit())?;
                let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
                let best = if times[best] < times[0] * (1.0 - GAIN) { best } else { 0 };
                let about = format!("{:.3e} s, the model's {:.3e} s, {name}", times[best], times[0]);
                self.tuned.remember(key, best, &about);
                choices[i] = best;
                self.done.measured += 1;
                self.done.changed += usize::from(best > 0);
                changed |= best > 0;
            }
        }
        Ok(changed)
    }

    /// Seconds of a call of the kernel, by the candidate that its reduction number `which` takes.
    fn times(
        &self,
        t: &Tunable,
        name: &str,
        choices: &[usize],
        which: usize,
        unit: VectorUnit,
    ) -> Result<Vec<f64>, BuildError> {
        let variant = |candidate: usize| {
            let mut choices = choices.to_vec();
            choices[which] = candidate;
            lower::schedule(&format!("{name}_c{candidate}"), &t.group, unit, &choices).kernel
        };
        let kernels: Vec<Kernel> = (0..t.reductions[which].candidates()).map(variant).collect();
        let objects = llvm::compile(&kernels.iter().collect::<Vec<_>>(), &self.target)?;
        let library: Arc<dyn CompiledCode> = Arc::new(JitLibrary::load(&objects)?);
        let pool = Arc::new(Pool::new(1));
        let mut timed = Vec::new();
        for kernel in &kernels {
            let exe = Executable::link(alone(kernel, &t.group), vec![library.clone()], pool.clone())?;
            let inputs: Vec<Tensor> = exe.program().inputs().iter().map(tame).collect();
            timed.push((exe, inputs));
        }
        let mut fastest = vec![f64::INFINITY; timed.len()];
        for round in 0..=ROUNDS {
            for ((exe, inputs), fastest) in timed.iter().zip(&mut fastest) {
                let mut outputs: Vec<Tensor> =
                    exe.program().outputs().map(|p| Tensor::zeros(p.dtype, &p.shape)).collect();
                let mut run = || exe.run_into(inputs, &mut outputs).map_err(|e| Diagnostic::new(e.to_string()));
                // What the first run waits for, such as memory, is no part of the kernel's time.
                run().map_err(|d| BuildError::Refused(d.into()))?;
                let (start, mut n) = (Instant::now(), 0u32);
                while n == 0 || start.elapsed() < SAMPLE {
                    run().map_err(|d| BuildError::Refused(d.into()))?;
                    n += 1;
                }
                if round > 0 {
                    *fastest = fastest.min(start.elapsed().as_secs_f64() / f64::from(n));
                }
            }
        }
        Ok(fastest)
    }
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
    program.step(Step::Call(Call { function, args, workspace, in_place: vec![] }));
    results.into_iter().zip(buffers).for_each(|(port, buffer)| program.output(port, buffer));
    program
}
