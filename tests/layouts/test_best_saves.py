"""What a save names as the best of its run: prune keeps it, and plan says when it is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fixture_trees import overwrite, tree_of
from small_files import adam, saved, tensor
from timed import put
from told_trees import answer

from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.model.selection import Selection

LAST = Policy(keep_last=1)
NOW = Selection(settle=0)
ELSEWHERE = "/scratch/old-machine/run"


def trainers(tmp_path: Path, where: str) -> Path:
    root = tree_of("hf-trainer/epochs", tmp_path)
    told = json.loads((root / "checkpoint-8/trainer_state.json").read_text())
    told["best_model_checkpoint"] = f"{where or root}/checkpoint-2"
    data = json.dumps(told, indent=2, sort_keys=True).encode() + b"\n"
    overwrite(root / "checkpoint-8/trainer_state.json", data, 0)
    return root


def lightnings(tmp_path: Path, where: str) -> Path:
    """Epoch 0 was the best; another callback keeps the last."""
    root = tmp_path / "checkpoints"
    best = f"{where or root}/epoch=0-step=10.ckpt"
    callbacks = {None: "", "val_loss": best}
    for epoch, step in ((0, 10), (1, 20), (2, 30)):
        told = {"epoch": epoch, "global_step": step, "pytorch-lightning_version": "2.6.6"}
        rest = {
            f"ModelCheckpoint{{'monitor': {of!r}}}": {"best_model_path": path}
            for of, path in callbacks.items()
        }
        state = {
            **told,
            "state_dict": {"w": tensor(step)},
            "optimizer_states": [adam(step)],
            "callbacks": rest,
        }
        put(root / f"epoch={epoch}-step={step}.ckpt", saved(state))
    return root


@pytest.mark.parametrize("where", [pytest.param("", marks=pytest.mark.slow), ELSEWHERE])
@pytest.mark.parametrize(("make", "step"), [(trainers, 2), (lightnings, 10)])
def test_the_best_that_a_kept_save_names_stays(make, step: int, where: str, tmp_path: Path) -> None:
    root = make(tmp_path, where)
    rows = {c.path: c for c in prune(str(root), LAST, selection=NOW).changes}
    stays = [c for c in rows.values() if c.state == "stays"]
    assert len(stays) == 2 and len(rows) > 2
    (best,) = (c for c in stays if "best" in c.why)
    assert best.label == f"step {step}" or f"step {step}" in best.label


@pytest.mark.slow
def test_of_two_runs_the_one_whose_directory_is_named_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "runs").mkdir(exist_ok=True)
        shutil.move(trainers(tmp_path / name, f"/old/{name}"), tmp_path / "runs" / name)
    state = tmp_path / "runs/b/checkpoint-8/trainer_state.json"
    state.write_text(state.read_text().replace("/old/b/checkpoint-2", "/old/b/checkpoint-4"))
    changes = prune(str(tmp_path / "runs"), LAST, selection=NOW).changes
    kept = {c.path.partition("/runs/")[2] for c in changes if "best" in c.why}
    assert kept == {"a/checkpoint-2", "b/checkpoint-4"}


def test_a_best_that_is_gone_or_at_a_path_of_another_machine_is_a_note(tmp_path: Path) -> None:
    root = trainers(tmp_path, "")
    assert answer(root) == "checkpoint-8"
    shutil.rmtree(root / "checkpoint-2")
    assert answer(root) == answer(trainers(tmp_path / "other", ELSEWHERE)) == "checkpoint-8 ~dangling-tracker"
