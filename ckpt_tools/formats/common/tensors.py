"""Helpers for the tensors of several formats: scalars worth showing, damaged words, and the zeros at the end
of a file that was never filled.

Chunks of a sharded tensor: whether boxes fill a shape without hole or overlap. torch checks the same before
it saves (torch/distributed/checkpoint/default_planner.py, _validate_global_plan): chunks in bounds, no two
overlap, and their volumes add up to the tensor's.

Floating-point types as bit patterns: where their exponents are, which patterns are no numbers, and which
numbers programs write on purpose.
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

# ---- Tensors whose pieces lie in several files: whether all pieces in one save make up whole tensors.


def find_incomplete(files: Iterable[Mapping[str, Box]]) -> Iterator[Finding]:
    """Yield a finding for each tensor that the pieces in all files of a save do not fill exactly."""
    pieces: dict[str, list[Box]] = defaultdict(list)
    for file in files:
        for name, box in file.items():
            pieces[name].append(box)
    for name, boxes in pieces.items():
        if len({len(box.start) for box in boxes}) == 1:
            shape = tuple(max(ends) for ends in zip(*(box.stop for box in boxes), strict=True))
            bad = find_untiled(shape, boxes)
            if bad is None or bad.kind == "complex":
                continue
        why = f"the chunks of {name[:200]!r} do not make up a whole tensor"
        yield finding("bad-header", f"{why}: one is missing, or a file is of another save")


_WORDS = (
    "epoch_num step_num global_step cur_rank batch_num loss_scale global_batch_size epoch step last_epoch"
    " last_step"
)
PROGRESS = frozenset(_WORDS.split())
"""Entries that say how far training was (MindSpore's append_info, MindIO TTP, mindformers): metadata always
has them, also beyond MAX_SCALARS.
"""
MAX_SCALARS = 64
MAX_TEXT = 256
MAX_TENSORS, MAX_INDEXED, MAX_NAME = 150_000, 1_000_000, 4096
"""More entries and longer names than real files have: else a hostile file costs gigabytes of objects."""
_PAGE = 4096
_TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"
STRUCT_CODES = dict(zip(_TYPES.split(), "?bBhHiIqQefd", strict=True))
"""The letter that the module struct has for each type of number."""


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that differs from ``word`` in one bit, a flipped one; None if there is none."""
    raw = word.encode("utf-8", "surrogatepass")
    for k in known:
        if len(k) == len(raw) and sum((a ^ b).bit_count() for a, b in zip(raw, k.encode(), strict=True)) == 1:
            return k
    return None


def is_single(dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor is one number that ``scalar`` can read."""
    return (dtype in STRUCT_CODES or dtype == "bfloat16") and tuple(shape) in ((), (1,))


def scalar(raw: bytes, dtype: str) -> Scalar:
    """Return one little-endian element as a Python value; NaN and infinity as text, because JSON has none."""
    if dtype == "bfloat16":
        raw, dtype = b"\0\0" + raw, "float32"
    value: int | float | bool = struct.unpack("<" + STRUCT_CODES[dtype], raw)[0]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def remember(metadata: dict[str, Scalar], name: str, value: Scalar) -> None:
    """Add a scalar to ``metadata`` if it says how far training was or there is room, but no long text."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return
    if name in PROGRESS or len(metadata) < MAX_SCALARS:
        metadata[name] = value


def zero_tail(source: Source, tensors: Sequence[Tensor], start: int) -> Finding | None:
    """Return ``zero-tail`` for zeros from a page border inside a row of a matrix to the file's end (lost
    pages: genuine zeros begin with a tensor or a row), else None. The data begins at ``start``. Reads one
    page as a rule, about 40 at most.
    """
    last = (source.size - 1) // _PAGE

    def is_zero_page(page: int) -> bool:
        data = source.read(page * _PAGE, min(_PAGE, source.size - page * _PAGE))
        return data.count(0) == len(data)

    lo, hi = (start - 1) // _PAGE, last  # page lo holds header bytes, so it is not zero
    if hi <= lo or not is_zero_page(hi):
        return None
    while hi - lo > 1 and last - hi < 16:  # page by page first: other zeros may lie before a short tail
        lo, hi = (lo, hi - 1) if is_zero_page(hi - 1) else (hi - 1, hi)
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (lo, mid) if is_zero_page(mid) else (mid, hi)
    at = hi * _PAGE
    if source.size - at < 256 or at - 8 < start or not any(source.read(at - 8, 8)):
        return None
    cut = next((t for t in tensors if _cuts_row(t, at)), None)
    if cut is None:
        return None
    why = f"zero bytes from a page border inside tensor {cut.name!r} to the end of the file"
    return finding("zero-tail", why, offset=at)


def _cuts_row(t: Tensor, at: int) -> bool:
    """Return whether a file offset lies inside a row of a matrix, not at its border."""
    if t.offset is None or not t.offset < at < t.offset + t.nbytes or len(t.shape) < 2:
        return False
    return (at - t.offset) % (t.nbytes // t.shape[0]) != 0


_FEW = 32
"""The most boxes of a group that are compared pair by pair, if no plane separates them."""


class Untiled(NamedTuple):
    """How boxes fail ("bounds", "overlap", "hole", "complex"), and the index of a box that does, or -1."""

    kind: str
    box: int


def find_untiled(shape: tuple[int, ...], boxes: Sequence[Box]) -> Untiled | None:
    """Return why ``boxes`` do not fill ``shape`` exactly, None if they do; boxes without volume must only lie
    inside. O(n log n) for grids and for cells that are cut again and again; beyond a limit, "complex".
    """
    dims = [d for d, n in enumerate(shape) if n]  # a shape without elements must be filled in the others
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


def _find_overlap(boxes: Sequence[Box], members: list[int], dims: list[int]) -> Untiled | None:
    """Return an overlap of two boxes, or None: divide by planes that cut no box, until each is alone."""
    stack = [members]
    budget = 24 * (len(dims) + 1) * (len(members) + 1)
    while stack:
        group = stack.pop()
        if len(group) < 2:
            continue
        budget -= len(group) * (len(dims) + 1)
        if budget < 0:
            return Untiled("complex", group[0])
        groups = max((_divide(boxes, group, d) for d in dims), key=len, default=[group])
        if len(groups) > 1:
            stack += groups
        elif (pair := _find_pair(boxes, groups[0][:_FEW], dims)) is not None:
            return Untiled("overlap", pair)
        elif len(group) > _FEW:
            return Untiled("complex", group[0])
    return None


def _divide(boxes: Sequence[Box], group: list[int], d: int) -> list[list[int]]:
    """Divide boxes, given by their indices, where none reaches across along dimension ``d``; sort them."""
    groups, end = list[list[int]](), -1
    for i in sorted(group, key=lambda i: boxes[i].start[d]):
        if boxes[i].start[d] >= end:
            groups.append([])
        groups[-1].append(i)
        end = max(end, boxes[i].stop[d])
    return groups


def _find_pair(boxes: Sequence[Box], group: list[int], dims: list[int]) -> int | None:
    """Return the index of the first box that overlaps an earlier one of the group, None if no two do."""
    for n, i in enumerate(group):
        a = boxes[i]
        for b in (boxes[j] for j in group[:n]):
            if all(a.start[d] < b.stop[d] and b.start[d] < a.stop[d] for d in dims):
                return i
    return None


class Kind(NamedTuple):
    """One type of float: its bytes, bits of mantissa, exponent bias. ``special`` is the smallest magnitude
    pattern that is no number: infinity if ``inf``, else NaN as all above it. If ``fnuz``, the only NaN is the
    pattern of -0.

    A value from 2**``absurd`` on is absurd if it is also 2**``apart`` times the median; ``absurd`` 0: none
    is.
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
    """Return the number that a bit pattern of a type of float stands for, which must be finite."""
    sign = pattern >> (8 * kind.width - 1)
    magnitude = pattern & ((1 << (8 * kind.width - 1)) - 1)
    exponent, fraction = magnitude >> kind.mantissa, magnitude & ((1 << kind.mantissa) - 1)
    scale = max(exponent, 1) - kind.bias - kind.mantissa
    significand = float(fraction | (1 << kind.mantissa if exponent else 0))
    number = significand * 2.0 ** max(scale, -1000) * 2.0 ** min(scale + 1000, 0)
    return -number if sign else number


def list_chosen(kind: Kind) -> set[int]:
    """Return bit patterns of numbers that programs write on purpose: the largest (and parts), d * 10**k."""
    kinds = [KINDS[n] for n in ("float64", "float32", "bfloat16", "float16")]
    largest = [value(k.special - 1, k) for k in kinds]
    digits = range(1, 10) if kind.width > 2 else (1,)  # of the few numbers in two bytes, too many are round
    parts = [f * x for x in largest for f in (1.0, 0.5, 0.7)]
    out = set()
    for x in parts + [d * 10.0**k for k in range(3, 308) for d in digits]:
        if x <= value(kind.special - 1, kind):
            code = {8: "<d", 4: "<f", 2: "<f" if kind.bias == 127 else "<e"}[kind.width]
            raw = int.from_bytes(struct.pack(code, x), "little")
            cut = 16 if kind.width == 2 and kind.bias == 127 else 0
            out |= {raw >> cut, (raw + (1 << cut >> 1)) >> cut}  # bfloat16: cut off, and rounded
    return out
