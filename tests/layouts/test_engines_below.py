"""What DeepSpeed saves below a checkpoint of another framework: each file is needed, whatever model lies beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fixture_trees import tree_of
from places import LAYOUT_TREES
from small_files import deepspeed_model, deepspeed_zero, trainer
from told_trees import SETS, Question, change, hold, plant, table, verified

from ckpt_tools.api import plan
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.selection import Selection

STATE = (
    b"\x80\x02cpaddleformers.trainer.trainer_callback\nTrainerState\n)\x81}X\x0b\x00\x00\x00global_stepK%csb."
)


def engine(step: int) -> Mapping[str, bytes]:
    name = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    zero = {name.format(rank): deepspeed_zero(step, 2, rank) for rank in range(2)}
    return {"mp_rank_00_model_states.pt": deepspeed_model(step, 2, 1, 0), **zero}


def below_trainer(step: int) -> Mapping[str, bytes]:
    files = {f"global_step{step}/{name}": data for name, data in engine(step).items()}
    files |= {name: data for name, data in trainer(step).items() if name != "optimizer.pt"}
    return {**files, "latest": f"global_step{step}".encode()}


def paddle(step: int) -> Mapping[str, bytes]:
    """PaddleFormers with flex_checkpoint: each part was a run, of which ``--run`` planned one alone."""
    save = LAYOUT_TREES / f"paddle-dist/steps/tree/step_{step}"
    parts = ("model_state", "optimizer_state", "master_weight")
    files = {f"{part}/{path.name}": path.read_bytes() for part in parts for path in save.iterdir()}
    return {**files, "trainer_state.bin": STATE % bytes([step])}


SETS.update(engine=engine, enginebelow=below_trainer, paddle=paddle)
MADE = {
    "trainer": ("planted", "checkpoint-10/:enginebelow checkpoint-20/:enginebelow"),
    "fsdp": (
        "planted",
        ";".join(
            f"checkpoint-{n}/:enginebelow checkpoint-{n}/pytorch_model_fsdp.bin:model{n}=" for n in (10, 20)
        ),
    ),
    "paddle": ("planted", "checkpoint-10/:paddle checkpoint-20/:paddle"),
}
TREES = table(
    """
    trainer slow
        as it is -> checkpoint-20 +missing-rank
        rm checkpoint-20/global_step20/mp_rank_00_model_states.pt -> checkpoint-10 -missing-part +missing-rank
        rm checkpoint-20/global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt
            -> checkpoint-10 -missing-rank +missing-rank
        cut checkpoint-20/global_step20/{mp_rank_00_model_states,zero_pp_rank_1_mp_rank_00_optim_states}.pt
            -> checkpoint-10 -missing-rank -truncated +missing-rank
    fsdp slow
        # A model for everybody does not replace what the Trainer asks for: the note by which the engine finds its
        # files, and with FSDP the model that is not sharded.
        as it is -> checkpoint-20 +missing-rank
        rm checkpoint-20/{latest,pytorch_model_fsdp.bin} -> checkpoint-10 -missing-part +missing-rank
    planted slow
        # A lone one, at the size that saved it, and at any other.
        checkpoint-10/:enginebelow -> checkpoint-10 +missing-rank
        checkpoint-10/:enginebelow | world_size=2 -> checkpoint-10 +missing-rank
        checkpoint-10/:enginebelow | world_size=1 -> exit 2 save/topology-mismatch
        checkpoint-10/:enginebelow; rm checkpoint-10/global_step10/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=1 -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=2 -> exit 4 choice/none-usable -missing-part
        checkpoint-10/:enginebelow; rm checkpoint-10/global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt
            -> exit 4 choice/none-usable -missing-rank => broken missing-rank
        epoch=0-step=10.ckpt/checkpoint/:engine10 -> epoch=0-step=10.ckpt
        epoch=0-step=10.ckpt/checkpoint/:engine10 | world_size=1 -> exit 2 save/topology-mismatch
        epoch=0-step=10.ckpt/checkpoint/:engine10;
            rm epoch=0-step=10.ckpt/checkpoint/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=1 -> exit 4 choice/none-usable -missing-part
        then as it is | world_size=2 -> exit 4 choice/none-usable -missing-part
        step_10/pytorch_model/:engine10 -> step_10/pytorch_model
        step_10/pytorch_model/:engine10; rm step_10/pytorch_model/mp_rank_00_model_states.pt
            -> exit 4 choice/none-usable -missing-part
    paddle slow
        as it is -> checkpoint-20
        rm checkpoint-20/{model_state/0.metadata,optimizer_state/1_0.distcp,master_weight}
            -> checkpoint-10 -missing-part
    """,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_each_file_of_an_engine_is_needed(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.parametrize("case", ["lightning/engine", "lightning/fabric", "accelerate/deepspeed"])
def test_a_shard_that_a_lone_engine_has_lost_is_seen(case: str, tmp_path: Path) -> None:
    """No other save tells of it: its model does."""
    root = tree_of(case, tmp_path)
    lost = max(root.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    change(root, f"only {lost.parent.parent.relative_to(root)}")
    lost.unlink()
    assert "missing-rank" in verified(root)


@pytest.mark.parametrize("home", ["global_step20/:engine", "checkpoint-20/:enginebelow"])
def test_a_node_may_have_the_files_of_its_own_ranks_alone(home: str, tmp_path: Path) -> None:
    """Nodes with disks of their own: what one lacks, another one has."""
    plant(tmp_path, home)
    (lost,) = tmp_path.rglob("zero_pp_rank_1*")
    lost.unlink()
    made = plan(str(tmp_path), Selection(ranks=[0], world_size=2))
    assert made.checkpoint is not None and {rank.rank for rank in made.by_rank} == {0}
    for ranks in ([1], None):
        with pytest.raises(NoneUsable):
            plan(str(tmp_path), Selection(ranks=ranks, world_size=2))
