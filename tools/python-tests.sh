#!/bin/sh
# Builds the wheel and tests it from a fresh virtual environment, away from its sources.
#
#     python-tests.sh [PYTEST ARGUMENTS]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
sh "$here/tools/wheel.sh"
venv="$here/target/python-tests"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r "$here/tools/python-requirements.txt"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps "$here"/target/wheels/*.whl
cd "$here/python/tests"
exec "$venv/bin/python" -P -m pytest -q -p no:cacheprovider "$@" .
