"""Directories in order: each once, and what cannot be seen with its error."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from ckpt_tools.storage.listing import list_entries, stat_ahead, walk
from ckpt_tools.storage.retry import exists, is_directory, is_file, is_link, lstat, status


def names(root: Path) -> list[tuple[str, list[str] | int | None]]:
    return [(p, e.errno if isinstance(e, OSError) else [x.name for x in e]) for p, e in walk(str(root))]


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
    real = [os.path.realpath(p) for p, _ in names(tmp_path / "t")]
    assert len(set(real)) == len(real) == sum(1 for _ in os.walk(tmp_path / "t"))


def test_loops_end(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for i in range(5):
        (tmp_path / "a" / "b" / f"up{i}").symlink_to(tmp_path, target_is_directory=True)
        (tmp_path / "a" / f"self{i}").symlink_to(".", target_is_directory=True)
    assert [p for p, _ in names(tmp_path)] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_what_was_asked_ahead_is_not_asked_again(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"{i}.ckpt").touch()
    entries = list_entries(str(tmp_path))
    stat_ahead(entries)
    shutil.rmtree(tmp_path)
    assert {e.stat().st_size for e in entries} == {0}


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a\0/../b"])
def test_what_no_file_system_can_hold_is_not_there(name: str, tmp_path: Path) -> None:
    """Texts in files, such as trackers and JSON, may name it."""
    path = f"{tmp_path}/{name}"
    assert not any(asked(path) for asked in (exists, is_file, is_directory, is_link))
    for asked in (status, lstat):
        with pytest.raises(FileNotFoundError):
            asked(path)
