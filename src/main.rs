//! The command line of resat.

#[cfg(feature = "allocator")]
#[global_allocator]
static ALLOCATOR: resat::runtime::Allocator = resat::runtime::Allocator;

fn main() -> std::process::ExitCode {
    resat::cli::main()
}
