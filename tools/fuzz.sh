#!/bin/sh
# fuzz.sh SECONDS: each reader under LLVM's fuzzer for so long. What it found new goes to fuzz/found, faults to fuzz/artifacts.
# The flags are those that cargo-fuzz would set, without a sanitizer: stable Rust has the one and not the other.
set -eu
seconds=${1:-60}
cd "$(dirname "$0")/../fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
# With a target named, the flags are not for build scripts.
RUSTFLAGS="$coverage" cargo build --release --target "$host"
mkdir -p artifacts
status=0
for reader in text json params onnx npz keras keras_config tflite; do
    mkdir -p "found/$reader"
    echo "$reader: $seconds s"
    "target/$host/release/$reader" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -max_len=50000 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="artifacts/$reader-" "found/$reader" "corpus/$reader" || status=1
done
exit $status
