# `make demo` shows resat at work, `make test` runs every check. Both install what the machine lacks.

.PHONY: all demo test setup bench fuzz

# How long `make fuzz` stays with each reader, in seconds.
TIME ?= 600

all: setup
	cargo build --release

setup:
	@sh tools/setup.sh

demo: setup
	cargo run --release --example digits

test: setup
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo check --no-default-features
	cargo build --release
	cargo test --release
	sh tools/check-recorded.sh target/release/resat

bench: setup
	cargo bench

fuzz: setup
	sh tools/fuzz.sh $(TIME)
