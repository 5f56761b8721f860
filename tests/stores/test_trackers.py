"""Trackers in a store say what they say on a disk, wherever they lie: beside the run, below it and above."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from places import LAYOUT_TREES
from small_files import adam, saved, tensor
from stores.bucket import Bucket

from ckpt_tools.layouts import BUILT_IN
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session

WRITTEN = {
    "files": ("model_20.pt", "latest.txt", "model_20.pt"),
    "openrlhf": ("openrlhf/ppo/tree", "_critic/latest", "global_step10"),
    "dcp-set": ("dcp-set/lm-engine/tree", "LATEST.txt", "global_step10"),
}
"""Layout -> what is saved, a tracker of it, and its text."""


def tree(root: Path, layout: str) -> None:
    source, tracker, text = WRITTEN[layout]
    if layout == "files":
        root.mkdir()
        (root / source).write_bytes(saved({"model": {"w": tensor(1)}, "optimizer": adam(20), "step": 20}))
    else:
        shutil.copytree(LAYOUT_TREES / source, root)
    (root / tracker).write_text(text)


def said(root: str, layout: str) -> set[tuple[str, object]]:
    """(the tracker's path below the root, what it says)."""
    session = open_session(root, ReadOptions())
    base = next(p.base for p in session.parts if p.layout == layout)
    return {(path[len(session.root) :], text) for path, text in session.trackers(layout, base)}


def test_all_layouts_with_such_trackers_are_tried() -> None:
    assert {layout.name for layout in BUILT_IN if layout.tracker.others} == set(WRITTEN)


@pytest.mark.parametrize("layout", WRITTEN)
def test_a_store_has_the_trackers_of_a_disk(layout: str, memory_store: Bucket, tmp_path: Path) -> None:
    tree(tmp_path / "run", layout)
    memory_store.upload(tmp_path / "run", "run")
    here = said(str(tmp_path / "run"), layout)
    assert f"/{WRITTEN[layout][1]}" in {path for path, _ in here}
    assert said(f"{memory_store.url}/run", layout) == here
