"""A file of the local file system as a Source, and the errors and counters of reading it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ckpt_tools.storage.stalls import Stalled, retry_call
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from typing_extensions import Self

BUFFER = 2 * 1024 * 1024
"""Bytes per read: the kernel copies long runs out of its cache faster; 2 MiB beat 1 MiB by a tenth."""

_local = threading.local()


def own_buffer(name: str = "first") -> memoryview:
    """Return this thread's buffer called ``name``; "second" is for code that copies from it into "first". A
    buffer begins at a page: the kernel copies at half the speed to an address that is no multiple of 64.
    """
    view: memoryview | None = getattr(_local, name, None)
    if view is None:
        view = memoryview(mmap.mmap(-1, BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        setattr(_local, name, view)
    return view


class ShortRead(Exception):
    """A read got fewer bytes than it wanted: the file ends there, or shrank during the read."""

    def __init__(self, offset: int, wanted: int, got: int) -> None:
        super().__init__(f"wanted {wanted} bytes at offset {offset}, got {got}")
        self.offset, self.wanted, self.got = offset, wanted, got


class Stopped(Exception):
    """Raised by a progress callback to end a read early; findings made before it count."""


class Identity(NamedTuple):
    """The stat fields that show a change: bytes, times in ns. No program can set ctime back, unlike mtime."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)

    def settled(self, opened_ns: int) -> bool:
        """Return True if any change after ``opened_ns``, when the file was opened, must alter its identity.
        False for a file changed within one tick of the file system's clock before (git: "racily clean"). A
        time in whole seconds may come from a clock that ticks every two seconds (FAT).
        """
        return opened_ns - self.ctime_ns > (100_000_000 if self.ctime_ns % 10**9 else 2_000_000_000)


class Counter:
    """The number of bytes read in one ``count_read()`` block."""

    def __init__(self) -> None:
        self.bytes = 0


_counting: ContextVar[tuple[Counter, ...]] = ContextVar("ckpt_tools_counting", default=())


@contextmanager
def count_read() -> Iterator[Counter]:
    """Yield a counter of the bytes read from all files that are opened and closed in the block."""
    counter = Counter()
    token = _counting.set((*_counting.get(), counter))
    try:
        yield counter
    finally:
        _counting.reset(token)


def count(n: int) -> None:
    """Add ``n`` bytes, which another process has read for this one, to the active counters."""
    for counter in _counting.get():
        counter.bytes += n


class Source(Protocol):
    """One file, read by ranges. ``path`` is "" for bytes in memory; ``size`` is in bytes, at the opening;
    ``bytes_read`` counts every byte delivered. Safe for several threads.
    """

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes at ``offset``. Raise ShortRead past the end, and OSError."""
        ...

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` without a copy, releasing the GIL. Raise as ``read`` does."""
        ...


