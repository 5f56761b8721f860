"""TensorFlow's checkpoints: ``X.index``, a sorted table (sstable.py) with the place of each tensor, and the
shards ``X.data-00000-of-00001`` … with the tensors.

Every block of the index and every tensor carries a CRC-32C. A shard holds its tensors one after another and
nothing else, so nobody can read a shard without the index. Facts:
tensorflow/core/util/tensor_bundle/{tensor_bundle,naming}.cc of TensorFlow 1.0 to 2.21; checked against real
files.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter

from ckpt_tools.checksum import CRC32C, Crc, Crc32c, Extent, Hash, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, make_format
from ckpt_tools.formats.common.tensors import MAX_SCALARS, MAX_TENSORS, is_single, remember, scalar
from ckpt_tools.formats.tensorflow import sstable
from ckpt_tools.formats.tensorflow.sstable import (
    Header,
    Item,
    has_footer,
    read_fields,
    read_header,
    read_item,
    read_table,
    read_varint,
    unmask_crc,
)
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source
from ckpt_tools.storage.listing import list_names
from ckpt_tools.storage.retry import ABSENT

# ---- CRC-32C of the two kinds of tensor whose elements vary in length: the CRC covers the lengths as
# numbers, not as the varints in the file.
#
# string: length … | checksum of the lengths | bytes … (lengths as u32; u64 from 4 GiB on)
# variant: (length | bytes | checksum of all so far) … (lengths as u64)
#
# Both are read from front to back in bounded memory. Facts: WriteStringTensor, WriteVariantTensor in
# tensor_bundle.cc of TensorFlow 1.12 to 2.21; checked against real files.


class _Elements:
    """One CRC over a tensor's elements; invalid elements give an empty digest, which equals no stored CRC."""

    def __init__(self, count: int, order: str) -> None:
        self.elements_left, self.crc, self.is_invalid = count, Crc32c(), False
        self.length = self.shift = 0
        self.checksum = b""
        self.order = "<" if order == "little" else ">"

    def digest(self) -> int | bytes:
        return b"" if self.is_invalid or not self.is_done() else self.crc.digest()

    def is_done(self) -> bool:
        raise NotImplementedError

    def take_varint(self, byte: int) -> bool:
        """Take one more byte of a length, and return whether it was the last byte of the length."""
        self.length |= (byte & 0x7F) << self.shift
        self.shift += 7
        if byte >= 0x80:
            self.is_invalid = self.is_invalid or self.shift > 63
            return False
        self.is_invalid = self.is_invalid or self.length >> 64 > 0 or (self.shift > 7 and not byte)
        self.shift = 0
        return not self.is_invalid

    def take_checksum(self, data: bytes) -> int:
        """Compare a checksum inside the data with the CRC so far, add it to the CRC; return bytes taken."""
        take = data[: 4 - len(self.checksum)]
        self.checksum += take
        if len(self.checksum) == 4:
            (stored,) = struct.unpack(self.order + "I", self.checksum)
            self.is_invalid = self.is_invalid or unmask_crc(stored) != self.crc.digest()
            self.crc.update(self.checksum)
        return len(take)


class StringCrc(_Elements):
    """One CRC of a tensor of strings; ``bytes_left`` of the strings follow the lengths read so far."""

    bytes_left = 0

    def update(self, data: memoryview | bytes, /) -> None:
        """Take more bytes: all lengths come first, then their checksum, then all strings."""
        data, at, lengths = bytes(data), 0, bytearray()
        while self.elements_left and at < len(data) and not self.is_invalid:
            if self.take_varint(data[at]):
                lengths += struct.pack(self.order + ("Q" if self.length >> 32 else "I"), self.length)
                self.bytes_left += self.length
                self.length, self.elements_left = 0, self.elements_left - 1
            at += 1
        self.crc.update(bytes(lengths))
        if self.is_invalid or self.elements_left:
            return
        if len(self.checksum) < 4:
            at += self.take_checksum(data[at:])
        self.crc.update(data[at:])
        self.bytes_left -= len(data) - at

    def is_done(self) -> bool:
        return not self.elements_left and len(self.checksum) == 4 and not self.bytes_left


