"""One tree of every layout that the generator of random trees knows, with times of its own."""

from __future__ import annotations

import os
from pathlib import Path

from described import LAYOUTS
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from oracle import Save, Tree

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


def _simplest(layout: str, several: bool) -> Tree:
    """What the first example draws, of which each value is the simplest."""
    made = list[Tree]()

    @settings(max_examples=1, phases=[Phase.generate], derandomize=True, database=None)
    @given(st.data())
    def first(data: st.DataObject) -> None:
        class Drawn:
            def draw(self, strategy: st.SearchStrategy[object], label: str | None = None) -> object:
                counted = several and label in ("tp", "pp", "dp", "mp", "world", "files")
                return 2 if counted else data.draw(strategy, label)

        made.append(LAYOUTS[layout](Drawn(), STEPS))  # type: ignore[arg-type]

    first()
    return made[0]


def described_tree(layout: str, root: Path, several: bool = False) -> list[Save]:
    """Four saves of a layout, the first arrangement that the generator of random trees makes, or one with
    ``several`` files; no tracker.
    """

    made = _simplest(layout, several)
    for s in made.saves:
        for f in s.files:
            put(root / f.path, f.data, START)
    return made.saves


def trackers(root: Path) -> list[Path]:
    names = {layout.tracker.file for layout in ALL_LAYOUTS if layout.tracker.file} | {"last.ckpt"}
    return [p for p in root.rglob("*") if p.name in names and p.is_file()]
