"""Directories in order: each once, and what cannot be seen with its error."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt_tools.storage import listing
from ckpt_tools.storage.listing import walk
from ckpt_tools.storage.retry import exists, is_directory, is_file, is_link, lstat, status


class Seen(list[os.DirEntry[str]]):
    """All entries; the files among them are asked about."""

    def to_stat(self) -> Iterator[os.DirEntry[str]]:
        return (e for e in self if e.name.endswith(".ckpt"))


def look(_: str, entries: list[os.DirEntry[str]]) -> Seen:
    return Seen(entries)


def names(root: Path, threads: int = 8) -> list[tuple[str, list[str] | int | None]]:
    seen = walk(str(root), look, threads)
    return [(p, e.errno if isinstance(e, OSError) else [x.name for x in e]) for p, e in seen]


def tree(root: Path, seed: int) -> None:
    """Directories, files, links between directories (up, down and sideways), dangling links, one that nobody
    may list.
    """
    rng, directories = random.Random(seed), [root]
    root.mkdir()
    for i in range(60):
        above = rng.choice(directories)
        what = rng.randrange(10)
        if what < 5:
            (above / f"d{i}").mkdir()
            directories.append(above / f"d{i}")
        elif what < 7:
            (above / f"l{i}").symlink_to(rng.choice(directories), target_is_directory=True)
        elif what < 8:
            (above / f"gone{i}").symlink_to("nowhere")
        else:
            for k in range(rng.randrange(90)):
                (above / f"f{i}-{k}.ckpt").write_bytes(b"x")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_each_real_directory_is_seen_once(tmp_path: Path, seed: int) -> None:
    tree(tmp_path / "t", seed)
    one, many = names(tmp_path / "t", 1), names(tmp_path / "t")
    assert many == one
    real = [os.path.realpath(p) for p, _ in one]
    assert len(set(real)) == len(real) == sum(1 for _ in os.walk(tmp_path / "t"))


def test_loops_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for i in range(5):
        (tmp_path / "a" / "b" / f"up{i}").symlink_to(tmp_path, target_is_directory=True)
        (tmp_path / "a" / f"self{i}").symlink_to(".", target_is_directory=True)
    looked = []
    told = list(walk(str(tmp_path), lambda path, entries: (looked.append(path), look(path, entries))[1]))
    assert [p for p, _ in told] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert len(looked) <= 3 + 10  # each link once


@pytest.mark.slow
def test_only_files_that_are_asked_about_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [tmp_path / f"d{i}" / f"{k}.ckpt" for i in range(20) for k in range(70)]
    for path in wanted:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        path.with_suffix(".log").touch()
    asked: list[str] = []
    real = listing._stat_all
    monkeypatch.setattr(listing, "_stat_all", lambda some: (asked.extend(e.path for e in some), real(some)))
    for _, entries in walk(str(tmp_path), look, 8):
        assert not isinstance(entries, OSError)
        assert {e.path for e in entries.to_stat()} <= set(asked)  # before its turn
    assert sorted(asked) == sorted(map(str, wanted))


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a\0/../b"])
def test_what_no_file_system_can_hold_is_not_there(name: str, tmp_path: Path) -> None:
    """Texts in files, such as trackers and JSON, may name it."""
    path = f"{tmp_path}/{name}"
    assert not any(asked(path) for asked in (exists, is_file, is_directory, is_link))
    for asked in (status, lstat):
        with pytest.raises(FileNotFoundError):
            asked(path)
