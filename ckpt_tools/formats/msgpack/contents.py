"""A reader of flax' MessagePack: trees of maps with arrays, scalars and texts as their leaves. Objects are
read one after another, with their kind and place; the elements of arrays are not read.

Facts: github.com/msgpack/msgpack/blob/master/spec.md; flax/serialization.py of 0.12 (_MsgpackExtType,
_ndarray_to_bytes, _chunk), the same since 0.1; flax/training/checkpoints.py (MP_ARRAY_PH).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.tensors import (
    MAX_NAME,
    MAX_TENSORS,
    MAX_TEXT,
    PROGRESS,
    is_single,
    remember,
    scalar,
)
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Scalar, Tensor
from ckpt_tools.storage import Source

MAX_OBJECTS = 1_000_000
"""Most objects of one file: flax writes about a dozen for each array."""
_WINDOW = 4096
_WORDS: dict[int, Scalar] = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: ">f", 0xCB: ">d"}
_NUMBERS |= dict(zip(range(0xCC, 0xD4), (">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_SIZED = {0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4)}
_SIZED |= {0xC7: ("ext", 1), 0xC8: ("ext", 2), 0xC9: ("ext", 4)}
_SIZED |= {0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4)}
_SIZED |= {0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}
_FIXED_EXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
DEEPEST = 128
"""Most levels of maps and arrays: no module is nested so deep."""
ELSEWHERE = "//GDAPlaceholder:"
"""Prefix of a text in place of an array of several hosts: its path in the directory of arrays follows."""
STORED = ("kvstore", "path")
"""The last two names above the path of an array's directory, which T5X writes in place of the array in a
TensorStore specification (t5x/checkpoint_utils.py)."""
CHUNKED = "__msgpack_chunked_array__"
ARRAYS = (1, 3)
"""Types of ext that hold an array, or a number of numpy."""
_DIMENSIONS = 64
_ITEMS = {"bool": 1, "bfloat16": 2, "int2": 1, "uint2": 1, "int4": 1, "uint4": 1}
_ITEMS |= {f"{kind}int{bits}": bits // 8 for kind in ("", "u") for bits in (8, 16, 32, 64)}
_ITEMS |= {f"float{bits}": bits // 8 for bits in (16, 32, 64, 96, 128)}
_ITEMS |= {f"complex{bits}": bits // 8 for bits in (64, 128, 192, 256)}
_SMALL = re.compile(r"float[468]_e\w+")
_OTHER = re.compile(r"(?:str|bytes|void)(\d{1,9})|(?:datetime|timedelta)64(?:\[\w+\])?")


class Token(NamedTuple):
    """One object: ``size`` is the number of entries of a map or an array, or of bytes in the body of a text,
    bin or ext, which begins at ``at``. ``code`` is the type of an ext, ``value`` the value of a scalar.
    """

    kind: str
    size: int
    at: int
    code: int = 0
    value: Scalar = None


class Tokens:
    """One cursor over the objects of a file. Raises Damage where no object begins."""

    def __init__(self, source: Source) -> None:
        self.source, self.at, self.end, self.count = source, 0, source.size, 0
        self._window, self._start = b"", 0
        self._within = 0

    @contextmanager
    def inside(self, token: Token, what: str) -> Iterator[None]:
        """Within the context, read objects in the body of the last object, which they must fill."""
        end, self.at, self.end = self.end, token.at, token.at + token.size
        self._within += 1
        yield
        if self.at < self.end:
            raise Damage("bad-header", f"{what} ends before its record does", self.at)
        self.end = end
        self._within -= 1

    def next(self) -> Token:
        """Return the next object; move ``at`` behind it, or to the first entry of a map or an array."""
        self.count += 1
        if self.count > MAX_OBJECTS:
            raise Damage("too-complex", f"more than {MAX_OBJECTS:,} objects", self.at)
        start, first = self.at, self.take(1)[0]
        if first < 0x80 or first >= 0xE0:
            return Token("value", 0, start, value=first if first < 0x80 else first - 0x100)
        if first < 0xC0:  # the first byte holds its size
            kind = "map" if first < 0x90 else "array" if first < 0xA0 else "text"
            return self._open(kind, first & (0x1F if kind == "text" else 0x0F))
        if first in _WORDS:
            return Token("value", 0, start, value=_WORDS[first])
        if code := _NUMBERS.get(first):
            (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
            return Token("value", 0, start, value=value)
        if size := _FIXED_EXT.get(first):
            return self._open("ext", size)
        if first not in _SIZED:
            raise Damage("bad-header", f"byte {first:#x} begins no object", start)
        kind, width = _SIZED[first]
        return self._open(kind, int.from_bytes(self.take(width), "big"))

    def _open(self, kind: str, size: int) -> Token:
        """Return an object with ``size`` bytes or entries. Raise Damage if the file is too short for them."""
        code = int.from_bytes(self.take(1), "big", signed=True) if kind == "ext" else 0
        token = Token(kind, size, self.at, code)
        self._require_bytes(2 * size if kind == "map" else size)  # an entry has a byte at least
        if kind not in ("map", "array"):
            self.at += size
        return token

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes, which are few: a number, or at most a name. Raise Damage."""
        self._require_bytes(length)
        start, self.at = self.at, self.at + length
        if not self._start <= start <= self.at <= self._start + len(self._window):
            self._window = self.source.read(start, min(max(_WINDOW, length), self.end - start))
            self._start = start
        return self._window[start - self._start : self.at - self._start]

    def body(self, token: Token) -> bytes:
        """Return the bytes of ``token``, a short text that was the last object."""
        self.at = token.at
        return self.take(token.size)

    def _require_bytes(self, length: int) -> None:
        """Raise Damage unless ``length`` more bytes follow."""
        if length <= self.end - self.at:
            return
        text = f"{length:,} more bytes belong at byte {self.at:,}"
        if self._within:
            raise Damage("bad-header", f"{text}, of which its record has {self.end - self.at:,}", self.at)
        raise Damage("truncated", f"{text}, the file ends at {self.end:,}", self.end)


