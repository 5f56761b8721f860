"""In a tree of any layout one object may not be read, is gone, replaced or breaks off: whatever it is, the plan
is the same, or that nobody could look.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_trees import CASES
from obstore.store import LocalStore

from ckpt_tools import api
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.storage import attempts
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.store import Object, Replaced
from ckpt_tools.storage.stores.tree import Tree

URL = "refusing://bucket"
FAULTS: dict[str, Callable[[str], OSError]] = {
    "denied": lambda url: PermissionError(errno.EACCES, "denied", url),
    "gone": lambda url: FileNotFoundError(errno.ENOENT, "there is no such object", url),
    "replaced": Replaced,
    "broken off": lambda url: OSError(errno.ECONNRESET, "it broke off", url),
}
CASES_OF = {case.parent.parent.name: case for case in reversed(CASES)}


class Refusing(ObjectStore):
    """A directory as obstore serves it: all but one of its objects can be read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(URL, LocalStore(str(directory)))
        self.fault: tuple[str, Callable[[str], OSError]] | None = None
        self.asked: dict[str, None] = {}

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        self.asked[of.key] = None
        if self.fault is not None and self.fault[0] == of.key:
            raise self.fault[1](f"{URL}/{of.key}")
        return super().read(of, start, length)

    def _prove(self, prefix: str) -> None:
        """A directory is a store."""


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refusing:
    monkeypatch.setattr(attempts, "pause", lambda _seconds: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refusing = Refusing(request.param.parent)
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
        yield pytest.param(case, list(FAULTS)[number % len(FAULTS)], number, id=layout)
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
    store: Refusing, fault: str, which: int | None
) -> None:
    usual = planned()
    for key, what in faults(list(store.asked), fault, which):
        store.fault = key, FAULTS[what]
        now = planned()
        if isinstance(now, CannotLook):
            continue
        if isinstance(now, LoadPlan):
            assert isinstance(usual, LoadPlan), (key, what, now)
            assert chosen(now) == chosen(usual), (key, what)
        else:
            assert type(now) is type(usual), (key, what, now)
