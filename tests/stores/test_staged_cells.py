"""A large file comes in ranges, into a file of its own until it is whole; what was whole when a process was killed
is read again from the disk, and only the rest is fetched.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from stores.calls import Counted

from ckpt_tools.errors import CannotLook
from ckpt_tools.job.decision import StagedFile
from ckpt_tools.job.staging.fetching import Fetch
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.source import CHUNK
from ckpt_tools.storage.stores.tree import Tree

URL = "cells://bucket"
KEY = "run/model.pt"
CELLS = 16
"""Many more than are under way at a time."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    path = tmp_path / "objects" / KEY
    path.parent.mkdir(parents=True)
    torch.save({"w": torch.arange(CELLS * CHUNK // 4 + 1000, dtype=torch.int32)}, path)
    counted = Counted(URL, tmp_path / "objects")
    monkeypatch.setitem(mounts._trees, (URL, ()), Tree(counted))
    return counted


def cells(store: Counted) -> list[int]:
    """The numbers of those that were asked for."""
    return sorted(start // CHUNK for _, start, length in store.gets if length > CHUNK // 2)


def fetch(part: Path, *names: str, progress: Callable[[int, int], object] | None = None) -> list[str]:
    """Bring the file to ``part`` under these names, and return those of its records."""
    tree, _ = mounts.tree_of(URL)
    tree.refresh("run")
    part.mkdir(exist_ok=True)
    _, *of = tree.object(KEY)
    wanted = {name: StagedFile(str(part / name), f"{URL}/{KEY}", *of, None) for name in names}
    bring = Fetch(f"{URL}/run", str(part), {f"{URL}/{KEY}"}, replace(ReadOptions(), jobs=1), progress)
    return [r.name for r in bring.files(wanted)]


def test_what_was_not_whole_comes_anew(store: Counted, tmp_path: Path) -> None:
    arrived, part, whole = list[int](), tmp_path / "part", (tmp_path / "objects" / KEY).read_bytes()

    def progress(n: int, _: int) -> None:
        arrived.append(n)
        if len(arrived) > 4:
            raise OSError(errno.EIO, "this is the end")

    with pytest.raises((CannotLook, OSError), match="this is the end"):
        fetch(part, "model.pt", progress=progress)
    assert not (part / "model.pt").exists()
    store.gets.clear()
    fetch(part, "model.pt")
    assert (part / "model.pt").read_bytes() == whole
    assert cells(store) == list(range(CELLS))


def test_what_was_whole_is_read_from_the_disk(store: Counted, tmp_path: Path) -> None:
    part, path, seen = tmp_path / "part", tmp_path / "objects" / KEY, list[tuple[int, int]]()
    fetch(part, "model.pt")
    store.gets.clear()
    fetch(part, "model.pt", progress=lambda *n: seen.append(n))
    assert cells(store) == [] and seen == [(size := path.stat().st_size, size)]
    with (part / "model.pt").open("r+b") as file:
        file.seek(CHUNK + 77)
        file.write(b"\xff\xfe\xfd\xfc")
    fetch(part, "model.pt")
    assert (part / "model.pt").read_bytes() == path.read_bytes()
    assert cells(store) == list(range(CELLS))
    assert [p.name for p in part.iterdir() if p.is_dir()] == []


def test_what_has_two_names_comes_once(store: Counted, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert fetch(part, "a/model.pt", "b/model.pt") == ["a/model.pt", "b/model.pt"]
    data = (tmp_path / "objects" / KEY).read_bytes()
    assert all((part / name).read_bytes() == data for name in ("a/model.pt", "b/model.pt"))
    assert cells(store) == list(range(CELLS))
