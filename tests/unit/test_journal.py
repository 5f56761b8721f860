"""The journal: every step is done or not, an interrupted operation is finished, and nobody else's orders count."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Operation, Status, Step
from ckpt_tools.storage.trust import Untrusted


def text_of(root: Path) -> dict[str, str]:
    found = (p for p in root.rglob("*") if p.is_file() and p.name not in ("journal.jsonl", "lock"))
    return {str(p.relative_to(root)): p.read_text() for p in found}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b/c", "b/d"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "run"


def begun(root: Path) -> list[int]:
    with journal.opened(str(root), to_change=False) as store:
        return [op.number for op in store.journal.operations if op.status is Status.BEGUN]


def swapped(root: Path) -> Operation:
    with journal.opened(str(root)) as store:
        incoming = f"{store.place('incoming')}/a"
        (root / incoming).parent.mkdir(parents=True)
        (root / incoming).write_text("new")
        kept = store.place("quarantine")
        steps = [Step(incoming, "a", f"{kept}/a"), Step("b", f"{kept}/b")]
        return store.run("repair", "for a test", steps)


def test_done_and_undone(root: Path) -> None:
    before = text_of(root)
    swapped(root)
    after = {"a": "new"} | {f".ckpt/quarantine/000001/{k}": v for k, v in before.items()}
    assert text_of(root) == after
    with journal.opened(str(root)) as store:
        found = store.last_to_undo()
        assert found
        store.undo(found)
        assert store.last_to_undo() is None
    with journal.opened(str(root)) as store:  # what was made is swept
        assert text_of(root) == before
        assert [op.status for op in store.journal.operations] == [Status.DONE, Status.UNDONE]


def test_what_was_written_since_is_not_undone(root: Path) -> None:
    swapped(root)
    (root / "a").write_text("written since")
    with journal.opened(str(root)) as store:
        found = store.last_to_undo()
        assert found
        with pytest.raises(UsageError, match="is not as 'ckpt repair' left it"):
            store.undo(found)
    assert (root / "a").read_text() == "written since"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_interrupted_operation_is_taken_back(root: Path, steps: int) -> None:
    before = text_of(root)
    with journal.opened(str(root)) as store:
        planned = tuple(step.plan(store.tree) for step in (Step("a", ".ckpt/x/a"), Step("b", ".ckpt/x/b")))
        store.journal.begin(Operation(1, "quarantine", "", 1.0, planned))
        for step in planned[:steps]:
            step.do(store.tree)
    assert begun(root) == [1]
    with journal.opened(str(root)) as store:
        assert text_of(root) == before
        assert len(store.changes()) == steps
    assert not begun(root)


def test_what_was_saved_anew_stays_and_what_went_is_swept(root: Path) -> None:
    with journal.opened(str(root)) as store:
        planned = (Step("a", ".ckpt/trash/000001/a").plan(store.tree),)
        store.journal.begin(Operation(1, "prune", "", 1.0, planned))
        planned[0].do(store.tree)
    (root / "a").write_text("saved anew")
    with journal.opened(str(root)) as store:
        assert not store.changes()
    assert text_of(root) == {"a": "saved anew", "b/c": "b/c", "b/d": "b/d"}


def test_nothing_is_made_for_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CannotLook, match="cannot list"), journal.opened(str(tmp_path / "ckpt")):
        raise AssertionError
    assert not list(tmp_path.iterdir())


def test_there_is_one_lock_for_a_tree(root: Path, tmp_path: Path) -> None:
    told = pytest.raises(CannotLook, match=f"process {os.getpid()} on")
    with journal.opened(str(root), str(tmp_path / "state")), told, journal.opened(str(root)):
        raise AssertionError


def test_a_step_that_fails_takes_those_before_it_back(root: Path) -> None:
    before = text_of(root)
    (root / "taken").write_text("mine")
    with journal.opened(str(root)) as store, pytest.raises(CannotLook, match="nothing is lost"):
        store.run("quarantine", "", [Step("a", ".ckpt/x/a"), Step("b/c", "taken")])
    assert text_of(root) == {**before, "taken": "mine"}
    assert not begun(root)


def test_one_at_a_time(root: Path) -> None:
    told = pytest.raises(CannotLook, match=f"process {os.getpid()} on")
    with journal.opened(str(root)), told, journal.opened(str(root)):
        raise AssertionError


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "b/../../a", "", "b//c", "./a", "a\0b"], ids=repr)
def test_no_journal_leads_out_of_its_root(root: Path, path: str) -> None:
    with journal.opened(str(root)) as store:
        planned = Step("a", ".ckpt/x/a").plan(store.tree)
        store.journal.begin(Operation(1, "quarantine", "", 1.0, (planned,)))
    lines = root / ".ckpt/journal.jsonl"
    body = json.loads(lines.read_text())
    body["steps"][0][1] = path
    lines.write_text(json.dumps(body) + "\n")
    with pytest.raises(CannotLook, match="is damaged"), journal.opened(str(root)):
        raise AssertionError
    assert (root / "a").read_text() == "a"


def test_no_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/e").write_text("e")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with journal.opened(str(root)) as store, pytest.raises(CannotLook, match="link"):
        store.run("quarantine", "", [Step("link/e", ".ckpt/x/e")])
    assert (tmp_path / "elsewhere/e").exists()


def test_the_journal_of_somebody_else_is_refused(root: Path) -> None:
    swapped(root)
    (root / ".ckpt/journal.jsonl").chmod(0o666)
    with pytest.raises(Untrusted), journal.opened(str(root)):
        raise AssertionError


def test_a_file_that_was_given_its_second_name_is_moved_once(root: Path) -> None:
    with journal.opened(str(root)) as store:
        tree = store.tree
        step = Step("a", ".ckpt/x/a").plan(tree)
        tree.make_above(step.target)
        os.link(root / "a", root / ".ckpt/x/a")
        step.do(tree)
    assert not (root / "a").exists() and (root / ".ckpt/x/a").read_text() == "a"


def test_a_line_that_was_never_ended_was_never_begun(root: Path) -> None:
    before = text_of(root)
    swapped(root)
    lines = root / ".ckpt/journal.jsonl"
    whole = lines.read_bytes()
    for cut in range(whole.index(b"\n") + 1):
        lines.write_bytes(whole[:cut])
        with journal.opened(str(root), to_change=False) as store:
            assert not store.journal.operations
    lines.write_bytes(whole[:-3])  # begun, and not said to be done
    with journal.opened(str(root)) as store:
        assert [op.status for op in store.journal.operations] == [Status.UNDONE]
    assert text_of(root) == before


def test_many_operations_are_forgotten(root: Path) -> None:
    with journal.opened(str(root)) as store:
        for n in range(401):
            store.run("quarantine" if n == 400 else "prune", "", [])
    with journal.opened(str(root)) as store:
        assert [op.number for op in store.journal.operations] == list(range(401, 201, -1))
        assert store.last_to_undo() and store.place("trash") == ".ckpt/trash/000402"
