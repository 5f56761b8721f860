#!/bin/bash
# torchrun with --max-restarts: ckpt run --worker between torchrun and the workers, so that every restart makes a new decision.
#
# Run it on every node with NODE_RANK from 0, NNODES, and MASTER_ADDR = the first node; on one node as it is.
set -euo pipefail

ROOT=@ROOT@
TRAIN=(python train.py) # {ckpt.args} below are the arguments by which the framework of the checkpoint resumes
RESUME=() # a training loop of your own: RESUME=(--resume-args '--resume {path}'), with the flag that it has
WORKERS="${WORKERS:-8}" # on each node

# PLANS: only you may write there. If a group may, add --trust group; on a volume of mode 0777 add --trust dir="$PLANS".
# More than one node: PLANS is a directory outside ROOT that all of them see, JOB_ID the same on every node: by it they find each other
# at every restart, also when torchrun's restart counts differ from node to node.
shared=()
id=()
if [ "${NNODES:-1}" -gt 1 ]; then
    shared=(--plan-dir "${PLANS:?a directory that all nodes see}")
    id=(--rdzv-id="${JOB_ID:?an id of this job}")
fi

# torch 2.13: the store outlives the workers, and init_process_group("gloo") after a restart would look for the previous ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun --nnodes="${NNODES:-1}" --nproc-per-node="$WORKERS" --node-rank="${NODE_RANK:-0}" --max-restarts="${RESTARTS:-3}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" "${id[@]}" \
    --no-python ckpt run "$ROOT" "${RESUME[@]}" --worker "${shared[@]}" --allow none -- "${TRAIN[@]}" '{ckpt.args}'
