"""Good files of each format, of those that belong together the directory, and copies of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import FORMAT_FILES

from ckpt_tools.formats import FORMATS

LEFTOVERS = ("_CHECKPOINT_METADATA", "process_0")
"""Alone they are what is left of a save."""
FOUND = {f.name: sorted((FORMAT_FILES / f.name / "good").glob("*")) for f in FORMATS if f.name != "seal"}
GOOD = {
    name: some for name, found in FOUND.items() if (some := [p for p in found if p.name not in LEFTOVERS])
}


def rows(mark: pytest.MarkDecorator, fit: Callable[[Path], object] = lambda _: False) -> list[Any]:
    """All of them, of which those but the first of a format have this mark, unless they ``fit``."""
    return [
        pytest.param(path, id=f"{name}/{path.name}", marks=[] if path == some[0] or fit(path) else mark)
        for name, some in GOOD.items()
        for path in some
    ]


def copied(good: Path, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if good.is_dir():
        shutil.copytree(good, root / good.name, symlinks=True)
    else:
        shutil.copy2(good, root)
    return root
