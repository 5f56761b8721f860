#!/bin/bash
# Slurm: one task per rank. Decide once in the batch script; the TaskProlog only reads the decision.
#
# Submit it:  sbatch this-file. ROOT and this directory are on a file system that every node sees.
# A requeued job runs this script again, and so makes a new decision.
# Never put ckpt into slurm.conf's Prolog: that runs as root on every node, a failure there drains the node and holds the job.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

ROOT=@ROOT@
TRAIN=(python train.py) # reads CKPT_RESUME (1 or 0), CKPT_PATH and CKPT_STEP

# --by-rank: ranks with files of their own learn of these in the TaskProlog alone.
# An assignment keeps ckpt's exit code: eval "$(ckpt …)" alone would go on when ckpt is missing (127) or killed (137).
decision="$(ckpt hook "$ROOT" --by-rank --allow none)" || exit $?
eval "$decision"

# In every task, as the user: CKPT_PATH of this rank, and a check that its files are still those that were chosen.
mkdir -p .ckpt
prolog="$PWD/.ckpt/task-prolog-$SLURM_JOB_ID.sh"
printf '#!/bin/bash\nexec %q hook --read --format slurm\n' "$(command -v ckpt)" >"$prolog"
chmod +x "$prolog"

# A task that is not started must not leave the others waiting for it.
srun --kill-on-bad-exit=1 --task-prolog="$prolog" "${TRAIN[@]}"
