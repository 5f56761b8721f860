"""A pipe, a socket, a device, a directory or a link in place of any file of a tree: no command waits for what
nobody will ever write, none fails in a way that it does not know, and no older checkpoint is chosen without a
word.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import executed
from places import FIXTURES

TREES = ("megatron/tp", "dcp/two", "hf-trainer/trainer", "deepspeed/zero1", "orbax/cut")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))  # which may have 107 bytes


def pipe_elsewhere(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}.pipe"))
    path.symlink_to(f"{path.name}.pipe")


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": pipe_elsewhere,
    "socket": a_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "loop": lambda path: path.symlink_to(path.name),
    "link above": lambda path: path.symlink_to(".."),
    "dangling": lambda path: path.symlink_to("none"),
    "directory": Path.mkdir,
}
COMMANDS = (
    "plan @ --json --allow none", "ls @", "verify @", "verify !", "show !", "latest @ --rank 0", "seal @", "prune @ --keep-last 1", "diff @ @",
    "quarantine @", "repair @", "hook @ --plan-dir plans", "report @ -o page.html", "watch @ --once --settle 0s --state-dir watched",
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


def asked(line: str, root: Path, path: Path) -> tuple[int, str, str]:
    words = [{"@": str(root), "!": str(path)}.get(word, word) for word in line.split()]
    return executed(words)


def step(code: int, printed: str) -> Any:
    return json.loads(printed).get("resume_step") if code == 0 else None


def rows() -> Iterator[Any]:
    """Each kind once for each tree, in place of one file after the other; by day two of them."""
    for tree in TREES:
        home = FIXTURES / "layouts" / tree / "tree"
        files = sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file())
        for number, kind in enumerate(KINDS):
            by_day = tree == TREES[0] and kind in ("pipe", "dangling")
            marks = () if by_day else pytest.mark.exhaustive
            yield pytest.param(tree, files[number * 5 % len(files)], kind, id=f"{tree}-{kind}", marks=marks)


@pytest.mark.share(4)
@pytest.mark.parametrize(("tree", "file", "kind"), list(rows()))
def test_what_is_no_file_keeps_nobody(
    tree: str, file: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, state = tmp_path / "run", tmp_path / "state"
    shutil.copytree(FIXTURES / "layouts" / tree / "tree", root)
    state.mkdir()
    monkeypatch.chdir(state)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("CKPT_NO_CACHE", "1")
    monkeypatch.setenv("CKPT_JOBS", "1")
    usual = step(*asked(COMMANDS[0], root, root)[:2])
    path = root / file
    path.unlink()
    KINDS[kind](path)
    WATCHED[:], BLOCKING[:] = [tmp_path], []
    try:
        for line in COMMANDS:
            code, printed, error = asked(line, root, path)
            assert code in range(7) and "Traceback" not in error, (line, code, error)
            assert not BLOCKING, line
            if line.startswith("plan") and code == 0:
                told = any(words in error for words in SAID)
                assert step(code, printed) == usual or told, error
    finally:
        WATCHED.clear()
