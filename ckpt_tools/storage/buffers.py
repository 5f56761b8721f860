"""Buffers to read into: page-aligned, one per thread."""

from __future__ import annotations

import mmap
import threading

BUFFER = 2 * 1024 * 1024
"""Bytes per read: the kernel copies out of its cache faster in long runs; from 1 to 2 MiB a tenth."""

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
