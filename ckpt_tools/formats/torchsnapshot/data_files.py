"""What ``.snapshot_metadata`` says about one data file: which bytes of it hold what.

Facts: torchsnapshot 0.1.0, serialization.py (serializers), batcher.py (slabs are filled without a gap).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.limited import limited
from ckpt_tools.formats.common.zeros import ZEROS
from ckpt_tools.formats.dcp.data_files import Piece, check_object, check_tensor
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source

PLAIN, SAVED = "buffer_protocol", "torch_save"
_END = 64
"""Bytes at each end of a raw tensor that are looked at."""


class Entry(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file (``stop`` is None where they are all of it) and what they hold:
    a tensor, or an object (``dtype`` "").
    """

    start: int
    stop: int | None
    name: str
    serializer: str
    dtype: str = ""
    shape: tuple[int, ...] = ()


@limited
def check(source: Source, anatomy: Anatomy, entries: Sequence[Entry]) -> Iterator[Finding]:
    """The claim's check: ``entries`` are all that lie in the file."""
    at = 0
    for e in sorted(entries, key=lambda e: e[:2] if e.stop is not None else (e.start, source.size)):
        stop = source.size if e.stop is None else e.stop
        if e.start != at:
            what = "belong to no entry" if e.start > at else "belong to two entries"
            why = f"{abs(e.start - at):,} bytes at {e.name[:200]!r} {what}"
            yield finding("bad-header", why, offset=min(at, e.start))
        at = stop
        if at > source.size:
            why = f"{e.name[:200]!r} should end at byte {at:,}, the file ends at {source.size:,}"
            code = "truncated" if source.size else "empty-file"
            raise Damage(code, why, source.size)
        yield from _entry(source, anatomy, e, stop - e.start)
    if len(entries) == 1 and entries[0].serializer == PLAIN and _zeros_at_both_ends(source):
        anatomy.metadata[ZEROS] = True
    if source.size and len(entries) > 1 and _all_zero(source, entries):
        why = f"all {len(entries):,} entries begin with zero bytes"
        yield finding("zero-filled", why, offset=0, severity=Severity.WARNING)
    if at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last entry", offset=at)


def _entry(source: Source, anatomy: Anatomy, e: Entry, length: int) -> Iterator[Finding]:
    """What the bytes of one entry are, by how they were written."""
    if e.serializer == PLAIN:
        yield from _plain(anatomy, e, length)
    elif e.serializer != SAVED:
        what = f"{e.name[:200]!r} is serialized as {e.serializer[:40]}: its bytes were not looked at"
        anatomy.explain(e.start, length, what, Guard.UNPROTECTED)
        yield finding("too-complex", what, offset=e.start)
    elif not source.size:
        raise Damage("empty-file", f"the file has no bytes; {e.name[:200]!r} should be in it", 0)
    else:
        piece = Piece(e.start, length, e.name, e.dtype, e.shape, ())
        yield from check_tensor(source, anatomy, piece) if e.dtype else _object(source, anatomy, piece)


def _object(source: Source, anatomy: Anatomy, piece: Piece) -> Iterator[Finding]:
    """What torch.load() is given, as the index says: text in its place is damage."""
    for f in check_object(source, anatomy, piece):
        yield replace(f, severity=Severity.ERROR) if f.code == "wrong-format" else f


def _zeros_at_both_ends(source: Source) -> bool:
    ends = (source.read(at, min(_END, source.size)) for at in (0, max(0, source.size - _END)))
    return bool(source.size) and not any(end.strip(b"\0") for end in ends)


def _all_zero(source: Source, entries: Sequence[Entry]) -> bool:
    """Whether nothing in a file of several entries was written, as far as the first bytes of each tell."""
    heads = (source.read(e.start, min(64, (e.stop or source.size) - e.start)) for e in entries)
    return all(not head.strip(b"\0") for head in heads)


def _plain(anatomy: Anatomy, e: Entry, length: int) -> Iterator[Finding]:
    """The elements of a tensor as they lie in memory."""
    wanted = math.prod(e.shape) * ITEMSIZE.get(e.dtype, 0)
    anatomy.explain(e.start, length, f"{e.name[:200]!r}: elements", Guard.UNPROTECTED)
    if length < wanted and e.stop is None:
        why = f"{e.name[:200]!r} should have {wanted:,} bytes, the file has {length:,}"
        raise Damage("truncated" if length else "empty-file", why, length)
    if length != wanted:
        why = f"{e.name[:200]!r} has {length:,} bytes; {e.dtype} {list(e.shape)} has {wanted:,}"
        yield finding("tensor-size", why, offset=e.start)
        return
    anatomy.tensors.append(Tensor(e.name, e.dtype, e.shape, wanted, e.start))
