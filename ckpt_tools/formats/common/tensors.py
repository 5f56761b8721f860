"""What MindSpore's and safetensors' files share: scalars worth showing, damaged words, and the zero tail of a
file that was never filled.

Whether boxes fill a shape without hole or overlap: the chunks of a sharded tensor.

torch checks the same before it saves (torch/distributed/checkpoint/default_planner.py,
_validate_global_plan): chunks in bounds, no two overlap, and their volumes add up to the tensor's.

Floating-point types as bit patterns: where their exponents are, which patterns are no numbers, and which
numbers somebody chose.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Box, Scalar, Tensor
from ckpt_tools.storage import Source

# ---- Tensors whose pieces lie in several files: whether all pieces of one save make up whole tensors.


def incomplete(files: Iterable[Mapping[str, Box]]) -> Iterator[Finding]:
    """Tensors that the pieces in all files of a save do not fill; replicated ones are in one file only."""
    pieces: dict[str, list[Box]] = defaultdict(list)
    for file in files:
        for name, box in file.items():
            pieces[name].append(box)
    for name, boxes in pieces.items():
        if len({len(box.start) for box in boxes}) > 1:
            what = "differ in their number of dimensions"
        else:
            shape = tuple(max(ends) for ends in zip(*(box.stop for box in boxes), strict=True))
            bad = untiled(shape, boxes)
            if bad is None or bad.kind == "complex":
                continue
            words = {"hole": "leave a hole", "overlap": "overlap"}
            what = words.get(bad.kind, "differ in their number of dimensions")
        text = f"the chunks of {name[:200]!r} {what}: a file of another save, or one that is missing"
        yield finding("bad-header", text)


_WORDS = (
    "epoch_num step_num global_step cur_rank batch_num loss_scale global_batch_size epoch step last_epoch"
    " last_step"
)
PROGRESS = frozenset(_WORDS.split())
"""Entries that say how far training was (MindSpore's append_info, MindIO TTP, mindformers): always kept,
whatever else there is.
"""
MAX_SCALARS = 64
MAX_TEXT = 256
MAX_TENSORS, MAX_INDEXED, MAX_NAME = 150_000, 1_000_000, 4096
"""More entries and longer names than any real file has; a hostile file stops here before it costs gigabytes
of objects.
"""
_PAGE = 4096
_TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"
_CODES = dict(zip(_TYPES.split(), "?bBhHiIqQefd", strict=True))


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that differs from ``word`` in exactly one bit, which no new name does."""
    raw = word.encode("utf-8", "surrogatepass")
    for k in known:
        if len(k) == len(raw) and sum((a ^ b).bit_count() for a, b in zip(raw, k.encode(), strict=True)) == 1:
            return k
    return None


def is_single(dtype: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is one number that ``scalar`` can read."""
    return (dtype in _CODES or dtype == "bfloat16") and tuple(shape) in ((), (1,))


def scalar(raw: bytes, dtype: str) -> Scalar:
    """One little-endian element as a Python value; a NaN or infinity as text, because JSON has none."""
    if dtype == "bfloat16":
        raw, dtype = b"\0\0" + raw, "float32"
    value: int | float | bool = struct.unpack("<" + _CODES[dtype], raw)[0]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def remember(metadata: dict[str, Scalar], name: str, value: Scalar) -> None:
    """Keep a scalar if it tells progress or there is room; long texts are left out."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return
    if name in PROGRESS or len(metadata) < MAX_SCALARS:
        metadata[name] = value


def zero_tail(source: Source, tensors: Sequence[Tensor], start: int) -> Finding | None:
    """The mark of lost pages: zeros from a page border inside a row of a matrix to the file's end; genuine
    ones begin with a tensor or a row. The data begins at ``start``. Reads one page as a rule, at most about
    40.
    """
    last = (source.size - 1) // _PAGE

    def zero(page: int) -> bool:
        data = source.read(page * _PAGE, min(_PAGE, source.size - page * _PAGE))
        return data.count(0) == len(data)

    lo, hi = (start - 1) // _PAGE, last  # page lo holds header bytes, so it is not zero
    if hi <= lo or not zero(hi):
        return None
    while hi - lo > 1 and last - hi < 16:  # page by page first: other zeros may lie before a short tail
        lo, hi = (lo, hi - 1) if zero(hi - 1) else (hi - 1, hi)
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (lo, mid) if zero(mid) else (mid, hi)
    at = hi * _PAGE
    if source.size - at < 256 or at - 8 < start or not any(source.read(at - 8, 8)):
        return None
    cut = next((t for t in tensors if _cuts_row(t, at)), None)
    if cut is None:
        return None
    why = f"zero bytes from a page border inside tensor {cut.name!r} to the end of the file"
    return finding("zero-tail", why, offset=at)


def _cuts_row(t: Tensor, at: int) -> bool:
    """Whether a byte of the file lies inside a row of a matrix."""
    if t.offset is None or not t.offset < at < t.offset + t.nbytes or len(t.shape) < 2:
        return False
    return (at - t.offset) % (t.nbytes // t.shape[0]) != 0


_FEW = 32
"""Boxes that are compared pair by pair when nothing else separates them."""


class Untiled(NamedTuple):
    """How boxes fail ("bounds", "overlap", "hole", "complex"), and one that shows it or -1."""

    kind: str
    box: int


def untiled(shape: tuple[int, ...], boxes: Sequence[Box]) -> Untiled | None:
    """Why ``boxes`` do not fill ``shape`` exactly, None if they do; one without volume need only lie inside.
    O(n log n) for grids and for cells that are cut again and again; else bounded by "complex".
    """
    dims = [d for d, n in enumerate(shape) if n]  # without elements it must be filled in its other dimensions
    volume, solid = 0, []
    for i, b in enumerate(boxes):
        if not all(0 <= a <= z <= n for a, z, n in zip(b.start, b.stop, shape, strict=True)):
            return Untiled("bounds", i)
        v = math.prod(b.stop[d] - b.start[d] for d in dims)
        if v:
            volume += v
            solid.append(i)
    bad = _find_overlap(boxes, solid, dims)
    if bad is None and volume != math.prod(shape[d] for d in dims):
        return Untiled("hole", -1)
    return bad


def _find_overlap(boxes: Sequence[Box], members: list[int], every: list[int]) -> Untiled | None:
    """Divide the boxes into groups that cannot touch, until each is one box or has one dimension."""
    stack = [(members, every)]
    budget = 24 * (len(every) + 1) * (len(members) + 1)
    while stack:
        group, dims = stack.pop()
        if len(group) < 2:
            continue
        budget -= len(group) * (len(dims) + 1)
        if budget < 0:
            return Untiled("complex", group[0])
        if not dims:
            return Untiled("overlap", group[1])
        runs = {d: _find_runs(boxes, group, d) for d in dims}
        regular = [d for d in dims if runs[d].regular]
        if regular:
            stack += _find_cells(boxes, group, dims, regular)
            continue
        if len(dims) == 1:
            return Untiled("overlap", runs[dims[0]].touching)
        most = max(dims, key=lambda d: len(runs[d].groups))
        if len(runs[most].groups) > 1:
            stack.extend((g, dims) for g in runs[most].groups)
        elif len(group) > _FEW:
            return Untiled("complex", group[0])
        elif (pair := _find_pair(boxes, group, dims)) is not None:
            return Untiled("overlap", pair)
    return None


def _find_cells(
    boxes: Sequence[Box], group: list[int], dims: list[int], regular: list[int]
) -> list[tuple[list[int], list[int]]]:
    """The boxes that are equal in all regular dimensions, so that no others overlap, and what is left."""
    cells = defaultdict[tuple[int, ...], list[int]](list)
    for i in group:
        cells[tuple(boxes[i].start[d] for d in regular)].append(i)
    rest = [d for d in dims if d not in regular]
    return [(cell, rest) for cell in cells.values()]


class _Runs(NamedTuple):
    """One dimension of a group, ``regular`` if any two extents are equal or disjoint, cut into ``groups``
    where none reaches across; ``touching`` overlaps the one before it, or is -1.
    """

    regular: bool
    groups: list[list[int]]
    touching: int


def _find_runs(boxes: Sequence[Box], group: list[int], d: int) -> _Runs:
    order = sorted(group, key=lambda i: (boxes[i].start[d], boxes[i].stop[d]))
    groups: list[list[int]] = []
    regular, touching, end, last = True, -1, -1, (-1, -1)
    for i in order:
        extent = boxes[i].start[d], boxes[i].stop[d]
        if extent[0] >= end:
            groups.append([i])
        else:
            groups[-1].append(i)
            touching = i if touching < 0 else touching
            regular = regular and extent == last
        end, last = max(end, extent[1]), extent
    return _Runs(regular, groups, touching)


def _find_pair(boxes: Sequence[Box], group: list[int], dims: list[int]) -> int | None:
    for n, i in enumerate(group):
        for j in group[:n]:
            if all(
                boxes[i].start[d] < boxes[j].stop[d] and boxes[j].start[d] < boxes[i].stop[d] for d in dims
            ):
                return i
    return None


class Kind(NamedTuple):
    """How a float is laid out: bytes, bits of its mantissa, exponent bias. ``special`` is the smallest
    magnitude pattern that is no number.

    ``inf`` says whether that one is infinity (all above it are NaN). With ``fnuz`` the pattern of -0 is the
    only NaN.
    ``absurd`` is the power of two from which a value is absurd if it is also 2**``apart`` times the middle
    one; 0: such values are everyday.
    """

    width: int
    mantissa: int
    bias: int
    special: int
    inf: bool = True
    fnuz: bool = False
    absurd: int = 0
    apart: int = 0


KINDS = {
    "float64": Kind(8, 52, 1023, 0x7FF << 52, absurd=512, apart=512),
    "float32": Kind(4, 23, 127, 0xFF << 23, absurd=64, apart=64),
    "bfloat16": Kind(2, 7, 127, 0xFF << 7, absurd=64, apart=64),
    "float16": Kind(2, 10, 15, 0x1F << 10, absurd=9, apart=14),
    "float8_e5m2": Kind(1, 2, 15, 0x7C),
    "float8_e4m3fn": Kind(1, 3, 7, 0x7F, inf=False),
    "float8_e5m2fnuz": Kind(1, 2, 16, 0x80, inf=False, fnuz=True),
    "float8_e4m3fnuz": Kind(1, 3, 8, 0x80, inf=False, fnuz=True),
}
KINDS |= {"complex64": KINDS["float32"], "complex128": KINDS["float64"]}


def value(pattern: int, kind: Kind) -> float:
    """The number that a bit pattern stands for, if it is finite."""
    sign = pattern >> (8 * kind.width - 1)
    magnitude = pattern & ((1 << (8 * kind.width - 1)) - 1)
    exponent, fraction = magnitude >> kind.mantissa, magnitude & ((1 << kind.mantissa) - 1)
    scale = max(exponent, 1) - kind.bias - kind.mantissa
    number = (
        float(fraction | (1 << kind.mantissa if exponent else 0))
        * 2.0 ** max(scale, -1000)
        * 2.0 ** min(scale + 1000, 0)
    )
    return -number if sign else number


def chosen(kind: Kind) -> set[int]:
    """Magnitude patterns that programs write on purpose: each type's largest (and parts), d * 10**k."""
    largest = [
        value(k.special - 1, k) for k in (KINDS[n] for n in ("float64", "float32", "bfloat16", "float16"))
    ]
    digits = (
        range(1, 10) if kind.width > 2 else (1,)
    )  # of the few numbers that two bytes hold, too many are round
    numbers = [f * x for x in largest for f in (1.0, 0.5, 0.7)] + [
        d * 10.0**k for k in range(3, 308) for d in digits
    ]
    out = set()
    for x in numbers:
        if x <= value(kind.special - 1, kind):
            code = {8: "<d", 4: "<f", 2: "<f" if kind.bias == 127 else "<e"}[kind.width]
            raw = int.from_bytes(struct.pack(code, x), "little")
            cut = 16 if kind.width == 2 and kind.bias == 127 else 0
            out |= {raw >> cut, (raw + (1 << cut >> 1)) >> cut}  # bfloat16: cut off, and rounded
    return out
