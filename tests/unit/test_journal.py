"""The journal: every step is done or not, and nobody else's orders count. What an interrupted command leaves is tried
with the commands themselves, at every call that writes (tests/cli/test_stopped.py).
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Operation, Step, Tree
from ckpt_tools.guard.quarantine import undo
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


def statuses(root: Path) -> list[tuple[int, str]]:
    with journal.open_journal(str(root), apply=False) as store:
        return [(op.number, op.status) for op in store.operations]


def swap(root: Path) -> None:
    with journal.open_journal(str(root)) as store:
        steps = [
            store.step_to_write("a", [b"new"], backup_kind="quarantine"),
            Step("b", f"{store.name_directory('quarantine')}/b"),
        ]
        store.run("repair", steps)


def test_done_and_undone(root: Path) -> None:
    before = text_of(root)
    swap(root)
    assert text_of(root) == {"a": "new"} | {f".ckpt/quarantine/000001/{k}": v for k, v in before.items()}
    undo(str(root), apply=True)
    assert text_of(root) == before and statuses(root) == [(1, "undone")]


def test_what_was_saved_anew_stays_and_what_went_is_swept(root: Path) -> None:
    with journal.open_journal(str(root)) as store:
        store.run("prune", [Step("a", ".ckpt/trash/000001/a")])
        (root / "a").write_text("saved anew")
        store.take_back(store.operations[0])
    assert text_of(root) == {"a": "saved anew", "b/c": "b/c", "b/d": "b/d"}


def test_nothing_is_made_for_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CannotLook, match="cannot list"), journal.open_journal(str(tmp_path / "ckpt")):
        raise AssertionError
    assert not list(tmp_path.iterdir())


def test_there_is_one_lock_for_a_tree(root: Path) -> None:
    told = pytest.raises(CannotLook, match=f"process {os.getpid()} on")
    with journal.open_journal(str(root)), told, journal.open_journal(str(root)):
        raise AssertionError


def test_a_step_that_fails_takes_those_before_it_back(root: Path) -> None:
    before = text_of(root)
    (root / "taken").write_text("mine")
    with journal.open_journal(str(root)) as store, pytest.raises(CannotLook, match="nothing is lost"):
        store.run("quarantine", [Step("a", ".ckpt/x/a"), Step("b/c", "taken")])
    assert text_of(root) == {**before, "taken": "mine"} and statuses(root) == [(1, "undone")]


def test_where_a_file_is_missing_nothing_begins(root: Path) -> None:
    before, missing = text_of(root), Step("missing", ".ckpt/x/missing")
    with journal.open_journal(str(root)) as store:
        with pytest.raises(CannotLook, match="nothing is done"):
            store.run("quarantine", [Step("a", ".ckpt/x/a"), missing])
        assert text_of(root) == before and not store.operations
        store._write(Operation(1, "quarantine", 0, (missing,)))  # as earlier versions did
        store.resume()
    assert statuses(root) == [(1, "undone")]


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "b/../../a", "", "b//c", "./a", "a\0b"], ids=repr)
def test_no_journal_leads_out_of_its_root(root: Path, path: str) -> None:
    swap(root)
    lines = root / ".ckpt/journal.jsonl"
    body = json.loads(lines.read_text())
    body["steps"][0][1] = path
    lines.write_text(json.dumps(body) + "\n")
    before = text_of(root)
    with pytest.raises(CannotLook, match="is damaged"), journal.open_journal(str(root)):
        raise AssertionError
    assert text_of(root) == before


def test_no_link_is_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/e").write_text("e")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with journal.open_journal(str(root)) as store, pytest.raises(CannotLook, match="link"):
        store.run("quarantine", [Step("link/e", ".ckpt/x/e")])
    assert (tmp_path / "elsewhere/e").exists()


def test_the_journal_of_somebody_else_is_refused(root: Path) -> None:
    swap(root)
    (root / ".ckpt/journal.jsonl").chmod(0o666)
    with pytest.raises(Untrusted), journal.open_journal(str(root)):
        raise AssertionError


def test_a_file_that_was_given_its_second_name_is_moved_once(root: Path) -> None:
    at = os.open(root, os.O_RDONLY)
    os.link(root / "a", root / "x")
    Tree(str(root), at).move("a", "x")
    os.close(at)
    assert not (root / "a").exists() and (root / "x").read_text() == "a"


def test_where_nothing_can_be_linked_files_are_renamed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of(root)

    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(journal.os, "link", link)
    with journal.open_journal(str(root)) as store:
        store.run("quarantine", [Step("a", ".ckpt/quarantine/000001/a")])
    assert not (root / "a").exists()
    undo(str(root), apply=True)
    assert text_of(root) == before


def test_nothing_is_done_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine/trash").mkdir(parents=True)
    (root / ".ckpt").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="is a link"), journal.open_journal(str(root)):
        raise AssertionError
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["trash"]


def test_what_cannot_be_undone_is_forgotten(root: Path) -> None:
    with journal.open_journal(str(root)) as store:
        for command in ("quarantine", "restore", "restore"):
            store.run(command, [])
    assert statuses(root) == [(3, "done"), (1, "done")]
    with journal.open_journal(str(root)) as store:
        assert store.name_directory("trash") == ".ckpt/trash/000004"
