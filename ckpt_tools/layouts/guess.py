"""The tables of ckpt.toml that describe files which no layout recognises, worked out from their names. Pure.

One number of a name is that of the save: the one that is called step or epoch, else the last that varies and
does not count from 0. Files of one such number are one save, and so are files of one directory without any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from posixpath import commonpath, dirname
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.layouts.common import templates
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.layouts.common.templates import TOKENS, compile_template
from ckpt_tools.layouts.files import numbers_named

_DATE = r"(?<!\d)(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_T. ]?\d\d[-_.]?\d\d(?:[-_.]?\d\d)?)?(?!\d)"
_NUMBER = re.compile(rf"{_DATE}|\d+\.\d+|\d+")
_CALLED = re.compile(
    r"(?<![a-z])(step|iter|iteration|epoch|rank|tp|pp|dp|cp|node|world|shard|layer|expert|of)s?[ _=.-]*\Z"
)
WHEN = frozenset(("step", "epoch"))
ONCE = frozenset(("metric", "date"))
WHOSE = frozenset(("tp", "pp", "dp", "cp", "rank", "node"))
_TRACKER = re.compile(r"latest|last|newest|current|recent|tracker|checkpoint|resume", re.IGNORECASE)
_NOTES = {
    "step": "{step}: no word says what this number is. Write {epoch} if it counts epochs, {rank} if each"
    " rank loads its own file",
    "rank": "{rank}: these numbers count from 0 in each save. Write {shard} if every rank loads all of them",
    "shard": "{shard}: every rank loads all. Write {rank} (and {world} for {of}) if each rank loads its own",
    "name": "{name}: text without a meaning",
}
Reader = Callable[[str], Mapping[str, bytes]]
Look = Callable[[str], tuple[str, str]]
"""Path -> ``optimizer`` of its state alone, else ""; the signature of a model's tensors with that state."""
_ASKED = 3
"""Files of a template that are asked what they hold: some may be damaged."""


class _Row(NamedTuple):
    """One file: the directories above its save, and the numbers of the rest of its path."""

    path: str
    above: str
    numbers: tuple[str, ...]


class GuessedPiece(Struct, frozen=True, dict=True):
    """Files of one template, the runs and numbers of their saves, and what else their names could mean.
    ``sure``: a word tells each number, or it is that of a step and does not count from 0. ``state`` is the
    signature of whole states.
    """

    template: str
    paths: tuple[str, ...]
    fields: frozenset[str]
    notes: tuple[str, ...]
    saves: frozenset[tuple[str, ...]]
    role: str = ""
    sure: bool = True
    state: str = ""

    @cached_property
    def names(self) -> list[re.Pattern[str]]:
        return [re.compile(compile_template(name)) for name in self.template.split("/")]

    def matches(self, path: str) -> bool:
        names = path.split("/")[-len(self.names) :]
        return len(names) == len(self.names) and all(map(re.Pattern.fullmatch, self.names, names))


