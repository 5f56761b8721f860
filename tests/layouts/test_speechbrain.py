"""SpeechBrain: what a Checkpointer keeps as text, and which save is the newest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools.api import plan, verify

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
