"""One tree of every layout that the generator of random trees knows, with times of its own."""

from __future__ import annotations

import os
from pathlib import Path

from described import LAYOUTS
from hypothesis import find, settings
from hypothesis import strategies as st
from oracle import Save

from ckpt_tools.layouts import LAYOUTS as ALL_LAYOUTS

START = 1_760_000_000
MINUTE = 60
HOUR = 60 * MINUTE
STEPS = (80, 90, 100, 110)
"""The names of the last two sort before those of the first two, unless they have leading zeros."""


def put(path: Path, data: bytes, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


def described_tree(layout: str, root: Path, several: bool = False) -> list[Save]:
    """Four saves of a layout, the first arrangement that the generator of random trees makes, or one with
    ``several`` files; no tracker.
    """

    class Simplest:
        def draw(self, strategy: st.SearchStrategy[object], label: str | None = None) -> object:
            if several and label in ("tp", "pp", "dp", "mp", "world", "files"):
                return 2
            return find(strategy, lambda _: True, settings=settings(derandomize=True, database=None))

    made = LAYOUTS[layout](Simplest(), STEPS)  # type: ignore[arg-type]
    for s in made.saves:
        for f in s.files:
            put(root / f.path, f.data, START)
    return made.saves


def trackers(root: Path) -> list[Path]:
    names = {layout.tracker for layout in ALL_LAYOUTS if layout.tracker} | {"last.ckpt"}
    return [p for p in root.rglob("*") if p.name in names and p.is_file()]
