"""What tests of commands that write share: a process in which they are killed, or fail, at any call that writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from preloaded import Child, Ended

from ckpt_tools.api import plan
from ckpt_tools.errors import CkptError
from ckpt_tools.model.selection import Selection


@dataclass(frozen=True)
class Stop:
    """How a command is stopped at one of its calls: killed (0), or the call fails with an errno. Of five
    calls that follow each other one is killed at and one fails, unless it is ``every`` one.
    """

    errno: int
    every: bool = False

    def at(self, nth: int) -> bool:
        return self.every or {1: 0, 3: ERRORS[nth // 5 % len(ERRORS)]}.get(nth % 5) == self.errno


_NAMES = {0: "kill", **errno.errorcode}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
_NIGHTLY = pytest.mark.exhaustive
_ROWS = [Stop(e, every) for every in (False, True) for e in (0, *ERRORS)]
STOPS = [
    pytest.param(s, id=_NAMES[s.errno] + " every time" * s.every, marks=() if n < 2 else _NIGHTLY)
    for n, s in enumerate(_ROWS)
]


@dataclass(frozen=True)
class Run(Ended):
    """With the calls that write, in order."""

    calls: list[str]


def step(root: Path) -> int | str | None:
    """What a job resumes from: the step, or the class of the error."""
    try:
        chosen = plan(root, Selection(settle=0)).checkpoint
    except CkptError as e:
        return type(e).__name__
    return chosen.step if chosen else None


class Commands(Child):
    """A process that runs one command after the other, each in a copy of itself."""

    def __init__(self) -> None:
        super().__init__("kill_points", "kill_points_child")

    def run(self, words: Sequence[str], directory: Path, nth: int = 0, errno: int = 0) -> Run:
        """``nth`` counts the calls that write at or below ``directory``, from 1; with 0 the command runs
        undisturbed. It is killed before that call is made, or, with an ``errno``, the call fails.
        """
        told = {"words": list(words), "directory": str(directory), "nth": nth, "errno": errno}
        return Run(**json.loads(self.say(told)))


def files_of(root: Path, *, state: bool = True) -> dict[str, str]:
    """Every file below a root with a digest of its bytes, or where the link leads; without ``state`` not those
    of ``.ckpt``.
    """
    made = dict[str, str]()
    for directory, below, names in os.walk(root):
        if not state and ".ckpt" in below:
            below.remove(".ckpt")
        for path in (Path(directory, name) for name in names):
            text = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
            made[str(path.relative_to(root))] = text
    return made


def bytes_of(root: Path) -> set[str]:
    """What is in the files below a root, wherever they lie, but for the journal and its lock: nothing is lost
    while this stays.
    """
    own = (".ckpt/journal.jsonl", ".ckpt/lock")
    return {text for path, text in files_of(root).items() if not path.startswith(own)}
