"""What ``.metadata`` says about one data file (``*.distcp``): its segments must fill it, and each must hold
what it is said to hold.

A segment is one whole torch.save archive (torch/distributed/checkpoint/filesystem.py, _write_item). With
serialization_format SAFETENSORS the file ends in one safetensors blob for all its tensors; their segments
then all begin where the blob does, with the tensor's size as length.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import decompress
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, inside, structure
from ckpt_tools.formats.common.limited import limited
from ckpt_tools.formats.common.tensors import near_miss, remember
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.reader import read_pickle
from ckpt_tools.formats.pickles.scalars import scalar
from ckpt_tools.formats.safetensors import safetensors
from ckpt_tools.formats.torch import torch_legacy, torch_zip
from ckpt_tools.formats.torch.names import legacy_magic
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import BytesSource, Source

# ---- Objects of DCP that are no archives: plain pickles, and compressed ones. ``dcp.load`` hands each to
# torch.load, which unpickles it without asking.


PACKED, _UNPACKED = 1 << 20, 8 << 20
"""Bytes of a compressed object, and of what it decodes into, that are looked at."""
_PICKLES = frozenset({"unsafe-pickle", "unread-pickle", "suspect-call", "needs-trust"})


def pickles(source: Source, anatomy: Anatomy, start: int, length: int) -> Iterator[Finding]:
    """What the pickles at ``start`` name: torch's old format has five,
    any other caller of pickle reads one.
    """
    if legacy_magic(source.read(start, min(HEAD, length))):
        box = Anatomy(regions=None)
        yield from told_of(inside(source, start, length, torch_legacy.FORMAT.checks[Level.STRUCTURE], box))
        anatomy.named(box)
        return
    try:
        yield from read_judged(source, start, start + length, anatomy)
    except Damage as e:
        yield e.finding


def unlikely_pickles(source: Source, anatomy: Anatomy, start: int, length: int) -> Iterator[Finding]:
    """The same of bytes that do not begin as a pickle does: that they are none is no damage."""
    box = Anatomy()
    yield from told_of(pickles(source, box, start, length))
    anatomy.named(box)


def told_of(found: Iterable[Finding], offset: int | None = None) -> Iterator[Finding]:
    """What findings say about pickles, and nothing else; ``offset`` replaces theirs."""
    for f in found:
        if f.code in _PICKLES:
            yield f if offset is None else replace(f, offset=offset)


def unpacked(data: bytes) -> bytes | None:
    """What zstd data decodes into; None where it does not, or into too much."""
    try:
        return decompress(data, _UNPACKED)
    except Damage:
        return None


_END = b"PK\5\6"
_ZSTD_NAME = "stream.zstd/1"  # _extension.py: ZStandard.get_descriptor
_ZSTD = b"\x28\xb5\x2f\xfd"


class Piece(NamedTuple):
    """One segment with what it must hold: a chunk of ``dtype`` and ``sizes``, or an object (``dtype`` "")."""

    start: int
    length: int
    fqn: str
    dtype: str
    sizes: tuple[int, ...]
    transforms: tuple[str, ...]


def bare(p: Piece) -> bool:
    """Whether the length is that of the elements alone: an archive is always longer, so the bytes lie in a
    safetensors blob.
    """
    return bool(p.dtype) and not p.transforms and p.length == math.prod(p.sizes) * ITEMSIZE.get(p.dtype, -1)


def layout(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """The segments of one file in order, and those of them that share its safetensors blob."""
    order = sorted(pieces)
    blob = [p for p in order if bare(p)]
    if blob and all(p.start == blob[0].start for p in blob):
        return [p for p in order if not bare(p)], blob
    return order, []


def clash(pieces: Sequence[Piece]) -> Piece | None:
    """The first segment of a file that begins inside the one before it."""
    order, blob = layout(pieces)
    at = 0
    for p in [*order, *blob[:1]]:
        if p.start < at:
            return p
        at = p.start + p.length
    return None


@limited
def check(source: Source, anatomy: Anatomy, pieces: Sequence[Piece]) -> Iterator[Finding]:
    """The claim's check: ``pieces`` are all segments of the file, without overlap."""
    if not source.size:
        raise Damage("empty-file", f"the file has no bytes; {len(pieces):,} entries should be in it", 0)
    order, blob = layout(pieces)
    at = 0
    for p in order:
        if p.start > at:
            yield finding(
                "bad-header", f"{p.start - at:,} bytes before {p.fqn[:200]!r} belong to no entry", offset=at
            )
        at = p.start + p.length
        if at > source.size:
            raise Damage(
                "truncated",
                f"{p.fqn[:200]!r} should end at byte {at:,}, the file ends at {source.size:,}",
                source.size,
            )
        if p.transforms:
            yield from _transformed(source, anatomy, p)
        elif p.dtype:
            yield from check_tensor(source, anatomy, p)
        else:
            yield from check_object(source, anatomy, p)
    if blob:
        yield from _blob(source, anatomy, at, blob)
    elif at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last entry", offset=at)


