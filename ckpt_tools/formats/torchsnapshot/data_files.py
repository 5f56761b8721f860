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
"""Bytes at each end of an entry that are looked at."""


class Entry(NamedTuple):
    """A tensor or an object (``dtype`` ""); ``stop`` is None where all of the file holds it."""

    start: int
    stop: int | None
    name: str
    serializer: str
    dtype: str = ""
    shape: tuple[int, ...] = ()


@limited
def check_file(source: Source, anatomy: Anatomy, entries: Sequence[Entry]) -> Iterator[Finding]:
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
            raise Damage("truncated" if source.size else "empty-file", why, source.size)
        yield from _check_entry(source, anatomy, e, stop - e.start)
    if source.size:
        yield from _check_zeros(source, anatomy, entries)
    if at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last entry", offset=at)


def _check_zeros(source: Source, anatomy: Anatomy, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Whether nothing was written, as far as the first bytes of each entry tell, of one also its last."""
    if len(entries) == 1 and entries[0].serializer != PLAIN:
        return
    firsts = (source.read(e.start, min(_END, (e.stop or source.size) - e.start)) for e in entries)
    zero = not any(first.strip(b"\0") for first in firsts)
    if zero and len(entries) > 1:
        why = f"all {len(entries):,} entries begin with zero bytes"
        yield finding("zero-filled", why, offset=0, severity=Severity.WARNING)
    elif zero:
        end = min(_END, source.size)
        if not source.read(source.size - end, end).strip(b"\0"):
            anatomy.metadata[ZEROS] = True


def _check_entry(source: Source, anatomy: Anatomy, e: Entry, length: int) -> Iterator[Finding]:
    """What the bytes of one entry are, by how they were written."""
    if e.serializer == PLAIN:
        yield from _check_plain(anatomy, e, length)
    elif e.serializer != SAVED:
        what = f"{e.name[:200]!r} is serialized as {e.serializer[:40]}: its bytes were not looked at"
        anatomy.explain(e.start, length, what, Guard.UNPROTECTED)
        yield finding("too-complex", what, offset=e.start)
    elif not source.size:
        raise Damage("empty-file", f"the file has no bytes; {e.name[:200]!r} should be in it", 0)
    else:
        piece = Piece(e.start, length, e.name, e.dtype, e.shape, ())
        if e.dtype:
            yield from check_tensor(source, anatomy, piece)
            return
        for f in check_object(source, anatomy, piece):  # what torch.load() is given: text there is damage
            yield replace(f, severity=Severity.ERROR) if f.code == "wrong-format" else f


def _check_plain(anatomy: Anatomy, e: Entry, length: int) -> Iterator[Finding]:
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
