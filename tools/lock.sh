#!/usr/bin/env bash
# Writes requirements/*.lock anew from pyproject.toml: tools/lock.sh [--upgrade]. Versions in use are kept unless told.
# The files carry versions and hashes, and no address of an index.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh
find_uv
adopt_pip_settings

lock() {
  local output="$1"
  shift
  "$UV" pip compile --quiet --python-version 3.12 --no-header --no-emit-index-url --no-annotate --generate-hashes \
    "$@" --extra broker --extra demo --group dev --output-file "$output" pyproject.toml >/dev/null
  say "$output: $(grep -c '==' "$output") packages"
}

lock requirements/cpu.lock --extra explorer-cpu --extra trainer-cpu --override requirements/overrides.txt "$@"
lock requirements/gpu.lock --extra explorer-gpu --extra trainer-gpu "$@"