def _archive(source: Source, anatomy: Anatomy, p: Piece) -> Generator[Finding, None, list[Tensor]]:
    """Check the torch.save archive of a segment, and name its checksums and regions after the entry. Returns
    its tensors.
    """
    box = Anatomy(key=anatomy.key, regions=None if anatomy.regions is None else [])
    name = p.fqn[:200]
    inner = yield from inside(
        source, p.start, p.length, torch_zip.FORMAT.checks[Level.STRUCTURE], box, prefix=f"{name!r}: "
    )
    anatomy.named(box)
    anatomy.windows += box.windows
    anatomy.sums += (replace(s, what=f"{name!r}: {s.what}") for s in box.sums)
    for r in box.regions or ():
        anatomy.explain(*r)
    for k, v in inner.metadata.items():
        if k != "archive_name":
            remember(anatomy.metadata, f"{name}.{k}", v)
    return box.tensors


def check_tensor(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    held, failed = yield from _noting(_archive(source, anatomy, p))
    if len(held) == 1 and not held[0].name:
        t = held[0]
        anatomy.tensors.append(replace(t, name=p.fqn))
        if (t.dtype, t.shape) != (p.dtype, p.sizes):
            yield _differs(p, t)
        return
    anatomy.tensors += (replace(t, name=f"{p.fqn}.{t.name}".rstrip(".")) for t in held)
    if not held and not failed:
        yield finding("bad-header", f"the segment of {p.fqn[:200]!r} holds no tensor", offset=p.start)


def _differs(p: Piece, t: Tensor) -> Finding:
    why = f"{p.fqn[:200]!r} is {t.dtype} {list(t.shape)} here, the index says {p.dtype} {list(p.sizes)}"
    return finding("tensor-size", why, offset=p.start if t.offset is None else t.offset)


def _noting(
    found: Generator[Finding, None, list[Tensor]],
) -> Generator[Finding, None, tuple[list[Tensor], bool]]:
    """Pass findings on; also return whether one of them was an error."""
    failed = False
    while True:
        try:
            f = next(found)
        except StopIteration as e:
            return e.value, failed
        failed = failed or f.severity is Severity.ERROR
        yield f


def check_object(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """An object: a torch.save archive, as both planners that exist write it; or the plain pickle of another
    planner.
    """
    anatomy.keys.add(p.fqn)
    title = f"the object {p.fqn[:200]!r}"
    head = source.read(p.start, min(64, p.length))
    tail = source.read(p.start + p.length - 22, 22) if p.length >= 22 else b""
    if head.startswith(b"PK\3\4") or tail.startswith(_END):
        held = yield from _archive(source, anatomy, p)
        anatomy.tensors += (replace(t, name=f"{p.fqn}.{t.name}".rstrip(".")) for t in held)
        _remember(source, anatomy, p, head)
        return
    what = f"{p.fqn[:200]!r}: raw bytes of an object; only their length is checked"
    anatomy.explain(p.start, p.length, what, Guard.UNPROTECTED)
    if not head.strip(b"\0"):
        why = f"{title} begins with {len(head)} zero bytes instead of an archive"
        yield finding("zero-filled", why, offset=p.start)
    elif head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        why = f"{title} is a plain pickle, which has no checksum"
        yield finding("not-checksummed", why, offset=p.start)
        yield from pickles(source, anatomy, p.start, p.length)
    else:  # pickles of protocols 0 and 1 have no mark
        yield from unlikely_pickles(source, anatomy, p.start, p.length)
        why = f"{title} is no torch.save archive"
        yield finding("wrong-format", why, offset=p.start, severity=Severity.WARNING)


def _remember(source: Source, anatomy: Anatomy, p: Piece, head: bytes) -> None:
    """Keep an object that is one plain scalar (step, epoch …): its pickle is the archive's first record."""
    if len(head) < 30 or not head.startswith(b"PK\3\4"):
        return
    at = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if at >= p.length:
        return
    try:
        got = scalar(read_pickle(source.read(p.start + at, min(128, p.length - at))).value)
    except Damage:  # longer, or damaged and reported already
        return
    if got:
        remember(anatomy.metadata, p.fqn[:256], got[0])


def _transformed(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    names = ", ".join(t[:40] for t in p.transforms[:4])
    anatomy.explain(
        p.start,
        p.length,
        f"{p.fqn[:200]!r}: transformed by {names}; only its length is checked",
        Guard.UNPROTECTED,
    )
    yield finding(
        "not-checksummed",
        f"{p.fqn[:200]!r} is transformed by {names}: only its length was checked",
        offset=p.start,
    )
    meant = near_miss(p.transforms[0], (_ZSTD_NAME,))
    if meant:
        yield finding(
            "bad-header", f"the transform {p.transforms[0]!r} is {meant!r} with a flipped bit", offset=p.start
        )
    if p.transforms[0] == _ZSTD_NAME and source.read(p.start, min(4, p.length)) != _ZSTD:
        yield finding(
            "bad-header",
            f"{p.fqn[:200]!r} should be compressed by zstd, but does not begin so",
            offset=p.start,
        )
    elif not p.dtype:
        yield from _transformed_object(source, anatomy, p)


def _transformed_object(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """What is wrong with a pickle that was compressed."""
    is_read = p.transforms == (_ZSTD_NAME,) and p.length <= PACKED
    data = unpacked(source.read(p.start, p.length)) if is_read else None
    if data is None:
        names = ", ".join(t[:40] for t in p.transforms[:4])
        text = f"the object {p.fqn[:200]!r} is transformed by {names}, and its pickle was not read"
        yield finding("unread-pickle", text, offset=p.start)
        return
    inner = p._replace(start=0, length=len(data), transforms=())
    yield from told_of(
        structure(BytesSource(data), box := Anatomy(), partial(check_object, p=inner)), p.start
    )
    anatomy.named(box)


def _blob(source: Source, anatomy: Anatomy, at: int, pieces: Sequence[Piece]) -> Iterator[Finding]:
    """One safetensors file, from ``at`` to the end of the data file, that holds all tensors."""
    if at >= source.size:
        raise Damage(
            "truncated", f"the tensors should begin at byte {at:,}, where the file ends", source.size
        )
    box = Anatomy(regions=None if anatomy.regions is None else [])
    yield from inside(source, at, source.size - at, safetensors.FORMAT.checks[Level.STRUCTURE], box)
    anatomy.tensors += box.tensors
    anatomy.sums += box.sums
    for r in box.regions or ():
        anatomy.explain(*r)
    held = {t.name: t for t in box.tensors}
    for p in pieces:
        here = held.pop(p.fqn, None)
        if here is None:
            yield finding(
                "bad-header", f".metadata says that tensor {p.fqn[:200]!r} is here, but it is not", offset=at
            )
        elif (here.dtype, here.shape) != (p.dtype, p.sizes):
            yield _differs(p, here)
    for name, t in held.items():
        yield finding("bad-header", f".metadata does not know tensor {name[:200]!r}", offset=t.offset)
