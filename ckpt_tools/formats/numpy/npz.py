"""Archives of numpy.savez: a zip of arrays, one .npy each, stored or deflated."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.archives.zip import DEFLATED, STORED, of_numpy, protect, read_zip, unsummed
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.common.format import Anatomy, Damage, limited, own_format, structure
from ckpt_tools.formats.common.tensors import is_single, remember, scalar
from ckpt_tools.formats.numpy.npy import MAGIC, read_array, read_array_header, tensor_of
from ckpt_tools.formats.pickles.judged import RUNS
from ckpt_tools.formats.torch import torch_zip
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Level
from ckpt_tools.storage import BytesSource, Source, Window

_SUFFIX = ".npy"
_INFLATED = 16 << 10
"""Bytes of a deflated array that are inflated for its header: more than NumPy's own reader takes."""
_OBJECTS = 64 << 20
"""Bytes that the deflated pickles of one file may inflate into."""


def magic(head: bytes) -> bool:
    """A zip whose first member is an array; of a name that does not end here, as NumPy's writer makes it."""
    if not head.startswith(b"PK\3\4"):
        return False
    n = int.from_bytes(head[26:28], "little")
    return of_numpy(head) if n > len(head) - 30 else head[30 : 30 + n].endswith(b".npy")


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    records = yield from read_zip(source, anatomy, torch=False)
    off = unsummed(records)
    if off:
        yield finding("checksum-off", "every record has the checksum 0")
        yield finding("not-checksummed", "nothing in this file is protected by a checksum")
    others = list[Record]()
    for r in records:
        name = r.name.removesuffix(_SUFFIX)
        anatomy.keys.add(name)
        if r.payload >= 0 and (name != r.name or torch_zip.begins(source, r, len(MAGIC)) == MAGIC):
            yield from _member(source, r, name, anatomy)
        else:
            others.append(r)
    yield from torch_zip.other_pickles(source, others, anatomy)
    protect(records, anatomy, frozenset(records) if off else ())


def object_arrays(source: Source, records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """What the arrays of objects in another archive would run: numpy.load reads those of any zip."""
    for r in records:
        if r.payload >= 0 and torch_zip.begins(source, r, len(MAGIC)) == MAGIC:
            inner = Anatomy()
            yield from (f for f in _member(source, r, r.name, inner) if f.code in RUNS)
            anatomy.named(inner)


def _member(source: Source, r: Record, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """One array: its header against its size, and what a pickle of objects names."""
    inner = Anatomy(decoded=anatomy.decoded)
    if r.method == STORED:
        whole = Window(source, r.payload, r.stored)
        for f in structure(whole, inner, lambda inside, of: _array(inside, name, of)):
            yield replace(f, offset=r.payload + (f.offset or 0))
    elif r.method == DEFLATED:
        for f in structure(source, inner, lambda outer, of: _deflated(outer, r, name, of)):
            yield replace(f, offset=r.payload)
    anatomy.named(inner)
    anatomy.keys |= inner.keys
    anatomy.decoded = inner.decoded
    for key, value in inner.metadata.items():
        remember(anatomy.metadata, key, value)
    base = r.payload if r.method == STORED else None
    anatomy.tensors += (
        replace(t, offset=None if base is None else base + (t.offset or 0)) for t in inner.tensors
    )


def _array(source: Source, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """An array that takes the whole of a source. Raises Damage."""
    end = yield from read_array(source, 0, name, anatomy)
    if end != source.size:
        raise Damage("trailing-data", f"{source.size - end:,} bytes follow array {name[:200]!r}", end)
    for t in anatomy.tensors:
        if is_single(t.dtype, t.shape):
            anatomy.metadata[name] = scalar(source.read(t.offset or 0, t.nbytes), t.dtype)


def _deflated(source: Source, r: Record, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """A deflated array: the header of a large one, all of a small one and of a pickle. Raises Damage."""
    beginning = source.read(r.payload, min(r.stored, _INFLATED))
    try:
        head = zlib.decompressobj(-15).decompress(beginning, _INFLATED)
    except zlib.error as e:
        raise Damage("crc-mismatch", f"array {name[:200]!r} does not decompress: {e}") from None
    array = read_array_header(BytesSource(head), 0)
    if array.header.element.objects:
        anatomy.decoded += r.size
        if anatomy.decoded > _OBJECTS:
            why = f"array {name[:200]!r} is a compressed pickle, of which this file has too much"
            raise Damage("unread-pickle", why)
        head = torch_zip.inflate(source, r)
    if len(head) == r.size:
        yield from _array(BytesSource(head), name, anatomy)
        return
    need = array.data + array.header.nbytes
    if need != r.size:
        raise Damage("tensor-size", f"array {name[:200]!r} needs {need:,} bytes, its record has {r.size:,}")
    anatomy.tensors.append(tensor_of(array.header, name, None))


FORMAT = own_format(name="npz", magic=magic, checks={Level.STRUCTURE: _structure})
