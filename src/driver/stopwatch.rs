//! Programs timed on this machine, for cost models that measure.
//!
//! What was timed is remembered on disk, so that a kernel is timed once per machine: a file per machine, a line per kernel.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::{
    backend::Backend,
    external::{Handling, Regions, compile_regions},
    probe::Peak,
    race::in_turns,
    specialize::compile_code,
};
use crate::{
    cancel::Cancel,
    cost::{Timer, TimerError},
    infer::infer_types,
    ir::{Expr, ExprId, Function, Module, Type, reachable},
    loops::{Digest, digest_bytes},
    lower::{Assembled, CodeSet, assemble, is_plain},
    ops::{self, kernel::LARGEST_KERNEL},
    pass::fuse,
    runtime::{Executable, Pool, Port},
    target::{Peaks, Target},
    tensor::{DType, Tensor},
};

/// Times programs with a target's kernels and threads, one at a time.
pub struct Stopwatch {
    target: Target,
    /// What the machine is called in the cache, in words.
    machine: String,
    folder: Option<PathBuf>,
    /// Made when something is timed: its threads wait by spinning.
    pool: OnceLock<Arc<Pool>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    seconds: HashMap<Digest, f64>,
    peaks: Option<Peaks>,
    pulse: Pulse,
    /// Times on which samples did not agree, of other processes: they are taken again, and the shorter counts.
    doubted: HashMap<Digest, f64>,
    /// How many times of this process are doubtful.
    doubtful: usize,
}

/// A sample is at least so long: short against what disturbs a machine, long against the clock's own cost.
const SAMPLE: Duration = Duration::from_micros(50);

/// So many samples must agree...
const AGREEING: usize = 4;

/// ...within this share of the fastest...
const AGREEMENT: f64 = 0.03;

/// ...or this time must be over, and ten runs done.
const PATIENCE: Duration = Duration::from_millis(100);

/// So often samples are taken again where they do not agree...
const ATTEMPTS: u32 = 3;

/// ...after this pause, each time once more: whatever disturbs the machine may be over by then.
const PAUSE: Duration = Duration::from_millis(15);

/// Ends the line of a time on which samples did not agree.
const DOUBTED: &str = " ?";

/// What a kernel's time is, and whether samples agreed on it.
#[derive(Clone, Copy, Debug)]
struct Timed {
    seconds: f64,
    agreed: bool,
}

/// A folder within `$XDG_CACHE_HOME/resat` or `~/.cache/resat`. None where neither is set.
pub(super) fn folder_of_user(name: &str) -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("resat").join(name))
}

/// The processor's own name, where the system reports it it.
pub(super) fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split(": ").nth(1));
    model.unwrap_or("an unnamed processor").to_owned()
}

/// A linked program with its arguments.
struct Runner {
    key: Digest,
    name: String,
    executable: Executable,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Runner {
    fn once(&mut self) -> Result<(), TimerError> {
        self.executable.run_into(&self.inputs, &mut self.outputs).map_err(|e| TimerError::Run(e.to_string()))
    }
}

/// What a program is before it is timed.
enum Ready {
    /// The same as one that is known.
    Known(Digest),
    Linked(Box<Runner>),
}

impl Stopwatch {
    /// A stopwatch for kernels of a target, which must be this machine, run by as many threads as it has cores. It remembers
    /// what it timed in a folder, where one is given.
    pub fn new(target: Target, folder: Option<PathBuf>) -> Stopwatch {
        let codegen = target.codegen();
        let machine = format!(
            "resat {} on {}; {} {} {}; {} threads",
            env!("CARGO_PKG_VERSION"),
            processor(),
            codegen.triple,
            codegen.cpu,
            codegen.features,
            target.cores
        );
        let watch = Stopwatch { target, machine, folder, pool: OnceLock::new(), known: Mutex::default() };
        *watch.known.lock().unwrap_or_else(PoisonError::into_inner) = watch.read();
        watch
    }

