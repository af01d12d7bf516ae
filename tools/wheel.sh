#!/bin/sh
# Builds the Python package's wheel into target/wheels. Needs what `tools/setup.sh python` installs, and the network for maturin the first
# time. PYTHON names the interpreter, python3 where it does not; any from 3.11 on makes the same wheel.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
venv="$here/target/python-build"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/maturin" --version 2>/dev/null | grep -q ' 1\.16\.' || "$venv/bin/pip" install -q --disable-pip-version-check 'maturin==1.16.0'
rm -rf "$here/target/wheels"
cd "$here/python"
PATH="$venv/bin:$PATH" maturin build --release --locked --quiet --target-dir "$here/target/python" --out "$here/target/wheels"
wheel=$(ls "$here"/target/wheels/*.whl)
size=$(wc -c <"$wheel")
echo "$wheel: $((size / 1000000)) MB"
# What a user must download is bounded.
[ "$size" -le 45000000 ] || { echo "the wheel is larger than 45 MB" >&2; exit 1; }
