"""Progress on stderr: a bar on a terminal once a run turns out to be long, or lines for a wrapper."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckpt_tools.cli import console
from ckpt_tools.output.words import printable, size, span

if TYPE_CHECKING:
    from ckpt_tools.cli.output import Output

PATIENCE = 0.5
"""Seconds after which a bar is shown."""
_BAR, _ROOM = 20, 40
"""The characters of the bar, and the most of a path next to it."""
INTERVAL = 0.25
"""The least seconds between two reports."""


class Watcher:
    """Receives bytes (done, in all) and files from any thread, and says a few times a second where it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started = self.reported = time.monotonic()
        self.done = self.total = 0
        self.files = set[str]()
        self.files_total: int | None = None
        self.path: str | None = None

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = max(self.done, done), max(total, done)
        self.tell()

    def file(self, path: str, total: int | None) -> None:
        with self.lock:
            self.files.add(path)
        self.path, self.files_total = path, total
        self.tell()

    def tell(self) -> None:
        # A thread that finds the lock taken returns: reading must not wait for the display.
        if time.monotonic() - self.reported >= INTERVAL and self.lock.acquire(blocking=False):
            try:
                self.reported = time.monotonic()
                self.say("reading")
            finally:
                self.lock.release()

    def say(self, state: str) -> None:
        raise NotImplementedError


class Lines(Watcher):
    """Prints progress as a JSON object per line: at the start, a few times a second, and at the end."""

    def say(self, state: str) -> None:
        seconds, files = time.monotonic() - self.started, len(self.files)
        line = {
            "type": "progress",
            "state": state,
            "bytes": self.done,
            "bytes_total": self.total,
            "files": files,
            "files_total": None if self.files_total is None else max(files, self.files_total),
            "file": self.path,
            "seconds": round(seconds, 3),
            "rate": round(self.done / seconds) if seconds > 0 else 0,
        }
        console.err(f"{json.dumps(line)}\n")


class Meter(Watcher):
    """Draws one line: a bar of the bytes, how fast they are read, what is left, and where."""

    is_shown = False

    def listing(self, path: str) -> None:
        self.path = f"listing {path}"
        self(0, 1)

    def say(self, state: str) -> None:
        seconds = self.reported - self.started
        is_long = seconds >= PATIENCE and self.done < self.total
        if state == "reading" and (self.is_shown or is_long):
            self.is_shown = True
            _draw(self._describe(seconds))
        elif self.is_shown:
            self.is_shown = False
            _draw("")

    def _describe(self, seconds: float) -> str:
        where = printable(self.path or "")
        where = where if len(where) <= _ROOM else f"…{where[1 - _ROOM :]}"
        share = self.done / max(1, self.total)
        bar = f"{'#' * round(share * _BAR):<{_BAR}}"
        rate = self.done / max(seconds, INTERVAL)
        left = f", {span((self.total - self.done) / rate)} left" if self.done else ""
        return f"[{bar}] {size(self.done)}/{size(self.total)}, {size(rate)}/s{left}  {where}"


def _draw(text: str) -> None:
    """Replace the last line of the terminal; the cursor stays at its beginning."""
    from rich.cells import set_cell_size  # imported only when a bar is really shown

    columns = 80
    with suppress(OSError, ValueError):  # stderr is no terminal
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or columns
    console.err(f"\r{set_cell_size(text, columns - 1)}\r")


@contextmanager
def progress(to: Output) -> Iterator[Meter | Lines | None]:
    """Yield a meter; None with --quiet or without a terminal, unless --progress asks for one."""
    is_silent = to.progress == "auto" and (to.quiet or not console.terminal(sys.stderr))
    if to.progress == "none" or is_silent:
        yield None
        return
    watcher = Lines() if to.progress == "json" else Meter()
    state = "stopped"
    watcher.say("started")
    try:
        yield watcher
        state = "done"
    finally:
        watcher.say(state)