class _Level(Struct):
    """One open map or array: ``left`` is the number of entries left, ``key`` the name of the current entry,
    ``has_key`` whether only that was read. A chunked array needs the index of its ``first`` tensor and, of
    its shape, the first ``numbers``.
    """

    is_map: bool
    left: int
    first: int
    key: str | None = None
    has_key: bool = False
    chunked: bool = False
    shape: tuple[int, ...] | None = None
    numbers: list[int] = field(default_factory=list)


class Tree:
    """One object with all objects in it, below ``path``, read into ``anatomy``. ``placeholders`` has paths of
    arrays in a directory beside the file, ``stored`` is the number of arrays right beside the file.
    """

    def __init__(self, tokens: Tokens, anatomy: Anatomy, path: tuple[str, ...] = ()) -> None:
        self.tokens, self.anatomy, self.path = tokens, anatomy, path
        self.placeholders, self.stored = list[str](), 0
        self._levels = list[_Level]()

    def read(self) -> Iterator[Finding]:
        """Read the object to its end. Raise Damage."""
        levels = self._levels
        while True:
            if levels and not levels[-1].has_key:
                yield from self._read_name(levels[-1])
            token = self.tokens.next()
            if token.kind in ("map", "array"):
                if len(levels) == DEEPEST:
                    raise Damage("too-complex", f"more than {DEEPEST} levels of maps and arrays", token.at)
                levels.append(_Level(token.kind == "map", token.size, len(self.anatomy.tensors)))
            else:
                yield from self._read_leaf(token)
                if levels:
                    levels[-1].has_key = False
            while levels and not levels[-1].left and not levels[-1].has_key:
                self._close(levels.pop())
                if levels:
                    levels[-1].has_key = False
            if not levels:
                return

    def _read_name(self, level: _Level) -> Iterator[Finding]:
        """Set ``level.key`` to the name of its next entry, or to its number in an array. Raise Damage."""
        before, level.has_key = level.key, True
        level.left -= 1
        if not level.is_map:
            level.key = str(int(before or -1) + 1)
            return
        at = self.tokens.at
        level.key = read_key(self.tokens)
        if level.key == before:
            yield finding("duplicate-key", f"the name {before[:200]!r} occurs twice", offset=at)
        level.chunked |= level.key == CHUNKED
        if level.chunked and level.key not in (CHUNKED, "shape", "chunks"):
            raise Damage("bad-header", f"a chunked array has no {level.key[:200]!r}", at)
        if len(self._levels) == 1 and not self.path and len(self.anatomy.keys) < MAX_TENSORS:
            self.anatomy.keys.add(level.key)

    def _close(self, level: _Level) -> None:
        """End a map or array. If it is flax' chunked array, join its chunks into one tensor. Raise Damage."""
        above = self._levels[-1] if self._levels else None
        if above and above.chunked and above.key == "shape":
            above.shape = tuple(level.numbers)
        if not level.chunked:
            return
        name, tensors = self._path(), self.anatomy.tensors
        chunks = tensors[level.first :]
        del tensors[level.first :]
        if len({t.dtype for t in chunks}) != 1 or level.shape is None:
            raise Damage("bad-header", f"{name!r} is not a chunked array", self.tokens.at)
        dtype, size, item = chunks[0].dtype, sum(t.nbytes for t in chunks), item_size(chunks[0].dtype)
        if item is not None and size != item * math.prod(level.shape):
            why = f"{dtype} {list(level.shape[:8])} in chunks of {size:,} bytes"
            raise Damage("tensor-size", f"tensor {name!r}: {why}", chunks[0].offset)
        pieces = tuple((t.offset or 0, t.nbytes) for t in chunks)
        tensors.append(Tensor(name, dtype, level.shape, size, pieces[0][0], pieces=pieces))

    def _read_leaf(self, token: Token) -> Iterator[Finding]:
        """Add an array, a text or a scalar to ``anatomy``. Raise Damage."""
        level = self._levels[-1] if self._levels else None
        if token.kind == "ext" and token.code in ARRAYS:
            yield from self._read_array(token)
        elif token.kind == "text" and token.size <= MAX_NAME:
            text = self.tokens.body(token).decode("utf-8", "replace")
            self._remember(text)
            if text.startswith(ELSEWHERE) and len(self.placeholders) < MAX_TENSORS:
                self.placeholders.append(text.removeprefix(ELSEWHERE))
            if level and level.key == STORED[-1]:
                self.stored += self._keys()[-2:] == STORED
        elif token.kind == "value":
            self._remember(token.value)
            if level and type(token.value) is int and len(level.numbers) < _DIMENSIONS:
                level.numbers.append(token.value)

    def _remember(self, value: Scalar) -> None:
        """Add a scalar to the metadata if it is at the top level or tells the progress of training."""
        if isinstance(value, float) and not abs(value) < float("inf"):
            value = str(value)
        keys = self._keys()
        if len(keys) == 1 or (keys and keys[-1] in PROGRESS):
            remember(self.anatomy.metadata, self._path(), value)

    def _keys(self) -> tuple[str, ...]:
        """Return the names that lead to the current object, from the root."""
        return (*self.path, *(level.key or "" for level in self._levels))

    def _path(self) -> str:
        """Return the dotted name of the current object. Raise Damage if it is too long."""
        name = ".".join(self._keys())
        if len(name) > MAX_NAME:
            raise Damage("too-complex", f"a name of {len(name):,} characters", self.tokens.at)
        return name

    def _read_array(self, token: Token) -> Iterator[Finding]:
        """Add the array in an ext, which holds (shape, name of the dtype, bytes). Raise Damage."""
        name = self._path()
        if len(self.anatomy.tensors) == MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS:,} tensors", token.at)
        with self.tokens.inside(token, f"tensor {name!r}"):
            wrong = Damage("bad-header", f"tensor {name!r} is not a shape, dtype and bytes", self.tokens.at)
            outer, dims = self.tokens.next(), self.tokens.next()
            if (outer.kind, outer.size, dims.kind) != ("array", 3, "array") or dims.size > _DIMENSIONS:
                raise wrong
            numbers = tuple(self.tokens.next().value for _ in range(dims.size))
            word = self.tokens.next()
            if word.kind not in ("text", "bin") or word.size > MAX_TEXT:
                raise wrong
            dtype, data = self.tokens.body(word).decode("ascii", "replace"), self.tokens.next()
            shape = tuple(n for n in numbers if type(n) is int and n >= 0)
            if data.kind != "bin" or len(shape) < len(numbers):
                raise wrong
        item = item_size(dtype)
        if item is None:
            why = f"tensor {name!r} has the unknown dtype {dtype[:40]!r}"
            yield finding("unknown-dtype", why, offset=token.at)
        elif math.prod(shape) * item != data.size:
            why = f"{dtype} {list(shape[:8])} takes {math.prod(shape) * item:,} bytes, it has {data.size:,}"
            raise Damage("tensor-size", f"tensor {name!r}: {why}", token.at)
        self.anatomy.tensors.append(Tensor(name, dtype, shape, data.size, data.at))
        if is_single(dtype, shape):
            self._remember(scalar(self.tokens.source.read(data.at, data.size), dtype))


