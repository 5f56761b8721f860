"""The map of a file's bytes: what each range is and what protects it (--explain-bytes)."""

from __future__ import annotations

from ckpt_tools.checksum import covered
from ckpt_tools.formats import Anatomy
from ckpt_tools.model.report import Guard, Region


def regions_of(anatomy: Anatomy, size: int) -> tuple[Region, ...]:
    """The map of a file's bytes, in file order, without hole or overlap: checksums first, then what the
    format explained.

    Bytes that nobody explained are said to be so: in a file that is whole there are none.
    """
    spans: list[tuple[int, int, str, Guard]] = [
        (start, stop, s.what, Guard.CHECKSUM) for start, stop, s in covered(anatomy.sums)
    ]
    for layer in (sorted(anatomy.regions or ()), [Region(0, size, "unexplained", Guard.UNPROTECTED)]):
        free, at = [], 0
        for start, stop, *_ in [*spans, (size, size, "", Guard.CHECKSUM)]:
            if start > at:
                free.append((at, start))
            at = max(at, stop)
        new, k = [], 0
        for r in layer:
            start, stop = max(0, r.offset), min(size, r.offset + r.length)
            while k < len(free) and free[k][1] <= start:
                k += 1
            i = k
            while i < len(free) and free[i][0] < stop:
                new.append((max(start, free[i][0]), min(stop, free[i][1]), r.what, r.guard))
                i += 1
        spans = sorted([*spans, *new], key=lambda span: span[:2])
    out, at = [], 0
    for start, stop, what, guard in spans:
        if stop > at and stop <= size:
            out.append(Region(max(start, at), stop - max(start, at), what, guard))
            at = stop
    return tuple(out)
