"""``ckpt ls`` shows how far a checkpoint is where ``ckpt plan`` knows it: over all layouts' trees, as recorded."""

from __future__ import annotations

import pytest
from recorded import PLANNED, RECORDED, TREES

NUMBERS = ("step", "epoch", "generation")
"""What tells one save from another in a listing, each where the names or, failing that, the contents tell it."""


@pytest.mark.parametrize("tree", TREES)
def test_what_the_plan_counts_the_listing_counts(tree: str) -> None:
    """Of saves that names count in epochs or one by one, only a plan looks for the step inside."""
    chosen = RECORDED[f"{tree}{PLANNED}"]["answer"]["checkpoint"]
    listed = RECORDED[f"{tree}: ckpt ls @ --json"]["answer"]["checkpoints"]
    same = [c for c in listed if all(c[key] == chosen[key] for key in ("path", "run", "kind"))]
    counted = [c for c in same if any(c[key] is not None for key in NUMBERS)]
    assert counted or all(chosen[key] is None for key in NUMBERS)
