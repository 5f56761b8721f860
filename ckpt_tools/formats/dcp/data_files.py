"""The check of one data file (``*.distcp``) against ``.metadata``: its segments must fill the file, and each
must hold the tensor or object that ``.metadata`` names.

A segment is one whole torch.save archive (torch/distributed/checkpoint/filesystem.py, _write_item). With
serialization_format SAFETENSORS the file ends in one safetensors blob for all its tensors: each tensor's
segment then begins where the blob begins, and its length is the size of the tensor.
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
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, check_inner, limit, structure
from ckpt_tools.formats.common.tensors import near_miss, remember
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.reader import read_pickle
from ckpt_tools.formats.pickles.scalars import read_scalar
from ckpt_tools.formats.safetensors import safetensors
from ckpt_tools.formats.torch import torch_legacy, torch_zip
from ckpt_tools.formats.torch.tensors import ITEMSIZE, is_proto, legacy_magic
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Level, Tensor
from ckpt_tools.storage import BytesSource, Source

PACKED, _UNPACKED = 1 << 20, 8 << 20
"""The largest compressed object that is decoded, and the largest result, in bytes."""
_PICKLE_CODES = frozenset({"unsafe-pickle", "unread-pickle", "suspect-call", "needs-trust"})
_ZIP_END = b"PK\5\6"
_ZSTD_NAME = "stream.zstd/1"  # _extension.py: ZStandard.get_descriptor
_ZSTD = b"\x28\xb5\x2f\xfd"


class Piece(NamedTuple):
    """One segment, which must hold a chunk of a tensor (``dtype``, ``sizes``) or an object (``dtype`` "")."""

    start: int
    length: int
    fqn: str
    dtype: str
    sizes: tuple[int, ...]
    transforms: tuple[str, ...]


def _separate_blob(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return the segments that are archives, sorted, and the segments that share the safetensors blob."""
    order, blob, archives = sorted(pieces), list[Piece](), list[Piece]()
    for p in order:
        bare = p.dtype and not p.transforms and p.length == math.prod(p.sizes) * ITEMSIZE.get(p.dtype, -1)
        (blob if bare else archives).append(p)
    return (archives, blob) if blob and all(p.start == blob[0].start for p in blob) else (order, [])


def find_overlap(pieces: Sequence[Piece]) -> Piece | None:
    """Return the first segment of a file that begins inside the segment before it, or None."""
    order, blob = _separate_blob(pieces)
    at = 0
    for p in [*order, *blob[:1]]:
        if p.start < at:
            return p
        at = p.start + p.length
    return None


@limit
def check(source: Source, anatomy: Anatomy, pieces: Sequence[Piece]) -> Iterator[Finding]:
    """Compare a data file with ``pieces``: all its segments by ``.metadata``, which do not overlap."""
    if not source.size:
        raise Damage("empty-file", f"the file has no bytes; {len(pieces):,} entries should be in it", 0)
    order, blob = _separate_blob(pieces)
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
    """Check a segment's archive; return its tensors, and whether it has errors. Its checksums are added."""
    collected = Anatomy(key=anatomy.key, regions=None if anatomy.regions is None else [])
    name, failed, check = p.fqn[:200], False, torch_zip.FORMAT.checks[Level.STRUCTURE]
    reading = check_inner(source, p.start, p.length, check, collected, prefix=f"{name!r}: ")
    while True:
        try:
            f = next(reading)
        except StopIteration as e:
            inner: Anatomy = e.value
            break
        failed = failed or f.severity is Severity.ERROR
        yield f
    anatomy.named(collected)
    anatomy.windows += collected.windows
    anatomy.sums += (replace(s, what=f"{name!r}: {s.what}") for s in collected.sums)
    for r in collected.regions or ():
        anatomy.explain(*r)
    for k, v in inner.metadata.items():
        if k != "archive_name":
            remember(anatomy.metadata, f"{name}.{k}", v)
    return collected.tensors, failed


