"""The pieces whose files a directory may have: its path is matched once, then each file by its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.layouts.common.layout import Layout
from ckpt_tools.layouts.common.piece import Claim, Piece, Where
from ckpt_tools.layouts.common.templates import FIELD, NUMBERS, Outlines, compile_name, read_path, unmark

_NUMBERS_OF_PART = ("rank", "generation", "step", "epoch", "step_in_epoch")
_COORDS = frozenset(NUMBERS).difference(_NUMBERS_OF_PART)
Fields = Mapping[str, "str | None"]
"""The groups of a template's expression -> the text of a name that each matched."""


class NameFields(NamedTuple):
    """What a file's ``whole`` name tells; ``piece`` is an index into the pieces of its directory."""

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
    """A piece that one directory may have, and what its path alone (``fields``) tells about such files."""

    __slots__ = (
        *("base", "coords", "epoch", "generation", "home", "layout", "piece", "prefix"),
        *("rank", "step", "step_in_epoch", "sure", "unfinished"),
    )

    def __init__(self, layout: Layout, piece: Piece, fields: Fields, base: str, home: str) -> None:
        self.layout, self.piece, self.base, self.home = layout, piece, base, home
        self.sure = piece.claim in (Claim.SURE, Claim.INDEX)
        self.rank, self.generation, self.step, self.epoch, self.step_in_epoch = _read_numbers(fields)
        self.prefix = fields.get("prefix") or fields.get("run") or ""
        self.unfinished = piece.is_unfinished or bool(fields.get("tmp"))
        self.coords = _read_coords(fields)


def _read_numbers(fields: Fields) -> list[int | None]:
    """Return rank, generation, step, epoch and step in the epoch, None for a field that matched nothing."""
    return [int(digits) if (digits := fields.get(name)) else None for name in _NUMBERS_OF_PART]


def _read_coords(fields: Fields) -> tuple[tuple[str, int], ...]:
    """Return the parallel coordinates in the fields of a name, such as (("tp", 1), ("pp", 0))."""
    return tuple((axis, int(digits)) for axis, digits in fields.items() if axis in _COORDS and digits)


class _PieceInDirectory(NamedTuple):
    """A piece in directories whose last ``names`` fit these templates; () for any directory."""

    order: int
    layout: Layout
    piece: Piece
    names: tuple[str, ...]


def _compute_sort_key(entry: _PieceInDirectory) -> tuple[bool, bool, bool, int]:
    """Return the sort key of a piece: pieces whose names prove little are tried last."""
    claim = entry.piece.claim
    return claim is Claim.DESCRIBED, claim is Claim.WEAK, not entry.names, entry.order


class _Node(Struct, eq=False):
    """A node of a tree of templates, read from the end of a path: directories whose last names fit them."""

    number: int
    pieces: list[_PieceInDirectory] = field(default_factory=list)
    above: dict[str, _Node] = field(default_factory=dict)  # by the template of the next name up
    repeats: tuple[str, ...] = ()  # the templates of all its names, if two of them tell the same number
    outlines: Outlines | None = None

    def agrees(self, names: Sequence[str]) -> bool:
        """Return True if the names of a path tell the same number wherever they tell it."""
        return read_path(self.repeats, [*map(unmark, names)]) is not None


@lru_cache(200)  # what lies in one directory has the same names above it
def _find_above(node: _Node, name: str) -> list[_Node]:
    """Return the nodes above whose template ``name``, the next name up a path, fits as it is or unmarked."""
    node.outlines = node.outlines or Outlines(node.above)
    above = list(node.above.items())
    candidates = [above[i] for i in node.outlines.find(name)]
    fitting = {found: template for template, found in candidates if compile_name(template).fullmatch(name)}
    final_name = unmark(name)
    if final_name != name and all(compile_name(t).fullmatch(final_name) for t in fitting.values()):
        fitting |= dict.fromkeys(_find_above(node, final_name), "")  # no framework's names end so
    return list(fitting)


