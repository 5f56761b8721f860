"""What ``.metadata`` says about one data file (``*.distcp``): its segments must fill it, and each must hold
what it is said to hold.

A segment is one whole torch.save archive (torch/distributed/checkpoint/filesystem.py, _write_item). With
serialization_format SAFETENSORS the file ends in one safetensors blob for all its tensors; their segments
then all begin where the blob does, with the tensor's size as length.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import decompress
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, inside, limited, structure
from ckpt_tools.formats.common.tensors import near_miss, remember
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.reader import read_pickle
from ckpt_tools.formats.pickles.scalars import scalar
from ckpt_tools.formats.safetensors import safetensors
from ckpt_tools.formats.torch import torch_legacy, torch_zip
from ckpt_tools.formats.torch.tensors import ITEMSIZE, legacy_magic
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level, Tensor
from ckpt_tools.storage import BytesSource, Source

PACKED, _UNPACKED = 1 << 20, 8 << 20
"""Bytes of a compressed object, and of what it decodes into, that are looked at."""
_PICKLES = frozenset({"unsafe-pickle", "unread-pickle", "suspect-call", "needs-trust"})
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


def _lay_out(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """The segments of one file in order, and those that have no archive: they share its safetensors blob."""
    order, blob, others = sorted(pieces), list[Piece](), list[Piece]()
    for p in order:
        bare = p.dtype and not p.transforms and p.length == math.prod(p.sizes) * ITEMSIZE.get(p.dtype, -1)
        (blob if bare else others).append(p)
    return (others, blob) if blob and all(p.start == blob[0].start for p in blob) else (order, [])


def find_clash(pieces: Sequence[Piece]) -> Piece | None:
    """The first segment of a file that begins inside the one before it."""
    order, blob = _lay_out(pieces)
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
    order, blob = _lay_out(pieces)
    at = 0
    for p in order:
        if p.start > at:
            why = f"{p.start - at:,} bytes before {p.fqn[:200]!r} belong to no entry"
            yield finding("bad-header", why, offset=at)
        at = p.start + p.length
        if at > source.size:
            why = f"{p.fqn[:200]!r} should end at byte {at:,}, the file ends at {source.size:,}"
            raise Damage("truncated", why, source.size)
        if p.transforms:
            yield from _check_transformed(source, anatomy, p)
        elif p.dtype:
            yield from check_tensor(source, anatomy, p)
        else:
            yield from check_object(source, anatomy, p)
    if blob:
        yield from _check_blob(source, anatomy, at, blob)
    elif at < source.size:
        yield finding("trailing-data", f"{source.size - at:,} bytes follow the last entry", offset=at)


def _read_archive(
    source: Source, anatomy: Anatomy, p: Piece
) -> Generator[Finding, None, tuple[list[Tensor], bool]]:
    """Check the archive of a segment; returns its tensors, and whether one of the findings was an error."""
    box = Anatomy(key=anatomy.key, regions=None if anatomy.regions is None else [])
    name, failed, check = p.fqn[:200], False, torch_zip.FORMAT.checks[Level.STRUCTURE]
    reading = inside(source, p.start, p.length, check, box, prefix=f"{name!r}: ")
    while True:
        try:
            f = next(reading)
        except StopIteration as e:
            inner: Anatomy = e.value
            break
        failed = failed or f.severity is Severity.ERROR
        yield f
    anatomy.named(box)
    anatomy.windows += box.windows
    anatomy.sums += (replace(s, what=f"{name!r}: {s.what}") for s in box.sums)
    for r in box.regions or ():
        anatomy.explain(*r)
    for k, v in inner.metadata.items():
        if k != "archive_name":
            remember(anatomy.metadata, f"{name}.{k}", v)
    return box.tensors, failed


def check_tensor(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    held, failed = yield from _read_archive(source, anatomy, p)
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


def check_object(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """An object: a torch.save archive, as both planners that exist write it; or the plain pickle of another
    planner. ``dcp.load`` hands each to torch.load, which unpickles it without asking.
    """
    anatomy.keys.add(p.fqn)
    title = f"the object {p.fqn[:200]!r}"
    head = source.read(p.start, min(64, p.length))
    tail = source.read(p.start + p.length - 22, 22) if p.length >= 22 else b""
    if head.startswith(b"PK\3\4") or tail.startswith(_END):
        held, _ = yield from _read_archive(source, anatomy, p)
        anatomy.tensors += (replace(t, name=f"{p.fqn}.{t.name}".rstrip(".")) for t in held)
        _remember_scalar(source, anatomy, p, head)
        return
    what = f"{p.fqn[:200]!r}: raw bytes of an object; only their length is checked"
    anatomy.explain(p.start, p.length, what, Guard.UNPROTECTED)
    if not head.strip(b"\0"):
        why = f"{title} begins with {len(head)} zero bytes instead of an archive"
        yield finding("zero-filled", why, offset=p.start)
    elif head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        why = f"{title} is a plain pickle, which has no checksum"
        yield finding("not-checksummed", why, offset=p.start)
        yield from _check_pickles(source, anatomy, p)
    else:  # pickles of protocols 0 and 1 have no mark: that these bytes are none is no damage
        box = Anatomy()
        yield from _keep_pickles(_check_pickles(source, box, p))
        anatomy.named(box)
        why = f"{title} is not a torch.save archive"
        yield finding("wrong-format", why, offset=p.start, severity=Severity.WARNING)


def _check_pickles(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """What an object's pickles are: torch's old format has five, any other caller of pickle reads one."""
    if legacy_magic(source.read(p.start, min(HEAD, p.length))):
        box, check = Anatomy(regions=None), torch_legacy.FORMAT.checks[Level.STRUCTURE]
        yield from _keep_pickles(inside(source, p.start, p.length, check, box))
        anatomy.named(box)
        return
    try:
        yield from read_judged(source, p.start, p.start + p.length, anatomy)
    except Damage as e:
        yield e.finding


def _keep_pickles(found: Iterable[Finding], offset: int | None = None) -> Iterator[Finding]:
    """What findings say about pickles, and nothing else; ``offset`` replaces theirs."""
    for f in found:
        if f.code in _PICKLES:
            yield f if offset is None else replace(f, offset=offset)


def _remember_scalar(source: Source, anatomy: Anatomy, p: Piece, head: bytes) -> None:
    """Keep an object that is one plain scalar (step, epoch …): its pickle is the archive's first record."""
    if len(head) < 30 or not head.startswith(b"PK\3\4"):
        return
    at = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    with suppress(Damage):  # longer, or damaged and reported already
        if at < p.length and (
            got := scalar(read_pickle(source.read(p.start + at, min(128, p.length - at))).value)
        ):
            remember(anatomy.metadata, p.fqn[:256], got[0])


