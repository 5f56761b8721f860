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


def encoded(value: Any, protocol: int) -> bytes | None:
    """What pickle.dump writes for dicts, lists, strings, bools and ints in protocol 2 to 5; None where this
    is not known (several frames).
    """
    out, memo = bytearray(), 0

    def put() -> None:
        nonlocal memo
        out.extend(
            b"\x94" if protocol > 3 else b"q%c" % memo if memo < 256 else b"r" + struct.pack("<I", memo)
        )
        memo += 1

    def save(v: Any) -> None:
        if type(v) is bool:
            out.append(0x88 if v else 0x89)
        elif type(v) is int:
            width = (v.bit_length() + 8) // 8  # signed
            short = b"K%c" % v if 0 <= v < 256 else b"M" + struct.pack("<H", v) if 0 <= v < 65536 else None
            out.extend(
                short
                or (
                    b"J" + struct.pack("<i", v)
                    if width <= 4
                    else b"\x8a%c" % width + v.to_bytes(width, "little", signed=True)
                )
            )
        elif type(v) is str:
            raw = v.encode("utf-8", "surrogatepass")
            out.extend(
                (
                    b"\x8c%c" % len(raw)
                    if protocol > 3 and len(raw) < 256
                    else b"X" + struct.pack("<I", len(raw))
                )
                + raw
            )
            put()
        else:
            flat = [x for pair in v.items() for x in pair] if isinstance(v, dict) else list(v)
            one, many, n = (b"s", b"u", 2) if isinstance(v, dict) else (b"a", b"e", 1)
            out.extend(b"}" if isinstance(v, dict) else b"]")
            put()
            for at in range(0, len(flat), n * _BATCH):
                out.extend(b"" if len(flat) == n else b"(")
                for x in flat[at : at + n * _BATCH]:
                    save(x)
                out.extend(one if len(flat) == n else many)

    save(value)
    out += b"."
    if len(out) >= _FRAME and protocol > 3:
        return None
    return (
        b"\x80%c" % protocol
        + (b"\x95" + struct.pack("<Q", len(out)) if protocol > 3 and len(out) >= 4 else b"")
        + bytes(out)
    )


def compared(
    source: Source, start: int, stop: int, usual: Iterable[bytes | None], what: str, anatomy: Anatomy
) -> Iterator[Finding]:
    """Compare bytes of a file with what is usual there, and explain them: they are ``structure`` if they are
    usual to the last bit.
    """
    data = source.read(start, stop - start)
    guard = Guard.UNPROTECTED
    for u in usual:
        if u == data:
            guard = Guard.STRUCTURE
        elif (
            u is not None
            and len(u) == len(data)
            and (int.from_bytes(u, "big") ^ int.from_bytes(data, "big")).bit_count() == 1
        ):
            at = next(i for i, (a, b) in enumerate(zip(u, data, strict=True)) if a != b)
            yield finding("odd-header", f"{what}: one bit differs from what torch writes", offset=start + at)
            break
    anatomy.explain(start, stop - start, what, guard)
