"""Nothing is deleted in a store on the ground of what could not be read: whichever key is denied, gone, refused
or comes with other bytes, only what would go anyway goes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import FIXTURES
from stores.asking import as_user, ask
from stores.bucket import Bucket
from stores.calls import URL, Call, Calls, Fault, contents

from ckpt_tools.storage import attempts
from ckpt_tools.storage.stores import mounts

ROOT = f"{URL}/run"
COMMANDS = {
    "prune": f"prune {ROOT} --keep-last 1 --damaged --apply --json --state-dir home/pruned".split(),
}
WHATS = [("denied", True), ("garbled", False), ("gone", True), ("refused", True), ("broken off", True)]
CASES = ("dcp/two", "megatron/tp", "hf-trainer/sharded", "tensorflow/manager", "deepspeed/zero1")
ROWS = [
    *(pytest.param("dcp/two", name, r"/(\.metadata|__0_0.distcp)$", 2, id=name) for name in COMMANDS),
    *(
        pytest.param(case, name, "", None, id=f"{case}-{name}", marks=pytest.mark.exhaustive)
        for case in CASES
        for name in COMMANDS
    ),
]
"""The tree, the command, the keys that meet a fault, and how many faults."""


class Desk:
    """A user whose bucket is a directory, ``top``, that a command finds as it was uploaded."""

    def __init__(self, tree: Path, tmp_path: Path) -> None:
        self.tree, self.top, self.home = tree, tmp_path / "top", tmp_path / "user"
        self.home.mkdir()
        self.store: Calls

    def left_by(self, command: str, fault: Fault | None) -> set[str]:
        """The keys that are there after the command."""
        for directory in (self.top, *self.home.iterdir()):  # what is known of another file of an inode, too
            shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.tree, self.top / "run")
        self.store = Calls(self.top, fault)
        mounts.forget()
        said = ask(*COMMANDS[command])
        assert said.code != 70, said.text
        return set(contents(self.top))


@pytest.fixture
def desk(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(FIXTURES / f"layouts/{case}/tree", tmp_path)
    monkeypatch.setattr(attempts, "pause", lambda _seconds: None)
    monkeypatch.setattr(mounts, "opened", lambda *_: made.store)
    with as_user(made.home, Bucket(URL, "", {}, None)), pytest.MonkeyPatch.context() as patch:  # type: ignore[arg-type]
        patch.setenv("CKPT_JOBS", "1")
        yield made


@pytest.mark.share(2)
@pytest.mark.slow
@pytest.mark.parametrize(("case", "command", "of", "most"), ROWS)
def test_what_cannot_be_read_is_no_reason(
    desk: Desk, case: str, command: str, of: str, most: int | None
) -> None:
    whole = {f"run/{path.relative_to(desk.tree)}" for path in desk.tree.rglob("*") if path.is_file()}
    left = desk.left_by(command, None)
    assert left < whole, case
    keys = dict.fromkeys(c.key for c in desk.store.calls if c.kind == "read" and re.search(of, c.key))
    assert keys
    for key in keys:
        for what, stays in WHATS[:most]:
            fault = Fault(what, Call("read", key, 1), stays)
            now = desk.left_by(command, fault)
            assert fault.met and now in (whole, left), (fault, sorted(left - now))
            if stays and key in left:  # what all else would be kept for
                assert now == whole, fault
