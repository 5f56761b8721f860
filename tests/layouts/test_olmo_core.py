"""OLMo-core: files of another step, and what its own Checkpointer would take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES
from small_files import saved, tensor

from ckpt_tools import plan

CASE = LAYOUT_TREES / "olmo-core/steps/expected.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return materialise(CASE, tmp_path)


@pytest.mark.slow
def test_a_storage_info_of_nobody_is_named(run: Path) -> None:
    """A class of that name from another module may run anything."""
    there = run / "run/step200/model_and_optim/.metadata"
    at, size = there.stat().st_mtime_ns, there.stat().st_size
    there.write_bytes(there.read_bytes().replace(b"olmo_core.distributed.", b"evil_core.distributed."))
    os.utime(there, ns=(at, at))
    assert there.stat().st_size == size
    made = plan(str(run))
    assert made.checkpoint is not None and made.checkpoint.step == 100


@pytest.mark.slow
def test_a_directory_that_was_renamed_is_whole(run: Path, tmp_path: Path) -> None:
    (run / "run/step200").rename(tmp_path / "kept")
    made = plan(str(tmp_path / "kept"))
    assert made.checkpoint is not None and (made.checkpoint.layout, made.resume_step) == ("olmo-core", 200)
    assert {Path(f.path).name for f in made.shared} >= {"rank0.pt", "rank1.pt", ".metadata", ".metadata.json"}


def test_the_directories_of_olmo_before_it_are_of_no_such_layout(tmp_path: Path) -> None:
    for step in (1000, 2000):
        for name in ("model", "optim", "train"):
            for rank in (0, 1):
                path = tmp_path / f"step{step}" / name / f"rank{rank}.pt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(saved({"w": tensor(step, rank), "global_step": step}))
    made = plan(str(tmp_path))
    assert made.checkpoint is not None
    assert (made.checkpoint.layout, made.resume_step) == ("rank-files", 2000)