def check_tensor(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """Compare the tensor in a segment with its dtype and shape by the index; add it to ``anatomy``."""
    tensors, failed = yield from _read_archive(source, anatomy, p)
    if len(tensors) == 1 and not tensors[0].name:
        t = tensors[0]
        anatomy.tensors.append(replace(t, name=p.fqn))
        if (t.dtype, t.shape) != (p.dtype, p.sizes):
            yield _make_mismatch(p, t)
        return
    anatomy.tensors += (replace(t, name=f"{p.fqn}.{t.name}".rstrip(".")) for t in tensors)
    if not tensors and not failed:
        yield finding("bad-header", f"the segment of {p.fqn[:200]!r} holds no tensor", offset=p.start)


def _make_mismatch(p: Piece, t: Tensor) -> Finding:
    """Return the finding that a tensor in a segment has another dtype or shape than in ``.metadata``."""
    why = f"{p.fqn[:200]!r} is {t.dtype} {list(t.shape)} here, the index says {p.dtype} {list(p.sizes)}"
    return finding("tensor-size", why, offset=p.start if t.offset is None else t.offset)


def check_object(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """Check an object's segment: a torch.save archive, as both existing planners write it, or the plain
    pickle of another planner. ``dcp.load`` hands any segment to torch.load, which unpickles without asking.
    """
    anatomy.keys.add(p.fqn)
    title = f"the object {p.fqn[:200]!r}"
    head = source.read(p.start, min(64, p.length))
    tail = source.read(p.start + p.length - 22, 22) if p.length >= 22 else b""
    if head.startswith(b"PK\3\4") or tail.startswith(_ZIP_END):
        tensors, _ = yield from _read_archive(source, anatomy, p)
        anatomy.tensors += (replace(t, name=f"{p.fqn}.{t.name}".rstrip(".")) for t in tensors)
        # an object that is one scalar (step, epoch …): the first record pickles it, behind its header
        if len(head) >= 30 and head.startswith(b"PK\3\4"):
            at = 30 + sum(int.from_bytes(head[i : i + 2], "little") for i in (26, 28))  # name, extra
            with suppress(Damage):  # more than a scalar, or damaged and reported already
                data = source.read(p.start + at, min(128, p.length - at)) if at < p.length else b""
                if data and (plain := read_scalar(read_pickle(data).value)):
                    remember(anatomy.metadata, p.fqn[:256], plain[0])
        return
    what = f"{p.fqn[:200]!r}: raw bytes of an object; only their length is checked"
    anatomy.explain(p.start, p.length, what, Guard.UNPROTECTED)
    if not head.strip(b"\0"):
        why = f"{title} begins with {len(head)} zero bytes instead of an archive"
        yield finding("zero-filled", why, offset=p.start)
    elif is_proto(head):
        yield finding("not-checksummed", f"{title} is a plain pickle, which has no checksum", offset=p.start)
        yield from _check_pickles(source, anatomy, p)
    else:  # pickles of protocols 0 and 1 have no mark: bytes that cannot be read as a pickle are no damage
        box = Anatomy()
        yield from _filter_pickle_findings(_check_pickles(source, box, p))
        anatomy.named(box)
        why = f"{title} is not a torch.save archive"
        yield finding("wrong-format", why, offset=p.start, severity=Severity.WARNING)


def _check_pickles(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """Check an object's pickles: torch's old format has five, any other caller of pickle reads one."""
    if legacy_magic(source.read(p.start, min(HEAD, p.length))):
        box, check = Anatomy(regions=None), torch_legacy.FORMAT.checks[Level.STRUCTURE]
        yield from _filter_pickle_findings(check_inner(source, p.start, p.length, check, box))
        anatomy.named(box)
        return
    try:
        yield from read_judged(source, p.start, p.start + p.length, anatomy)
    except Damage as e:
        yield e.finding


def _filter_pickle_findings(findings: Iterable[Finding], offset: int | None = None) -> Iterator[Finding]:
    """Yield the findings about pickles only, at ``offset`` instead of their own offsets if it is given."""
    for f in findings:
        if f.code in _PICKLE_CODES:
            yield f if offset is None else replace(f, offset=offset)


def _check_transformed(source: Source, anatomy: Anatomy, p: Piece) -> Iterator[Finding]:
    """Check a compressed segment: its first bytes, and the calls in the pickle of an object."""
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
    findings = structure(BytesSource(data), box, partial(check_object, p=inner))
    yield from _filter_pickle_findings(findings, p.start)
    anatomy.named(box)


def _check_blob(source: Source, anatomy: Anatomy, at: int, pieces: Sequence[Piece]) -> Iterator[Finding]:
    """Check the safetensors blob from ``at`` to the end of the data file: it holds exactly ``pieces``."""
    if at >= source.size:
        why = f"the tensors should begin at byte {at:,}, where the file ends"
        raise Damage("truncated", why, source.size)
    box = Anatomy(regions=None if anatomy.regions is None else [])
    yield from check_inner(source, at, source.size - at, safetensors.FORMAT.checks[Level.STRUCTURE], box)
    anatomy.tensors += box.tensors
    anatomy.sums += box.sums
    for r in box.regions or ():
        anatomy.explain(*r)
    in_blob = {t.name: t for t in box.tensors}
    for p in pieces:
        tensor = in_blob.pop(p.fqn, None)
        if tensor is None:
            why = f".metadata says that tensor {p.fqn[:200]!r} is here, but it is not"
            yield finding("bad-header", why, offset=at)
        elif (tensor.dtype, tensor.shape) != (p.dtype, p.sizes):
            yield _make_mismatch(p, tensor)
    for name, t in in_blob.items():
        yield finding("bad-header", f".metadata does not know tensor {name[:200]!r}", offset=t.offset)
