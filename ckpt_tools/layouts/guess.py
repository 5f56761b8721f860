"""The tables of ckpt.toml for files that no layout recognises, worked out from the files' names. Pure.

One number of a name is that of the save: the one behind a word such as step or epoch, else the last number
that varies and does not count from 0. Files with the same number are one save; so are files of one directory
without numbers.
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
"""Path -> (``optimizer`` of its state alone, else ""; the signature of a model's tensors saved with it, else
"").
"""
_ASKED = 3
"""How many files of a template are asked what they hold, as some may be damaged."""


class _Row(NamedTuple):
    """One file: the directories above its save, and the numbers of the rest of its path."""

    path: str
    above: str
    numbers: tuple[str, ...]


class GuessedPiece(Struct, frozen=True, dict=True):
    """The files of one template."""

    template: str
    paths: tuple[str, ...]
    fields: frozenset[str]
    notes: tuple[str, ...]  # what else a number could mean
    saves: frozenset[tuple[str, ...]]  # the run and the numbers of each save
    role: str = ""
    sure: bool = True  # a word names each number, or it is a step and does not count from 0
    state: str = ""  # the signature of files that hold a whole state

    @cached_property
    def names(self) -> list[re.Pattern[str]]:
        return [re.compile(compile_template(name)) for name in self.template.split("/")]

    def matches(self, path: str) -> bool:
        names = path.split("/")[-len(self.names) :]
        return len(names) == len(self.names) and all(map(re.Pattern.fullmatch, self.names, names))


class Guess(NamedTuple):
    """The pieces of each layout; ``left_out`` are the paths of files that no template fits."""

    layouts: tuple[tuple[GuessedPiece, ...], ...]
    left_out: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Return True if all files are of one layout, and names tell which save and rank each is of."""
        return len(self.layouts) == 1 and not self.left_out and all(p.sure for p in self.layouts[0])


def guess(sizes: Mapping[str, int], placed: Collection[str] = (), look: Look = lambda _: ("", "")) -> Guess:
    """Return the layouts of files (path -> size); their templates fit no path that others have ``placed``."""
    made: dict[str, GuessedPiece] = {}
    shapes = [_Shape(texts, rows) for texts, rows in _group_by_texts(list(sizes)).items()]
    several = any(f in WHOSE and s.varies(i) for s in shapes for i, f in enumerate(_name_fields(s.texts)))
    for shape in shapes:
        p = _add_directories(_make_piece(shape, several), placed)
        if p is not None and not re.search(r"(?:\{name\}[^/]*){3}", p.template):  # too many ways to read it
            known = made.get(p.template, replace(p, paths=(), saves=frozenset()))
            role, state = next(filter(any, map(look, p.paths[-_ASKED:])), (known.role, known.state))
            paths, saves = known.paths + p.paths, known.saves | p.saves
            made[p.template] = replace(p, paths=paths, saves=saves, role=role, state=state)
    layouts = tuple(tuple(_assign_roles(pieces, sizes)) for pieces in _group_layouts(made.values()))
    taken = {path for pieces in layouts for p in pieces for path in p.paths if p.matches(path)}
    return Guess(layouts, tuple(path for path in sizes if path not in taken))


