"""Which pieces are at home in one directory: its path is matched once, so that each file in it costs one look at its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ckpt_tools.layouts.common.layout import NUMBERS, Layout, Piece

Told = tuple[
    int, int | None, str, int | None, int | None, int | None, int | None, bool, tuple[tuple[str, int], ...]
]
"""What a file's name tells: index of the place, rank, prefix, generation, step, epoch, step_in_epoch, unfinished, other coordinates."""

_PART = frozenset({"rank", "step", "epoch", "step_in_epoch", "generation"})
_COORDS = frozenset(NUMBERS) - _PART


class Place:
    """A piece at home in one directory: what the directory's path alone tells (``fields``) about every file of that piece in it."""

    __slots__ = (
        "base",
        "coords",
        "epoch",
        "generation",
        "home",
        "inside",
        "layout",
        "piece",
        "prefix",
        "rank",
        "step",
        "sure",
        "tmp",
    )

    def __init__(
        self, layout: Layout, piece: Piece, fields: dict[str, str | None], base: str, home: str
    ) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.sure = not (piece.weak or piece.companion or piece.described)
        self.step, self.epoch, self.inside, self.rank, self.generation = (
            int(v) if (v := fields.get(k)) else None
            for k in ("step", "epoch", "step_in_epoch", "rank", "generation")
        )
        self.prefix, self.tmp = (
            fields.get("prefix") or fields.get("run") or "",
            piece.unfinished or bool(fields.get("tmp")),
        )
        self.coords = tuple((k, int(v)) for k, v in fields.items() if k in _COORDS and v)


def read_name(name: str, pieces: Sequence[Piece], after: int = -1) -> Told | None:
    """The first of the pieces behind ``after`` that a file's name fits, and what the name alone tells. Rank directories repeat names, so callers keep the answers."""
    for i, piece in enumerate(pieces[after + 1 :], after + 1):
        if name.endswith(piece.suffix) and (m := piece.file.fullmatch(name)):
            g = m.groupdict()
            rank, generation, step, epoch, inside = (
                int(v) if (v := g.get(k)) else None
                for k in ("rank", "generation", "step", "epoch", "step_in_epoch")
            )
            if generation is None and "generation" in g:
                generation = 0
            coords = tuple((k, int(v)) for k, v in g.items() if k in _COORDS and v)
            prefix = "" if piece.weak else g.get("prefix") or g.get("run") or ""
            return i, rank, prefix, generation, step, epoch, inside, bool(g.get("tmp")), coords
    return None


class _Plan:
    """All layouts' pieces by the directories they may be at home in: ``groups`` are (depth, expression for the end of the path, [(order, layout, piece)]),
    ``flat`` those at home anywhere.
    """

    def __init__(self, layouts: tuple[Layout, ...], listing: bool) -> None:
        self.flat: list[tuple[Layout, Piece]] = []
        self.groups: list[tuple[int, re.Pattern[str], list[tuple[int, Layout, Piece]]]] = []
        self._arranged: dict[tuple[int, ...], tuple[list[tuple[int, Layout, Piece]], list[Piece]]] = {}
        homes: dict[tuple[int, str], list[tuple[int, Layout, Piece]]] = {}
        for order, (layout, piece) in enumerate(
            (one, piece) for one in layouts for piece in one.pieces if listing or not piece.described
        ):
            if piece.depth:
                homes.setdefault((piece.depth, piece.directory.pattern), []).append((order, layout, piece))
            else:
                self.flat.append((layout, piece))
        self.groups = [
            (depth, re.compile(pattern), entries)
            for (depth, pattern), entries in sorted(homes.items(), key=lambda row: row[0][0])
        ]

    def arranged(self, matched: tuple[int, ...]) -> tuple[list[tuple[int, Layout, Piece]], list[Piece]]:
        """(index in ``matched`` or -1, layout, piece) in the order in which names are tried where these groups match, and the pieces; the same lists each time."""
        known = self._arranged.get(matched)
        if known is None:
            deep = sorted(
                (
                    (order, at, layout, piece)
                    for at, group in enumerate(matched)
                    for order, layout, piece in self.groups[group][2]
                ),
                key=lambda row: row[0],
            )
            out = [
                *((at, layout, piece) for _, at, layout, piece in deep),
                *((-1, layout, piece) for layout, piece in self.flat),
            ]
            out.sort(
                key=lambda row: (row[2].described, row[2].weak)
            )  # a name that says little is what is left when no other fits
            known = self._arranged.setdefault(matched, (out, [row[2] for row in out]))
        return known


_plan = lru_cache(8)(_Plan)


class Places(Sequence[Place]):
    """The pieces at home in one directory, in the order in which names are tried; each becomes a Place when it has a file: a directory has files of few of them.

    ``pieces`` is the same list for all directories where the same templates match.
    """

    __slots__ = ("_arranged", "_made", "_matches", "path", "pieces")

    def __init__(
        self,
        path: str,
        arranged: list[tuple[int, Layout, Piece]],
        pieces: list[Piece],
        matches: list[tuple[int, dict[str, str | None]]],
    ) -> None:
        self.path, self.pieces, self._arranged, self._matches = path, pieces, arranged, matches
        self._made: dict[int, Place] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, i: int) -> Place:  # type: ignore[override]  # nobody asks for slices
        made = self._made.get(i)
        if made is None:
            at, layout, piece = self._arranged[i]
            if at < 0:
                made = Place(layout, piece, {}, self.path, self.path if piece.here else "")
            else:
                depth, fields = self._matches[at]
                comps = self.path.split("/")
                home = (
                    "/".join(comps[: len(comps) - depth + piece.home])
                    if piece.home
                    else self.path
                    if piece.here
                    else ""
                )
                made = Place(layout, piece, fields, "/".join(comps[:-depth]), home)
            self._made[i] = made
        return made


def places(path: str, layouts: tuple[Layout, ...], listing: bool = False) -> Places:
    """The pieces whose directory template matches the end of ``path``, in the order of the layouts; those at home anywhere come last.

    Only for a ``listing`` the described ones are among them.
    """
    plan = _plan(layouts, listing)
    comps, tail, tailed = path.split("/"), "", 0
    matched, matches = list[int](), list[tuple[int, dict[str, str | None]]]()
    for i, (depth, pattern, _) in enumerate(plan.groups):
        if depth >= len(comps):
            break
        if depth != tailed:
            tail, tailed = "/".join(comps[-depth:]), depth
        if m := pattern.fullmatch(tail):
            matched.append(i)
            matches.append((depth, m.groupdict()))
    return Places(path, *plan.arranged(tuple(matched)), matches)
