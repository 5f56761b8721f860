"""The map of a file's bytes: what each range is and what protects it (--explain-bytes)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpt_tools.checksum import covered
from ckpt_tools.formats import Anatomy
from ckpt_tools.model.report import Guard, Region


def regions_of(anatomy: Anatomy, size: int) -> tuple[Region, ...]:
    """The map of a file's bytes, in file order, without hole or overlap: checksums first, then what the
    format explained.

    Bytes that nobody explained are said to be so: in a file that is whole there are none.
    """
    spans = [Region(a, b - a, s.what, Guard.CHECKSUM) for a, b, s in covered(anatomy.sums)]
    for layer in (sorted(anatomy.regions or ()), [Region(0, size, "unexplained", Guard.UNPROTECTED)]):
        spans = sorted([*spans, *_within(layer, _gaps(spans, size))], key=lambda span: span[:2])
    out, at = [], 0
    for r in spans:
        stop = r.offset + r.length
        if at < stop <= size:
            start = max(r.offset, at)
            out.append(r._replace(offset=start, length=stop - start))
            at = stop
    return tuple(out)


def _gaps(spans: Iterable[Region], size: int) -> list[tuple[int, int]]:
    """Where the bytes between regions begin and end."""
    free, at = [], 0
    for r in spans:
        begin = min(r.offset, size)
        if begin > at:
            free.append((at, begin))
        at = max(at, r.offset + r.length)
    return [*free, (at, size)] if size > at else free


def _within(regions: Iterable[Region], gaps: list[tuple[int, int]]) -> Iterator[Region]:
    """The pieces of regions, which are in file order, that lie in the gaps."""
    first = 0
    for r in regions:
        stop = r.offset + r.length
        while first < len(gaps) and gaps[first][1] <= r.offset:
            first += 1
        i = first
        while i < len(gaps) and gaps[i][0] < stop:
            start = max(r.offset, gaps[i][0])
            yield r._replace(offset=start, length=min(stop, gaps[i][1]) - start)
            i += 1
