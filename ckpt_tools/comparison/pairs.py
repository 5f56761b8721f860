"""Pair the files of two checkpoints by their place in the layout, whatever steps their names tell."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.reading.session import Session

_NUMBER = re.compile(r"[0-9]+")


class File(NamedTuple):
    """One file of a side. ``name`` is its path below the directory or behind the prefix that was asked for,
    ``size`` in bytes (-1 when there is none to read).
    """

    path: str
    name: str
    size: int
    part: Part | None = None
    seen: tuple[Finding, ...] = ()


Pair = tuple["File | None", "File | None"]
Key = Callable[[File], Hashable]


def files(s: Session) -> list[File]:
    """Every checkpoint file of a session, those included that only an index names, by name."""
    s.add_members()

    def name(path: str) -> str:
        if s.found.tree:
            return os.path.relpath(path, s.root)
        return os.path.relpath(path, os.path.dirname(s.root)) if s.found.alone else path[len(s.root) :]

    found = [File(p.path, name(p.path), p.size, p, p.findings) for p in s.parts]
    # a seal only where it is itself what was asked about
    bare = [*s.found.bare, *(seal for seal in s.found.seals if seal.path == s.root)]
    found += (File(path, name(path), size, None, seen) for path, size, _, seen in bare)
    return sorted(found, key=lambda f: f.name)


def _what(f: File) -> Hashable:
    assert f.part is not None  # noqa: S101 - asked about parts only; for the type checker
    return f.part.layout, f.part.piece, f.part.role, f.part.rank, f.part.coords


def _whose(f: File) -> Hashable:
    """Without the piece: a dying gasp beside a periodic save of the same rank."""
    assert f.part is not None  # noqa: S101 - as above
    return f.part.role, f.part.rank, f.part.coords


def _when(f: File) -> Hashable:
    assert f.part is not None  # noqa: S101 - as above
    return f.part.step, f.part.epoch, f.part.step_in_epoch, f.part.generation


def _prefix(f: File) -> Hashable:
    return f.part.prefix if f.part else ""


def _unique(side: Iterable[File], key: Key) -> bool:
    keys = [key(f) for f in side]
    return len(keys) == len(set(keys))


class _Matcher:
    """Files of both sides that have no counterpart yet, and the pairs made so far."""

    def __init__(self, a: Sequence[File], b: Sequence[File]) -> None:
        self.a, self.b, self.pairs = list(a), list(b), list[Pair]()

    def match(self, key: Key, asked: Callable[[File], bool] = lambda _: True) -> None:
        """Pair the files whose key is that of exactly one file of each side."""
        places: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, found in enumerate((self.a, self.b)):
            for at, f in enumerate(found):
                if asked(f):
                    places[key(f)][side].append(at)
        new = {one[0]: two[0] for one, two in places.values() if len(one) == len(two) == 1}
        self.pairs += ((self.a[one], self.b[two]) for one, two in new.items())
        paired = set(new.values())
        self.a = [f for at, f in enumerate(self.a) if at not in new]
        self.b = [f for at, f in enumerate(self.b) if at not in paired]


def _steps_dropped(a: Sequence[File], b: Sequence[File]) -> Key:
    """The name without the numbers that tell the step, in names that no layout knows.

    Those are the numbers that have one value in all files of one side, and another one in all of the other.
    """
    numbers: dict[str, tuple[list[list[str]], list[list[str]]]] = defaultdict(lambda: ([], []))
    for i, side in enumerate((a, b)):
        for f in side:
            numbers[_shape(f)][i].append(_NUMBER.findall(f.name))
    dropped = {shape: _steps(one, two) for shape, (one, two) in numbers.items()}

    def key(f: File) -> Hashable:
        steps = dropped.get(_shape(f), ())
        return _shape(f), tuple(n for i, n in enumerate(_NUMBER.findall(f.name)) if i not in steps)

    return key


def _shape(f: File) -> str:
    """The name without its numbers."""
    return _NUMBER.sub("#", f.name)


def _steps(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> set[int]:
    """Which of the numbers in names of one shape are one value on each side, and not the same."""
    values_a = [set(map(int, column)) for column in zip(*a, strict=True)]
    values_b = [set(map(int, column)) for column in zip(*b, strict=True)]
    columns = enumerate(zip(values_a, values_b, strict=False))  # nothing where a side has no such names
    return {i for i, (x, y) in columns if len(x) == len(y) == 1 and x != y}


_KEYS: tuple[tuple[bool, Key], ...] = (
    (False, _what),
    (False, lambda f: (_what(f), _prefix(f))),
    (True, lambda f: (_what(f), _when(f))),
    (True, lambda f: (_what(f), _when(f), _prefix(f))),
)
"""What tells the parts of one side apart, and whether that is needed because there are several
checkpoints.
"""


def match(a: Sequence[File], b: Sequence[File]) -> list[Pair]:
    """Pairs in the order of names; a file without a counterpart is paired with None.

    Parts of a layout are matched by piece, role, rank and coordinates; where a side holds several
    checkpoints, by step too. All others by name.
    """
    parts = [[f for f in side if _is_part(f)] for side in (a, b)]
    unique = (row for row in _KEYS if all(_unique(side, row[1]) for side in parts))
    several, key = next(unique, _KEYS[-1])
    m = _Matcher(a, b)
    m.match(key, _is_part)
    m.match(lambda f: f.name)
    m.match(lambda f: (_whose(f), _when(f) if several else None), _is_part)
    if not several:
        m.match(_steps_dropped(m.a, m.b))
    lone: list[Pair] = [*((f, None) for f in m.a), *((None, f) for f in m.b)]
    return sorted([*m.pairs, *lone], key=lambda p: next(f.name for f in p if f is not None))


def _is_part(f: File) -> bool:
    return f.part is not None
