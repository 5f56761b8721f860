"""What a helper process does: digests of ranges of a mapped file. It may die at any time: a file that shrinks
takes pages away from whoever has them mapped.

Also run as a script, so it imports nothing of ckpt_tools. A request is five 64-bit numbers (offset, length,
kind, how many pieces, whether a page of zeros matters), an answer the offset and 16 bytes. For a chunk the
request goes on with the length of each piece, and the answer with a CRC-32C, whether a page is zero, and the
CRC-32 of each piece: four bytes each.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from errno import EINVAL

TYPE_CHECKING = (
    False  # typing, collections.abc and functools take longer to import than the rest of a helper's start
)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Running(Protocol):
        """As in hashlib."""

        def update(self, data: memoryview, /) -> object: ...
        def digest(self) -> bytes: ...


REQUEST, ANSWER = struct.Struct("=qqqqq"), struct.Struct("=q16s")
CRC32, CRC32C, XXH3, CHUNK, SEALED = range(5)
"""What there is a digest for; a CRC is the last four of the 16 bytes, big-endian, XXH3-128 all of them. That
is what a chunk begins with; its CRC-32C is worked out for SEALED, and 0 for CHUNK.
"""
PIECES = 200
"""Pieces of a chunk at most: then a request and an answer are written in one go (PIPE_BUF)."""
STEP = 1 << 18
"""Bytes of a chunk that are digested in each way while the CPU has them at hand."""
PAGE = 4096
_ZEROS = bytes(PAGE)
WINDOW = 8 << 20
"""Bytes mapped at once: what is mapped counts as memory of this process."""
POPULATE = 22
"""MADV_POPULATE_READ, which has no name in mmap: all pages in one call, a twentieth faster than one fault
after the other.
"""


class _Crc:
    def __init__(self, crc: Callable[[memoryview, int], int]) -> None:
        self.crc, self.value = crc, 0

    def update(self, data: memoryview, /) -> None:
        self.value = self.crc(data, self.value)

    def digest(self) -> bytes:
        return self.value.to_bytes(16, "big")


def begun(kind: int) -> Running:
    """A digest of no bytes yet. Raises ImportError."""
    if kind == XXH3:
        from xxhash import xxh3_128

        return xxh3_128()
    return _Crc(crc32c_of() if kind == CRC32C else crc32_of())


class Chunk:
    """XXH3-128 and CRC-32C of a chunk, the CRC-32 of each of its pieces, and, if it is ``watched``, whether a
    page is zero.
    """

    def __init__(self, lengths: tuple[int, ...], sealed: bool, watched: bool) -> None:
        self.left, self.crcs, self.first, self.zero = list(lengths), [0] * len(lengths), 0, False
        self.watched = watched
        self.sealed = begun(CRC32C) if sealed else None
        self.xxh3, self.crc32 = begun(XXH3), crc32_of()

    def update(self, data: memoryview, /) -> None:
        """What comes next; it begins with a page, or the chunk does not."""
        for at in range(0, len(data), STEP):
            part = data[at : at + STEP]
            self.cut(part)  # first: of all digests it waits least for memory
            if self.sealed is not None:
                self.sealed.update(part)
            self.xxh3.update(part)
            if self.watched and not self.zero:
                self.zero = has_zero_page(part)

    def cut(self, data: memoryview) -> None:
        """The CRC-32 of the pieces that ``data`` belongs to."""
        while len(data):
            n = min(self.left[self.first], len(data))
            self.crcs[self.first] = self.crc32(data[:n], self.crcs[self.first])
            self.left[self.first] -= n
            self.first += not self.left[self.first]
            data = data[n:]

    def digest(self) -> bytes:
        crc32c = int.from_bytes(self.sealed.digest(), "big") if self.sealed is not None else 0
        return struct.pack(f"=16sII{len(self.crcs)}I", self.xxh3.digest(), crc32c, self.zero, *self.crcs)


def has_zero_page(data: memoryview) -> bool:
    """Whether one of the whole pages in ``data``, which begins with one, holds only zeros. The first byte of
    a page is seldom zero, so few are looked at.
    """
    heads = data[: len(data) // PAGE * PAGE : PAGE].tobytes()
    at = heads.find(0)
    while at >= 0:
        if data[at * PAGE : (at + 1) * PAGE].tobytes() == _ZEROS:
            return True
        at = heads.find(0, at + 1)
    return False


def crc32_of() -> Callable[[memoryview, int], int]:
    """The fastest CRC-32 that there is."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return crc32


def crc32c_of() -> Callable[[memoryview | bytes, int], int]:
    """The fastest CRC-32C that there is."""
    try:
        from fastcrc.crc32 import iscsi

        iscsi(memoryview(b""), 0)  # before 0.4 it was slow, and took nothing but bytes
    except (ImportError, TypeError):
        return _packaged()
    return iscsi


def _packaged() -> Callable[[memoryview | bytes, int], int]:
    """That of the package crc32c."""
    try:  # of its directory: its own __init__ takes 50 ms to find its version
        import _crc32c as package  # type: ignore[import-not-found]  # beside it
    except ImportError:
        import crc32c as package
    crc: Callable[[memoryview | bytes, int], int] = package.crc32c
    return crc


def serve(requests: int, answers: int, file: int) -> None:
    """Answer until there are no more requests. Ends early, without an answer, when a range is not there."""
    while len(request := os.read(requests, REQUEST.size)) == REQUEST.size:
        offset, length, kind, pieces, watched = REQUEST.unpack(request)
        lengths = struct.unpack(f"={pieces}q", os.read(requests, 8 * pieces) if pieces else b"")
        at, end, chunked = offset, offset + length, kind in (CHUNK, SEALED)
        running = Chunk(lengths, kind == SEALED, bool(watched)) if chunked else begun(kind)
        while at < end:
            start = at // WINDOW * WINDOW
            stop = min(end, start + WINDOW)
            if (
                os.fstat(file).st_size < stop
            ):  # spares most files the signal; the rest of a page behind the end would read as zeros
                return
            with mmap.mmap(file, stop - start, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as mapped:
                try:
                    mapped.madvise(POPULATE)
                except OSError as e:
                    if e.errno != EINVAL:  # a page is gone; before Linux 5.14 the signal would say so
                        return
                with memoryview(mapped) as view, view[at - start :] as part:
                    running.update(part)
            at = stop
        os.write(answers, struct.pack("=q", offset) + running.digest())


if (
    __name__ == "__main__"
):  # requests, answers and the file are 0, 1 and 2; the arguments are where to import from
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.path += sys.argv[1:]
    try:  # noqa: SIM105 - contextlib takes longer to import than this takes
        serve(0, 1, 2)
    except ImportError:  # our end is answer enough
        pass