class VariantCrc(_Elements):
    """One CRC of a tensor of variants."""

    in_body = False

    def update(self, data: memoryview | bytes, /) -> None:
        """Take more bytes: each element is a length, that many bytes, and a checksum of all so far."""
        data, at = bytes(data), 0
        while at < len(data) and not self.is_invalid:
            if not self.elements_left:
                self.is_invalid = True
            elif not self.in_body:
                if self.take_varint(data[at]):
                    self.in_body = True
                    self.crc.update(struct.pack(self.order + "Q", self.length))
                at += 1
            elif self.length:
                part = data[at : at + self.length]
                self.crc.update(part)
                self.length, at = self.length - len(part), at + len(part)
            else:
                at += self.take_checksum(data[at : at + 4])
                if len(self.checksum) == 4:
                    self.checksum, self.in_body, self.elements_left = b"", False, self.elements_left - 1

    def is_done(self) -> bool:
        return not self.elements_left and not self.in_body and not self.shift


# ---- The shards.

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""Suffix that tf.train.Checkpoint adds to the path of a variable in its tree of objects."""
_PAGE = 4096
_MAX_LISTED = 16
_PADDING = 1 << 19
"""About the most bytes between tensors that are read."""
_COUNTERS = frozenset({"save_counter", "global_step", "step", "epoch", "iterations"})
"""Names at the top of the tree that tell the progress of training: always in the metadata."""
_ITERATIONS = frozenset({"iterations", "_iterations", "iter"})
"""Names of the counters of Keras's optimizers, anywhere in the tree; the first becomes ``iterations``."""
_GRAPH, _GRAPH_LIMIT = "_CHECKPOINTABLE_OBJECT_GRAPH", 256 * 1024


def shorten_name(name: str) -> str:
    """Return a variable's name without the suffix of tf.train.Checkpoint."""
    return name.removesuffix(_VALUE)


def check_shard(
    items: Sequence[Item], order: str, keys: set[str], source: Source, anatomy: Anatomy
) -> Iterator[Finding]:
    """Check a shard: ``items`` are its tensors sorted by offset, ``keys`` the names in the whole bundle."""
    anatomy.keys |= keys
    end = max((i.offset + i.size for i in items), default=0)
    if source.size < end:
        code, size = "truncated", f"ends at byte {source.size}"
        if not source.size:
            code, size = "empty-file", "has no bytes"
        yield finding(code, f"the file {size}; its index describes {end} bytes", offset=source.size)
    yield from _check_tiling(items, end, source, anatomy)
    at = 0
    for i in items:
        anatomy.tensors.append(Tensor(i.name, i.dtype, i.shape, i.size, min(i.offset, source.size)))
        if i.offset + i.size <= source.size:
            if i.offset >= at or not i.size:  # bytes of several tensors are read for the first tensor only
                make_hash: Crc | Callable[[], Hash] = CRC32C
                if i.dtype in ("string", "variant"):
                    make_hash = partial(StringCrc if i.dtype == "string" else VariantCrc, i.elements, order)
                covered = (Extent(i.offset, i.size),)
                anatomy.sums.append(Sum(f"tensor {i.name[:200]!r}", i.crc, covered, i.offset, hash=make_hash))
            _remember_value(i, order, source, anatomy)
        at = max(at, i.offset + i.size)


def _remember_value(i: Item, order: str, source: Source, anatomy: Anatomy) -> None:
    """Add a tensor's value to the metadata if it is one number, or the number of objects in the graph."""
    name = shorten_name(i.name)
    last = name.rpartition("/")[2]
    wanted = (
        name in _COUNTERS
        or (last in _ITERATIONS and "iterations" not in anatomy.metadata)
        or len(anatomy.metadata) < MAX_SCALARS
    )
    if i.name == _GRAPH and i.size <= _GRAPH_LIMIT and (n := _count_objects(source.read(i.offset, i.size))):
        anatomy.metadata["objects"] = n
    elif wanted and is_single(i.dtype, i.shape) and i.size == i.item_size:
        raw = source.read(i.offset, i.size)
        value = scalar(raw if order == "little" else raw[::-1], i.dtype)
        remember(anatomy.metadata, name, value)
        if name in _COUNTERS:
            anatomy.metadata[name] = value
        if last in _ITERATIONS:
            anatomy.metadata.setdefault("iterations", value)


def _count_objects(raw: bytes) -> int:
    """Return how many objects (field 1) a TrackableObjectGraph in a string scalar has, 0 if damaged."""
    try:
        length, at = read_varint(raw, 0, len(raw))
        whole = at + 4 + length == len(raw)
        return sum(number == 1 for number, _ in read_fields(raw[at + 4 :], 0)) if whole else 0
    except Damage:
        return 0  # the tensor's checksum reports the damage


