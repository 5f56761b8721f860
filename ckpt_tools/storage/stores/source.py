"""An object of a store as a Source: few requests, each for the bytes likely needed, of one version."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import md5
from typing import TYPE_CHECKING

from ckpt_tools.storage.local import Identity, OpenFile, ShortRead
from ckpt_tools.storage.stalls import Threads, ask_again, count_cpus, do_each
from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.store import DIFFERENTLY, NOT_KEPT, Replaced, is_other
from ckpt_tools.storage.stores.tree import stat_of

if TYPE_CHECKING:
    from ckpt_tools.model.seal import StoreChecksums

WINDOW = 64 << 10
"""The fewest bytes to request: a request costs as much time as hundreds of kilobytes of transfer."""
WINDOWS = 16
"""Windows that are kept in memory, beside ranges that a format has asked for beforehand."""
CHUNK = 4 << 20
"""Bytes of a request for content, at multiples of this; a file up to this size is read in one request."""
RANGES = 256
"""About the most requests for scattered ranges of a file whose content will be read too."""
AHEAD = 8
"""Requests for content under way at a time, for one file, unless --jobs says otherwise."""
READERS = 4
"""The most threads that work on the answers: each is faster than most networks."""


class StoreSource(OpenFile):
    """One object as it was listed; if it was not, as it is now. ``hold``: all of it will be read.
    ``certain``: the file gives orders and contains no checksum, so each range is read twice, unless the
    object's ETag is the MD5 of the bytes.
    """

    def __init__(self, path: str, *, hold: bool = False, certain: bool = False) -> None:
        tree, key = mounts.tree_of(path)
        self._tree, self.store, self.object = tree, tree.store, tree.object(key)
        super().__init__(path, stat_of(path, self.object))
        self._windows: OrderedDict[int, memoryview] = OrderedDict()
        self._chunks: OrderedDict[int, Future[memoryview]] = OrderedDict()
        self._used_chunks: set[int] = set()
        self._parallel = AHEAD
        self._threads: Threads | None = None
        self._replaced = False
        self._unproven = False
        self._hold, self._certain = hold, certain
        self._read_at_once = CHUNK if hold else 2 * WINDOW
        self._most_windows = WINDOWS

    # ---- reading, as of every Source

    def read(self, offset: int, length: int) -> bytes:
        self._require_within(offset, length)
        data = bytes(self._read_window(offset, length)) if length else b""
        self.count(length)
        return data

    def readinto(self, offset: int, buffer: memoryview) -> None:
        length = len(buffer)
        self._require_within(offset, length)
        if length < WINDOW or self.size <= self._read_at_once:
            buffer[:] = self._read_window(offset, length) if length else b""
            self.count(length)
            return
        done = 0
        while done < length:
            k, at = divmod(offset + done, CHUNK)
            part = self._get_chunk(k)[at : at + length - done]
            buffer[done : done + len(part)] = part
            done += len(part)
            self.count(len(part))

    def changed(self) -> bool:
        """Return True if the object was replaced; asks the store unless its reads raise Replaced."""
        if self._unproven and not self._replaced:
            self._unproven = False  # only answers from now on need another HEAD
            try:
                self._replaced = is_other(self.object, self.store.head(self.object.key))
            except FileNotFoundError:
                self._replaced = True
            except BaseException:
                self._unproven = True
                raise
        return self._replaced

    def kept_checksums(self) -> StoreChecksums:
        """Return the checksums that the store keeps, by metadata requests. Raise OSError."""
        from ckpt_tools.storage.stores.told import stored_checksums  # import only where contents are read

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

    def _require_within(self, offset: int, length: int) -> None:
        """Raise ShortRead for a range beyond the end, and OSError for a negative one."""
        if offset < 0 or length < 0:
            raise OSError(errno.EINVAL, "Invalid argument", self.path)
        if offset + length > self.size:
            raise ShortRead(offset, length, max(0, self.size - offset))

    # ---- what a format may ask beforehand

    def spares(self, offset: int, length: int) -> bool:
        """Return True if a check may skip these bytes: it reads structure alone, and they cost a request."""
        return not self._hold and self._find_cached(offset, length) is None

    def await_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch (offset, length) ranges, in file order, now and in parallel, near ones in one request."""
        if not self._hold or self.size <= self._read_at_once:
            return
        joined: list[tuple[int, int]] = []
        gap = max(4 * WINDOW, self.size // RANGES)
        for offset, length in ranges:
            stop = min(offset + length, self.size)
            if joined and stop - joined[-1][0] <= gap:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            elif offset < stop:
                joined.append((offset, stop))
        with suppress(OSError):  # a read of the range raises it again
            found = do_each(lambda ends: self.fetch(ends[0], ends[1] - ends[0]), joined, self._parallel)
            with self._lock:
                self._windows |= zip((start for start, _ in joined), found, strict=True)
                self._most_windows += len(found)

    # ---- structure: few bytes here and there

    def _read_window(self, offset: int, length: int) -> memoryview:
        """Return bytes from a cached window, fetched now if none has them."""
        if (known := self._find_cached(offset, length)) is not None:
            return known
        with self._lock:
            grown = next((len(d) for s, d in self._windows.items() if s + len(d) == offset), 0)
        # longer in a sequence; all of a small file; at the end the last window
        start, size = offset, max(length, WINDOW, min(2 * grown, CHUNK))
        if self.size <= self._read_at_once:
            start, size = 0, self.size
        elif offset + size > self.size:
            start = min(offset, max(0, self.size - WINDOW))
            size = self.size - start
        data = self.fetch(start, size)
        with self._lock:
            self._windows[start] = data
            while len(self._windows) > self._most_windows:
                self._windows.popitem(last=False)
        return data[offset - start : offset - start + length]

    def _find_cached(self, offset: int, length: int) -> memoryview | None:
        """Return bytes from the cached windows; None if no window has them."""
        with self._lock:
            for start, data in reversed(self._windows.items()):
                if start <= offset and offset + length <= start + len(data):
                    self._windows.move_to_end(start)
                    return data[offset - start : offset - start + length]
        return None

    # ---- content: everything, once, in chunks

    def share(self, jobs: int) -> int:
        """Allow ``jobs`` requests at a time (0: the default), and return how many threads are useful."""
        self._parallel = jobs or AHEAD
        return max(1, min(READERS, count_cpus(), jobs or AHEAD))

    def _get_chunk(self, k: int) -> memoryview:
        """Return chunk ``k``, the ``CHUNK`` bytes from ``k * CHUNK`` on; start requests for later ones."""
        with self._lock:
            if self._threads is None:
                self._threads = Threads(self._parallel)
            self._used_chunks.add(k)
            for n in range(k, min((self.size - 1) // CHUNK, k + self._parallel) + 1):
                unread = len(self._chunks.keys() - self._used_chunks)
                may_wait = n in self._used_chunks or unread >= self._parallel
                if n not in self._chunks and (n == k or not may_wait):
                    start, length = n * CHUNK, min(CHUNK, self.size - n * CHUNK)
                    self._chunks[n] = self._threads.submit(self.fetch, start, length)
            future = self._chunks[k]
            self._chunks.move_to_end(k)
            # recent chunks stay for other readers
            for n in [n for n in self._chunks if n in self._used_chunks][: -2 * READERS]:
                del self._chunks[n]
        try:
            return future.result()
        except BaseException:
            with self._lock:  # another attempt may succeed
                if self._chunks.get(k) is future:
                    del self._chunks[k]
            raise

    # ---- requests

    def fetch(self, start: int, length: int) -> memoryview:
        """Return these bytes. If ``certain``, raise OSError if a second reading differs, or a checksum that
        the store keeps of the whole object, if all of it was asked for.
        """
        data = self._request(start, length)
        if not self._certain or self.object.etag.strip('"') == md5(data, usedforsecurity=False).hexdigest():
            return data
        if self._request(start, length) != data:
            raise OSError(errno.EIO, DIFFERENTLY, self.path)
        if length == self.size:
            from ckpt_tools.storage.stores.told import contradicts

            if contradicts(self.store, self.object, data):
                raise OSError(errno.EIO, NOT_KEPT, self.path)
        return data

    def _request(self, start: int, length: int) -> memoryview:
        """Return exactly these bytes of the opened object; a request whose answer breaks off is repeated."""

        def ask() -> memoryview:
            data, now = self.store.read(self.object, start, length)
            if len(data) != length:
                raise OSError(errno.ECONNRESET, "the store's answer broke off", self.path)
            # the first answer tells the version, if any: every later request names it
            self._unproven = not self.store.pins
            self._tree.note_version(now)
            if now.version and not self.object.version:
                self.object = self.object._replace(version=now.version)
            return data

        try:
            return ask_again(ask)
        except Replaced:
            self._replaced = True
            raise
