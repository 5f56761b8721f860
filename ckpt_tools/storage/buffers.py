"""Buffers to read into: page-aligned, one per thread."""

from __future__ import annotations

import mmap
import threading

BUFFER = 1024 * 1024
"""Bytes per read: the kernel copies out of its cache faster in long runs, and what was copied is still in the
CPU's cache for the checksum.
"""

_local = threading.local()


def buffer() -> memoryview:
    """This thread's buffer. It begins with a page: the kernel copies at half the speed to an address that is
    no multiple of 64, which a bytearray's may be.
    """
    view: memoryview | None = getattr(_local, "view", None)
    if view is None:
        view = _local.view = memoryview(mmap.mmap(-1, BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return view


def second_buffer() -> memoryview:
    """Another one of this thread, for those who fill ``buffer()`` from a buffer of their own."""
    view: memoryview | None = getattr(_local, "second", None)
    if view is None:
        view = _local.second = memoryview(mmap.mmap(-1, BUFFER, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return view
