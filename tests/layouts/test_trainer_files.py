"""Files of one save of Hugging Face's and PaddleNLP's Trainers and of Accelerate that stand for each other, or say
that the save has ended, or are one rank's alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixture_trees import tree_of
from told_trees import Question, hold, table

from ckpt_tools.api import plan
from ckpt_tools.cli import latest
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.selection import Selection

SHARDS = {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
INDEX = json.dumps({"metadata": {"total_size": 96}, "weight_map": SHARDS})
NAME = "model.safetensors.index.json"


TREES = table(
    f"""
    hf-trainer/epochs
        # The Trainer loads a whole model before any index: a stale one is to be removed. Without, it is not passed over.
        rm checkpoint-8/model.safetensors; checkpoint-8/pytorch_model.bin:model8=; put checkpoint-8/{NAME} {INDEX}
            -> checkpoint-8 +missing-part
        rm checkpoint-8/model.safetensors; put checkpoint-8/{NAME} {INDEX} -> checkpoint-6 -missing-part
    planted
        # from_pretrained may take it before pytorch_model.bin.
        pytorch_model.bin:model1; put {NAME} {INDEX} -> loads pytorch_model.bin
        then as it is -> pytorch_model.bin +missing-part
        then rm {NAME} -> pytorch_model.bin
        then put {NAME} {INDEX}; rm pytorch_model.bin -> exit 4 choice/none-usable -missing-part
        model.safetensors:tensors1; put {NAME} {INDEX} -> loads model.safetensors
        then as it is -> model.safetensors +missing-part
        then rm {NAME} -> model.safetensors
        then put {NAME} {INDEX}; rm model.safetensors -> exit 4 choice/none-usable -missing-part
    """
)


@pytest.mark.parametrize(("tree", "asked"), TREES)
def test_what_an_index_without_its_shards_stands_for(
    tree: str, asked: list[Question], tmp_path: Path
) -> None:
    hold(tree, asked, tmp_path)


@pytest.mark.parametrize(
    ("name", "world", "files", "new"),
    [
        ("accelerate/steps", 2, [["random_states_0.pkl"], []], ((1, 1),)),
        ("hf-trainer/sharded", 2, [["rng_state_0.pth"], ["rng_state_1.pth"]], ()),
        ("hf-trainer/sharded", 3, [["rng_state_0.pth"], ["rng_state_1.pth"], []], ((2, 2),)),
        ("hf-trainer/trainer", 1, [["rng_state.pth"]], ()),
        ("hf-trainer/trainer", 2, [[], []], ((0, 1),)),
    ],
)
def test_each_rank_has_its_own_random_numbers(name, world, files, new, tmp_path: Path) -> None:
    made = plan(str(tree_of(name, tmp_path)), Selection(world_size=world))
    assert [[Path(f.path).name for f in r.files] for r in made.by_rank] == files
    assert not any(f.role == "rng" for f in made.shared)
    assert [f.ranks for f in made.warnings if f.code == "missing-rank"] == ([new] if new else [])
    # its framework finds the files of a rank by itself
    assert made.resume.path is not None and latest.list_paths(made) == f"{made.resume.path}\n"


def test_ranks_that_are_not_known_are_not_told_apart(tmp_path: Path) -> None:
    made = plan(str(tree_of("accelerate/steps", tmp_path)))
    assert not made.by_rank and any(f.role == "rng" for f in made.shared)


def test_random_numbers_that_are_lost_are_told_once(tmp_path: Path) -> None:
    root = tree_of("hf-trainer/sharded", tmp_path)
    (root / "checkpoint-20/rng_state_1.pth").unlink()
    made = plan(str(root), Selection(world_size=2))
    told = [(f.severity, f.ranks) for f in made.warnings if "random numbers" in f.message]
    assert told == [(Severity.WARNING, ((1, 1),))]
