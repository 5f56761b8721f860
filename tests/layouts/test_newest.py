"""Names that are dates decide which checkpoint is the newest; copies of the best so far do not."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from described_layouts import HOUR, START
from fixture_trees import overwrite, tree_of
from small_files import adam, saved, tensor
from timed import put
from told_trees import answer

from ckpt_tools.api import plan, scan
from ckpt_tools.guard.prune import Policy, prune
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection

# --- names that are dates


DATES = ("2026-11-26_08-53-41.900219", "2026-11-26_08-59-41.919930", "2026-11-26_09-53-42.758858", "2026-11-27_08-53-44.772248")  # fmt: skip


HOURS = {
    "as saved": ((0, 1, 2, 3), "3"),
    "the second was touched": ((0, 9, 2, 3), "1 +mtime-disagrees-with-step"),
    "the oldest was touched": ((9, 1, 2, 3), "exit 2 order/times-contradict-steps"),
    "one time": ((0, 0, 0, 0), "3 +mtime-not-kept"),
    "copied backwards": ((3, 2, 1, 0), "exit 2 order/times-contradict-steps"),
}
"""After the start, at which the saves of those dates were written, as their times say, and the answer."""


@pytest.mark.parametrize("what", HOURS)
def test_dates_in_names_are_as_good_as_steps(what: str, tmp_path: Path) -> None:
    hours, told = HOURS[what]
    for n, (date, hour) in enumerate(zip(DATES, hours, strict=True)):
        put(tmp_path / f"checkpoint_{date}/model.pt", saved({"model": {"w": tensor(n)}}), START + hour * HOUR)
    said = answer(tmp_path)
    assert re.sub("^checkpoint_(2\\S+)", lambda m: str(DATES.index(m[1])), said) == told


@pytest.mark.parametrize("hours", [5, -1, 0.5])
def test_a_job_that_moved_to_another_zone_goes_on_where_it_was(hours: float, tmp_path: Path) -> None:
    """Its dates go back, or leap, and its files' times do not."""
    for i, at in enumerate((START, START + 1800, START + 3600, START + 5400)):
        named = datetime.fromtimestamp(at - (hours * HOUR if i > 1 else 0), timezone.utc)
        home = tmp_path / f"save/CKPT+{named:%Y-%m-%d+%H-%M-%S}+00"
        put(home / "CKPT.yaml", f"end-of-epoch: true\nunixtime: {at}.25\n".encode(), at)
        put(home / "model.ckpt", saved({"w": tensor(i)}), at + 2)
    assert answer(tmp_path).partition(" ")[0] == os.path.relpath(home, tmp_path)


# --- copies of the best so far


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fairseq/updates", "timm/epochs", "timm/recovery"])
def test_a_best_that_was_copied_late_makes_its_step_no_newer(name: str, tmp_path: Path) -> None:
    root = tree_of(name, tmp_path)
    before = plan(str(root))
    assert before.checkpoint is not None
    saves = [c for c in scan(str(root)).checkpoints if c.order < before.checkpoint.order]
    best = [c.path for c in saves if c.kind is Kind.BEST]
    assert best
    for path in best:
        os.utime(path)
        made = plan(str(root))
        assert (made.checkpoint, made.warnings) == (before.checkpoint, before.warnings)


# --- What a save names as the best of its run: prune keeps it, and plan says when it is gone.


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
