//! The command line of resat.

fn main() -> std::process::ExitCode {
    resat::cli::main()
}
