"""The table of ckpt.toml for files that no layout recognises, worked out from the files' names. Pure.

One number of a name is that of the save: the one behind a word such as step or epoch, else the last number
that varies and does not count from 0. Files with the same number are one save. Where names do not tell which
files are one save, nothing is guessed, and the guess says why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from posixpath import dirname
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.layouts.common import templates
from ckpt_tools.layouts.common.piece import Piece
from ckpt_tools.layouts.common.templates import TOKENS, compile_template
from ckpt_tools.layouts.files import read_convention
from ckpt_tools.layouts.user import check_template

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
Look = Callable[[str], str]
"""Path -> ``state`` of a file with a model and its optimizer's state, ``optimizer`` of one with the latter
alone, else "".
"""
_ASKED = 3
"""How many files of a template are asked what they hold, as some may be damaged."""


class GuessedPiece(Struct, frozen=True):
    """The files of one template."""

    template: str
    paths: tuple[str, ...]
    fields: frozenset[str]
    notes: tuple[str, ...]  # what else a number could mean
    saves: frozenset[tuple[str, ...]]  # the run and the numbers of each save
    sure: bool  # a word names each number, or it is a step and does not count from 0
    role: str = ""  # what files hold, as ``Look`` says; in a finished guess the role

    @property
    def home(self) -> str:
        """The template of the directory in which all files of a save lie; "" if they lie beside others."""
        return self.template.rpartition("/")[0].partition("/")[0]

    def matches(self, path: str) -> bool:
        """Return True if the template fits the last names of a path."""
        parts, names = self.template.split("/"), path.split("/")
        return len(names) >= len(parts) and templates.read_path(parts, names) is not None


class Guess(NamedTuple):
    """The pieces of one layout, or none and ``why``; no template describes the files ``left_out``."""

    pieces: tuple[GuessedPiece, ...]
    left_out: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_sure(self) -> bool:
        """Return True if names tell of all files which save and rank each is of."""
        return bool(self.pieces) and not self.left_out and all(p.sure for p in self.pieces)


def guess(sizes: Mapping[str, int], placed: Collection[str] = (), look: Look = lambda _: "") -> Guess:
    """Return the layout of files (path -> size); its templates fit no path that others have ``placed``."""
    unfinished = tuple(path for path in sizes if any(map(templates.is_begun, path.split("/"))))
    shapes = _group_by_texts([path for path in sizes if path not in unfinished])
    several = any(f in WHOSE and s.varies(i) for s in shapes for i, f in enumerate(_name_fields(s.texts)))
    made = dict[str, GuessedPiece]()
    for p in (_make_piece(shape, several) for shape in shapes):
        earlier = made.get(p.template, replace(p, paths=(), saves=frozenset()))
        made[p.template] = replace(p, paths=earlier.paths + p.paths, saves=earlier.saves | p.saves)
    pieces = [replace(p, role=next(filter(None, map(look, p.paths[-_ASKED:])), "")) for p in made.values()]
    why = next(_find_doubts(pieces, placed), "") if pieces else "all files are of saves under way"
    return Guess((), tuple(sizes), why) if why else Guess(tuple(_assign_roles(pieces, sizes)), unfinished)


def find_tracker(pieces: Sequence[GuessedPiece], read: Reader) -> dict[str, str]:
    """Return the keys of ckpt.toml for a small file that names a save in each run; {} without one."""
    saves = defaultdict[str, set[str]](set)
    for p in pieces:
        first = -p.template.count("/") - 1
        for names in (path.split("/") for path in p.paths):
            saves["/".join(names[:first])].add(names[first])
    texts = {run: read(run) for run in saves}
    for name in sorted(filter(_TRACKER.search, set.intersection(*map(set, texts.values())))):
        rows = [(texts[run][name].decode(errors="replace").strip(), saved) for run, saved in saves.items()]
        if all(text.rstrip("/") in saved for text, saved in rows):
            return {"tracker": name, "tracker_holds": "name"}
        if all(text in map(str, map(int, re.findall(r"\d{1,18}", " ".join(saved)))) for text, saved in rows):
            return {"tracker": name}
    return {}


# ---- shapes


class _Shape(NamedTuple):
    """Files whose paths differ in numbers alone."""

    texts: tuple[str, ...]  # around the numbers
    paths: tuple[str, ...]
    runs: tuple[str, ...]  # for each file the directories above its save
    columns: Sequence[tuple[str, ...]]  # for each number its values in all files

    def varies(self, i: int) -> bool:
        """Return True if number ``i`` is not the same in all files."""
        return len(set(self.columns[i])) > 1

    def has_integers(self, i: int) -> bool:
        """Return True if number ``i`` is an integer in all files, and no date or fraction."""
        return all(map(str.isdigit, self.columns[i]))

    def repeats(self, i: int, j: int) -> bool:
        """Return True if number ``i`` equals the other number ``j`` in each file, leading zeros aside."""
        numbers, other = ([n.lstrip("0") for n in self.columns[k]] for k in (i, j))
        return numbers == other

    def list_saves(self, fields: Sequence[str]) -> list[tuple[str, ...]]:
        """Return for each file its run and the numbers of its save."""
        when = [column for column, field in zip(self.columns, fields, strict=True) if field in WHEN]
        return list(zip(self.runs, *when, strict=True))


def _group_by_texts(paths: Sequence[str]) -> list[_Shape]:
    """Return files by the texts around the numbers in their paths below their runs."""
    rows = defaultdict[tuple[str, ...], list[tuple[str, ...]]](list)
    for path in paths:
        names = path.split("/")
        begin = _find_save_begin(names)
        below = "/".join(names[begin:])
        rows[tuple(_NUMBER.split(below))].append((path, "/".join(names[:begin]), *_NUMBER.findall(below)))
    tables = {texts: list(zip(*same, strict=True)) for texts, same in rows.items()}
    return [_Shape(texts, columns[0], columns[1], columns[2:]) for texts, columns in tables.items()]


def _find_save_begin(names: Sequence[str]) -> int:
    """Return the index of a path's first name with a number (behind a word, if any is), else of its last."""
    fields = [_name_fields(_NUMBER.split(name)) for name in names]
    is_worded = any(map(WHEN.intersection, fields))
    has_integer = [any(map(str.isdigit, _NUMBER.findall(name))) for name in names]
    indexes = (i for i, of_name in enumerate(fields) if has_integer[i] and (any(of_name) or not is_worded))
    return next(indexes, len(names) - 1)


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


