"""A shard of a TensorFlow bundle against what its index says: tensors one after another from the first byte
to the last, a CRC-32C each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from ckpt_tools.checksum import CRC32C, Crc, Crc32c, Extent, Hash, Sum
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import MAX_SCALARS, is_single, remember, scalar
from ckpt_tools.formats.tensorflow.entry import Item
from ckpt_tools.formats.tensorflow.wire import fields, unmasked, varint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.model.tensor import Tensor
from ckpt_tools.storage import Source

# ---- CRC-32C of the two kinds of tensor whose elements vary in length: it covers the lengths as numbers,
# not as the varints that hold them.
#
# string: length … | checksum of the lengths | bytes … (lengths as u32; u64 from 4 GiB on) variant:
# (length | bytes | checksum of all so far) … (lengths as u64)
#
# Both are read from front to back in bounded memory. Facts: WriteStringTensor, WriteVariantTensor in
# tensor_bundle.cc of TensorFlow 1.12 to 2.21; checked against real files.


class _Elements:
    """What the two have in common. A stream that cannot be one of its kind has an empty digest, which no
    stored checksum equals.
    """

    def __init__(self, count: int, order: str) -> None:
        self.left, self.crc, self.bad = count, Crc32c(), False
        self.length = self.shift = 0
        self.check = b""
        self.order = "<" if order == "little" else ">"

    def digest(self) -> int | bytes:
        return b"" if self.bad or not self.done() else self.crc.digest()

    def done(self) -> bool:
        raise NotImplementedError

    def varint(self, byte: int) -> bool:
        """Take one more byte of a length; whether that was its last one."""
        self.length |= (byte & 0x7F) << self.shift
        self.shift += 7
        if byte >= 0x80:
            self.bad = self.bad or self.shift > 63
            return False
        self.bad = self.bad or self.length >> 64 > 0 or (self.shift > 7 and not byte)
        self.shift = 0
        return True

    def checksum(self, data: bytes) -> int:
        """Take the bytes of a checksum; how many those were. It covers what came before it, and is itself
        covered.
        """
        take = data[: 4 - len(self.check)]
        self.check += take
        if len(self.check) == 4:
            self.bad = (
                self.bad or unmasked(struct.unpack(self.order + "I", self.check)[0]) != self.crc.digest()
            )
            self.crc.update(self.check)
        return len(take)


class StringCrc(_Elements):
    """``count`` strings; ``order`` is "little" or "big"."""

    total = 0

    def update(self, data: memoryview | bytes, /) -> None:
        data, at, lengths = bytes(data), 0, bytearray()
        while self.left and at < len(data) and not self.bad:
            if self.varint(data[at]) and not self.bad:
                lengths += struct.pack(self.order + ("Q" if self.length >> 32 else "I"), self.length)
                self.total, self.length, self.left = self.total + self.length, 0, self.left - 1
            at += 1
        self.crc.update(bytes(lengths))
        if self.bad or self.left:
            return
        if len(self.check) < 4:
            at += self.checksum(data[at:])
        self.crc.update(data[at:])
        self.total -= len(data) - at

    def done(self) -> bool:
        return not self.left and len(self.check) == 4 and not self.total


class VariantCrc(_Elements):
    """``count`` variants; ``order`` is "little" or "big"."""

    body = False

    def update(self, data: memoryview | bytes, /) -> None:
        data, at = bytes(data), 0
        while at < len(data) and not self.bad:
            if not self.left:
                self.bad = True
            elif not self.body:
                if self.varint(data[at]) and not self.bad:
                    self.body = True
                    self.crc.update(struct.pack(self.order + "Q", self.length))
                at += 1
            elif self.length:
                part = data[at : at + self.length]
                self.crc.update(part)
                self.length, at = self.length - len(part), at + len(part)
            else:
                at += self.checksum(data[at : at + 4])
                if len(self.check) == 4:
                    self.check, self.body, self.left = b"", False, self.left - 1

    def done(self) -> bool:
        return not self.left and not self.body and not self.shift


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What tf.train.Checkpoint puts behind the path of a variable in its tree of objects."""
_PAGE = 4096
_SAID = 16
_PADDING = 1 << 19
"""Bytes between tensors that are read, about."""
_COUNTERS = frozenset({"save_counter", "global_step", "step", "epoch", "iterations"})
"""Names at the top of the tree that say how far training was: never left out."""
_ITERATIONS = frozenset({"iterations", "_iterations", "iter"})
"""What Keras's optimizers call their counter, wherever they are in the tree; the first one is ``iterations``.
"""
_GRAPH, _GRAPH_LIMIT = "_CHECKPOINTABLE_OBJECT_GRAPH", 256 * 1024


def short(name: str) -> str:
    """A variable's name without what tf.train.Checkpoint puts behind it."""
    return name.removesuffix(_VALUE)


