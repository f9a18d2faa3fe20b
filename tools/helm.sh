#!/usr/bin/env bash
# Builds Helm from its source into .cache/helm, for make chart-test. Needs Go; the Go module proxy gives the source, and
# the checksum database says that it is what everybody gets. With the same version there is nothing to do.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh

VERSION=v3.21.4
TARGET=".cache/helm"
if [ -x "$TARGET/helm" ] && [ "$(cat "$TARGET/version" 2>/dev/null)" = "$VERSION" ]; then exit 0; fi
command -v go >/dev/null || fail "make chart-test builds Helm: it needs Go 1.25 or later"
say "Building Helm $VERSION into $TARGET"
mkdir -p "$TARGET"
GOBIN="$ROOT/$TARGET" CGO_ENABLED=0 go install "helm.sh/helm/v3/cmd/helm@$VERSION"
echo "$VERSION" >"$TARGET/version"
