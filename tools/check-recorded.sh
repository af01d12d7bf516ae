#!/bin/sh
# Runs the recorded programs of TVM's tests on both back ends, and the models of the corpus where they are: in the folder that RESAT_SHARED
# names, else in ../shared. Needs python3, and installs numpy beside the build where it is missing.
#
#     check-recorded.sh BIN
set -eu
bin=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
if ! python3 -c 'import numpy' 2>/dev/null; then
    [ -x "$here/target/venv/bin/python" ] || python3 -m venv "$here/target/venv"
    "$here/target/venv/bin/python" -c 'import numpy' 2>/dev/null || "$here/target/venv/bin/pip" install -q numpy
    PATH="$here/target/venv/bin:$PATH"
fi
python3 "$here/tools/conformance.py" "$bin"
shared=${RESAT_SHARED:-$here/../shared}
if [ -d "$shared/corpus" ]; then
    python3 "$shared/corpus/check.py" "$bin"
else
    echo "models of the corpus: skipped, as there is no folder $shared/corpus (RESAT_SHARED may name another)"
fi
