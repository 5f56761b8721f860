"""Files of ranks under names that training loops give: which checkpoint is planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from told_trees import Question, hold, table

GRID = "weights_tp_rank_world_size={}_2_pp_rank_world_size=0_1.pth"
MADE = {
    "runs": (
        "planted",
        ";".join(
            f"{d}/training_state_rank0.pt:optimizer{n} {d}/training_state_rank1.pt:optimizer{n}= {d}/training_state.pt:model{n}="
            for n in (8, 10)
            for d in [f"draft-step{n}"]
        ),
    ),
}
TREES = table(
    """
    planted
        # Flat in one directory; what of the newest is gone loses all of it.
        step_10_rank_0.pt:model100 step_10_rank_1.pt:model101= step_20_rank_0.pt:model200 step_20_rank_1.pt:model201=
            -> loads step_20_rank_0.pt step_20_rank_1.pt
        then rm step_20_rank_1.pt -> loads step_10_rank_0.pt step_10_rank_1.pt
        rank0_step10.pt:model100 rank1_step10.pt:model101= rank0_step20.pt:model200 rank1_step20.pt:model201=
            -> loads rank0_step20.pt rank1_step20.pt
        then rm rank1_step20.pt -> loads rank0_step10.pt rank1_step10.pt
        model_10.rank0.pt:model100 model_10.rank1.pt:model101= model_20.rank0.pt:model200 model_20.rank1.pt:model201=
            -> loads model_20.rank0.pt model_20.rank1.pt
        then rm model_20.rank1.pt -> loads model_10.rank0.pt model_10.rank1.pt
        iter_0000010.rank-0.bin:model100 iter_0000010.rank-1.bin:model101= iter_0000020.rank-0.bin:model200;
            iter_0000020.rank-1.bin:model201= -> loads iter_0000020.rank-0.bin iter_0000020.rank-1.bin
        epoch_1_rank_0.pt:model100 epoch_1_rank_1.pt:model101= epoch_2_rank_0.pt:model200 epoch_2_rank_1.pt:model201=
            -> loads epoch_2_rank_0.pt epoch_2_rank_1.pt
        # A model for all beside the optimizers of ranks.
        model_10.pt:model optim_10_rank0.pt:optimizer10= optim_10_rank1.pt:optimizer10= model_20.pt:model;
            optim_20_rank0.pt:optimizer20= optim_20_rank1.pt:optimizer20=
            -> loads model_20.pt optim_20_rank0.pt optim_20_rank1.pt
        then rm model_20.pt -> loads model_10.pt optim_10_rank0.pt optim_10_rank1.pt
        # Numbers that count as ranks do, from 0 without a gap, in directories of later steps than there are ranks.
        step_10/checkpoint_0.pt:whole10 step_20/checkpoint_0.pt:whole20 -> loads step_20/checkpoint_0.pt
        step_10/checkpoint_0.pt:model100 step_10/checkpoint_1.pt:model101= step_20/checkpoint_0.pt:model200;
            step_20/checkpoint_1.pt:model201= -> loads step_20/checkpoint_0.pt step_20/checkpoint_1.pt
        then rm step_20/checkpoint_1.pt -> step_10 -missing-rank +world-size-inferred
        # Directories of ranks, and files of a grid (Picotron's).
        rank0/step10.pt:model100 rank1/step10.pt:model101= rank0/step20.pt:model200 rank1/step20.pt:model201=
            -> loads rank0/step20.pt rank1/step20.pt
        then rm rank0/step20.pt -> loads rank0/step10.pt rank1/step10.pt
        rank_0/model_epoch_1.pt:model100 rank_0/optim_epoch_1.pt:optimizer1= rank_1/model_epoch_1.pt:model101=;
            rank_1/optim_epoch_1.pt:optimizer1= rank_0/model_epoch_2.pt:model200 rank_0/optim_epoch_2.pt:optimizer2=;
            rank_1/model_epoch_2.pt:model201= rank_1/optim_epoch_2.pt:optimizer2=
                -> loads rank_0/model_epoch_2.pt rank_0/optim_epoch_2.pt rank_1/model_epoch_2.pt rank_1/optim_epoch_2.pt
        then rm rank_0/optim_epoch_2.pt -> epoch 1 -missing-rank +world-size-inferred
    picotron
        as it is -> 20
        rm 20/weights_tp_rank_world_size=0_2_pp_rank_world_size=0_1.pth -> 10 -missing-rank
    # The name of a run may stand before the step, and 10 comes after 8.
    runs slow
        as it is
            -> loads draft-step10/training_state.pt draft-step10/training_state_rank0.pt draft-step10/training_state_rank1.pt
        rm draft-step10/training_state.pt -> draft-step8 -missing-part +world-size-inferred => broken missing-part
    """,
    picotron=(
        "planted",
        " ".join(f"{n}/{GRID.format(r)}:model{n}{r}{'=' * r}" for n in (10, 20) for r in (0, 1)),
    ),
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_each_rank_loads_its_own_of_the_newest_whole_save(
    tree: str, asked: list[Question], tmp_path: Path
) -> None:
    hold(tree, asked, tmp_path)
