"""torchsnapshot's ``.snapshot_metadata``, which says which bytes of which file hold which part of the saved
state; and the check of one data file against the entries of ``.snapshot_metadata``.

Facts: torchsnapshot 0.1.0, manifest.py (entries), manifest_ops.py (a rank reads its own entries, and the
replicated ones of rank 0), flatten.py (names), snapshot.py (rank 0 writes ``.snapshot_metadata`` last),
serialization.py (serializers), batcher.py (slabs are filled without a gap).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, limit, make_format
from ckpt_tools.formats.common.json_text import mapping, read_integers, read_json, sequence
from ckpt_tools.formats.common.tensors import MAX_NAME, find_incomplete, find_untiled, near_miss, remember
from ckpt_tools.formats.common.zeros import ZEROS
from ckpt_tools.formats.dcp.data_files import Piece, check_object, check_tensor
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Box, Guard, Scalar, Tensor
from ckpt_tools.storage import Source

_FIRST = re.compile(rb'\{\s*"version"\s*:\s*"[^"]{1,40}"\s*,\s*"world_size"')
_YAML = re.compile(rb"version: \S+\s+world_size: \d")
_KEYS = ("version", "world_size", "manifest")
_CONTAINERS = ("list", "dict", "OrderedDict")
_INLINE = ("int", "str", "bool", "bytes", "float")
_TYPES = ("Tensor", "ShardedTensor", "ChunkedTensor", "object", *_CONTAINERS, *_INLINE)
_RANK = re.compile(r"(0|[1-9]\d{0,6})/(.+)", re.DOTALL)
_DIGITS = re.compile(r"-?\d{1,18}")
_Json = Mapping[str, object]


class _Invalid(Exception):
    """Raised with the reason why torchsnapshot could not read an entry."""


class _Manifest:
    """One manifest, read so far: the entries of each data file, and the boxes of each tensor's shards."""

    def __init__(self, manifest: _Json, anatomy: Anatomy) -> None:
        self.manifest, self.anatomy = manifest, anatomy
        self.files: dict[str, dict[Entry, None]] = defaultdict(dict)
        self.shards: dict[str, dict[Box, None]] = defaultdict(dict)

    def check_entry(self, path: str, entry: _Json, world: int) -> Iterator[Finding]:
        """Check one entry of the manifest; ``path`` is "rank/name of the value", ``world`` the world size."""
        m = _RANK.fullmatch(path)
        if m is None or int(m[1]) >= world or len(path) > MAX_NAME:
            yield finding("bad-header", f"{path[:200]!r} is not an entry of one of {world:,} ranks")
            return
        rank, name, kind = m[1], m[2], entry.get("type")
        try:
            if kind in _CONTAINERS:
                yield from self._check_container(path, name, entry)
            elif kind in _INLINE:
                value = _read_inline(str(kind), entry.get("serialized_value"))
                if rank == "0" and value is not None:
                    remember(self.anatomy.metadata, name.replace("/", "."), value)
            elif kind == "object":
                self._add_location(name, entry)
                self.anatomy.keys.add(name)
            else:
                self._read_tensor_entry(name, entry)
        except _Invalid as why:
            yield finding("bad-header", f"{path[:200]!r}: {why}")
        parent = path.rpartition("/")[0]
        if "/" in parent and mapping(self.manifest.get(parent)).get("type") not in _CONTAINERS:
            yield finding("bad-header", f"{path[:200]!r} lies in nothing that holds values")

    def _check_container(self, path: str, name: str, entry: _Json) -> Iterator[Finding]:
        """Check that each key of a dict has an entry, or rank 0's: torchsnapshot drops others."""
        for key in sequence(entry.get("keys")) if entry.get("type") != "list" else ():
            child = str(key).replace("%", "%25").replace("/", "%2F")
            if f"{path}/{child}" not in self.manifest and f"0/{name}/{child}" not in self.manifest:
                yield finding("bad-header", f"{path[:200]!r} lists {str(key)[:80]!r}, and nothing holds it")

    def _read_tensor_entry(self, name: str, entry: _Json) -> None:
        """Read the entry of a tensor, whole or in shards or chunks; add it to ``anatomy``. Raise _Invalid."""
        kind = entry.get("type")
        shape: tuple[int, ...] | None = None
        if kind == "Tensor":
            shape = self._read_tensor(name, entry)
        elif kind == "ShardedTensor":
            self.shards[name].update(dict.fromkeys(self._read_pieces(name, entry.get("shards"))))
        elif kind == "ChunkedTensor":
            boxes, shape = self._read_pieces(name, entry.get("chunks")), read_integers(entry.get("shape"))
            bad = shape is None or any(len(box.start) != len(shape) for box in boxes)
            hole = None if bad else find_untiled(shape or (), boxes)
            if bad or (hole is not None and hole.kind != "complex"):
                raise _Invalid("its chunks do not fill its shape")
        else:
            meant = near_miss(str(kind), _TYPES)
            flipped = f", {meant!r} with a flipped bit" if meant else ""
            raise _Invalid(f"a type {str(kind)[:40]!r}{flipped}")
        self.anatomy.keys.add(name)
        if shape is not None:
            dtype = str(entry.get("dtype")).removeprefix("torch.")
            size = min(math.prod(shape) * ITEMSIZE.get(dtype, 0), 1 << 62)
            self.anatomy.tensors.append(Tensor(name, dtype, shape, size))

    def _read_tensor(self, name: str, entry: _Json) -> tuple[int, ...]:
        """Add the location of a tensor's bytes to ``files``; return its shape. Raise _Invalid."""
        shape = read_integers(entry.get("shape"))
        dtype = str(entry.get("dtype")).removeprefix("torch.")
        if shape is None or dtype not in ITEMSIZE:
            raise _Invalid(f"a tensor of type {dtype[:40]!r} and an invalid shape or type")
        self._add_location(name, entry, dtype, shape)
        return shape

    def _read_pieces(self, name: str, rows: object) -> list[Box]:
        """Add the locations of shards or chunks to ``files``; return their boxes in the tensor ``name``."""
        boxes = []
        for row in map(mapping, sequence(rows)):
            offsets, sizes = read_integers(row.get("offsets")), read_integers(row.get("sizes"))
            shape = self._read_tensor(name, mapping(row.get("tensor")))
            if offsets is None or sizes is None or sizes != shape or len(offsets) != len(sizes):
                raise _Invalid("a shard whose offsets, sizes and shape do not fit each other")
            boxes.append(Box(offsets, tuple(map(sum, zip(offsets, sizes, strict=True)))))
        if not boxes:
            raise _Invalid("no shards")
        return boxes

    def _add_location(self, name: str, entry: _Json, dtype: str = "", shape: tuple[int, ...] = ()) -> None:
        """Add the location of a tensor, or of an object (``dtype`` ""), to ``files``. Raise _Invalid."""
        location, serializer, span = entry.get("location"), entry.get("serializer"), entry.get("byte_range")
        if not isinstance(location, str) or not location or len(location) > MAX_NAME:
            raise _Invalid("no location")
        if not isinstance(serializer, str) or near_miss(serializer, (PLAIN, SAVED)):
            raise _Invalid(f"an unknown serializer {str(serializer)[:40]!r}")
        ends = (0, None) if span is None else read_integers(span)
        if ends is None or len(ends) != 2 or (ends[1] is not None and ends[1] < ends[0]):
            raise _Invalid(f"an invalid byte range {str(span)[:80]}")
        self.files[location][Entry(ends[0], ends[1], name, serializer, dtype, shape)] = None


