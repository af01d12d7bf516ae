# `make demo` shows resat at work, `make test` runs every check. Both install what the machine lacks.

.PHONY: all demo test setup bench bench-rivals fuzz wheel

# How long `make fuzz` stays with each reader, in seconds.
TIME ?= 600

all: setup
	cargo build --release

setup:
	@sh tools/setup.sh

demo: setup
	cargo run --release --example digits

test: setup
	@sh tools/setup.sh tests python
	cargo fmt --all --check
	cargo fmt --manifest-path python/Cargo.toml --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	cargo check --release --workspace --no-default-features
	cargo build --release
	cargo test --release --workspace
	sh tools/check-recorded.sh target/release/resat
	sh tools/onnx-suite.sh target/release/resat
	sh tools/python-tests.sh

# The Python package, as a wheel in target/wheels.
wheel:
	@sh tools/setup.sh python
	sh tools/wheel.sh

bench: setup
	cargo bench

# Beside ONNX Runtime and OpenVINO, for half an hour; `make bench-rivals RIVALS="--only latency --threads 1 resnet50"` does a part, and
# `RIVALS="--only latency --onnx FILE..."` is about files of one's own.
bench-rivals: setup
	cargo build --release
	sh tools/bench-rivals.sh target/release/resat $(RIVALS)

fuzz: setup
	sh tools/fuzz.sh $(TIME)
