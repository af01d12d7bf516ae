//! Random typed programs through every route: text and JSON, types, the interpreter, machine code as it stands and
//! optimized, every shipped ruleset and pass alone.
//!
//! The programs of `tests/random/found` once went wrong; they come first, through all routes.
//!
//! Programs run in a process of their own, so that machine code that crashes or hangs is reported with its seed as well.
//! `RESAT_PROGRAMS` says how many there are (of each kind), `RESAT_SEED` with which seed they begin.

mod common;
#[path = "common/same.rs"]
#[allow(unreachable_pub, reason = "it is also a module of a library")]
mod same;

#[path = "random/check.rs"]
mod check;
#[path = "random/make.rs"]
mod make;
#[path = "random/offload.rs"]
mod offload;
#[path = "random/shrink.rs"]
mod shrink;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    time::Duration,
};

use check::{Fault, Route, check, routes};
use make::{Case, Kind};
use resat::{infer::infer_types, interp, ir::reachable, relay::text};

/// Programs of each kind.
const PROGRAMS: u64 = 300;
/// A program that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// A program that neither ends nor runs is waited for so many times as long.
const MOST_WAITED: usize = 10;
/// Candidates that shrinking tries.
const TRIALS: usize = 400;
/// Says to a process that it is to run programs, `KIND FIRST END`, or to show one, `KIND SEED show`.
const WORK: &str = "RESAT_RANDOM_WORK";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn main() -> ExitCode {
    if let Ok(work) = std::env::var(WORK) {
        worker(&work);
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|a| a == "--list") {
        return ExitCode::SUCCESS;
    }
    let (first, n) = (number("RESAT_SEED", 0), number("RESAT_PROGRAMS", PROGRAMS));
    let kinds: [Kind; 2] = [Kind::Straight, Kind::Control];
    let mut sound = found();
    let summaries: Vec<Summary> = std::thread::scope(|s| {
        let threads = kinds.map(|kind| s.spawn(move || programs(kind, first, first + n)));
        threads.into_iter().map(|t| t.join().expect("no thread panics")).collect()
    });
    for (kind, summary) in kinds.iter().zip(&summaries) {
        summary.show(*kind);
        sound &= summary.faults == 0 && summary.refused.is_empty() && summary.is_meaningful();
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the programs that were found, in a process of their own; whether all is well.
fn found() -> bool {
    let this = std::env::current_exe().expect("this program has a path");
    let done = Command::new(this).env(WORK, "found").output().expect("this program can be started");
    let out = String::from_utf8_lossy(&done.stdout);
    let sound = done.status.success() && !out.lines().any(|l| l.starts_with("fault"));
    if !sound {
        println!("programs that were found: {}\n{out}", done.status);
    }
    sound
}

/// Takes each program of the folder through all routes, with arguments that follow from its types.
fn check_found() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/random/found");
    let mut files: Vec<_> = std::fs::read_dir(dir).expect("the folder is there").flatten().map(|e| e.path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let name = file.display().to_string();
        say(&format!("at {name}"));
        let text = std::fs::read_to_string(&file).expect("a test can be read");
        let m = text::parse_module(&name, &text).unwrap_or_else(|e| panic!("{e}"));
        let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
        let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
        match check(&Case { m, inputs }, &routes(0, true)) {
            Ok(Some(o)) if o.compared > 0 || o.chaotic == 0 => {}
            Ok(_) => say(&format!("fault {name}: nothing was compared")),
            Err(f) => say(&format!("fault {name}: {}: {}", f.check, f.what)),
        }
    }
}

/// What became of the programs of a kind.
#[derive(Default)]
struct Summary {
    run: usize,
    idle: usize,
    compared: usize,
    chaotic: usize,
    refused: BTreeMap<String, usize>,
    faults: usize,
    /// Names of operators in programs that were compared.
    ops: BTreeSet<String>,
}

impl Summary {
    fn show(&self, kind: Kind) {
        let Summary { run, idle, compared, chaotic, refused, faults, ops } = self;
        println!(
            "{kind:?}: {run} programs of {} operators (of {}), {idle} without a value; {compared} results compared, {chaotic} decided by rounding; {} not compiled, {faults} faults",
            ops.len(),
            resat::ops::all().len(),
            refused.values().sum::<usize>()
        );
        for (why, n) in refused {
            println!("  {n} x {why}");
        }
    }

    /// Whether enough was compared to say that all is well.
    fn is_meaningful(&self) -> bool {
        let enough = 4 * self.idle <= self.run && 4 * self.chaotic <= self.compared;
        if !enough {
            println!("too few results were compared");
        }
        enough
    }
}

/// What a process has used of processors, by Linux' `/proc/PID/stat`: fields 14 and 15, in hundredths of a second.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field, the program's name, may hold blanks; parentheses end it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Duration::from_millis(10 * fields.filter_map(|f| f.parse::<u64>().ok()).sum::<u64>())
}

