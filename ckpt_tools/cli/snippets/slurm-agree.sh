#!/bin/bash
# Slurm: every node saves to a disk of its own. The nodes agree on the newest checkpoint that is sound on all of them.
#
# Submit it:  sbatch this-file. Needs torch on every node (ckpt-tools[torch]), or --meet DIR on a file system that all see, in place of HOST:PORT.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

ROOT=@ROOT@ # on the disk of each node
WORKERS="${WORKERS:-8}" # on each node
TRAIN=(train.py) # {ckpt.args} below are the arguments by which the framework of the checkpoint resumes
RESUME=() # a training loop of your own: RESUME=(--resume-args '--resume {path}'), with the flag that it has

head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
port="$((20000 + SLURM_JOB_ID % 10000))"

srun ckpt run "$ROOT" "${RESUME[@]}" --agree --meet "$head:$((port + 10000))" --timeout 10m --allow none \
    --world-size "$((SLURM_JOB_NUM_NODES * WORKERS))" -- \
    torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$WORKERS" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" "${TRAIN[@]}" '{ckpt.args}'
