"""torchsnapshot's ``.snapshot_metadata``: which bytes of which file hold which part of the saved state.

Facts: torchsnapshot 0.1.0, manifest.py (entries), manifest_ops.py (a rank reads its own entries, and the
replicated ones of rank 0), flatten.py (names), snapshot.py (rank 0 writes it last).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, own_format
from ckpt_tools.formats.common.json_text import integers, mapping, read_json, sequence
from ckpt_tools.formats.common.limited import limited
from ckpt_tools.formats.common.tensors import MAX_NAME, incomplete, near_miss, remember
from ckpt_tools.formats.common.tiling import untiled
from ckpt_tools.formats.torch.tensors import ITEMSIZE
from ckpt_tools.formats.torchsnapshot.data_files import PLAIN, SAVED, Entry, check
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level, Scalar
from ckpt_tools.model.tensor import Box, Tensor
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


def _magic(head: bytes) -> bool:
    return _FIRST.match(head) is not None or _YAML.match(head) is not None


class _Invalid(Exception):
    """Why an entry is none that torchsnapshot reads."""


class _Manifest:
    """What all entries together say: the bytes of each file, and the places of shards in their tensors."""

    def __init__(self, manifest: _Json) -> None:
        self.manifest = manifest
        self.files: dict[str, dict[Entry, None]] = defaultdict(dict)
        self.shards: dict[str, dict[Box, None]] = defaultdict(dict)

    def tensor(self, name: str, said: _Json) -> tuple[int, ...]:
        """Note where the bytes of a tensor lie; returns its shape."""
        shape = integers(said.get("shape"))
        dtype = str(said.get("dtype")).removeprefix("torch.")
        if shape is None or dtype not in ITEMSIZE:
            raise _Invalid(f"a tensor of type {dtype[:40]!r} and an invalid shape or type")
        self.place(name, said, dtype, shape)
        return shape

    def place(self, name: str, said: _Json, dtype: str = "", shape: tuple[int, ...] = ()) -> None:
        """Note where the bytes of a tensor, or of an object, lie."""
        location, serializer, span = said.get("location"), said.get("serializer"), said.get("byte_range")
        if not isinstance(location, str) or not location or len(location) > MAX_NAME:
            raise _Invalid("no location")
        if not isinstance(serializer, str) or near_miss(serializer, (PLAIN, SAVED)):
            raise _Invalid(f"an unknown serializer {str(serializer)[:40]!r}")
        bytes_ = (0, None) if span is None else integers(span)
        if bytes_ is None or len(bytes_) != 2 or (bytes_[1] is not None and bytes_[1] < bytes_[0]):
            raise _Invalid(f"an invalid byte range {str(span)[:80]}")
        self.files[location][Entry(bytes_[0] or 0, bytes_[1], name, serializer, dtype, shape)] = None

    def pieces(self, name: str, rows: object) -> list[Box]:
        """Note the shards or chunks of a tensor; returns where they lie in it."""
        boxes = []
        for row in map(mapping, sequence(rows)):
            offsets, sizes = integers(row.get("offsets")), integers(row.get("sizes"))
            shape = self.tensor(name, mapping(row.get("tensor")))
            if offsets is None or sizes is None or sizes != shape or len(offsets) != len(sizes):
                raise _Invalid("a shard whose offsets, sizes and shape do not fit each other")
            boxes.append(Box(offsets, tuple(map(sum, zip(offsets, sizes, strict=True)))))
        if not boxes:
            raise _Invalid("no shards")
        return boxes

    def claims(self) -> Iterator[tuple[str, Claim]]:
        for location, entries in self.files.items():
            yield location, Claim("torchsnapshot", partial(check, entries=tuple(entries)), whole=True)


@limited
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    if source.size and _YAML.match(source.read(0, min(64, source.size))):
        why = "it is YAML, which torchsnapshot wrote before 0.1: not read here, and nothing is known of it"
        raise Damage("unreadable", why, 0)
    found: list[Finding] = []
    root = mapping(read_json(source, found).value)
    yield from found
    flipped = {key: meant for key in list(root)[:8] if (meant := near_miss(key, _KEYS))}
    world, manifest = root.get("world_size"), mapping(root.get("manifest"))
    if flipped or root.keys() != set(_KEYS) or not manifest:
        raise Damage("bad-header", "no version, world_size or manifest of torchsnapshot", 0)
    if not isinstance(world, int) or not 0 < world <= 10_000_000:
        raise Damage("bad-header", f"a world_size of {str(world)[:40]}", 0)
    yield finding("not-checksummed", "torchsnapshot stores no checksum of tensors: sizes are compared")
    what = "entries: their form is checked, and that the files fit them"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)
    anatomy.metadata["world_size"] = world
    said = _Manifest(manifest)
    for path, entry in manifest.items():
        yield from _entry(said, path, mapping(entry), world, anatomy)
    for name, boxes in said.shards.items():
        yield from incomplete({name: box} for box in boxes)
    anatomy.members.update(said.claims())


def _entry(said: _Manifest, path: str, entry: _Json, world: int, anatomy: Anatomy) -> Iterator[Finding]:
    """One entry: ``path`` is the rank and the name of the value."""
    m = _RANK.fullmatch(path)
    if m is None or int(m[1]) >= world or len(path) > MAX_NAME:
        yield finding("bad-header", f"{path[:200]!r} is no entry of one of {world:,} ranks")
        return
    name, kind = m[2], entry.get("type")
    try:
        if kind in _CONTAINERS:
            yield from _container(said, path, entry)
        elif kind in _INLINE:
            value = _inline(str(kind), entry.get("serialized_value"))
            if m[1] == "0" and value is not None:
                remember(anatomy.metadata, name.replace("/", "."), value)
        else:
            _stored(said, name, entry, anatomy)
    except _Invalid as why:
        yield finding("bad-header", f"{path[:200]!r}: {why}")
    parent = path.rpartition("/")[0]
    if "/" in parent and mapping(said.manifest.get(parent)).get("type") not in _CONTAINERS:
        yield finding("bad-header", f"{path[:200]!r} lies in nothing that holds values")


def _stored(said: _Manifest, name: str, entry: _Json, anatomy: Anatomy) -> None:
    """A tensor or an object whose bytes lie in a file."""
    kind = entry.get("type")
    if kind == "object":
        said.place(name, entry)
        anatomy.keys.add(name)
        return
    shape: tuple[int, ...] | None
    if kind == "Tensor":
        shape = said.tensor(name, entry)
    elif kind == "ShardedTensor":
        boxes = said.pieces(name, entry.get("shards"))
        said.shards[name].update(dict.fromkeys(boxes))
        shape = None
    elif kind == "ChunkedTensor":
        boxes, shape = said.pieces(name, entry.get("chunks")), integers(entry.get("shape"))
        if shape is None or any(len(box.start) != len(shape) for box in boxes) or _untiled(shape, boxes):
            raise _Invalid("its chunks do not fill its shape")
    else:
        meant = near_miss(str(kind), _TYPES)
        raise _Invalid(f"a type {str(kind)[:40]!r}" + (f", {meant!r} with a flipped bit" if meant else ""))
    anatomy.keys.add(name)
    if shape is not None:
        dtype = str(entry.get("dtype")).removeprefix("torch.")
        size = min(math.prod(shape) * ITEMSIZE.get(dtype, 0), 1 << 62)
        anatomy.tensors.append(Tensor(name, dtype, shape, size))


def _untiled(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    bad = untiled(shape, boxes)
    return bad is not None and bad.kind != "complex"


def _container(said: _Manifest, path: str, entry: _Json) -> Iterator[Finding]:
    """A dict holds what it lists: torchsnapshot drops a key without a value, and a value without a key.

    Values that ranks share are entries of rank 0 alone.
    """
    if entry.get("type") == "list":
        return
    name = path.partition("/")[2]
    for key in sequence(entry.get("keys")):
        child = str(key).replace("%", "%25").replace("/", "%2F")
        if f"{path}/{child}" not in said.manifest and f"0/{name}/{child}" not in said.manifest:
            yield finding("bad-header", f"{path[:200]!r} lists {str(key)[:80]!r}, and nothing holds it")


def _inline(kind: str, text: object) -> Scalar:
    """A value that the entry holds itself; None for one that is no scalar."""
    if not isinstance(text, str):
        raise _Invalid("no value")
    if kind == "int" and _DIGITS.fullmatch(text):
        return int(text)
    if kind == "bool" and text in ("True", "False"):
        return text == "True"
    if kind in ("int", "bool"):
        raise _Invalid(f"{text[:40]!r} is no {kind}")
    return text if kind == "str" else None


FORMAT = own_format(
    name="torchsnapshot",
    magic=_magic,
    checks={Level.STRUCTURE: _structure},
    protects=(
        "objects, and tensors of types that NumPy lacks, are torch.save archives with a CRC-32 for each"
        " record; other tensors are compared by their sizes"
    ),
    limits=(
        "a changed element of a tensor is not seen, nor is a file of another snapshot with the same sizes",
        "the YAML of torchsnapshot before 0.1 is not read: such a snapshot cannot be judged",
    ),
    loader=None,
    unasked=True,
    reference="torchsnapshot 0.1.0: manifest.py, manifest_ops.py, flatten.py, serialization.py, batcher.py",
)