class OpenFile(ABC):
    """One open file, local or in a store, as a Source. ``stat`` is its stat at the opening."""

    def __init__(self, path: str, stat: os.stat_result) -> None:
        self.path, self.stat, self.size = path, stat, stat.st_size
        self.bytes_read = 0
        self._counters = _counting.get()  # now: other threads do not see the context variable
        self._lock = threading.Lock()  # += from several threads loses counts without it

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes: ...

    @abstractmethod
    def readinto(self, offset: int, buffer: memoryview) -> None: ...

    @abstractmethod
    def changed(self) -> bool:
        """Return True if the file was replaced or written since the opening. Raise OSError."""

    @abstractmethod
    def identity(self) -> Identity | None:
        """Return the identity of the bytes read; None if the file has changed since the opening."""

    def count(self, n: int) -> None:
        """Add ``n`` to ``bytes_read``: bytes delivered, or read from this file by another process for us."""
        with self._lock:
            self.bytes_read += n

    def close(self) -> None:
        for counter in self._counters:
            counter.bytes += self.bytes_read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalSource(OpenFile):
    """One local file, read by pread: threads share no file position, and do not disturb each other."""

    def __init__(self, path: str) -> None:
        # O_NONBLOCK: opening a FIFO that lies in place of a file must not hang; it changes nothing for
        # regular files.
        self.fd = retry_call(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            super().__init__(path, retry_call(os.fstat, self.fd))
        except OSError:
            os.close(self.fd)
            raise

    def read(self, offset: int, length: int) -> bytes:
        data = retry_call(os.pread, self.fd, length, offset)
        while len(data) < length:  # a signal or a network file system may deliver less than asked
            more = retry_call(os.pread, self.fd, length - len(data), offset + len(data))
            if not more:
                raise self.end_of_file(offset, length, len(data))
            data += more
        self.count(length)
        return data

    def readinto(self, offset: int, buffer: memoryview) -> None:
        done, wanted = 0, len(buffer)
        while done < wanted:
            got = retry_call(os.preadv, self.fd, [buffer[done:]], offset + done)
            if not got:
                raise self.end_of_file(offset, wanted, done)
            done += got
        self.count(wanted)

    def end_of_file(self, offset: int, wanted: int, got: int) -> ShortRead | OSError:
        """Return ShortRead if the file ends at ``offset + got``, OSError if the system says it is longer."""
        size, end = retry_call(os.fstat, self.fd).st_size, offset + got
        if end < size:
            return OSError(errno.EIO, f"the file has {size} bytes, but reading it ends at {end}", self.path)
        return ShortRead(offset, wanted, got)

    def changed(self) -> bool:
        now = retry_call(os.fstat, self.fd)
        return (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns)

    def identity(self) -> Identity | None:
        before, now = Identity.of(self.stat), Identity.of(retry_call(os.fstat, self.fd))
        return before if before == now else None

    def close(self) -> None:
        with suppress(OSError):  # what was read was read, and the descriptor is gone all the same
            os.close(self.fd)
        super().close()


class HeldSource(LocalSource):
    """One local file that will be read whole. Up to ``BUFFER`` bytes are kept in memory from the first read
    on, which beats a call per header; if that fails, ranged reads go to the file and raise the error.
    """

    _whole: bytes | None = None

    def whole(self) -> bytes:
        """Return the bytes of the whole file; b"" if it is too large or cannot be read. Raise Stalled."""
        if self._whole is None:
            data = b""
            try:
                data = retry_call(os.pread, self.fd, self.size, 0) if self.size <= BUFFER else b""
            except OSError as e:
                if isinstance(e, Stalled):
                    raise
            self._whole = data if len(data) == self.size else b""
        return self._whole

    def read(self, offset: int, length: int) -> bytes:
        data = self.whole()[offset : offset + length]
        if len(data) != length or offset < 0:
            return super().read(offset, length)
        self.count(length)
        return data


ALIGNED = 4096
"""Every device takes O_DIRECT offsets, lengths and addresses that are multiples of this."""
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)


class DirectSource(LocalSource):
    """One local file, read past the page cache in whole pages, so that checks see the bytes on the medium and
    evict nobody's cached pages. If the file system refuses O_DIRECT, reads go through the cache.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with suppress(OSError):  # the file system refuses O_DIRECT
            self._set_direct(True)

    def _set_direct(self, on: bool) -> None:
        flag, flags = getattr(os, "O_DIRECT", 0), fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        done, wanted, bounce = 0, len(buffer), own_buffer("second")
        while done < wanted:
            start = (offset + done) // ALIGNED * ALIGNED
            skip = offset + done - start
            n = min(BUFFER, -(-(skip + wanted - done) // ALIGNED) * ALIGNED)
            try:
                got = retry_call(os.preadv, self.fd, [bounce[:n]], start) - skip
            except OSError as e:
                if e.errno not in _REFUSED:
                    raise
                self._set_direct(False)
                got = retry_call(os.preadv, self.fd, [bounce[:n]], start) - skip
            if got <= 0:  # fewer bytes than asked for: the file ends there
                raise self.end_of_file(offset, wanted, done)
            got = min(got, wanted - done)
            buffer[done : done + got] = bounce[skip : skip + got]
            done += got
        self.count(wanted)


_BLOCK = 8 << 20


@contextmanager
def on_this_machine(source: Source) -> Iterator[str]:
    """Yield the path of a local file; for an object, of a temporary local copy. Raise OSError."""
    if not is_url(source.path):
        yield source.path
        return
    with tempfile.NamedTemporaryFile(suffix=f"-{os.path.basename(source.path)[-100:]}") as copy:
        block = memoryview(bytearray(min(_BLOCK, source.size)))
        for at in range(0, source.size, _BLOCK):
            part = block[: source.size - at]
            source.readinto(at, part)
            copy.write(part)
        copy.flush()
        yield copy.name