def _check_transformed(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """What was compressed: its length, how it begins, and what the pickle of an object would run."""
    name, names = repr(p.fqn[:200]), ", ".join(t[:40] for t in p.transforms[:4])
    what = f"{name}: transformed by {names}; only its length is checked"
    anatomy.explain(p.start, p.length, what, Guard.UNPROTECTED)
    why = f"{name} is transformed by {names}: only its length was checked"
    yield finding("not-checksummed", why, offset=p.start)
    if meant := near_miss(p.transforms[0], (_ZSTD_NAME,)):
        why = f"the transform {p.transforms[0]!r} is {meant!r} with a flipped bit"
        yield finding("bad-header", why, offset=p.start)
    if p.transforms[0] == _ZSTD_NAME and source.read(p.start, min(4, p.length)) != _ZSTD:
        why = f"{name} should be compressed by zstd, but does not begin so"
        yield finding("bad-header", why, offset=p.start)
        return
    if p.dtype:
        return
    data: bytes | None = None
    if p.transforms == (_ZSTD_NAME,) and p.length <= PACKED:
        with suppress(Damage):
            data = decompress(source.read(p.start, p.length), _UNPACKED)
    if data is None:
        text = f"the object {name} is transformed by {names}, and its pickle was not read"
        yield finding("unread-pickle", text, offset=p.start)
        return
    box, inner = Anatomy(), p._replace(start=0, length=len(data), transforms=())
    yield from _keep_pickles(structure(BytesSource(data), box, partial(check_object, p=inner)), p.start)
    anatomy.named(box)


def _check_blob(source: Source, anatomy: Anatomy, at: int, pieces: Sequence[Piece]) -> Iterator[Finding]:
    """One safetensors file, from ``at`` to the end of the data file, that holds all tensors."""
    if at >= source.size:
        why = f"the tensors should begin at byte {at:,}, where the file ends"
        raise Damage("truncated", why, source.size)
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
            why = f".metadata says that tensor {p.fqn[:200]!r} is here, but it is not"
            yield finding("bad-header", why, offset=at)
        elif (here.dtype, here.shape) != (p.dtype, p.sizes):
            yield _differs(p, here)
    for name, t in held.items():
        yield finding("bad-header", f".metadata does not know tensor {name[:200]!r}", offset=t.offset)
