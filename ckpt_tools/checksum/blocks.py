"""A file's content in blocks,
each of which can be checked by itself: no stored checksum lies in two of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from ckpt_tools.checksum.sums import Sum, Unit

MIB = 1 << 20
LEAST, LARGEST = MIB, 64 * MIB
PARTS = 64
"""A file has about so many blocks, of ``LEAST`` to ``LARGEST`` bytes: its grid depends on nothing but the
file, so that what was checked last week is known today, however much is asked for.
"""


class Blocks:
    """The grid of one file: block k has the bytes from ``starts[k]`` to the next start, ``lengths[k]`` of
    which are read. A checksum over more than a block makes one that is as long.
    """

    def __init__(self, starts: Iterable[int] = (), lengths: Iterable[int] = ()) -> None:
        self.starts, self.lengths = array("q", starts), array("q", lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def at(self, offset: int) -> int:
        """The block of a byte."""
        return max(0, bisect_right(self.starts, offset) - 1)


def divided(sums: Sequence[Sum], units: Iterable[Unit], size: int, seated: Container[Unit] = ()) -> Blocks:
    """The grid for the work in ``units``; those that are ``seated`` are read with others."""
    atoms = list[tuple[int, int, int, bool]]()  # start, stop, bytes, whether it may be cut
    hulls: dict[int, tuple[int, int, int]] = {}
    for u in units:
        if u.sum < 0:
            if u not in seated:
                atoms.append((u.offset, u.offset + u.length, u.length, True))
            continue
        ends = (
            [p.offset + p.length for p in sums[u.sum].pieces if not isinstance(p, bytes)]
            if u.piece < 0
            else [u.offset + u.length]
        )
        low, high, n = hulls.get(u.sum, (u.offset, u.offset, 0))
        hulls[u.sum] = min(low, u.offset), max(high, *ends, u.offset), n + u.length * (u not in seated)
    atoms += ((*hull, False) for hull in hulls.values())
    return _gathered(_apart(sorted(atoms)), min(max(size // PARTS, LEAST), LARGEST))


def _apart(atoms: Iterable[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
    """Those that overlap as one."""
    out = list[tuple[int, int, int, bool]]()
    for start, stop, n, free in atoms:
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1]), out[-1][2] + n, False
        else:
            out.append((start, stop, n, free))
    return out


def _gathered(atoms: Iterable[tuple[int, int, int, bool]], most: int) -> Blocks:
    """Blocks of about ``most`` bytes; what may be cut is cut where a page begins, so that none is seen in
    halves.
    """
    starts, lengths, size = [0], list[int](), 0
    for start, stop, n, free in atoms:
        if not free:
            if size >= most // 2 and size + n > most:
                starts.append(start)
                lengths.append(size)
                size = 0
            size += n
            if size >= most:
                starts.append(stop)
                lengths.append(size)
                size = 0
        at = start if free else stop
        while at < stop:
            cut = min(stop, -(-(at + most - size) // MIB) * MIB)
            size, at = size + cut - at, cut
            if size >= most:
                starts.append(at)
                lengths.append(size)
                size = 0
    if lengths and size < most // 2:  # what archives have at their ends is no block of its own
        lengths[-1] += size
    elif size:
        lengths.append(size)
    return Blocks(starts[: len(lengths)], lengths)


class Picked:
    """Blocks that are to be read, which of them were read to their end (``done``), and which do not match
    (``damaged``).
    """

    def __init__(self, blocks: Blocks, numbers: Iterable[int]) -> None:
        self.blocks, self.numbers = blocks, frozenset(numbers)
        self.damaged = set[int]()
        self._left: Counter[int] | None = None

    def of(self, units: Iterable[Unit]) -> list[Unit]:
        """The units that belong to them, those of no checksum cut at their borders."""
        out, starts = list[Unit](), self.blocks.starts
        for u in units:
            k = self.blocks.at(u.offset)
            if u.sum >= 0:
                out += [u] if k in self.numbers else []
                continue
            at, end = u.offset, u.offset + u.length
            while at < end:
                stop = min(end, starts[k + 1]) if k + 1 < len(starts) else end
                if k in self.numbers:
                    out.append(Unit(at, stop - at, u.sum, u.piece))
                at, k = stop, k + 1
        self._left = Counter(self.blocks.at(u.offset) for u in out)
        return out

    def took(self, u: Unit) -> None:
        """A unit is done."""
        assert self._left is not None  # noqa: S101 - for the type checker: of() comes first
        self._left[self.blocks.at(u.offset)] -= 1

    def finish(self) -> None:
        """All were read."""
        self._left = Counter()

    def wrong(self, s: Sum) -> None:
        """A checksum does not match."""
        self.damaged.add(
            self.blocks.at(min((p.offset for p in s.pieces if not isinstance(p, bytes)), default=0))
        )

    @property
    def done(self) -> frozenset[int]:
        left = self._left
        return frozenset() if left is None else frozenset(k for k in self.numbers if not left[k])
