//! The command line: a file per subcommand, each thin: it reads arguments and calls the library.
//!
//! Exit codes: 0 done; 2 the input was refused, with a message on stderr; 1 anything else.

mod args;
mod config;
mod dump;
mod kept;
mod library;
mod profile;
mod progress;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{diag::Refused, driver::BuildError, pass::PassEntry, saturate::Report, tensor::OutOfMemory};

/// Compiles and runs TVM's Relay programs: rulesets over one e-graph, native code through LLVM.
#[derive(Parser, Debug)]
#[command(name = "resat", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $module:ident $name:ident),* $(,)?) => {
        $(mod $module;)*
        #[derive(Subcommand, Debug)]
        enum Command { $($(#[$doc])* $name($module::Args)),* }
        impl Command {
            fn run(self) -> Result<(), Failure> {
                match self { $(Command::$name(a) => $module::run(a)),* }
            }
        }
    };
}

commands! {
    /// Check a program and print its canonical text
    parse Parse,
    /// Write a model of another kind as Relay
    import Import,
    /// Run passes over a program and write the result
    opt Opt,
    /// Compile a program to a shared library with a C header
    build Build,
    /// Run a program once
    run Run,
    /// Measure warm latencies
    bench Bench,
    /// Say what is known of this machine, and measure it
    machine Machine,
    /// Compare one saturation with every order of passes
    explore Explore,
    /// List passes, the stages of the default pipeline, levels of optimization and rulesets
    passes Passes,
    /// List, show and check the rulesets
    rules Rules,
    /// Say by which rules the pieces of a program became what they are
    explain Explain,
    /// Say why a program does not become the form that is wanted
    why_not WhyNot,
    /// Say what quantizing each layer of a program costs and gains, and what there is to choose between
    sensitivity Sensitivity,
    /// Choose the cheapest program of an e-graph in egraph-serialize's JSON
    extract Extract,
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
enum Failure {
    /// The input can't be taken: exit code 2.
    Refused(Refused),
    /// Anything else: exit code 1.
    Other(String),
}

impl From<Refused> for Failure {
    fn from(r: Refused) -> Failure {
        Failure::Refused(r)
    }
}

/// Writes to standard output. A closed pipe ends the command quietly, as for other filters.
fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// The same of what need not be text.
fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Other(format!("can't write: {e}"))),
        _ => Ok(()),
    }
}

/// What users should know, on stderr, each once.
fn warn(warnings: &[String]) {
    let mut warned: Vec<&String> = Vec::new();
    for warning in warnings {
        if !warned.contains(&warning) {
            eprintln!("warning: {warning}");
            warned.push(warning);
        }
    }
}

/// What passes and saturations did, on stderr.
fn report(log: &[PassEntry], reports: &[Report]) {
    for e in log {
        eprintln!("{:8.3} s  {}: {} -> {} expressions", e.time.as_secs_f64(), e.name, e.expressions.0, e.expressions.1);
    }
    for r in reports {
        eprint!("{r}");
    }
}

fn build_failure(e: BuildError) -> Failure {
    match e {
        BuildError::Refused(r) => Failure::Refused(r),
        other => Failure::Other(other.to_string()),
    }
}

/// The arguments of this process. Of `explore`, the passes are those that are put in order, which their help should say.
fn parse() -> Cli {
    let passes = "Passes whose orders are tried, as \"fold:FoldConstant, layout, Saturate(algebra,qnn)\"; rulesets and stages are names, too";
    let command = Cli::command().mut_subcommand("explore", |c| c.mut_arg("passes", |a| a.help(passes)));
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|e| e.exit())
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = parse();
    crate::runtime::forget_code();
    clean_up_on_signals();
    // Deep programs are walked with explicit stacks, but third-party code (and drops) may recurse: give it room.
    let command = move || {
        // This thread is a worker of rayon's pool: where it only waited, the system might wake two workers on one core and leave this one's idle.
        // An error means that there is a pool already, which serves as well.
        rayon::ThreadPoolBuilder::new().use_current_thread().build_global().ok();
        cli.command.run()
    };
    let worker = std::thread::Builder::new().stack_size(STACK).spawn(command);
    let outcome = match worker.map(|w| w.join()) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure::Other(match panic.downcast_ref::<OutOfMemory>() {
            Some(wanted) => wanted.to_string(),
            None => "internal error: this is a bug in resat".into(),
        })),
        Err(e) => Err(Failure::Other(format!("can't start a thread: {e}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Refused(r)) => {
            eprint!("{}", r.render());
            ExitCode::from(2)
        }
        Err(Failure::Other(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(1)
        }
    }
}

/// What a shell says of a process that a signal ended: 128 and the signal's number; of SIGINT, SIGTERM and SIGHUP, this one.
const INTERRUPTED: i32 = 130;

/// Removes unfinished files where a signal asks the process to end.
fn clean_up_on_signals() {
    let clean_up = || {
        crate::output::remove_all();
        std::process::exit(INTERRUPTED);
    };
    if let Err(e) = ctrlc::set_handler(clean_up) {
        log::warn!("unfinished files will stay where a signal ends the process: {e}");
    }
}

/// Stack of the thread that does the work, in bytes; only what is used is ever touched.
const STACK: usize = 256 << 20;
