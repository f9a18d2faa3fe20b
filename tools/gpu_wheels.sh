#!/usr/bin/env bash
# Packs what make gpu-check needs beside torch and transformers, for a machine without a network: tools/gpu_wheels.sh FOLDER.
# There, in a copy of the checkout, with a Python 3.12 that has the lock's torch:
#   python -m pip install --no-index --no-deps --target site FOLDER/*.whl
#   PYTHONPATH=site python -m benchmarks.gpu --results .
# Parts whose packages are not there are skipped, and say so.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh
[ $# -eq 1 ] || fail "usage: tools/gpu_wheels.sh FOLDER"
NAMES='aiokafka|annotated-types|async-timeout|cramjam|googleapis-common-protos|megatron-core|msgpack|msgspec|opentelemetry-(api|exporter-http-transport|exporter-otlp-common|exporter-otlp-proto-common|exporter-otlp-proto-http|instrumentation|instrumentation-logging|proto|sdk|semantic-conventions)|pydantic|pydantic-core|pydantic-settings|python-dotenv|typing-inspection'
mapfile -t PINS < <(grep -oE "^($NAMES)==[0-9a-z.]+" requirements/gpu.lock)
PLATFORMS=()
for glibc in 28 27 17; do PLATFORMS+=(--platform "manylinux_2_${glibc}_x86_64"); done
"$(any_python)" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${PLATFORMS[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$1" "${PINS[@]}"
say "$(find "$1" -name '*.whl' | wc -l) wheels, $(du -sh "$1" | cut -f1)"
