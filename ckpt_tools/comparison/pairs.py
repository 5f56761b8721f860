"""The files of two checkpoints -> pairs of files that stand for each other, whatever step their names tell."""

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
    """One file of a side. ``name`` is its path below the directory or behind the prefix that was asked for, ``size`` in bytes (-1 when there is none to read)."""

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
    found += (File(path, name(path), size, None, seen) for path, size, _, seen in s.found.bare)
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
        at: dict[Hashable, tuple[list[File], list[File]]] = defaultdict(lambda: ([], []))
        for i, side in enumerate((self.a, self.b)):
            for f in filter(asked, side):
                at[key(f)][i].append(f)
        new = [(one[0], two[0]) for one, two in at.values() if len(one) == len(two) == 1]
        gone = {id(f) for pair in new for f in pair}
        self.a, self.b = ([f for f in side if id(f) not in gone] for side in (self.a, self.b))
        self.pairs += new


def _steps_dropped(a: Sequence[File], b: Sequence[File]) -> Key:
    """The name without the numbers that are one value in all files of this side and another one in all of the other: a step in names that no layout knows."""
    columns: dict[str, tuple[list[list[str]], list[list[str]]]] = defaultdict(lambda: ([], []))
    for i, side in enumerate((a, b)):
        for f in side:
            columns[_NUMBER.sub("#", f.name)][i].append(_NUMBER.findall(f.name))
    dropped: dict[str, set[int]] = {}
    for shape, (one, two) in columns.items():
        pairs = [
            ({int(n[c]) for n in one}, {int(n[c]) for n in two})
            for c in range(shape.count("#"))
            if one and two
        ]
        dropped[shape] = {c for c, (x, y) in enumerate(pairs) if len(x) == len(y) == 1 and x != y}

    def key(f: File) -> Hashable:
        shape = _NUMBER.sub("#", f.name)
        return shape, tuple(
            n for c, n in enumerate(_NUMBER.findall(f.name)) if c not in dropped.get(shape, ())
        )

    return key


def match(a: Sequence[File], b: Sequence[File]) -> list[Pair]:
    """Pairs in the order of names; a file without a counterpart is paired with None.

    Parts of a layout are matched by piece, role, rank and coordinates; where a side holds several checkpoints, by step too. All others by name.
    """
    sides = [[f for f in side if f.part is not None] for side in (a, b)]
    keys: list[tuple[bool, Key]] = [
        (False, _what),
        (False, lambda f: (_what(f), _prefix(f))),
        (True, lambda f: (_what(f), _when(f))),
        (True, lambda f: (_what(f), _when(f), _prefix(f))),
    ]
    several, key = next((k for k in keys if all(_unique(side, k[1]) for side in sides)), keys[-1])
    m = _Matcher(a, b)

    def is_part(f: File) -> bool:
        return f.part is not None

    m.match(key, is_part)
    m.match(lambda f: f.name)
    m.match(lambda f: (_whose(f), _when(f) if several else None), is_part)
    if not several:
        m.match(_steps_dropped(m.a, m.b))
    lone: list[Pair] = [*((f, None) for f in m.a), *((None, f) for f in m.b)]
    return sorted([*m.pairs, *lone], key=lambda p: next(f.name for f in p if f is not None))
