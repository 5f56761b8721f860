"""SpeechBrain: what a Checkpointer keeps as text, and which save is the newest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import UsageError

CASE = LAYOUT_TREES / "speechbrain/epochs/expected.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path)


def saves(run: Path) -> list[Path]:
    """Oldest first."""
    return sorted((run / "save").iterdir(), key=lambda home: (home / "model.ckpt").stat().st_mtime_ns)


def written(run: Path, name: str, text: str) -> None:
    """One more recoverable of every save, at the time of the others."""
    for home in saves(run):
        at = (home / "model.ckpt").stat().st_mtime_ns
        (home / name).write_text(text)
        os.utime(home / name, ns=(at, at))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [("epoch_counter.ckpt", "12"), ("label_encoder.ckpt", "'ä' => 0\n"), ("dataloader-VALID.ckpt", "None")],
)
def test_a_recoverable_that_is_text_is_no_damage(run: Path, name: str, text: str) -> None:
    written(run, name, text)
    seen = verify([str(run)])
    assert [f for r in seen.files for f in r.report.findings if f.severity > "note"] == []
    assert seen.verdict == "ok"
    made = plan(str(run))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(saves(run)[-1])
    assert {Path(f.path).name for f in made.shared} >= {name, "counter.ckpt", "model.ckpt"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counter.ckpt", "brain.ckpt", "labels.ckpt", "CKPT.yaml"])
def test_zeros_in_a_text_are_damage(run: Path, name: str) -> None:
    *_, before, newest = saves(run)
    at = (newest / name).stat()
    (newest / name).write_bytes(bytes(at.st_size))
    os.utime(newest / name, ns=(at.st_mtime_ns, at.st_mtime_ns))
    made = plan(str(run))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(before)
    assert [{f.code for f in r.findings} for r in made.rejected] == [{"zero-filled"}]


def test_where_times_were_lost_the_steps_of_the_optimizer_tell(run: Path) -> None:
    newest = saves(run)[-1]
    for file in run.rglob("*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    made = plan(str(run))
    assert made.checkpoint is not None
    assert (made.checkpoint.path, made.checkpoint.step) == (str(newest), 16)


@pytest.mark.slow
def test_a_checkpointer_without_a_brain_goes_by_time(run: Path) -> None:
    newest = saves(run)[-1]
    for file in run.rglob("brain.ckpt"):
        file.unlink()
    for n, home in enumerate(saves(run)):
        for file in home.iterdir():
            os.utime(file, (1_700_000_000 + 60 * n,) * 2)
    made = plan(str(run))
    assert made.checkpoint is not None
    assert (made.checkpoint.path, made.checkpoint.step) == (str(newest), None)
    for file in run.rglob("*.*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    with pytest.raises(UsageError):  # all are of one second: nothing tells which is the newest
        plan(str(run))


@pytest.mark.slow
@pytest.mark.parametrize("back", [2, 3])
def test_the_steps_of_an_older_save_are_not_resumed_from(back: int, run: Path) -> None:
    homes = saves(run)
    newest, other = homes[-1] / "brain.ckpt", homes[-back] / "brain.ckpt"
    at = newest.stat()
    newest.write_bytes(other.read_bytes())
    os.utime(newest, ns=(at.st_atime_ns, at.st_mtime_ns))
    found = [(f.code, r.report.path) for r in verify(str(run)).files for f in r.report.findings]
    assert found == [("step-mismatch", str(newest))]
    made = plan(str(run))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(homes[-2])
    assert made.rejected or [f.code for f in made.warnings] == ["mtime-disagrees-with-step"]


@pytest.mark.slow
def test_the_notes_of_an_older_save_are_not_those_of_the_newest(run: Path) -> None:
    *_, before, newest = (home / "CKPT.yaml" for home in saves(run))
    at = newest.stat()
    newest.write_bytes(before.read_bytes())
    os.utime(newest, ns=(at.st_atime_ns, at.st_mtime_ns))
    found = [(f.code, r.report.path) for r in verify(str(run)).files for f in r.report.findings]
    assert found == [("step-mismatch", str(newest))]
    made = plan(str(run))
    assert made.checkpoint is not None
    assert made.checkpoint.path == str(before.parent)
    assert [f.path for r in made.rejected for f in r.findings] == [str(newest)]


def test_a_save_that_was_copied_as_a_whole_has_its_notes(run: Path) -> None:
    newest = saves(run)[-1]
    shutil.copytree(newest, newest.with_name("CKPT+kept"))
    assert verify(str(run)).verdict == "ok"
