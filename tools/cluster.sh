#!/usr/bin/env bash
# Builds the control plane of Kubernetes from its source into .cache/cluster, for make cluster-test: etcd, API server,
# controllers, scheduler. Needs Go; the Go module proxy gives the sources, and tools/cluster/go.sum says what they must be.
# With the same versions there is nothing to do.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=tools/env.sh
source tools/env.sh

TARGET="$ROOT/.cache/cluster"
if [ -f "$TARGET/made-from" ] && cmp --silent "$TARGET/made-from" tools/cluster/go.sum; then exit 0; fi
command -v go >/dev/null || fail "make cluster-test builds Kubernetes: it needs Go 1.25 or later"
VERSION="$(cd tools/cluster && go list -m -f '{{.Version}}' k8s.io/kubernetes)"
say "Building the control plane of Kubernetes $VERSION into $TARGET: some minutes"
mkdir -p "$TARGET"
rm -f "$TARGET/made-from"
# What it says of itself, which Helm compares with what the chart wants.
FLAGS="-s -w -X k8s.io/component-base/version.gitVersion=$VERSION"
for PROGRAM in go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-{apiserver,controller-manager,scheduler}; do
  NAME="$(basename "$PROGRAM" | sed 's/^v3$/etcd/')"
  (cd tools/cluster && CGO_ENABLED=0 go build -trimpath -ldflags "$FLAGS" -o "$TARGET/$NAME" "$PROGRAM")
done
cp tools/cluster/go.sum "$TARGET/made-from"
