"""Runs and steps below a directory, by the names of directories and files alone: what a shell offers must be
there at once, also where a file system is slow or gone.

A guess beside ``ckpt ls``, which knows every layout: it offers too little where only a layout, or contents,
tell.
"""

from __future__ import annotations

import os
import re
from _thread import allocate_lock, start_new_thread  # threading takes longer to import than all of this
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 0.25
"""How long to wait for a file system."""
ENTRIES = 20_000
"""How many names to look at."""
DEPTH = 4
"""How many directories deep."""

SAVE = re.compile(r"(?:[a-z_]*?(?:iter|step)s?[-_=]?|checkpoint-)(\d{1,15})", re.IGNORECASE)
"""The whole name of a directory that is one save, and its step. (``checkpoint_3`` may count saves.)"""
FILE = re.compile(r"(?:.*[-_.])?(?:iter|step)s?[-_=]?(\d{1,15})(?:[-_.][\w.-]*)?\.\w+", re.IGNORECASE)
"""The whole name of a file that tells its step."""


class Names(NamedTuple):
    """What was found: runs by name, steps from the latest on."""

    runs: list[str]
    steps: list[str]


def names(root: str, seconds: float = SECONDS) -> Names:
    """The runs and steps below ``root``, as many as could be seen in time."""
    runs, steps = set[str](), set[int]()
    in_time(lambda: _walk(root, runs, steps), seconds)
    return in_order(runs.copy(), steps.copy())


def in_order(runs: set[str], steps: set[int]) -> Names:
    """As they are offered."""
    return Names(sorted(runs), [str(step) for step in sorted(steps, reverse=True)])


def in_time(work: Callable[[], object], seconds: float) -> None:
    """Let ``work`` go on for so long: a call that hangs in the kernel cannot be ended, so whoever asked goes
    on without it.
    """
    done = allocate_lock()
    done.acquire()

    def working() -> None:
        try:
            work()
        finally:
            done.release()

    start_new_thread(working, ())
    done.acquire(timeout=seconds)


def _walk(root: str, runs: set[str], steps: set[int]) -> None:
    """Level by level, so that what is nearest counts when there is no time for more."""
    left, level = ENTRIES, [""]
    for _ in range(DEPTH):
        below = list[str]()
        for inside in level:
            try:
                with os.scandir(os.path.join(root, inside)) as entries:
                    for entry in entries:
                        left -= 1
                        if left < 0:
                            return
                        _note(entry, inside, below, (runs, steps))
            except OSError:
                continue  # the others may answer
        level = below


def _note(entry: os.DirEntry[str], inside: str, below: list[str], found: tuple[set[str], set[int]]) -> None:
    runs, steps = found
    if entry.name.startswith("."):
        return
    if not entry.is_dir():
        if m := FILE.fullmatch(entry.name):
            steps.add(int(m[1]))
    elif m := SAVE.fullmatch(entry.name):
        steps.add(int(m[1]))
        if inside and not os.path.basename(inside).startswith("_"):  # a part of a save beside others
            runs.add(inside)
    else:
        below.append(os.path.join(inside, entry.name))