    /// The folder of the user's caches: `resat/times` within `$XDG_CACHE_HOME` or `~/.cache`. None where neither is set.
    pub fn folder_of_user() -> Option<PathBuf> {
        folder_of_user("times")
    }

    /// The file of this machine: times by kernel, peaks by type.
    pub fn file(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.tsv", digest_bytes(&[self.machine.as_bytes()]))))
    }

    fn read(&self) -> Known {
        let mut known = Known::default();
        let text = self.file().and_then(|f| fs::read_to_string(f).ok()).unwrap_or_default();
        let mut peaks = Peaks { arithmetic: Vec::new(), bandwidth: 0.0 };
        // Lines that are none of ours, such as one that was cut short, are passed over: what they knew is measured again.
        for line in text.lines() {
            let mut words = line.split('\t');
            let (Some(key), Some(Ok(value)), Some(about)) =
                (words.next(), words.next().map(str::parse::<f64>), words.next())
            else {
                continue;
            };
            if !(value.is_finite() && value > 0.0) {
                continue;
            }
            match key.strip_prefix("peak ") {
                Some("bandwidth") => peaks.bandwidth = value,
                Some(dtype) => peaks.arithmetic.extend(dtype.parse().map(|d: DType| (d, value))),
                None => {
                    let times = if about.ends_with(DOUBTED) { &mut known.doubted } else { &mut known.seconds };
                    times.extend(u128::from_str_radix(key, 16).map(|d| (Digest(d), value)));
                }
            }
        }
        if peaks.bandwidth > 0.0 && peaks.of(DType::F32).is_some() {
            known.peaks = Some(peaks);
        }
        known
    }

    /// Adds lines to the machine's file. A cache that can't be written costs time and nothing else.
    fn remember(&self, lines: &str) {
        let Some(file) = self.file() else { return };
        let append = |file: &Path| {
            fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
            let new = !file.exists();
            let mut to = fs::OpenOptions::new().create(true).append(true).open(file)?;
            let header = if new { format!("# {}\n", self.machine) } else { String::new() };
            // In one piece: other processes may append to the same file.
            to.write_all(format!("{header}{lines}").as_bytes())
        };
        if let Err(e) = append(&file) {
            log::debug!("{}: {e}", file.display());
        }
    }

    fn time(&self, program: &Module, known: &mut Known) -> Result<f64, TimerError> {
        // Regions are compiled before the program is assembled: what was timed is looked up before that.
        if let Some(&seconds) = regions(program).and_then(|key| known.seconds.get(&key)) {
            return Ok(seconds);
        }
        let ready = self.ready(program, |key| known.seconds.contains_key(&key)).map_err(TimerError::Build)?;
        let mut run = match ready {
            Ready::Known(key) => return Ok(known.seconds[&key]),
            Ready::Linked(run) => run,
        };
        let timed = steady(&mut known.pulse, || run.once())?;
        let Runner { key, name, .. } = *run;
        let before = known.doubted.get(&key).copied().unwrap_or(f64::INFINITY);
        let seconds = timed.seconds.min(before);
        known.seconds.insert(key, seconds);
        // Two processes that find the same have found it.
        let agreed =
            timed.agreed || before <= timed.seconds * (1.0 + AGREEMENT) && timed.seconds <= before * (1.0 + AGREEMENT);
        known.doubtful += !agreed as usize;
        self.remember(&format!("{key}\t{seconds:e}\t{name}{}\n", if agreed { "" } else { DOUBTED }));
        Ok(seconds)
    }