class _Arranged:
    """The pieces of directories that the same templates fit, in the order in which file names are tried."""

    def __init__(self, entries: list[_PieceInDirectory]) -> None:
        self.entries = entries
        self.pieces = [entry.piece for entry in entries]
        self._outlines = Outlines(piece.file_template for piece in self.pieces)
        self.read = lru_cache(1000)(self._read)  # directories of saves and of ranks repeat names

    def _read(self, name: str, after: int) -> NameFields | None:
        """Return what a file's name tells by the first piece behind index ``after`` that it fits; or None."""
        for i in self._outlines.find(name, after):
            piece = self.pieces[i]
            if m := piece.file.fullmatch(name):
                fields = m.groupdict()
                rank, generation, step, epoch, step_in_epoch = _read_numbers(fields)
                if generation is None and "generation" in fields:
                    generation = 0
                prefix = "" if piece.claim is Claim.WEAK else fields.get("prefix") or fields.get("run") or ""
                values = rank, prefix, generation, step, epoch, step_in_epoch
                return NameFields(i, *values, bool(fields.get("tmp")), _read_coords(fields), name)
        return None


class Templates:
    """All layouts' pieces by directory; pieces with Claim.DESCRIBED are among them only for a ``listing``."""

    def __init__(self, layouts: Iterable[Layout], *, listing: bool) -> None:
        self._arranged: dict[tuple[int, ...], _Arranged] = {}
        self._top, self._directories = _Node(0), 1
        pieces = ((layout, piece) for layout in layouts for piece in layout.pieces)
        for order, (layout, piece) in enumerate(pieces):
            if piece.claim is Claim.DESCRIBED and not listing:
                continue
            names = tuple(piece.template.split("/")[:-1])
            self._add_node(names).pieces.append(_PieceInDirectory(order, layout, piece, names))

    def _add_node(self, names: tuple[str, ...]) -> _Node:
        """Return the node of directories whose last names these templates fit; add it if there is none."""
        node = self._top
        for name in reversed(names):
            if name not in node.above:
                node.above[name] = _Node(self._directories)
                self._directories += 1
            node = node.above[name]
        if not node.pieces:
            fields = [field for field, _ in FIELD.findall("/".join(names)) if field in NUMBERS]
            node.repeats = names if len(fields) > len(set(fields)) else ()
        return node

    def places(self, path: str) -> Places:
        """Return the pieces whose directory fits the end of ``path``; pieces of any directory come last."""
        names = path.split("/")[1:]
        found = level = [self._top]
        for name in reversed(names):
            level = [above for node in level for above in _find_above(node, name)]
            found = found + level
        found = [node for node in found if node.pieces and (not node.repeats or node.agrees(names))]
        matched = tuple(sorted([node.number for node in found]))
        if matched not in self._arranged:
            entries = sorted((entry for node in found for entry in node.pieces), key=_compute_sort_key)
            self._arranged.setdefault(matched, _Arranged(entries))
        return Places(path, self._arranged[matched])


class Places(Sequence[Place]):
    """The pieces that one directory may have, in the order in which names are tried, made when needed."""

    __slots__ = ("_made", "arranged", "directory", "path")

    def __init__(self, path: str, arranged: _Arranged) -> None:
        self.path, self.arranged = path, arranged
        self.directory = f"{path.rstrip('/')}/"
        self._made: dict[int, Place] = {}

    @property
    def pieces(self) -> list[Piece]:
        return self.arranged.pieces

    def read_name(self, name: str, after: int = -1) -> NameFields | None:
        """Return what a name tells by the first piece behind index ``after`` that it fits; else None."""
        return self.arranged.read(name, after)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, i: int) -> Place:  # type: ignore[override]  # nobody asks for slices
        if i not in self._made:
            self._made[i] = self._make_place(self.arranged.entries[i])
        return self._made[i]

    def _make_place(self, entry: _PieceInDirectory) -> Place:
        """Return what the directory's path tells about files of a piece: see ``Part`` for base and home."""
        layout, piece = entry.layout, entry.piece
        if not entry.names:
            return Place(layout, piece, {}, self.path, self.path if piece.where is Where.HERE else "")
        names = self.path.split("/")
        top = len(names) - len(entry.names)
        base = intern("/".join(names[:top]) or "/")  # the same for every directory of a checkpoint
        home = intern("/".join(names[: top + piece.home])) if piece.home or piece.where is Where.HERE else ""
        # the path is read again rather than kept in memory: many directories of a tree fit many templates
        fields = read_path(entry.names, names)
        final_names = names if fields is not None else [*map(unmark, names)]
        place = Place(layout, piece, fields or read_path(entry.names, final_names) or {}, base, home)
        place.unfinished |= final_names != names
        return place