def _check_tiling(items: Sequence[Item], end: int, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check that tensors follow each other; zeros may align them (BundleWriter::Options.data_alignment)."""
    gaps, overlaps, at, alignment = list[tuple[int, int]](), 0, 0, _PAGE
    for i in items:
        if i.offset > at:
            gaps.append((at, i.offset - at))
        elif i.offset < at and i.size:
            overlaps += 1
            if overlaps <= _MAX_LISTED:
                why = f"{i.name[:200]!r} begins at {i.offset}, before the end of the previous tensor at {at}"
                yield finding("bad-header", why, offset=i.offset)
        at = max(at, i.offset + i.size)
        alignment |= i.offset
    alignment &= -alignment  # the largest power of two that divides every offset
    longest = max(gaps, key=itemgetter(1), default=(0, 0))[1]
    padded, width, ends = 0 < longest < alignment, longest.bit_length(), {end}
    if padded:
        ends = {-(-end // (1 << k)) << k for k in range(width, alignment.bit_length())}
    if padded and source.size in ends:
        gaps.append((end, source.size - end))
    elif source.size > end:
        why = f"{source.size - end} bytes follow the last tensor, which ends at {end}"
        yield finding("trailing-data", why, offset=end)
    elif source.size == end and source.size not in ends:
        why = f"zeros up to byte {min(ends)} belong behind the last tensor, as behind all others"
        yield finding("odd-header", why, offset=end)
    if padded:
        yield from _check_padding(gaps, source, anatomy)
        return
    for offset, length in gaps[: max(0, _MAX_LISTED - overlaps)]:
        yield finding("extra-storage", f"{length} bytes belong to no tensor", offset=offset)


def _check_padding(gaps: Sequence[tuple[int, int]], source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check that the bytes between aligned tensors are zero; about _PADDING bytes are read at most."""
    read = 0
    for offset, length in gaps:
        if read >= _PADDING or offset + length > source.size:
            anatomy.explain(offset, length, "bytes up to the next tensor, not looked at", Guard.UNPROTECTED)
            continue
        read += length
        anatomy.explain(offset, length, "zeros up to the next tensor")
        if source.read(offset, length).strip(b"\0"):
            yield finding("odd-header", f"the {length} bytes between two tensors are not zero", offset=offset)


# ---- The index.

_SHARD = re.compile(r"(.+)\.data-\d{5,}-of-\d{5,}", re.DOTALL)
_VERSION = 1
"""Version of the bundle format, the same since TensorFlow 1.0."""


def _magic(head: bytes) -> bool:
    """Return whether the first entry has the key "" and a bundle's header as its value."""
    if head[:2] != b"\0\0" or len(head) < 5 or head[3] != 8 or head[2] > len(head) - 3:
        return False
    try:
        return read_header(head[3 : 3 + head[2]], 0).producer > 0
    except Damage:
        return False


def _index_of(name: str) -> tuple[str, ...]:
    """Return the name of the index that describes the shard ``name``; () for any other file."""
    m = _SHARD.fullmatch(name)
    return (f"{m[1]}.index",) if m else ()


def _owns(source: Source) -> bool:
    """Return whether a file ``X.index`` without the magic is a damaged bundle: it ends like a table, or its
    shards lie beside it. Lists the directory. Raise OSError if that fails.
    """
    directory, name = os.path.split(source.path)
    try:
        return has_footer(source) or any(name in _index_of(e) for e in list_names(directory))
    except ABSENT:
        return False


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the whole index, which is small next to its shards; make a claim on each shard."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    head: Header | None = None
    items, complete = dict[bytes, Item](), True
    for e in read_table(source, anatomy):
        if e is None:
            complete = False
        elif isinstance(e, Finding):
            yield e
        elif head is None:
            if e.key and complete:
                why = "a sorted table, but no TensorFlow bundle: its first key is not empty"
                raise Damage("wrong-format", why, e.at, Severity.WARNING)
            head = None if e.key else read_header(e.value, e.at)
        elif len(items) >= MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS} entries: no more of them are read", e.at)
        else:
            items[e.key] = read_item(e)
    if head is None and complete:
        raise Damage("bad-header", "the table is empty: not even the bundle's header is in it", 0)
    if head is None:
        return
    anatomy.metadata |= {"num_shards": head.shards, "bundle_version": head.producer, "byte_order": head.order}
    if head.min_consumer > _VERSION:
        why = f"the bundle needs a reader of version {head.min_consumer}; this one knows {_VERSION}"
        yield finding("too-complex", why, offset=0)
    yield from _describe(source, anatomy, head, items, complete)


