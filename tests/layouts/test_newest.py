"""What decides which checkpoint is the newest, and that every way to ask gets the same answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from described import LAYOUTS
from described_layouts import HOUR, MINUTE, START, STEPS, described_tree, put, trackers
from fixture_trees import materialise, selection
from oracle import Save
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
        with pytest.raises(UsageError, match="in doubt"):
            ask(str(contradiction))
        assert ask(str(contradiction), Selection(order="mtime")).resume_step == 10
        assert ask(str(contradiction), Selection(order="step")).resume_step == 20
        assert ask(str(contradiction), Selection(resume_from="mtime")).resume_step == 10


@pytest.mark.slow
def test_an_order_in_the_configuration_file_is_an_answer(contradiction: Path) -> None:
    (contradiction.parent / "ckpt.toml").write_text('order = "step"\n')
    done = ckpt("plan", contradiction, "--json", "--config", contradiction.parent / "ckpt.toml")
    assert json.loads(done.stdout)["resume_step"] == 20


# --- the table of docs/design.md, section 5

TRACKED = {
    "megatron": "latest_checkpointed_iteration.txt",
    "ascend": "latest_checkpointed_iteration.txt",
    "deepspeed": "latest",
}
ASK = "a question"


class Case(NamedTuple):
    """Minutes of the four saves, which of them the tracker names, and the answer: the place of the chosen
    one, or a question.
    """

    minutes: tuple[float, float, float, float]
    answer: int | str
    warning: str = ""
    tracked: int | None = None
    start: float = START
    copied: bool = False


AHEAD = 60 * 24 * 365 * 20
"""Minutes after START: long after this test runs."""
CASES = {
    "in step": Case((0, 10, 20, 30), 3),
    "all equal": Case((5, 5, 5, 5), 3, "mtime-not-kept"),
    "at the epoch": Case((3, 2, 1, 0), 3, "mtime-not-kept", start=0),
    "some at the epoch": Case((0, 10, 20, -START / 60), ASK),
    "reversed": Case((30, 20, 10, 0), ASK),
    "reversed, the tracker names the highest step": Case(
        (30, 20, 10, 0), 3, "mtime-disagrees-with-step", tracked=3
    ),
    "reversed, the tracker names the newest": Case(
        (30, 20, 10, 0), 0, "mtime-disagrees-with-step", tracked=0
    ),
    "in the order of the names": Case((20, 30, 0, 10), ASK, copied=True),
    "in the order of the names, at any pace": Case((20, 90, 0, 10), ASK, copied=True),
    "in the order of the names, and tracked": Case(
        (20, 30, 0, 10), 3, "mtime-disagrees-with-step", tracked=3, copied=True
    ),
    "a lower step in the future": Case((AHEAD, 10, 20, 30), ASK, "mtime-in-future"),
    "a lower step in the future, and tracked": Case((AHEAD, 10, 20, 30), 3, "mtime-in-future", tracked=3),
    "the highest step in the future": Case((0, 10, 20, AHEAD), 3, "mtime-in-future"),
    "a rollback": Case((0, 10, 40, 30), 2, "mtime-disagrees-with-step"),
    "a rollback after a night": Case((0, 10, 600, 30), 2, "mtime-disagrees-with-step"),
    "a rollback, tracked": Case((0, 10, 40, 30), 2, "mtime-disagrees-with-step", tracked=2),
    "a rollback that the tracker contradicts": Case((0, 10, 40, 30), ASK, tracked=3),
    "a rollback that went back twice": Case((0, 70, 50, 30), 1, "mtime-disagrees-with-step"),
    "saved again faster than training": Case((0, 10, 32, 30), ASK),
    "copied in any order": Case((0, 0.001, 0.003, 0.002), ASK),
    "copied in any order, and tracked": Case(
        (0, 0.001, 0.003, 0.002), 3, "mtime-disagrees-with-step", tracked=3
    ),
    "the oldest was touched": Case((50, 10, 20, 30), ASK),
    "the oldest was touched, another is tracked": Case((50, 10, 20, 30), ASK, tracked=3),
}


def dated(saves: Sequence[Save], root: Path, case: Case) -> None:
    for s, minutes in zip(saves, case.minutes, strict=True):
        for f in s.files:
            os.utime(root / f.path, (case.start + minutes * 60,) * 2)


@pytest.mark.share(4)
@pytest.mark.slow
# these have no steps, or tell them in two ways
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("sample", "mindio")])
def test_what_the_times_decide(layout: str, tmp_path: Path) -> None:
    saves = described_tree(layout, tmp_path)
    padded = layout in ("megatron", "ascend")
    for name, case in CASES.items():
        if (case.copied and padded) or (case.tracked is not None and layout not in TRACKED):
            continue
        dated(saves, tmp_path, case)
        if layout in TRACKED:
            said = (
                ""
                if case.tracked is None
                else f"{'global_step' if layout == 'deepspeed' else ''}{STEPS[case.tracked]}"
            )
            (tmp_path / TRACKED[layout]).write_text(said)
        made, question = answered(tmp_path, level=Level.STRUCTURE)
        if made is not None:
            assert case.answer != ASK, name
            assert told(made) == STEPS[int(case.answer)], name
            assert not case.warning or case.warning in {f.code for f in made.warnings}, name
            continue
        assert case.answer == ASK, (name, question)
        last = max(range(4), key=case.minutes.__getitem__)
        for order, answer in (("mtime", last), ("step", 3)):
            assert (
                f"--order {order} to resume from {'epoch 1 ' if layout == 'mindspore' else ''}step"
                f" {STEPS[answer]}" in question
            ), name
            assert told(plan(str(tmp_path), Selection(level=Level.STRUCTURE, order=order))) == STEPS[answer]


def answered(root: Path, **asked: Any) -> tuple[LoadPlan | None, str]:
    """The plan, or the question which checkpoint is the newest, with its hint."""
    try:
        return plan(str(root), selection(asked)), ""
    except UsageError as e:
        return None, f"{e}; {e.hint}"


def told(made: LoadPlan) -> int | None:
    assert made.checkpoint is not None
    return made.checkpoint.step if made.checkpoint.step is not None else made.checkpoint.step_in_epoch


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
    "the older in the future": Pair(START + AHEAD * 60, START, ASK),
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
            assert "in doubt" in question
        else:
            assert made.checkpoint is not None
            assert (answer, made.checkpoint.path) == ("newer", newer.path), what


# --- the log of earlier starts


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    """Four saves of which the second was touched last; there is no tracker."""
    root = tmp_path / "run"
    dated(described_tree("megatron", root), root, Case((0, 31, 20, 30), ASK))
    return root


@pytest.mark.slow
def test_an_answer_is_remembered(doubtful: Path) -> None:
    """What a start resumed from, and what it passed over, tells later ones which line is alive; without the
    log it stays a question.
    """
    state = str(doubtful.parent / "plans")
    assert asked(doubtful, "run").returncode == 2
    done = asked(doubtful, "run", "--order", "mtime")
    assert (done.returncode, done.stdout) == (0, "90\n")
    made, _ = answered(doubtful, plan_dir=state)
    assert made is not None
    assert made.resume_step == 90
    assert answered(doubtful, plan_dir=str(doubtful.parent / "others"))[0] is None
    put(
        doubtful / "iter_0000095/mp_rank_00/model_optim_rng.pt", megatron(95, 0, 1, 1, 1), START + 32 * MINUTE
    )
    made, _ = answered(doubtful, plan_dir=state)
    assert made is not None
    assert made.resume_step == 95  # saved since
    for path in doubtful.glob("iter_0000110/*/*"):  # saved again since, so nobody has passed it over
        os.utime(path, (START + 29 * MINUTE,) * 2)
    assert answered(doubtful, plan_dir=state)[0] is None


@pytest.mark.slow
def test_an_earlier_start_from_the_highest_step_does_not_outvote_the_times(doubtful: Path) -> None:
    assert asked(doubtful, "run", "--order", "step").stdout == "110\n"
    made, question = answered(doubtful, plan_dir=str(doubtful.parent / "plans"))
    assert made is None
    assert "the log of earlier starts" in question


# --- names that are dates


DATES = ("2026-11-26_08-53-41.900219", "2026-11-26_08-59-41.919930", "2026-11-26_09-53-42.758858", "2026-11-27_08-53-44.772248")  # fmt: skip
OF_DATES = {
    "as saved": (0, 1, 2, 3),
    "touched": (0, 9, 2, 3),
    "restored": (0, 1, 2, -9),
    "one time": (0, 0, 0, 0),
    "copied backwards": (3, 2, 1, 0),
}
"""Hours after the start at which the saves of those dates were written, as their times say."""


@pytest.mark.slow
@pytest.mark.parametrize("names", [("model.pt",), ("rank_0.pt", "rank_1.pt")])
@pytest.mark.parametrize("counted", [False, True])
def test_of_dated_saves_the_newest_is_that_of_the_latest_date(
    names: Sequence[str], counted: bool, tmp_path: Path
) -> None:
    for epoch, date in enumerate(DATES):
        state = {"model": {"w": tensor(epoch)}, **({"epoch": epoch} if counted else {})}
        for name in names:
            put(tmp_path / f"checkpoint_{date}" / name, saved(state), START)
    for what, hours in OF_DATES.items():
        for date, hour in zip(DATES, hours, strict=True):
            for path in (tmp_path / f"checkpoint_{date}").iterdir():
                os.utime(path, (START + hour * HOUR,) * 2)
        made, question = answered(tmp_path)
        assert made is not None and made.checkpoint is not None, (what, question)
        assert made.checkpoint.path.endswith(DATES[-1]), what
        told = {"touched", "restored", "copied backwards"}
        assert ("mtime-disagrees-with-step" in {f.code for f in made.warnings}) is (what in told), what


@pytest.mark.parametrize("away", [24 * HOUR + 37 * 60, 40 * HOUR])
@pytest.mark.parametrize("saves", [2, 4])
def test_a_touch_is_no_other_zone(saves: int, away: int, tmp_path: Path) -> None:
    """Not a whole quarter of an hour, or further than two zones are apart."""
    for i, date in enumerate(dates := DATES[-saves:]):
        at = datetime.strptime(f"{date} +0000", "%Y-%m-%d_%H-%M-%S.%f %z").timestamp()
        path = tmp_path / f"checkpoint_{date}/model.pt"
        put(path, saved({"w": tensor(i)}), int(at) + (0 if i else away))
    made, question = answered(tmp_path)
    assert made is not None and made.checkpoint is not None, question
    assert made.checkpoint.path.endswith(dates[-1])
    assert "mtime-disagrees-with-step" in {f.code for f in made.warnings}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elements/kept", "elements/counted", "ray/train-v2"])
def test_real_saves_whose_names_are_dates_may_be_touched(name: str, tmp_path: Path) -> None:
    """Whether or not anything stands between the numbers of a date."""
    root = materialise(FIXTURES / "layouts" / name / "expected.json", tmp_path)
    before, _ = answered(root)
    assert before is not None and before.checkpoint is not None
    oldest, *_, newest = sorted(scan(str(root)).checkpoints, key=lambda c: c.mtime_ns)
    for part in oldest.parts:  # half of the time between two zones
        os.utime(part.path, ns=(newest.mtime_ns + 450 * 10**9,) * 2)
    made, question = answered(root)
    assert made is not None and made.checkpoint is not None, question
    assert made.checkpoint.path == before.checkpoint.path
    assert "mtime-disagrees-with-step" in {f.code for f in made.warnings}


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


@pytest.mark.parametrize(
    "name",
    ["checkpoint_2026-{}-45_99-99-99.000001", "CKPT+2026-{}-01+00-00-00+00", "CKPT+0000-{}-01+00-00-00+00"],
)
def test_a_name_that_is_no_date_is_only_a_name(name: str, tmp_path: Path) -> None:
    for i in range(3):
        home = tmp_path / name.format(15 - i)
        if name.startswith("CKPT"):
            yaml = f"end-of-epoch: true\nunixtime: {START + i * HOUR}.25\n"
            put(home / "CKPT.yaml", yaml.encode(), START + i * HOUR)
            put(home / "model.ckpt", saved({"w": tensor(i)}), START + i * HOUR)
        else:
            put(home / "model.pt", saved({"w": tensor(i)}), START + i * HOUR)
    made, question = answered(tmp_path)
    assert made is not None and made.checkpoint is not None, question
    assert made.checkpoint.path.endswith(name.format(13))


@pytest.mark.slow
def test_dates_of_one_second_decide_nothing(tmp_path: Path) -> None:
    """Of saves that follow each other so quickly the one of the highest step counts where no times do."""
    root = materialise(FIXTURES / "layouts/speechbrain/epochs/expected.json", tmp_path)
    before, _ = answered(root)
    for path in root.rglob("*"):
        os.utime(path, (START, START))
    made, question = answered(root)
    assert before is not None and made is not None, question
    assert before.resume_step == made.resume_step is not None