def read_key(tokens: Tokens) -> str:
    """Return the next object as the name of a map's entry. Raise Damage."""
    token = tokens.next()
    if type(token.value) is int:
        return str(token.value)
    if token.kind not in ("text", "bin"):
        raise Damage("bad-header", f"a {token.kind} where a map has a name", token.at)
    if token.size > MAX_NAME:
        raise Damage("too-complex", f"a name of {token.size:,} bytes", token.at)
    try:
        return tokens.body(token).decode()
    except UnicodeDecodeError:
        raise Damage("bad-header", "a name is not UTF-8", token.at) from None


def item_size(dtype: str) -> int | None:
    """Return the bytes of one element by numpy's name of the dtype, None for an unknown dtype."""
    if dtype in _ITEMS:
        return _ITEMS[dtype]
    if _SMALL.fullmatch(dtype):
        return 1
    m = _OTHER.fullmatch(dtype)
    return None if m is None else int(m[1]) // 8 if m[1] else 8


def explain(anatomy: Anatomy, end: int) -> None:
    """Explain all bytes to ``end`` as unprotected: no checksum covers them, and only lengths must fit."""
    at, what = 0, "names, types and lengths: they must fit each other"
    extents = (p for t in anatomy.tensors for p in t.pieces or ((t.offset or 0, t.nbytes),))
    for offset, size in sorted(extents):
        anatomy.explain(at, offset - at, what, Guard.UNPROTECTED)
        anatomy.explain(offset, size, "an array without a checksum", Guard.UNPROTECTED)
        at = offset + size
    anatomy.explain(at, end - at, what, Guard.UNPROTECTED)
