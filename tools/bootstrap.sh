#!/usr/bin/env bash
# Makes .venv from a lock file: tools/bootstrap.sh cpu|gpu STAMP. Called by make; safe to run again and to interrupt.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh

DEVICE="${1:-cpu}"
STAMP="${2:-.venv/.trinity-bus-$DEVICE}"
LOCK="requirements/$DEVICE.lock"
[ -f "$LOCK" ] || fail "there is no $LOCK; DEVICE is cpu or gpu"

# What the environment was made from: with the same content there is nothing to do, whatever the files' times say.
inputs() { cat "$LOCK" pyproject.toml tools/bootstrap.sh tools/compile_imports.py tools/env.sh trinity_bus/broker/kafka.lock | cksum; }

if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(inputs)" ] && .venv/bin/python -c '' 2>/dev/null; then
  touch "$STAMP"
  exit 0
fi

is_3_12() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }

# Python 3.12: one that is here, also where a version manager has it switched off; else one that uv downloads.
find_python() {
  local found candidate
  if found="$("$UV" python find --no-project --no-python-downloads 3.12 2>/dev/null)" && is_3_12 "$found"; then
    printf '%s' "$found"
    return
  fi
  for candidate in "$(command -v python3.12 || true)" \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 \
    "$HOME"/.local/share/mise/installs/python/3.12*/bin/python3.12 \
    "$HOME"/.asdf/installs/python/3.12*/bin/python3.12; do
    if [ -n "$candidate" ] && is_3_12 "$candidate"; then
      printf '%s' "$candidate"
      return
    fi
  done
  say "Downloading Python 3.12"
  if "$UV" python install 3.12 >&2 && found="$("$UV" python find --no-project 3.12)"; then
    printf '%s' "$found"
    return
  fi
  return 1
}

began=$SECONDS
find_uv
adopt_pip_settings
if ! { [ -x .venv/bin/python ] && is_3_12 .venv/bin/python; }; then
  PYTHON="$(find_python)" ||
    fail "Python 3.12 is not here and cannot be downloaded. Install it (Debian: apt install python3.12-venv; pyenv: pyenv install 3.12)."
  say "Creating .venv with $("$PYTHON" --version)"
  rm -rf .venv
  "$UV" venv --quiet --no-project --python "$PYTHON" .venv
fi
rm -f .venv/.trinity-bus-*

say "Installing the packages of $LOCK"
# On a terminal uv shows progress bars; in a log it would only list two hundred names.
if [ -t 2 ]; then VERBOSITY=(); else VERBOSITY=(--quiet); fi
"$UV" pip sync "${VERBOSITY[@]}" --python .venv/bin/python --require-hashes "$LOCK"
# Built with the setuptools of the lock file: nothing that is not pinned takes part.
"$UV" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .

say "Compiling what services import"
.venv/bin/python -m tools.compile_imports

say "Preparing the embedded broker"
.venv/bin/trinity-bus broker prepare

if [ "$DEVICE" = gpu ] && ! command -v cc >/dev/null; then
  say "There is no C compiler, and Triton needs one at run time. Debian: apt install gcc libc6-dev"
fi
inputs >"$STAMP"
say "Set up in $((SECONDS - began)) s"
