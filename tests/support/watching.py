"""``ckpt watch`` as a real process, whose events are waited for as they come."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm
from run_helpers import CKPT, CLEAN

Event = dict[str, Any]


class Watching:
    """A process that watches; ``seen`` are its events so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.seen = process, list[Event]()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def until(self, wanted: Callable[[Event], object]) -> Event:
        """The next event that is wanted; a process that ends before fails the test."""
        while True:
            line = self._lines.get()
            assert line, ("it ended", self.process.wait(), self.seen)
            self.seen.append(json.loads(line))
            if wanted(self.seen[-1]):
                return self.seen[-1]

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal, and read the rest: its exit code."""
        self.process.send_signal(number)
        while line := self._lines.get():
            self.seen.append(json.loads(line))
        return self.process.wait()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.seen if event["type"] == kind]


def env(tmp: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A user whose state lies in a directory of the test."""
    own = {"XDG_STATE_HOME": str(tmp / "state"), "CKPT_CACHE_DIR": str(tmp / "cache")}
    return {**CLEAN, **own, **(more or {})}


@contextmanager
def watching(tmp: Path, *words: object, more: Mapping[str, str] | None = None) -> Iterator[Watching]:
    """``ckpt watch WORDS``, ended with the test."""
    command = [*CKPT, "watch", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env(tmp, more), cwd=tmp) as process:
        try:
            yield Watching(process)
        finally:
            if process.poll() is None:
                process.kill()


def once(tmp: Path, *words: object, more: Mapping[str, str] | None = None) -> tuple[int, list[Event], str]:
    """``ckpt watch WORDS --once``: its exit code, its events, and what it says on stderr."""
    done = warm.completed(["watch", *map(str, words), "--once"], env(tmp, more), tmp)
    return done.returncode, [json.loads(line) for line in done.stdout.split("\n") if line], done.stderr


def states(events: list[Event]) -> dict[int, str]:
    """The state of each checkpoint that was told of, by step."""
    return {e["step"]: e["state"] for e in events if e["type"] == "checkpoint"}
