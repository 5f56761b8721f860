#!/bin/bash
# mpirun or mpiexec (Open MPI, MPICH, Intel MPI): ckpt run --worker in every rank; the first one decides, the others read.
#
# PLANS: only you may write there. If a group may, add --trust group; on a volume of mode 0777 add --trust dir="$PLANS".
# mpirun does not tell its ranks how many nodes there are: on more than one, PLANS is a directory outside ROOT that all see.
set -euo pipefail

ROOT=@ROOT@
TRAIN=(python train.py) # {ckpt.args} below are the arguments by which the framework of the checkpoint resumes
RESUME=() # a training loop of your own: RESUME=(--resume-args '--resume {path}'), with the flag that it has
PLANS="${PLANS:-$HOME/ckpt-plans}"

exec mpirun -n "${RANKS:-8}" ckpt run "$ROOT" "${RESUME[@]}" --worker --plan-dir "$PLANS" --allow none -- "${TRAIN[@]}" '{ckpt.args}'
