"""A file as it would be with some bytes changed: what a repair is proven on before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ckpt_tools.storage import Source


class Patch(Struct, frozen=True):
    """``length`` bytes at ``offset``: the ``data``, or what the file ``copy_of`` has there."""

    offset: int
    length: int
    data: bytes = b""
    copy_of: str = ""


class Patched:
    """A Source with other bytes in places; ``others`` are the open files that patches are copied from."""

    def __init__(self, source: Source, patches: Sequence[Patch], others: dict[str, Source]) -> None:
        self.source, self.patches, self.others = source, patches, others
        self.size, self.path = source.size, source.path

    @property
    def bytes_read(self) -> int:
        """Those of the file itself."""
        return self.source.bytes_read

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        self.source.readinto(offset, buffer)
        for p in self.patches:
            start, stop = max(offset, p.offset), min(offset + len(buffer), p.offset + p.length)
            if start < stop:
                at = start - p.offset
                new = (
                    p.data[at : at + stop - start]
                    if p.data
                    else self.others[p.copy_of].read(start, stop - start)
                )
                buffer[start - offset : stop - offset] = new
