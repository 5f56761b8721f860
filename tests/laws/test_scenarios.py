"""Whatever befalls the tree of any framework, one to three things at once: no crash, nothing damaged is
loaded, nothing older without a word, nothing from nothing, and every rank hears the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fixture_trees import TREES
from memory import brief_directory
from scenarios import Whole, mishap, wrong

SEEDS = [3, pytest.param(40, marks=pytest.mark.exhaustive)]
"""For each case that is tried by day; for each, every night."""


def all_wrong(case: Path, seeds: range) -> list[str]:
    found = list[str]()
    name = f"{case.parent.parent.name}/{case.parent.name}"
    with brief_directory() as top:
        whole = Whole(case, top / "case")
        for seed in seeds:
            happened = mishap(whole, f"{name} {seed}")
            found += (f"{name} {seed} {happened.said}: {what}" for what in wrong(happened))
    return found


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.share(32)
@pytest.mark.parametrize("case", TREES)
def test_nothing_is_answered_that_may_not_be(case: Path, seeds: int) -> None:
    assert not all_wrong(case, range(seeds))
