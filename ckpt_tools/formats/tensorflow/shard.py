"""The check of a TensorFlow bundle's shard against the bundle's index: tensors one after another from the
first byte to the last, each with a CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter

from ckpt_tools.checksum import CRC32C, Crc, Crc32c, Extent, Hash, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import MAX_SCALARS, is_single, remember, scalar
from ckpt_tools.formats.tensorflow.sstable import Item, read_fields, read_varint, unmask_crc
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Tensor
from ckpt_tools.storage import Source

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