/// Runs the programs of some seeds in other processes, one after another; a process that dies is replaced.
fn programs(kind: Kind, first: u64, end: u64) -> Summary {
    let mut summary = Summary::default();
    let mut next = first;
    while next < end {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .env(WORK, format!("{kind:?} {next} {end}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program can be started");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = mpsc::channel();
        let reader = std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        let mut last = next;
        let (mut waited, mut used) = (0, Duration::ZERO);
        let hangs = loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    summary.line(&line, &mut last);
                    (waited, used) = (0, processor_time(child.id()));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break false,
                // On a machine that does other things, time passes though the program hardly runs.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    waited += 1;
                    if waited == MOST_WAITED || processor_time(child.id()).saturating_sub(used) >= PATIENCE {
                        break true;
                    }
                }
            }
        };
        drop(child.kill());
        let status = child.wait().expect("it was started");
        drop(reader.join());
        if hangs || !status.success() {
            summary.faults += 1;
            let what = if hangs { "takes too long".to_owned() } else { format!("dies: {status}") };
            println!("{kind:?} seed {last} {what}");
            // Whatever went wrong may go wrong again, so that this process does not touch it.
            let shown = Command::new(std::env::current_exe().expect("this program has a path"))
                .env(WORK, format!("{kind:?} {last} show"))
                .output()
                .expect("this program can be started");
            println!("{}", String::from_utf8_lossy(&shown.stdout));
            next = last + 1;
        } else {
            next = end;
        }
    }
    summary
}

impl Summary {
    /// Takes a line of a worker: `at SEED`, `run COMPARED CHAOTIC`, `idle`, `refused WHY`, `fault`, and `| ` before what is shown.
    fn line(&mut self, line: &str, last: &mut u64) {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        match what {
            "at" => *last = rest.parse().expect("workers say numbers"),
            "run" => {
                let mut numbers = rest.split(' ').map(|n| n.parse::<usize>().expect("workers say numbers"));
                self.run += 1;
                self.compared += numbers.next().unwrap_or(0);
                self.chaotic += numbers.next().unwrap_or(0);
            }
            "idle" => {
                self.run += 1;
                self.idle += 1;
            }
            "ops" => self.ops.extend(rest.split(' ').map(String::from)),
            "refused" => *self.refused.entry(rest.to_owned()).or_default() += 1,
            "fault" => self.faults += 1,
            "|" => println!("{rest}"),
            _ => {}
        }
    }
}

fn worker(work: &str) {
    if work == "found" {
        return check_found();
    }
    let parts: Vec<&str> = work.split(' ').collect();
    let kind = if parts[0] == "Straight" { Kind::Straight } else { Kind::Control };
    let first: u64 = parts[1].parse().expect("a number");
    if parts[2] == "show" {
        return println!("{}", text::print_module(&make::program(first, kind).m));
    }
    let end: u64 = parts[2].parse().expect("a number");
    let all = std::env::var_os("RESAT_ALL_ROUTES").is_some();
    for seed in first..end {
        say(&format!("at {seed}"));
        let case = make::program(seed, kind);
        let routes = routes(seed, all);
        match check(&case, &routes) {
            Ok(None) => say("idle"),
            Ok(Some(o)) => {
                say(&format!("run {} {}", o.compared, o.chaotic));
                let ids = reachable(&case.m, case.m.functions().map(|(_, f)| f));
                let names: Vec<&str> = ids.iter().filter_map(|&e| Some(case.m.op_call(e)?.0.op().name())).collect();
                say(&format!("ops {}", names.join(" ")));
                for why in o.refused {
                    say(&format!("refused {}", why.lines().next().unwrap_or_default()));
                }
            }
            Err(fault) => {
                say("fault");
                report(seed, kind, case, &fault, &routes);
            }
        }
    }
}

fn say(line: &str) {
    println!("{line}");
    drop(std::io::stdout().flush());
}

/// Shrinks a program with a fault and shows it.
fn report(seed: u64, kind: Kind, case: Case, fault: &Fault, routes: &[Route]) {
    let mut last = fault.clone();
    let small = shrink::shrink(case, TRIALS, |c| match check(c, routes) {
        Err(f) if f.check == fault.check => {
            last = f;
            // The watch starts over.
            say("shrinking");
            true
        }
        _ => {
            say("shrinking");
            false
        }
    });
    let inputs: Vec<String> = small
        .m
        .function("main")
        .map(|f| {
            f.params.iter().zip(&small.inputs).map(|(&p, v)| format!("%{} = {v:?}", small.m.var(p).name)).collect()
        })
        .unwrap_or_default();
    let shown = format!(
        "{kind:?} seed {seed}, {}: {}\n{}\n{}\n",
        last.check,
        last.what,
        inputs.join("\n"),
        text::print_module(&small.m)
    );
    shown.lines().for_each(|l| say(&format!("| {l}")));
}