    /// A program ready to run, unless what decides its time is known already.
    fn ready(&self, program: &Module, is_known: impl Fn(Digest) -> bool) -> Result<Ready, String> {
        let of_regions = regions(program);
        let typed = infer_types(program.clone()).map_err(|e| e.to_string())?;
        let fused = fuse(&typed, LARGEST_KERNEL);
        let typed = infer_types(fuse(&infer_types(fused).map_err(|e| e.to_string())?, 1)).map_err(|e| e.to_string())?;
        let backend = Backend::of(&self.target).map_err(|e| e.to_string())?;
        if !is_plain(&typed, "main").map_err(|e| e.to_string())? {
            return Err("its extents are not all known".into());
        }
        let Regions { typed, compiled, .. } =
            compile_regions(typed, &backend.target, Handling::default(), &Cancel::default())
                .map_err(|e| e.to_string())?;
        let mut code = CodeSet::new(backend.core);
        code.external = compiled;
        let assembled = assemble(&typed, "main", "timed", &mut code).map_err(|e| e.to_string())?;
        let key = of_regions.unwrap_or_else(|| content(&assembled, &code));
        if is_known(key) {
            return Ok(Ready::Known(key));
        }
        let name = code.kernels.first().map_or("no kernel", |k| k.name.as_str()).to_owned();
        let (_, library) = compile_code(&mut code, &backend, None).map_err(|e| e.to_string())?;
        let pool = self.pool.get_or_init(|| Arc::new(Pool::new(self.target.cores))).clone();
        let executable = Executable::link(assembled.program, library, pool).map_err(|e| e.to_string())?;
        let inputs: Vec<Tensor> = executable.program().inputs().iter().map(tame).collect();
        let outputs = executable.run(&inputs).map_err(|e| e.to_string())?;
        Ok(Ready::Linked(Box::new(Runner { key, name, executable, inputs, outputs })))
    }

    fn measure_peaks(&self, known: &mut Known) -> Result<Peaks, TimerError> {
        let f32s = self.multiply_adds(&mut known.pulse)?;
        let mut arithmetic = vec![(DType::F32, f32s)];
        let reference = self.time(&product(DType::F32), known)?;
        // What type relations or kernels refuse keeps its nominal ratio.
        for dtype in [DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I16, DType::I32, DType::I64] {
            if let Ok(seconds) = self.time(&product(dtype), known) {
                arithmetic.push((dtype, f32s * reference / seconds));
            }
        }
        let seconds = self.time(&stream(), known)?;
        let bandwidth = 2.0 * (STREAMED * 4) as f64 / seconds / self.target.cores as f64;
        let peaks = Peaks { arithmetic, bandwidth };
        let mut lines: String = peaks
            .arithmetic
            .iter()
            .map(|(d, ops)| format!("peak {d}\t{ops:e}\toperations per second and core\n"))
            .collect();
        lines += &format!("peak bandwidth\t{bandwidth:e}\tbytes per second and core\n");
        self.remember(&lines);
        Ok(peaks)
    }

    /// Operations of `float32` per second and core, out of registers.
    fn multiply_adds(&self, pulse: &mut Pulse) -> Result<f64, TimerError> {
        let mut peak = Peak::new(&self.target).map_err(|e| TimerError::Build(e.to_string()))?;
        let timed = steady(pulse, || peak.run().map_err(|e| TimerError::Run(e.to_string())))?;
        Ok(peak.operations() / timed.seconds)
    }
}

impl Timer for Stopwatch {
    fn seconds(&self, program: &Module) -> Result<f64, TimerError> {
        // One at a time: what runs beside a measurement disturbs it.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.time(program, &mut known)
    }

    fn race(&self, programs: &[&Module]) -> Vec<Result<f64, TimerError>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // All at once in memory: they take turns. Programs that are the same are one.
        let mut runners: Vec<Runner> = Vec::new();
        let mut whose: Vec<Result<usize, TimerError>> = Vec::new();
        for program in programs {
            let is_there = |key: Digest| runners.iter().any(|r| r.key == key);
            whose.push(match self.ready(program, is_there) {
                Ok(Ready::Known(key)) => Ok(runners.iter().position(|r| r.key == key).expect("it was just found")),
                Ok(Ready::Linked(run)) => {
                    runners.push(*run);
                    Ok(runners.len() - 1)
                }
                Err(why) => Err(TimerError::Build(why)),
            });
        }
        let times = match runners.len() {
            1 => vec![steady(&mut known.pulse, || runners[0].once()).map(|t| t.seconds)],
            _ => in_turns(runners.iter_mut().map(|r| move || r.once()).collect()),
        };
        whose.into_iter().map(|w| w.and_then(|i| times[i].clone())).collect()
    }