def shard(
    items: Sequence[Item], order: str, keys: set[str], source: Source, anatomy: Anatomy
) -> Iterator[Finding]:
    """The check of one shard; ``items`` are those that lie in it, in the order of their offsets, ``keys`` the
    names in the whole bundle.
    """
    anatomy.keys |= keys
    end = max((i.offset + i.size for i in items), default=0)
    if source.size < end:
        code, size = (
            ("truncated", f"ends at byte {source.size}") if source.size else ("empty-file", "has no bytes")
        )
        yield finding(code, f"the file {size}; its index describes {end} bytes", offset=source.size)
    yield from _tiling(items, end, source, anatomy)
    at = 0
    for i in items:
        anatomy.tensors.append(Tensor(i.name, i.dtype, i.shape, i.size, min(i.offset, source.size)))
        if i.offset + i.size <= source.size:
            if i.offset >= at or not i.size:  # bytes that many tensors claim are read for the first alone
                _sum(i, order, anatomy)
            _value(i, order, source, anatomy)
        at = max(at, i.offset + i.size)


def _sum(i: Item, order: str, anatomy: Anatomy) -> None:
    """The checksum of one tensor."""
    made: Crc | Callable[[], Hash] = CRC32C
    if i.dtype in ("string", "variant"):
        made = partial(StringCrc if i.dtype == "string" else VariantCrc, i.elements, order)
    anatomy.sums.append(
        Sum(f"tensor {i.name[:200]!r}", i.crc, (Extent(i.offset, i.size),), i.offset, hash=made)
    )


def _value(i: Item, order: str, source: Source, anatomy: Anatomy) -> None:
    """The value of a tensor if it is one number."""
    name = short(i.name)
    last = name.rpartition("/")[2]
    wanted = (
        name in _COUNTERS
        or (last in _ITERATIONS and "iterations" not in anatomy.metadata)
        or len(anatomy.metadata) < MAX_SCALARS
    )
    if i.name == _GRAPH and i.size <= _GRAPH_LIMIT and (n := _objects(source.read(i.offset, i.size))):
        anatomy.metadata["objects"] = n
    elif wanted and is_single(i.dtype, i.shape) and i.size == i.item:
        raw = source.read(i.offset, i.size)
        value = scalar(raw if order == "little" else raw[::-1], i.dtype)
        remember(anatomy.metadata, name, value)
        if name in _COUNTERS:
            anatomy.metadata[name] = value
        if last in _ITERATIONS:
            anatomy.metadata.setdefault("iterations", value)


def _objects(raw: bytes) -> int:
    """How many objects the graph in a string scalar lists (a TrackableObjectGraph: field 1, repeated); 0 when
    that cannot be told.
    """
    try:
        length, at = varint(raw, 0, len(raw))
        return (
            sum(number == 1 for number, _ in fields(raw[at + 4 :], 0)) if at + 4 + length == len(raw) else 0
        )
    except Damage:
        return 0  # its checksum says so


def _tiling(items: Sequence[Item], end: int, source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Whether the tensors follow each other without gaps.

    Zeros up to a common alignment are none (BundleWriter::Options.data_alignment).
    """
    gaps, inside = _between(items)
    for i, before in inside[:_SAID]:
        why = f"{i.name[:200]!r} begins at {i.offset}, inside the tensor before it, which ends at {before}"
        yield finding("bad-header", why, offset=i.offset)
    common = _PAGE
    for i in items:
        common |= i.offset
    common &= -common  # the largest power of two that divides every offset
    most = max((length for _, length in gaps), default=0)
    padded = 0 < most < common
    widths = range(most.bit_length(), common.bit_length())
    ends = {-(-end // (1 << k)) << k for k in widths} if padded else {end}
    if padded and source.size in ends:
        gaps.append((end, source.size - end))
    else:
        yield from _tail(source.size, end, ends)
    if padded:
        yield from _padding(gaps, source, anatomy)
        return
    for offset, length in gaps[: max(0, _SAID - len(inside))]:
        yield finding("extra-storage", f"{length} bytes belong to no tensor", offset=offset)


def _between(items: Sequence[Item]) -> tuple[list[tuple[int, int]], list[tuple[Item, int]]]:
    """The gaps between tensors, (offset, length) each, and the tensors that begin before the end of another
    one.
    """
    gaps, inside, at = list[tuple[int, int]](), list[tuple[Item, int]](), 0
    for i in items:
        if i.offset > at:
            gaps.append((at, i.offset - at))
        elif i.offset < at and i.size:
            inside.append((i, at))
        at = max(at, i.offset + i.size)
    return gaps, inside


def _tail(size: int, end: int, ends: Collection[int]) -> Iterator[Finding]:
    """What lies behind the last tensor, which ends at ``end``; ``ends`` are where the file may end."""
    if size > end:
        yield finding(
            "trailing-data", f"{size - end} bytes follow the last tensor, which ends at {end}", offset=end
        )
    elif size == end and size not in ends:
        why = f"zeros up to byte {min(ends)} belong behind the last tensor, as behind all others"
        yield finding("odd-header", why, offset=end)


def _padding(gaps: Iterable[tuple[int, int]], source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Whether what aligns the tensors is zero; of very much only the beginning is read."""
    read = 0
    for offset, length in gaps:
        if read >= _PADDING or offset + length > source.size:
            anatomy.explain(offset, length, "bytes up to the next tensor, not looked at", Guard.UNPROTECTED)
            continue
        read += length
        anatomy.explain(offset, length, "zeros up to the next tensor")
        if source.read(offset, length).strip(b"\0"):
            why = f"the {length} bytes between two tensors are not zero"
            yield finding("odd-header", why, offset=offset)
