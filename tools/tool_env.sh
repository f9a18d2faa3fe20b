#!/usr/bin/env bash
# Makes an environment for tools that are none of the mesh's business: tools/tool_env.sh NAME, from requirements/NAME.lock,
# in .cache/NAME. With the same lock there is nothing to do.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh

NAME="$1"
LOCK="requirements/$NAME.lock"
TARGET=".cache/$NAME"
[ -f "$LOCK" ] || fail "there is no $LOCK"
if [ -f "$TARGET/made-from" ] && cmp --silent "$TARGET/made-from" "$LOCK" && "$TARGET/bin/python" -c '' 2>/dev/null; then
  exit 0
fi
find_uv
adopt_pip_settings
say "Installing the packages of $LOCK into $TARGET"
rm -rf "$TARGET"
"$UV" venv --quiet --no-project --python .venv/bin/python "$TARGET"
"$UV" pip sync --quiet --python "$TARGET/bin/python" --require-hashes "$LOCK"
# What services run with has the project in it, too: vLLM finds its plugin by the entry point.
if [ "$NAME" = gpu ]; then
  "$UV" pip install --quiet --python "$TARGET/bin/python" --no-deps --no-build-isolation --editable .
fi
cp "$LOCK" "$TARGET/made-from"
