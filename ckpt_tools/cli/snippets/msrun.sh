#!/bin/bash
# MindSpore's msrun: ckpt run --worker inside, so that the workers (and the scheduler) of one start share one decision.
#
# Run it on every node with NODE_RANK from 0, WORKER_NUM ranks in all, LOCAL_WORKER_NUM here, MASTER_ADDR = the first node.
# In a pod of MindCluster those come from the operator (MS_WORKER_NUM, MS_LOCAL_WORKER, MS_SCHED_HOST, MS_SCHED_PORT, MS_NODE_RANK).
set -euo pipefail

ROOT=@ROOT@
TRAIN=(python train.py) # reads CKPT_RESUME (1 or 0), CKPT_PATH (this rank's file) and CKPT_EPOCH, CKPT_STEP_IN_EPOCH
export MS_WORKER_NUM="${MS_WORKER_NUM:-${WORKER_NUM:-8}}"
export MS_LOCAL_WORKER="${MS_LOCAL_WORKER:-${LOCAL_WORKER_NUM:-$MS_WORKER_NUM}}" # msrun does not tell its workers, this does
export MS_NODE_RANK="${MS_NODE_RANK:-${NODE_RANK:-0}}"

# PLANS: only you may write there. If a group may, add --trust group; on a volume of mode 0777 add --trust dir="$PLANS".
# More than one node: PLANS is a directory outside ROOT that all of them see, JOB_ID an id of this start of the job and of no other.
shared=()
if [ "$MS_LOCAL_WORKER" -lt "$MS_WORKER_NUM" ]; then
    shared=(--plan-dir "${PLANS:?a directory that all nodes see}" --job "${JOB_ID:?an id of this start}")
fi

# msrun starts "python" before any other word, so ckpt is named with its whole path, which is a script of Python's: as a module
# (python -m) it would be looked for in the working directory first. The first -- keeps msrun from taking --worker for one of its
# own options, which it may abbreviate.
exec msrun --worker_num="$MS_WORKER_NUM" --local_worker_num="$MS_LOCAL_WORKER" --node_rank="$MS_NODE_RANK" \
    --master_addr="${MS_SCHED_HOST:-${MASTER_ADDR:-127.0.0.1}}" --master_port="${MS_SCHED_PORT:-${MASTER_PORT:-8118}}" \
    --log_dir="${LOG_DIR:-msrun_log}" --join=True --cluster_time_out=600 -- \
    "$(command -v ckpt)" run "$ROOT" --worker "${shared[@]}" --allow none -- "${TRAIN[@]}"