def _describe(
    source: Source, anatomy: Anatomy, head: Header, items: Mapping[bytes, Item], complete: bool
) -> Iterator[Finding]:
    """Add the tensors to ``anatomy``, and, if the whole index was read, the claims on the shards."""
    names, content = dict[bytes, str](), defaultdict[int, list[Item]](list)
    for i in items.values():
        if i.slices:
            yield from _check_slices(i, items, names, complete)
        else:
            yield from _check_place(i, head.shards)
            content[i.shard].append(i)
    used = sorted(content) or [0]
    if len(used) < head.shards and complete:
        why = f"there are {head.shards} shards, but only {len(used)} of them have tensors"
        yield finding("bad-header", why, offset=0, severity=Severity.WARNING)
    stem = os.path.basename(source.path).removesuffix(".index")
    files = {s: f"{stem}.data-{s:05d}-of-{head.shards:05d}" for s in used}
    for i in items.values():
        if i.key in names:
            continue
        if i.key[:1] == b"\0" and complete:
            yield finding("extra-storage", f"{i.name[:200]!r} is a slice of no tensor", offset=i.at)
        storage = "" if i.slices else files[i.shard]
        anatomy.tensors.append(Tensor(i.name, i.dtype, i.shape, i.nbytes, storage=storage))
        anatomy.keys |= {i.name, shorten_name(i.name)}
    for s, name in files.items() if stem and complete else ():
        anatomy.members[name] = _make_claim(content[s], names, head.order, anatomy.keys)


def _make_claim(items: list[Item], names: Mapping[bytes, str], order: str, keys: set[str]) -> Claim:
    """Return the claim on the shard with these ``items``; ``names`` is key -> readable name of slices."""
    renamed = [i._replace(name=names.get(i.key, i.name)) for i in items]
    renamed.sort(key=attrgetter("offset", "size"))
    return Claim("tf_bundle", partial(check_shard, renamed, order, keys), whole=True)


def _check_place(i: Item, shards: int) -> Iterator[Finding]:
    """Check a tensor's size against type and shape, and its shard. Raise Damage if there is no such shard."""
    elements = i.elements
    if i.item_size is None:
        yield finding("unknown-dtype", f"{i.name[:200]!r} is of {i.dtype}", offset=i.at)
    elif i.item_size and i.size != elements * i.item_size:
        why = f"{i.name[:200]!r}, {i.dtype} {i.shape}, has {i.size} bytes instead of {elements * i.item_size}"
        yield finding("tensor-size", why[:500], offset=i.at)
    elif not i.item_size and i.size < (elements + 4 if i.dtype == "string" else 5 * elements):
        why = f"{i.name[:200]!r} holds {elements} of {i.dtype} in {i.size} bytes, too few"
        yield finding("tensor-size", why[:500], offset=i.at)
    if i.shard >= shards:
        raise Damage("bad-header", f"{i.name[:200]!r} lies in shard {i.shard} of {shards}", i.at)


def _check_slices(
    full: Item, items: Mapping[bytes, Item], names: dict[bytes, str], complete: bool
) -> Iterator[Finding]:
    """Check that a partitioned tensor has all its slices; ``names`` gets a readable name for each slice."""
    filled, missing = 0, 0
    for extents in full.slices:
        shape = sstable.slice_shape(extents, full.shape, full.at)
        ranges = (":" if e is None else f"{e[0]}:{e[0] + e[1]}" for e in extents)
        name = f"{full.name}[{', '.join(ranges)}]"
        piece = items.get(sstable.slice_key(full.key, extents))
        if piece is None:
            missing += 1
            if missing <= _MAX_LISTED and complete:
                yield finding("missing-storage", f"{name[:200]!r} has no entry", offset=full.at)
            continue
        names[piece.key] = name
        filled += math.prod(shape)
        if (piece.dtype, piece.shape) != (full.dtype, shape):
            why = f"{name[:200]!r} is {piece.dtype} {piece.shape}, not {full.dtype} {shape}"
            yield finding("bad-header", why[:500], offset=piece.at)
    if filled != full.elements and not missing:
        why = f"the slices of {full.name[:200]!r} have {filled} elements, the tensor has {full.elements}"
        yield finding("missing-storage", why[:500], offset=full.at, severity=Severity.WARNING)


FORMAT = make_format("tf_bundle", _magic, _structure, loader="tensorflow", index_of=_index_of, ours=_owns)
