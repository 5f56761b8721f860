"""Progress on stderr: a bar on a terminal once a run turns out to be long, or lines for a wrapper."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckpt_tools.cli import console
from ckpt_tools.output.words import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from ckpt_tools.cli.output import Output

PATIENCE = 0.5
"""Seconds after which a bar is shown."""
_ROOM = 40
"""The most characters of a path next to the bar."""
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
    """Draws a bar of the bytes. Rich is imported only when a bar is really shown."""

    def __init__(self, color: bool) -> None:
        super().__init__()
        self.color = color
        self.shown: Progress | None = None

    def listing(self, path: str) -> None:
        self.path = f"listing {path}"
        self(0, 1)

    def say(self, state: str) -> None:
        is_long = self.reported - self.started >= PATIENCE and self.done < self.total
        if self.shown is None and is_long and state == "reading":
            self._show()
        if self.shown is not None:
            where = printable(self.path or "")
            where = where if len(where) <= _ROOM else f"…{where[1 - _ROOM :]}"
            task = self.shown.task_ids[0]
            self.shown.update(task, completed=self.done, total=self.total, description=where)
            self.shown.refresh()
            if state != "reading":
                self.shown.stop()
                self.shown = None

    def _show(self) -> None:
        """Draw the bar for the first time."""
        from rich import progress as bars
        from rich.console import Console
        from rich.table import Column

        stderr = Console(stderr=True, no_color=not self.color, force_terminal=True, legacy_windows=False)
        whole = Column(no_wrap=True)
        # The reading threads draw the bar: a thread of rich would keep this process from forking the readers
        # (ckpt_tools/reading/engines.py).
        self.shown = bars.Progress(
            bars.BarColumn(),
            bars.DownloadColumn(binary_units=True, table_column=whole),
            bars.TransferSpeedColumn(table_column=whole),
            bars.TimeRemainingColumn(table_column=whole),
            bars.TextColumn("{task.description}", markup=False, table_column=whole),
            console=stderr,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.shown.add_task("", completed=self.done, total=self.total)
        self.shown.start()


@contextmanager
def progress(to: Output) -> Iterator[Meter | Lines | None]:
    """Yield a meter; None with --quiet or without a terminal, unless --progress asks for one."""
    is_silent = to.progress == "auto" and (to.quiet or not console.terminal(sys.stderr))
    if to.progress == "none" or is_silent:
        yield None
        return
    watcher = Lines() if to.progress == "json" else Meter(console.is_colored(to.color, sys.stderr))
    state = "stopped"
    watcher.say("started")
    try:
        yield watcher
        state = "done"
    finally:
        watcher.say(state)
