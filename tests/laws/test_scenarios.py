"""Whatever befalls the tree of any framework, one to three things at once: no crash, nothing damaged is
loaded, nothing older without a word, nothing from nothing, and every rank hears the same.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from fixture_trees import CASES
from memory import brief_directory
from scenarios import Whole, mishap, wrong

SEEDS = 40
"""For each case, every night."""


def all_wrong(case: Path, seeds: range) -> list[str]:
    found = list[str]()
    name = f"{case.parent.parent.name}/{case.parent.name}"
    with brief_directory() as top:
        whole = Whole(case, top / "case")
        for seed in seeds:
            happened = mishap(whole, f"{name} {seed}")
            found += (f"{name} {seed} {happened.said}: {what}" for what in wrong(happened))
    return found


def of_the_day(case: Path) -> bool:
    """One case of eight; which, follows from its name."""
    return zlib.crc32(f"{case.parent.parent.name}/{case.parent.name}".encode()) % 8 == 0


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "case", [c for c in CASES if of_the_day(c)], ids=lambda c: f"{c.parts[-3]}-{c.parts[-2]}"
)
def test_nothing_is_answered_that_may_not_be(case: Path) -> None:
    assert not all_wrong(case, range(3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.parts[-3]}-{c.parts[-2]}")
def test_nothing_is_answered_that_may_not_be_of_any_case(case: Path) -> None:
    assert not all_wrong(case, range(SEEDS))
