#!/usr/bin/env bash
# Forgets the log, the checkpoints and the model of the stack, and brings back those of a backup, however old it is.
#
#   ./restore.sh mesh.tar.gz
#   COMPOSE_FILE=compose.yaml:compose.secure.yaml ./restore.sh mesh.tar.gz      # whatever else is on top
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
file=$(realpath "$1")
# Before anything is forgotten: it is a backup, whole, and of all three.
listing=$(tar -tzf "$file")
for part in kafka checkpoints model; do
  grep -q "^$part/" <<< "$listing" || { echo "$file is no backup of the stack: it has no $part/" >&2; exit 1; }
done
cd "$(dirname "${BASH_SOURCE[0]}")"
setting() { local value=${!1:-}; echo "${value:-$(sed -n "s/^$1=//p" .env)}"; }
project=${COMPOSE_PROJECT_NAME:-trinity-bus}

docker compose down --volumes
# Makes empty volumes.
docker compose up --no-start
docker run --rm --network none -v "${project}_kafka:/mesh/kafka" -v "${project}_checkpoints:/mesh/checkpoints" \
  -v "${project}_model:/mesh/model" -v "$(dirname "$file"):/backup:ro" "$(setting PYTHON_IMAGE)" \
  tar -xzf "/backup/$(basename "$file")" -C /mesh
docker compose up --detach --wait