class Guess(NamedTuple):
    """The pieces of each layout; ``left_out`` are files whose names no template can spell."""

    layouts: tuple[tuple[GuessedPiece, ...], ...]
    left_out: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Return True if all files are of one layout, and names tell which save and rank each is of."""
        return len(self.layouts) == 1 and not self.left_out and all(p.sure for p in self.layouts[0])


def guess(sizes: Mapping[str, int], placed: Collection[str] = (), look: Look = lambda _: ("", "")) -> Guess:
    """Return the layouts of files, from their sizes by path; none fits what another has ``placed``."""
    made: dict[str, GuessedPiece] = {}
    shapes = [_Shape(texts, rows) for texts, rows in _shapes(list(sizes)).items()]
    several = any(field in WHOSE and s.varies(i) for s in shapes for i, field in enumerate(_told(s.texts)))
    for shape in shapes:
        p = _tell_apart(_piece(shape, several), placed)
        if p is not None and not re.search(r"(?:\{name\}[^/]*){3}", p.template):  # too many ways to read it
            known = made.get(p.template, replace(p, paths=(), saves=frozenset()))
            role, state = next(filter(any, map(look, p.paths[-_ASKED:])), (known.role, known.state))
            made[p.template] = replace(
                p, paths=known.paths + p.paths, saves=known.saves | p.saves, role=role, state=state
            )
    layouts = tuple(tuple(_with_roles(pieces, sizes)) for pieces in _layouts(made.values()))
    taken = {path for pieces in layouts for p in pieces for path in p.paths if p.matches(path)}
    return Guess(layouts, tuple(path for path in sizes if path not in taken))


def find_tracker(pieces: Sequence[GuessedPiece], read: Reader) -> dict[str, str]:
    """Return the keys for the small file that is called as a tracker and in each run holds the number or the
    name of a save, if there is one. ``read`` returns the small files of a directory.
    """
    saves: dict[str, set[str]] = {}
    for p in pieces:
        first = -len(p.names)
        for names in (path.split("/") for path in p.paths):
            saves.setdefault("/".join(names[:first]), set()).add(names[first])
    texts = {run: read(run) for run in saves}
    for name in sorted(filter(_TRACKER.search, set.intersection(*map(set, texts.values())))):
        said = [(texts[run][name].decode(errors="replace").strip(), saved) for run, saved in saves.items()]
        if all(text.rstrip("/") in saved for text, saved in said):
            return {"tracker": name, "tracker_holds": "name"}
        if all(text in map(str, map(int, re.findall(r"\d{1,18}", " ".join(saved)))) for text, saved in said):
            return {"tracker": name}
    return {}


def _shapes(paths: Sequence[str]) -> Mapping[tuple[str, ...], list[_Row]]:
    """Return the files whose paths differ in numbers alone below their runs, by the texts around these."""
    shapes: dict[tuple[str, ...], list[_Row]] = {}
    begins = {p: _find_save(p) for p in paths if not any(map(templates.is_begun, p.split("/")))}
    homes = _find_homes([path for path, begin in begins.items() if begin is None])
    for path, begin in begins.items():
        above = homes[path] if begin is None else path[:begin]
        names = path[len(above) :].split("/")
        if begin is None and len(names) > 1 and above:  # its template tells the directory of the save
            names.insert(0, above.split("/")[-2])
        texts = _NUMBER.split("/".join(names))
        shapes.setdefault(tuple(texts), []).append(_Row(path, above, tuple(_NUMBER.findall("/".join(names)))))
    return shapes


def _find_save(path: str) -> int | None:
    """Return the offset of the first name with a number; with one that a word tells where that is a step."""
    names = path.split("/")
    told = [_told(_NUMBER.split(name)) for name in names]
    called = any(WHEN.intersection(fields) for fields in told)
    plain = [any(map(str.isdigit, _NUMBER.findall(name))) for name in names]
    begins = (i for i, fields in enumerate(told) if plain[i] and (any(fields) or not called))
    first = next(begins, None)
    return None if first is None else sum(len(name) + 1 for name in names[:first])


def _find_homes(paths: Sequence[str]) -> Mapping[str, str]:
    """Return the directories of the saves of files without numbers: the one that has them all, if it is not
    the root and no files of the same names lie in each directory of it.
    """
    above = commonpath(list(map(dirname, paths))) if paths else ""
    above += "/" if above else ""
    inside: dict[str, set[str]] = {}
    for head, _, rest in (path[len(above) :].partition("/") for path in paths):
        inside.setdefault(head if rest else "", set()).add(rest or head)
    files = list(inside.values())
    apart = not above or (len(files) > 1 and all(names == files[0] for names in files))
    return {path: path[: path.find("/", len(above)) + 1] if apart else above for path in paths}


def _told(texts: Sequence[str]) -> list[str]:
    """Return the field of each number as the word before it tells, "" where none does."""
    fields: list[str] = []
    for before in texts[:-1]:
        called = _CALLED.search(before.rpartition("/")[2].lower())
        field = ("step" if called[1].startswith("iter") else called[1]) if called else ""
        if field == "of":
            field = {"shard": "of", "rank": "world"}.get(fields[-1] if fields else "", "")
        fields.append(field)
    return fields


class _Shape(Struct, frozen=True, dict=True):
    """Files whose names differ in their numbers: the ``texts`` around them, and a row for each file."""

    texts: tuple[str, ...]
    rows: Sequence[_Row]

    @cached_property
    def columns(self) -> list[tuple[str, ...]]:
        """The values of each number."""
        return [tuple(row.numbers[i] for row in self.rows) for i in range(len(self.texts) - 1)]

    def varies(self, i: int) -> bool:
        return len(set(self.columns[i])) > 1

    def is_plain(self, i: int) -> bool:
        return all(map(str.isdigit, self.columns[i]))

    def repeats(self, i: int, j: int) -> bool:
        """Return True if the number ``i`` is the earlier number ``j`` in each name."""
        mine, other = ([n.lstrip("0") for n in self.columns[k]] for k in (i, j))
        return mine == other

    def of(self, fields: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the run and the numbers of the save of each file."""
        when = [column for column, field in zip(self.columns, fields, strict=True) if field in WHEN]
        return list(zip((row.above for row in self.rows), *when, strict=True))


