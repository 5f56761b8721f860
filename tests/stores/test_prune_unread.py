"""Nothing is deleted in a store on the ground of what could not be read: whichever key is denied, gone, refused
or comes with other bytes, only what would go anyway goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES
from stores.calls import Call, Desk, Fault, contents, desk_of

LINE = "prune @ --keep-last 1 --damaged --apply --json --state-dir home/pruned"
WHATS = [("denied", True), ("garbled", False), ("gone", True), ("refused", True), ("broken off", True)]
CASES = ("dcp/two", "megatron/tp", "hf-trainer/sharded", "tensorflow/manager", "deepspeed/zero1")
ROWS = [
    pytest.param("dcp/two", r"/(\.metadata|__0_0.distcp)$", 2, id="prune"),
    *(pytest.param(case, "", None, id=f"{case}-prune", marks=pytest.mark.exhaustive) for case in CASES),
]
"""The tree, the keys that meet a fault, and how many faults."""


def left_by(desk: Desk, fault: Fault | None) -> set[str]:
    """The keys that are there after the command."""
    desk.fresh()
    said = desk.ask(LINE, fault)
    assert said.code != 70, said.text
    return set(contents(desk.top))


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_of(FIXTURES / f"layouts/{request.param}/tree", tmp_path) as made:
        yield made


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize(("desk", "of", "most"), ROWS, indirect=["desk"])
def test_what_cannot_be_read_is_no_reason(desk: Desk, of: str, most: int | None) -> None:
    whole = {f"run/{path.relative_to(desk.tree)}" for path in desk.tree.rglob("*") if path.is_file()}
    left = left_by(desk, None)
    assert left < whole
    keys = dict.fromkeys(c.key for c in desk.store.calls if c.kind == "read" and re.search(of, c.key))
    assert keys
    for key in keys:
        for what, stays in WHATS[:most]:
            fault = Fault(what, Call("read", key, 1), stays)
            now = left_by(desk, fault)
            assert fault.met and now in (whole, left), (fault, sorted(left - now))
            if stays and key in left:  # what all else would be kept for
                assert now == whole, fault
