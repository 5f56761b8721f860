"""Pair the files of two checkpoints by their place in the layout, whatever steps their names tell."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
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

    @property
    def what(self) -> Hashable:
        p = self.part
        return p and (p.layout, p.piece, p.role, p.rank, p.coords)

    @property
    def whose(self) -> Hashable:
        """Without the piece: a dying gasp beside a periodic save of the same rank."""
        return self.part and (self.part.role, self.part.rank, self.part.coords)

    @property
    def when(self) -> Hashable:
        p = self.part
        return p and (p.step, p.epoch, p.step_in_epoch, p.generation)

    @property
    def shape(self) -> str:
        """The name without its numbers."""
        return _NUMBER.sub("#", self.name)


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


_KEYS: tuple[tuple[bool, Key], ...] = (
    (False, lambda f: f.what),
    (False, lambda f: (f.what, f.part and f.part.prefix)),
    (True, lambda f: (f.what, f.when)),
    (True, lambda f: (f.what, f.when, f.part and f.part.prefix)),
)
"""What tells the parts of one side apart, and whether that takes several checkpoints."""


def match(a: Sequence[File], b: Sequence[File]) -> list[Pair]:
    """Return pairs in the order of names; a file without a counterpart is paired with None.

    Parts of a layout are matched by piece, role, rank and coordinates; where a side holds several
    checkpoints, by step too. All others by name.
    """
    several, key = next((row for row in _KEYS if all(_is_unique(row[1], side) for side in (a, b))), _KEYS[-1])
    pairs = list[Pair]()
    _match_by(key, _only_parts(a), _only_parts(b), pairs)
    left = _match_by(lambda f: f.name, *_find_left(a, b, pairs), pairs)
    _match_by(lambda f: (f.whose, several and f.when), _only_parts(left[0]), _only_parts(left[1]), pairs)
    left = _find_left(a, b, pairs)
    if not several:
        left = _match_by(_drop_steps(*left), *left, pairs)
    pairs += [*((f, None) for f in left[0]), *((None, f) for f in left[1])]
    return sorted(pairs, key=lambda p: next(f.name for f in p if f is not None))


def _only_parts(side: Sequence[File]) -> list[File]:
    return [f for f in side if f.part is not None]


def _is_unique(key: Key, side: Sequence[File]) -> bool:
    keys = [key(f) for f in _only_parts(side)]
    return len(keys) == len(set(keys))


def _find_left(a: Sequence[File], b: Sequence[File], pairs: Sequence[Pair]) -> tuple[list[File], list[File]]:
    paired_a, paired_b = ({id(pair[i]) for pair in pairs} for i in (0, 1))
    return [f for f in a if id(f) not in paired_a], [f for f in b if id(f) not in paired_b]


def _match_by(
    key: Key, a: Sequence[File], b: Sequence[File], pairs: list[Pair]
) -> tuple[list[File], list[File]]:
    """Pair the files whose key is that of exactly one file of each side, and return the others."""
    places: dict[Hashable, tuple[list[File], list[File]]] = defaultdict(lambda: ([], []))
    for i, side in enumerate((a, b)):
        for f in side:
            places[key(f)][i].append(f)
    pairs += ((one[0], two[0]) for one, two in places.values() if len(one) == len(two) == 1)
    return _find_left(a, b, pairs)


def _drop_steps(a: Sequence[File], b: Sequence[File]) -> Key:
    """Return as key the name without the numbers that each side has one value of, and not the same."""
    numbers: dict[str, tuple[list[list[str]], list[list[str]]]] = defaultdict(lambda: ([], []))
    for i, side in enumerate((a, b)):
        for f in side:
            numbers[f.shape][i].append(_NUMBER.findall(f.name))
    dropped = dict[str, set[int]]()
    for shape, sides in numbers.items():
        one, two = ([set(map(int, column)) for column in zip(*rows, strict=True)] for rows in sides)
        columns = enumerate(zip(one, two, strict=False))  # nothing where a side has no such names
        dropped[shape] = {i for i, (x, y) in columns if len(x) == len(y) == 1 and x != y}

    def key(f: File) -> Hashable:
        steps = dropped.get(f.shape, ())
        return f.shape, tuple(n for i, n in enumerate(_NUMBER.findall(f.name)) if i not in steps)

    return key
