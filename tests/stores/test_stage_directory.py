"""What somebody else has put into a staged checkpoint, whole or on its way, or put in the place of something of it:
the next start stops and names it, or brings its own file again. What is not ckpt's is never loaded, nor written to.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores.asking import TREE, ask
from stores.calls import URL, contents, desk_of

NEWEST, OLDER = "iter_0000030", "iter_0000010"
FILE = f"{NEWEST}/mp_rank_00/model_optim_rng.pt"
Put = Callable[[Path, Path], object]
"""Puts something into a directory; the second one lies elsewhere and has an older save in it."""


def in_place_of(path: str, put: Callable[[Path, Path], object]) -> Put:
    def done(directory: Path, other: Path) -> None:
        at = directory / path  # "." is the directory itself
        if at.is_dir():
            shutil.rmtree(at)
        else:
            at.unlink(missing_ok=True)
        at.parent.mkdir(parents=True, exist_ok=True)
        put(at, other)

    return done


def link(at: Path, other: Path) -> None:
    at.symlink_to(other / OLDER)


def link_to_nothing(at: Path, other: Path) -> None:
    (other / "empty").mkdir(parents=True)
    at.symlink_to(other / "empty")


STRANGE: dict[str, Put] = {
    "file": lambda directory, _: (directory / "x.pt").write_bytes(b"x"),
    "save": lambda directory, _: shutil.copytree(TREE / OLDER, directory / "iter_0000040"),
    "link to a file": lambda directory, other: (directory / "x.pt").symlink_to(other / FILE),
    "link to a save": lambda directory, other: link(directory / "iter_0000040", other),
    "directory": lambda directory, _: (directory / "iter_0000040").mkdir(),
    "pipe": lambda directory, _: os.mkfifo(directory / "x.pt"),
    "link for a directory": in_place_of(NEWEST, link),
    "directory for a file": in_place_of(FILE, lambda at, _: at.mkdir()),
    "pipe for the note": in_place_of(".ckpt-stage.json", lambda at, _: os.mkfifo(at)),
    "link for all of it": in_place_of(".", link_to_nothing),
    "open directory": in_place_of(NEWEST, lambda at, _: (at.mkdir(), at.chmod(0o777))),
}
REPLACED: dict[str, Put] = {
    "pipe": in_place_of(FILE, lambda at, _: os.mkfifo(at)),
    "link": in_place_of(FILE, lambda at, other: at.symlink_to(other / FILE.replace(NEWEST, OLDER))),
    "older save's": in_place_of(FILE, lambda at, _: shutil.copy2(TREE / FILE.replace(NEWEST, OLDER), at)),
    "none": in_place_of(FILE, lambda _at, _other: None),
    "other bytes": lambda directory, _: (directory / FILE).write_bytes(b"x" * (TREE / FILE).stat().st_size),
    "another tracker": lambda directory, _: (directory / "latest_checkpointed_iteration.txt").write_text(
        "99"
    ),
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where it is staged; the store is a directory of this machine."""
    with desk_of(TREE, tmp_path) as desk:
        desk.fresh()
        yield tmp_path / "ssd"


def staged(home: Path, code: int = 0) -> Path:
    """The copy, with all that was to be copied."""
    said = ask("stage", f"{URL}/run", str(home), "--json")
    assert said.code == code, said.text
    if code:
        return home
    copy = Path(said.json["directory"])
    found = {name: data for name, data in contents(copy).items() if not name.startswith(".ckpt-")}
    assert {name for name in found if "iter_" in name} == {f"{NEWEST}/{p}" for p in contents(TREE / NEWEST)}
    assert all(data == (TREE / name).read_bytes() for name, data in found.items())
    return copy


BY_DAY = {"link to a save", "open directory", "save"}
ROWS = [pytest.param(what, marks=() if what in BY_DAY else pytest.mark.exhaustive) for what in STRANGE]


@pytest.mark.parametrize("what", ROWS)
def test_what_ckpt_has_not_brought_stops_it(home: Path, what: str, tmp_path: Path) -> None:
    copy, other = staged(home), tmp_path / "other"
    shutil.copytree(TREE, other)
    before = contents(other)
    STRANGE[what](copy, other)
    staged(home, 2)
    assert contents(other) == before


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_not_the_copy_any_more_is_brought_again(home: Path, what: str, tmp_path: Path) -> None:
    shutil.copytree(TREE, tmp_path / "other")
    before = contents(tmp_path / "other")
    REPLACED[what](staged(home), tmp_path / "other")
    staged(home)
    assert contents(tmp_path / "other") == before


@pytest.fixture
def old(home: Path) -> Path:
    """A copy of an older save that no job uses any more."""
    copy = Path(ask("stage", f"{URL}/run", str(home), "--json", "--max-step", "10").json["directory"])
    used = home / f".ckpt-stage/{copy.name}.use"
    used.unlink()  # this process has it locked
    used.touch(0o644)
    return copy


def removed(home: Path) -> list[str]:
    return list(ask("stage", f"{URL}/run", str(home), "--json", "--keep", "1").json["removed"])


def test_an_old_one_that_cannot_be_removed_stops_nothing(
    home: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that root has staged, say."""
    rename = os.rename

    def refused(path: str, to: str, **at: int | None) -> None:
        if path == str(old):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        rename(path, to, **at)

    monkeypatch.setattr(os, "rename", refused)
    assert removed(home) == []
    assert old.exists()
