"""What a helper process does: digests of ranges of a mapped file. It may die at any time: a file that shrinks
takes pages away from whoever has them mapped.

Also run as a script, so it imports nothing of ckpt_tools. A request is three 64-bit numbers (offset, length,
kind), an answer the offset and 16 bytes.
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


REQUEST, ANSWER = struct.Struct("=qqq"), struct.Struct("=q16s")
CRC32, CRC32C, XXH3 = range(3)
"""What there is a digest for; a CRC is the last four of the 16 bytes, big-endian, XXH3-128 all of them."""
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
    if kind == CRC32C:
        try:  # of the directory crc32c, whose own __init__ takes 50 ms to find its version
            from _crc32c import crc32c  # type: ignore[import-not-found]  # beside it
        except ImportError:
            from crc32c import crc32c
        return _Crc(crc32c)
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return _Crc(crc32)


def serve(requests: int, answers: int, file: int) -> None:
    """Answer until there are no more requests. Ends early, without an answer, when a range is not there."""
    while len(request := os.read(requests, REQUEST.size)) == REQUEST.size:
        offset, length, kind = REQUEST.unpack(request)
        at, end, running = offset, offset + length, begun(kind)
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
        os.write(answers, ANSWER.pack(offset, running.digest()))


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
