# Sourced by the scripts here: finds uv (brings it if need be) and hands pip's settings on to it. Sets UV.

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

# Any Python that really runs: a version manager's stand-in may be on PATH without a version behind it.
any_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail "no Python found. Install Python 3 (3.12 if you can choose), then run make again."
}

# uv: the one on PATH if it runs, else one of our own below .cache.
find_uv() {
  local own="$ROOT/.cache/uv" python
  if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
    UV=uv
    return
  fi
  UV="$own/bin/uv"
  if "$UV" --version >/dev/null 2>&1; then return; fi
  python="$(any_python)"
  say "Installing uv into .cache/uv"
  rm -rf "$own"
  # Debian's Python has neither ensurepip nor, at times, pip; any one of the two will do.
  if "$python" -m venv "$own" >/dev/null 2>&1; then
    "$own/bin/python" -m pip install --quiet uv || fail "pip cannot install uv. Is the package index reachable?"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$own"
    "$python" -m pip install --quiet --target "$own" uv || fail "pip cannot install uv. Is the package index reachable?"
  else
    fail "$python has neither venv nor pip. Install one of them (Debian: apt install python3-venv) or uv, then run make again."
  fi
  "$UV" --version >/dev/null || fail "the uv that pip installed into $own does not run"
}

# uv does not read pip's settings. What uv itself is told wins.
pip_setting() {
  local python
  python="$(any_python)"
  "$python" -m pip config get "global.$1" 2>/dev/null || true
}

adopt_pip_settings() {
  local value
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    value="${PIP_INDEX_URL:-$(pip_setting index-url)}"
    if [ -n "$value" ]; then export UV_DEFAULT_INDEX="$value"; fi
  fi
  if [ -z "${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}" ]; then
    value="${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}"
    if [ -n "$value" ]; then export UV_INDEX="${value//$'\n'/ }"; fi
  fi
  if [ -z "${SSL_CERT_FILE:-}" ]; then
    value="${PIP_CERT:-$(pip_setting cert)}"
    if [ -n "$value" ]; then export SSL_CERT_FILE="$value"; fi
  fi
  # The downloader of the broker's jars has a variable of its own for the same file.
  if [ -n "${SSL_CERT_FILE:-}" ]; then export REQUESTS_CA_BUNDLE="${REQUESTS_CA_BUNDLE:-$SSL_CERT_FILE}"; fi
  export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-120}"
}
