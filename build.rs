//! Tells resat what it was made of: what one build keeps on disk is of no use to another one.

include!("tools/digest.rs");

fn main() {
    println!("cargo::rustc-env=RESAT_SOURCES={:016x}", digest(&["src", "crates", "rules", "Cargo.lock"]));
}
