"""What a helper process does: CRC-32s of ranges of a mapped file. It may die at any time: a file that shrinks takes pages away from whoever has them mapped.

Also run as a script, so it imports nothing of ckpt_tools. Requests and answers are pairs of 64-bit numbers: (offset, length) and (offset, CRC-32).
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable

PAIR = struct.Struct("=qq")
WINDOW = 8 << 20
"""Bytes mapped at once: what is mapped counts as memory of this process."""


def serve(requests: int, answers: int, file: int, crc32: Callable[[memoryview, int], int]) -> None:
    """Answer until there are no more requests. Ends early, without an answer, when a range is not there."""
    while len(request := os.read(requests, PAIR.size)) == PAIR.size:
        offset, length = PAIR.unpack(request)
        at, end, crc = offset, offset + length, 0
        while at < end:
            start = at // WINDOW * WINDOW
            stop = min(end, start + WINDOW)
            if os.fstat(file).st_size < stop:  # spares most files the signal; the rest of a page behind the end would read as zeros
                return
            with mmap.mmap(file, stop - start, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as mapped:
                mapped.madvise(mmap.MADV_SEQUENTIAL)
                with memoryview(mapped) as view, view[at - start :] as part:
                    crc = crc32(part, crc)
            at = stop
        os.write(answers, PAIR.pack(offset, crc))


if __name__ == "__main__":  # requests, answers and the file are 0, 1 and 2
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.path.append(sys.argv[1])
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    serve(0, 1, 2, crc32)
