"""An object of a store as a Source: few requests, each for what is likely needed, of one version."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import md5
from operator import itemgetter
from typing import TYPE_CHECKING

from ckpt_tools.storage.attempts import ask_again
from ckpt_tools.storage.local import Identity, OpenFile, ShortRead
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.store import DIFFERENTLY, NOT_KEPT, Replaced, other_than
from ckpt_tools.storage.stores.tree import stat_of
from ckpt_tools.storage.threads import Threads, count_cpus, do_each

if TYPE_CHECKING:
    from ckpt_tools.model.seal import StoreChecksums

WINDOW = 64 << 10
"""Bytes asked for at least: a request costs as long as hundreds of kilobytes on the way."""
WINDOWS = 16
"""Windows that are kept."""
CHUNK = 4 << 20
"""Bytes of a request when the content is read, at multiples of this; a file of no more is read in one."""
RANGES = 256
"""Requests at most, about, for what lies scattered in a file whose content is read as well."""
AHEAD = 8
"""Requests for content under way at a time, for one file, unless --jobs says otherwise."""
READERS = 4
"""Threads at most that work on what comes: each is faster than most networks."""


class StoreSource(OpenFile):
    """An object as it was listed, or as it is now where it was not. ``hold``: all of it will be read.
    ``certain``: it gives orders, and no checksum in it shows that it came otherwise: a range is read twice,
    unless the object's ETag is the MD5 of all of it.
    """

    def __init__(self, path: str, *, hold: bool = False, certain: bool = False) -> None:
        tree, key = mounts.tree_of(path)
        self._tree, self.store, self.object = tree, tree.store, tree.object(key)
        super().__init__(path, stat_of(path, self.object))
        self._windows: OrderedDict[int, memoryview] = OrderedDict()
        self._chunks: OrderedDict[int, Future[memoryview]] = OrderedDict()
        self._used: set[int] = set()
        self._ahead = AHEAD
        self._threads: Threads | None = None
        self._replaced = False
        self._unproven = False
        self._hold, self._certain = hold, certain
        self._whole = CHUNK if hold else 2 * WINDOW
        self._awaited: list[tuple[int, memoryview]] = []

    # ---- what is asked

    def read(self, offset: int, length: int) -> bytes:
        self._bounds(offset, length)
        data = bytes(self._near(offset, length)) if length else b""
        self.count(length)
        return data

    def readinto(self, offset: int, buffer: memoryview) -> None:
        length = len(buffer)
        self._bounds(offset, length)
        if length < WINDOW or self.size <= self._whole:
            buffer[:] = self._near(offset, length) if length else b""
            self.count(length)
            return
        done = 0
        for part in self.views(offset, length):
            buffer[done : done + len(part)] = part
            done += len(part)

    def changed(self) -> bool:
        """A store whose reads do not show it is asked."""
        if self._unproven and not self._replaced:
            self._unproven = False  # what comes from now on is proved by another answer
            try:
                self._replaced = other_than(self.object, self.store.head(self.object.key))
            except FileNotFoundError:
                self._replaced = True
            except BaseException:
                self._unproven = True
                raise
        return self._replaced

    def kept_checksums(self) -> StoreChecksums:
        """What the store says of its bytes, by metadata requests. Raises OSError."""
        from ckpt_tools.storage.stores.told import stored_checksums  # only where contents are read

        try:
            return stored_checksums(self.store, self.object)
        except Replaced:
            self._replaced = True
            raise

    def identity(self) -> Identity | None:
        return None if self.changed() else Identity.of(self.stat)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close(wait=False)
        super().close()

    def _bounds(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0:
            raise OSError(errno.EINVAL, "Invalid argument", self.path)
        if offset + length > self.size:
            raise ShortRead(offset, length, max(0, self.size - offset))

    # ---- what a format may ask beforehand

    def spares(self, offset: int, length: int) -> bool:
        """Whether a check may do without these bytes, which would cost a request for the structure alone."""
        return not self._hold and self._kept(offset, length) is None

    def await_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """(offset, length) in file order that will be read: asked for at once, near ones together."""
        if not self._hold or self.size <= self._whole:
            return
        joined: list[tuple[int, int]] = []
        gap = max(4 * WINDOW, self.size // RANGES)
        for offset, length in ranges:
            stop = min(offset + length, self.size)
            if joined and stop - joined[-1][0] <= gap:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            elif offset < stop:
                joined.append((offset, stop))
        with suppress(OSError):  # whoever reads there meets it
            found = do_each(lambda ends: self.fetch(ends[0], ends[1] - ends[0]), joined, self._ahead)
            self._awaited = [(start, data) for (start, _), data in zip(joined, found, strict=True)]

    # ---- structure: few bytes here and there

    def _near(self, offset: int, length: int) -> memoryview:
        """Some bytes, out of a window that is kept."""
        if (known := self._kept(offset, length)) is not None:
            return known
        with self._lock:
            grown = next((len(d) for s, d in self._windows.items() if s + len(d) == offset), 0)
        start, size = self._window(offset, length, grown)
        data = self.fetch(start, size)
        with self._lock:
            self._windows[start] = data
            while len(self._windows) > WINDOWS:
                self._windows.popitem(last=False)
        return data[offset - start : offset - start + length]

    def _kept(self, offset: int, length: int) -> memoryview | None:
        """These bytes, where they are at hand."""
        with self._lock:
            for start, data in reversed(self._windows.items()):
                if start <= offset and offset + length <= start + len(data):
                    self._windows.move_to_end(start)
                    return data[offset - start : offset - start + length]
        i = bisect_right(self._awaited, offset, key=itemgetter(0)) - 1
        if i >= 0:
            start, data = self._awaited[i]
            if offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return None

    def _window(self, offset: int, length: int, grown: int) -> tuple[int, int]:
        """What to ask for: more where the last window ended, the whole of a small file, or its end."""
        if self.size <= self._whole:
            return 0, self.size
        size = max(length, WINDOW, min(2 * grown, CHUNK))
        if offset + size > self.size:
            start = min(offset, max(0, self.size - WINDOW))
            return start, self.size - start
        return offset, size

    # ---- content: everything, once, in chunks

    def share(self, jobs: int) -> int:
        """Take ``jobs`` for the requests that may be under way at a time (0: as many as are of use), and tell
        how many threads should work on what they bring.
        """
        self._ahead = jobs or AHEAD
        return max(1, min(READERS, count_cpus(), jobs or AHEAD))

    def views(self, offset: int, length: int) -> Iterator[memoryview]:
        """The bytes in order, without a copy; each is valid until the next is asked for."""
        self._bounds(offset, length)
        done = 0
        while done < length:
            k, at = divmod(offset + done, CHUNK)
            if self.size <= self._whole:
                part = self._near(offset + done, length - done)
            else:
                part = self._chunk(k)[at : at + length - done]
            done += len(part)
            self.count(len(part))
            yield part

    def _chunk(self, k: int) -> memoryview:
        """A chunk, while those after it are under way; those used last are kept, for who has the rest."""
        with self._lock:
            if self._threads is None:
                self._threads = Threads(self._ahead)
            future = self._chunks.get(k) or self._ask(k)
            self._chunks.move_to_end(k)
            self._used.add(k)
            used = [n for n in self._chunks if n in self._used]
            room = self._ahead - (len(self._chunks) - len(used))
            for n in used[: -2 * READERS]:
                del self._chunks[n]
            for ahead in range(k + 1, min((self.size - 1) // CHUNK, k + self._ahead) + 1):
                if room > 0 and ahead not in self._chunks and ahead not in self._used:
                    self._ask(ahead)
                    room -= 1
        try:
            return future.result()
        except BaseException:
            with self._lock:  # whoever asks again may have more luck
                if self._chunks.get(k) is future:
                    del self._chunks[k]
            raise

    def _ask(self, k: int) -> Future[memoryview]:
        assert self._threads is not None  # noqa: S101 - for the type checker
        start = k * CHUNK
        future = self._chunks[k] = self._threads.submit(self.fetch, start, min(CHUNK, self.size - start))
        return future

    # ---- requests

    def fetch(self, start: int, length: int) -> memoryview:
        """These bytes; where they are to be ``certain``, those of two readings, as the store has them."""
        data = self._answered(start, length)
        if not self._certain or self.object.etag.strip('"') == md5(data, usedforsecurity=False).hexdigest():
            return data
        if self._answered(start, length) != data:
            raise OSError(errno.EIO, DIFFERENTLY, self.path)
        if length == self.size:
            from ckpt_tools.storage.stores.told import contradicts

            if contradicts(self.store, self.object, data):
                raise OSError(errno.EIO, NOT_KEPT, self.path)
        return data

    def _answered(self, start: int, length: int) -> memoryview:
        """Exactly these bytes of the object that was opened; an answer that broke off is asked for again."""

        def ask() -> memoryview:
            data, now = self.store.read(self.object, start, length)
            if len(data) != length:
                raise OSError(errno.ECONNRESET, "the store's answer broke off", self.path)
            # from the first answer on every request names the version that it had, where there are any
            self._unproven = not self.store.pins
            self._tree.heard(now)
            if now.version and not self.object.version:
                self.object = self.object._replace(version=now.version)
            return data

        try:
            return ask_again(ask)
        except Replaced:
            self._replaced = True
            raise