def _read_inline(kind: str, text: object) -> Scalar:
    """Return the value that an entry itself holds, None for bytes and floats, not shown. Raise _Invalid."""
    if not isinstance(text, str):
        raise _Invalid("no value")
    if kind == "int" and _DIGITS.fullmatch(text):
        return int(text)
    if kind == "bool" and text in ("True", "False"):
        return text == "True"
    if kind in ("int", "bool"):
        raise _Invalid(f"{text[:40]!r} is no {kind}")
    return text if kind == "str" else None


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check the manifest alone; ``anatomy.members`` gets a claim that checks each data file against it."""
    if source.size and _YAML.match(source.read(0, min(64, source.size))):
        why = "it is YAML, which torchsnapshot wrote before 0.1: not read here, and nothing is known of it"
        raise Damage("unreadable", why, 0)
    text = read_json(source)
    yield from text.odd
    root = mapping(text.value)
    flipped = any(near_miss(key, _KEYS) for key in list(root)[:8])
    world, manifest = root.get("world_size"), mapping(root.get("manifest"))
    if flipped or root.keys() != set(_KEYS) or not manifest:
        raise Damage("bad-header", "no version, world_size or manifest of torchsnapshot", 0)
    if not isinstance(world, int) or not 0 < world <= 10_000_000:
        raise Damage("bad-header", f"a world_size of {str(world)[:40]}", 0)
    yield finding("not-checksummed", "torchsnapshot stores no checksum of tensors: sizes are compared")
    what = "entries: their form is checked, and that the files fit them"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)
    anatomy.metadata["world_size"] = world
    reading = _Manifest(manifest, anatomy)
    for path, entry in manifest.items():
        yield from reading.check_entry(path, mapping(entry), world)
    for name, boxes in reading.shards.items():
        yield from find_incomplete({name: box} for box in boxes)
    for location, entries in reading.files.items():
        check = partial(check_file, entries=tuple(entries))
        anatomy.members[location] = Claim("torchsnapshot", check, whole=True)


FORMAT = make_format(
    "torchsnapshot",
    lambda head: bool(_FIRST.match(head) or _YAML.match(head)),
    _structure,
    loader=None,
    unasked=True,
)

PLAIN, SAVED = "buffer_protocol", "torch_save"
_END = 64
"""Bytes at each end of an entry that are compared with zero."""


class Entry(NamedTuple):
    """One tensor or object (``dtype`` "") in a data file; ``stop`` is None if it takes the whole file."""

    start: int
    stop: int | None
    name: str
    serializer: str
    dtype: str = ""
    shape: tuple[int, ...] = ()


@limit
def check_file(source: Source, anatomy: Anatomy, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare a data file with ``entries``, which are all tensors and objects in the file."""
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
    """Find a file that was never written: each entry begins with zeros, a lone one also ends with zeros."""
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
    """Check the bytes of one entry as its serializer wrote them."""
    if e.serializer == PLAIN:  # a tensor stored as in memory
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
        for f in check_object(source, anatomy, piece):  # torch.load() gets these bytes: text is damage
            yield replace(f, severity=Severity.ERROR) if f.code == "wrong-format" else f
