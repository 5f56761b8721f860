#!/bin/bash
# MindCluster (AscendJob, PyTorch) with dying gasps: train_start.sh, in which every generation of workers makes a new decision.
#
# In the AscendJob, for the master and every worker:
#   metadata.annotations:  recover-strategy: "dump"          (an annotation in MindCluster 7.3; save when a fault happens)
#   containers[ascend].env:  TTP_PORT "8000",  POD_IP from status.podIP
#   containers[ascend].ports:  8000 ttp-port,  9601 taskd-port
# In the image: taskd, mindio_ttp and ckpt-tools; manager.py, which starts the TaskD manager, lies beside the training script.
# The operator sets MINDX_TASK_ID, RANK (of the pod), WORLD_SIZE, LOCAL_WORLD_SIZE (devices), MASTER_ADDR and MASTER_PORT.
set -euo pipefail

ROOT=@ROOT@
PLANS="${PLANS:-/job/output/ckpt-plans}" # outside ROOT, on a volume of all pods
export CKPT_TRUST="${CKPT_TRUST:-dir=$PLANS}" # everybody in a pod can often write to its volumes: whatever lies there is trusted
LOGS="${LOGS:-/job/code/alllogs/$MINDX_TASK_ID}"
TRAIN=(python pretrain_gpt.py) # of Megatron; of another framework take --load "$ROOT" out below
SAVE_INTERVAL="${SAVE_INTERVAL:-1000}" # the script's own --save-interval: an unusable dying gasp goes back to a multiple of it

mkdir -p "$LOGS/taskd" "$LOGS/ttplogs"
export TTP_LOG_PATH="$LOGS/ttplogs/ttplog-$RANK"
export TTP_ADDR="$MASTER_ADDR"
export HCCL_ASYNC_ERROR_HANDLING=0 # its watchdog would end processes that MindIO wants to save from
export TASKD_PROCESS_ENABLE=on
if [ "$RANK" -eq 0 ]; then
    # If no restart can help, end the job here with ckpt's exit code, before it is tried 32767 times.
    ckpt plan "$ROOT" --allow none --save-interval "$SAVE_INTERVAL" --quiet >/dev/null || exit $?
    export TTP_ADDR="$POD_IP" MASTER_ADDR="$POD_IP"
    python manager.py 2>>"$LOGS/taskd/error.log" &
fi

# --load "$ROOT" is always there, because MindCluster recovers processes only with it; {ckpt.args} after it overrides it.
# By --rdzv-id the pods find each other at every restart, also when their restart counts differ after a fault.
exec torchrun --nnodes="$((WORLD_SIZE / LOCAL_WORLD_SIZE))" --nproc_per_node="$LOCAL_WORLD_SIZE" --node_rank="$RANK" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" --max_restarts=32767 --rdzv-id="$MINDX_TASK_ID" \
    --no-python ckpt run "$ROOT" --worker --plan-dir "$PLANS" --allow none --save-interval "$SAVE_INTERVAL" -- \
    "${TRAIN[@]}" --save "$ROOT" --save-interval "$SAVE_INTERVAL" --load "$ROOT" '{ckpt.args}'
