#!/usr/bin/env bash
# Builds the wheel into a folder: tools/wheel.sh FOLDER. With the setuptools of .venv, so that nothing that is not pinned
# takes part.
set -euo pipefail
TARGET="$(realpath -m "$1")"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh
find_uv
# What an earlier build has left there would be packed too, also where the file is gone.
rm -rf build/lib build/bdist.*
"$UV" build --quiet --wheel --no-build-isolation --python .venv/bin/python --out-dir "$TARGET"
rm -rf build/lib build/bdist.*
ls "$TARGET"/*.whl
