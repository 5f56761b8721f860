"""A small file that is read in one call and kept in memory while it is open: many short reads would cost more
than its bytes.
"""

from __future__ import annotations

import mmap
import os

from ckpt_tools.storage.local import LocalSource
from ckpt_tools.storage.retry import patiently
from ckpt_tools.storage.stalls import Stalled

HELD = 2 << 20
"""Bytes of a file that is kept in memory at most."""

_spare: list[mmap.mmap] = []
"""Memory that no file uses now: to get it from the system takes longer than to read a file into it."""


class HeldSource(LocalSource):
    """A file of at most ``HELD`` bytes, in memory as it was at one moment. What is larger, or cannot be read
    at once, is read range by range.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._memory: mmap.mmap | None = None
        try:
            self._hold()
        except Stalled:
            super().close()
            raise
        except OSError:  # a part of it can perhaps be read: whoever asks for the others meets the error
            return

    def _hold(self) -> None:
        if not 0 < self.size <= HELD:
            return
        memory = _spare.pop() if _spare else mmap.mmap(-1, HELD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with memoryview(memory) as view:
            if patiently(os.preadv, self.fd, [view[: self.size]], 0) == self.size:
                self._memory = memory
            else:
                _spare.append(memory)

    @property
    def held(self) -> bool:
        """Whether the whole file is in memory."""
        return self._memory is not None

    def view(self, offset: int, length: int) -> memoryview:
        """Bytes of a held file, valid until it is closed; whoever calls knows that the file has them."""
        assert self._memory is not None  # noqa: S101 - for the type checker
        self.bytes_read += length
        return memoryview(self._memory)[offset : offset + length]

    def read(self, offset: int, length: int) -> bytes:
        if self._memory is None or offset < 0 or length < 0 or offset + length > self.size:
            return super().read(offset, length)
        self.bytes_read += length
        return self._memory[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        if self._memory is None or offset < 0 or offset + len(buffer) > self.size:
            super().readinto(offset, buffer)
            return
        buffer[:] = self.view(offset, len(buffer))

    def close(self) -> None:
        if self._memory is not None:
            _spare.append(self._memory)
            self._memory = None
        super().close()
