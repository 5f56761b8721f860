"""Objects that are brought into files of this machine by whoever reads them: every answer of a store is
written down on its way, so that what is verified and what is kept are the same bytes.

An object is a row of cells of ``CHUNK`` bytes. A range that holds a whole cell fills it, once; what was asked
for in smaller pieces is asked for again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, cast

from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.source import CHUNK, StoreSource
from ckpt_tools.storage.threads import Threads
from ckpt_tools.storage.writes import write_all

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Object, Store


_CELL = struct.Struct("<Q8s")
"""The number of a cell, and its XXH3-64."""
_MOST = 64 << 20
"""Bytes of such rows: sixteen terabytes of a file."""


class Cell(NamedTuple):
    """Some bytes of an object that arrive and are digested together."""

    number: int
    start: int
    length: int


class Ledger:
    """The digests of cells that lie in a file, by number, as rows of the file ``fd``. The machine may have
    died since: a row whose cell has another digest by now counts for nothing, nor does one that was cut off.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        data = os.pread(fd, _MOST, 0)
        whole = len(data) - len(data) % _CELL.size
        os.ftruncate(fd, whole)
        self.cells: dict[int, bytes] = dict(_CELL.iter_unpack(data[:whole]))

    def arrived(self, number: int, digest: bytes) -> None:
        """One more lies there. Raises OSError."""
        write_all(self._fd, _CELL.pack(number, digest))


class Copy:
    """An object, and the file that it is brought into: ``fd`` is open for reading and writing, and ``ledger``
    says what it has already. Where that fails ``error`` says why, and nothing more is written. ``arrived`` is
    called with each number of bytes that was. Safe for several threads.
    """

    def __init__(self, of: Object, fd: int, arrived: Callable[[int], object], ledger: Ledger) -> None:
        self.object, self.fd, self.arrived, self.ledger = of, fd, arrived, ledger
        self.error: OSError | None = None
        self.version = of.version
        self._digests: dict[int, bytes] = {}
        self._lock = Lock()

    def kept(self, start: int, length: int) -> memoryview | None:
        """A whole cell that an earlier attempt has brought, where it still is what arrived then."""
        number, inside = divmod(start, CHUNK)
        digest = self.ledger.cells.get(number)
        if inside or digest is None or length != min(CHUNK, self.object.size - start):
            return None
        data = memoryview(os.pread(self.fd, length, start))
        with self._lock:
            if self.ledger.cells.pop(number, None) is None or number in self._digests:
                return None
            if digest_of(data) != digest:
                return None
            self._digests[number] = digest
        self.arrived(length)
        return data

    def took(self, start: int, data: memoryview, now: Object) -> None:
        """Bytes of the object arrived."""
        self.version = self.version or now.version
        for cell in self._within(start, len(data)):
            with self._lock:
                if cell.number in self._digests or self.error is not None:
                    continue
                self._digests[cell.number] = b""  # nobody else writes it
            part = data[cell.start - start : cell.start - start + cell.length]
            digest = digest_of(part)
            try:
                _write(self.fd, part, cell.start)
                self.ledger.arrived(cell.number, digest)
            except OSError as e:
                self.error = e
                return
            self._digests[cell.number] = digest
            self.arrived(cell.length)

    def _within(self, start: int, length: int) -> Iterator[Cell]:
        """The whole cells in a range."""
        size = self.object.size
        for k in range(-(-start // CHUNK), -(-size // CHUNK)):
            cell = Cell(k, k * CHUNK, min(CHUNK, size - k * CHUNK))
            if cell.start + cell.length > start + length:
                return
            yield cell

    def missing(self) -> list[Cell]:
        """The cells that have not arrived."""
        return [cell for cell in self._within(0, self.object.size) if not self._digests.get(cell.number)]

    @property
    def digest(self) -> str:
        """The digest of all bytes, once nothing is missing (``digest_of_file``)."""
        return _join([self._digests[k] for k in sorted(self._digests)])


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def digest_of(cell: memoryview | bytes) -> bytes:
    """XXH3-64 of a cell."""
    from xxhash import xxh3_64_digest

    return xxh3_64_digest(cell)


def _join(cells: Sequence[bytes]) -> str:
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest(b"".join(cells))


def digest_of_data(data: bytes) -> str:
    """Return what ``digest_of_file`` would of a file with these bytes."""
    return _join([digest_of(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)])


def digest_of_file(fd: int) -> str:
    """XXH3-128 (hex) over the XXH3-64 of every cell of a file, which may be worked out in any order."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return _join([digest_of(cell) for cell in iter(lambda: file.read(CHUNK), b"")])


class _Copying:
    """A store whose answers about some keys are written down."""

    def __init__(self, store: Store, copies: dict[str, Copy]) -> None:
        self.store, self.copies = store, copies

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def read(self, of: Object, start: int, length: int) -> tuple[memoryview, Object]:
        copy = self.copies.get(of.key)
        if copy is not None and (known := copy.kept(start, length)) is not None:
            return known, of
        data, now = self.store.read(of, start, length)
        if copy is not None:
            copy.took(start, data, now)
            if copy.error is not None:
                raise copy.error
        return data, now


@contextmanager
def copying(url: str, requests: int) -> Iterator[dict[str, Copy]]:
    """Within, the answers about the keys in a mapping (which is empty at first) of the store of ``url`` are
    written down, and each file has so many ``requests`` under way at a time. Raises OSError.
    """
    tree, _ = mounts.tree_of(url)
    before, copies = tree.store, dict[str, Copy]()
    tree.store, tree.at_a_time = cast("Store", _Copying(before, copies)), requests
    try:
        yield copies
    finally:
        tree.store, tree.at_a_time = before, 0


def fetch_rest(url: str, copy: Copy, requests: int) -> None:
    """Bring what nobody has asked for, within ``copying``. Raises OSError, and Replaced."""
    cells = copy.missing()
    if not cells:
        return
    with StoreSource(url) as source:

        def one(cell: Cell) -> int:
            return len(source.fetch(cell.start, cell.length))  # written on its way, and let go

        pool, good = Threads(min(requests, len(cells))), False
        try:
            for future in [pool.submit(one, cell) for cell in cells]:
                source.count(future.result())
            good = True
        finally:
            pool.close(wait=good)
    if copy.error is not None:
        raise copy.error
