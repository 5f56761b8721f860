"""What decides which checkpoint is the newest, and that every way to ask gets the same answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from described_layouts import HOUR, START, put, trackers
from fixture_trees import materialise, selection
from places import FIXTURES
from run_helpers import ckpt
from small_files import megatron, saved, tensor

from ckpt_tools.api import latest, plan, scan
from ckpt_tools.errors import UsageError
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection


@pytest.fixture
def contradiction(tmp_path: Path) -> Path:
    """Iteration 10 is newer than 20 by time, and the tracker names 20."""
    for step, at in ((10, 1200), (20, 600)):
        put(
            tmp_path / f"run/iter_{step:07d}/mp_rank_00/model_optim_rng.pt",
            megatron(step, 0, 1, 1, 1),
            START + at,
        )
    put(tmp_path / "run/latest_checkpointed_iteration.txt", b"20", START + 1200)
    return tmp_path / "run"


def asked(root: Path, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
    deciding = {
        "plan": [],
        "latest": [],
        "hook": ["--plan-dir", str(root.parent / "plans")],
        "run": [
            "--plan-dir",
            str(root.parent / "plans"),
            "--",
            sys.executable,
            "-c",
            "import os; print(os.environ['CKPT_STEP'])",
        ],
    }
    return ckpt(command, root, *flags, *deciding[command])


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "latest", "hook", "run"])
def test_a_tracker_against_the_times_is_a_question_in_every_command(
    contradiction: Path, command: str
) -> None:
    done = asked(contradiction, command, "-q")
    # the hook is sourced
    assert (done.returncode, done.stdout) == (2, "(exit 2)\n" if command == "hook" else "")
    said = done.stderr
    for word in (
        "iter_0000010",
        "iter_0000020",
        "2025-10-09 09:13:20 UTC",
        "2025-10-09 09:03:20 UTC",
        "--order mtime",
        "--order step",
    ):
        assert word in said, said
    for order, step in (("mtime", 10), ("step", 20)):
        done = asked(contradiction, command, "--order", order)
        assert done.returncode == 0 and f"{step}" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_tracker_against_the_times_is_a_question_in_the_api(contradiction: Path) -> None:
    for ask in (plan, latest):
        with pytest.raises(UsageError, match="is the newest"):
            ask(str(contradiction))
        assert ask(str(contradiction), Selection(order="mtime")).resume_step == 10
        assert ask(str(contradiction), Selection(order="step")).resume_step == 20
        assert ask(str(contradiction), Selection(resume_from="mtime")).resume_step == 10


@pytest.mark.slow
def test_an_order_in_the_configuration_file_is_an_answer(contradiction: Path) -> None:
    (contradiction.parent / "ckpt.toml").write_text('order = "step"\n')
    done = ckpt("plan", contradiction, "--json", "--config", contradiction.parent / "ckpt.toml")
    assert json.loads(done.stdout)["resume_step"] == 20


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
    for what, (one, other, answer) in PAIRS.items():
        for c, at in ((older, one), (newer, other)):
            for p in c.parts:
                os.utime(p.path, (at, at))
        made, question = answered(
            root, **{**first, "run": older.run, "layout": older.layout, "level": Level.STRUCTURE}
        )
        if made is None:
            assert answer == ASK, (what, question)
            assert "unclear which" in question
        else:
            assert made.checkpoint is not None
            assert (answer, made.checkpoint.path) == ("newer", newer.path), what


# --- names that are dates


DATES = ("2026-11-26_08-53-41.900219", "2026-11-26_08-59-41.919930", "2026-11-26_09-53-42.758858", "2026-11-27_08-53-44.772248")  # fmt: skip
OF_DATES: dict[str, tuple[tuple[int, ...], int | None, str]] = {
    "as saved": ((0, 1, 2, 3), 3, ""),
    "the second was touched": ((0, 9, 2, 3), 1, "mtime-disagrees-with-step"),
    "the oldest was touched": ((9, 1, 2, 3), None, ""),
    "one time": ((0, 0, 0, 0), 3, "mtime-not-kept"),
    "copied backwards": ((3, 2, 1, 0), None, ""),
}
"""Hours after the start at which the saves of those dates were written, as their times say."""


@pytest.mark.parametrize("what", OF_DATES)
def test_dates_in_names_are_as_good_as_steps(what: str, tmp_path: Path) -> None:
    hours, answer, said = OF_DATES[what]
    for n, (date, hour) in enumerate(zip(DATES, hours, strict=True)):
        put(tmp_path / f"checkpoint_{date}/model.pt", saved({"model": {"w": tensor(n)}}), START + hour * HOUR)
    made, question = answered(tmp_path)
    if answer is None:
        assert made is None and "unclear which" in question
        return
    assert made is not None and made.checkpoint is not None, question
    assert made.checkpoint.path.endswith(DATES[answer])
    assert {f.code for f in made.warnings if f.code.startswith("mtime")} == ({said} if said else set())


@pytest.mark.parametrize("hours", [5, -1, 0.5])
def test_a_job_that_moved_to_another_zone_goes_on_where_it_was(hours: float, tmp_path: Path) -> None:
    """Its dates go back, or leap, and its files' times do not."""
    for i, at in enumerate((START, START + 1800, START + 3600, START + 5400)):
        named = datetime.fromtimestamp(at - (hours * HOUR if i > 1 else 0), timezone.utc)
        home = tmp_path / f"save/CKPT+{named:%Y-%m-%d+%H-%M-%S}+00"
        put(home / "CKPT.yaml", f"end-of-epoch: true\nunixtime: {at}.25\n".encode(), at)
        put(home / "model.ckpt", saved({"w": tensor(i)}), at + 2)
    made, question = answered(tmp_path)
    assert made is not None and made.checkpoint is not None, question
    assert made.checkpoint.path == str(home)


# --- copies of the best so far


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fairseq/updates", "timm/epochs", "timm/recovery"])
def test_a_best_that_was_copied_late_makes_its_step_no_newer(name: str, tmp_path: Path) -> None:
    root = materialise(FIXTURES / "layouts" / name / "expected.json", tmp_path)
    before, _ = answered(root)
    assert before is not None and before.checkpoint is not None
    best = [
        c for c in scan(str(root)).checkpoints if c.kind is Kind.BEST and c.order < before.checkpoint.order
    ]
    assert best
    for c in best:
        os.utime(c.path)
        made, question = answered(root)
        assert made is not None and made.checkpoint is not None, question
        assert (made.checkpoint.path, made.warnings) == (before.checkpoint.path, before.warnings)
