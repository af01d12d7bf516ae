#!/bin/sh
# Builds the wheel and tests it from a fresh virtual environment, away from its sources. Where pip has no network, the tests are skipped.
#
#     python-tests.sh [--more] [PYTEST ARGUMENTS]
#
# With --more also beside JAX and on Ray. RESAT_SHARED names a folder with a corpus of models, ../shared where it does not: part of the gallery
# takes them.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
more=""
if [ "${1:-}" = --more ]; then
    more="-r $here/tools/python-requirements-more.txt"
    shift
fi
if ! sh "$here/tools/wheel.sh" --tools; then
    echo "tests of the Python package: skipped, as maturin can't be installed"
    exit 0
fi
sh "$here/tools/wheel.sh"
cargo clippy --release --locked --quiet --manifest-path "$here/python/Cargo.toml" --target-dir "$here/target/python" -- -D warnings
begin=$(date +%s)
venv="$here/target/python-tests"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
# shellcheck disable=SC2086 # none or two words
if ! "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/tools/python-requirements.txt" $more; then
    echo "tests of the Python package: skipped, as what they use can't be installed"
    exit 0
fi
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps "$here"/target/wheels/*.whl
RESAT_SHARED=$(realpath "${RESAT_SHARED:-$here/../shared}" 2>/dev/null || true)
export RESAT_SHARED
cd "$here/python/tests"
"$venv/bin/python" -P -m pytest -q -rs -p no:cacheprovider "$@" .
echo "tests of the Python package: $(($(date +%s) - begin)) s with their installation"
