"""What decides which checkpoint is the newest, and that every way to ask gets the same answer."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from described_layouts import HOUR, START, put, trackers
from fixture_trees import selection, tree_of
from places import FIXTURES
from small_files import saved, tensor
from told_trees import answer

from ckpt_tools.api import plan, scan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level

ASK = "a question"
AHEAD = 60 * 24 * 365 * 20
"""Minutes after START: long after this test runs."""


def answered(root: Path, **asked: Any) -> tuple[LoadPlan | None, str]:
    """The plan, or the question which checkpoint is the newest, with its hint."""
    try:
        return plan(str(root), selection(asked)), ""
    except UsageError as e:
        return None, f"{e}; {e.hint}"


# --- the same in every layout, on the trees that its framework wrote


class Pair(NamedTuple):
    """When the older and the newer of two checkpoints were written, and which is the answer."""

    older: float
    newer: float
    answer: str


PAIRS = {
    "in step": Pair(START, START + HOUR, "newer"),
    "all equal": Pair(START, START, "newer"),
    "at the epoch": Pair(2, 1, "newer"),
    "the other way round": Pair(START + HOUR, START, ASK),
    "the older in the future": Pair(START + AHEAD * 60, START, "newer"),
}
LAYOUTS_OF_TWO = {
    "accelerate/auto", "dcp/four", "dcp/two", "deepspeed-universal/converted", "deepspeed/pipeline", "deepspeed/zero1", "deepspeed/zero2", "deepspeed/zero3",
    "hf-trainer/fsdp", "hf-trainer/sharded", "hf-trainer/trainer", "keras/callback", "lightning/callback", "megatron-core/mcore", "megatron/distopt", "megatron/pp",
    "megatron/tp", "orbax/ocdbt", "orbax/zarr", "tensorflow/manager", "tensorflow/sharded", "dlrover/flash", "nvrx-local/three", "mindspore/flat",
}  # fmt: skip


@pytest.mark.share(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LAYOUTS_OF_TWO))
def test_two_checkpoints_of_every_layout(name: str, tmp_path: Path) -> None:
    root = shutil.copytree(FIXTURES / "layouts" / name / "tree", tmp_path / "tree")
    first = json.loads((FIXTURES / "layouts" / name / "expected.json").read_text())["plans"][0]["options"]
    for tracker in trackers(root):
        tracker.unlink()
    found = [c for c in scan(str(root)).checkpoints if not c.unfinished]
    older, newer = sorted([c for c in found if c.run == found[0].run], key=lambda c: c.order)[-2:]
    for c in found:
        if c is not older and c is not newer:
            for p in c.parts:
                os.unlink(p.path)
    for what, (one, other, wanted) in PAIRS.items():
        for c, at in ((older, one), (newer, other)):
            for p in c.parts:
                os.utime(p.path, (at, at))
        made, question = answered(
            root, **{**first, "run": older.run, "layout": older.layout, "level": Level.STRUCTURE}
        )
        if made is None:
            assert wanted == ASK, (what, question)
            assert "unclear which" in question
        else:
            assert made.checkpoint is not None
            assert (wanted, made.checkpoint.path) == ("newer", newer.path), what


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
