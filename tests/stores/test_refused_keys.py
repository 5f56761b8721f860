"""In a tree of any layout one object may not be read, is gone, replaced or breaks off: whatever it is, the plan
is the same, or that nobody could look.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES
from stores.calls import URL, Call, Calls, Fault

from ckpt_tools import api
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage import attempts
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.tree import Tree

FAULTS = ("denied", "gone", "replaced", "broken off")
CASES_OF = {case.parent.parent.name: case for case in reversed(CASES)}


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.setattr(attempts, "pause", lambda _seconds: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refusing = Calls(request.param.parent)
    monkeypatch.setitem(mounts._trees, (URL, ()), Tree(refusing))
    return refusing


def planned() -> LoadPlan | CkptError:
    try:
        return api.plan(f"{URL}/tree")
    except CkptError as error:
        return error


def chosen(plan: LoadPlan) -> Any:
    """The step, and the checkpoint. A copy may stand in for a file, and give its name to a bare one."""
    assert plan.checkpoint is not None
    loaded = {f.path for r in plan.by_rank for f in r.files} | {f.path for f in plan.shared}
    bare = plan.checkpoint.path in loaded
    return plan.resume_step, plan.checkpoint.layout, "" if bare else plan.checkpoint.path


def rows() -> Iterator[Any]:
    """One object and one fault of each layout in turn; at night every object of every tree, gone and with one
    of the other faults in turn, which differ in their words alone.
    """
    for number, (layout, case) in enumerate(CASES_OF.items()):
        yield pytest.param(case, FAULTS[number % len(FAULTS)], number, id=layout)
    for case in CASES:
        name = f"{case.parent.parent.name}-{case.parent.name}"
        yield pytest.param(case, "", None, id=name, marks=pytest.mark.exhaustive)


def faults(keys: list[str], fault: str, which: int | None) -> Iterator[tuple[str, str]]:
    """(key, fault) of each plan."""
    if which is not None:
        yield from ((key, fault) for key in keys[which % max(1, len(keys)) :][:1])
        return
    others = [name for name in FAULTS if name != "gone"]
    for number, key in enumerate(keys):
        yield key, "gone"
        yield key, others[number % len(others)]


@pytest.mark.share(12)
@pytest.mark.parametrize(("store", "fault", "which"), list(rows()), indirect=["store"])
def test_no_object_that_cannot_be_read_makes_another_plan(
    store: Calls, fault: str, which: int | None
) -> None:
    usual = planned()
    asked = dict.fromkeys(call.key for call in store.calls if call.kind == "read")
    for key, what in faults(list(asked), fault, which):
        store.fault = Fault(what, Call("read", key, 0), stays=True)
        now = planned()
        if isinstance(now, CannotLook):
            continue
        if isinstance(now, LoadPlan):
            assert isinstance(usual, LoadPlan), (key, what, now)
            assert chosen(now) == chosen(usual), (key, what)
        else:
            assert type(now) is type(usual), (key, what, now)