def find_tracker(pieces: Sequence[GuessedPiece], read: Reader) -> dict[str, str]:
    """Return the keys of ckpt.toml for a tracker file, {} without one: a small file called like a tracker
    that in each run holds the number or name of a save. ``read`` returns the small files of a directory.
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


def _group_by_texts(paths: Sequence[str]) -> Mapping[tuple[str, ...], list[_Row]]:
    """Return files, as rows, by the texts around the numbers in their paths below their runs."""
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
    """Return the offset of the first name with a number, None without one; if a word calls any number step or
    epoch, of the first name with a number behind a word.
    """
    names = path.split("/")
    told = [_name_fields(_NUMBER.split(name)) for name in names]
    called = any(WHEN.intersection(fields) for fields in told)
    plain = [any(map(str.isdigit, _NUMBER.findall(name))) for name in names]
    begins = (i for i, fields in enumerate(told) if plain[i] and (any(fields) or not called))
    first = next(begins, None)
    return None if first is None else sum(len(name) + 1 for name in names[:first])


def _find_homes(paths: Sequence[str]) -> Mapping[str, str]:
    """Return the directory of the save of each file without numbers: the one directory that has all of them;
    or each directory in it, if it is the root or these have files of the same names.
    """
    above = commonpath(list(map(dirname, paths))) if paths else ""
    above += "/" if above else ""
    inside: dict[str, set[str]] = {}
    for head, _, rest in (path[len(above) :].partition("/") for path in paths):
        inside.setdefault(head if rest else "", set()).add(rest or head)
    files = list(inside.values())
    several = not above or (len(files) > 1 and all(names == files[0] for names in files))
    return {path: path[: path.find("/", len(above)) + 1] if several else above for path in paths}


def _name_fields(texts: Sequence[str]) -> list[str]:
    """Return for each number the field that the word before it names, "" without such a word."""
    fields: list[str] = []
    for before in texts[:-1]:
        called = _CALLED.search(before.rpartition("/")[2].lower())
        field = ("step" if called[1].startswith("iter") else called[1]) if called else ""
        if field == "of":
            field = {"shard": "of", "rank": "world"}.get(fields[-1] if fields else "", "")
        fields.append(field)
    return fields


class _Shape(Struct, frozen=True, dict=True):
    """Files whose paths differ in numbers alone: ``texts`` around the numbers, and a row for each file."""

    texts: tuple[str, ...]
    rows: Sequence[_Row]

    @cached_property
    def columns(self) -> list[tuple[str, ...]]:
        """For each number its values in all rows."""
        return [tuple(row.numbers[i] for row in self.rows) for i in range(len(self.texts) - 1)]

    def varies(self, i: int) -> bool:
        return len(set(self.columns[i])) > 1

    def is_plain(self, i: int) -> bool:
        return all(map(str.isdigit, self.columns[i]))

    def repeats(self, i: int, j: int) -> bool:
        """Return True if number ``i`` equals the earlier number ``j`` in each row, leading zeros aside."""
        mine, other = ([n.lstrip("0") for n in self.columns[k]] for k in (i, j))
        return mine == other

    def of(self, fields: Sequence[str]) -> list[tuple[str, ...]]:
        """Return for each file its run and the numbers of its save."""
        when = [column for column, field in zip(self.columns, fields, strict=True) if field in WHEN]
        return list(zip((row.above for row in self.rows), *when, strict=True))


def _count_from_0(values: Collection[str]) -> bool:
    found = set(map(int, values))
    return found == set(range(len(found)))  # 0, 1, 2 … without a gap


def _make_piece(shape: _Shape, several: bool) -> GuessedPiece:
    """Return the piece that a shape makes; with files of ``several`` ranks a lone number 0 is no rank's."""
    told = _name_fields(shape.texts)
    for i in [i for i, field in enumerate(told) if several and field in WHOSE]:
        told[i] = told[i] if any(n.strip("0") for n in shape.columns[i]) else ""
    fields = _complete_fields(shape, told)
    unsaid = {field for field, said in zip(fields, told, strict=True) if field != said} | {"shard"}
    notes = tuple(note for field, note in _NOTES.items() if field in unsaid & set(fields))
    paths = tuple(row.path for row in shape.rows)
    alone = not WHEN & set(fields) and ONCE & set(fields)
    saves = frozenset(zip(paths) if alone else shape.of(fields))
    sure = bool(WHEN & set(fields)) and not any(_check_doubts(shape, fields, told))
    return GuessedPiece(_write_template(shape, fields), paths, frozenset(fields), notes, saves, sure=sure)


def _check_doubts(shape: _Shape, fields: Sequence[str], told: Sequence[str]) -> Iterator[bool]:
    """Yield True for each step or rank without a word that counts from 0, and so may be the other one."""
    for column, field, said in zip(shape.columns, fields, told, strict=True):
        if field in ("step", "rank") and field != said:
            yield _count_from_0(column)


def _complete_fields(shape: _Shape, told: Sequence[str]) -> list[str]:
    """Return the field of each number, from its word or by guess; "" where it is part of the name."""
    plain = [i for i in range(len(told)) if shape.is_plain(i)]
    fields = [
        field if i in plain and (field not in told[:i] or shape.repeats(i, told.index(field))) else ""
        for i, field in enumerate(told)
    ]
    if not WHEN & set(fields) and (unnamed := [i for i in plain if not fields[i]]):
        fields[_find_step(shape, unnamed)] = "step"
    for i in [i for i, field in enumerate(fields) if not field and shape.varies(i)]:
        fields[i] = _guess_field(shape, fields, i)
    return fields


def _find_step(shape: _Shape, unnamed: Sequence[int]) -> int:
    """Return which of the ``unnamed`` numbers is the step: the last that varies and does not count from 0."""
    steps = [i for i in unnamed if not _count_from_0(shape.columns[i])]
    varying = list(filter(shape.varies, steps)) or steps
    return varying[-1] if varying else next(filter(shape.varies, unnamed), unnamed[0])


def _guess_field(shape: _Shape, fields: Sequence[str], i: int) -> str:
    """Return the field of the number ``i``, which varies and has no word: an equal number's, or a guess."""
    if not shape.is_plain(i):
        return "metric" if all(n.count(".") == 1 for n in shape.columns[i]) else "date"
    told = [j for j, field in enumerate(fields) if field and shape.is_plain(j) and shape.repeats(i, j)]
    return fields[told[0]] if told else _guess_within_saves(shape, fields, i)


def _guess_within_saves(shape: _Shape, fields: Sequence[str], i: int) -> str:
    """Return ``rank`` or ``shard`` if a save has several values of the number ``i``, else ``name``."""
    rows = set(zip(shape.of(fields), shape.columns[i], strict=True))
    saves, with_0 = {save for save, _ in rows}, {save for save, number in rows if not number.strip("0")}
    several = len(rows) > len(saves)
    counted = _count_from_0(shape.columns[i]) if several else False
    if counted and 2 * len(with_0) >= len(saves) and not WHOSE & set(fields):
        return "rank"
    return "shard" if several and "shard" not in fields else "name"


