#!/bin/bash
# Slurm: one torchrun per node, which restarts its workers in place. Every generation of workers makes one new decision for all nodes.
#
# Submit it:  sbatch this-file. ROOT and PLANS are on a file system that every node sees.
# PLANS: only you may write there. If a group may, add --trust group; on a volume of mode 0777 add --trust dir="$PLANS".
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

ROOT=@ROOT@
PLANS="$HOME/ckpt-plans" # outside ROOT
WORKERS="${WORKERS:-8}"  # on each node
TRAIN=(python train.py)  # {ckpt.args} below are the arguments by which the framework of the checkpoint resumes
RESUME=() # a training loop of your own: RESUME=(--resume-args '--resume {path}'), with the flag that it has

head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
port="$((20000 + SLURM_JOB_ID % 10000))"

# torch 2.13: the store outlives the workers, and init_process_group("gloo") after a restart would look for the previous ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# --rdzv-id names the job for torchrun and for ckpt: by it the nodes find each other, also when their restart counts differ.
srun torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$WORKERS" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
    --no-python ckpt run "$ROOT" "${RESUME[@]}" --worker --plan-dir "$PLANS" --allow none -- "${TRAIN[@]}" '{ckpt.args}'