def _counts(values: Collection[str]) -> bool:
    found = set(map(int, values))
    return found == set(range(len(found)))  # 0, 1, 2 … without a gap


def _piece(shape: _Shape, several: bool) -> GuessedPiece:
    """Return the template of files that differ in their numbers; of ``several`` ranks a lone 0 tells none."""
    told = _told(shape.texts)
    for i in [i for i, field in enumerate(told) if several and field in WHOSE]:
        told[i] = told[i] if any(n.strip("0") for n in shape.columns[i]) else ""
    fields = _fields(shape, told)
    unsaid = {field for field, said in zip(fields, told, strict=True) if field != said} | {"shard"}
    notes = tuple(note for field, note in _NOTES.items() if field in unsaid & set(fields))
    paths = tuple(row.path for row in shape.rows)
    alone = not WHEN & set(fields) and ONCE & set(fields)
    saves = frozenset(zip(paths) if alone else shape.of(fields))
    sure = bool(WHEN & set(fields)) and not any(_doubts(shape, fields, told))
    return GuessedPiece(_written(shape, fields), paths, frozenset(fields), notes, saves, sure=sure)


def _doubts(shape: _Shape, fields: Sequence[str], told: Sequence[str]) -> Iterator[bool]:
    """Yield for each step and rank that no word tells whether it may be the other: it counts from 0."""
    for column, field, said in zip(shape.columns, fields, told, strict=True):
        if field in ("step", "rank") and field != said:
            yield _counts(column)


def _fields(shape: _Shape, told: Sequence[str]) -> list[str]:
    """Return the field of each number, "" where it is part of the name."""
    plain = [i for i in range(len(told)) if shape.is_plain(i)]
    fields = [
        field if i in plain and (field not in told[:i] or shape.repeats(i, told.index(field))) else ""
        for i, field in enumerate(told)
    ]
    if not WHEN & set(fields) and (unnamed := [i for i in plain if not fields[i]]):
        fields[_find_step(shape, unnamed)] = "step"
    for i in [i for i, field in enumerate(fields) if not field and shape.varies(i)]:
        fields[i] = _unnamed(shape, fields, i)
    return fields


def _find_step(shape: _Shape, unnamed: Sequence[int]) -> int:
    steps = [i for i in unnamed if not _counts(shape.columns[i])]
    varying = list(filter(shape.varies, steps)) or steps
    return varying[-1] if varying else next(filter(shape.varies, unnamed), unnamed[0])


def _unnamed(shape: _Shape, fields: Sequence[str], i: int) -> str:
    """Return what a number that varies is although no word says so."""
    if not shape.is_plain(i):
        return "metric" if all(n.count(".") == 1 for n in shape.columns[i]) else "date"
    told = [j for j, field in enumerate(fields) if field and shape.is_plain(j) and shape.repeats(i, j)]
    return fields[told[0]] if told else _within_saves(shape, fields, i)


def _within_saves(shape: _Shape, fields: Sequence[str], i: int) -> str:
    rows = set(zip(shape.of(fields), shape.columns[i], strict=True))
    saves, begun = {save for save, _ in rows}, {save for save, number in rows if not number.strip("0")}
    several = len(rows) > len(saves)
    if several and _counts(shape.columns[i]) and 2 * len(begun) >= len(saves) and not WHOSE & set(fields):
        return "rank"
    return "shard" if several and "shard" not in fields else "name"


def _spell(text: str) -> str:
    return re.sub(r"[][{}]|[<>]+", lambda odd: f"<{odd[0]}>" if odd[0] in "[]{}" else "{name}", text)


def _written(shape: _Shape, fields: Sequence[str]) -> str:
    """Return the template, from the name with the first field on."""
    texts = list(map(_spell, shape.texts))
    out, begin = texts[0], -1
    for i, field in enumerate(fields):
        begin = out.rfind("/") + 1 if field and begin < 0 else begin
        numbers = {row.numbers[i] for row in shape.rows}
        widths = {len(number) for number in numbers if field not in ("name", "metric", "date")}
        padded = len(widths) == 1 and any(n.startswith("0") and len(n) > 1 for n in numbers)
        width = f":0{min(widths)}d" if padded else ""
        out += (f"{{{field}{width}}}" if field else shape.rows[0].numbers[i]) + texts[i + 1]
    return out[max(begin, 0) :]


