"""GGUF, the format of llama.cpp: metadata, a description of each tensor, then the tensors, each aligned.

Facts: docs/gguf.md and src/gguf.cpp (``gguf_init_from_reader``) of ggml, which refuses all files that
are called damaged here; gguf-py 0.19 (constants.py ``GGML_QUANT_SIZES``, gguf_writer.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, limit, make_format
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.formats.common.tensors import MAX_NAME, MAX_TENSORS, MAX_TEXT, remember, zero_tail
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.report import Guard, Scalar, Tensor
from ckpt_tools.storage import ShortRead, Source

MAGIC = b"GGUF"
_WINDOW = 1 << 18
_MAX_STRINGS = 4_000_000
"""Texts in arrays of a file; the largest tokenizers have 800,000 in vocabulary and merges."""
_MAX_DIMS = 4
_NUMBERS = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?"])) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST_PAIR, _LEAST_TENSOR = 13, 24
"""Bytes of the shortest pair of metadata and of the shortest description of a tensor."""
_ROWS = (
    "0 float32 1 4,1 float16 1 2,24 int8 1 1,25 int16 1 2,26 int32 1 4,27 int64 1 8,28 float64 1 8,"
    "30 bfloat16 1 2,2 q4_0 32 18,3 q4_1 32 20,6 q5_0 32 22,7 q5_1 32 24,8 q8_0 32 34,9 q8_1 32 40,"
    "10 q2_k 256 84,11 q3_k 256 110,12 q4_k 256 144,13 q5_k 256 176,14 q6_k 256 210,15 q8_k 256 292,"
    "16 iq2_xxs 256 66,17 iq2_xs 256 74,18 iq3_xxs 256 98,19 iq1_s 256 50,20 iq4_nl 32 18,21 iq3_s 256 110,"
    "22 iq2_s 256 82,23 iq4_xs 256 136,29 iq1_m 256 56,34 tq1_0 256 54,35 tq2_0 256 66,39 mxfp4 32 17,"
    "40 nvfp4 64 36,41 q1_0 128 18"
)
TYPES = {int(n): (name, int(size), int(nbytes)) for n, name, size, nbytes in map(str.split, _ROWS.split(","))}
"""Number of an element type -> (name, elements per block, bytes per block)."""


class _Header:
    """The numbers and texts before the tensors, read one by one; the next one begins at byte ``at``."""

    def __init__(self, source: Source) -> None:
        self.reader, self.at, self.order, self.strings = Reader(source, _WINDOW), 0, "<", 0

    @property
    def left(self) -> int:
        return self.reader.size - self.at

    def skip(self, length: int) -> None:
        """Move on by ``length`` bytes. Raises ShortRead if the file has fewer."""
        if length > self.left:
            raise ShortRead(self.at, length, self.left)
        self.at += length

    def take(self, length: int) -> bytes:
        self.skip(length)
        return self.reader.get(self.at - length, length)

    def number(self, code: str = "Q") -> int:
        """Read a number; ``code`` is struct's code of its type."""
        (value,) = struct.unpack(self.order + code, self.take(struct.calcsize(f"={code}")))
        return value  # type: ignore[no-any-return]  # struct's types are not known to the checker

    def name(self, what: str) -> str:
        """Read a name: a short UTF-8 text without control characters. Raises Damage for any other."""
        start, length = self.at, self.number()
        if length > MAX_NAME:
            raise Damage("bad-header", f"a {what} of {length} bytes", start)
        try:
            text = self.take(length).decode()
        except UnicodeDecodeError:
            raise Damage("bad-header", f"a {what} that is not UTF-8", start) from None
        if any(c < " " for c in text):
            raise Damage("bad-header", f"a {what} with control characters: {text[:40]!r}", start)
        return text

    def value(self, kind: int) -> Scalar | None:
        """Read a value of metadata; return None for an array, or a text that is too long to show."""
        if kind in _NUMBERS:
            value = self.number(_NUMBERS[kind])
            return value if abs(value) < math.inf else str(value)
        if kind == _STRING:
            length = self.number()
            if length <= MAX_TEXT:
                return self.take(length).decode(errors="replace")
            self.skip(length)
        elif kind == _ARRAY:
            self.skip_array(self.number("I"), self.number())
        else:
            raise Damage("bad-header", f"a value of the unknown type {kind}", self.at)
        return None

    def skip_array(self, kind: int, count: int) -> None:
        """Skip an array of ``count`` items of GGUF's type ``kind``. Raises Damage for an array of arrays."""
        if kind in _NUMBERS:
            self.skip(count * struct.calcsize(f"={_NUMBERS[kind]}"))
        elif kind == _STRING:
            self.strings += count
            if self.strings > _MAX_STRINGS and count <= self.left // 8:
                raise Damage("too-complex", f"more than {_MAX_STRINGS} texts in the metadata", self.at)
            for _ in range(count):
                self.skip(self.number())
        elif kind == _ARRAY:
            raise Damage("too-complex", "an array of arrays, which llama.cpp does not read", self.at)
        else:
            raise Damage("bad-header", f"an array of the unknown type {kind}", self.at)


