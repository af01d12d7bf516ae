//! The program that libraries run in: see `worker.rs`. `build.rs` compiles it.

#[path = "worker.rs"]
mod worker;

fn main() {
    worker::main();
}
