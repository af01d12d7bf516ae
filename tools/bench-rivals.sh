#!/bin/sh
# Times resat beside ONNX Runtime and OpenVINO on the recorded models: rivals.py, with what it needs.
#
#     bench-rivals.sh BIN [ARGUMENTS of rivals.py]
#
# onnxruntime wants sympy where it quantizes.
# Takes the folders corpus and rivals of the one that RESAT_SHARED names, else of ../shared. Python's packages go beside the build.
set -eu
if [ $# -eq 0 ] || [ ! -x "$1" ] || [ -d "$1" ]; then
    echo "usage: bench-rivals.sh BIN [ARGUMENTS of rivals.py]; BIN is the resat to be timed" >&2
    exit 2
fi
bin=$(realpath "$1")
shift
here=$(cd "$(dirname "$0")/.." && pwd)
shared=${RESAT_SHARED:-$here/../shared}
for folder in corpus rivals; do
    if [ ! -d "$shared/$folder" ]; then
        echo "speed beside rivals: skipped, as there is no folder $shared/$folder (RESAT_SHARED may name another)"
        exit 0
    fi
done
python="$here/target/venv/bin/python"
if [ ! -x "$python" ] && ! python3 -m venv "$here/target/venv"; then
    echo "speed beside rivals: skipped, as python3 can't make a virtual environment here (Debian's package python3-venv)"
    exit 0
fi
for package in numpy onnx onnxruntime openvino sympy; do
    "$python" -c "import $package" 2>/dev/null || "$python" -m pip install -q "$package" || {
        echo "speed beside rivals: $package can't be installed; what needs it is skipped"
    }
done
"$python" -c 'import numpy' 2>/dev/null || { echo "speed beside rivals: skipped, as there is no numpy"; exit 0; }
exec "$python" "$here/tools/rivals.py" --resat "$bin" --shared "$shared" --out "$here/target/rivals" "$@"
