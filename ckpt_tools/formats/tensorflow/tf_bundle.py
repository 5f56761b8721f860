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
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, make_format
from ckpt_tools.formats.common.tensors import MAX_TENSORS
from ckpt_tools.formats.tensorflow import sstable
from ckpt_tools.formats.tensorflow.shard import check_shard, shorten_name
from ckpt_tools.formats.tensorflow.sstable import Header, Item, has_footer, read_header, read_item, read_table
from ckpt_tools.model.finding import Finding, Notes, Severity
from ckpt_tools.model.report import Tensor
from ckpt_tools.storage import Source
from ckpt_tools.storage.listing import list_names
from ckpt_tools.storage.retry import ABSENT

# ---- The tracker file ``checkpoint`` beside TensorFlow's bundles: the newest bundle, and all that are kept.
#
# A CheckpointState in protobuf's text form, one field in a line. The file is no format of its own: its name
# is too common, and nothing in the file tells whether it is right. Paths are prefixes ("ckpt-50" for
# ckpt-50.index), relative to the file's directory or, from another machine perhaps, absolute. Facts:
# python/checkpoint/checkpoint_management.py and python/training/checkpoint_state.proto of TensorFlow
# 2.21; checked against real files.

LIMIT = 1 << 20
"""Most bytes of the tracker file: with max_to_keep=None it grows by a line with every save."""
_LINE = re.compile(r'(\w+): (?:"((?:[^"\\\n]|\\.)*)"|([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)))')
_PATHS = ("model_checkpoint_path", "all_model_checkpoint_paths")
_TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_PLAIN = dict(zip(b"nrt\"'\\abfv", b"\n\r\t\"'\\\a\b\f\v", strict=True))


def check_state(home: str, notes: Notes) -> Iterator[Finding]:
    """Check the tracker file ``checkpoint`` in ``home``: its syntax, and whether a relative path exists."""
    path = os.path.join(home, "checkpoint")
    data = notes.read(path, LIMIT)
    if data is None:
        return
    if isinstance(data, Finding):
        yield data
        return
    try:
        latest = read_latest(data)
    except Damage as e:
        yield replace(e.finding, path=path)
        return
    if not os.path.isabs(latest):
        index = os.path.join(home, f"{latest}.index")
        if missing := notes.gone(index, path, f"it names {latest[:200]!r}, which is not there"):
            yield missing


def read_latest(data: bytes) -> str:
    """Return the path of the newest checkpoint as written. Raise Damage unless TensorFlow may write so."""
    if len(data) > LIMIT:
        raise Damage("bad-tracker", f"{len(data)} bytes are no list of checkpoints", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise Damage("bad-tracker", "the file is not text", e.start) from None
    found: dict[str, list[str]] = {field: [] for field in (*_PATHS, *_TIMES)}
    at = 0
    for line in text.split("\n"):
        if line.strip(" \r\t"):
            m = _LINE.fullmatch(line)
            if m is None:
                raise Damage("bad-tracker", f"not a line of a list of checkpoints: {line[:80]!r}", at)
            field, path, number = m.groups()
            if field not in (_TIMES if path is None else _PATHS):
                raise Damage("bad-tracker", f"{field[:80]!r} is not a field of a list of checkpoints", at)
            found[field].append(number if path is None else _unescape(path, at))
        at += len(line.encode()) + 1
    latest, paths, times, preserved = found.values()
    if len(latest) != 1 or not latest[0] or len(preserved) > 1:
        raise Damage("bad-tracker", "the list of checkpoints does not name the newest of them once", 0)
    if times and len(times) != len(paths):
        raise Damage("bad-tracker", f"{len(paths)} checkpoints with {len(times)} times", 0)
    return latest[0]


def _unescape(text: str, at: int) -> str:
    """Return a quoted path with its escapes replaced. Raise Damage."""

    def decode_escape(m: re.Match[bytes]) -> bytes:
        """Return the byte that an escape of protobuf's text form stands for. Raise Damage."""
        code = m[1]
        value = _PLAIN.get(code[0], 256) if len(code) == 1 else 256
        if code[:1] == b"x" and len(code) > 1:
            value = int(code[1:], 16)
        elif code[:1] in b"01234567":
            value = int(code, 8)
        if value > 255:
            raise Damage("bad-tracker", f"an escape \\{code.decode('latin-1')} that nobody writes", at)
        return bytes([value])

    try:
        return _ESCAPE.sub(decode_escape, text.encode()).decode()
    except UnicodeDecodeError:
        raise Damage("bad-tracker", "a path is not UTF-8", at) from None


_SHARD = re.compile(r"(.+)\.data-\d{5,}-of-\d{5,}", re.DOTALL)
_VERSION = 1
"""Version of the bundle format, the same since TensorFlow 1.0."""
_MAX_LISTED = 16


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


FORMAT = make_format(
    "tf_bundle", _magic, _structure, loader="tensorflow", index_of=_index_of, ours=_owns, beside=check_state
)