# ---- pieces


def _count_from_0(values: Collection[str]) -> bool:
    """Return True if the numbers, in any order, are 0, 1, 2 … without a gap."""
    found = set(map(int, values))
    return found == set(range(len(found)))


def _make_piece(shape: _Shape, several: bool) -> GuessedPiece:
    """Return the piece that a shape makes; with files of ``several`` ranks a lone number 0 is no rank's."""
    worded = _name_fields(shape.texts)
    for i in [i for i, field in enumerate(worded) if several and field in WHOSE]:
        worded[i] = worded[i] if any(n.strip("0") for n in shape.columns[i]) else ""
    fields = _complete_fields(shape, worded)
    guessed = {field for field, word in zip(fields, worded, strict=True) if field != word}
    notes = tuple(note for field, note in _NOTES.items() if field in (guessed | {"shard"}) & set(fields))
    is_save_alone = not WHEN & set(fields) and ONCE & set(fields)
    saves = frozenset(zip(shape.paths) if is_save_alone else shape.list_saves(fields))
    sure = bool(WHEN & set(fields)) and not _is_ambiguous(shape, fields, worded)
    return GuessedPiece(_write_template(shape, fields), shape.paths, frozenset(fields), notes, saves, sure)


def _is_ambiguous(shape: _Shape, fields: Sequence[str], worded: Sequence[str]) -> bool:
    """Return True if a step or rank by guess counts from 0: it may be the other of the two then."""
    by_guess = (i for i, field in enumerate(fields) if field in ("step", "rank") and field != worded[i])
    return any(_count_from_0(shape.columns[i]) for i in by_guess)


def _complete_fields(shape: _Shape, worded: Sequence[str]) -> list[str]:
    """Return the field of each number, by its word, else by guess; "" where it is part of the name."""
    integers = [i for i in range(len(worded)) if shape.has_integers(i)]
    fields = [
        field if i in integers and (field not in worded[:i] or shape.repeats(i, worded.index(field))) else ""
        for i, field in enumerate(worded)
    ]
    if not WHEN & set(fields) and (unnamed := [i for i in integers if not fields[i]]):
        fields[_choose_step(shape, unnamed)] = "step"
    for i in [i for i, field in enumerate(fields) if not field and shape.varies(i)]:
        fields[i] = _guess_field(shape, fields, i)
    return fields


def _choose_step(shape: _Shape, unnamed: Sequence[int]) -> int:
    """Return which of the ``unnamed`` numbers is the step: the last that varies and does not count from 0."""
    steps = [i for i in unnamed if not _count_from_0(shape.columns[i])]
    steps = steps or list(filter(shape.varies, unnamed))[:1] or [unnamed[0]]
    return (list(filter(shape.varies, steps)) or steps)[-1]


