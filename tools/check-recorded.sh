#!/bin/sh
# Runs the recorded programs of TVM's tests on both back ends, and the models of the corpus where they are: in the folder that RESAT_SHARED
# names, else in ../shared. Our own model and the corpus' small ones also with all that an external compiler takes given to it. Needs python3,
# and installs numpy beside the build where it is missing.
#
#     check-recorded.sh BIN
set -eu
bin=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
if ! python3 -c 'import numpy' 2>/dev/null; then
    [ -x "$here/target/venv/bin/python" ] || python3 -m venv "$here/target/venv"
    "$here/target/venv/bin/python" -c 'import numpy' 2>/dev/null || "$here/target/venv/bin/pip" install -q numpy || {
        echo "recorded programs: skipped, as numpy can't be installed"
        exit 0
    }
    PATH="$here/target/venv/bin:$PATH"
fi
python3 "$here/tools/conformance.py" "$bin"

shared=${RESAT_SHARED:-$here/../shared}
compilers=c
if /sbin/ldconfig -p 2>/dev/null | grep -q 'libdnnl\.so\.[23]' || [ -n "${RESAT_ONEDNN:-}" ]; then
    compilers="c onednn"
else
    echo "models partitioned for onednn: skipped, as oneDNN is not installed"
fi
for compiler in $compilers; do
    echo "partitioned for $compiler:"
    python3 "$here/tools/partitioned-corpus.py" "$bin" "$here/models" "$compiler"
    if [ -d "$shared/corpus" ]; then
        python3 "$here/tools/partitioned-corpus.py" "$bin" "$shared/corpus" "$compiler" \
            mlp lstm testing_dcgan testing_dqn testing_lstm_i4_h64
    fi
done
if [ -d "$shared/corpus" ]; then
    python3 "$shared/corpus/check.py" "$bin"
else
    echo "models of the corpus: skipped, as there is no folder $shared/corpus (RESAT_SHARED may name another)"
fi
