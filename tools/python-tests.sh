#!/bin/sh
# Builds the wheel and tests it from a fresh virtual environment, away from its sources. Where pip has no network, the tests are skipped.
#
#     python-tests.sh [PYTEST ARGUMENTS]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
if ! sh "$here/tools/wheel.sh" --tools; then
    echo "tests of the Python package: skipped, as maturin can't be installed"
    exit 0
fi
sh "$here/tools/wheel.sh"
cargo clippy --release --locked --quiet --manifest-path "$here/python/Cargo.toml" --target-dir "$here/target/python" -- -D warnings
venv="$here/target/python-tests"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
if ! "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/tools/python-requirements.txt"; then
    echo "tests of the Python package: skipped, as what they use can't be installed"
    exit 0
fi
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps "$here"/target/wheels/*.whl
cd "$here/python/tests"
exec "$venv/bin/python" -P -m pytest -q -p no:cacheprovider "$@" .
