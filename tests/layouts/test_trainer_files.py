"""Files of one save of Hugging Face's and PaddleNLP's Trainers and of Accelerate that stand for each other, or say
that the save has ended, or are one rank's alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from safetensors.torch import save as safetensors_save
from small_files import saved, tensor

from ckpt_tools.api import plan
from ckpt_tools.cli import latest
from ckpt_tools.errors import NoneUsable
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.selection import Selection


def tree(name: str, tmp_path: Path) -> Path:
    return materialise(LAYOUT_TREES / name / "expected.json", tmp_path)


def warned(made: LoadPlan) -> list[tuple[str, str]]:
    return [(f.code, f.message) for f in made.warnings if f.severity is not Severity.NOTE]


def put(path: Path, data: bytes = b"") -> Path:
    """A file as old as the one that is written last."""
    path.write_bytes(data)
    at = (path.parent / "trainer_state.json").stat().st_mtime
    os.utime(path, (at, at))
    return path


# ---- an index without its shards


SHARDS = {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
INDEX = json.dumps({"metadata": {"total_size": 96}, "weight_map": SHARDS}).encode()
NAME = "model.safetensors.index.json"


def test_the_trainer_loads_a_whole_model_before_any_index(tmp_path: Path) -> None:
    root = tree("hf-trainer/epochs", tmp_path)
    home = root / "checkpoint-8"
    (home / "model.safetensors").unlink()
    put(home / "pytorch_model.bin", saved({"w": tensor(8)}))
    stale = put(home / NAME, INDEX)
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 8
    assert str(stale) not in {f.path for f in made.shared}
    ((code, message),) = warned(made)
    assert code == "missing-part" and "pytorch_model.bin" in message
    assert stale.name in {Path(f.path).name for f in made.warnings}


def test_without_a_whole_model_it_is_not_passed_over(tmp_path: Path) -> None:
    root = tree("hf-trainer/epochs", tmp_path)
    (root / "checkpoint-8/model.safetensors").unlink()
    put(root / "checkpoint-8" / NAME, INDEX)
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 6


@pytest.mark.parametrize("whole", ["pytorch_model.bin", "model.safetensors"])
def test_a_whole_model_beside_such_an_index_is_the_checkpoint(whole: str, tmp_path: Path) -> None:
    """from_pretrained may take it before pytorch_model.bin: it is to be removed."""
    home = tmp_path / "model"
    home.mkdir()
    made = safetensors_save if whole.endswith(".safetensors") else saved
    (home / whole).write_bytes(made({"w": tensor(1)}))
    stale = home / NAME
    stale.write_bytes(INDEX)
    chosen = plan(str(home))
    assert chosen.resume.path == str(home / whole)
    ((code, message),) = warned(chosen)
    assert code == "missing-part" and whole in message
    assert len(chosen.warnings) == 1
    stale.unlink()
    assert not warned(plan(str(home)))
    stale.write_bytes(INDEX)
    (home / whole).unlink()
    with pytest.raises(NoneUsable):
        plan(str(home))


# ---- marks


# ---- random numbers


def by_rank(made: LoadPlan) -> list[list[str]]:
    return [[Path(f.path).name for f in r.files] for r in made.by_rank]


@pytest.mark.parametrize(
    ("name", "world", "files", "new"),
    [
        ("accelerate/steps", 2, [["random_states_0.pkl"], []], ((1, 1),)),
        pytest.param("accelerate/steps", 1, [["random_states_0.pkl"]], (), marks=pytest.mark.slow),
        pytest.param(
            "hf-trainer/sharded", 2, [["rng_state_0.pth"], ["rng_state_1.pth"]], (), marks=pytest.mark.slow
        ),
        ("hf-trainer/sharded", 3, [["rng_state_0.pth"], ["rng_state_1.pth"], []], ((2, 2),)),
        pytest.param("hf-trainer/trainer", 1, [["rng_state.pth"]], (), marks=pytest.mark.slow),
        ("hf-trainer/trainer", 2, [[], []], ((0, 1),)),
    ],
)
def test_each_rank_has_its_own_random_numbers(name, world, files, new, tmp_path: Path) -> None:
    root = tree(name, tmp_path)
    made = plan(str(root), Selection(world_size=world))
    assert by_rank(made) == files
    assert not any(f.role == "rng" for f in made.shared)
    assert [f.ranks for f in made.warnings if f.code == "missing-rank"] == ([new] if new else [])
    assert made.resume.path is not None
    assert (
        latest.list_paths(made) == f"{made.resume.path}\n"
    )  # its framework finds the files of a rank by itself


def test_ranks_that_are_not_known_are_not_told_apart(tmp_path: Path) -> None:
    made = plan(str(tree("accelerate/steps", tmp_path)))
    assert not made.by_rank and any(f.role == "rng" for f in made.shared)


def test_random_numbers_that_are_lost_are_told_once(tmp_path: Path) -> None:
    root = tree("hf-trainer/sharded", tmp_path)
    (root / "checkpoint-20/rng_state_1.pth").unlink()
    made = plan(str(root), Selection(world_size=2))
    told = [f for f in made.warnings if "random numbers" in f.message]
    assert [(f.severity, f.ranks) for f in told] == [(Severity.WARNING, ((1, 1),))]