    fn notes(&self) -> Vec<String> {
        let doubtful = self.known.lock().unwrap_or_else(PoisonError::into_inner).doubtful;
        let note = format!(
            "the machine was busy: the times of {doubtful} kernels may be too long; they are taken again next time"
        );
        if doubtful > 0 { vec![note] } else { Vec::new() }
    }

    fn peaks(&self) -> Result<Peaks, TimerError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peaks) = &known.peaks {
            return Ok(peaks.clone());
        }
        let peaks = self.measure_peaks(&mut known)?;
        known.peaks = Some(peaks.clone());
        Ok(peaks)
    }
}

impl std::fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopwatch").field("machine", &self.machine).field("file", &self.file()).finish_non_exhaustive()
    }
}

/// What a program's time depends on: its kernels, and on which buffers it calls them.
fn content(assembled: &Assembled, code: &CodeSet) -> Digest {
    let kernels: Vec<[u8; 16]> = code.kernels.iter().map(|k| k.digest().0.to_le_bytes()).collect();
    let ports: Vec<String> = assembled.program.inputs().iter().map(|p| format!("{} {:?}", p.dtype, p.shape)).collect();
    let steps = assembled.calls.to_string();
    let mut parts: Vec<&[u8]> = kernels.iter().map(|k| &k[..]).collect();
    parts.extend(ports.iter().map(|p| p.as_bytes()));
    parts.push(steps.as_bytes());
    digest_bytes(&parts)
}

/// What the time of a program depends on that holds regions of external compilers: all that it says, but of constants only their
/// types. None where it holds no regions.
fn regions(m: &Module) -> Option<Digest> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let is_region = |&e: &ExprId| matches!(&m[e], Expr::Func(f) if f.compiler().is_some());
    ids.iter().any(is_region).then_some(())?;
    let said = |&e: &ExprId| match &m[e] {
        Expr::Constant(t) => format!("{e:?} = {} {:?}", t.dtype(), t.shape()),
        Expr::Var(v) => format!("{e:?} = {v:?}: {:?}", m.var(*v).ty),
        other => format!("{e:?} = {other:?}"),
    };
    // How resat compiles what is around them decides as well.
    let all: Vec<String> = [env!("RESAT_SOURCES").to_owned()].into_iter().chain(ids.iter().map(said)).collect();
    Some(digest_bytes(&all.iter().map(|s| s.as_bytes()).collect::<Vec<_>>()))
}

/// An argument that is legal for every operator, and on which none is slower than on others: floats within 1 to 2, integers 0,
/// which is an index into everything; compiled code divides by it as by any other.
pub(super) fn tame(port: &Port) -> Tensor {
    match port.dtype {
        d if d.is_float() => Tensor::from_f64_fn(d, &port.shape, |i| 1.0 + (i % 7) as f64 / 8.0),
        d => Tensor::from_i64_fn(d, &port.shape, |_| 0),
    }
}

/// A fixed piece of work that is timed between samples: where it takes longer than it can, the machine is busy or slow for the
/// moment, and so was the sample.
#[derive(Debug)]
struct Pulse {
    fastest: Duration,
}

/// Beats in a row that find out how fast the machine is.
const FIRST_BEATS: usize = 64;

/// A beat that takes longer than the fastest by this share is one of a busy machine.
const BUSY: f64 = 0.12;

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { fastest: Duration::MAX }
    }
}

