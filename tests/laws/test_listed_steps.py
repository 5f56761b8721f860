"""``ckpt ls`` shows how far a checkpoint is where ``ckpt plan`` knows it: over all layouts' trees, as recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded import PLANNED, RECORDED, TREES
from small_files import adam, saved, tensor
from timed import put

from ckpt_tools.api import scan
from ckpt_tools.planning.verification import _LOOKED_INTO

NUMBERS = ("step", "epoch", "generation")
"""What tells one save from another in a listing, each where the names or, failing that, the contents tell it."""


@pytest.mark.parametrize("tree", TREES)
def test_what_the_plan_counts_the_listing_counts(tree: str) -> None:
    chosen = RECORDED[f"{tree}{PLANNED}"]["answer"]["checkpoint"]
    listed = RECORDED[f"{tree}: ckpt ls @ --json"]["answer"]["checkpoints"]
    same = [c for c in listed if all(c[key] == chosen[key] for key in ("path", "run", "kind"))]
    known = {key: chosen[key] for key in NUMBERS if chosen[key] is not None}
    assert any(all(c[key] == value for key, value in known.items()) for c in same)


def test_of_many_saves_the_newest_are_looked_into(tmp_path: Path) -> None:
    saves = _LOOKED_INTO + 8
    for n in range(saves):
        home = tmp_path / f"checkpoint_{n:06d}"
        put(
            home / "state.pt",
            saved({"model": {"w": tensor(n)}, "optimizer": adam(n), "step": 10 * n}),
            1_700_000_000 + 60 * n,
        )
    listed = scan(str(tmp_path)).checkpoints
    told = {c.generation: c.step for c in listed}
    assert told == {n: 10 * n if n >= saves - _LOOKED_INTO else None for n in range(saves)}