def _spell(text: str) -> str:
    """Return a literal text as a template spells it: brackets as choices of one word."""
    return re.sub(r"[][{}]|[<>]+", lambda odd: f"<{odd[0]}>" if odd[0] in "[]{}" else "{name}", text)


def _write_template(shape: _Shape, fields: Sequence[str]) -> str:
    """Return the template, which begins with the first name that has a field."""
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


def _add_directories(p: GuessedPiece, placed: Collection[str]) -> GuessedPiece | None:
    """Return the piece with directories before its template so that it fits no ``placed`` path, or None."""
    while any(map(p.matches, placed)):
        above = {f"//{path}".split("/")[-len(p.names) - 1] for path in p.paths}
        if len(above) > 1 or not (name := above.pop()) or ">" in name:
            return None
        p = replace(p, template=f"{_spell(name)}/{p.template}")
    return p


def _group_layouts(pieces: Iterable[GuessedPiece]) -> list[list[GuessedPiece]]:
    """Return the pieces by layout: pieces with a save in common are of one. But a file with a whole state
    under a name of loops.toml is a save alone, to which no other state of the same model belongs.
    """
    layouts: list[list[GuessedPiece]] = []
    for p in pieces:
        joined = [p]
        for layout in [layout for layout in layouts if any(p.saves & other.saves for other in layout)]:
            if not any(_are_two_saves(q, other) for q in joined for other in layout):
                layouts.remove(layout)
                joined = [*layout, *joined]
        layouts.append(joined)
    return _join_lone(layouts)


def _are_two_saves(p: GuessedPiece, other: GuessedPiece) -> bool:
    """Return True if files with the same whole state are two saves, not one: by their names in loops.toml."""
    in_loops = {numbers_named(path)[0] is not None for path in (p.paths[0], other.paths[0])}
    return bool(p.state) and p.state == other.state and (len(in_loops) > 1 or not p.fields & WHEN)


def _join_lone(layouts: list[list[GuessedPiece]]) -> list[list[GuessedPiece]]:
    """Return the layouts; a lone file joins the one run beside it if both or neither hold whole states."""
    for lone in [layout for layout in layouts if _is_lone(layout)]:
        beside = [o for o in layouts if o is not lone and _get_homes(o) == _get_homes(lone)]
        alike = [o for o in beside if any(p.state for p in o) == bool(lone[0].state)]
        if len(beside) == len(alike) == 1 and beside[0][0].fields & WHEN:
            layouts.remove(lone)
            beside[0] += lone
    return layouts


def _is_lone(pieces: Sequence[GuessedPiece]) -> bool:
    """Return True if a layout is one file, whose name has no number of a save."""
    return len(pieces) == len(pieces[0].paths) == 1 and not pieces[0].fields & (WHEN | ONCE)


def _get_homes(pieces: Sequence[GuessedPiece]) -> set[str]:
    return {dirname(path) for p in pieces for path in p.paths}


def _assign_roles(pieces: Sequence[GuessedPiece], sizes: Mapping[str, int]) -> Iterator[GuessedPiece]:
    """Yield the pieces of a layout with the words in their names as roles; without a model among these the
    largest is the model. A save of one file beside others is a model, too.
    """
    if pieces[0].fields & WHEN and _is_lone(pieces[-1:]):
        yield from _assign_roles(pieces[:-1], sizes)
        yield replace(pieces[-1], role="model")
        return
    roles = [p.role or _name_role(p.template) for p in pieces]
    largest = [max(sizes[path] for path in p.paths) * (not p.role) for p in pieces]
    if "model" not in roles and any(largest):
        roles[largest.index(max(largest))] = "model"
    for i, (p, role) in enumerate(zip(pieces, roles, strict=True)):
        n = roles[:i].count(role)
        yield replace(p, role=f"{role}{n + 1}" if n else role)


def _name_role(template: str) -> str:
    """Return the words of a template that are no fields or units, joined by "_"; "part" without any."""
    words = re.findall("[a-z]+", re.sub(r"\{.*?\}|\.\w+$", " ", template.lower()))
    return "_".join(word for word in words if not _CALLED.fullmatch(word)) or "part"


class Miss(NamedTuple):
    """Where a path stops to follow a template."""

    path: str
    fits: str  # the text that follows it
    expected: str  # the next token
    found: str  # the text there


def _split_template(template: str) -> list[str]:
    """Return the tokens of a template; an optional part in brackets is one token."""
    out, depth, held = list[str](), 0, ""
    for piece in TOKENS.split(template):
        depth += (piece == "[") - (piece == "]")
        held += piece
        if held and not depth:
            out.append(held)
            held = ""
    return out


def near_miss(piece: Piece, path: str) -> Miss | None:
    """Return how far the end of ``path``, as many names as the template has, follows the template; None if it
    fits, or if not even the first literal text of the template is there.
    """
    tail = "/".join(path.split("/")[-piece.depth - 1 :])
    parts, reached, best = _split_template(piece.template), "", 0
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
