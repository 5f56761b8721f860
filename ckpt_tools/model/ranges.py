"""Ranks and numbered names as ranges, in full, for messages and for JSON. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

Ranges = tuple[tuple[int, int], ...]
"""(first, last) of each range of consecutive numbers, ascending."""
_FEW = 3
"""Consecutive numbers from which on a range is shorter than a list."""


def ranges(numbers: Iterable[int]) -> Ranges:
    """Return numbers, in any order and also repeated, as ranges."""
    out: list[tuple[int, int]] = []
    for n in sorted(set(numbers)):
        if out and n == out[-1][1] + 1:
            out[-1] = out[-1][0], n
        else:
            out.append((n, n))
    return tuple(out)


def gaps(present: Iterable[int], world: int) -> Ranges:
    """Return the ranks below ``world`` that are not in ``present``; there may be a million of them."""
    out, following = list[tuple[int, int]](), 0
    for first, last in (*ranges(n for n in present if 0 <= n < world), (world, world)):
        if following < first:
            out.append((following, first - 1))
        following = last + 1
    return tuple(out)


def size(spans: Ranges) -> int:
    """Return how many numbers the ranges have."""
    return sum(last - first + 1 for first, last in spans)


def words(spans: Ranges) -> str:
    """Return a text of numbers and of ranges with at least three numbers, joined by commas."""
    pieces = [",".join(map(str, range(a, b + 1))) if b - a + 1 < _FEW else f"{a}–{b}" for a, b in spans]
    return ",".join(pieces).replace(",", ", ")


def ranks(spans: Ranges, world: int) -> str:
    """Return a text such as ``rank 3``, or ``512 of 1,024 ranks:`` and all ranks, however many."""
    return (
        f"rank {spans[0][0]}" if size(spans) == 1 else f"{size(spans):,} of {world:,} ranks: {words(spans)}"
    )


def places(coordinates: Iterable[tuple[tuple[str, int], ...]]) -> str:
    """Return coordinates as a text such as ``tp=0 pp=1,2, tp=1 pp=0``, with ranges along the last axis."""
    rows: dict[tuple[tuple[str, int], ...], dict[str, set[int]]] = {}
    for coords in sorted(coordinates):
        axis, at = coords[-1] if coords else ("", 0)
        rows.setdefault(coords[:-1], {}).setdefault(axis, set()).add(at)
    texts = []
    for before, last in rows.items():
        for axis, values in last.items():
            numbers = words(ranges(values)).replace(", ", ",")
            texts.append(" ".join([*(f"{a}={n}" for a, n in before), f"{axis}={numbers}"]))
    return ", ".join(texts)


_NUMBER = re.compile(r"(\d{1,18})")


def names(file_names: Iterable[str]) -> str:
    """Return file names as a text, names that differ by one number together: ``__{0, 2}_0.distcp``."""
    distinct = sorted(set(file_names))
    most = max((len(_NUMBER.split(name)) for name in distinct), default=0)
    shortest = min((_group_by_number(distinct, at) for at in range(1, max(most, 2), 2)), key=len)
    texts = []
    for (before, width, behind), numbers in shortest.items():
        text = numbers[0]
        if len(numbers) > 1:
            pairs = [dict.fromkeys(pair) for pair in ranges(map(int, numbers))]
            text = f"{{{', '.join('–'.join(str(n).zfill(width) for n in pair) for pair in pairs)}}}"
        texts.append(f"{before}{text}{behind}")
    return ", ".join(texts)


def _group_by_number(file_names: Iterable[str], at: int) -> dict[tuple[str, int, str], list[str]]:
    """Return (text before, width, text behind) -> the numbers at piece ``at`` of the names, which are split
    around their numbers. The width, 0 for none, keeps leading zeros. A name without such a number is the text
    before, its number "" and its width -1.
    """
    rows: dict[tuple[str, int, str], list[str]] = {}
    for name in file_names:
        pieces = _NUMBER.split(name)
        number = pieces[at] if at < len(pieces) else ""
        width = len(number) if number.startswith("0") and number != "0" else 0 if number else -1
        rows.setdefault(("".join(pieces[:at]), width, "".join(pieces[at + 1 :])), []).append(number)
    return rows


def tensor_names(tensors: Collection[str]) -> str:
    """Return tensor names as a text, names that differ by one number together; of more than 64 the first."""
    first = sorted(tensors)[:64]
    more = f" and {len(tensors) - len(first):,} more" if len(tensors) > len(first) else ""
    return names(name[:200] for name in first) + more
