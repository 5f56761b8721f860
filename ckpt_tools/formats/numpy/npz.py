"""Archives of numpy.savez: a zip of arrays, one .npy each, stored or deflated."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.formats.archives.zip import DEFLATED, STORED, add_all_sums, is_numpy_zip, read_zip
from ckpt_tools.formats.archives.zip_directory import Record
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format, structure
from ckpt_tools.formats.common.tensors import is_single, remember, scalar
from ckpt_tools.formats.numpy.npy import MAGIC, make_tensor, read_array, read_array_header
from ckpt_tools.formats.pickles.judged import RUNS
from ckpt_tools.formats.torch import torch_zip
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import BytesSource, Source, Window

_SUFFIX = ".npy"
_INFLATED = 16 << 10
"""Bytes of a deflated array that are inflated for its header: NumPy's own reader takes fewer."""
_OBJECTS = 64 << 20
"""Bytes that the deflated pickles of one file may inflate into."""


def magic(head: bytes) -> bool:
    """Return True for a zip whose first member is *.npy, or for any zip of NumPy's if its name is cut."""
    if not head.startswith(b"PK\3\4"):
        return False
    n = int.from_bytes(head[26:28], "little")
    return is_numpy_zip(head) if n > len(head) - 30 else head[30 : 30 + n].endswith(b".npy")


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the zip, its arrays, and any other pickles in it; add the records' CRCs to ``anatomy.sums``."""
    records = yield from read_zip(source, anatomy, torch=False)
    yield from add_all_sums(records, anatomy)
    others = list[Record]()
    for r in records:
        name = r.name.removesuffix(_SUFFIX)
        anatomy.keys.add(name)
        if r.payload >= 0 and (name != r.name or torch_zip.read_begin(source, r, len(MAGIC)) == MAGIC):
            yield from _check_member(source, r, name, anatomy)
        else:
            others.append(r)
    yield from torch_zip.other_pickles(source, others, anatomy)


def object_arrays(source: Source, records: Sequence[Record], anatomy: Anatomy) -> Iterator[Finding]:
    """Yield findings on code that object arrays in any zip would run: numpy.load unpickles them, too."""
    for r in records:
        if r.payload >= 0 and torch_zip.read_begin(source, r, len(MAGIC)) == MAGIC:
            inner = Anatomy(decoded=anatomy.decoded)
            yield from (f for f in _check_member(source, r, r.name, inner) if f.code in RUNS)
            anatomy.named(inner)
            anatomy.decoded = inner.decoded


def _check_member(source: Source, r: Record, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """Check one array: its header against its size, and the names in a pickle of objects."""
    inner = Anatomy(decoded=anatomy.decoded)
    if r.method == STORED:
        window = Window(source, r.payload, r.stored)
        for f in structure(window, inner, lambda s, a: _check_array(s, name, a)):
            yield replace(f, offset=r.payload + (f.offset or 0))
    elif r.method == DEFLATED:
        for f in structure(source, inner, lambda s, a: _check_deflated(s, r, name, a)):
            yield replace(f, offset=r.payload)
    anatomy.named(inner)
    anatomy.keys |= inner.keys
    anatomy.decoded = inner.decoded
    for key, value in inner.metadata.items():
        remember(anatomy.metadata, key, value)
    base = r.payload if r.method == STORED else None
    for t in inner.tensors:
        anatomy.tensors.append(replace(t, offset=None if base is None else base + (t.offset or 0)))


def _check_array(source: Source, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """Check an array that takes the whole of a source. Raises Damage."""
    end = yield from read_array(source, 0, name, anatomy)
    if end != source.size:
        raise Damage("trailing-data", f"{source.size - end:,} bytes follow array {name[:200]!r}", end)
    for t in anatomy.tensors:
        if is_single(t.dtype, t.shape):
            anatomy.metadata[name] = scalar(source.read(t.offset or 0, t.nbytes), t.dtype)


def _check_deflated(source: Source, r: Record, name: str, anatomy: Anatomy) -> Iterator[Finding]:
    """Check a deflated array: the header of a large one, all of a small one or a pickle. Raises Damage."""
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
        yield from _check_array(BytesSource(head), name, anatomy)
        return
    need = array.data + array.header.nbytes
    if need != r.size:
        raise Damage("tensor-size", f"array {name[:200]!r} needs {need:,} bytes, its record has {r.size:,}")
    anatomy.tensors.append(make_tensor(array.header, name, None))


FORMAT = make_format("npz", magic, _structure)
