"""The pickles of torch's old format that hold nothing of the user's, written again byte for byte as CPython
writes them.

A pickle has no checksum, but of what is known only one encoding is usual: bytes that are one bit away from it
are damaged.
Facts: CPython Lib/pickle.py and Modules/_pickle.c (save_*, batch_list_exact, framing).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

_BATCH, _FRAME = 1000, 64 * 1024


class _Encoder:
    """Writes dicts, lists, strings, bools and ints as the pickler of one protocol does."""

    def __init__(self, protocol: int) -> None:
        self.out, self.memo, self.framed = bytearray(), 0, protocol > 3

    def put(self) -> None:
        if self.framed:
            self.out += b"\x94"
        else:
            self.out += b"q%c" % self.memo if self.memo < 256 else b"r" + struct.pack("<I", self.memo)
        self.memo += 1

    def save(self, v: Any) -> None:
        if type(v) is bool:
            self.out.append(0x88 if v else 0x89)
        elif type(v) is int:
            self.integer(v)
        elif type(v) is str:
            self.text(v.encode("utf-8", "surrogatepass"))
        elif isinstance(v, dict):
            self.items([x for pair in v.items() for x in pair], 2, b"}su")
        else:
            self.items(list(v), 1, b"]ae")

    def integer(self, v: int) -> None:
        width = (v.bit_length() + 8) // 8  # signed
        if 0 <= v < 65536:
            self.out += b"K%c" % v if v < 256 else b"M" + struct.pack("<H", v)
        elif width <= 4:
            self.out += b"J" + struct.pack("<i", v)
        else:
            self.out += b"\x8a%c" % width + v.to_bytes(width, "little", signed=True)

    def text(self, raw: bytes) -> None:
        short = self.framed and len(raw) < 256
        self.out += (b"\x8c%c" % len(raw) if short else b"X" + struct.pack("<I", len(raw))) + raw
        self.put()

    def items(self, flat: list[Any], n: int, opcodes: bytes) -> None:
        """A container of items of ``n`` values; ``opcodes`` make it, add one item, add a batch of them."""
        empty, one, many = opcodes
        self.out.append(empty)
        self.put()
        for at in range(0, len(flat), n * _BATCH):
            self.out += b"" if len(flat) == n else b"("
            for x in flat[at : at + n * _BATCH]:
                self.save(x)
            self.out.append(one if len(flat) == n else many)


def encoded(value: Any, protocol: int) -> bytes | None:
    """What pickle.dump writes in protocol 2 to 5; None where this is not known (several frames)."""
    encoder = _Encoder(protocol)
    encoder.save(value)
    out = bytes(encoder.out) + b"."
    if len(out) >= _FRAME and protocol > 3:
        return None
    frame = b"\x95" + struct.pack("<Q", len(out)) if protocol > 3 and len(out) >= 4 else b""
    return b"\x80%c" % protocol + frame + out


def compared(
    source: Source, start: int, stop: int, usual: Iterable[bytes | None], what: str, *, anatomy: Anatomy
) -> Iterator[Finding]:
    """Compare bytes of a file with what is usual there, and explain them: they are ``structure`` if they are
    usual to the last bit.
    """
    data = source.read(start, stop - start)
    guard = Guard.UNPROTECTED
    for u in usual:
        if u == data:
            guard = Guard.STRUCTURE
        elif u is not None and len(u) == len(data):
            off = int.from_bytes(u, "big") ^ int.from_bytes(data, "big")
            if off.bit_count() == 1:
                at = start + len(data) - (off.bit_length() + 7) // 8
                yield finding("odd-header", f"{what}: one bit differs from what torch writes", offset=at)
                break
    anatomy.explain(start, stop - start, what, guard)
