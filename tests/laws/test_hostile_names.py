"""Names of any bytes: no control character and no turn of the writing direction reaches a terminal, JSON gives
each path back, and what a shell is given names the file.

A pipe, a socket, a device, a directory or a link in place of any file of a tree: no command waits for what
nobody will ever write, none fails in a way that it does not know, and no older checkpoint is chosen without a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from in_process import executed
from places import FIXTURES

NAMES = {
    "no UTF-8": b"\xff\xfe", "lines": b"a\nckpt: note: forged\n::error::forged\rc", "escapes": b"\x1b[31mred\x1b]0;title\x07\x08\x7f",
    "of 8 bits": b"\xc2\x9b31m", "right to left": b"\xe2\x80\xaegpj\xe2\x81\xa6x\xe2\x80\x8f", "separators": b"\xe2\x80\xa8a\xe2\x80\xa9",
    "for a shell": b"-a b'\"$(x)`y`;*&\\",
}  # fmt: skip
PLACES = ("root", "run", "file", "directory")
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
FORGED = re.compile(r"^\s*(ckpt: note: |::error::)forged", re.MULTILINE)
"""The rest of a name with line breaks, as a line of its own."""
TREE = FIXTURES / "layouts/megatron/tp/tree"
COMMANDS = (
    "ls @", "plan @ {run}", "plan @ --explain {run}", "verify @", "verify @ --level nonsense", "show !", "diff @ @", "@",
    "prune @ --keep-last 1 --settle 0s", "quarantine @", "repair @", "seal @", "watch @ --once --settle 0s --state-dir watched",
    "plan @ --run !", "latest @ --rank 0 {run} --json -o answer",
)  # fmt: skip
WITH_JSON = ("ls @", "plan @ {run}", "verify @", "show !", "latest @ --rank 0 {run}", "diff @ @", "seal @")


def made(place: str, name: bytes, home: Path) -> tuple[bytes, bytes]:
    """(a tree that has the name somewhere, a file of it)."""
    top = os.fsencode(home / "top")
    root = os.path.join(top, name) if place == "root" else top
    below = os.path.join(root, name) if place == "run" else root
    shutil.copytree(os.fsencode(TREE), below)
    if place == "run":
        shutil.copytree(os.fsencode(TREE), os.path.join(root, b"other"))
    inside = os.path.join(below, b"iter_0000030")
    if place in ("root", "run"):
        return root, os.path.join(inside, b"mp_rank_00/model_optim_rng.pt")
    if place == "directory":
        inside = os.path.join(inside, name)
        os.mkdir(inside)
    file = os.path.join(inside, name + b".pt")
    shutil.copyfile(os.path.join(below, b"iter_0000030/mp_rank_00/model_optim_rng.pt"), file)
    return root, file


def asked(line: str, root: bytes, file: bytes, run: Sequence[str] = ()) -> tuple[int, str, str]:
    known = {"@": [os.fsdecode(root)], "!": [os.fsdecode(file)], "{run}": [*run]}
    words = [given for word in line.split() for given in known.get(word, [word])]
    return executed(words)


def paths(value: Any) -> Iterator[str]:
    """All absolute paths in a document."""
    if isinstance(value, dict):
        yield from (p for k, v in value.items() if k in ("path", "root") for p in paths([v]))
        yield from (p for v in value.values() if isinstance(v, dict | list) for p in paths(v))
    elif isinstance(value, list):
        yield from (v for v in value if isinstance(v, str) and v.startswith("/"))
        yield from (p for v in value if isinstance(v, dict | list) for p in paths(v))


@pytest.mark.share(28)
@pytest.mark.parametrize(("place", "name"), list(product(PLACES, NAMES)))
def test_names_of_any_bytes(place: str, name: str, home: Path) -> None:
    root, file = made(place, NAMES[name], home)
    run = ["--run", os.fsdecode(NAMES[name])] if place == "run" else []
    for line in COMMANDS:
        code, printed, error = asked(line, root, file, run)
        assert code in range(7) and "Traceback" not in error, (line, code, error)
        assert not UNSEEN.search(printed + error), (line, printed, error)
        assert not FORGED.search(printed + error), (line, printed, error)
    for line in WITH_JSON:
        code, printed, error = asked(f"{line} --json", root, file, run)
        assert printed.isascii() or not UNSEEN.search(printed), line
        told = [os.fsencode(path) for path in paths(json.loads(printed))]
        assert [path for path in told if not os.path.lexists(path)] == [], line
        assert told or code == 2, (line, error)  # a file of a checkpoint that nothing loads is a question
    code, printed, error = asked("latest @ --rank 0 {run}", root, file, run)
    if code == 0:
        assert os.path.exists(os.fsencode(printed[:-1])), printed
    else:  # a path with a line break is none per line
        assert place in ("file", "directory") or "holds a line break" in error, error


TREES = ("megatron/tp", "dcp/two", "hf-trainer/trainer", "deepspeed/zero1", "orbax/cut")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # which may have 107 bytes


def pipe_elsewhere(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}.pipe"))
    path.symlink_to(f"{path.name}.pipe")


def link_to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target.format(path.name))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo, "link to a pipe": pipe_elsewhere, "socket": a_socket, "device": link_to("/dev/zero"),
    "terminal": link_to("/dev/tty"), "loop": link_to("{}"), "link above": link_to(".."),
    "dangling": link_to("none"), "directory": Path.mkdir,
}  # fmt: skip
ASKED_OF_FILES = (
    "plan @ --json --allow none", "ls @", "verify @", "verify !", "show !", "latest @ --rank 0", "seal @", "prune @ --keep-last 1",
    "diff @ @", "quarantine @", "repair @", "hook @ --plan-dir plans", "report @ -o page.html",
    "watch @ --once --settle 0s --state-dir watched",
)  # fmt: skip
SAID = ("was skipped", "passed over", "newer than the choice")
WATCHED: list[Path] = []
BLOCKING: list[str] = []


def _opened(event: str, args: tuple[Any, ...]) -> None:
    """Note what is opened so that it may wait for somebody, and refuse it: the test is to end."""
    if event != "open" or not WATCHED or not isinstance(args[0], str | bytes):
        return
    path = os.fsdecode(args[0])
    with contextlib.suppress(OSError):
        waits = stat.S_ISFIFO(os.stat(path).st_mode) if path.startswith(str(WATCHED[0])) else False
        if waits and not args[2] & os.O_NONBLOCK:
            BLOCKING.append(path)
            raise PermissionError(path)


@pytest.fixture(autouse=True, scope="module")
def _audited() -> Iterator[None]:
    sys.addaudithook(_opened)  # for good, as there is no way to take one away
    yield
    WATCHED.clear()


def step(code: int, printed: str) -> Any:
    return json.loads(printed).get("resume_step") if code == 0 else None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of somebody's own, whose cache nobody uses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    monkeypatch.setenv("CKPT_JOBS", "1")
    (tmp_path / "state").mkdir()
    monkeypatch.chdir(tmp_path / "state")
    return tmp_path


@pytest.mark.share(22)
@pytest.mark.parametrize(("tree", "kind"), list(product(TREES, KINDS)))
def test_what_is_no_file_keeps_nobody(tree: str, kind: str, home: Path) -> None:
    """In place of one file after the other: each kind of another one."""
    root = Path(shutil.copytree(FIXTURES / "layouts" / tree / "tree", home / "run"))
    usual = step(*asked(ASKED_OF_FILES[0], os.fsencode(root), b"")[:2])
    files = sorted(p for p in root.rglob("*") if p.is_file())
    path = files[[*KINDS].index(kind) * 5 % len(files)]
    path.unlink()
    KINDS[kind](path)
    WATCHED[:], BLOCKING[:] = [home], []
    try:
        for line in ASKED_OF_FILES:
            code, printed, error = asked(line, os.fsencode(root), os.fsencode(path))
            assert code in range(7) and "Traceback" not in error, (line, code, error)
            assert not BLOCKING, line
            if line.startswith("plan") and code == 0:
                told = any(words in error for words in SAID)
                assert step(code, printed) == usual or told, error
    finally:
        WATCHED.clear()
