#!/bin/bash
# torchrun without restarts: ckpt run decides, then becomes torchrun. Whoever restarts the job runs this again.
#
# Run it on every node with NODE_RANK from 0, NNODES, and MASTER_ADDR = the first node; on one node as it is.
set -euo pipefail

ROOT=@ROOT@
TRAIN=(train.py) # {ckpt.args} below are the arguments by which the framework of the checkpoint resumes
RESUME=() # a training loop of your own: RESUME=(--resume-args '--resume {path}'), with the flag that it has
WORKERS="${WORKERS:-8}" # on each node

# PLANS: only you may write there. If a group may, add --trust group; on a volume of mode 0777 add --trust dir="$PLANS".
# More than one node: PLANS is a directory outside ROOT that all of them see, JOB_ID an id of this start of the job and of no other.
shared=()
if [ "${NNODES:-1}" -gt 1 ]; then shared=(--plan-dir "${PLANS:?a directory that all nodes see}" --job "${JOB_ID:?an id of this start}"); fi

exec ckpt run "$ROOT" "${RESUME[@]}" "${shared[@]}" --allow none -- \
    torchrun --nnodes="${NNODES:-1}" --nproc-per-node="$WORKERS" --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" "${TRAIN[@]}" '{ckpt.args}'
