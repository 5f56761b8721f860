"""Preloaded into a worker: it notes every read and takes its time for it, dies on a file called poison, and
does not see one called elsewhere.

NOTES is a directory: one line "path offset length" per finished read in a file of the process. READ_RATE is
in bytes per second.
"""

from __future__ import annotations

import os
import signal
import time

from ckpt_tools import storage
from ckpt_tools.storage.local import HeldSource

_RATE = float(os.environ.get("READ_RATE", "inf"))
_NOTES = open(os.path.join(os.environ["NOTES"], str(os.getpid())), "a", buffering=1)  # noqa: SIM115 - as long as the worker


def _noted(path: str, offset: int, length: int) -> None:
    time.sleep(length / _RATE)
    _NOTES.write(f"{path} {offset} {length}\n")


def opened(self: storage.LocalSource, path: str) -> None:
    if path.endswith("/elsewhere/model.pt"):
        raise FileNotFoundError(2, os.strerror(2))
    _open(self, path)


def read(self: storage.LocalSource, offset: int, length: int) -> bytes:
    data = _read(self, offset, length)
    _noted(self.path, offset, length)
    return data


def read_held(self: HeldSource, offset: int, length: int) -> bytes:
    data = _read_held(self, offset, length)
    _noted(self.path, offset, length)
    return data


def readinto(self: storage.LocalSource, offset: int, buffer: memoryview) -> None:
    if self.path.endswith("/poison/model.pt"):
        os.kill(os.getpid(), signal.SIGKILL)
    _readinto(self, offset, buffer)
    _noted(self.path, offset, len(buffer))


_OF_SOURCE = storage.LocalSource
if not hasattr(storage, "slow"):  # Dask loads it twice
    storage.slow = (_OF_SOURCE.__init__, _OF_SOURCE.read, HeldSource.read, _OF_SOURCE.readinto)  # type: ignore[attr-defined]
    _OF_SOURCE.__init__, _OF_SOURCE.read, _OF_SOURCE.readinto = opened, read, readinto  # type: ignore[method-assign]
    HeldSource.read = read_held  # type: ignore[method-assign]
_open, _read, _read_held, _readinto = storage.slow
