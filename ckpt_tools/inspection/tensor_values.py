"""Find bad numbers in a file's tensors: NaN, infinities, and values that only a flipped exponent bit makes;
and how far the numbers of two tensors are apart. Needs numpy.

Floats are read as bit patterns: patterns of one sign are ordered like the numbers. So four integer reductions
per chunk (smallest and largest, signed and unsigned) show whether a chunk has any NaN, infinity or denormal,
and only then they are counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ckpt_tools.checksum import Progress
from ckpt_tools.findings import finding
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.tensors import KINDS, Kind, list_chosen, value
from ckpt_tools.inspection.digests import Runs
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Stats, Tensor
from ckpt_tools.storage import Source

Patterns = npt.NDArray[np.unsignedinteger[Any]]
CHUNK = 256 * 1024
"""Bytes per read: they stay in the L2 cache for the reductions."""
LISTED = 32  # tensors with findings of their own, at most
ENOUGH = 64
"""A tensor with fewer numbers has no distribution to compare a number with."""

POWERS = 64
"""Bins of a distribution at most: one for each power of two, or for several of them if the range is wider."""


class _Counts:
    """The counts of one tensor, chunk by chunk, and the byte offsets of the first NaN and infinity."""

    def __init__(self, kind: Kind, scratch: Patterns) -> None:
        self.kind, self.sign, self.scratch = kind, 1 << (8 * kind.width - 1), scratch
        self.count = self.nan = self.inf = self.denormal = self.zeros = 0
        self.first_nan = self.first_inf = -1
        self.chunks = 0
        self.exponents: npt.NDArray[np.intp] | None = None
        # magnitude patterns of positive (high) and of negative (low) numbers: the largest or -1, the smallest
        self.high, self.low, self.high_end, self.low_end = -1, -1, self.sign, self.sign

    def add(self, patterns: Patterns, offset: int) -> None:
        """Count a chunk that begins at byte ``offset`` of the file."""
        kind, sign = self.kind, self.sign
        signed = patterns.view(patterns.dtype.str.replace("u", "i"))
        top, bottom = int(signed.max()), int(signed.min())
        most, least = int(patterns.max()), int(patterns.min())
        positive = (top, least) if top >= 0 else (-1, sign)
        negative = (most - sign, bottom + sign) if bottom < 0 else (-1, sign)
        self.count += patterns.size
        if self.chunks % 16 == 0:  # one chunk in so many, and always the first one of a tensor
            # the exponents of some 512 numbers: to count all takes longer than all other work
            some = patterns[:: max(1, patterns.size // 512)] & (sign - 1)
            size = 1 << (8 * kind.width - 1 - kind.mantissa)
            counts = np.bincount((some >> kind.mantissa).astype(np.intp), minlength=size)
            self.exponents = counts if self.exponents is None else self.exponents + counts
        self.chunks += 1
        if max(positive[0], negative[0]) >= kind.special or (kind.fnuz and negative[1] == 0):
            patterns = self._count_special(patterns, offset)
            if not patterns.size:
                return
            magnitudes = patterns & (sign - 1)
            above, below = magnitudes[patterns < sign], magnitudes[patterns >= sign]
            positive, negative = (
                (int(m.max()), int(m.min())) if m.size else (-1, sign) for m in (above, below)
            )
        self.high, self.high_end = max(self.high, positive[0]), min(self.high_end, positive[1])
        self.low, self.low_end = max(self.low, negative[0]), min(self.low_end, negative[1])
        if min(positive[1], negative[1]) < 1 << kind.mantissa:
            # doubled: without the sign; a shift of bytes is ten times slower
            doubled = np.add(patterns, patterns, out=self.scratch[: patterns.size])
            zeros = patterns.size - _count(doubled)
            self.zeros += zeros
            self.denormal += _count(doubled < 2 << kind.mantissa) - zeros

    def _magnitudes(self) -> tuple[tuple[int, int], ...]:
        """Return the distribution: (power of two, count), sorted, of normal numbers alone."""
        if self.exponents is None:
            return ()
        numbers = self.exponents[1 : len(self.exponents) - self.kind.inf]
        found = numbers.nonzero()[0]
        powers = dict(zip((found + 1 - self.kind.bias).tolist(), numbers[found].tolist(), strict=True))
        largest = max(self.largest, 0) >> self.kind.mantissa
        if largest:  # the sample may have missed it, and it may be far from all others
            powers.setdefault(largest - self.kind.bias, 1)
        if not powers:
            return ()
        width = -(-(max(powers) - min(powers) + 1) // POWERS)  # powers per bin
        bins = Counter[int]()
        for power, n in powers.items():
            bins[power // width * width] += n
        return tuple(sorted(bins.items()))

    def _count_special(self, patterns: Patterns, offset: int) -> Patterns:
        """Count the NaN and infinities of a chunk at byte ``offset``; return all other patterns."""
        kind = self.kind
        magnitudes = patterns & (self.sign - 1)
        if kind.fnuz:
            nan: npt.NDArray[np.bool_] = patterns == self.sign
        else:
            nan = magnitudes > kind.special if kind.inf else magnitudes >= kind.special
        inf = magnitudes == kind.special if kind.inf else nan & False
        if (n := _count(nan)) and self.first_nan < 0:
            self.first_nan = offset + int(nan.argmax()) * kind.width
        if (m := _count(inf)) and self.first_inf < 0:
            self.first_inf = offset + int(inf.argmax()) * kind.width
        self.nan += n
        self.inf += m
        return patterns[~(nan | inf)]

    @property
    def largest(self) -> int:
        return max(self.high, self.low)

    def stats(self, t: Tensor, absurd: int) -> Stats:
        """Return the counts of a tensor with ``absurd`` absurd numbers, and its extremes and distribution."""
        low = self.low | self.sign if self.low >= 0 else self.high_end if self.high >= 0 else None
        high = self.high if self.high >= 0 else self.low_end | self.sign if self.low >= 0 else None
        least, most = (None if p is None else value(p, self.kind) for p in (low, high))
        counts = (self.count, self.nan, self.inf, self.denormal, absurd, self.zeros)
        return Stats(t.name, t.dtype, *counts, least, most, self._magnitudes())


def _count(mask: Any) -> int:
    return int(np.count_nonzero(mask))


Ranges = list[tuple[int, int]]
"""(start, stop) in bytes of the file; each range holds a whole count of numbers."""


def _find_own_bytes(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[Tensor, Kind, Ranges]]:
    """Yield each float tensor with its byte ranges, in file order; the first tensor gets shared bytes."""
    end = 0
    runs_of = (
        (i, t.pieces or ((t.offset, t.nbytes),)) for i, t in enumerate(tensors) if t.offset is not None
    )
    ranges_by_offset = sorted((at, -length, i) for i, runs in runs_of for at, length in runs if length > 0)
    for i, runs in groupby(ranges_by_offset, key=itemgetter(2)):
        kind, ranges = KINDS.get(tensors[i].dtype), Ranges()
        for offset, length, _ in runs:
            start, stop = max(offset, end), offset - length
            if offset < 0 or stop > size:
                continue
            end = max(end, stop)
            if kind is not None:
                start = offset + -(-(start - offset) // kind.width) * kind.width
                stop -= (stop - start) % kind.width
                if start < stop:
                    ranges.append((start, stop))
        if kind is not None and ranges:
            yield tensors[i], kind, ranges


def _chunks(
    source: Source, kind: Kind, ranges: Ranges, buffer: memoryview, progress: Progress | None
) -> Iterator[tuple[int, Patterns]]:
    """Yield (file offset, bit patterns) of each chunk; the patterns are valid until the next chunk."""
    for start, stop in ranges:
        for at in range(start, stop, CHUNK):
            part = buffer[: min(CHUNK, stop - at)]
            source.readinto(at, part)
            if progress:
                progress(len(part))
            yield at, np.frombuffer(part, f"<u{kind.width}")


class _Absurd(Struct, frozen=True):
    """The count of the absurd numbers of a tensor, the byte offset of the first, and its value."""

    count: int = 0
    offset: int = -1
    value: float = 0.0


def _find_absurd(source: Source, kind: Kind, ranges: Ranges, buffer: memoryview) -> _Absurd:
    """Return the absurd numbers of a tensor, in two more passes; few tensors need this.

    A number is absurd if it is finite, at least 2**kind.absurd, and at least 2**kind.apart times the median
    magnitude of all numbers that are not zero, NaN or infinite.
    Numbers that somebody chose are not: the largest of the type, round decimal ones (masks), and a single
    value that occurs more than once.
    """
    sign, bins = 1 << (8 * kind.width - 1), np.zeros(1 << (8 * kind.width - kind.mantissa - 1), np.int64)
    for _, patterns in _chunks(source, kind, ranges, buffer, None):
        magnitudes = patterns & (sign - 1)
        exponents = (magnitudes[magnitudes != 0] >> kind.mantissa).astype(np.int64)
        bins += np.bincount(exponents, minlength=bins.size)
    bins[-1] = 0
    middle = int(np.searchsorted(np.cumsum(bins), (int(bins.sum()) + 1) // 2))
    least = min(max(kind.absurd + kind.bias, middle + kind.apart) << kind.mantissa, kind.special)
    count, first, first_pattern, kinds = 0, -1, 0, set[int]()
    on_purpose = np.array(sorted(list_chosen(kind)), f"<u{kind.width}")
    for at, patterns in _chunks(source, kind, ranges, buffer, None):
        magnitudes = patterns & (sign - 1)
        hit = (magnitudes >= least) & (magnitudes < kind.special)
        if not hit.any():
            continue
        hit &= ~np.isin(magnitudes, on_purpose)
        found = patterns[hit]
        if found.size and first < 0:
            first, first_pattern = at + int(hit.argmax()) * kind.width, int(found[0])
        count += found.size
        if len(kinds) < 2:
            kinds.update(map(int, np.unique(found)[:2]))
    if count > 1 and len(kinds) == 1:
        return _Absurd()
    return _Absurd(count, first, value(first_pattern, kind))


def values(source: Source, anatomy: Anatomy, progress: Progress | None = None) -> Iterator[Finding]:
    """Read every number of every float tensor once, in file order, and yield findings on NaN, infinities and
    absurd numbers. Sets ``anatomy.stats`` to the counts.

    A NaN is a warning; an infinity is a note, for masks hold them. Memory does not grow with the file. Raises
    ShortRead and OSError.
    """
    buffer, scratch = memoryview(bytearray(CHUNK)), np.empty(CHUNK, np.uint8)
    out: list[Stats] = []
    listed, more = 0, Counter[str]()
    for t, kind, ranges in _find_own_bytes(anatomy.tensors, source.size):
        tally = _Counts(kind, scratch.view(f"<u{kind.width}"))
        for at, patterns in _chunks(source, kind, ranges, buffer, progress):
            tally.add(patterns, at)
        # float16 vectors of running variances hold ratios as large as a flipped bit makes.
        large = kind.absurd > 0 and tally.largest >> kind.mantissa >= kind.absurd + kind.bias
        is_suspicious = large and tally.count >= ENOUGH and (len(t.shape) > 1 or kind.bias > 15)
        strange = _find_absurd(source, kind, ranges, buffer) if is_suspicious else _Absurd()
        out.append(tally.stats(t, strange.count))
        new = list(_say_strange(t, tally, strange))
        listed += bool(new)
        if listed <= LISTED:
            yield from new
        else:
            more.update(f.code for f in new)
    for code, n in more.items():
        yield finding(code, f"and {n} more tensors")
    anatomy.stats = out


def _say_strange(t: Tensor, tally: _Counts, absurd: _Absurd) -> Iterator[Finding]:
    values = f"of {tally.count} values of {t.name[:200]!r} are"
    if tally.nan:
        yield finding("nan-values", f"{tally.nan} {values} NaN", offset=tally.first_nan)
    if tally.inf:
        yield finding("inf-values", f"{tally.inf} {values} infinite", offset=tally.first_inf)
    if absurd.count:
        what = f"{absurd.count} {values} absurd beside the others, the first is {absurd.value:.3g}"
        why = f"{what}: a flipped bit of the exponent does this"
        yield finding("absurd-values", why, offset=absurd.offset)


# ---- how far apart the numbers of two tensors are

_SPAN = 1 << 20
"""Bytes that are read of each side at a time."""
_CODES = {f"{kind}{8 * n}": f"<{kind[0]}{n}" for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)}
_CODES |= {"bool": "u1", "bfloat16": "<u2"} | {
    dtype: "u1" for dtype, kind in KINDS.items() if kind.width == 1
}
"""How NumPy reads an element of each type of real numbers, before it is translated."""


@cache
def _list_values(dtype: str) -> npt.NDArray[np.float64]:
    """Return the numbers that the 256 patterns of a type of one byte stand for; NaN if they are none."""
    kind = KINDS[dtype]
    finite = (p == 0x80 if kind.fnuz else p & 0x7F >= kind.special for p in range(256))
    return np.array([math.nan if none else value(p, kind) for p, none in enumerate(finite)])


def _decode(raw: bytes, dtype: str) -> npt.NDArray[Any]:
    patterns: npt.NDArray[Any] = np.frombuffer(raw, _CODES[dtype])
    if dtype == "bfloat16":
        patterns = (patterns.astype("<u4") << 16).view("<f4")
    elif dtype in KINDS and patterns.itemsize == 1:
        patterns = _list_values(dtype)[patterns]
    return patterns.astype("g" if dtype in ("int64", "uint64") else "f8")


def _read_runs(source: Source, runs: Runs, progress: Progress) -> Iterator[bytes]:
    for at, length in runs:
        for begin in range(at, at + length, _SPAN):
            raw = source.read(begin, min(_SPAN, at + length - begin))
            progress(len(raw))
            yield raw


def find_largest_difference(
    a: Source, b: Source, runs: tuple[Runs, Runs], dtype: str, progress: Progress
) -> float | None:
    """Return how far apart two numbers at one place of a tensor are at most; infinity if only one of them is
    NaN, or infinite. None for other types than real numbers, and if the files split the tensor differently.
    Raises ShortRead and OSError.
    """
    lengths = [[length for _, length in side] for side in runs]
    if dtype not in _CODES or lengths[0] != lengths[1]:
        return None
    if any(length % np.dtype(_CODES[dtype]).itemsize for length in lengths[0]):
        return None
    largest = 0.0
    for one, other in zip(_read_runs(a, runs[0], progress), _read_runs(b, runs[1], progress), strict=True):
        if one == other:
            continue
        x, y = _decode(one, dtype), _decode(other, dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
        largest = max(largest, math.inf if np.isnan(apart).any() else float(apart.max()))
    return largest