def _guess_field(shape: _Shape, fields: Sequence[str], i: int) -> str:
    """Return the field of number ``i``, which varies and has no word, by its values in each save."""
    if not shape.has_integers(i):
        return "metric" if all(n.count(".") == 1 for n in shape.columns[i]) else "date"
    if equal := [field for j, field in enumerate(fields) if field and shape.repeats(i, j)]:
        return equal[0]
    saves = shape.list_saves(fields)
    if len(set(zip(saves, shape.columns[i], strict=True))) == len(set(saves)):
        return "name"
    if _count_from_0(shape.columns[i]) and not WHOSE & set(fields):
        return "rank"
    return "shard" if "shard" not in fields else "name"


def _write_template(shape: _Shape, fields: Sequence[str]) -> str:
    """Return the template, which begins with the first name that has a field."""
    out, begin = shape.texts[0], -1
    for i, field in enumerate(fields):
        begin = out.rfind("/") + 1 if field and begin < 0 else begin
        widths = {len(number) for number in shape.columns[i] if field not in ("name", "metric", "date")}
        padded = len(widths) == 1 and any(n.startswith("0") and len(n) > 1 for n in shape.columns[i])
        width = f":0{min(widths)}d" if padded else ""
        out += (f"{{{field}{width}}}" if field else shape.columns[i][0]) + shape.texts[i + 1]
    return out[max(begin, 0) :]


# ---- one layout


def _find_doubts(pieces: Sequence[GuessedPiece], placed: Collection[str]) -> Iterator[str]:
    """Yield why the pieces are not the templates of one layout."""
    for p in pieces:
        if path := _find_misfit(p):
            yield f"no template can spell {path}"
        if path := next(filter(p.matches, placed), None):
            yield f"what spells {p.paths[0]} spells {path} too, which is of another layout"
    if _is_series_and_last(pieces):
        return
    largest = max(pieces, key=lambda p: len(p.saves))
    for p in pieces:
        if p.home != largest.home or p.saves.isdisjoint(largest.saves):
            yield f"neither numbers nor directories make {p.paths[0]} and {largest.paths[0]} one save"
    first, *others = [p for p in pieces if p.role == "state"] or pieces[:1]
    for p in others:
        # a file with a whole state under a name of loops.toml is a save alone
        if not p.fields & WHEN or len({read_convention(q.paths[0])[0] is None for q in (first, p)}) > 1:
            yield f"{first.paths[0]} and {p.paths[0]} hold a whole state each"


def _find_misfit(p: GuessedPiece) -> str | None:
    """Return a path that the template does not fit, any path if the template is wrong, else None."""
    try:
        check_template(p.template)
        return next((path for path in p.paths if not p.matches(path)), None)
    except ValueError:
        return p.paths[0]


def _is_series_and_last(pieces: Sequence[GuessedPiece]) -> bool:
    """Return True for whole states with a number, and one without beside them: its content tells the step."""
    if len(pieces) != 2 or any(p.role != "state" for p in pieces):
        return False
    last, series = sorted(pieces, key=lambda p: bool(p.fields & WHEN))
    is_pair = len(last.paths) == 1 and not last.fields & (WHEN | ONCE) and bool(series.fields & WHEN)
    return is_pair and {dirname(path) for path in series.paths} == {dirname(last.paths[0])}


def _assign_roles(pieces: Sequence[GuessedPiece], sizes: Mapping[str, int]) -> Iterator[GuessedPiece]:
    """Yield the pieces with words in their names as roles; without a model, the largest piece is one."""
    if _is_series_and_last(pieces):
        yield from (replace(p, role="model") for p in pieces)
        return
    if sum(p.role == "state" for p in pieces) > 1:
        note = "other pieces hold a whole state, too: if they are of another job, leave this table out"
        pieces = [replace(p, notes=(*p.notes, note)) if p.role == "state" else p for p in pieces]
    roles = [p.role if p.role == "optimizer" else _name_role(p.template) for p in pieces]
    largest = [max(sizes[path] for path in p.paths) * (p.role != "optimizer") for p in pieces]
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
    out, depth, text = list[str](), 0, ""
    for piece in TOKENS.split(template):
        depth += (piece == "[") - (piece == "]")
        text += piece
        if text and not depth:
            out.append(text)
            text = ""
    return out


def near_miss(piece: Piece, path: str) -> Miss | None:
    """Return how far the end of ``path`` follows the template; None if it fits, or has no literal of it."""
    tail = "/".join(path.split("/")[-piece.depth - 1 :])
    if re.fullmatch(compile_template(piece.template), tail):
        return None
    parts, best, fits = _split_template(piece.template), 0, ""
    while best < len(parts) and (m := re.match(compile_template("".join(parts[: best + 1])), tail)):
        best, fits = best + 1, m[0]
    if not any(token.strip("/") and token[0] not in "{[<" for token in parts[:best]):
        return None
    expected = parts[best] if best < len(parts) else "the end of the name"
    return Miss(path, fits, expected, tail[len(fits) :][:80])
