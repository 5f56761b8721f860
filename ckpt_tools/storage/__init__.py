"""Where bytes come from: a Source is one file with ranged, counted reads, a Store lists directories."""

from __future__ import annotations

import errno

from ckpt_tools.storage.local import (
    DirectSource,
    HeldSource,
    Identity,
    LocalSource,
    OpenFile,
    ShortRead,
    Source,
    Stopped,
    count,
    count_read,
)
from ckpt_tools.storage.urls import is_url

__all__ = [
    "BytesSource",
    "Identity",
    "LocalSource",
    "OpenFile",
    "ShortRead",
    "Source",
    "Stopped",
    "Window",
    "count",
    "count_read",
    "opened",
]


def opened(path: str, io: str = "auto", *, hold: bool = False, certain: bool = False) -> OpenFile:
    """Return a file opened for reading, past the page cache if ``io`` is "direct". ``hold``: the caller will
    read the whole file. ``certain``: reads detect bytes changed on the way from a store. Raises OSError.
    """
    if is_url(path):
        from ckpt_tools.storage.stores.source import StoreSource

        return StoreSource(path, hold=hold, certain=certain)
    if io == "direct":
        return DirectSource(path)
    return HeldSource(path) if hold else LocalSource(path)


class BytesSource:
    """Bytes in memory as a Source: for tests and for records that are already read."""

    def __init__(self, data: bytes, path: str = "") -> None:
        self.data, self.path = memoryview(data), path
        self.size = len(data)
        self.bytes_read = 0

    def read(self, offset: int, length: int) -> bytes:
        if length < 0:
            raise OSError(errno.EINVAL, "Invalid argument")  # as the system does
        data = bytes(self.data[offset : offset + length]) if offset >= 0 else b""
        if len(data) < length:
            raise ShortRead(offset, length, len(data))
        self.bytes_read += length
        return data

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


class Window:
    """The ``size`` bytes of ``source`` from ``start`` on. A ShortRead carries offsets in ``source``."""

    def __init__(self, source: Source, start: int, size: int) -> None:
        self.source, self.start, self.size, self.path = source, start, size, source.path

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    def _translate(self, offset: int, length: int) -> int:
        if offset < 0 or offset + length > self.size:
            raise ShortRead(self.start + offset, length, max(0, self.size - offset))
        return self.start + offset

    def read(self, offset: int, length: int) -> bytes:
        return self.source.read(self._translate(offset, length), length)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.source.readinto(self._translate(offset, len(buffer)), buffer)