impl Pulse {
    /// Whether the machine runs undisturbed at its full speed right now, as far as it has been seen.
    fn is_calm(&mut self) -> bool {
        if self.fastest == Duration::MAX {
            self.fastest = (0..FIRST_BEATS).map(|_| Pulse::beat()).min().unwrap_or(Duration::MAX);
        }
        let beat = Pulse::beat();
        self.fastest = self.fastest.min(beat);
        beat.as_secs_f64() <= self.fastest.as_secs_f64() * (1.0 + BUSY)
    }

    /// Microseconds of dependent multiplications.
    fn beat() -> Duration {
        let start = Instant::now();
        let mut x = std::hint::black_box(0x9e37_79b9_7f4a_7c15u64);
        for _ in 0..2_000 {
            x = std::hint::black_box(x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 31));
        }
        std::hint::black_box(x);
        start.elapsed()
    }
}

/// The seconds of one run, by the fastest of samples that agree: what disturbs a machine only ever makes it slower. Samples
/// count where the machine was calm before and after; where they do not agree, they are taken again a little later.
fn steady<E>(pulse: &mut Pulse, mut once: impl FnMut() -> Result<(), E>) -> Result<Timed, E> {
    let mut timed = |n: u32| -> Result<Duration, E> {
        let start = Instant::now();
        (0..n).try_for_each(|_| once())?;
        Ok(start.elapsed())
    };
    timed(2)?;
    let first = timed(1)?.max(Duration::from_nanos(20));
    let runs = (SAMPLE.as_nanos() / first.as_nanos() + 1).min(10_000) as u32;
    let mut fastest = f64::INFINITY;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE * attempt);
        }
        let begin = Instant::now();
        let mut samples: Vec<f64> = Vec::new();
        let mut taken = 0;
        let mut calm = pulse.is_calm();
        loop {
            let sample = timed(runs)?.as_secs_f64() / runs as f64;
            let was_calm = std::mem::replace(&mut calm, pulse.is_calm());
            taken += 1;
            fastest = fastest.min(sample);
            if was_calm && calm {
                let at = samples.partition_point(|&s| s < sample);
                samples.insert(at, sample);
            }
            let agreed = samples.len() > AGREEING && samples[AGREEING - 1] <= samples[0] * (1.0 + AGREEMENT);
            if agreed && samples[0] <= fastest * (1.0 + AGREEMENT) {
                return Ok(Timed { seconds: fastest.max(1e-9), agreed });
            }
            if begin.elapsed() > PATIENCE && taken >= 10.min(AGREEING * 2) {
                break;
            }
        }
    }
    Ok(Timed { seconds: fastest.max(1e-9), agreed: false })
}

/// A program of one operator's call on parameters of these types.
fn call(name: &str, params: &[Type], attrs: &[(crate::ir::Name, crate::ir::AttrValue)]) -> Module {
    let mut m = Module::new();
    let vars: Vec<_> = params.iter().enumerate().map(|(i, t)| m.new_var(format!("p{i}"), Some(t.clone()))).collect();
    let args = vars.iter().map(|&v| m.add(Expr::Var(v))).collect();
    let op = ops::op(name);
    let attrs = ops::make_attrs(op, attrs).expect("attributes of the operator");
    let body = m.call_op(op, args, attrs);
    let f = m.add(Expr::Func(Box::new(Function::new(vars, body, None))));
    m.define("main", f);
    m
}

/// A GEMM small enough for the inner caches; its kernels reach the same share of peak for all types.
fn product(dtype: DType) -> Module {
    let sums = match dtype {
        DType::I8 | DType::U8 | DType::I16 => DType::I32,
        other => other,
    };
    let types = [Type::tensor(&[64, 256], dtype), Type::tensor(&[256, 256], dtype)];
    call("nn.dense", &types, &[("out_dtype".into(), crate::ir::AttrValue::DType(sums))])
}

/// Elements of [`stream`]'s argument: 2 MiB, and as much of its result, which the outer caches hold.
const STREAMED: i64 = 1 << 19;

fn stream() -> Module {
    call("negative", &[Type::tensor(&[STREAMED], DType::F32)], &[])
}
