"""OLMo-core: files of another step, and what its own Checkpointer would take."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import Severity, plan, verify

CASE = LAYOUT_TREES / "olmo-core/steps/expected.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path)


def damage(run: Path) -> set[tuple[str, str]]:
    """(path, code) of each error and warning."""
    reports = [f.report for f in verify([str(run)]).files]
    return {(r.path, x.code) for r in reports for x in r.findings if x.severity is not Severity.NOTE}


def test_nothing_is_wrong_with_what_was_saved(run: Path) -> None:
    assert not damage(run)


def test_a_rank_of_another_step_is_not_resumed_from(run: Path) -> None:
    there = run / "run/step200/train/rank1.pt"
    at = there.stat().st_mtime_ns
    shutil.copy(run / "run/step100/train/rank1.pt", there)
    os.utime(there, ns=(at, at))
    assert (str(there), "step-mismatch") in damage(run)
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 100


def test_a_storage_info_of_nobody_is_named(run: Path) -> None:
    """A class of that name from another module may run anything."""
    there = run / "run/step200/model_and_optim/.metadata"
    at, size = there.stat().st_mtime_ns, there.stat().st_size
    there.write_bytes(there.read_bytes().replace(b"olmo_core.distributed.", b"evil_core.distributed."))
    os.utime(there, ns=(at, at))
    assert there.stat().st_size == size
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 100


def test_a_save_that_never_got_its_name_is_not_resumed_from(run: Path) -> None:
    (run / "run/step200").rename(run / "run/step200-tmp")
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 100
    assert "unfinished-save" in {w.code for w in made.warnings}
