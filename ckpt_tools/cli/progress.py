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

BIG = 64 * 1024 * 1024
"""Bytes from which a bar is shown at once."""
PATIENCE = 0.5
"""Seconds after which a bar is shown in any case."""
_ROOM = 40
"""The most characters of a path next to the bar."""
INTERVAL = 0.25
"""The least seconds between two lines for a wrapper."""


class _Watcher:
    """Receives progress (bytes done, bytes in all) from any thread, and shows it every ``pause`` seconds."""

    pause = INTERVAL

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started = self.said = time.monotonic()
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = max(self.done, done), max(total, done)
        self.tell()

    def tell(self) -> None:
        # A thread that finds the lock taken returns: reading must not wait for the display.
        if time.monotonic() - self.said >= self.pause and self.lock.acquire(blocking=False):
            try:
                self.said = time.monotonic()
                self.say("reading")
            finally:
                self.lock.release()

    def say(self, state: str) -> None:
        raise NotImplementedError

    def stop(self, state: str = "done") -> None:
        self.say(state)


class Meter(_Watcher):
    """Draws a bar of the bytes. Rich is imported only when a bar is really shown."""

    pause = 0.1

    def __init__(self, color: bool) -> None:
        super().__init__()
        self.color = color
        self.shown: Progress | None = None
        self.where = ""

    def file(self, path: str, total: int | None) -> None:  # noqa: ARG002 - as Lines.file
        text = printable(path)
        self.where = text if len(text) <= _ROOM else f"…{text[1 - _ROOM :]}"

    def listing(self, path: str) -> None:
        self.file(path, None)
        self.where = f"listing {self.where}"
        self(0, 1)

    def say(self, state: str) -> None:  # noqa: ARG002 - as Lines.say
        due = self.total >= BIG or self.said - self.started >= PATIENCE
        if self.shown is None and due and self.done < self.total:
            self._show()
        if self.shown is not None:
            task = self.shown.task_ids[0]
            self.shown.update(task, completed=self.done, total=self.total, description=self.where)
            self.shown.refresh()

    def _show(self) -> None:
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

    def stop(self, state: str = "done") -> None:  # noqa: ARG002 - as Lines.stop
        with self.lock:
            if self.shown is not None:
                self.shown.stop()
                self.shown = None


class Lines(_Watcher):
    """Prints progress as a JSON object per line: at the start, a few times a second, and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.files = set[str]()
        self.files_total: int | None = None
        self.path: str | None = None
        self.say("started")

    def file(self, path: str, total: int | None) -> None:
        with self.lock:
            self.files.add(path)
        self.path, self.files_total = path, total
        self.tell()

    def say(self, state: str) -> None:
        self.said = time.monotonic()
        seconds, files = self.said - self.started, len(self.files)
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


@contextmanager
def progress(to: Output) -> Iterator[Meter | Lines | None]:
    """Yield a meter; None with --quiet or without a terminal, unless --progress asks for one."""
    is_silent = to.progress == "auto" and (to.quiet or not console.terminal(sys.stderr))
    if to.progress == "none" or is_silent:
        yield None
        return
    watcher = Lines() if to.progress == "json" else Meter(console.is_colored(to.color, sys.stderr))
    state = "stopped"
    try:
        yield watcher
        state = "done"
    finally:
        watcher.stop(state)