def _tell_apart(p: GuessedPiece, placed: Collection[str]) -> GuessedPiece | None:
    """Return the piece with directories in its template until it fits no file of another layout, if any."""
    while any(map(p.matches, placed)):
        above = {f"//{path}".split("/")[-len(p.names) - 1] for path in p.paths}
        if len(above) > 1 or not (name := above.pop()) or ">" in name:
            return None
        p = replace(p, template=f"{_spell(name)}/{p.template}")
    return p


def _layouts(pieces: Iterable[GuessedPiece]) -> list[list[GuessedPiece]]:
    """Return the pieces by layout: those that have a save in common. A whole state under a name of loops.toml
    is a save alone, and another one of the same model no part of it.
    """
    layouts: list[list[GuessedPiece]] = []
    for p in pieces:
        joined = [p]
        for of in [of for of in layouts if any(p.saves & other.saves for other in of)]:
            if not any(_are_two_saves(q, other) for q in joined for other in of):
                layouts.remove(of)
                joined = [*of, *joined]
        layouts.append(joined)
    return _join_lone(layouts)


def _are_two_saves(p: GuessedPiece, other: GuessedPiece) -> bool:
    known = {numbers_named(path)[0] is not None for path in (p.paths[0], other.paths[0])}
    return bool(p.state) and p.state == other.state and (len(known) > 1 or not p.fields & WHEN)


def _join_lone(layouts: list[list[GuessedPiece]]) -> list[list[GuessedPiece]]:
    """Return the layouts; one file without a number is a save of the run beside it if both hold as much."""
    for of in [of for of in layouts if _is_lone(of)]:
        beside = [o for o in layouts if o is not of and _get_homes(o) == _get_homes(of)]
        alike = [o for o in beside if any(p.state for p in o) == bool(of[0].state)]
        if len(beside) == len(alike) == 1 and beside[0][0].fields & WHEN:
            layouts.remove(of)
            beside[0] += of
    return layouts


def _is_lone(pieces: Sequence[GuessedPiece]) -> bool:
    """Return True if a layout is one file, whose name tells no save."""
    return len(pieces) == len(pieces[0].paths) == 1 and not pieces[0].fields & (WHEN | ONCE)


def _get_homes(pieces: Sequence[GuessedPiece]) -> set[str]:
    return {dirname(path) for p in pieces for path in p.paths}


def _with_roles(pieces: Sequence[GuessedPiece], sizes: Mapping[str, int]) -> Iterator[GuessedPiece]:
    """Return the pieces with their words as roles; the largest is the model if none is called so, and a save
    of one file beside others is one, too.
    """
    if pieces[0].fields & WHEN and _is_lone(pieces[-1:]):
        yield from _with_roles(pieces[:-1], sizes)
        yield replace(pieces[-1], role="model")
        return
    called = [p.role or _name_role(p.template) for p in pieces]
    largest = [max(sizes[path] for path in p.paths) * (not p.role) for p in pieces]
    if "model" not in called and any(largest):
        called[largest.index(max(largest))] = "model"
    for i, (p, role) in enumerate(zip(pieces, called, strict=True)):
        n = called[:i].count(role)
        yield replace(p, role=f"{role}{n + 1}" if n else role)


def _name_role(template: str) -> str:
    words = re.findall("[a-z]+", re.sub(r"\{.*?\}|\.\w+$", " ", template.lower()))
    return "_".join(word for word in words if not _CALLED.fullmatch(word)) or "part"


class Miss(NamedTuple):
    """The template ``fits`` so much of the path; ``expected`` is its next piece, ``found`` what is there."""

    path: str
    fits: str
    expected: str
    found: str


def _tokens(template: str) -> list[str]:
    """The template in its smallest pieces; an optional part is one."""
    out: list[str] = []
    depth, held = 0, ""
    for piece in TOKENS.split(template):
        if not piece:
            continue
        depth += (piece == "[") - (piece == "]")
        held += piece
        if depth == 0:
            out.append(held)
            held = ""
    return out


def near_miss(piece: Piece, path: str) -> Miss | None:
    """How far the end of ``path`` (as many components as the template has) follows the template;
    None when not even its first literal is there.
    """
    tail = "/".join(path.split("/")[-piece.depth - 1 :])
    parts, reached, best = _tokens(piece.template), "", 0
    for i in range(1, len(parts) + 1):
        m = re.match(compile_template("".join(parts[:i])), tail)
        if m is None:
            break
        reached, best = m[0], i
    literal = any(token.strip("/") and token[0] not in "{[<" for token in parts[:best])
    if best == len(parts):
        fits = re.fullmatch(compile_template(piece.template), tail) is not None
        return None if fits else Miss(path, reached, "the end of the name", tail[len(reached) :])
    return Miss(path, reached, parts[best], tail[len(reached) :][:80]) if literal else None
