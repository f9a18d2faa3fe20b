#!/usr/bin/env bash
# Copies what the stack cannot do without - the log, the checkpoints, the model - into one file. The stack is stopped for
# as long as it takes: a checkpoint names a position in the log, so they must be of the same moment.
#
#   ./backup.sh mesh.tar.gz
#   COMPOSE_FILE=compose.yaml:compose.secure.yaml ./backup.sh mesh.tar.gz       # whatever else is on top
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
file=$(realpath -m "$1")
[ ! -e "$file" ] || { echo "$file exists: a backup is never overwritten" >&2; exit 1; }
cd "$(dirname "${BASH_SOURCE[0]}")"
setting() { local value=${!1:-}; echo "${value:-$(sed -n "s/^$1=//p" .env)}"; }
project=${COMPOSE_PROJECT_NAME:-trinity-bus}

docker compose stop
# Under another name until it is whole.
docker run --rm --network none -v "${project}_kafka:/mesh/kafka:ro" -v "${project}_checkpoints:/mesh/checkpoints:ro" \
  -v "${project}_model:/mesh/model:ro" -v "$(dirname "$file"):/backup" "$(setting PYTHON_IMAGE)" \
  sh -c 'tar -czf "/backup/$1.partial" -C /mesh kafka checkpoints model && mv "/backup/$1.partial" "/backup/$1"' \
  sh "$(basename "$file")"
docker compose up --detach --wait
