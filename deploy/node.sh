#!/usr/bin/env bash
# The part of one node in a mesh on several; deploy/slurm and deploy/skypilot run it on each of theirs.
#
#   node 0                       broker, coordinator, and the task set if the settings name one
#   nodes 1 to $TRAINER_NODES    the trainer's ranks, started by torch's launcher
#   all others                   explorers
#
#   NODES           addresses of all nodes, in order, with blanks between them; each reaches the others there
#   NODE            the number of this one, from 0
#   GPUS            of each node; 0: it computes on CPUs
#   RUN_DIR         a folder for logs, and for the broker's data unless TRINITY_BUS_BROKER__DATA_DIR is set (Kafka wants a
#                   disk or a parallel file system, not NFS)
#   TRAINER_NODES   1 unless set
#   RANKS           on each of them, EXPLORERS on each of the others: one for each GPU unless set
#   BROKER_PORT     9093 unless set; MASTER_PORT, where the launchers of ranks meet: 29500
#
# Settings come from TRINITY_BUS_CONFIG and other variables: the model, and trainer.checkpoint_dir in a shared folder;
# trainer.ranks_key is the same on all nodes. The broker asks nobody for a password, so let only your own nodes reach it.
# If TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS names a cluster of your own, no broker is started.
#
# A service that ends with an error is started again. One that refuses its settings ends its node, with status 78: the
# trainer's are checked before, because torch's launcher ends with 1 whatever a rank ended with.
set -euo pipefail

# shellcheck disable=SC2153  # not a misspelt "nodes"
read -ra nodes <<<"$NODES"
trainers=${TRAINER_NODES:-1}
each=$((GPUS > 0 ? GPUS : 1))
ranks=${RANKS:-$each}
explorers=${EXPLORERS:-$each}
if [ "${#nodes[@]}" -lt $((trainers + 2)) ]; then
  echo "a mesh with $trainers trainer nodes needs $((trainers + 2)) nodes or more: there are ${#nodes[@]}" >&2
  exit 78
fi
mkdir -p "$RUN_DIR/logs"
export TRINITY_BUS_TRAINER__HOST=${nodes[1]} TRINITY_BUS_TRAINER__RANKS_HOST=${nodes[1]}
own_broker=
if [ -z "${TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS:-}" ]; then
  own_broker=${nodes[0]}:${BROKER_PORT:-9093}
  export TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS=$own_broker
fi

# In a shell of its own: SIGTERM reaches the service too, whose end is waited for.
keep() {
  local status=0 stop=
  trap 'stop=1' TERM
  while [ -z "$stop" ]; do
    status=0
    "$@" || status=$?
    case $status in 0 | 78) break ;; esac
    echo "status $status; it is started again"
    sleep 5
  done
  return "$status"
}

services=()
start() {
  keep "${@:2}" >>"$RUN_DIR/logs/$1.log" 2>&1 &
  services+=($!)
}

# What one node's services have in common is this group of processes.
trap 'trap "" TERM; kill -TERM 0; wait' EXIT
trap 'exit 143' TERM INT

if [ "$NODE" = 0 ]; then
  if [ -n "$own_broker" ]; then
    export TRINITY_BUS_BROKER__ADDRESS=$own_broker
    export TRINITY_BUS_BROKER__DATA_DIR=${TRINITY_BUS_BROKER__DATA_DIR:-$RUN_DIR/broker}
    start broker trinity-bus broker run
  fi
  start coordinator trinity-bus run coordinator
  # It may end before the mesh, when all its tasks are answered.
  if trinity-bus config check taskset; then
    keep trinity-bus run taskset >>"$RUN_DIR/logs/taskset.log" 2>&1 &
  fi
elif [ "$NODE" -le "$trainers" ]; then
  WORLD_SIZE=$((trainers * ranks)) LOCAL_WORLD_SIZE=$ranks trinity-bus config check trainer || exit 78
  start "trainer-$NODE" torchrun --nnodes="$trainers" --nproc-per-node="$ranks" --node-rank=$((NODE - 1)) \
    --master-addr="${nodes[1]}" --master-port="${MASTER_PORT:-29500}" --max-restarts=0 -m workers.cli.app run trainer
else
  per=$((GPUS / explorers))
  for ((i = 0; i < explorers; i++)); do
    if [ "$per" -gt 0 ]; then
      devices=$(seq -s, $((i * per)) $((i * per + per - 1)))
      export CUDA_VISIBLE_DEVICES=$devices
    fi
    export TRINITY_BUS_EXPLORER__NAME=explorer-$NODE-$i
    start "explorer-$NODE-$i" trinity-bus run explorer
  done
fi
wait -n "${services[@]}"
