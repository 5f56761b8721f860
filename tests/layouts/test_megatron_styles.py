"""Megatron's formats torch_dcp, fsdp_dtensor and zarr, and torch_dist without its last file: the commit of a save is
what its own writer writes last.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_trees import materialise
from places import LAYOUT_TREES

from ckpt_tools import NoneUsable, plan, scan, verify

NEWEST = "iter_0000020"
TRACKER = "latest_checkpointed_iteration.txt"
DCP = ("torch_dcp", "fsdp_dtensor")


def tree(style: str, target: Path) -> Path:
    return materialise(LAYOUT_TREES / "megatron-core" / style / "expected.json", target)


def rejected(root: Path) -> set[str]:
    """The findings for which the newest lost to the one before it."""
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert {r.checkpoint.step for r in made.rejected} == {20}
    return {f.code for r in made.rejected for f in r.findings}


@pytest.mark.parametrize("style", [*DCP, "zarr"])
@pytest.mark.parametrize("tracked", [True, False])
def test_what_it_saved_is_whole(tmp_path: Path, style: str, tracked: bool) -> None:
    root = tree(style, tmp_path)
    if not tracked:
        for path in root.glob("latest_*"):
            path.unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 20 and not made.rejected
    assert not any(c.unfinished for c in scan(str(root)).checkpoints)
    assert {f.code for f in verify(str(root)).findings if f.severity != "note"} <= {"missing-tracker"}


@pytest.mark.parametrize("style", DCP)
def test_a_save_without_its_index_never_finished(tmp_path: Path, style: str) -> None:
    root = tree(style, tmp_path)
    (root / NEWEST / ".metadata").unlink()
    assert rejected(root) == {"missing-part"}  # a tracker names it
    for path in root.glob("latest_*"):
        path.unlink()
    made = plan(str(root))
    assert made.checkpoint is not None and made.checkpoint.step == 10
    assert "unfinished-save" in {f.code for f in made.warnings}


@pytest.mark.parametrize("style", DCP)
def test_data_of_another_step_are_seen(tmp_path: Path, style: str) -> None:
    root = tree(style, tmp_path)
    shutil.copy2(root / "iter_0000010/__0_0.distcp", root / NEWEST)
    assert "step-mismatch" in rejected(root)


@pytest.mark.parametrize("lone", [True, False])
def test_torch_dist_is_not_taken_for_one_of_them(tmp_path: Path, lone: bool) -> None:
    """All of its saves lost metadata.json, without which its loader takes them for something else."""
    root = tree("common_state", tmp_path)
    for path in root.glob("iter_*/metadata.json"):
        path.unlink()
    if lone:
        shutil.rmtree(root / "iter_0000010")
    with pytest.raises(NoneUsable):
        plan(str(root))
    said = [f.message for file in verify(str(root)).files for f in file.report.findings]
    assert any(text.startswith("metadata.json") for text in said)


@pytest.mark.parametrize("gone", ["common.pt", "metadata.json", "model.weight", "model.weight/0.0"])
def test_a_part_of_zarr_that_is_gone_is_missed(tmp_path: Path, gone: str) -> None:
    root = tree("zarr", tmp_path)
    path = root / NEWEST / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert rejected(root) == {"missing-part"}