def _read_counts(header: _Header, anatomy: Anatomy) -> tuple[int, int]:
    """Read the beginning of the file; return the number of tensors and of pairs of metadata."""
    size = header.reader.size
    if header.take(min(len(MAGIC), size)) != MAGIC:
        raise Damage("bad-header", "the file does not begin with GGUF's signature", 0)
    version = int.from_bytes(header.take(4), "little")
    if not version & 0xFFFF:  # as llama.cpp does: a big-endian machine wrote it
        header.order, version = ">", version >> 24
    if version not in (2, 3):
        raise Damage("too-complex", f"version {version} of GGUF is not read", 4)
    tensors, pairs = header.number(), header.number()
    is_too_many = max(tensors, pairs) > MAX_TENSORS
    if tensors > header.left // _LEAST_TENSOR or pairs > header.left // _LEAST_PAIR:
        why = f"{tensors} tensors and {pairs} pairs of metadata do not fit into {header.left} bytes"
        raise Damage("bad-header", why, 8) if is_too_many else Damage("truncated", why, size)
    if is_too_many:
        raise Damage("too-complex", f"more than {MAX_TENSORS} tensors or pairs of metadata", 8)
    anatomy.metadata |= {"gguf_version": version, "byte_order": "little" if header.order == "<" else "big"}
    anatomy.explain(0, 4, "GGUF's signature")
    anatomy.explain(4, 4, "version: 2 and 3 are read alike", Guard.UNPROTECTED)
    anatomy.explain(8, 16, "how many tensors and pairs of metadata follow")
    return tensors, pairs


def _read_metadata(header: _Header, count: int, anatomy: Anatomy) -> int:
    """Read all pairs of metadata; return the alignment of the tensors in bytes."""
    alignment = 32
    for _ in range(count):
        start = header.at
        key = header.name("key")
        if not key:
            raise Damage("bad-header", "a key without a name", start)
        if key in anatomy.keys:
            raise Damage("duplicate-key", f"the key {key[:200]!r} occurs twice", start, Severity.ERROR)
        anatomy.keys.add(key)
        anatomy.explain(start, 8, "the length of a key")
        kind = header.number("I")
        value = header.value(kind)
        anatomy.explain(start + 8, header.at - start - 8, "metadata that nothing checks", Guard.UNPROTECTED)
        if key == "general.alignment":
            if kind != 4 or not isinstance(value, int) or value.bit_count() != 1:
                raise Damage("bad-header", f"an alignment of {value} bytes", start)
            alignment = value
        if key.startswith("split."):
            anatomy.metadata[key] = value
        elif value is not None:
            remember(anatomy.metadata, key, value)
    return alignment


