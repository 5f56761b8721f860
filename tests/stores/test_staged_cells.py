"""What a killed process brought of a large file counts, cell by cell, where it still is what arrived."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from obstore.store import LocalStore

from ckpt_tools.errors import CannotLook
from ckpt_tools.job.staging.fetching import Fetch
from ckpt_tools.job.staging.wanted import Wanted
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.object_store import ObjectStore
from ckpt_tools.storage.stores.source import CHUNK
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.stores.tree import Tree

URL = "cells://bucket"
KEY = "run/model.pt"
CELLS = 16
"""Many more than are under way at a time."""


class Counted(ObjectStore):
    """A directory as obstore serves it; ``cells`` are the numbers of those that were asked for."""

    def __init__(self, directory: Path) -> None:
        super().__init__(URL, LocalStore(str(directory)))
        self.cells: list[int] = []

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        if length > CHUNK // 2:
            self.cells.append(start // CHUNK)
        return super().read(of, start, length)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    path = tmp_path / "objects" / KEY
    path.parent.mkdir(parents=True)
    torch.save({"w": torch.arange(CELLS * CHUNK // 4 + 1000, dtype=torch.int32)}, path)
    counted = Counted(tmp_path / "objects")
    monkeypatch.setitem(mounts._trees, (URL, ()), Tree(counted))
    return counted


def fetched(part: Path, progress: Callable[[int], object] = lambda n: None, etag: str | None = None) -> bytes:
    """The file, brought to ``part``; by another ``etag`` as if it had been another object before."""
    tree, _ = mounts.tree_of(URL)
    tree.refresh("run")
    of = tree.object(KEY)
    part.mkdir(exist_ok=True)
    wanted = Wanted("model.pt", f"{URL}/{KEY}", of if etag is None else of._replace(etag=etag))
    fetch = Fetch(f"{URL}/run", str(part), {wanted.url}, replace(ReadOptions(), jobs=1), progress)
    fetch.files([wanted])
    return (part / "model.pt").read_bytes()


def ended_after(store: Counted, part: Path, cells: int) -> None:
    """Bring the file until so many cells have arrived, and leave behind what is written then. (That a process
    which is killed leaves no more than this, tests/stores/test_stage.py tries at each call.)
    """
    arrived = 0

    def progress(_: int) -> None:
        nonlocal arrived
        arrived += 1
        if arrived > cells:
            raise OSError(errno.EIO, "this is the end")

    with pytest.raises(CannotLook, match="this is the end"):
        fetched(part, progress)
    store.cells.clear()


def test_only_what_has_not_come_is_fetched(store: Counted, tmp_path: Path) -> None:
    ended_after(store, part := tmp_path / "part", 4)
    seen: list[int] = []
    data = fetched(part, seen.append)
    assert data == (tmp_path / "objects" / KEY).read_bytes()
    assert 0 < len(store.cells) == len(set(store.cells)) <= CELLS - 4
    assert sum(seen) == len(data), "what is there already is told as progress too"
    assert [p.name for p in part.iterdir() if p.is_dir()] == []


def test_cells_that_are_others_by_now_come_again(store: Counted, tmp_path: Path) -> None:
    """As after a power failure, when the note was on the disk and the cell was not."""
    ended_after(store, part := tmp_path / "part", 4)
    (aside,) = (p for p in part.rglob("*") if p.is_file() and p.suffix != ".cells")
    (rows,) = part.rglob("*.cells")
    damaged = 1
    assert damaged in [number for number, _ in struct.iter_unpack("<Q8s", rows.read_bytes())]
    with aside.open("r+b") as file:
        file.seek(damaged * CHUNK + 77)
        file.write(b"\xff\xfe\xfd\xfc")
    rows.write_bytes(rows.read_bytes() + b"cut off")
    assert fetched(part) == (tmp_path / "objects" / KEY).read_bytes()
    assert damaged in store.cells


def test_cells_of_another_object_are_none_of_this(store: Counted, tmp_path: Path) -> None:
    ended_after(store, part := tmp_path / "part", 4)
    path = tmp_path / "objects" / KEY
    before = path.stat()
    torch.save({"w": torch.arange(CELLS * CHUNK // 4 + 1000, dtype=torch.int32).flip(0)}, path)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns + 10**9))
    assert fetched(part) == path.read_bytes()
    assert set(store.cells) == set(range(CELLS))


def test_what_has_two_names_comes_once(store: Counted, tmp_path: Path) -> None:
    tree, _ = mounts.tree_of(URL)
    tree.refresh("run")
    (part := tmp_path / "part").mkdir()
    wanted = [Wanted(name, f"{URL}/{KEY}", tree.object(KEY)) for name in ("a/model.pt", "b/model.pt")]
    fetch = Fetch(f"{URL}/run", str(part), (), ReadOptions(), lambda n: None)
    records = fetch.files(wanted)
    assert [r.name for r in records] == ["a/model.pt", "b/model.pt"]
    data = (tmp_path / "objects" / KEY).read_bytes()
    assert all((part / r.name).read_bytes() == data for r in records)
    assert sorted(store.cells) == list(range(CELLS))
