"""Which pieces are at home in one directory: its path is matched once, so that each file in it costs one test
of its name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from operator import attrgetter
from sys import intern
from typing import NamedTuple

from ckpt_tools.layouts.common.layout import Layout
from ckpt_tools.layouts.common.piece import Claim, Piece, Where
from ckpt_tools.layouts.common.templates import NUMBERS, Edges, compile_template, edges, may_begin_with

_PART = frozenset({"rank", "step", "epoch", "step_in_epoch", "generation"})
_COORDS = frozenset(NUMBERS) - _PART
Fields = dict[str, "str | None"]
"""What the groups of a template's expression matched."""


class NameFields(NamedTuple):
    """What a file's ``whole`` name tells; ``piece`` is the index of its piece among those at home in its
    directory.
    """

    piece: int
    rank: int | None
    prefix: str
    generation: int | None
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    unfinished: bool
    coords: tuple[tuple[str, int], ...]
    whole: str


class Place:
    """A piece at home in one directory: what the directory's path alone tells (``fields``) about every file
    of that piece in it.
    """

    __slots__ = (
        "base",
        "coords",
        "epoch",
        "generation",
        "home",
        "layout",
        "piece",
        "prefix",
        "rank",
        "step",
        "step_in_epoch",
        "sure",
        "unfinished",
    )

    def __init__(self, layout: Layout, piece: Piece, fields: Fields, base: str, home: str) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.sure = piece.claim in (Claim.SURE, Claim.INDEX)
        self.rank = _number(fields, "rank")
        self.generation = _number(fields, "generation")
        self.step = _number(fields, "step")
        self.epoch = _number(fields, "epoch")
        self.step_in_epoch = _number(fields, "step_in_epoch")
        self.prefix = fields.get("prefix") or fields.get("run") or ""
        self.unfinished = piece.is_unfinished or bool(fields.get("tmp"))
        self.coords = _coords(fields)


def _number(fields: Fields, name: str) -> int | None:
    digits = fields.get(name)
    return int(digits) if digits else None


def _coords(fields: Fields) -> tuple[tuple[str, int], ...]:
    return tuple((axis, int(digits)) for axis, digits in fields.items() if axis in _COORDS and digits)


def _fields_of(fields: Fields, index: int, piece: Piece, whole: str) -> NameFields:
    generation = _number(fields, "generation")
    if generation is None and "generation" in fields:
        generation = 0
    return NameFields(
        index,
        _number(fields, "rank"),
        "" if piece.claim is Claim.WEAK else fields.get("prefix") or fields.get("run") or "",
        generation,
        _number(fields, "step"),
        _number(fields, "epoch"),
        _number(fields, "step_in_epoch"),
        bool(fields.get("tmp")),
        _coords(fields),
        whole,
    )


class _AtHome(NamedTuple):
    """A piece that is at home in a directory, and the template that says so; None for a piece that is at home
    anywhere. ``order`` is its place among those of all layouts.
    """

    order: int
    layout: Layout
    piece: Piece
    by: _Directory | None


class _Directory:
    """Pieces that share the template of a directory: it fits the last ``depth`` names of a path."""

    def __init__(self, template: str) -> None:
        self.template, self.depth = template, template.count("/") + 1
        self.pieces: list[_AtHome] = []

    @cached_property
    def edges(self) -> Edges:
        return edges(self.template)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(compile_template(self.template))


class _Tried(NamedTuple):
    """A template that is tried: its number, its depth, and its edges."""

    number: int
    depth: int
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    contained: str


_number_of = attrgetter("number")
_order_of = attrgetter("order")


class _Arranged:
    """The pieces in the order in which names are tried, in directories that the same templates fit."""

    def __init__(self, matched: tuple[int, ...], at_home: list[_AtHome]) -> None:
        self.matched, self.at_home = matched, at_home
        self.pieces = [one.piece for one in at_home]
        self.beginning = cache(self._beginning_with)
        self.read = lru_cache(1000)(self._read)  # directories of saves and of ranks repeat names

    def _read(self, name: str, after: int) -> NameFields | None:
        plain, tried = name.isascii(), self.beginning(name[:1])
        for n in range(bisect_right(tried, after, key=_number_of) if after >= 0 else 0, len(tried)):
            i, _, starts, ends, contained = tried[n]
            fits = contained in name and (not plain or (name.startswith(starts) and name.endswith(ends)))
            if fits and (m := self.pieces[i].file.fullmatch(name)):
                return _fields_of(m.groupdict(), i, self.pieces[i], name)
        return None

    def _beginning_with(self, letter: str) -> list[_Tried]:
        """The pieces that may fit a name which begins so."""
        return [
            _Tried(i, 0, *piece.edges)
            for i, piece in enumerate(self.pieces)
            if may_begin_with(piece.file_template, letter)
        ]


