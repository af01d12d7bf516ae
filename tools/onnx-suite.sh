#!/bin/sh
# onnx-suite.sh BIN: ONNX's own tests through both back ends. The package that holds them is installed into target/; where that
# can't be done, the tests are skipped.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
venv="$here/target/onnx-suite"
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import onnx' 2>/dev/null; then
    if ! python3 -m venv "$venv" 2>/dev/null || ! "$venv/bin/pip" install -q numpy onnx==1.22.0 2>/dev/null; then
        echo "ONNX's tests are skipped: the Python package onnx==1.22.0 can't be installed"
        exit 0
    fi
fi
for backend in interp llvm; do
    "$venv/bin/python" "$here/tools/onnx-suite.py" "$1" --backend "$backend" --expected "$here/tests/onnx-known-failures-$backend.txt"
done