class _Tensor(NamedTuple):
    """One tensor, described at byte ``at``. ``offset`` counts from the data; ``nbytes``: None if unknown."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int | None
    offset: int
    at: int


def _read_tensor(header: _Header, anatomy: Anatomy) -> _Tensor:
    """Read the next description of a tensor: name, shape (fastest axis first), type and offset."""
    at = header.at
    name = header.name("tensor's name")
    middle = header.at
    dims = header.number("I")
    if dims > _MAX_DIMS:
        raise Damage("bad-header", f"tensor {name[:200]!r} has {dims} dimensions", middle)
    shape = tuple(header.number() for _ in range(dims))
    number, nbytes = header.number("I"), None
    dtype, block, size = TYPES.get(number, (f"ggml type {number}", 0, 0))
    if block:
        if (shape[0] if shape else 1) % block:
            why = f"tensor {name[:200]!r}: rows of {shape[:1]} elements are no whole blocks of {dtype}"
            raise Damage("tensor-size", why, middle)
        nbytes = math.prod(shape) // block * size
    anatomy.explain(at, 8, "the length of a tensor's name")
    anatomy.explain(at + 8, middle - at - 8, "a tensor's name", Guard.UNPROTECTED)
    what = "shape and type: a change that takes as many blocks of the alignment is not seen"
    anatomy.explain(middle, header.at - middle, what, Guard.UNPROTECTED)
    anatomy.explain(header.at, 8, "a tensor's place")
    dtype = f">{dtype}" if header.order == ">" else dtype
    return _Tensor(name, dtype, shape[::-1], nbytes, header.number(), at)


def _align(at: int, alignment: int) -> int:
    """Return the first multiple of ``alignment`` that is not below ``at``."""
    return -(-at // alignment) * alignment


def _place_tensors(tensors: list[_Tensor], data: int, alignment: int, anatomy: Anatomy) -> int:
    """Fill ``anatomy.tensors``, which follow each other from byte ``data`` on; return the last one's end."""
    end, is_free = data, False  # free: behind a tensor of unknown size
    for t in tensors:
        expected, begin = _align(end, alignment), data + t.offset
        if t.offset % alignment or begin < expected or (begin > expected and not is_free):
            why = f"tensor {t.name[:200]!r} begins at byte {begin} instead of {expected}"
            raise Damage("bad-header", why, t.at)
        anatomy.explain(end, begin - end, "padding", Guard.UNPROTECTED)
        end, is_free = begin + (t.nbytes or 0), t.nbytes is None
        anatomy.explain(begin, end - begin, "a tensor without a checksum", Guard.UNPROTECTED)
        anatomy.tensors.append(Tensor(t.name, t.dtype, t.shape, t.nbytes or 0, begin))
    return end


@limit
def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Check GGUF's metadata and descriptions of tensors, and that the tensors fill the file to its end."""
    size, header = source.size, _Header(source)
    if not size:
        raise Damage("empty-file", "the file has no bytes", 0)
    count, pairs = _read_counts(header, anatomy)
    alignment = _read_metadata(header, pairs, anatomy)
    tensors = dict[str, _Tensor]()
    for _ in range(count):
        t = _read_tensor(header, anatomy)
        if t.name in tensors:
            text = f"tensor {t.name[:200]!r} is described twice"
            raise Damage("duplicate-tensor", text, t.at, Severity.ERROR)
        tensors[t.name] = t
        if t.nbytes is None:
            text = f"tensor {t.name[:200]!r} is of {t.dtype}, of which this version knows nothing"
            yield finding("unknown-dtype", text, offset=t.at)
    anatomy.keys |= tensors.keys()
    data = _align(header.at, alignment) if tensors else header.at
    anatomy.explain(header.at, data - header.at, "padding", Guard.UNPROTECTED)
    end = _place_tensors(list(tensors.values()), data, alignment, anatomy)
    padded = _align(end, alignment)  # most writers pad the last tensor as well
    if tensors and t.nbytes is None:
        end = max(end, size)
    elif size < end:
        raise Damage("truncated", f"the tensors should end at byte {end}, the file ends at {size}", size)
    elif size > padded:
        raise Damage("trailing-data", f"{size - padded} bytes follow the last tensor", padded)
    elif end < size < padded:
        why = f"the padding behind the last tensor ends at byte {size} instead of {padded}"
        yield finding("odd-header", why, offset=size)
    anatomy.explain(end, size - end, "padding", Guard.UNPROTECTED)
    yield finding("not-checksummed", "GGUF keeps no checksum over its tensors")
    if lost := zero_tail(source, anatomy.tensors, data):
        yield lost


FORMAT = make_format("gguf", lambda head: head.startswith(MAGIC), _structure)
