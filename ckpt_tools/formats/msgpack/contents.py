"""What flax keeps in MessagePack: trees of maps with arrays, scalars and texts as their leaves.

Facts: flax/serialization.py of 0.12 (_MsgpackExtType, _ndarray_to_bytes, _chunk), the same since 0.1;
flax/training/checkpoints.py (MP_ARRAY_PH).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

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
from ckpt_tools.formats.msgpack.tokens import Token, Tokens
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Scalar
from ckpt_tools.model.tensor import Tensor

DEEPEST = 128
"""Levels: no module is nested so deep."""
ELSEWHERE = "//GDAPlaceholder:"
"""Begins the text that stands for an array of several hosts; its path in the directory of arrays follows."""
STORED = ("kvstore", "path")
"""The last names above the path of a directory with an array, in what T5X writes in the array's place: the
specification of its TensorStore (t5x/checkpoint_utils.py)."""
CHUNKED = "__msgpack_chunked_array__"
ARRAYS = (1, 3)
"""Types of ext that hold an array, or a number as numpy keeps it."""
_DIMENSIONS = 64
_ITEMS = {"bool": 1, "bfloat16": 2, "int2": 1, "uint2": 1, "int4": 1, "uint4": 1}
_ITEMS |= {f"{kind}int{bits}": bits // 8 for kind in ("", "u") for bits in (8, 16, 32, 64)}
_ITEMS |= {f"float{bits}": bits // 8 for bits in (16, 32, 64, 96, 128)}
_ITEMS |= {f"complex{bits}": bits // 8 for bits in (64, 128, 192, 256)}
_SMALL = re.compile(r"float[468]_e\w+")
_OTHER = re.compile(r"(?:str|bytes|void)(\d{1,9})|(?:datetime|timedelta)64(?:\[\w+\])?")


class _Level(Struct):
    """A map or an array that is being read: the entries that are ``left``, its current ``key``, and what a
    chunked array needs to know: the index of its ``first`` tensor, and its numbers, if they are a few.
    """

    is_map: bool
    left: int
    first: int
    key: str | None = None
    named: bool = False
    chunked: bool = False
    shape: tuple[int, ...] | None = None
    numbers: list[int] = field(default_factory=list)


class Tree:
    """One object with everything in it, below ``path``. What it holds goes into the anatomy; ``elsewhere``
    are the paths of arrays that lie in a directory beside the file, ``stored`` counts those right beside it.
    """

    def __init__(self, tokens: Tokens, anatomy: Anatomy, path: tuple[str, ...] = ()) -> None:
        self.tokens, self.anatomy, self.path = tokens, anatomy, path
        self.elsewhere, self.stored = list[str](), 0
        self._levels = list[_Level]()

    def read(self) -> Iterator[Finding]:
        """To its end. Raises Damage."""
        while True:
            if self._levels and not self._levels[-1].named:
                yield from self._name(self._levels[-1])
            token = self.tokens.next()
            if token.kind in ("map", "array"):
                self._open(token)
            else:
                yield from self._leaf(token)
                self._entry_done()
            while self._levels and not self._levels[-1].left and not self._levels[-1].named:
                self._close(self._levels.pop())
                self._entry_done()
            if not self._levels:
                return

    def _open(self, token: Token) -> None:
        if len(self._levels) == DEEPEST:
            raise Damage("too-complex", f"more than {DEEPEST} levels of maps and arrays", token.at)
        self._levels.append(_Level(token.kind == "map", token.size, len(self.anatomy.tensors)))

    def _entry_done(self) -> None:
        if self._levels:
            self._levels[-1].named = False

    def _name(self, level: _Level) -> Iterator[Finding]:
        """What the next entry of a level is called: arrays count theirs."""
        before, level.named = level.key, True
        level.left -= 1
        if not level.is_map:
            level.key = str(int(before or -1) + 1)
            return
        at = self.tokens.at
        level.key = key_of(self.tokens)
        if level.key == before:
            yield finding("duplicate-key", f"the name {before[:200]!r} occurs twice", offset=at)
        level.chunked |= level.key == CHUNKED
        if level.chunked and level.key not in (CHUNKED, "shape", "chunks"):
            raise Damage("bad-header", f"a chunked array has no {level.key[:200]!r}", at)
        if len(self._levels) == 1 and not self.path and len(self.anatomy.keys) < MAX_TENSORS:
            self.anatomy.keys.add(level.key)

    def _close(self, level: _Level) -> None:
        above = self._levels[-1] if self._levels else None
        if above and above.chunked and above.key == "shape":
            above.shape = tuple(level.numbers)
        if level.chunked:
            self._join(level)

    def _join(self, level: _Level) -> None:
        """The chunks of an array that is longer than an object may be become one tensor."""
        name, tensors = self._path(), self.anatomy.tensors
        chunks = tensors[level.first :]
        del tensors[level.first :]
        dtypes = {t.dtype for t in chunks}
        if len(dtypes) != 1 or level.shape is None:
            raise Damage("bad-header", f"{name!r} is no chunked array", self.tokens.at)
        dtype, size, item = dtypes.pop(), sum(t.nbytes for t in chunks), item_size(chunks[0].dtype)
        if item is not None and size != item * math.prod(level.shape):
            why = f"{dtype} {list(level.shape[:8])} in chunks of {size:,} bytes"
            raise Damage("tensor-size", f"tensor {name!r}: {why}", chunks[0].offset)
        pieces = tuple((t.offset or 0, t.nbytes) for t in chunks)
        tensors.append(Tensor(name, dtype, level.shape, size, pieces[0][0], pieces=pieces))

    def _leaf(self, token: Token) -> Iterator[Finding]:
        level = self._levels[-1] if self._levels else None
        if token.kind == "ext" and token.code in ARRAYS:
            yield from self._array(token)
        elif token.kind == "text" and token.size <= MAX_NAME:
            text = self.tokens.body(token).decode("utf-8", "replace")
            self._remember(text)
            if text.startswith(ELSEWHERE) and len(self.elsewhere) < MAX_TENSORS:
                self.elsewhere.append(text.removeprefix(ELSEWHERE))
            if level and level.key == STORED[-1]:
                self.stored += self._keys()[-2:] == STORED
        elif token.kind == "value":
            self._remember(token.value)
            if level and type(token.value) is int and len(level.numbers) < _DIMENSIONS:
                level.numbers.append(token.value)

    def _remember(self, value: Scalar) -> None:
        """A scalar of the top level, or one that tells progress."""
        if isinstance(value, float) and not abs(value) < float("inf"):
            value = str(value)
        keys = self._keys()
        if len(keys) == 1 or (keys and keys[-1] in PROGRESS):
            remember(self.anatomy.metadata, self._path(), value)

    def _keys(self) -> tuple[str, ...]:
        return (*self.path, *(level.key or "" for level in self._levels))

    def _path(self) -> str:
        name = ".".join(self._keys())
        if len(name) > MAX_NAME:
            raise Damage("too-complex", f"a name of {len(name):,} characters", self.tokens.at)
        return name

    def _array(self, token: Token) -> Iterator[Finding]:
        """An array in an ext: its shape, the name of its dtype, its bytes."""
        name = self._path()
        if len(self.anatomy.tensors) == MAX_TENSORS:
            raise Damage("too-complex", f"more than {MAX_TENSORS:,} tensors", token.at)
        with self.tokens.inside(token, f"tensor {name!r}"):
            shape, dtype, data = _described(self.tokens, name)
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


def key_of(tokens: Tokens) -> str:
    """The next object, which names an entry of a map. Raises Damage."""
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


def _described(inside: Tokens, name: str) -> tuple[tuple[int, ...], str, Token]:
    """Shape, dtype and bytes of an array. Raises Damage."""
    wrong = Damage("bad-header", f"tensor {name!r} is no shape, dtype and bytes", inside.at)
    outer, dims = inside.next(), inside.next()
    if (outer.kind, outer.size, dims.kind) != ("array", 3, "array") or dims.size > _DIMENSIONS:
        raise wrong
    shape = tuple(inside.next().value for _ in range(dims.size))
    word = inside.next()
    if word.kind not in ("text", "bin") or word.size > MAX_TEXT:
        raise wrong
    dtype, data = inside.body(word).decode("ascii", "replace"), inside.next()
    counts = tuple(n for n in shape if type(n) is int and n >= 0)
    if data.kind != "bin" or len(counts) < len(shape):
        raise wrong
    return counts, dtype, data


def item_size(dtype: str) -> int | None:
    """Bytes of one element by numpy's name of the dtype; None for one that is not known."""
    if dtype in _ITEMS:
        return _ITEMS[dtype]
    if _SMALL.fullmatch(dtype):
        return 1
    m = _OTHER.fullmatch(dtype)
    return None if m is None else int(m[1]) // 8 if m[1] else 8