class Templates:
    """All layouts' pieces by the directories they may be at home in, for a ``listing`` also those of what an
    index describes.
    """

    def __init__(self, layouts: Iterable[Layout], *, listing: bool) -> None:
        self._anywhere: list[_AtHome] = []
        self._arranged: dict[tuple[int, ...], _Arranged] = {}
        directories: dict[str, _Directory] = {}
        pieces = ((layout, piece) for layout in layouts for piece in layout.pieces)
        for order, (layout, piece) in enumerate(pieces):
            if piece.claim is Claim.DESCRIBED and not listing:
                continue
            if at := piece.template.rpartition("/")[0]:
                home = directories.setdefault(at, _Directory(at))
                home.pieces.append(_AtHome(order, layout, piece, home))
            else:
                self._anywhere.append(_AtHome(order, layout, piece, None))
        self._directories = sorted(directories.values(), key=lambda directory: directory.depth)
        self._beginning = cache(self._beginning_with)

    def places(self, path: str) -> Places:
        """The pieces whose directory template matches the end of ``path``, in the order of the layouts; those
        at home anywhere come last.
        """
        names, end, end_depth = path.split("/"), "", 0
        deepest = len(names) - 1
        matched = list[int]()
        plain = path.isascii()
        for i, depth, starts, ends, contained in self._beginning(names[-1][:1]):
            if depth > deepest:
                break
            if depth != end_depth:
                end, end_depth = "/".join(names[-depth:]), depth
            # its edges first: each directory of a rank is compared with a hundred templates.
            fits = contained in end and (not plain or (end.startswith(starts) and end.endswith(ends)))
            if fits and self._directories[i].pattern.fullmatch(end):
                matched.append(i)
        return Places(path, self._in_order(tuple(matched)))

    def _beginning_with(self, letter: str) -> list[_Tried]:
        """Which templates may fit a directory whose own name begins so."""
        return [
            _Tried(i, one.depth, *one.edges)
            for i, one in enumerate(self._directories)
            if may_begin_with(one.template.rpartition("/")[2], letter)
        ]

    def _in_order(self, matched: tuple[int, ...]) -> _Arranged:
        """The pieces in the order in which names are tried where these directories match."""
        known = self._arranged.get(matched)
        if known is None:
            deep = sorted((one for i in matched for one in self._directories[i].pieces), key=_order_of)
            at_home = [*deep, *self._anywhere]
            # a name that says little is what is left when no other fits
            at_home.sort(key=lambda one: (one.piece.claim is Claim.DESCRIBED, one.piece.claim is Claim.WEAK))
            known = self._arranged.setdefault(matched, _Arranged(matched, at_home))
        return known


class Places(Sequence[Place]):
    """The pieces at home in one directory, in the order in which names are tried; each becomes a Place when
    it has a file: a directory has files of few of them.

    ``directory`` is its path with a slash behind it. ``matched`` says which templates of directories fit its
    path: where it is the same, so are ``pieces``.
    """

    __slots__ = ("_arranged", "_made", "directory", "path")

    def __init__(self, path: str, arranged: _Arranged) -> None:
        self.path, self._arranged = path, arranged
        self.directory = f"{path.rstrip('/')}/"
        self._made: dict[int, Place] = {}

    @property
    def matched(self) -> tuple[int, ...]:
        return self._arranged.matched

    @property
    def pieces(self) -> list[Piece]:
        return self._arranged.pieces

    def read_name(self, name: str, after: int = -1) -> NameFields | None:
        """The first of the pieces behind ``after`` that a file's name fits, and what the name alone tells."""
        return self._arranged.read(name, after)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, i: int) -> Place:  # type: ignore[override]  # nobody asks for slices
        made = self._made.get(i)
        if made is None:
            made = self._made[i] = self._place(self._arranged.at_home[i])
        return made

    def _place(self, one: _AtHome) -> Place:
        layout, piece = one.layout, one.piece
        if one.by is None:
            return Place(layout, piece, {}, self.path, self.path if piece.where is Where.HERE else "")
        names, depth = self.path.split("/"), one.by.depth
        top = len(names) - depth + piece.home
        home = intern("/".join(names[:top])) if piece.home or piece.where is Where.HERE else ""
        # matched again rather than kept: many directories of a tree fit many templates
        m = one.by.pattern.fullmatch("/".join(names[-depth:]))
        base = intern("/".join(names[:-depth]) or "/")  # the same for every directory of a checkpoint
        return Place(layout, piece, m.groupdict() if m else {}, base, home)
